"""The bundled model from its folder to QQQ checkpoints and back: what is written, what is reported, what reads it."""
import collections
import json
import math
import os
import pty
import shutil
import signal
import subprocess
import time
import unittest

import gramian_e2e as e2e
from gramian_e2e import BINARY, REPORT, TINYSTORIES, digests, read_model, read_safetensors, tensor, write_rows, write_safetensors

ROWS, LENGTH, BATCH = 16, 128, 4
CONFIG = json.loads((TINYSTORIES / "config.json").read_text())
MODULE_KEYS = {"name", "method", "loss", "damp", "samples", "fallback"}
REPORT_KEYS = {"seconds", "peak_rss_bytes", "tokens", "linear_multiplications", "modules", "bits_per_weight",
               "bits_per_weight_total"}
EVAL_KEYS = {"perplexity", "kl_mean", "kl_ci95", "top1_agreement", "tokens", "tokens_per_second"}
DEMO_VARIANTS = ["original", "rtn-g128", "gptq-g128", "qqq-g128", "qqq-row", "w4a8-g128"]
DEMO_KEYS = {"variant", "bytes", "bits_per_weight", "perplexity", "kl_mean", "kl_ci95", "seconds", "peak_rss_bytes"}


def linears():
    """name -> (out, in), from the configuration alone."""
    hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    q, kv = (CONFIG[key] * CONFIG["head_dim"] for key in ("num_attention_heads", "num_key_value_heads"))
    sizes = ((q, hidden), (kv, hidden), (kv, hidden), (hidden, q), (inner, hidden), (inner, hidden), (hidden, inner))
    return {f"model.layers.{i}.{name}": size for i in range(CONFIG["num_hidden_layers"])
            for name, size in zip(e2e.LAYER_MODULES, sizes)}


Job = collections.namedtuple("Job", "folder report group_size method")


