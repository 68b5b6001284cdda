"""gramian generate: greedy text against forwards over whole rows, what every flag changes, chat templates, and what is refused."""
import json
import shutil
import signal
import subprocess
import time
import unittest

import gramian_e2e as e2e
from gramian_e2e import BINARY, TINYSTORIES, TinyModel, read_safetensors, write_rows

PROMPT = "Once upon a time"
TEMPLATE = ("{% for m in messages %}[{{ m.role }}] {{ m.content }}<|end_of_text|>\n{% endfor %}"
            "{% if add_generation_prompt %}Once upon a time{% endif %}")


class Generate(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = TINYSTORIES
        cls.quantized = cls.top / "quantized"
        result = e2e.gramian("quantize", TINYSTORIES, "-o", cls.quantized, "--method", "rtn")
        if result.code != 0:
            raise AssertionError(str(result))

    def made(self, *flags, model=None, prompt=PROMPT, **options):
        flags = ("-p", prompt, *flags) if prompt is not None else flags
        return self.report("generate", model or self.model, *flags, **options)

    def text(self, *flags, **options):
        return self.made(*flags, **options)["text"]

    def copy(self, **files):
        """The bundled model with other side files; JSON for dicts, None removes one."""
        model = shutil.copytree(self.model, self.path("model"))
        for name, content in files.items():
            file = model / name.replace("__", ".")
            if content is None:
                file.unlink()
            else:
                file.write_text(json.dumps(content) if isinstance(content, dict) else content, encoding="utf-8")
        return model

    # ---- what is written ----

    def best_tokens(self, model, prefixes):
        """The most likely token behind each row, by a forward over the whole row."""
        rows = write_rows(self.path("rows.safetensors"), prefixes, pad="right")
        self.ok("logits", model, "--input", rows, "--output", self.path("logits.safetensors"), "--dtype", "float32")
        logits = read_safetensors(self.path("logits.safetensors"))["logits"]
        _, length, vocab = logits.shape
        values, best = logits.values(), []
        for row, prefix in enumerate(prefixes):
            begin = (row * length + len(prefix) - 1) * vocab
            at = values[begin:begin + vocab]
            best.append(at.index(max(at)))
        return best

    def test_greedy_is_what_whole_forwards_choose(self):
        for model in (self.model, self.quantized):
            found = self.made("-n", 14, "--dtype", "float32", model=model)
            self.assertEqual((len(found["ids"]), found["finish"], found["dtype"]), (14, "length", "Float"))
            row = found["prompt_ids"] + found["ids"]
            prefixes = [row[:end] for end in range(len(found["prompt_ids"]), len(row))]
            self.assertEqual(self.best_tokens(model, prefixes), found["ids"])
        self.assertTrue(self.text("-n", 14, "--dtype", "float32").startswith(", there was a little boy named Timmy"))

    def test_the_bundled_model_writes_what_it_always_wrote(self):
        """Behind the same 23 tokens the quantized model goes its own way. Made with weights decoded to int8, before kernels read 4 bits."""
        both = [13, 405, 282, 260, 396, 498, 557, 535, 15, 535, 542, 269, 363, 341, 347, 731, 266, 813, 731, 15, 539, 357, 13]
        plain = [535, 375, 388, 743, 431, 366, 514, 363, 341, 347, 731, 15, 535, 282, 338, 578, 2]
        quantized = [280, 418, 260, 413, 13, 942, 714, 13, 266, 280, 282, 391, 578, 15, 314, 447, 269]
        for model, expected in ((self.model, plain), (self.quantized, quantized)):
            for level in ("reference", None):
                environment = {"GRAMIAN_CPU_LEVEL": level} if level else None
                found = self.made("-n", 40, "--dtype", "float32", model=model, environment=environment)
                self.assertEqual(found["ids"], both + expected)

    def test_text_comes_on_stdout(self):
        expected = self.text("-n", 30)
        for quiet in ((), ("--quiet",)):
            result = self.ok("generate", self.model, "-p", PROMPT, "-n", 30, *quiet)
            self.assertEqual(result.out, expected + "\n")
            self.assertEqual("tokens" in result.err, not quiet)

    def test_report(self):
        found = self.made("-n", 10)
        self.assertEqual(len(found["ids"]), 10)
        for key in ("prefill_tokens_per_second", "decode_tokens_per_second", "prefill_seconds", "decode_seconds", "peak_rss_bytes"):
            self.assertGreater(found[key], 0, key)
        # Six layers, keys and values of two heads of 64, two bytes each, room for prompt and answer.
        self.assertEqual(found["cache_bytes"], 6 * 2 * 2 * 64 * (2 if found["dtype"] == "BFloat16" else 4) * (len(found["prompt_ids"]) + 10))
        self.assertEqual(found["sampling"], {"temperature": 0.0, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.0, "seed": 0})
        self.assertFalse(found["chat_template"])

    def test_a_long_prompt_goes_in_chunks(self):
        story = (TINYSTORIES / "heldout.txt").read_text(encoding="utf-8")[:2800]
        self.path("prompt.txt").write_text(story, encoding="utf-8")
        found = self.made("--prompt-file", self.path("prompt.txt"), "-n", 3, "--dtype", "float32", prompt=None)
        row = found["prompt_ids"] + found["ids"]
        self.assertGreater(len(found["prompt_ids"]), 600)
        self.assertEqual(self.best_tokens(self.model, [row[:end] for end in range(len(row) - 3, len(row))]), found["ids"])

    # ---- flags ----

    def test_seed_and_sampling_flags(self):
        sampled = ("-n", 40, "--temperature", 1)
        one = self.text(*sampled, "--seed", 1)
        self.assertEqual(one, self.text(*sampled, "--seed", 1))
        greedy = self.text("-n", 40)
        others = [greedy, self.text(*sampled, "--seed", 2), self.text(*sampled, "--seed", 1, "--top-k", 3),
                  self.text(*sampled, "--seed", 1, "--top-p", 0.5), self.text("-n", 40, "--temperature", 2, "--seed", 1),
                  self.text(*sampled, "--seed", 1, "--repetition-penalty", 1.5)]
        self.assertEqual(len({one, *others}), 7)
        self.assertNotEqual(self.text("-n", 40, "--repetition-penalty", 1.5), greedy)
        for flags in (("--top-k", 1), ("--top-p", 0)):
            self.assertEqual(self.text(*sampled, *flags), greedy)
        idle = self.ok("generate", self.model, "-p", PROMPT, "-n", 1, "--seed", 4)
        self.assertIn("warning: --top-k, --top-p and --seed", idle.err)

    def test_stop_texts(self):
        whole = self.text("-n", 40)
        self.assertIn("Timmy loved", whole)
        found = self.made("-n", 40, "--stop", "nowhere", "--stop", "Timmy loved")
        self.assertEqual((found["text"], found["finish"]), (whole[:whole.index("Timmy loved")], "stop"))
        self.assertLess(len(found["ids"]), 40)
        streamed = self.ok("generate", self.model, "-p", PROMPT, "-n", 40, "--stop", "Timmy loved", "-q")
        self.assertEqual(streamed.out, found["text"] + "\n")

    def test_context(self):
        prompt = len(self.made("-n", 1)["prompt_ids"])
        found = self.made("--ctx", prompt + 5)
        self.assertEqual((len(found["ids"]), found["finish"]), (5, "length"))
        self.assertEqual(len(self.made("--ctx", 500, "-n", 3)["ids"]), 3)
        self.assertEqual(len(self.made()["ids"]), 128)
        # Without -n there is as much as the model has positions for.
        self.path("prompt.txt").write_text("a " * 1000, encoding="utf-8")
        found = self.made("--prompt-file", self.path("prompt.txt"), prompt=None)
        self.assertEqual(len(found["ids"]), 1024 - len(found["prompt_ids"]))

    def test_dtype_and_tied_head(self):
        self.assertEqual(self.made("-n", 1, "--dtype", "bfloat16")["dtype"], "BFloat16")
        sizes = [self.made("-n", 5, "--dtype", "float32", "--kv-cache-dtype", kept)["cache_bytes"] for kept in ("auto", "bfloat16")]
        self.assertEqual(sizes[0], 2 * sizes[1])
        config = json.loads((TINYSTORIES / "config.json").read_text())
        model = self.copy(config__json={**config, "tie_word_embeddings": False})
        self.refused("generate", model, "-p", PROMPT, says=("--treat-as-tied",))
        self.assertEqual(self.text("-n", 5, "--treat-as-tied", model=model), self.text("-n", 5))

    # ---- the model's own settings ----

    def test_generation_config(self):
        own = {"do_sample": True, "temperature": 0.9, "top_k": 7, "top_p": 0.8, "repetition_penalty": 1.1, "eos_token_id": 1}
        model = self.copy(generation_config__json=own)
        found = self.made("-n", 20, "--seed", 5, model=model)
        self.assertEqual(found["sampling"], {"temperature": 0.9, "top_k": 7, "top_p": 0.8, "repetition_penalty": 1.1, "seed": 5})
        self.assertIn("temperature 0.9, top-k 7, top-p 0.8, seed 5, repetition penalty 1.1", found["stderr"])
        flags = ("--temperature", 0.9, "--top-k", 7, "--top-p", 0.8, "--repetition-penalty", 1.1)
        self.assertEqual(found["text"], self.text("-n", 20, "--seed", 5, *flags))
        greedy = self.made("-n", 20, "--temperature", 0, "--repetition-penalty", 1, model=model)
        self.assertEqual(greedy["text"], self.text("-n", 20))
        (model / "generation_config.json").write_text(json.dumps({**own, "num_beams": 4, "min_p": 0.1}))
        noted = self.made("-n", 1, model=model)["stderr"]
        self.assertIn("generation_config.json asks for what is not built: num_beams, min_p", noted)
        (model / "generation_config.json").write_text('{"do_sample": true, "temperature": -3}')
        self.refused("generate", model, "-p", PROMPT, says=("generation_config.json", "temperature"))

    def test_end_of_text(self):
        ids = self.made("-n", 20)["ids"]
        for eos in (ids[7], [2000, ids[7]]):
            model = self.copy(generation_config__json={"eos_token_id": eos})
            found = self.made("-n", 20, model=model)
            self.assertEqual((found["ids"], found["finish"]), (ids[:ids.index(ids[7])], "eos"))
            shutil.rmtree(model)
        config = json.loads((TINYSTORIES / "config.json").read_text())
        model = self.copy(generation_config__json=None, config__json={**config, "eos_token_id": ids[3]})
        self.assertEqual(self.made("-n", 20, model=model)["finish"], "eos")

    # ---- chat templates ----

    def test_chat_template(self):
        model = self.copy(chat_template__jinja=TEMPLATE)
        chat = self.made("-n", 5, model=model, prompt="Hello")
        raw = self.made("-n", 5, "--raw", model=model, prompt="Hello")
        written = self.made("-n", 5, "--raw", model=model, prompt="[user] Hello<|end_of_text|>\nOnce upon a time")
        self.assertEqual((chat["chat_template"], raw["chat_template"]), (True, False))
        self.assertIn(1, chat["prompt_ids"])  # <|end_of_text|> is a token
        self.assertEqual((chat["prompt_ids"], chat["ids"]), (written["prompt_ids"], written["ids"]))
        self.assertEqual(raw["ids"], self.made("-n", 5, prompt="Hello")["ids"])
        system = self.made("-n", 1, "--system", "Be kind.", model=model, prompt="Hello")
        written = self.made("-n", 1, "--raw", model=model,
                            prompt="[system] Be kind.<|end_of_text|>\n[user] Hello<|end_of_text|>\nOnce upon a time")
        self.assertEqual(system["prompt_ids"], written["prompt_ids"])

    def test_without_a_template_or_python(self):
        note = self.made("-n", 1, "--system", "Be kind.", prompt="Hello")
        self.assertIn("no chat template", note["stderr"])
        self.assertEqual(note["prompt_ids"], self.made("-n", 1, prompt="Be kind.\nHello")["prompt_ids"])
        model = self.copy(chat_template__jinja=TEMPLATE)
        lost = self.made("-n", 1, model=model, prompt="Hello", environment={"GRAMIAN_PYTHON": "/nonexistent/python"})
        self.assertEqual(lost["prompt_ids"], self.made("-n", 1, prompt="Hello")["prompt_ids"])
        self.assertEqual(lost["stderr"].count("GRAMIAN_PYTHON"), 1)

    def test_templates_that_fail(self):
        for template, says in (("{{ raise_exception('no system messages, please') }}", "no system messages, please"),
                               ("{% for x in %}", "line 1"), ("{{ 'x' * 10**12 }}", "MiB"), ("{{ ''.__class__.__mro__ }}", "unsafe")):
            model = self.copy(chat_template__jinja=template)
            self.refused("generate", model, "-p", PROMPT, says=("chat_template.jinja", says))
            self.text("-n", 1, "--raw", model=model)
            shutil.rmtree(model)

    # ---- what is refused ----

    def test_flags(self):
        for flags, says in ((("-n", 0), "--tokens"), (("-n", -3), "--tokens"), (("-n", "many"), "--tokens"), (("--temperature", "nan"), "temperature"),
                            (("--temperature", -1), "temperature"), (("--temperature", "inf"), "temperature"), (("--top-p", 1.1), "top-p"),
                            (("--top-p", "nan"), "top-p"), (("--top-k", -1), "top-k"), (("--repetition-penalty", 0), "repetition-penalty"),
                            (("--seed", -1), "seed"), (("--ctx", 0), "ctx"), (("--stop", ""), "stop"), (("--raw", "--system", "x"), "--system"),
                            (("--prompt-file", "x"), "exactly one"), (("--dtype", "int8"), "dtype")):
            with self.subTest(flags=flags):
                self.refused("generate", self.model, "-p", PROMPT, *flags, says=(says,))
        self.refused("generate", self.model, says=("exactly one",))
        self.refused("generate", self.model, "--prompt-file", self.path("none.txt"), says=("none.txt",))
        self.refused("generate", self.path("none"), "-p", PROMPT, says=("none",))

    def test_prompts(self):
        self.refused("generate", self.model, "-p", "", says=("prompt", "no token"))
        self.refused("generate", self.model, "-p", b"caf\xe9".decode("utf-8", "surrogateescape"), says=("UTF-8", "byte 3"))
        self.refused("generate", self.copy(chat_template__jinja=TEMPLATE), "-p", b"caf\xe9".decode("utf-8", "surrogateescape"), says=("UTF-8",))
        long = "word " * 3000
        self.refused("generate", self.model, "-p", long, says=("max_position_embeddings", "1024", "shorter prompt"))
        self.refused("generate", self.model, "-p", PROMPT, "-n", 1022, says=("1024", "-n 1020"))
        self.refused("generate", self.model, "-p", PROMPT, "--ctx", 1025, says=("1024", "--ctx 1024"))
        self.refused("generate", self.model, "-p", PROMPT, "--ctx", 3, says=("4 tokens", "raise --ctx"))
        for seed in ("-1", "99999999999999999999", "0x10", "1.5"):
            self.refused("generate", self.model, "-p", PROMPT, "--seed", seed, says=("--seed", seed, "2^64 - 1"))
        for folder in ("", TINYSTORIES / "config.json", self.path("nowhere")):
            self.refused("generate", folder, "-p", PROMPT, says=("no folder", "config.json"))

    def test_models(self):
        small = TinyModel().write(self.path("small"))  # 300 tokens, the tokenizer has 2048
        (small / "chat_template.jinja").unlink()
        self.refused("generate", small, "-p", PROMPT, says=("tokenizer.json",))
        shutil.copy(TINYSTORIES / "tokenizer.json", small)
        self.refused("generate", small, "-p", PROMPT, says=("vocabulary of 300", "tokenizer.json"))
        damaged = TinyModel(vocab=2048)
        damaged.change("model.norm.weight", {5: float("nan")})
        damaged = damaged.write(self.path("damaged"))
        (damaged / "chat_template.jinja").unlink()
        shutil.copy(TINYSTORIES / "tokenizer.json", damaged)
        self.refused("generate", damaged, "-p", PROMPT, says=("NaN", "token id 0"), code=1)

    # ---- stopping ----

    def stopped(self, *flags):
        """Sends SIGINT once some text has come (with --json: a moment after it began)."""
        process = subprocess.Popen([BINARY, "generate", self.model, "-p", PROMPT, "-n", "1000", "--threads", "1", *flags],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)  # communicate() knows no buffer
        first = b""
        if "--json" in flags:  # nothing comes before the end
            while not process.stderr.readline().startswith(b"next tokens"):
                pass
            time.sleep(0.3)
        else:
            first = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, err)
        self.assertIn(b"stopped after", err)
        return (first + out).decode()

    def test_ctrl_c_keeps_what_was_written(self):
        whole = self.text("-n", 1000)
        text = self.stopped()
        self.assertTrue(whole.startswith(text.rstrip("\n")), text)
        self.assertGreater(len(text), 1)
        found = json.loads(self.stopped("--json"))
        self.assertEqual(found["finish"], "interrupted")
        self.assertTrue(whole.startswith(found["text"]))


if __name__ == "__main__":
    unittest.main()
