"""gramian smooth: another model of the same function, whose quantized form is nearer to the original."""
import json
import math
import shutil
import unittest

import gramian_e2e as e2e
from gramian_e2e import TINYSTORIES, TinyModel, digests, random_rows, read_model, tensor, write_rows, write_safetensors
from tiny_architectures import TinyArchitecture
from tiny_streams import TinyStreams

GOLDEN = e2e.ROOT / "tests" / "golden" / "arch"


def uneven(tensors, factor=64):
    """Channels that differ: every second weight of a norm, and row of what gives an input, is so many times as large."""
    for name, item in tensors.items():
        norm = "layernorm.weight" in name and len(item.shape) == 1
        if norm or name.endswith(("v_proj.weight", "up_proj.weight", "qkv_proj.weight")):
            width = item.shape[1] if len(item.shape) == 2 else 1
            values = [v * (factor if i // width % 2 else 1) for i, v in enumerate(item.values())]
            tensors[name] = tensor(item.dtype, list(item.shape), values)


def spread(item):
    """Largest over smallest root mean square of a matrix's columns."""
    rows, columns = item.shape
    values = item.values()
    squares = [sum(values[r * columns + c] ** 2 for r in range(rows)) for c in range(columns)]
    return math.sqrt(max(squares) / min(squares))


class Smooth(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.rows = write_rows(cls.top / "rows.safetensors", random_rows(8, 40))

    def smooth(self, model, out, *flags):
        return self.report("smooth", model, "-o", out, "--calibration", self.rows, *flags)

    def changed(self, model, out):
        """Names of the tensors that are other than the model's; shapes and types are the same."""
        before, after = read_model(model), read_model(out)
        self.assertEqual({n: (t.dtype, t.shape) for n, t in before.items()}, {n: (t.dtype, t.shape) for n, t in after.items()})
        self.assertEqual(json.loads((model / "config.json").read_text()), json.loads((out / "config.json").read_text()))
        return {name for name in before if before[name].data != after[name].data}

    def same_function(self, model, out, bound=1e-6):
        scores = self.report("eval", out, "--rows", self.rows, "--reference", model, "--dtype", "float32")
        self.assertLess(abs(scores["kl_mean"]), bound)

    def test_every_kind_of_fold(self):
        """Grouped queries, biases, a LayerNorm with bias, one norm in front of both halves, fused modules, no norm at all."""
        norms = {"input_layernorm.weight", "post_attention_layernorm.weight"}
        kinds = {"llama": norms, "cohere": {"input_layernorm.weight"}, "phi3": norms, "olmo2": set(), "mixtral": {"input_layernorm.weight"},
                 "stablelm": norms | {name.replace("weight", "bias") for name in norms}}
        for kind, expected in kinds.items():
            with self.subTest(kind):
                tiny = TinyModel() if kind == "llama" else TinyArchitecture(kind)
                uneven(tiny.tensors)
                model, out = tiny.write(self.path(kind)), self.path(kind + "-smooth")
                report = self.smooth(model, out)
                changed = self.changed(model, out)
                layer = "model.layers.0."
                self.assertEqual({n[len(layer):] for n in changed if n.startswith(layer + "input_l") or n.startswith(layer + "post_attention_l")},
                                 expected)
                self.assertIn(layer + "self_attn.o_proj.weight", changed)
                self.assertEqual(layer + "mlp.down_proj.weight" in changed, kind != "mixtral")
                self.assertEqual(bool(report["left_alone"]), kind in ("olmo2", "mixtral"), report)
                self.same_function(model, out)

    def test_gemma(self):
        """Norms of 1 + weight are stored in bf16: the columns are scaled by what that comes to."""
        source, model = next(GOLDEN.glob("gemma3_text*")), self.path("model")
        tensors = read_model(source)
        uneven(tensors)
        model.mkdir()
        shutil.copy(source / "config.json", model)
        write_safetensors(model / "model.safetensors", tensors)
        rows = write_rows(self.path("rows.safetensors"), random_rows(4, 16, vocab=64))
        out = self.path("out")
        self.ok("smooth", model, "-o", out, "--calibration", rows)
        self.assertTrue(any(name.endswith("pre_feedforward_layernorm.weight") for name in self.changed(model, out)))
        scores = self.report("eval", out, "--rows", rows, "--reference", model, "--dtype", "float32")
        self.assertLess(abs(scores["kl_mean"]), 1e-4)

    def test_alpha(self):
        """0 evens out the columns of the weights; the larger it is, the more goes into them."""
        tiny = TinyModel()
        uneven(tiny.tensors)
        model = tiny.write(self.path("model"))
        spreads = {}
        for alpha in (0, 0.25, 1):
            out = self.path(f"a{alpha}")
            self.assertEqual(self.smooth(model, out, "--alpha", alpha)["alpha"], alpha)
            spreads[alpha] = spread(read_model(out)["model.layers.0.mlp.down_proj.weight"])
        self.assertLess(spreads[0], 2.1)  # powers of two
        self.assertGreater(spreads[1], spreads[0.25])
        self.assertNotEqual(digests(self.path("a0")), digests(self.path("a0.25")))

    def test_helps_where_channels_differ(self):
        """The bundled model with factors moved the other way, which makes outliers of every eighth channel of the MLPs' inputs."""
        rough, smooth = self.path("rough"), self.path("smooth")
        tensors = read_model(TINYSTORIES)
        for name, item in tensors.items():
            norm, reader = "post_attention_layernorm" in name, "gate_proj" in name or "up_proj" in name
            if norm or reader:
                factor = 32 if norm else 1 / 32
                tensors[name] = tensor(item.dtype, item.shape, [v * (1 if i % 8 else factor) for i, v in enumerate(item.values())])
        shutil.copytree(TINYSTORIES, rough, ignore=shutil.ignore_patterns("*.safetensors*"))
        write_safetensors(rough / "model.safetensors", tensors)
        text = ("--samples", 8, "--sequence-length", 96)
        self.ok("smooth", rough, "-o", smooth, "--calibration", TINYSTORIES / "calibration.txt", *text)
        self.assertTrue((smooth / "tokenizer.json").exists())
        losses = []
        for model in (rough, smooth):
            self.ok("quantize", model, "-o", self.path("out"), "--force", "--calibration", TINYSTORIES / "calibration.txt", *text)
            losses.append(self.report("eval", self.path("out"), "--text", TINYSTORIES / "heldout.txt", *text, "--reference", TINYSTORIES)["kl_mean"])
        self.assertLess(losses[1], 0.5 * losses[0])

    def test_refusals(self):
        model, out = TinyModel().write(self.path("model")), self.path("out")
        self.quantize(model, self.path("quantized"), method="rtn")
        streams = TinyStreams("glm5_next").write(self.path("streams"))
        damaged = TinyModel()
        head = damaged.tensors["model.layers.1.mlp.up_proj.weight"]
        damaged.tensors["model.layers.1.mlp.up_proj.weight"] = tensor(head.dtype, head.shape, [math.inf, *head.values()[1:]])
        self.refused("smooth", damaged.write(self.path("damaged")), "-o", self.path("new"), "--calibration", self.rows,
                     says=["NaN or infinity", "model.layers.1.mlp.up_proj.weight"])
        out.mkdir()
        (out / "config.json").write_text("{}")
        for source, target, words in ((self.path("quantized"), self.path("new"), "quantized"),
                                      (streams, self.path("new"), "several residual streams"), (model, out, "not empty"),
                                      (model, model, "replace what the job reads")):
            self.refused("smooth", source, "-o", target, "--calibration", self.rows, says=[words])
            self.assertFalse(self.path("new").exists())
        self.assertEqual((out / "config.json").read_text(), "{}")
        self.smooth(model, out, "--force")
        self.assertFalse(list(self.folder.glob("*.partial*")))


if __name__ == "__main__":
    unittest.main()
