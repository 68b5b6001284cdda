"""Requests that cannot be served: configurations, output folders, rows and flags. Nothing is left behind, and the one
error line says what to do. Exit code 2 is for input that the user can mend, 1 for everything else."""
import itertools
import json
import os
import resource
import shutil
import subprocess
import unittest

import gramian_e2e as e2e
from gramian_e2e import BINARY, TINYSTORIES, TinyModel, digests, random_rows, tensor, write_rows, write_safetensors


class Configuration(e2e.GramianTestCase):
    def setUp(self):
        super().setUp()
        self.tiny = TinyModel()
        self.model = self.tiny.write(self.path("model"))
        self.rows = write_rows(self.path("rows.safetensors"), random_rows(2, 16))
        self.verbs = itertools.cycle(("quantize", "eval", "inspect"))

    def check(self, text, *says):
        """With this text as config.json the verbs, which share its reader, refuse the model: each asked in turn."""
        (self.model / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
        verb = next(self.verbs)
        with self.subTest(text=text[:300], verb=verb):
            if verb == "quantize":
                self.refused_job(self.model, says=says)
            else:
                self.refused(verb, self.model, *(("--rows", self.rows) if verb == "eval" else ()), says=says)

    def change(self, *says, drop=(), **fields):
        config = {**self.tiny.config, **fields}
        for key in drop:
            del config[key]
        self.check(json.dumps(config), *says)

    def test_folder(self):
        for model, says in ((self.path("none"), "no such folder"), (self.rows, "expected a folder"), (self.folder, "config.json")):
            self.refused_job(model, says=(model, says))
            self.refused("inspect", model, says=(model, says))
        (self.model / "model.safetensors").unlink()
        self.refused_job(self.model, says=(self.model, "no safetensors file"))
        (self.model / "pytorch_model.bin").write_bytes(b"PK")
        self.refused_job(self.model, says=("pickles", "convert"))

    def test_text(self):
        whole = json.dumps(self.tiny.config)
        for text in (whole[:-10], "", "null", "[]", "\"x\"", whole + "}", whole.replace('"vocab_size"', '"hidden_size"'),
                     b'{"model_type": "\xff"}', "\ufeff", "[" * 5000, '{"hidden_size": 1e999}'):
            self.check(text, "config.json")

    def test_wrong_types(self):
        for key in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
                    "num_hidden_layers", "vocab_size", "max_position_embeddings"):
            self.change("config.json", key, **{key: "128"})
        for value in (128.0, [128], {"a": 1}, True):
            self.change("hidden_size", hidden_size=value)
        self.change("tie_word_embeddings", tie_word_embeddings="true")
        self.change("rms_norm_eps", rms_norm_eps="small")
        self.change("hidden_act", hidden_act=3)
        self.change("relu6", hidden_act="relu6")
        self.change("rope_scaling", rope_scaling=[1])
        self.change("spiral", rope_scaling={"rope_type": "spiral"})
        self.change("rope_theta", rope_theta=-1)
        self.change("long_factor", rope_scaling={"rope_type": "longrope", "short_factor": [1] * 32, "long_factor": [1]})
        self.change("rms_norm_eps", rms_norm_eps=-1)

    def test_negative_and_zero_sizes(self):
        for key in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
                    "num_hidden_layers", "vocab_size"):
            for value in (-1, 0, -(2**63)):
                self.change(key, **{key: value})

    def test_missing_sizes(self):
        for key in ("hidden_size", "num_attention_heads", "intermediate_size", "num_hidden_layers", "vocab_size"):
            self.change(key, drop=[key])

    def test_huge_sizes(self):
        """Nothing is allocated from a number that no tensor confirms."""
        for key in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
                    "num_hidden_layers", "vocab_size"):
            for value in (2**31, 2**40, 2**64 - 1, 2**70):
                self.change(**{key: value})
        self.change(num_attention_heads=2**40, num_key_value_heads=2**40, head_dim=2**40)
        for _ in range(3):  # by every verb
            self.change("model.layers.2.", num_hidden_layers=65000)

    def test_sizes_that_contradict_the_tensors(self):
        self.change("model.embed_tokens.weight", "[300, 128]", "[301, 128]", vocab_size=301)
        result = self.refused_with(intermediate_size=384)
        for name in ("gate_proj", "up_proj", "down_proj"):
            for layer in range(2):
                self.assertIn(f"model.layers.{layer}.mlp.{name}.weight", result.err)
        result = self.refused_with(num_hidden_layers=3)
        self.assertIn("model.layers.2.", result.err)
        self.assertIn("num_hidden_layers", result.err)
        self.assertNotIn("model.layers.1", result.err)

    def refused_with(self, **fields):
        (self.model / "config.json").write_text(json.dumps({**self.tiny.config, **fields}))
        return self.refused_job(self.model)

    def test_heads_that_do_not_divide(self):
        self.change("num_key_value_heads", num_attention_heads=3, num_key_value_heads=2)
        self.change("num_attention_heads", num_attention_heads=3, num_key_value_heads=3, drop=["head_dim"])

    def test_unknown_model_type(self):
        self.change("deepmoe", "llama", "qwen2", model_type="deepmoe")
        self.change("model_type", drop=["model_type", "architectures"])
        self.change("config.json", model_type=7)

    def test_integer_weights(self):
        self.tiny.tensors["model.layers.1.mlp.up_proj.weight"] = tensor("I32", [256, 128], [1] * (256 * 128))
        shutil.rmtree(self.model)
        self.tiny.write(self.model)
        self.refused_job(self.model, says=("model.layers.1.mlp.up_proj.weight", "I32"))

    def test_already_quantized(self):
        out = self.path("out")
        self.quantize(self.model, out, method="rtn")
        self.refused_job(out, says=("quantized already", "quantization_config"))
        for method in ("gptq", "awq", 5, None):
            self.tiny.config["quantization_config"] = {"quant_method": method, "bits": 4}
            model = self.tiny.write(self.path(f"model-{method}"))
            self.refused_job(model, says=("quantized already",))
            self.refused("eval", model, "--rows", self.rows, says=("quantization_config", "config.json"))


