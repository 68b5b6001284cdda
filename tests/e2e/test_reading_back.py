"""QQQ checkpoints of other makers load; damaged ones, and ones that contradict their configuration, are refused."""
import json
import shutil
import unittest

import gramian_e2e as e2e
from gramian_e2e import TinyModel, random_rows, read_model, tensor, write_rows, write_safetensors

DOWN = [f"model.layers.{i}.mlp.down_proj" for i in range(2)]  # two groups of 128 inputs: the only grouped layers


class ReadingBack(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tiny = TinyModel(family="qwen2")
        cls.model = cls.tiny.write(cls.top / "model")
        cls.rows = write_rows(cls.top / "rows.safetensors", random_rows(4, 24))
        for group in (128, -1):
            result = e2e.gramian("quantize", cls.model, "-o", cls.top / f"qqq{group}", "--method", "rtn", "--group-size", group)
            if result.code != 0:
                raise AssertionError(str(result))

    def changed(self, group, change=None, **fields):
        """A copy of the checkpoint with `change(tensors)` applied and quantization_config replaced by `fields`, if any."""
        source, out = self.top / f"qqq{group}", self.path(f"copy{len(list(self.folder.iterdir()))}")
        shutil.copytree(source, out)
        if change is not None:
            tensors = read_model(source)
            change(tensors)
            write_safetensors(out / "model.safetensors", tensors)
        if fields:
            config = json.loads((out / "config.json").read_text())
            config["quantization_config"] = fields
            (out / "config.json").write_text(json.dumps(config))
            (out / "quantize_config.json").unlink()
        return out

    def perplexity(self, model):
        return self.report("eval", model, "--rows", self.rows)["perplexity"]

    def unreadable(self, model, *says):
        self.refused("eval", model, "--rows", self.rows, says=says)
        self.refused("logits", model, "--input", self.rows, "--output", self.path("logits.safetensors"), says=says)

    def test_configurations_of_other_makers(self):
        for group in (128, -1):
            expected = self.perplexity(self.top / f"qqq{group}")
            for fields in ({"quant_method": "qqq", "wbits": 4, "group_size": group},
                           {"method": "qqq", "bits": 4, "group_size": group}, {"format": "qqq", "wbits": 4, "group_size": group}):
                self.assertEqual(self.perplexity(self.changed(group, **fields)), expected, fields)
        self.assertEqual(self.perplexity(self.changed(128, quant_method="qqq", wbits=4)), self.perplexity(self.top / "qqq128"))

    def test_empty_group_scales(self):
        """Whole-row checkpoints of others may hold an empty s_group for some modules, or for none."""
        expected = self.perplexity(self.top / "qqq-1")

        def add(tensors):
            tensors["model.layers.0.self_attn.q_proj.s_group"] = tensor("F16", [0], [])
        self.assertEqual(self.perplexity(self.changed(-1, add)), expected)

    def test_scales_of_other_types_and_shapes(self):
        """s_channel as [N] and scales in wider types say the same."""
        def widen(tensors):
            for name in list(tensors):
                if name.endswith(".s_group"):
                    tensors[name] = tensor("F32", tensors[name].shape, tensors[name].values())
                if name.endswith(".s_channel"):
                    tensors[name] = tensor("F32", [tensors[name].shape[1]], tensors[name].values())
        self.assertEqual(self.perplexity(self.changed(128, widen)), self.perplexity(self.top / "qqq128"))

    def test_damaged_tensors(self):
        name, grouped = "model.layers.1.self_attn.k_proj", DOWN[1]

        def replace(key, item):
            return lambda tensors: tensors.__setitem__(key, item)

        def drop(key):
            return lambda tensors: tensors.pop(key)

        def spoil(key, dtype, value):
            def change(tensors):
                values = tensors[key].values()
                values[5] = value
                tensors[key] = tensor(dtype, tensors[key].shape, values)
            return change
        nan, infinity = float("nan"), float("inf")
        for change, says in (
                (drop(name + ".s_channel"), name + ".s_channel"),
                (drop(name + ".B"), name),
                (drop(name + ".bias"), name + ".bias"),
                (drop(grouped + ".s_group"), grouped + ".s_group"),
                (replace(name + ".B", tensor("I32", [8, 64], [0] * 512)), name + ".B"),
                (replace(name + ".B", tensor("F32", [8, 128], [0] * 1024)), name + ".B"),
                (replace(name + ".B", tensor("I64", [8, 128], [0] * 1024)), name + ".B"),
                (replace(name + ".s_channel", tensor("F32", [1, 32], [1] * 32)), name + ".s_channel"),
                (replace(name + ".s_channel", tensor("I32", [1, 64], [1] * 64)), name + ".s_channel"),
                (replace(name + ".s_group", tensor("F16", [1, 64], [1] * 64)), name + ".s_group"),
                (replace(grouped + ".s_group", tensor("F16", [1, 128], [1] * 128)), grouped + ".s_group"),
                (replace(grouped + ".s_group", tensor("F16", [128, 2], [1] * 256)), grouped + ".s_group"),
                (replace(grouped + ".s_group", tensor("F16", [0], [])), grouped + ".s_group"),
                (replace(name + ".bias", tensor("F16", [63], [1] * 63)), name + ".bias"),
                (spoil(name + ".s_channel", "F32", nan), name + ".s_channel"),
                (spoil(name + ".s_channel", "F32", -infinity), name + ".s_channel"),
                (spoil(grouped + ".s_group", "F16", nan), grouped + ".s_group"),
                (spoil(grouped + ".s_group", "F16", infinity), grouped + ".s_group")):
            with self.subTest(says):
                self.refused("eval", self.changed(128, change), "--rows", self.rows, says=(says,))
        self.unreadable(self.changed(128, drop(name + ".s_channel")), name + ".s_channel")

    def test_configuration_and_tensors_disagree(self):
        """The order of codes depends on the group size: the wrong one would read other weights without a sign."""
        self.unreadable(self.changed(-1, quant_method="qqq", wbits=4, group_size=128), ".s_group", "group_size")
        self.unreadable(self.changed(128, quant_method="qqq", wbits=4, group_size=-1), ".s_group", "group_size")

    def test_damaged_configurations(self):
        good = {"quant_method": "qqq", "wbits": 4, "bits": 4, "group_size": 128}
        for change in ({"quant_method": "awq"}, {"quant_method": None}, {"bits": 8}, {"wbits": "4"}, {"group_size": 64},
                       {"group_size": "128"}, {"group_size": 2**70}, {"desc_act": True}, {"sym": False}, {"group_size": None}):
            self.unreadable(self.changed(128, **{**good, **change}), "quantization_config", "config.json")

    def test_inspect(self):
        document = self.report("inspect", self.top / "qqq128")
        self.assertEqual(document["model_type"], "qwen2")
        self.assertEqual(document["tensors"], len(read_model(self.top / "qqq128")))

    def test_a_damaged_plain_model_is_no_reference(self):
        model, spoilt = TinyModel(), TinyModel()
        spoilt.change("model.norm.weight", {0: float("nan")})
        good, bad = model.write(self.path("good")), spoilt.write(self.path("bad"))
        rows = write_rows(self.path("few.safetensors"), random_rows(2, 16))
        self.refused("eval", good, "--rows", rows, "--reference", bad, code=1, says=("bad", "not finite"))
        self.refused("eval", bad, "--rows", rows, code=1, says=("bad", "not finite"))
        result = e2e.gramian("logits", bad, "--input", rows, "--output", self.path("out.safetensors"), "-q")
        self.assertEqual(result.code, 0, result)
        self.assertIn("warning: some logits are NaN", result.err)



if __name__ == "__main__":
    unittest.main()