class FirstLight(e2e.GramianTestCase):
    CALIBRATED = ("--calibration", TINYSTORIES / "calibration.txt", "--samples", ROWS, "--sequence-length", LENGTH,
                  "--batch", BATCH)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.source = read_model(TINYSTORIES)
        cls.jobs = {}
        for name, method, group in (("qqq-g128", "qqq", 128), ("qqq-row", "qqq", -1), ("rtn-g128", "rtn", 128)):
            folder = cls.top / name
            flags = cls.CALIBRATED if method == "qqq" else ()
            result = e2e.gramian("quantize", TINYSTORIES, "-o", folder, "--method", method, "--group-size", group, "--json",
                                 *flags)
            if result.code != 0:
                raise AssertionError(str(result))
            cls.jobs[name] = Job(folder, result.json(), group, method)

    def test_report(self):
        for name, job in self.jobs.items():
            with self.subTest(name):
                report = job.report
                self.assertEqual(json.loads((job.folder / REPORT).read_text()), report)
                self.assertLessEqual(REPORT_KEYS, report.keys())
                self.assertEqual([m["name"] for m in report["modules"]], list(linears()))
                for module in report["modules"]:
                    self.assertLessEqual(MODULE_KEYS, module.keys())
                    self.assertEqual(module["method"], job.method)
                    self.assertIsNone(module["fallback"])
                    if job.method == "qqq":
                        self.assertGreater(module["loss"], 0)
                        self.assertGreater(module["damp"], 0)
                        self.assertEqual(module["samples"], ROWS * LENGTH)
                    else:
                        self.assertIsNone(module["loss"])
                        self.assertEqual(module["samples"], 0)
                self.assertGreater(report["seconds"], 0)
                self.assertGreater(report["peak_rss_bytes"], sum(len(t.data) for t in self.source.values()))

    def test_each_linear_is_multiplied_once(self):
        for name in ("qqq-g128", "qqq-row"):
            report = self.jobs[name].report
            self.assertEqual(report["tokens"], ROWS * LENGTH)
            self.assertEqual(report["batches"], ROWS // BATCH)
            self.assertEqual(report["linear_multiplications"], ROWS // BATCH * len(linears()))
        self.assertEqual(self.jobs["rtn-g128"].report["linear_multiplications"], 0)
        self.assertEqual(self.jobs["rtn-g128"].report["tokens"], 0)

    def test_tensors(self):
        replaced = {name + ".weight" for name in linears()}
        for name, job in self.jobs.items():
            with self.subTest(name):
                written = read_model(job.folder)
                packed = e2e.expected_tensors(linears(), job.group_size)
                self.assertEqual(written.keys(), packed.keys() | self.source.keys() - replaced)
                self.assertEqual({n: (written[n].dtype, written[n].shape) for n in packed}, packed)
                for kept in self.source.keys() - replaced:
                    self.assertEqual(written[kept], self.source[kept], kept)
                for item in packed:
                    if not item.endswith(".B"):
                        self.assertTrue(all(math.isfinite(v) for v in written[item].values()), item)

    def test_bits_per_weight(self):
        weights = sum(out * width for out, width in linears().values())
        all_weights = sum(len(t.data) // e2e.DTYPE_BYTES[t.dtype] for t in self.source.values())
        for name, job in self.jobs.items():
            written = read_model(job.folder)
            packed = sum(len(written[n].data) for n in e2e.expected_tensors(linears(), job.group_size))
            self.assertAlmostEqual(job.report["bits_per_weight"], 8 * packed / weights, 9, name)
            everything = sum(len(t.data) for t in written.values())
            self.assertAlmostEqual(job.report["bits_per_weight_total"], 8 * everything / all_weights, 9, name)

    def test_other_files(self):
        source = digests(TINYSTORIES)
        for name, job in self.jobs.items():
            with self.subTest(name):
                written = digests(job.folder)
                side = source.keys() - {"config.json", "model.safetensors"}
                self.assertEqual({n: written[n] for n in side}, {n: source[n] for n in side})
                self.assertEqual(written.keys(), source.keys() | {"quantize_config.json", REPORT})
                config = json.loads((job.folder / "config.json").read_text())
                fields = config.pop("quantization_config")
                self.assertEqual(list(config.items()), list(CONFIG.items()))
                self.assertEqual(json.loads((job.folder / "quantize_config.json").read_text()), fields)
                for key, value in {"bits": 4, "wbits": 4, "group_size": job.group_size, "desc_act": False, "sym": True,
                                   "lm_head": False, "quant_method": "qqq", "method": "qqq", "format": "qqq",
                                   "checkpoint_format": "qqq", "pack_dtype": "int32"}.items():
                    self.assertEqual(fields[key], value, key)
                self.assertNotIn("dynamic", fields)

    def test_decoded_weights_are_near_the_source(self):
        """The stored bytes, decoded by the documented map, against the source: an independent reader of the format."""
        for name, limit in (("qqq-g128", 0.15), ("qqq-row", 0.25), ("rtn-g128", 0.12)):
            written = read_model(self.jobs[name].folder)
            for module in ("model.layers.0.self_attn.k_proj", "model.layers.5.mlp.down_proj"):
                decoded = e2e.qqq_weight(written, module, *linears()[module])
                weight = e2e.matrix(self.source[module + ".weight"])
                error = sum((a - b) ** 2 for x, y in zip(weight, decoded) for a, b in zip(x, y))
                norm = sum(a * a for x in weight for a in x)
                self.assertLess(math.sqrt(error / norm), limit, (name, module))

    def test_eval_orders_the_methods(self):
        kl = {}
        for name, job in self.jobs.items():
            scores = self.evaluate(job.folder)
            self.assertLessEqual(EVAL_KEYS, scores.keys())
            low, high = scores["kl_ci95"]
            self.assertLess(low, scores["kl_mean"])
            self.assertLess(scores["kl_mean"], high)
            self.assertGreater(scores["top1_agreement"], 0.85)
            self.assertLess(scores["top1_agreement"], 1)
            self.assertEqual(scores["tokens"], 16 * (LENGTH - 1))
            self.assertGreater(scores["tokens_per_second"], 0)
            self.assertLess(scores["perplexity"], 40)
            kl[name] = scores["kl_mean"]
        self.assertLess(kl["qqq-g128"], 0.9 * kl["rtn-g128"])
        self.assertGreater(kl["qqq-g128"], 0)

    def evaluate(self, model, *flags):
        return self.report("eval", model, "--reference", TINYSTORIES, "--text", TINYSTORIES / "heldout.txt", "--samples", 16,
                           "--sequence-length", LENGTH, *flags)

    def test_source_against_itself(self):
        scores = self.evaluate(TINYSTORIES)
        self.assertEqual(scores["kl_mean"], 0)
        self.assertEqual(scores["kl_ci95"], [0, 0])
        self.assertEqual(scores["top1_agreement"], 1)

    def test_eval_without_reference(self):
        scores = self.report("eval", self.jobs["qqq-row"].folder, "--text", TINYSTORIES / "heldout.txt", "--samples", 2)
        self.assertLessEqual(EVAL_KEYS, scores.keys())
        self.assertEqual([scores[key] for key in ("kl_mean", "kl_ci95", "top1_agreement")], [None] * 3)

    def test_same_command_same_bytes(self):
        job = self.jobs["qqq-g128"]
        again = self.path("again")
        self.quantize(TINYSTORIES, again, *self.CALIBRATED)
        first, second = digests(job.folder), digests(again)
        first.pop(REPORT), second.pop(REPORT)
        self.assertEqual(first, second)

    def test_two_lanes(self):
        report = self.quantize(TINYSTORIES, self.path("lanes"), *self.CALIBRATED, "--lanes", "cpu:2")
        one = self.jobs["qqq-g128"].report
        self.assertEqual(report["lanes"], 2)
        for key in ("tokens", "batches", "linear_multiplications"):
            self.assertEqual(report[key], one[key], key)
        self.assertEqual([m["samples"] for m in report["modules"]], [m["samples"] for m in one["modules"]])
        first = {name: size for name, size in linears().items() if ".0.self_attn." in name and "o_proj" not in name}
        ours, lanes = read_model(self.jobs["qqq-g128"].folder), read_model(self.path("lanes"))
        self.assertLessEqual(e2e.compare_quantized(ours, lanes, first)[1], 0.001)
        # Another order of summation may tip a group's scale to the neighbouring f16, at most, and rarely does.
        tipped = total = 0
        for name, (out, width) in first.items():
            codes = [e2e.qqq_codes(tensors[name + ".B"], out, width, True) for tensors in (ours, lanes)]
            scales = [e2e.qqq_scales(tensors, name, out, width) for tensors in (ours, lanes)]
            for n in range(out):
                if codes[0][n] != codes[1][n]:
                    continue
                for x, y in zip(scales[0][n], scales[1][n]):
                    self.assertAlmostEqual(x, y, delta=2 ** -10 * max(abs(x), abs(y)))
                    tipped += abs(x - y) > 1e-5 * max(abs(x), abs(y))
                    total += 1
        self.assertGreater(total, 0.9 * sum(out * width / 128 for out, width in first.values()))
        self.assertLessEqual(tipped, 0.01 * total)

    def test_quiet(self):
        flags = [*self.CALIBRATED, "-o", self.path("quiet"), "--quiet"]
        result = self.ok("quantize", TINYSTORIES, *flags)
        self.assertEqual((result.out, result.err), ("", ""))
        result = self.ok("eval", self.path("quiet"), "--text", TINYSTORIES / "heldout.txt", "--samples", 2, "--quiet")
        self.assertEqual((result.out, result.err), ("", ""))
        result = self.ok("inspect", self.path("quiet"), "--quiet")
        self.assertEqual((result.out, result.err), ("", ""))

    def test_text_results(self):
        """Without --json the result is text on stdout; the log is on stderr in both cases."""
        result = self.ok("quantize", TINYSTORIES, "-o", self.path("text"), *self.CALIBRATED)
        self.assertIn("42 modules quantized", result.out)
        self.assertIn(str(self.path("text")), result.out)
        self.assertIn(f"{ROWS} used, {ROWS * LENGTH} tokens", result.err)
        self.assertNotIn("used", result.out)
        self.assertNotIn("\r", result.err)  # no progress bar where there is no terminal

    def test_progress_on_a_terminal(self):
        """A bar with the time left, on stderr, gone at the end; none with --quiet."""
        for flags in ((), ("--quiet",)):
            ours, theirs = pty.openpty()
            process = subprocess.Popen([BINARY, "quantize", TINYSTORIES, "-o", self.path("bar"), "--force",
                                        *map(str, self.CALIBRATED), *flags], stdout=subprocess.PIPE, stderr=theirs)
            os.close(theirs)
            shown = b""
            try:
                while part := os.read(ours, 4096):
                    shown += part
            except OSError:  # the other end is closed
                pass
            os.close(ours)
            out, _ = process.communicate()
            self.assertEqual(process.returncode, 0)
            self.assertNotIn(b"\r", out)
            if flags:
                self.assertEqual((out, shown), (b"", b""))
            else:
                self.assertRegex(shown, rb"\[#*\.*\] [\d.]+/6 layers, \d+:\d\d gone, (\d+:\d\d|\?) left\r\n"
                                        rb"\x1b\[K[\w ]+ model\.layers\.\S+, [\d.]+ [kMG]B\r\x1b\[A")
                # Behind the last bar: both lines cleared, and then nothing but whole lines.
                behind = shown[shown.rindex(b" left\r\n"):]
                self.assertRegex(behind, rb"^ left\r\n\x1b\[K\S*\r\x1b\[A\r\x1b\[K\r\n\x1b\[K\x1b\[A([^\r\x1b]*\r\n)*$", shown[-200:])

    def test_interrupt(self):
        """A stopped job leaves nothing; its exit code is 130."""
        for number in (signal.SIGINT, signal.SIGTERM):
            process = subprocess.Popen([BINARY, "quantize", TINYSTORIES, "-o", self.path("out"), "--calibration",
                                        TINYSTORIES / "calibration.txt", "--samples", "50"],
                                       stderr=subprocess.PIPE, stdout=subprocess.PIPE)
            while not list(self.folder.glob("out.journal/job.json")) and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
            self.assertEqual((process.returncode, out), (130, b""), err)
            self.assertRegex(err, rb"(?m)^error: stopped")
            self.assertEqual(list(self.folder.iterdir()), [])


class Logits(e2e.GramianTestCase):
    LENGTHS = (5, 37, 64)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.rows = [row[:length] for row, length in zip(e2e.random_rows(3, 64, CONFIG["vocab_size"]), cls.LENGTHS)]
        cls.qqq = cls.top / "qqq"
        result = e2e.gramian("quantize", TINYSTORIES, "-o", cls.qqq, "--method", "rtn", "--quiet")
        if result.code != 0:
            raise AssertionError(str(result))

    def logits(self, model, rows, *flags):
        document = self.report("logits", model, "--input", rows, "--output", self.path("logits.safetensors"), *flags)
        self.assertEqual(document["output"], str(self.path("logits.safetensors")))
        return read_safetensors(self.path("logits.safetensors"))["logits"]

    def parts(self, item, row, begin, count):
        """Logits of one row's tokens as bytes."""
        _, length, vocab = item.shape
        start = (row * length + begin) * vocab * 4
        return item.data[start:start + count * vocab * 4]

    def test_padding_changes_nothing(self):
        for model in (TINYSTORIES, self.qqq):
            with self.subTest(model):
                alone = []
                for i, row in enumerate(self.rows):
                    item = self.logits(model, write_rows(self.path(f"{i}.safetensors"), [row]))
                    self.assertEqual((item.dtype, item.shape), ("F32", [1, len(row), CONFIG["vocab_size"]]))
                    alone.append(item)
                for side in ("left", "right"):
                    item = self.logits(model, write_rows(self.path(side + ".safetensors"), self.rows, side))
                    self.assertEqual(item.shape, [3, 64, CONFIG["vocab_size"]])
                    for i, row in enumerate(self.rows):
                        begin = 64 - len(row) if side == "left" else 0
                        self.near(self.parts(item, i, begin, len(row)), alone[i].data)
                        padding = self.parts(item, i, 0, begin) + self.parts(item, i, begin + len(row), 64 - begin - len(row))
                        self.assertEqual(padding.strip(b"\0"), b"")

    def near(self, a, b):
        """Relative L2 distance of bf16 forwards that differ in batch shape only."""
        a, b = memoryview(a).cast("f").tolist(), memoryview(b).cast("f").tolist()
        distance = math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)) / sum(y * y for y in b))
        self.assertLess(distance, 0.02)

    def test_perplexity_from_logits_is_that_of_eval(self):
        for model in (TINYSTORIES, self.qqq):
            item = self.logits(model, write_rows(self.path("rows.safetensors"), self.rows, "right"), "--dtype", "float32")
            vocab, values = CONFIG["vocab_size"], memoryview(item.data).cast("f")
            loss, count = 0.0, 0
            for i, row in enumerate(self.rows):
                for t in range(len(row) - 1):
                    start = (i * 64 + t) * vocab
                    loss -= e2e.log_softmax(values[start:start + vocab].tolist())[row[t + 1]]
                    count += 1
            scores = self.report("eval", model, "--rows", self.path("rows.safetensors"), "--dtype", "float32")
            self.assertEqual(scores["tokens"], count)
            self.assertAlmostEqual(math.log(scores["perplexity"]), loss / count, 5)

    def test_kl_from_logits_is_that_of_eval(self):
        rows = write_rows(self.path("rows.safetensors"), self.rows, "left")
        p, q = ([e2e.log_softmax(row) for row in e2e.matrix(self.logits(model, rows, "--dtype", "float32"))]
                for model in (TINYSTORIES, self.qqq))
        kl, agreed, count = 0.0, 0, 0
        for i, row in enumerate(self.rows):
            for t in range(64 - len(row), 63):
                a, b = p[i * 64 + t], q[i * 64 + t]
                kl += sum(math.exp(x) * (x - y) for x, y in zip(a, b))
                agreed += a.index(max(a)) == b.index(max(b))
                count += 1
        scores = self.report("eval", self.qqq, "--reference", TINYSTORIES, "--rows", rows, "--dtype", "float32")
        self.assertAlmostEqual(scores["kl_mean"], kl / count, 4)
        self.assertAlmostEqual(scores["top1_agreement"], agreed / count, 2)

    def test_batches(self):
        rows = write_rows(self.path("rows.safetensors"), self.rows, "right")
        all_at_once, one_by_one = self.logits(self.qqq, rows), self.logits(self.qqq, rows, "--batch", 1)
        for i, row in enumerate(self.rows):
            self.near(self.parts(all_at_once, i, 0, len(row)), self.parts(one_by_one, i, 0, len(row)))

    def test_integer_types_and_a_row_without_tokens(self):
        ids = [3, 1, 4, 1, 5, 9]
        write_safetensors(self.path("i32.safetensors"), {"input_ids": tensor("I32", [2, 3], ids),
                                                        "attention_mask": tensor("U8", [2, 3], [0, 0, 0, 1, 1, 0])})
        item = self.logits(TINYSTORIES, self.path("i32.safetensors"))
        self.assertEqual(self.parts(item, 0, 0, 3).strip(b"\0"), b"")
        alone = self.logits(TINYSTORIES, write_rows(self.path("alone.safetensors"), [ids[3:5]]))
        self.near(self.parts(item, 1, 0, 2), alone.data)