class Output(e2e.GramianTestCase):
    def setUp(self):
        super().setUp()
        self.model = TinyModel().write(self.path("model"))
        self.before = digests(self.model)

    def refuse(self, output, *flags, code=2, says=()):
        self.refused("quantize", self.model, "-o", output, "--method", "rtn", *flags, output=output, code=code, says=says)
        self.assertEqual(digests(self.model), self.before)

    def test_existing(self):
        out = self.path("out")
        out.mkdir()
        self.quantize(self.model, out, method="rtn")  # an empty folder is no obstacle
        self.refuse(out, says=(out, "not empty", "--force"))
        (out / "own.txt").write_text("mine")
        self.refuse(out, says=(out, "--force"))
        self.quantize(self.model, out, "--force", method="rtn")
        self.assertFalse((out / "own.txt").exists())
        (out / "config.json").unlink()
        self.refuse(out, "--force", says=(out, "no config.json"))  # some folder of the user's
        (out / "config.json").write_text("{}")
        self.assertEqual([p.name for p in sorted(self.folder.iterdir())], ["model", "out"])

    def test_failure_under_force_keeps_the_old_output(self):
        out = self.path("out")
        self.quantize(self.model, out, method="rtn")
        rows = write_rows(self.path("rows.safetensors"), [[1, 2, 999]])
        self.refused("quantize", self.model, "-o", out, "--force", "--calibration", rows, output=out)
        tiny = TinyModel()
        tiny.change("model.layers.1.mlp.down_proj.weight", {0: float("nan")})  # seen late: half of the output is written
        self.refused("quantize", tiny.write(self.path("nan")), "-o", out, "--force", "--method", "rtn", "--skip-scan",
                     output=out, code=1)

    def test_file(self):
        out = self.path("out")
        out.write_text("text")
        for flags in ((), ("--force",)):
            self.refuse(out, *flags, says=(out, "is a file"))
        self.assertEqual(out.read_text(), "text")

    def test_the_source_itself(self):
        """--force never replaces the model that is read, nor a folder that holds it."""
        link = self.path("link")
        link.symlink_to(self.model)
        for output in (self.model, self.folder, link, self.path("model/../model/")):
            self.refuse(output, "--force", says=("source",))

    def test_new_parents(self):
        self.quantize(self.model, self.path("a/b/out"), method="rtn")
        self.assertTrue((self.path("a/b/out") / "config.json").exists())
        self.assertEqual([p.name for p in self.path("a/b").iterdir()], ["out"])
        # Parents that were made for an output that never came go again; others stay.
        tiny = TinyModel()
        tiny.change("model.layers.1.mlp.down_proj.weight", {0: float("nan")})
        damaged = tiny.write(self.path("damaged"))
        for output in ("c/d/out", "a/e/out"):
            self.refused("quantize", damaged, "-o", self.path(output), "--method", "rtn", "--skip-scan", code=1)
        self.assertEqual([p.name for p in self.path("a").iterdir()], ["b"])

    def test_parent_that_cannot_be_written(self):
        file = self.path("file")
        file.write_text("")
        self.refuse(file / "out", code=1, says=(file,))
        self.refuse(e2e.pathlib.Path("/proc/none/out"), code=1, says=("/proc/none",))
        result = e2e.gramian("quantize", self.model, "-o", self.path("n" * 300), "--method", "rtn")
        self.assertEqual(result.code, 1, result)
        self.assertRegex(result.err, r"(?m)^error: .*File name too long")

    def test_nowhere(self):
        self.refuse(self.path(""), "--force")  # the folder that holds the model
        result = self.refused("quantize", self.model, "--method", "rtn", says=("--output",))
        self.assertNotIn("warning", result.err)

    def test_logits_output(self):
        rows = write_rows(self.path("rows.safetensors"), random_rows(1, 8))
        for output in (self.model / "config.json", self.model / "new.safetensors", rows):
            self.refused("logits", self.model, "--input", rows, "--output", output, says=(output, "another output"))
        self.assertEqual(digests(self.model), self.before)
        for output in (self.path("none/logits.safetensors"), self.model):
            result = e2e.gramian("logits", self.model, "--input", rows, "--output", output)
            self.assertIn(result.code, (1, 2), result)
            self.assertRegex(result.err, r"(?m)^error: .*" + str(output))
            self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["model", "rows.safetensors"])

    def test_full_disk(self):
        """The writer's own failures: a limit on file sizes stands for a full disk."""
        out = self.path("out")
        process = subprocess.run([BINARY, "quantize", self.model, "-o", out, "--method", "rtn"], capture_output=True, check=False,
                                 restore_signals=False,  # SIGXFSZ stays ignored, and writes fail
                                 preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50000, 50000)))
        message = process.stderr.decode()
        self.assertEqual(process.returncode, 1, message)
        self.assertRegex(message, r"(?m)^error: .*model.safetensors: there is no room for its \d+ bytes: File too large$")
        self.assertEqual([p.name for p in self.folder.iterdir()], ["model"])


