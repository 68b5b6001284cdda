"""gramian rotate: another model of the same function, with its outliers spread over all channels."""
import json
import math
import shutil
import unittest

import gramian_e2e as e2e
from gramian_e2e import TINYSTORIES, TinyModel, digests, random_rows, read_model, tensor, write_rows, write_safetensors
from tiny_architectures import TinyArchitecture

GOLDEN = e2e.ROOT / "tests" / "golden" / "arch"


def in_float32(tensors):
    """The same values in a type that keeps what a rotation makes of them; norms have gains of their own."""
    wide = {}
    for name, item in tensors.items():
        values = item.values()
        if len(item.shape) == 1 and "norm" in name:
            values = [v + 0.3 * math.sin(i + 1) for i, v in enumerate(values)]
        wide[name] = tensor("F32", list(item.shape), values)
    return wide


class Rotate(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.rows = write_rows(cls.top / "rows.safetensors", random_rows(4, 24, vocab=64))

    def tiny(self, kind, width="F32"):
        tiny = TinyModel() if kind == "llama" else TinyArchitecture(kind)
        if width == "F32":
            tiny.tensors = in_float32(tiny.tensors)
        return tiny.write(self.path(kind))

    def same_function(self, model, out, bound=1e-6):
        scores = self.report("eval", out, "--rows", self.rows, "--reference", model, "--dtype", "float32")
        self.assertLess(abs(scores["kl_mean"]), bound)

    def changed(self, model, out):
        before, after = read_model(model), read_model(out)
        return {name for name in after if name not in before or before[name].data != after[name].data}

    def test_whole_models(self):
        """Grouped queries, a tied head, scaled residuals, fused modules."""
        for kind in ("llama", "granite", "phi3"):
            with self.subTest(kind):
                model, out = self.tiny(kind), self.path(kind + "-turned")
                report = self.report("rotate", model, "-o", out)
                self.assertEqual(report["turned_heads"], 2)
                before, after = read_model(model), read_model(out)
                self.assertEqual(self.changed(model, out), set(after), "every tensor is another one")
                self.assertEqual(set(after["model.layers.1.input_layernorm.weight"].values()), {1.0})
                tied = json.loads((model / "config.json").read_text())["tie_word_embeddings"]
                self.assertEqual(set(after) - set(before), {"lm_head.weight"} if tied else set())
                self.assertEqual(report["untied_head_bytes"], len(before["model.embed_tokens.weight"].data) if tied else 0)
                self.assertIs(json.loads((out / "config.json").read_text())["tie_word_embeddings"], False)
                self.same_function(model, out)

    def test_biases_and_norms_with_an_offset(self):
        """Checkpoints of the original implementations: qwen2 has biases, gemma multiplies with 1 + weight."""
        for kind in ("qwen2", "gemma"):
            with self.subTest(kind):
                source, model, out = next(GOLDEN.glob(kind)), self.path(kind), self.path(kind + "-turned")
                model.mkdir()
                shutil.copy(source / "config.json", model)
                write_safetensors(model / "model.safetensors", in_float32(read_model(source)))
                self.ok("rotate", model, "-o", out)
                self.assertEqual(set(read_model(out)["model.norm.weight"].values()), {0.0 if kind == "gemma" else 1.0})
                self.same_function(model, out)

    def test_heads_alone(self):
        """They can be turned where the stream cannot: behind other norms, in mixtures."""
        for kind, reason in (("cohere", "LayerNorm"), ("mixtral", "model.layers.0. MLP: a mixture of experts"),
                             ("olmo2", "norms stand between")):
            with self.subTest(kind):
                model, out = self.tiny(kind), self.path(kind + "-turned")
                self.refused("rotate", model, "-o", out, says=["residual stream", reason, "--only heads"])
                self.assertFalse(out.exists())
                self.assertEqual(self.report("rotate", model, "-o", out, "--only", "heads")["turned_heads"], 2)
                self.assertEqual({name.split(".")[4] for name in self.changed(model, out)}, {"v_proj", "o_proj"})
                self.same_function(model, out)

    def test_options(self):
        """--only and --seed choose other tensors and other matrices; the same command gives the same bytes."""
        model = self.tiny("llama")
        runs = {"a": (), "b": (), "seed": ("--seed", 1), "heads": ("--only", "heads"), "residual": ("--only", "residual")}
        for name, flags in runs.items():
            self.ok("rotate", model, "-o", self.path(name), *flags)
        self.assertEqual(digests(self.path("a")), digests(self.path("b")))
        self.assertEqual(len({json.dumps(digests(self.path(name))) for name in runs}), len(runs) - 1)
        self.same_function(model, self.path("residual"))

    def test_outliers_are_spread(self):
        """The bundled model with one channel of the stream made 64 times as large: plain rounding loses less once it is turned."""
        rough, turned, losses = self.path("rough"), self.path("turned"), []
        tensors = read_model(TINYSTORIES)
        for name, item in tensors.items():
            columns = item.shape[-1]
            if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
                tensors[name] = tensor(item.dtype, list(item.shape), [v * (1 if i % columns != 5 else 64) for i, v in enumerate(item.values())])
            elif name.endswith("input_layernorm.weight"):
                tensors[name] = tensor(item.dtype, list(item.shape), [v if i != 5 else v / 64 for i, v in enumerate(item.values())])
        shutil.copytree(TINYSTORIES, rough, ignore=shutil.ignore_patterns("*.safetensors*"))
        write_safetensors(rough / "model.safetensors", tensors)
        self.ok("rotate", rough, "-o", turned)
        self.assertTrue((turned / "tokenizer.json").exists())
        for model in (rough, turned):
            self.ok("quantize", model, "-o", self.path("out"), "--method", "rtn", "--force")
            losses.append(self.report("eval", self.path("out"), "--text", TINYSTORIES / "heldout.txt", "--samples", 8,
                                      "--sequence-length", 96, "--reference", rough)["kl_mean"])
        self.assertLess(losses[1], 0.5 * losses[0])

    def test_refusals(self):
        model, out = self.tiny("llama"), self.path("out")
        self.quantize(self.tiny("granite", "BF16"), self.path("quantized"), method="rtn")
        latent = self.tiny("deepseek_v3")
        half = TinyModel()
        head = half.tensors["model.layers.1.mlp.up_proj.weight"]
        half.tensors["model.layers.1.mlp.up_proj.weight"] = tensor(head.dtype, list(head.shape), [math.inf, *head.values()[1:]])
        out.mkdir()
        (out / "config.json").write_text("{}")
        for source, target, words in ((self.path("quantized"), self.path("new"), "quantized"), (model, out, "not empty"),
                                      (half.write(self.path("half")), self.path("new"), "NaN or infinity"),
                                      (model, model, "replace what the job reads"), (latent, self.path("new"), "multi-token prediction")):
            self.refused("rotate", source, "-o", target, says=[words])
            self.assertFalse(self.path("new").exists())
        self.refused("rotate", latent, "-o", self.path("new"), "--only", "heads", says=["no heads that can be turned", "latent attention"])
        self.ok("rotate", model, "-o", out, "--force")
        self.assertFalse(list(self.folder.glob("*.partial*")))


if __name__ == "__main__":
    unittest.main()