class Demo(e2e.GramianTestCase):
    def demo(self, *flags):
        """In a folder that holds the bundled model with a short held-out text, as a clone does."""
        model = self.path("models") / "tinystories"
        if not model.exists():
            shutil.copytree(TINYSTORIES, model)
            text = (model / "heldout.txt").read_text(encoding="utf-8")
            (model / "heldout.txt").write_text(text[:6000], encoding="utf-8")
        process = subprocess.run([BINARY, "demo", "--samples", "4", "--sequence-length", "64", *flags], cwd=self.folder,
                                 capture_output=True, check=False)
        self.assertEqual(process.returncode, 0, process.stderr.decode())
        return process.stdout.decode(), process.stderr.decode()

    def test_json(self):
        out, _ = self.demo("--json")
        rows = json.loads(out)["rows"]
        self.assertEqual([row["variant"] for row in rows], DEMO_VARIANTS)
        for row in rows:
            self.assertLessEqual(DEMO_KEYS, row.keys())
            self.assertGreater(row["perplexity"], 1)
            self.assertGreater(row["peak_rss_bytes"], row["bytes"])
            low, high = row["kl_ci95"]
            self.assertLessEqual(low, row["kl_mean"])
            self.assertLessEqual(row["kl_mean"], high)
        original, quantized = rows[0], rows[1:]
        self.assertEqual((original["kl_mean"], original["bits_per_weight"]), (0, 16))
        self.assertEqual(original["bytes"], sum(len(t.data) for t in read_model(TINYSTORIES).values()))
        for row in quantized:
            self.assertGreater(row["kl_mean"], 0)
            # compressed-tensors keeps a W4A8 code in a byte.
            self.assertLess(row["bits_per_weight"], 8.2 if row["variant"] == "w4a8-g128" else 4.3, row["variant"])
            self.assertGreater(row["seconds"], 0)
            folder = self.path("demo-out") / row["variant"]
            self.assertEqual(row["bytes"], sum(len(t.data) for t in read_model(folder).values()))

    def test_table(self):
        out, err = self.demo("-o", "here", "--seed", "3")
        for variant in DEMO_VARIANTS:
            self.assertRegex(out, rf"(?m)^{variant} ")
        self.assertTrue(self.path("here").joinpath("qqq-row", REPORT).exists())
        for variant, method in (("gptq-g128", "gptq"), ("w4a8-g128", "compressed-tensors")):
            config = json.loads(self.path("here").joinpath(variant, "config.json").read_text())
            self.assertEqual(config["quantization_config"]["quant_method"], method)
        self.assertIn("chosen at random", err)