class Rows(e2e.GramianTestCase):
    def setUp(self):
        super().setUp()
        self.model = TinyModel().write(self.path("model"))

    def refuse(self, path, *says, flags=()):
        """Both as calibration and as rows to evaluate."""
        path = self.path(path) if isinstance(path, str) else path
        with self.subTest(path=path.name, says=says):
            self.refused_job(self.model, "--method", "qqq", *flags, calibration=path, says=(path, *says))
            self.refused("eval", self.model, "--text", path, *flags, says=(path, *says))

    def tensors(self, **tensors):
        path = self.path(f"rows{len(list(self.folder.iterdir()))}.safetensors")
        write_safetensors(path, tensors)
        return path

    def text(self, name, content):
        self.path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return self.path(name)

    def test_kinds(self):
        self.refuse("none.safetensors", "No such file")
        self.refuse(self.text("rows.csv", "1,2"), ".csv", ".jsonl")
        self.refuse(self.text("rows", "1,2"), ".txt")
        for suffix in (".safetensors", ".jsonl"):
            self.path("folder" + suffix).mkdir()
            self.refuse("folder" + suffix, "is a folder, expected a file")
        self.refused("quantize", self.model, "-o", self.path("out"), says=("--calibration",))
        self.refused("eval", self.model, says=("--text", "--rows"))
        rows = write_rows(self.path("rows.safetensors"), random_rows(1, 8))
        self.refused("eval", self.model, "--rows", rows, "--text", rows, says=("--text", "--rows"))

    def test_tokens_outside_the_vocabulary(self):
        for bad in (300, -1, 2**40):
            rows = random_rows(12, 16)
            rows[10][3] = bad
            self.refuse(write_rows(self.path("ids.safetensors"), rows), "row 10", "position 3", bad, "300")
            self.refuse(self.text("ids.jsonl", "".join(json.dumps({"input_ids": row}) + "\n" for row in rows)), bad, "300")
            self.refused("logits", self.model, "--input", self.path("ids.safetensors"), "--output", self.path("l.safetensors"),
                         says=(self.path("ids.safetensors"), "row 10", "position 3", bad))

    def test_ready_rows(self):
        ids, mask = tensor("I64", [2, 4], range(8)), [1, 1, 1, 1, 1, 1, 0, 0]
        self.refuse(self.tensors(ids=ids), "input_ids")
        self.refuse(self.tensors(input_ids=tensor("F32", [2, 4], range(8))), "input_ids", "integers")
        self.refuse(self.tensors(input_ids=tensor("I64", [8], range(8))), "input_ids", "[rows, length]")
        self.refuse(self.tensors(input_ids=ids, attention_mask=tensor("I64", [4, 2], mask)), "attention_mask", "shape")
        self.refuse(self.tensors(input_ids=ids, attention_mask=tensor("F32", [2, 4], mask)), "attention_mask")
        self.refuse(self.tensors(input_ids=ids, attention_mask=tensor("I64", [2, 4], [0, 1, 0, 1, 1, 1, 1, 1])), "hole")
        self.refuse(self.tensors(input_ids=ids, attention_mask=tensor("I64", [2, 4], [0] * 8)), "token")
        self.refuse(self.tensors(input_ids=tensor("I64", [0, 4], [])))
        self.refuse(self.tensors(input_ids=tensor("I64", [3, 0], [])))
        self.refuse(self.tensors(input_ids=tensor("I64", [2**40, 0], [])))  # 2^40 rows of nothing
        self.refuse(self.tensors(input_ids=tensor("I64", [2**62, 0], [])))
        whole = self.tensors(input_ids=ids).read_bytes()
        self.refuse(self.text("cut.safetensors", whole[:-8]), "truncated")
        self.refuse(self.text("empty.safetensors", b""), "empty file")

    def test_json_lines(self):
        good = '{"input_ids": [1, 2, 3]}\n'
        for content in ("", "\n\n", '{"input_ids": []}\n'):
            self.refuse(self.text("blank.jsonl", content), "no usable row")
        (self.model / "chat_template.jinja").unlink()  # without it, messages need contents
        for line, says in (('{"input_ids": [1, 2.5]}', "integers"), ('{"input_ids": "12"}', "list"),
                           ('{"other": 1}', "input_ids"), ("[1, 2]", "object"), ('{"input_ids": [1, 2}', "JSON"), ('{"text": 3}', "text"),
                           ('{"messages": "hi"}', "messages"), ('{"messages": [{"role": "user"}]}', "content")):
            self.refuse(self.text("bad.jsonl", good + line + "\n"), "line 2", says)
        self.refuse(self.text("bytes.jsonl", good.encode() + b'{"text": "\xff\xfe"}\n'), "line 2")
        self.refuse(self.text("huge.jsonl", good + '{"input_ids": [18446744073709551615]}\n'))
        self.refuse(self.text("deep.jsonl", good + '{"text": ' + "[" * 100000), "line 2")

    def test_text(self):
        self.refuse_tokenizer(self.text("a.txt", "Once upon a time"), "tokenizer.json")
        shutil.copy(TINYSTORIES / "tokenizer.json", self.model)
        self.refuse(self.text("empty.txt", ""), "0 tokens")
        self.refuse(self.text("blank.txt", "\n"), "tokens")
        self.refuse(self.text("short.txt", "Once upon a time"), "--sequence-length")
        self.refuse(self.text("latin1.txt", b"Once upon a caf\xe9 " * 400), "UTF-8", "byte 15")
        self.refuse(self.text("cut.txt", "Once upon a caf\u00e9".encode()[:-1]), "UTF-8")
        self.refuse(self.text("utf16.txt", "Once upon a time ".encode("utf-16") * 100), "UTF-8")
        self.refuse(self.text("latin1.jsonl", '{"text": "caf\udce9"}'.encode("utf-8", "surrogateescape")), "line 1")
        # The tokenizer's ids lie beyond this model's vocabulary.
        self.refuse(TINYSTORIES / "heldout.txt", "vocabulary")

    def refuse_tokenizer(self, path, *says):
        self.refused_job(self.model, "--method", "qqq", calibration=path, says=says)

    def test_damaged_tokenizers(self):
        whole = (TINYSTORIES / "tokenizer.json").read_text()
        tokenizer = json.loads(whole)
        changed = []
        for change in (lambda t: t.pop("model"), lambda t: t["model"].pop("vocab"), lambda t: t["model"].update(type="Unigram"),
                       lambda t: t["model"].update(vocab=3), lambda t: t["model"].update(merges=["a"]),
                       lambda t: t["model"].update(merges=[["zzzz", "yyyy"]])):
            copy = json.loads(whole)
            change(copy)
            changed.append(json.dumps(copy))
        self.assertIn("model", tokenizer)
        for text in (whole[:-100], "", "[]", "{}", *changed):
            (self.model / "tokenizer.json").write_text(text)
            with self.subTest(text=text[:60]):
                self.refuse_tokenizer(TINYSTORIES / "calibration.txt", self.model / "tokenizer.json")


