"""Quantized checkpoints in other forms: the same weights to the last bit, or refused by name."""
import json
import unittest

import gramian_e2e as e2e
from gramian_e2e import TinyModel, digests, random_rows, read_model, write_rows

DOWN = "model.layers.0.mlp.down_proj"


class Convert(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tiny = TinyModel(tied=False, vocab=320)
        # A group whose least weight is positive: its zero point is 0.
        cls.tiny.change(DOWN + ".weight", {k: 0.5 + k / 256 for k in range(256)})
        cls.model = cls.tiny.write(cls.top / "model")
        cls.rows = write_rows(cls.top / "rows.safetensors", random_rows(4, 32))
        cls.recipe = cls.top / "recipe.yaml"
        cls.recipe.write_text("bits: 4\ngroup_size: 64\nlm_head: true\ndynamic: {'.*1.*down_proj': {bits: 8, group_size: -1, sym: false}, "
                              "'.*1.*[qkv]_proj': {sym: false}, '-:.*o_proj': {}}")

    def rtn(self, name, form, *flags):
        self.ok("quantize", self.model, "-o", self.path(name), "--method", "rtn", "--format", form, *flags)
        return self.path(name)

    def convert(self, source, form, name):
        report = self.report("convert", source, "-o", self.path(name), "--to", form)
        self.assertGreater(report["modules"], 0)
        self.ok("verify", self.path(name))
        return self.path(name)

    def logits(self, model):
        out = self.path(model.name + ".logits")
        self.ok("logits", model, "--input", self.rows, "--output", out)
        return out.read_bytes()

    def test_there_and_back(self):
        """Settings of single modules and of the head included."""
        first = self.rtn("first", "gptq", "--recipe", self.recipe)
        second = self.convert(first, "gptq_v2", "second")
        third = self.convert(second, "compressed-tensors", "third")
        back = self.convert(third, "gptq", "back")
        self.assertNotEqual(digests(first)["model.safetensors"], digests(second)["model.safetensors"])
        self.assertEqual(read_model(first), read_model(back))
        logits = self.logits(first)
        for other in (second, third):
            self.assertEqual(self.logits(other), logits, other)
        fields, again = (json.loads((folder / "quantize_config.json").read_text()) for folder in (first, back))
        self.assertEqual(again["meta"]["converted_from"], "compressed-tensors, 4 bits, group size 64")
        for config in (fields, again):
            config.pop("meta")
        self.assertEqual(fields, again)
        groups = json.loads((third / "config.json").read_text())["quantization_config"]["config_groups"].values()
        self.assertEqual([(g["weights"]["num_bits"], g["weights"]["symmetric"]) for g in groups],
                         [(4, True), (4, False), (8, False), (8, True)])
        # Decoded: plain weights; what was not quantized stays as it was.
        plain = self.convert(second, "fp16", "plain")
        self.assertNotIn("quantization_config", json.loads((plain / "config.json").read_text()))
        self.assertEqual({item.dtype for name, item in read_model(plain).items() if "_proj" in name and "o_proj" not in name}, {"F16"})
        self.assertEqual(read_model(plain)["model.layers.0.self_attn.o_proj.weight"],
                         self.tiny.tensors["model.layers.0.self_attn.o_proj.weight"])

    def test_qqq_decodes(self):
        packed = self.path("packed")
        self.ok("quantize", self.model, "-o", packed, "--method", "rtn", "--lm-head-bits", 8)
        plain = self.convert(packed, "bf16", "plain")
        tensors, decoded = read_model(packed), read_model(plain)
        expected = e2e.qqq_weight(tensors, DOWN, 128, 256)
        written = e2e.matrix(decoded[DOWN + ".weight"])
        for row in (0, 5, 127):
            for a, b in zip(expected[row], written[row]):
                self.assertAlmostEqual(a, b, delta=abs(a) / 256 + 1e-9)
        self.assertEqual(decoded["lm_head.weight"].dtype, "BF16")
        self.assertEqual(decoded.keys(), self.tiny.tensors.keys())
        self.refused("convert", packed, "-o", self.path("no"), "--to", "gptq", says=("QQQ's grid", "--to bf16"), output=self.path("no"))

    def test_refusals(self):
        ordered = self.path("ordered")
        self.ok("quantize", self.model, "-o", ordered, "--method", "gptq", "--desc-act", "--group-size", 64, "--calibration", self.rows)
        self.assertTrue(json.loads((self.convert(ordered, "gptq_v2", "v2") / "config.json").read_text())["quantization_config"]["desc_act"])
        zero = self.rtn("zero", "gptq_v2", "--asym", "--mse", 0, "--group-size", 64)
        eight = self.rtn("eight", "compressed-tensors", "--activation-bits", 8)
        two = self.rtn("two", "gptq", "--bits", 2)
        for source, form, says in ((ordered, "compressed-tensors", (DOWN, "group of each column")),
                                   (zero, "gptq", (DOWN, "zero point of 0")),
                                   (eight, "gptq", ("rounds them to 8 bits",)),
                                   (two, "compressed-tensors", (DOWN, "2-bit weights")),
                                   (two, "gptq", ("in this format already",)),
                                   (self.model, "bf16", ("is not quantized",))):
            with self.subTest(source=source.name, form=form):
                self.refused("convert", source, "-o", self.path("no"), "--to", form, says=says, output=self.path("no"))
        self.refused("convert", two, "-o", two, "--to", "bf16", "--force", says=("replace what the job reads",))
        self.refused("convert", two, "-o", zero, "--to", "bf16", says=(zero,))
        self.ok("convert", two, "-o", zero, "--to", "bf16", "--force")


if __name__ == "__main__":
    unittest.main()
