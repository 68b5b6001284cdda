"""Modules solved on several lanes: the bytes of one lane, each weight once, and which weights go alone."""
import json
import random
import unittest

import gramian_e2e as e2e
from gramian_e2e import TinyMixture, TinyModel, digests, random_rows, write_rows
from test_encoded_sources import FP8, put_fp8


class Lanes(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tiny = TinyModel(hidden=256, head_dim=64, heads=4, kv_heads=2, layers=2, intermediate=256)
        cls.model = cls.tiny.write(cls.top / "model")
        cls.rows = write_rows(cls.top / "rows.safetensors", random_rows(8, 40))
        cls.importance = cls.top / "importance.gguf"
        e2e.gramian("imatrix", cls.model, "--calibration", cls.rows, "-o", cls.importance)

    def job(self, name, lanes, *flags, model=None):
        """-> bytes of the output, report, the lane of each module in the order of the solves."""
        out, events = self.path(name), self.path(name + ".events")
        report = self.report("quantize", model or self.model, "-o", out, "--lanes", f"cpu:{lanes}", "--telemetry", events,
                             "--threads", 2, *flags)
        solves = [json.loads(line) for line in events.read_text().splitlines() if '"solve"' in line]
        solves = [(event["module"], event["lane"]) for event in solves if event["event"] == "solve"]
        self.assertEqual([module for module, _ in solves], [module["name"] for module in report["modules"]])
        return out.read_bytes() if out.is_file() else digests(out)["model.safetensors"], report, [lane for _, lane in solves]

    def test_blocks_are_those_of_one_lane(self):
        flags = ("--format", "gguf", "--type", "iq2_xxs", "--imatrix", self.importance, "--method", "imatrix")
        one, first, lanes = self.job("one.gguf", 1, *flags)
        self.assertEqual(set(lanes), {0})
        for count in (2, 3):
            several, report, lanes = self.job(f"lanes{count}.gguf", count, *flags)
            self.assertEqual(several, one)
            # The first module goes alone: what its format makes once is there when the lanes begin.
            self.assertEqual(lanes[0], 0)
            self.assertEqual(set(lanes), set(range(count)))
            self.assertEqual([(m["name"], m["relative_error"]) for m in report["modules"]],
                             [(m["name"], m["relative_error"]) for m in first["modules"]])

    def test_every_method(self):
        for method in ("rtn", "nvfp4_mse", "fp8"):
            one, _, _ = self.job(method + "-one", 1, "--method", method)
            two, _, lanes = self.job(method + "-two", 2, "--method", method)
            self.assertEqual(one, two)
            self.assertEqual(set(lanes), {0, 1})

    def test_modules_of_one_pause(self):
        """Batches go round the lanes, so a job of one batch has the same sums on any number of them."""
        calibrated = ("--calibration", self.rows, "--batch", 8)
        for method in ("gptq", "gptq_nvfp4", "local_hessian"):
            for order in ("subset", "none"):
                name = f"{method}-{order}"
                one, _, _ = self.job(name + "-one", 1, "--method", method, "--sequential", order, *calibrated)
                two, report, lanes = self.job(name + "-two", 2, "--method", method, "--sequential", order, *calibrated)
                self.assertEqual(one, two, name)
                self.assertEqual(set(lanes), {0, 1})
                self.assertEqual(report["fallbacks"], 0)

    def test_experts(self):
        mixture = TinyMixture(experts=4, hidden=256, head_dim=64, heads=4, kv_heads=2, intermediate=256, never=(2,)).write(self.path("mixture"))
        flags = ("--method", "imatrix", "--format", "gguf", "--type", "iq2_xxs", "--calibration", self.rows, "--batch", 8)
        one, _, _ = self.job("experts-one.gguf", 1, *flags, model=mixture)
        two, report, lanes = self.job("experts-two.gguf", 2, *flags, model=mixture)
        self.assertEqual(one, two)
        self.assertEqual(set(lanes), {0, 1})
        self.assertGreater(report["fallbacks"], 0)

    def test_weights_that_must_be_decoded_go_alone(self):
        tiny = TinyModel(hidden=256, head_dim=64, heads=4, kv_heads=2, layers=2, intermediate=256)
        names = [name + ".weight" for name in tiny.linears() if ".mlp." in name]
        stored, random_ = dict(tiny.tensors), random.Random(3)
        for name in names:
            put_fp8(stored, {}, name, random_)
        tiny.tensors = stored
        tiny.config["quantization_config"] = FP8
        encoded = tiny.write(self.path("encoded"))
        one, _, _ = self.job("decoded-one", 1, "--method", "nvfp4_mse", model=encoded)
        two, report, lanes = self.job("decoded-two", 2, "--method", "nvfp4_mse", model=encoded)
        self.assertEqual(one, two)
        of = dict(zip((module["name"] for module in report["modules"]), lanes))
        self.assertEqual({of[name.removesuffix(".weight")] for name in names}, {0})
        self.assertEqual(set(of.values()), {0, 1})

    def test_an_error_names_its_weight(self):
        tiny = TinyModel(hidden=256, head_dim=64, heads=4, kv_heads=2, layers=2, intermediate=256)
        name = "model.layers.1.self_attn.o_proj"
        values = tiny.tensors[name + ".weight"].values()
        values[5] = float("nan")
        tiny.tensors[name + ".weight"] = e2e.tensor("F32", tiny.tensors[name + ".weight"].shape, values)
        damaged = tiny.write(self.path("damaged"))
        out = self.path("never")
        self.refused("quantize", damaged, "-o", out, "--method", "nvfp4_mse", "--lanes", "cpu:2", "--skip-scan", output=out,
                     code=1, says=(name,))


if __name__ == "__main__":
    unittest.main()
