"""gramian compare: paired differences, with the interval computed here from the rows that `eval --per-row` lists."""
import math
import random
import unittest

import gramian_e2e as e2e
from gramian_e2e import TINYSTORIES

# Student's t, 97.5 %, 11 degrees of freedom (tables).
T_11 = 2.2009851601


class Compare(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.text = ("--text", TINYSTORIES / "heldout.txt", "--samples", 12, "--sequence-length", 96)
        for name, flags in (("row", ("--group-size", -1)), ("grouped", ())):
            result = e2e.gramian("quantize", TINYSTORIES, "-o", cls.top / name, "--method", "rtn", *flags)
            if result.code != 0:
                raise AssertionError(str(result))

    def rows(self, name):
        document = self.report("eval", self.top / name, *self.text, "--reference", TINYSTORIES, "--per-row")
        self.assertEqual(len(document["per_row"]), 12)
        mean = sum(row["kl_mean"] * row["tokens"] for row in document["per_row"]) / sum(row["tokens"] for row in document["per_row"])
        self.assertAlmostEqual(mean, document["kl_mean"], places=12)
        tail = document["kl_tail"]
        self.assertTrue(0 <= tail["median"] <= tail["p90"] <= tail["p99"] <= tail["p99.9"] <= tail["max"], tail)
        self.assertLess(tail["median"], document["kl_mean"])
        return document["per_row"]

    def test_paired_interval(self):
        a, b = self.rows("row"), self.rows("grouped")
        found = self.report("compare", self.top / "row", self.top / "grouped", "--reference", TINYSTORIES, *self.text)
        for name, key in (("kl", "kl_mean"), ("negative_log_likelihood", "negative_log_likelihood"), ("top1_agreement", "top1_agreement")):
            with self.subTest(name):
                differences = [x[key] - y[key] for x, y in zip(a, b)]
                mean = sum(differences) / 12  # rows of equal length
                deviation = math.sqrt(sum((d - mean) ** 2 for d in differences) / 11)
                half = T_11 * deviation / math.sqrt(12)
                pair = found[name]
                self.assertAlmostEqual(pair["difference"], mean, delta=1e-9)
                self.assertAlmostEqual(pair["a"] - pair["b"], mean, delta=1e-9)
                self.assertAlmostEqual(pair["ci95"][0], mean - half, delta=1e-7)
                self.assertAlmostEqual(pair["ci95"][1], mean + half, delta=1e-7)
                # Another generator of random numbers: the same interval but for chance.
                chance = random.Random(3)
                means = sorted(sum(chance.choices(differences, k=12)) / 12 for _ in range(4000))
                for end, at in zip(pair["bootstrap95"], (100, 3900)):
                    self.assertAlmostEqual(end, means[at], delta=0.2 * half)
        self.assertEqual(found["verdict"], "B is nearer to the reference")
        # Paired, the interval is narrower than the two models' own.
        self.assertLess(found["kl"]["ci95"][1] - found["kl"]["ci95"][0], 2 * found["kl"]["difference"])

    def test_text_and_refusals(self):
        lines = self.ok("compare", self.top / "row", self.top / "row", "--reference", TINYSTORIES, *self.text).out.splitlines()
        self.assertEqual([line.split()[0] for line in lines[1:4]], ["kl", "negative_log_likelihood", "top1_agreement"])
        self.assertEqual(lines[4], "these rows do not tell them apart")
        self.refused("compare", self.top / "row", self.top / "grouped", "--reference", TINYSTORIES, says=["exactly one of --text and --rows"])
        other = e2e.TinyModel().write(self.path("other"))
        self.refused("compare", self.top / "row", other, "--reference", TINYSTORIES, *self.text, says=["vocabulary"])


class ReferenceStates(e2e.GramianTestCase):
    """--reference-states: what the reference makes of the rows is kept, and the same bits come out without running it."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.rows = e2e.write_rows(cls.top / "rows.safetensors", e2e.random_rows(6, 24))
        cls.model = e2e.TinyModel().write(cls.top / "model")
        cls.other = e2e.TinyModel(seed=5).write(cls.top / "other")

    def scores(self, *flags, rows=None, reference=None, verb="eval"):
        models = (self.other,) if verb == "eval" else (self.other, self.model)
        document = self.report(verb, *models, "--rows", rows or self.rows, "--reference", reference or self.model, *flags)
        return {key: value for key, value in document.items() if "second" not in key and key not in ("peak_rss_bytes", "stderr")}

    def test_same_bits_without_the_layers(self):
        kept = self.path("states.safetensors")
        plain = self.scores("--per-row")
        self.assertEqual(self.scores("--per-row", "--reference-states", kept), plain)
        self.assertLess(kept.stat().st_size, 6 * 24 * 128 * 4 + 4096)
        content = kept.read_bytes()
        self.assertEqual(self.scores("--per-row", "--reference-states", kept), plain)
        self.assertEqual(self.scores("--reference-states", kept, verb="compare"), self.scores(verb="compare"))
        self.assertEqual(kept.read_bytes(), content)
        # It is the file that is read: other states, other scores.
        tensors = e2e.read_safetensors(kept)
        tensors["states"] = e2e.Tensor(tensors["states"].dtype, tensors["states"].shape, bytes(len(tensors["states"].data)))
        e2e.write_safetensors(kept, tensors)
        self.assertNotEqual(self.scores("--reference-states", kept)["kl_mean"], plain["kl_mean"])

    def test_refusals(self):
        kept = self.path("states.safetensors")
        self.scores("--reference-states", kept)
        less = e2e.write_rows(self.path("less.safetensors"), e2e.random_rows(5, 24))
        base = ("--rows", self.rows, "--reference", self.model, "--reference-states")
        self.refused("eval", self.other, "--rows", less, "--reference", self.model, "--reference-states", kept, says=["other rows"])
        self.refused("eval", self.other, "--rows", self.rows, "--reference", self.other, "--reference-states", kept, says=["another model"])
        self.refused("eval", self.other, *base, kept, "--dtype", "float16", says=["another type of forward"])
        self.refused("eval", self.other, *base, self.rows, says=["lies among what the command reads"])
        self.refused("eval", self.other, *base, less, says=["holds no states"])
        self.refused("eval", self.other, *base, self.path("no") / "file", says=["no folder"])
        tensors = e2e.read_safetensors(kept)
        tensors["states"] = e2e.tensor("F32", [3, 128], [0.0] * 384)
        e2e.write_safetensors(kept, tensors)
        self.refused("eval", self.other, *base, kept, says=["for 144 tokens"])
        self.refused("eval", self.other, "--rows", self.rows, "--reference-states", kept, says=["--reference"])


if __name__ == "__main__":
    unittest.main()
