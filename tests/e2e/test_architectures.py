"""Architectures beyond the plain ones: each from its folder to QQQ and back, stacked experts among them."""
import json
import math
import unittest

import gramian_e2e as e2e
from gramian_e2e import random_rows, read_model, read_safetensors, write_rows
from tiny_architectures import ARCHITECTURES, EXPERTS, TinyArchitecture


class Architectures(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # Rows longer than the windows and chunks of the tiny models.
        cls.rows = write_rows(cls.top / "rows.safetensors", random_rows(8, 40))

    def there_and_back(self, tiny, *flags, skipped=()):
        model, out = tiny.write(self.path("model")), self.path("out")
        report = self.quantize(model, out, *flags, calibration=self.rows)
        linears = {name: size for name, size in tiny.linears.items() if name not in skipped}
        self.assertEqual(sorted(m["name"] for m in report["modules"]), sorted(linears))
        self.assertEqual(report["fallbacks"], 0)
        packed = e2e.expected_tensors(linears, 128, tiny.biased & set(linears))
        written = read_model(out)
        self.assertEqual({n: (written[n].dtype, written[n].shape) for n in packed}, packed)
        return report, {n: item for n, item in written.items() if n not in packed}

    def logits(self, model, *flags):
        self.report("logits", model, "--input", self.rows, "--output", self.path("logits.safetensors"), *flags)
        return read_safetensors(self.path("logits.safetensors"))["logits"].values()

    def test_every_architecture(self):
        for kind in ARCHITECTURES:
            with self.subTest(kind):
                self.folder = self.path(kind)
                self.folder.mkdir()
                tiny = TinyArchitecture(kind)
                _, kept = self.there_and_back(tiny)
                self.assertEqual(kept, {n: item for n, item in tiny.tensors.items() if n not in tiny.replaced})
                config = json.loads((self.path("out") / "config.json").read_text())
                self.assertEqual(config.pop("quantization_config")["quant_method"], "qqq")
                self.assertEqual(config, tiny.config)
                inspected = self.report("inspect", self.path("model"))
                self.assertEqual(inspected["model_type"], kind)
                self.assertEqual([m["name"] for m in inspected["modules"]], list(tiny.linears))
                loss = self.report("eval", self.path("out"), "--rows", self.rows, "--reference", self.path("model"))
                self.assertTrue(0 < loss["kl_mean"] < 0.5, loss)
                # Rows stand alone. In the quantized model last bits may move an activation to the next of its 255 steps.
                for folder, bound in (("model", 1e-4), ("out", 0.05)):
                    together, alone = (self.logits(self.path(folder), "--dtype", "float32", "--batch", batch)
                                       for batch in (8, 1))
                    self.assertTrue(all(map(math.isfinite, together)))
                    most = max(map(abs, together))
                    self.assertLess(max(abs(a - b) for a, b in zip(together, alone)), bound * most, folder)
                self.folder = self.folder.parent

    def test_inspect_lists_shared_inputs(self):
        for kind, expected in {
                "deepseek_v3": [["self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"], ["self_attn.kv_b_proj"],
                                ["mlp.gate_proj", "mlp.up_proj"], ["mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"],
                                ["mlp.experts.*.gate_proj", "mlp.experts.*.up_proj"], ["mlp.experts.*.down_proj"]],
                "phi3": [["self_attn.qkv_proj"], ["mlp.gate_up_proj"]],
                "mixtral": [["block_sparse_moe.experts.*.w1", "block_sparse_moe.experts.*.w3"]]}.items():
            groups = self.report("inspect", TinyArchitecture(kind).write(self.path(kind)))["shared_inputs"]
            for group in expected:
                self.assertIn(group, groups)
            self.assertFalse([group for group in groups if any(".experts.1." in name for name in group)])

    def test_a_stack_in_part_quantized(self):
        # The down projections have 192 columns: no groups of 128.
        for kind in ("gpt_oss", "llama4_text"):
            with self.subTest(kind):
                self.folder = self.path(kind)
                self.folder.mkdir()
                tiny = TinyArchitecture(kind, expert=192)
                skipped = {name for name, (_, width) in tiny.linears.items() if width == 192}
                self.assertGreaterEqual(len(skipped), EXPERTS)
                report, kept = self.there_and_back(tiny, "--skip-unfit", skipped=skipped)
                self.assertEqual(set(report["skipped"]), skipped)
                gone = {n for n in tiny.replaced if not n.removesuffix(".weight").endswith("down_proj") or
                        n.removesuffix(".weight") in set(tiny.linears) - skipped}
                gone -= {n for n in gone if n.endswith("down_proj_bias")}
                self.assertEqual(kept, {n: item for n, item in tiny.tensors.items() if n not in gone})
                self.assertEqual(self.report("verify", self.path("out"))["problems"], [])
                loss = self.report("eval", self.path("out"), "--rows", self.rows, "--reference", self.path("model"))
                self.assertTrue(0 < loss["kl_mean"] < 0.5, loss)
                self.folder = self.folder.parent

    def test_mixtral_under_the_names_of_other_mixtures(self):
        plain, renamed = TinyArchitecture("mixtral"), TinyArchitecture("mixtral")
        names = {".block_sparse_moe.": ".mlp.", ".w1": ".gate_proj", ".w3": ".up_proj", ".w2": ".down_proj"}

        def new_name(name):
            for old, new in names.items():
                name = name.replace(old, new)
            return name
        renamed.tensors = {new_name(name): item for name, item in plain.tensors.items()}
        renamed.linears = {new_name(name): size for name, size in plain.linears.items()}
        self.quantize(plain.write(self.path("plain")), self.path("plain-out"), calibration=self.rows)
        self.there_and_back(renamed)
        self.assertEqual(self.logits(self.path("plain-out")), self.logits(self.path("out")))


if __name__ == "__main__":
    unittest.main()