class OpenMp(unittest.TestCase):
    def test_starts_once_more_without_a_spin_count(self):
        """With the same arguments, and to the same end."""
        environment = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
        command = [BINARY, "verify", str(TINYSTORIES)]
        outputs = [subprocess.run(command, env=env, capture_output=True, check=True) for env in (environment, os.environ)]
        self.assertEqual(*(output.stdout for output in outputs))


class Inspect(e2e.GramianTestCase):
    def test_model(self):
        document = self.report("inspect", TINYSTORIES)
        self.assertEqual((document["model_type"], document["layers"], document["hidden_size"], document["tied_head"]),
                         ("llama", 6, 256, True))
        self.assertEqual({m["name"]: (m["out_features"], m["in_features"]) for m in document["modules"]}, linears())
        self.assertTrue(all(m["qqq_g128"] is True and m["qqq_row"] is True for m in document["modules"]))
        self.assertIsNone(document["quantization"])
        text = self.ok("inspect", TINYSTORIES).out
        for name in linears():
            self.assertIn(name, text)

    def test_quantized_model_and_cpu(self):
        self.quantize(TINYSTORIES, self.path("out"), "--group-size", -1, method="rtn")
        self.assertIn("qqq", self.report("inspect", self.path("out"))["quantization"])
        document = self.report("inspect", "--cpu")
        self.assertIn("cpu_level", document)
        self.assertIn(document["dtype_auto"], ("BFloat16", "Float"))


if __name__ == "__main__":
    unittest.main()
