"""How a job is driven: waiting batches, budgets, the order of statistics, waves of experts. Bytes do not depend on it."""
import math
import re
import unittest

import gramian_e2e as e2e
from gramian_e2e import TinyMixture, TinyModel, digests, expected_tensors, random_rows, read_model, read_safetensors, write_rows

MIB = 1 << 20


def weights(folder):
    return digests(folder)["model.safetensors"]


class Waiting(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tiny = TinyModel(hidden=256, intermediate=512, heads=4, vocab=64)
        cls.model = cls.tiny.write(cls.top / "model")
        cls.rows = write_rows(cls.top / "rows.safetensors", random_rows(96, 200, vocab=64))

    def job(self, *flags, name="out"):
        out = self.path(name)
        return out, self.quantize(self.model, out, "--batch", 4, *flags, calibration=self.rows)

    def test_every_way_and_any_number_of_threads_gives_the_same_bytes(self):
        base, report = self.job("--activations", "suspend", "--threads", 1, name="base")
        self.assertEqual(report["linear_multiplications"], report["batches"] * len(self.tiny.linears()))
        self.assertEqual((report["plan"]["activations"], report["activations_parked_bytes"]), ("suspend", 0))
        for way in ("suspend", "spill", "replay"):
            for threads in (1, 2, 3):
                with self.subTest(way, threads=threads):
                    out, found = self.job("--activations", way, "--threads", threads, name=f"{way}{threads}")
                    self.assertEqual(weights(out), weights(base))
                    self.assertEqual(found["plan"]["activations"], way)
                    self.assertEqual(found["activations_parked_bytes"] > 0, way == "spill")
                    more = found["linear_multiplications"] > report["linear_multiplications"]
                    self.assertEqual(more, way == "replay")

    def test_a_budget_holds_and_changes_nothing(self):
        base, _ = self.job(name="base")
        plan = self.report("quantize", self.model, "-o", self.path("dry"), "--batch", 4, "--calibration", self.rows,
                           "--activations", "suspend", "--dry-run")["plan"]
        budget = plan["parts"]["program and tables"] + 64 * MIB
        self.assertLess(budget, plan["peak_bytes"])
        out, report = self.job("--memory", budget, name="small")
        self.assertEqual(weights(out), weights(base))
        self.assertNotEqual(report["plan"]["activations"], "suspend")
        self.assertLessEqual(report["plan"]["peak_bytes"], budget)
        # The process may differ by what LibTorch keeps.
        self.assertLess(report["peak_rss_bytes"], budget + 48 * MIB)

    def test_a_budget_that_cannot_work_names_the_smallest_that_can(self):
        result = self.refused_job(self.model, "--memory", "20MiB", calibration=self.rows, says=["--memory", "at least"])
        least = int(re.search(r"at least (\d+) MiB", result.err).group(1))
        _, report = self.job("--memory", f"{least + 16}MiB")
        self.assertEqual(report["fallbacks"], 0)

    def test_dry_run_writes_nothing(self):
        out = self.path("out")
        report = self.report("quantize", self.model, "-o", out, "--calibration", self.rows, "--dry-run")
        self.assertFalse(out.exists())
        self.assertTrue(report["dry_run"])
        self.assertEqual(report["tokens"], 96 * 200)
        self.assertEqual(report["quantized_weights"], sum(math.prod(size) for size in self.tiny.linears().values()))
        self.assertEqual(report["plan"]["peak_bytes"], sum(report["plan"]["parts"].values()))
        self.assertGreater(report["plan"]["seconds"], 0)
        text = self.ok("quantize", self.model, "-o", out, "--calibration", self.rows, "--dry-run").out
        self.assertIn("memory at most", text)
        _, done = self.job()
        self.assertEqual(report["weight_bytes"], done["weight_bytes"])
        # Outputs that the job could not make are refused by the dry run too.
        for place, says, code in ((self.rows / "out", "below the file", 2), (self.path("a" * 300), "File name too long", 1)):
            self.refused("quantize", self.model, "-o", place, "--calibration", self.rows, "--dry-run", says=(says,), code=code)

    def test_scratch(self):
        scratch = self.path("scratch")
        scratch.mkdir()
        base, _ = self.job(name="base")
        out, report = self.job("--activations", "spill", "--scratch", scratch)
        self.assertEqual((weights(out), list(scratch.iterdir())), (weights(base), []))
        self.assertGreater(report["activations_parked_bytes"], 0)
        self.refused_job(self.model, "--scratch", self.path("nowhere"), calibration=self.rows, says=["--scratch"])

    def test_words_and_sizes(self):
        for flags, says in ((("--activations", "disk"), "suspend, spill or replay"), (("--memory", "lots"), "1.5GiB"),
                            (("--memory", "-1GiB"), "1.5GiB"), (("--memory", "0x10"), "1.5GiB"), (("--memory", "inf"), "1.5GiB"), (("--sequential", "all"), "subset, layer or none")):
            self.refused_job(self.model, *flags, calibration=self.rows, says=[flags[0], says])

    def test_order_of_statistics(self):
        found = {}
        for order in ("subset", "layer", "none"):
            out, report = self.job("--sequential", order, name=order)
            self.assertEqual((report["sequential"], report["fallbacks"]), (order, 0))
            found[order] = read_model(out)
            scores = self.report("eval", out, "--rows", self.rows, "--samples", 8, "--reference", self.model)
            self.assertLess(scores["kl_mean"], 0.5)
        # The first pause sees the same input in every order; what follows does not.
        first, later = "model.layers.0.self_attn.q_proj.B", "model.layers.1.mlp.down_proj.B"
        self.assertTrue(found["subset"][first] == found["layer"][first] == found["none"][first])
        self.assertEqual(found["layer"]["model.layers.0.mlp.down_proj.B"], found["none"]["model.layers.0.mlp.down_proj.B"])
        self.assertEqual(len({found[order][later].data for order in found}), 3)


    def test_statistics_file(self):
        """Statistics of the original model serve other settings, with the bytes of a job of its own."""
        file = self.path("statistics")
        flags = ("--sequential", "none")
        base, _ = self.job(*flags, name="base")
        out, first = self.job(*flags, "--statistics", file, name="first")
        self.assertEqual(weights(out), weights(base))
        self.assertEqual(first["statistics"], str(file))
        self.assertEqual(read_safetensors(file)["model.layers.1.mlp.down_proj.tokens"].values(), [96 * 200])
        before = file.read_bytes()
        out, again = self.job(*flags, "--statistics", file, name="again")
        self.assertEqual((weights(out), again["linear_multiplications"]), (weights(base), 0))
        base, _ = self.job(*flags, "--mse", 0, "--group-size", -1, name="other-base")
        out, _ = self.job(*flags, "--mse", 0, "--group-size", -1, "--statistics", file, name="other")
        self.assertEqual(weights(out), weights(base))
        self.assertEqual(file.read_bytes(), before)
        self.refused_job(self.model, *flags, "--batch", 5, "--statistics", file, calibration=self.rows, says=["batch was 4 and is 5", file])
        self.refused_job(self.model, *flags, "--batch", 4, "--statistics", self.rows, calibration=self.rows, says=["holds no statistics"])
        self.refused_job(self.model, "--statistics", file, calibration=self.rows, says=["--statistics", "--sequential none"])

class Mixtures(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.rows = write_rows(cls.top / "rows.safetensors", random_rows(16, 40))

    def job(self, tiny, *flags, name="out"):
        model = self.path("model-" + name)
        tiny.write(model)
        out = self.path(name)
        return out, self.quantize(model, out, *flags, calibration=self.rows)

    def test_there_and_back(self):
        tiny = TinyMixture()
        out, report = self.job(tiny)
        written = read_model(out)
        packed = expected_tensors(tiny.linears(), 128)
        self.assertEqual({n: (written[n].dtype, written[n].shape) for n in packed}, packed)
        self.assertEqual(written["model.layers.0.mlp.gate.weight"], tiny.tensors["model.layers.0.mlp.gate.weight"])
        self.assertEqual(sorted(m["name"] for m in report["modules"]), sorted(tiny.linears()))
        scores = self.report("eval", out, "--rows", self.rows, "--reference", self.path("model-out"))
        self.assertTrue(0 < scores["kl_mean"] < 0.5, scores)
        # Each expert is multiplied by the rows that were sent to it and no others.
        counts = [m["samples"] for m in report["modules"] if m["name"].endswith("down_proj") and ".experts." in m["name"]]
        self.assertEqual(sum(counts), 2 * report["tokens"])

    def test_stacked_experts_give_the_same_output(self):
        one, _ = self.job(TinyMixture(), name="one")
        stack, _ = self.job(TinyMixture(stacked=True), name="stack")
        self.assertEqual(read_model(one), read_model(stack))

    def test_waiting_and_waves_change_nothing(self):
        base, report = self.job(TinyMixture(), name="base")
        self.assertEqual(report["plan"]["expert_wave"], 8)
        for way in ("spill", "replay"):
            out, _ = self.job(TinyMixture(), "--activations", way, name=way)
            self.assertEqual(weights(out), weights(base))
        small = self.report("quantize", self.path("model-base"), "-o", self.path("dry"), "--calibration", self.rows,
                            "--dry-run")["plan"]["smallest_bytes"]
        out, found = self.job(TinyMixture(), "--memory", small + 9 * MIB, name="wave")
        self.assertEqual(weights(out), weights(base))
        del found

    def test_orders(self):
        for order in ("layer", "none"):
            out, report = self.job(TinyMixture(), "--sequential", order, name=order)
            self.assertEqual(report["fallbacks"], 0)
            scores = self.report("eval", out, "--rows", self.rows, "--reference", self.path("model-" + order))
            self.assertTrue(0 < scores["kl_mean"] < 0.5, scores)

    def test_experts_without_tokens(self):
        tiny = TinyMixture(never=(3, 6))
        out, report = self.job(tiny)
        starved = {name for name in tiny.linears() if ".experts.3." in name or ".experts.6." in name}
        self.assertEqual({m["name"] for m in report["modules"] if m["fallback"]}, starved)
        self.assertTrue(all(m["samples"] == 0 for m in report["modules"] if m["name"] in starved))
        self.assertEqual(report["fallbacks"], len(starved))
        self.assertEqual(len(report["experts_below_minimum"]), 4)
        written = read_model(out)
        packed = expected_tensors(tiny.linears(), 128)
        self.assertEqual({n: (written[n].dtype, written[n].shape) for n in packed}, packed)
        self.assertTrue(all(map(math.isfinite, written["model.layers.0.mlp.experts.3.gate_proj.s_channel"].values())))

    def test_all_experts(self):
        tiny = TinyMixture(never=(3, 6))
        _, routed = self.job(tiny, name="routed")
        out, report = self.job(tiny, "--experts", "all", name="all")
        self.assertEqual((routed["experts"], report["experts"]), ("routed", "all"))
        self.assertEqual({m["samples"] for m in report["modules"]}, {report["tokens"]})
        self.assertEqual((report["fallbacks"], report["experts_below_minimum"]), (0, []))
        expert = "model.layers.0.mlp.experts.3.gate_proj.B"
        self.assertNotEqual(read_model(out)[expert], read_model(self.path("routed"))[expert])
        self.assertGreater(report["plan"]["peak_bytes"], 0)

    def test_min_expert_tokens(self):
        tiny = TinyMixture()
        _, base = self.job(tiny, name="base")
        counts = {m["name"]: m["samples"] for m in base["modules"] if ".experts." in m["name"]}
        bound = sorted(counts.values())[len(counts) // 2]
        _, report = self.job(tiny, "--min-expert-tokens", bound, name="bound")
        self.assertEqual({m["name"] for m in report["modules"] if m["fallback"]},
                         {name for name, count in counts.items() if count < bound})


if __name__ == "__main__":
    unittest.main()
