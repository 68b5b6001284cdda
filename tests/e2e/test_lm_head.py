"""A quantized head: solved behind the last layer, stored as each format has it, read back by every verb."""
import json
import unittest

import gramian_e2e as e2e
from gramian_e2e import TinyModel, random_rows, read_model, write_rows

VOCAB, HIDDEN = 320, 128


class LmHead(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tiny = TinyModel(tied=False, vocab=VOCAB)
        cls.model = cls.tiny.write(cls.top / "model")
        cls.rows = write_rows(cls.top / "rows.safetensors", random_rows(12, 48))

    def job(self, name, *flags, method="gptq", model=None):
        out = self.path(name)
        report = self.quantize(model or self.model, out, *flags, calibration=self.rows, method=method)
        head = [m for m in report["modules"] if m["name"] == "lm_head"]
        loss = self.report("eval", out, "--rows", self.rows, "--reference", model or self.model)["kl_mean"]
        return out, head[0] if head else None, json.loads((out / "config.json").read_text()), loss

    def recipe(self, text):
        self.path("recipe.yaml").write_text(text)
        return self.path("recipe.yaml")

    def parts(self, out):
        return {name.rpartition(".")[2]: (item.dtype, item.shape) for name, item in read_model(out).items()
                if name.startswith("lm_head.")}

    def test_gptq(self):
        _, head, config, plain = self.job("plain")
        self.assertIsNone(head)
        self.assertIs(config["quantization_config"]["lm_head"], False)
        losses = {}
        for bits in (8, 2):
            out, head, config, losses[bits] = self.job(f"b{bits}", "--lm-head-bits", bits)
            self.assertEqual({key: head[key] for key in ("method", "samples", "bits", "group_size", "mse", "order", "out_features")},
                             {"method": "gptq", "samples": 12 * 48, "bits": bits, "group_size": 32, "mse": 2.4, "order": "natural",
                              "out_features": VOCAB})
            self.assertEqual(self.parts(out), {"qweight": ("I32", [HIDDEN * bits // 32, VOCAB]), "qzeros": ("I32", [4, VOCAB * bits // 32]),
                                               "scales": ("F16", [4, VOCAB]), "g_idx": ("I32", [HIDDEN])})
            fields = config["quantization_config"]
            self.assertIs(fields["lm_head"], True)
            self.assertEqual(fields["dynamic"]["+:^lm_head$"], {"bits": bits, "group_size": 32})
        self.assertLess(abs(losses[8] - plain), 0.01)
        self.assertGreater(losses[2], losses[8] + 0.01)
        # A rule of its own stands on what all modules have; compensation beats rounding.
        recipe = self.recipe("bits: 4\ngroup_size: 64\ndynamic: {lm_head: {bits: 3}}")
        _, head, _, _ = self.job("rule", "--recipe", recipe)
        self.assertEqual((head["bits"], head["group_size"], head["rule"]), (3, 64, "lm_head"))
        self.assertIsNone(self.job("not", "--recipe", self.recipe("lm_head: true\ndynamic: {'-:lm_head': {}}"))[1])

    def test_qqq(self):
        out, head, config, loss = self.job("out", "--lm-head-bits", 8, method="qqq")
        self.assertEqual((head["bits"], head["group_size"]), (8, -1))
        self.assertEqual(self.parts(out), {"weight": ("I8", [VOCAB, HIDDEN]), "weight_scale": ("BF16", [VOCAB, 1])})
        fields = config["quantization_config"]
        self.assertIs(fields["lm_head"], True)
        self.assertEqual(fields["lm_head_config"], {"format": "int-quantized", "bits": 8, "group_size": -1, "sym": True})
        self.assertLess(loss, 0.5)
        self.assertIn("qqq", self.report("inspect", out)["quantization"])
        # Its codes are the head's: scale · code is near the weight.
        tensors = read_model(out)
        scales, codes = tensors["lm_head.weight_scale"].values(), tensors["lm_head.weight"].data
        source = self.tiny.tensors["lm_head.weight"].values()
        for row in (0, 17, VOCAB - 1):
            for k in range(HIDDEN):
                code = (codes[row * HIDDEN + k] ^ 128) - 128
                self.assertAlmostEqual(code * scales[row], source[row * HIDDEN + k], delta=2 * scales[row])
        self.ok("verify", out)
        # Damage is found.
        fields["lm_head_config"]["bits"] = 4
        (out / "config.json").write_text(json.dumps(config))
        self.refused("eval", out, "--rows", self.rows, says=("lm_head_config",))
        self.refused_job(self.model, "--lm-head-bits", 4, says=("--lm-head-bits 8",))

    def test_compressed_tensors(self):
        for name, flags, top in (("w4a16", (), "pack-quantized"), ("w4a8", ("--activation-bits", 8), "mixed-precision")):
            out, head, config, loss = self.job(name, "--format", "compressed-tensors", "--recipe", self.recipe("lm_head: true"), *flags)
            self.assertEqual(self.parts(out), {"weight_packed": ("I32", [VOCAB, HIDDEN // 4]), "weight_scale": ("BF16", [VOCAB, 4]),
                                               "weight_shape": ("I64", [2])})
            fields = config["quantization_config"]
            self.assertEqual((fields["format"], fields["ignore"]), (top, ["model.embed_tokens"]))
            self.assertEqual(fields["config_groups"]["group_1"]["targets"], ["lm_head"])
            self.assertEqual(head["bits"], 8)
            self.assertLess(loss, 0.5)

    def test_tied(self):
        """The head is the embedding: apart from it on request, and counted."""
        tied = TinyModel(vocab=VOCAB)
        model = tied.write(self.path("tied"))
        self.refused_job(model, "--lm-head-bits", 8, "--format", "gptq", says=("lm_head", "--untie"))
        out, head, config, loss = self.job("out", "--lm-head-bits", 8, "--untie", model=model)
        self.assertIs(config["tie_word_embeddings"], False)
        self.assertEqual(read_model(out)["model.embed_tokens.weight"], tied.tensors["model.embed_tokens.weight"])
        self.assertIn("qweight", self.parts(out))
        self.assertEqual(head["out_features"], VOCAB)
        self.assertLess(loss, 0.3)
        # Rows that do not fill words are listed like other shapes.
        odd = TinyModel(tied=False, vocab=300).write(self.path("odd"))
        self.refused_job(odd, "--lm-head-bits", 8, "--format", "gptq", says=("lm_head [300 x 128]",))

    def test_rounding_and_statistics(self):
        out, head, _, loss = self.job("rtn", "--lm-head-bits", 8, "--format", "gptq", method="rtn")
        self.assertEqual((head["method"], head["samples"]), ("rtn", 0))
        self.assertLess(loss, 0.3)
        kept = ("--lm-head-bits", 8, "--sequential", "none", "--statistics", self.path("statistics"))
        first, _, _, _ = self.job("first", *kept)
        again, _, _, _ = self.job("again", *kept)
        self.assertEqual(read_model(first), read_model(again))
        self.refused("quantize", self.model, "-o", self.path("no"), "--method", "gptq", "--calibration", self.rows, *kept[2:],
                     says=("lm-head",), output=self.path("no"))


if __name__ == "__main__":
    unittest.main()
