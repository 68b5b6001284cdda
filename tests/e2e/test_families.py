"""Every model family from its folder to QQQ and back; text parts of multimodal files; layers that nothing runs."""
import json
import math
import unittest

import gramian_e2e as e2e
from gramian_e2e import FAMILIES, TinyModel, random_rows, read_model, read_safetensors, tensor, write_rows


def wrap(tiny, prefix, head="lm_head.weight"):
    """Moves a model under `prefix` and its settings into text_config; adds a vision part. Returns the vision part."""
    vision = {"model.vision_tower.layers.0.self_attn.q_proj.weight": tensor("BF16", [128, 128], [0.5] * 128 * 128),
              "mtp.layers.0.mlp.up_proj.weight": tensor("BF16", [256, 128], [0.25] * 256 * 128)}
    tiny.tensors = {**vision, **{head if name == "lm_head.weight" else prefix + name.removeprefix("model."): item
                                 for name, item in tiny.tensors.items()}}
    text = tiny.config
    tiny.config = {"architectures": ["WholeForConditionalGeneration"], "model_type": "whole", "text_config": text,
                   "vision_config": {"hidden_size": 128}, "tie_word_embeddings": text.pop("tie_word_embeddings")}
    return vision


class Families(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # Rows longer than the windows of the tiny models.
        cls.rows = write_rows(cls.top / "rows.safetensors", random_rows(6, 40))

    def there_and_back(self, tiny, linears, *flags):
        """Quantizes, checks every tensor of the output and returns eval's report against the original."""
        model, out = tiny.write(self.path("model")), self.path("out")
        report = self.quantize(model, out, *flags, calibration=self.rows)
        self.assertEqual((len(report["modules"]), report["fallbacks"]), (len(linears), 0))
        self.assertEqual(report["linear_multiplications"], len(linears) * report["batches"])
        written = read_model(out)
        biased = [name for name in linears if name + ".bias" in tiny.tensors]
        packed = e2e.expected_tensors(linears, 128, biased)
        self.assertEqual({n: (written[n].dtype, written[n].shape) for n in packed}, packed)
        kept = {n: item for n, item in tiny.tensors.items() if n.rpartition(".")[0] not in linears}
        self.assertEqual({n: item for n, item in written.items() if n not in packed}, kept)
        config = json.loads((out / "config.json").read_text())
        self.assertEqual(config.pop("quantization_config")["quant_method"], "qqq")
        self.assertEqual(config, tiny.config)
        loss = self.report("eval", out, "--rows", self.rows, "--reference", model)
        self.assertTrue(math.isfinite(loss["kl_mean"]) and 0 < loss["kl_mean"] < 0.3, loss)
        return loss

    def logits(self, model, *flags):
        self.report("logits", model, "--input", self.rows, "--output", self.path("logits.safetensors"), *flags)
        return read_safetensors(self.path("logits.safetensors"))["logits"]

    def test_every_family(self):
        for family in FAMILIES:
            with self.subTest(family):
                self.folder = self.path(family)
                self.folder.mkdir()
                tiny = TinyModel(family=family)
                self.there_and_back(tiny, tiny.linears())
                document = self.report("inspect", self.path("model"))
                self.assertEqual((document["model_type"], document["prefix"]), (family, "model."))
                self.assertEqual((document["surplus_layers"], document["mtp_layers"]), (0, 0))
                self.assertEqual([m["name"] for m in document["modules"]], list(tiny.linears()))
                self.assertEqual(document["rope"], "default, linear" if family == "gemma3_text" else "default")
                self.assertEqual(self.report("inspect", self.path("out"))["quantization"], "qqq, group size 128")
                self.assertTrue(all(map(math.isfinite, self.logits(self.path("out")).values())))
                self.folder = self.folder.parent

    def test_text_part_of_a_larger_model(self):
        for prefix, head in (("model.language_model.", "lm_head.weight"),
                             ("language_model.model.", "language_model.lm_head.weight")):
            with self.subTest(prefix):
                self.folder = self.path(prefix)
                self.folder.mkdir()
                plain, tiny = TinyModel(family="mistral", tied=False), TinyModel(family="mistral", tied=False)
                vision = wrap(tiny, prefix, head)
                linears = {prefix + name.removeprefix("model."): size for name, size in tiny.linears().items()}
                self.there_and_back(tiny, linears)
                written = read_model(self.path("out"))
                self.assertEqual({name: written[name] for name in vision}, vision)
                document = self.report("inspect", self.path("model"))
                self.assertEqual((document["model_type"], document["prefix"]), ("mistral", prefix))
                self.assertIn(prefix, self.ok("inspect", self.path("model")).out)
                # The same model without its wrapping gives the same numbers.
                plain.write(self.path("plain"))
                self.assertEqual(self.logits(self.path("model")), self.logits(self.path("plain")))
                self.quantize(self.path("plain"), self.path("plain-out"), calibration=self.rows)
                self.assertEqual(self.logits(self.path("out")), self.logits(self.path("plain-out")))
                self.folder = self.folder.parent

    def test_a_head_tied_on_request_in_a_larger_model(self):
        tiny = TinyModel(tied=True)
        wrap(tiny, "model.language_model.")
        tiny.config["tie_word_embeddings"] = False
        model = tiny.write(self.path("model"))
        self.refused("eval", model, "--rows", self.rows, says=("lm_head.weight", "--treat-as-tied"))
        self.quantize(model, self.path("out"), "--treat-as-tied", method="rtn")
        self.report("eval", self.path("out"), "--rows", self.rows)

    def test_layers_that_nothing_runs(self):
        tiny = TinyModel(layers=3)
        tiny.config["num_hidden_layers"] = 2
        model = tiny.write(self.path("model"))
        warned = self.quantize(model, self.path("out"), method="rtn")
        self.assertIn("warning: 1 stored layer(s) beyond num_hidden_layers (2)", warned["stderr"])
        self.assertEqual(len(warned["modules"]), 14)
        self.assertEqual(self.report("inspect", model)["surplus_layers"], 1)
        self.assertIn("1 stored layers beyond num_hidden_layers", self.ok("inspect", model).out)
        for name, item in tiny.tensors.items():
            if name.startswith("model.layers.2."):
                self.assertEqual(read_model(self.path("out"))[name], item)

        tiny.config["num_nextn_predict_layers"] = 1
        declared = tiny.write(self.path("declared"))
        silent = self.quantize(declared, self.path("declared-out"), method="rtn")
        self.assertNotIn("num_hidden_layers", silent["stderr"])
        document = self.report("inspect", declared)
        self.assertEqual((document["mtp_layers"], document["surplus_layers"]), (1, 0))

    def test_unknown_text_part(self):
        tiny = TinyModel()
        wrap(tiny, "model.language_model.")
        tiny.config["text_config"]["model_type"] = "unheard_text"
        self.refused("inspect", tiny.write(self.path("model")), says=("text_config", "unheard_text", "known types"))


if __name__ == "__main__":
    unittest.main()
