"""An option that changes nothing in a job is named in a warning, or refused; nobody is told of options that were not given."""
import json
import re
import shutil
import unittest

import gramian_e2e as e2e
from gramian_e2e import TINYSTORIES, TinyModel, random_rows, write_rows


class Quantize(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = TinyModel(hidden=256, head_dim=64, heads=4, kv_heads=2, intermediate=256, tied=True).write(cls.top / "model")
        cls.rows = write_rows(cls.top / "rows.safetensors", random_rows(6, 40))
        cls.importance = cls.top / "importance.gguf"
        assert e2e.gramian("imatrix", cls.model, "--calibration", cls.rows, "-o", cls.importance).code == 0

    def unused(self, *flags, output="out.gguf"):
        """Reason -> options, of the warnings."""
        result = self.ok("quantize", self.model, "-o", self.path(output), "--force", *flags)
        found = re.findall(r"^warning: (.*) has no use for (.*)$", result.err, re.MULTILINE)
        return {reason: re.findall(r'"([^"]*)"', names) for reason, names in found}

    def test_without_a_forward(self):
        forward = ("--samples", 3, "--batch", 2, "--sequential", "layer", "--experts", "all", "--dtype", "float32",
                   "--seed", 1, "--activations", "replay", "--no-shared-inputs", "--chunk-size", 7)
        names = sorted(flag for flag in map(str, forward) if flag.startswith("--"))
        read = ("--method", "imatrix", "--type", "iq2_xxs", "--imatrix", self.importance)
        found = self.unused(*read, *forward)
        self.assertEqual(sorted(name for group in found.values() for name in group), names)
        self.assertIn("a job that takes its importance from --imatrix", found)
        self.assertEqual(found["method imatrix"], ["--chunk-size"])
        self.assertEqual(self.unused(*read, "--min-expert-tokens", 3), {})
        rtn = ("--method", "rtn", "--format", "gguf", "--type", "q4_0")
        self.assertEqual(sorted(self.unused(*rtn, *forward, "--fallback-threshold", 3)["method rtn"]), sorted([*names, "--fallback-threshold"]))
        # Modules are solved on them, and rows that blocks do not divide are refused.
        self.assertEqual(self.unused(*rtn, "--lanes", "cpu:2", "--no-fallback"), {})
        self.assertEqual(self.unused("--method", "rtn", "--no-fallback", output="rtn-none"), {"method rtn": ["--no-fallback"]})
        measured = ("--method", "imatrix", "--type", "iq2_xxs", "--calibration", self.rows)
        self.assertEqual(self.unused(*measured, "--samples", 3, "--batch", 2, "--chunk-size", 7), {"method imatrix": ["--chunk-size"]})

    def test_gguf_has_its_own_grid(self):
        base = ("--method", "gptq", "--format", "gguf", "--type", "q4_0", "--calibration", self.rows)
        self.assertEqual(self.unused(*base), {})
        self.assertEqual(self.unused(*base, "--asym", "--desc-act"), {"format gguf": ["--asym", "--desc-act"]})
        self.assertEqual(self.unused(*base, "--sym", "--order", "natural", "--no-refine-scales", "--target", "vllm"),
                         {"format gguf": ["--sym", "--order", "--no-refine-scales", "--target"]})
        self.assertEqual(self.unused(*base, "--bits", 4, "--group-size", 32, "--mse", 2, "--static-groups", "--refine", 1),
                         {"format gguf": ["--bits", "--group-size", "--mse", "--static-groups", "--refine"]})
        recipe = self.path("recipe.json")
        recipe.write_text(json.dumps({"sym": False, "group_size": 32}))
        self.assertEqual(self.unused(*base, "--recipe", recipe), {"format gguf": ["group_size of the recipe", "sym of the recipe"]})
        self.assertEqual(self.unused("--method", "rtn", "--desc-act", "--static-groups", "--no-refine-scales", output="rtn"),
                         {"method rtn": ["--desc-act", "--static-groups", "--no-refine-scales"]})

    def test_other_tools_rules(self):
        gguf = ("quantize", self.model, "-o", self.path("x.gguf"), "--method", "gptq", "--format", "gguf", "--type", "q4_0",
                "--calibration", self.rows)
        self.refused(*gguf, "--compat", "gptqmodel", says=("--compat", "GGUF", "leave it out"))
        for method in ("local_hessian", "nvfp4_max"):
            rows = ("--calibration", self.rows) if method == "local_hessian" else ()
            self.refused("quantize", self.model, "-o", self.path("x"), "--method", method, "--compat", "gptqmodel", *rows,
                         says=("--compat", method))

    def test_one_remedy(self):
        """What is wrong is said, not what would be wrong next."""
        base = ("quantize", self.model, "-o", self.path("x.gguf"), "--method", "rtn", "--format", "gguf")
        recipe = self.path("recipe.json")
        recipe.write_text(json.dumps({"lm_head": True}))
        for flags, says in ((("--lm-head-bits", 8), "--lm-head-bits"), (("--recipe", recipe), "lm_head of the recipe")):
            result = self.refused(*base, "--type", "q4_0", *flags, says=(says, "the type that llama.cpp gives it"))
            self.assertNotIn("--untie", result.err)
        self.assertNotIn("is needed", self.refused(*base, "--type", "q9_k", says=("unknown type 'q9_k'", "iq2_xxs")).err)
        recipe.write_text(json.dumps({"type": "q9_k"}))
        self.assertNotIn("is needed", self.refused(*base, "--recipe", recipe, says=("type", "q9_k", "iq2_xxs")).err)

    def test_memory_of_plain_rounding(self):
        base = ("quantize", self.model, "-o", self.path("out"), "--method", "rtn", "--memory")
        for more in ((), ("--dry-run",)):
            result = self.refused(*base, "1MiB", *more, says=("--memory", "at least"))
        least = int(re.search(r"at least (\d+) MiB", result.err).group(1))
        report = self.report(*base, f"{least + 16}MiB")
        self.assertLess(report["peak_rss_bytes"], (least + 48) << 20)


class Evaluation(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = TinyModel(layers=1, vocab=2048).write(cls.top / "model")
        shutil.copy(TINYSTORIES / "tokenizer.json", cls.model)
        cls.text = cls.top / "text.txt"
        cls.text.write_text((TINYSTORIES / "heldout.txt").read_text(encoding="utf-8")[:4000], encoding="utf-8")

    def test_one_row_has_no_others(self):
        window = ("eval", self.model, "--text", self.text, "--window", 64)
        warned = self.ok(*window, "--samples", 2, "--seed", 1, "--allow-fewer").err
        self.assertIn("not used: --samples, --seed, --allow-fewer", warned)
        self.assertNotIn("not used", self.ok(*window).err)

    def test_ready_rows_keep_their_length(self):
        rows = write_rows(self.path("rows.safetensors"), random_rows(3, 20))
        self.assertIn("warning: --sequence-length", self.ok("eval", self.model, "--rows", rows, "--sequence-length", 8).err)
        self.assertNotIn("--sequence-length", self.ok("eval", self.model, "--rows", rows).err)

    def test_too_short(self):
        """The file is named, and a length that a protocol fixes is no remedy."""
        short = self.path("short.txt")
        short.write_text("Once upon a time")
        result = self.refused("eval", self.model, "--text", short, "--protocol", "wikitext-kl", says=(short, "512", "give more text"))
        self.assertNotIn("--sequence-length", result.err)
        self.refused("eval", self.model, "--text", short, says=(short, "--sequence-length"))
        rows = write_rows(self.path("rows.safetensors"), [[5], [6], [7]])
        self.refused("eval", self.model, "--rows", rows, says=(rows, "no row has two tokens"))
        self.refused("compare", self.model, self.model, "--reference", self.model, "--rows", rows, says=(rows, "no row has two tokens"))


if __name__ == "__main__":
    unittest.main()