class Flags(e2e.GramianTestCase):
    def test_bad_flags(self):
        model = TinyModel().write(self.path("model"))
        out = ("-o", self.path("out"))
        rows = ("--rows", write_rows(self.path("rows.safetensors"), random_rows(2, 8)))
        for arguments, says in (
                ((), "subcommand"), (("frobnicate",), "frobnicate"), (("quantize",), "model"),
                (("quantize", model, *out, "--method", "magic"), "qqq, gptq, rtn"),
                (("quantize", model, *out, "--frobnicate"), "--frobnicate"),
                (("quantize", model, *out, "--mse", "-1"), "--mse"), (("quantize", model, *out, "--mse", "nan"), "--mse"),
                (("quantize", model, *out, "--mse", "a"), "--mse"),
                (("quantize", model, *out, "--damp-percent", 0), "--damp-percent"),
                (("quantize", model, *out, "--damp-percent", 1), "--damp-percent"),
                (("quantize", model, *out, "--damp-step", -0.1), "--damp-step"),
                *((("quantize", model, *out, "--group-size", size, "--method", "rtn"), "--group-size")
                  for size in (0, 64, 256, -2, "x")),
                (("quantize", model, *out, "--samples", 0), "--samples"),
                (("quantize", model, *out, "--samples", "-3"), "--samples"),
                (("quantize", model, *out, "--samples", 2**70), "--samples"),
                (("quantize", model, *out, "--sequence-length", 1), "--sequence-length"),
                (("quantize", model, *out, "--batch", 0), "--batch"), (("quantize", model, *out, "--seed", -1), "--seed"),
                (("quantize", model, *out, "--seed", "x"), "--seed"), (("quantize", model, *out, "--threads", -1), "--threads"),
                (("quantize", model, *out, "--compat", "autogptq"), "--compat"),
                (("quantize", model, *out, "--dtype", "int8", "--method", "rtn"), "--dtype"),
                (("quantize", model, *out, "--lanes", "cpu", "--method", "rtn"), "--lanes"),
                (("quantize", model, *out, "--lanes", "cpu:0", "--method", "rtn"), "--lanes"),
                (("quantize", model, *out, "--lanes", "cuda:0", "--method", "rtn"), "--lanes"),
                (("quantize", model, model, *out), str(model)), (("quantize", model, "-o"), "-o"),
                (("eval", model, *rows, "--dtype", "half"), "--dtype"), (("eval", model, *rows, "--batch", 0), "--batch"),
                (("eval", *rows), "model"), (("logits", model), "--input"), (("inspect",), "model folder"),
                (("eval", model, *rows, "--reference", self.path("none")), str(self.path("none")))):
            with self.subTest(arguments[1:], verb=arguments[:1]):
                self.refused(*arguments, says=(says,), output=self.path("out"))

    def test_json_stays_clean_when_a_job_fails(self):
        for flags in (("--json",), ("--quiet",), ("--json", "--quiet")):
            self.refused("inspect", self.path("none"), *flags, says=("no such folder",))

    def test_result_that_cannot_be_written(self):
        with open("/dev/full", "wb") as full:
            process = subprocess.run([BINARY, "inspect", TINYSTORIES, "--json"], stdout=full, stderr=subprocess.PIPE, check=False)
        self.assertEqual(process.returncode, 1)
        self.assertIn(b"error: standard output", process.stderr)

    def test_paths_that_are_not_utf8(self):
        model = os.fsencode(TinyModel().write(self.path("model")))
        rows = write_rows(self.path("rows.safetensors"), random_rows(2, 8))
        odd = os.fsencode(self.folder) + b"/caf\xe9"
        os.rename(model, odd)
        process = subprocess.run([BINARY, "eval", odd, "--rows", rows, "--json"], capture_output=True, check=False)
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertIn("caf\ufffd", json.loads(process.stdout.decode("utf-8"))["model"])

    def test_demo_without_its_model(self):
        self.refused("demo", "--model", self.path("none"), "-o", self.path("out"), says=(self.path("none"), "--model"))

    def test_other_vocabulary(self):
        rows = write_rows(self.path("rows.safetensors"), random_rows(2, 8))
        self.refused("eval", TinyModel().write(self.path("a")), "--rows", rows, "--reference",
                     TinyModel(vocab=320).write(self.path("b")), says=("320", "300"))

    def test_out_of_memory(self):
        """A forward that cannot allocate ends with one line that says so, not with a trace."""
        model = TinyModel().write(self.path("model"))
        rows, length = self.path("rows.safetensors"), 4_000_000
        write_safetensors(rows, {"input_ids": e2e.Tensor("U8", [1, length], bytes(length)),
                                 "attention_mask": e2e.Tensor("U8", [1, length], b"\1" + bytes(length - 1))})
        limit = 4 << 30  # the logits would take 4.8 GB
        process = subprocess.run([BINARY, "logits", model, "--input", rows, "--output", self.path("out"), "--threads", "1"],
                                 capture_output=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
                                 preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        message = process.stderr.decode()
        self.assertEqual(process.returncode, 1, message)
        self.assertRegex(message, r"(?m)^error: out of memory")
        self.assertEqual(len(message.splitlines()), 1, message)
        self.assertFalse(self.path("out").exists())
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["model", "rows.safetensors"])


if __name__ == "__main__":
    unittest.main()
