"""Methods and formats: what is written, what its configuration says, and that it reads back as it was solved."""
import json
import struct
import unittest

import gramian_e2e as e2e
from gramian_e2e import TinyMixture, TinyModel, digests, random_rows, read_model, write_rows

GPTQ = ("qweight", "qzeros", "scales", "g_idx")


class Formats(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tiny = TinyModel()
        cls.model = cls.tiny.write(cls.top / "model")
        cls.rows = write_rows(cls.top / "rows.safetensors", random_rows(12, 48))

    def job(self, name, *flags, method="gptq"):
        """Quantizes, verifies, and returns the folder, its quantization_config and the loss against the original."""
        out = self.path(name)
        report = self.quantize(self.model, out, *flags, calibration=self.rows, method=method)
        self.assertEqual(report["fallbacks"], 0)
        self.ok("verify", out)
        config = json.loads((out / "config.json").read_text())["quantization_config"]
        loss = self.report("eval", out, "--rows", self.rows, "--reference", self.model)["kl_mean"]
        return out, config, loss

    def parts(self, out):
        """Names of the tensors of quantized modules behind the module's name."""
        return {name.rpartition(".")[2] for name in read_model(out)
                if any(name.startswith(module + ".") for module in self.tiny.linears())}

    def test_gptq(self):
        losses = {}
        for bits in (2, 3, 4, 8):
            out, config, losses[bits] = self.job(f"b{bits}", "--bits", bits, "--group-size", 64)
            self.assertEqual(self.parts(out), set(GPTQ))
            self.assertEqual({key: config[key] for key in ("bits", "group_size", "desc_act", "sym", "quant_method",
                                                           "checkpoint_format")},
                             {"bits": bits, "group_size": 64, "desc_act": False, "sym": True, "quant_method": "gptq",
                              "checkpoint_format": "gptq"})
            self.assertEqual(json.loads((out / "quantize_config.json").read_text()), config)
            self.assertIn(f"gptq, {bits} bits, group size 64", self.report("inspect", out)["quantization"])
        self.assertEqual(sorted(losses, key=losses.get), [8, 4, 3, 2], losses)
        self.assertLess(losses[4], 0.3)

    def test_symmetric_zeros_are_constant(self):
        """Version 1 stores zero points less one: 7 of 16, in every nibble; version 2 stores 8."""
        for form, word in (("gptq", 0x77777777), ("gptq_v2", 0x88888888)):
            out, config, _ = self.job(form, "--format", form)
            self.assertEqual(config["format"], form)
            for name, item in read_model(out).items():
                if name.endswith(".qzeros"):
                    self.assertEqual(set(struct.unpack(f"<{len(item.data) // 4}I", item.data)), {word}, name)

    def test_asymmetric(self):
        out, config, loss = self.job("asym", "--asym", "--format", "gptq_v2", "--bits", 3, "--group-size", 32)
        _, _, symmetric = self.job("sym", "--bits", 3, "--group-size", 32)
        self.assertIs(config["sym"], False)
        self.assertLess(loss, 0.5)
        self.assertNotEqual(loss, symmetric)

    def test_orders(self):
        seen = {}
        for order in ("natural", "group-aware", "activation"):
            out, config, loss = self.job(order, "--order", order, "--group-size", 32)
            self.assertIs(config["desc_act"], order == "activation")
            groups = [item.values() for name, item in read_model(out).items() if name.endswith("down_proj.g_idx")]
            natural = [k // 32 for k in range(256)]
            self.assertEqual([list(index) == natural for index in groups], [order != "activation"] * 2)
            self.assertLess(loss, 0.3)
            seen[order] = digests(out)["model.safetensors"]
        self.assertEqual(len(set(seen.values())), 3)
        alias, _, _ = self.job("alias", "--desc-act", "--group-size", 32)
        self.assertEqual(digests(alias)["model.safetensors"], seen["activation"])
        static, config, _ = self.job("static", "--desc-act", "--static-groups", "--group-size", 32)
        self.assertIs(config["desc_act"], False)
        self.assertNotIn(digests(static)["model.safetensors"], seen.values())

    def test_compressed_tensors(self):
        form = ("--format", "compressed-tensors")
        kinds = {"w4a16": (form, "pack-quantized", 4, None, {"weight_packed", "weight_scale", "weight_shape"}),
                 "w4a16-asym": (form + ("--asym",), "pack-quantized", 4, None,
                                {"weight_packed", "weight_scale", "weight_shape", "weight_zero_point"}),
                 "w8a8": (form + ("--bits", 8, "--group-size", -1, "--activation-bits", 8), "int-quantized", 8, 8,
                          {"weight", "weight_scale"}),
                 "w4a8": (form + ("--activation-bits", 8), "int-quantized", 4, 8, {"weight", "weight_scale"})}
        losses = {}
        for name, (flags, kind, bits, activations, parts) in kinds.items():
            with self.subTest(name):
                out, config, losses[name] = self.job(name, *flags)
                self.assertEqual(self.parts(out), parts)
                group = config["config_groups"]["group_0"]
                self.assertEqual((config["format"], group["format"], group["weights"]["num_bits"]), (kind, kind, bits))
                self.assertEqual((group["input_activations"] or {}).get("num_bits"), activations)
                self.assertEqual(config["ignore"], ["lm_head", "model.embed_tokens"])  # the head is tied
        self.assertLess(losses["w8a8"], losses["w4a16"])
        # Rounding the activations changes the outputs, by far less than four bits of the weights do: which way a few rows lean is chance.
        self.assertNotEqual(losses["w4a16"], losses["w4a8"])
        self.assertLess(abs(losses["w4a16"] - losses["w4a8"]), 0.2 * losses["w4a16"])

    def test_qqq_method_in_compressed_tensors(self):
        """The way in which a W4A8 model of ours is served by vLLM: 4-bit codes for 8-bit activations."""
        out, config, loss = self.job("w4a8", "--format", "compressed-tensors", method="qqq")
        self.assertEqual(config["config_groups"]["group_0"]["input_activations"]["num_bits"], 8)
        codes = read_model(out)["model.layers.0.mlp.down_proj.weight"]
        self.assertEqual(codes.dtype, "I8")
        values = struct.unpack(f"{len(codes.data)}b", codes.data)
        self.assertTrue(-8 == min(values) or max(values) == 7)
        self.assertTrue(all(-8 <= value <= 7 for value in values))
        self.assertLess(loss, 0.3)

    def test_rtn_needs_no_calibration_in_any_format(self):
        for form in ("gptq", "gptq_v2", "compressed-tensors"):
            report = self.quantize(self.model, self.path(form), "--format", form, method="rtn")
            self.assertEqual({m["method"] for m in report["modules"]}, {"rtn"})
            self.ok("verify", self.path(form))

    def test_fallback(self):
        """Experts that no token reaches."""
        model = TinyMixture(never=(2, 5)).write(self.path("mixture"))
        seen = {}
        for fallback in ((), ("--fallback", "midpoint"), ("--fallback", "median"),
                         ("--fallback-smoother", "percentile:90")):
            name = "-".join(fallback) or "plain"
            report = self.quantize(model, self.path(name), "--asym", "--format", "gptq_v2", *fallback, calibration=self.rows,
                                   method="gptq")
            starved = [m for m in report["modules"] if m["fallback"]]
            self.assertEqual({m["name"].split(".experts.")[1].split(".")[0] for m in starved}, {"2", "5"})
            strategy = fallback[1] if fallback[:1] == ("--fallback",) else "rtn"
            self.assertEqual({m["method"] for m in starved}, {strategy})
            self.assertIn(f"{strategy}: no calibration tokens", report["stderr"])
            seen[name] = digests(self.path(name))["model.safetensors"]
        self.assertEqual(len(set(seen.values())), len(seen), seen)

    def test_refusals(self):
        for flags, says in ((("--format", "awq"), "qqq, gptq, gptq_v2, compressed-tensors"),
                            (("--format", "qqq", "--bits", 8), "--bits"),
                            (("--activation-bits", 8), "compressed-tensors"),
                            (("--fallback", "midpoint"), "needs zero points"),
                            (("--fallback", "best"), "midpoint"),
                            (("--fallback-smoother", "mad:x"), "mad"),
                            (("--order", "upwards"), "group-aware"),
                            (("--format", "compressed-tensors", "--desc-act"), "--static-groups"),
                            (("--order", "group-aware", "--group-size", -1), "needs groups")):
            with self.subTest(flags):
                self.refused("quantize", self.model, "-o", self.path("no"), "--method", "gptq", "--calibration", self.rows,
                             *flags, says=(says,), output=self.path("no"))


if __name__ == "__main__":
    unittest.main()
