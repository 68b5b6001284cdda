"""NVFP4 and FP8: what is written, whose global scales are shared, and that searched scales and error compensation lose less."""
import json
import struct
import unittest

import gramian_e2e as e2e
from gramian_e2e import TinyMixture, TinyModel, digests, random_rows, read_model, tensor, write_rows

PARTS = {"weight_packed", "weight_scale", "weight_global_scale"}
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def e4m3(code):
    exponent, mantissa = code >> 3, code & 7
    return mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bf16_bytes(values):
    """Nearest, ties to even."""
    data = bytearray()
    for x in values:
        bits = struct.unpack("<I", struct.pack("<f", x))[0]
        data += struct.pack("<H", (bits + 0x7fff + (bits >> 16 & 1)) >> 16)
    return bytes(data)


def decoded(tensors, name):
    """Rows of a module's weight, from the bytes alone."""
    packed, scale = tensors[name + ".weight_packed"], tensors[name + ".weight_scale"]
    (rows, half), groups = packed.shape, scale.shape[1]
    factor = f32(1 / tensors[name + ".weight_global_scale"].values()[0])
    out = []
    for r in range(rows):
        codes = [c for byte in packed.data[r * half:(r + 1) * half] for c in (byte & 15, byte >> 4)]
        blocks = [f32(e4m3(s) * factor) for s in scale.data[r * groups:(r + 1) * groups]]
        out.append([f32((-1 if c & 8 else 1) * E2M1[c & 7] * blocks[k // 16]) for k, c in enumerate(codes)])
    return out


class FloatsTestCase(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tiny = TinyModel()
        cls.model = cls.tiny.write(cls.top / "model")
        cls.rows = write_rows(cls.top / "rows.safetensors", random_rows(12, 48))

    def job(self, name, method, *flags, model=None):
        out = self.path(name)
        calibration = None if method in ("nvfp4_max", "nvfp4_mse", "fp8") else self.rows
        report = self.quantize(model or self.model, out, *flags, calibration=calibration, method=method)
        self.ok("verify", out)
        return out, report

    def loss(self, out):
        return self.report("eval", out, "--rows", self.rows, "--reference", self.model)["kl_mean"]


class Nvfp4(FloatsTestCase):
    def test_methods(self):
        losses, error = {}, {}
        for method in ("nvfp4_max", "nvfp4_mse", "local_hessian"):
            out, report = self.job(method, method)
            self.assertEqual((report["grid"], report["format"], report["fallbacks"]),
                             ("nvfp4", "compressed-tensors", 0))
            self.assertAlmostEqual(report["bits_per_weight"], 4.5, delta=0.01)
            self.assertEqual({module["method"] for module in report["modules"]}, {method})
            tensors = read_model(out)
            name = next(iter(self.tiny.linears()))
            self.assertEqual({key.rpartition(".")[2] for key in tensors if key.startswith(name + ".")}, PARTS)
            losses[method] = self.loss(out)
            error[method] = sum(module["relative_error"] or 0 for module in report["modules"])
        self.assertLess(losses["nvfp4_max"], 0.3)
        self.assertLess(losses["local_hessian"], losses["nvfp4_max"])
        config = json.loads((out / "config.json").read_text())["quantization_config"]
        self.assertEqual(config["format"], "nvfp4-pack-quantized")
        self.assertEqual(config["config_groups"]["group_0"]["weights"],
                         {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group",
                          "dynamic": False, "group_size": 16})
        self.assertIsNone(config["config_groups"]["group_0"]["input_activations"])
        self.assertGreater(error["local_hessian"], 0)
        self.assertIn("NVFP4", self.report("inspect", out)["quantization"])

    def test_written_bytes_are_what_is_read(self):
        out, _ = self.job("bytes", "nvfp4_mse")
        plain = self.path("plain")
        self.ok("convert", out, "-o", plain, "--to", "bf16")
        tensors, values = read_model(out), read_model(plain)
        for name in list(self.tiny.linears())[:3]:
            rows = decoded(tensors, name)
            self.assertEqual(values[name + ".weight"].data, bf16_bytes(x for row in rows for x in row), name)

    def test_siblings_share_their_global_scale(self):
        for model in (TinyModel(), TinyMixture(experts=2)):
            folder = model.write(self.path(type(model).__name__))
            out, _ = self.job(type(model).__name__ + "-max", "nvfp4_max", model=folder)
            stored = read_model(out)
            largest = {}
            for name in model.linears():
                parent, _, leaf = name.rpartition(".")
                group = parent + {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gu",
                                  "up_proj": "gu"}.get(leaf, leaf)
                largest.setdefault(group, []).append(name)
            self.assertTrue(any(len(names) == 3 for names in largest.values()))
            source = read_model(folder)
            for names in largest.values():
                scales = {stored[name + ".weight_global_scale"].data for name in names}
                self.assertEqual(len(scales), 1, names)
                amax = max(abs(x) for name in names for x in source[name + ".weight"].values())
                self.assertEqual(scales.pop(), struct.pack("<f", f32(2688 / amax)), names)

    def test_options_change_the_result(self):
        seen = {"all": digests(self.job("all", "local_hessian")[0])["model.safetensors"]}
        for key, flags in {"multiples": ("--scale-multiples", "0.25:4:0.1"), "some": ("--scale-multiples", "1:1:1"),
                           "order": ("--sequential", "none")}.items():
            out, report = self.job(key, "local_hessian", *flags)
            seen[key] = digests(out)["model.safetensors"]
            if key == "multiples":
                self.assertEqual(report["search"], "39 multiples from 0.25 to 4")
        self.assertEqual(len(set(seen.values())), len(seen), seen)
        # One multiple is no search.
        largest = digests(self.job("largest", "nvfp4_max")[0])["model.safetensors"]
        self.assertEqual(seen["some"], largest)
        for key, flags in {"threads": ("--threads", 2), "again": ("--no-shared-inputs",), "replay": ("--activations", "replay")}.items():
            self.assertEqual(digests(self.job(key, "local_hessian", *flags)[0])["model.safetensors"], seen["all"], key)

    def test_recipe_of_model_optimizer(self):
        recipe = self.path("nvfp4.yaml")
        recipe.write_text("""
quantize:
  algorithm: {method: local_hessian, fp8_scale_sweep: true, block_size: 16, debug: false, layerwise: {enable: false}}
  quant_cfg:
    - {quantizer_name: '*', enable: false}
    - {quantizer_name: '*mlp*weight_quantizer', cfg: {num_bits: e2m1, block_sizes: {-1: 16, type: static, scale_bits: e4m3}}}
    - {quantizer_name: '*lm_head*', enable: false}
    - {quantizer_name: '*router*', enable: false}
""")
        out = self.path("recipe")
        report = self.report("quantize", self.model, "-o", out, "--recipe", recipe, "--calibration", self.rows)
        self.assertEqual((report["method"], report["sequential"]), ("local_hessian", "none"))
        self.assertEqual({".mlp." in module["name"] for module in report["modules"]}, {True})
        self.assertEqual(len(report["skipped"]), 8)
        self.ok("verify", out)

    def test_experts_without_tokens_are_searched_plainly(self):
        mixture = TinyMixture(experts=4, never=(2,))
        model = mixture.write(self.path("mixture"))
        out, report = self.job("starved", "local_hessian", model=model)
        starved = [module for module in report["modules"] if module["fallback"]]
        self.assertEqual({module["method"] for module in starved}, {"nvfp4_mse"})
        self.assertTrue(all(".experts.2." in module["name"] for module in starved))
        self.assertEqual(report["fallbacks"], len(starved))
        plain, _ = self.job("plain", "nvfp4_mse", model=model)
        a, b = read_model(out), read_model(plain)
        name = starved[0]["name"] + ".weight_scale"
        self.assertEqual(a[name], b[name])

    def test_refusals(self):
        refused = lambda *flags, says: self.refused_job(self.model, "--method", *flags, says=says, calibration=self.rows)
        refused("local_hessian", "--format", "gptq", says=("gptq has no NVFP4 weights", "compressed-tensors"))
        refused("local_hessian", "--bits", 8, says=("--bits", "8 is not what NVFP4 stores"))
        refused("local_hessian", "--group-size", 32, says=("--group-size", "32"))
        refused("local_hessian", "--mse", 2, says=("--mse", "nvfp4_mse"))
        refused("local_hessian", "--lm-head-bits", 8, "--untie", says=("--lm-head-bits", "the head stays as it is"))
        refused("local_hessian", "--scale-multiples", "4:1:1", says=("--scale-multiples", "START:STOP:STEP"))
        refused("local_hessian", "--sequential", "none", "--statistics", self.path("s"), says=("--statistics",))

    def test_columns_that_blocks_do_not_divide(self):
        odd = TinyModel(intermediate=136)
        model = odd.write(self.path("odd"))
        self.refused_job(model, "--method", "nvfp4_max", says=("136 inputs are no multiple of NVFP4's blocks of 16", "--skip-unfit"))
        out, report = self.job("odd-out", "nvfp4_max", "--skip-unfit", model=model)
        self.assertEqual(len(report["skipped"]), 2)

    def test_damaged_scales_are_found(self):
        out, _ = self.job("damaged", "nvfp4_max")
        name = next(iter(self.tiny.linears())) + ".weight_global_scale"
        path = out / "model.safetensors"
        tensors = e2e.read_safetensors(path)
        tensors[name] = tensor("F32", [1], [0.0])
        e2e.write_safetensors(path, tensors)
        self.refused("verify", out, code=3, says=(name, "not a positive number"))


class Compensation(FloatsTestCase):
    def test_nvfp4(self):
        losses, seen = {}, {}
        for key, method, flags in (("rounded", "nvfp4_mse", ()), ("gptq", "gptq_nvfp4", ()), ("damp", "gptq_nvfp4", ("--damp-percent", 0.3)),
                                   ("order", "gptq_nvfp4", ("--order", "natural")), ("multiples", "gptq_nvfp4", ("--scale-multiples", "1:1:1"))):
            out, report = self.job(key, method, *flags)
            self.assertEqual((report["grid"], report["fallbacks"]), ("nvfp4", 0))
            losses[key], seen[key] = self.loss(out), digests(out)["model.safetensors"]
        self.assertLess(losses["gptq"], losses["rounded"])
        self.assertEqual(len(set(seen.values())), len(seen), seen)
        # Scales are those of the search, but in the layers whose inputs are the same.
        name = next(iter(self.tiny.linears())) + ".weight_scale"
        self.assertEqual(read_model(self.path("gptq"))[name], read_model(self.path("rounded"))[name])
        again, _ = self.job("again", "gptq_nvfp4", "--threads", 2, "--lanes", "cpu:1")
        self.assertEqual(digests(again)["model.safetensors"], seen["gptq"])

    def test_fp8(self):
        losses = {}
        for method in ("fp8", "gptq_fp8"):
            out, report = self.job(method, method)
            self.assertEqual((report["grid"], report["bits"], report["activation_bits"]), ("fp8", 8, 8))
            self.assertAlmostEqual(report["bits_per_weight"], 8.2, delta=0.2)
            losses[method] = self.loss(out)
        self.assertLess(losses["gptq_fp8"], losses["fp8"])
        config = json.loads((out / "config.json").read_text())["quantization_config"]
        group = config["config_groups"]["group_0"]
        self.assertEqual(config["format"], "float-quantized")
        self.assertEqual((group["weights"]["type"], group["weights"]["strategy"], group["weights"]["num_bits"]), ("float", "channel", 8))
        self.assertEqual(group["input_activations"],
                         {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True})
        self.assertIn("FP8", self.report("inspect", out)["quantization"])
        weights, _ = self.job("weights", "fp8", "--activation-bits", 16)
        self.assertIsNone(json.loads((weights / "config.json").read_text())["quantization_config"]["config_groups"]["group_0"]["input_activations"])

    def test_fp8_bytes(self):
        out, _ = self.job("bytes", "fp8")
        plain = self.path("plain")
        self.ok("convert", out, "-o", plain, "--to", "bf16")
        tensors, values, source = read_model(out), read_model(plain), read_model(self.model)
        for name in list(self.tiny.linears())[:2]:
            codes, scales = tensors[name + ".weight"], tensors[name + ".weight_scale"].values()
            rows, columns = codes.shape
            self.assertEqual((codes.dtype, tensors[name + ".weight_scale"].shape), ("F8_E4M3", [rows, 1]))
            expected = [f32((-1 if c & 128 else 1) * e4m3(c & 127) * scales[i // columns]) for i, c in enumerate(codes.data)]
            self.assertEqual(values[name + ".weight"].data, bf16_bytes(expected), name)
            largest = max(abs(x) for x in source[name + ".weight"].values()[:columns])
            self.assertAlmostEqual(scales[0] * 448 / largest, 1, delta=2**-8)

    def test_refusals(self):
        refused = lambda *flags, says: self.refused_job(self.model, "--method", *flags, says=says, calibration=self.rows)
        refused("fp8", "--format", "gptq", says=("gptq has no FP8 weights", "compressed-tensors"))
        refused("gptq_fp8", "--bits", 4, says=("--bits", "4 is not what FP8 stores"))
        refused("fp8", "--group-size", 32, says=("--group-size", "32"))
        refused("fp8", "--asym", says=("--asym", "FP8"))
        refused("fp8", "--mse", 2, says=("--mse", "FP8"))
        for head in (("--lm-head-bits", 8), ("--lm-head-bits", 8, "--untie")):
            refused("fp8", *head, says=("--lm-head-bits", "the head stays as it is", "leave it out"))
        refused("gptq_fp8", "--compat", "gptqmodel", says=("--compat", "not for method gptq_fp8"))
        refused("gptq_fp8", "--fallback", "mean", says=("--fallback", "rounded plainly"))

    def test_experts_without_tokens_are_rounded(self):
        model = TinyMixture(experts=4, never=(2,)).write(self.path("mixture"))
        for method, fallback in (("gptq_fp8", "rtn"), ("gptq_nvfp4", "nvfp4_mse")):
            _, report = self.job(method, method, model=model)
            starved = [module for module in report["modules"] if module["fallback"]]
            self.assertTrue(starved and all(".experts.2." in module["name"] for module in starved))
            self.assertEqual({module["method"] for module in starved}, {fallback})

    def test_options_of_other_grids_are_named(self):
        for method in ("gptq_fp8", "gptq_nvfp4"):
            result = self.ok("quantize", self.model, "-o", self.path(method), "--method", method, "--calibration", self.rows, "--refine", 5,
                             "--static-groups")
            self.assertRegex(result.err, f'method {method} has no use for "--static-groups", "--refine"')

    def test_damaged_scales_are_found(self):
        out, _ = self.job("scales", "fp8")
        name = next(iter(self.tiny.linears())) + ".weight_scale"
        whole = e2e.read_safetensors(out / "model.safetensors")
        for value in (0.0, -0.5):
            values = whole[name].values()
            values[1] = value
            e2e.write_safetensors(out / "model.safetensors", {**whole, name: tensor(whole[name].dtype, whole[name].shape, values)})
            self.refused("verify", out, code=3, says=(name, "not positive"))
        e2e.write_safetensors(out / "model.safetensors", {key: value for key, value in whole.items() if key != name})
        self.refused("verify", out, says=(name,))

    def test_damaged_codes_are_found(self):
        out, _ = self.job("damaged", "fp8")
        name = next(iter(self.tiny.linears())) + ".weight"
        tensors = e2e.read_safetensors(out / "model.safetensors")
        codes = tensors[name]
        tensors[name] = e2e.Tensor(codes.dtype, codes.shape, b"\x7f" + codes.data[1:])
        e2e.write_safetensors(out / "model.safetensors", tensors)
        self.refused("verify", out, code=3, says=(name, "holds NaN"))


if __name__ == "__main__":
    unittest.main()
