"""--adapter: LoRA adapters of a PEFT folder run beside plain and quantized linear layers."""
import json
import random
import unittest

import gramian_e2e as e2e
from gramian_e2e import TinyModel, random_rows, read_safetensors, tensor, write_rows, write_safetensors

CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 8, "bias": "none", "target_modules": ["q_proj", "down_proj"], "use_dora": False,
          "modules_to_save": None}
MODULES = ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj")


class Adapter(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.rows = write_rows(cls.top / "rows.safetensors", random_rows(3, 16))
        cls.tiny = TinyModel()
        for name, item in cls.tiny.tensors.items():
            cls.tiny.tensors[name] = tensor("F32", list(item.shape), item.values())
        cls.model = cls.tiny.write(cls.top / "model")

    def parts(self, rank=2, modules=MODULES):
        source, tensors = random.Random(4), {}
        for module in modules:
            out, width = self.tiny.tensors[module + ".weight"].shape if module + ".weight" in self.tiny.tensors else (128, 128)
            for part, shape in (("A", [rank, width]), ("B", [out, rank])):
                values = [source.gauss(0, 0.1) for _ in range(shape[0] * shape[1])]
                tensors[f"base_model.model.{module}.lora_{part}.weight"] = tensor("F32", shape, values)
        return tensors

    def write(self, name, tensors=None, **config):
        folder = self.path(name)
        folder.mkdir()
        (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
        write_safetensors(folder / "adapter_model.safetensors", self.parts() if tensors is None else tensors)
        return folder

    def logits(self, model, *flags):
        out = self.path("logits.safetensors")
        self.ok("logits", model, "--input", self.rows, "--output", out, "--dtype", "float32", *flags)
        return read_safetensors(out)["logits"].values()

    def merged(self, scale):
        """The model with W + scale B A."""
        tensors, parts = dict(self.tiny.tensors), self.parts()
        for module in MODULES:
            weight = tensors[module + ".weight"]
            (out, width), values = weight.shape, weight.values()
            a, b = (parts[f"base_model.model.{module}.lora_{part}.weight"].values() for part in "AB")
            values = [values[i * width + j] + scale * sum(b[i * 2 + r] * a[r * width + j] for r in range(2))
                      for i in range(out) for j in range(width)]
            tensors[module + ".weight"] = tensor("F32", [out, width], values)
        model = self.path(f"merged-{scale}")
        model.mkdir()
        (model / "config.json").write_text((self.model / "config.json").read_text())
        write_safetensors(model / "model.safetensors", tensors)
        return model

    def near(self, found, expected, bound=1e-4):
        self.assertLess(max(abs(a - b) for a, b in zip(found, expected, strict=True)), bound)

    def test_is_what_merging_gives(self):
        """lora_alpha / r; with rank-stabilized scaling over the root; alphas by pattern."""
        plain = self.logits(self.model)
        for scale, settings in ((4, {}), (8 / 2 ** 0.5, {"use_rslora": True}), (3, {"alpha_pattern": {"q_proj|mlp.down_proj": 6}})):
            found = self.logits(self.model, "--adapter", self.write(f"adapter-{scale}", **settings))
            self.near(found, self.logits(self.merged(scale)))
            self.assertGreater(max(abs(a - b) for a, b in zip(found, plain)), 0.01)

    def test_beside_codes(self):
        """An adapter whose product is 0 changes nothing; eval, generate and bench take one, and eval's reference has none."""
        self.quantize(self.model, self.path("qqq"), method="rtn")
        adapter = self.write("adapter")
        nothing = {name: tensor("F32", list(item.shape), [0.0] * len(item.values())) if ".lora_B." in name else item
                   for name, item in self.parts().items()}
        quantized = self.logits(self.path("qqq"))
        self.assertEqual(self.logits(self.path("qqq"), "--adapter", self.write("nothing", nothing)), quantized)
        self.assertNotEqual(self.logits(self.path("qqq"), "--adapter", adapter), quantized)
        flags = ("--rows", self.rows, "--dtype", "float32")
        scores = [self.report("eval", self.model, *flags, "--reference", self.model, *more)["kl_mean"] for more in ((), ("--adapter", adapter))]
        self.assertLess(abs(scores[0]), 1e-9)
        self.assertGreater(scores[1], 1e-4)
        for more in ((), ("--adapter", adapter)):
            self.ok("bench", "run", self.path("qqq"), "--prompt", 4, "--decode", 2, "--repeats", 1, *more)

    def test_refusals(self):
        other = self.parts(modules=(MODULES[0], "model.layers.7.mlp.up_proj"))
        wrong = self.parts()
        name = f"base_model.model.{MODULES[0]}.lora_A.weight"
        wrong[name] = tensor("F32", [2, 5], [0.0] * 10)
        half = {key: item for key, item in self.parts().items() if key != name}
        odd = {**self.parts(), "base_model.model.lm_head.weight": tensor("F32", [1], [0.0])}
        cases = ((self.write("other", other), ["model.layers.7.mlp.up_proj", "no linear layer of this model"]),
                 (self.write("wrong", wrong), [MODULES[0], "[128, 5]"]), (self.write("half", half), ["no lora_A"]),
                 (self.write("odd", odd), ["lm_head.weight", "no part of a linear layer's LoRA"]),
                 (self.write("rank", r=3), ["not of rank 3"]), (self.write("alpha", lora_alpha=0), ["lora_alpha", "positive"]),
                 (self.write("dora", use_dora=True), ["use_dora", "merge the adapter"]), (self.write("kind", peft_type="IA3"), ["peft_type"]),
                 (self.write("bias", bias="all"), ["'bias'"]), (self.write("pattern", alpha_pattern={"(": 1}), ["adapter_config.json"]),
                 (self.write("empty", {"x": tensor("F32", [1], [0.0])}), ["no part"]), (self.path("missing"), ["is missing", "PEFT"]))
        for folder, words in cases:
            with self.subTest(folder.name):
                self.refused("eval", self.model, "--rows", self.rows, "--adapter", folder, says=words)


if __name__ == "__main__":
    unittest.main()
