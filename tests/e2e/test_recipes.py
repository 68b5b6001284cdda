"""Recipes: one file says how every module is quantized, and every reader of the result sees just that."""
import json
import unittest

import gramian_e2e as e2e
from gramian_e2e import TinyMixture, TinyModel, digests, random_rows, read_model, write_rows


class Recipes(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = TinyModel().write(cls.top / "model")
        cls.rows = write_rows(cls.top / "rows.safetensors", random_rows(12, 48))

    def recipe(self, text, name="recipe.yaml"):
        self.path(name).write_text(text)
        return self.path(name)

    def job(self, name, *flags, method=None):
        """Quantizes, which verifies too, and returns the folder, its report and its quantization_config."""
        out = self.path(name)
        result = self.ok("quantize", self.model, "-o", out, "--calibration", self.rows, "--json",
                         *(("--method", method) if method else ()), *flags)
        return out, result.json(), json.loads((out / "config.json").read_text())["quantization_config"]

    def weights(self, folder):
        return digests(folder)["model.safetensors"]

    def test_defaults_are_those_of_flags(self):
        """The same settings as file and as flags give the same bytes; a flag goes before the file."""
        recipe = self.recipe("method: gptq\nbits: 3\ngroup_size: 32\nsym: false\nformat: gptq_v2\ndesc_act: true\n"
                             "damp_percent: 0.1\nmse: 1.5\nhessian: {chunk_size: 7}\ntrue_sequential: false\n")
        flags = ("--format", "gptq_v2", "--group-size", 32, "--asym", "--desc-act", "--damp-percent", 0.1,
                 "--mse", 1.5, "--chunk-size", 7, "--sequential", "layer")
        by_file, report, _ = self.job("file", "--recipe", recipe)
        self.assertEqual((report["bits"], report["sequential"], report["chunk_size"]), (3, "layer", 7))
        by_flags, _, _ = self.job("flags", "--bits", 3, *flags, method="gptq")
        self.assertEqual(self.weights(by_file), self.weights(by_flags))
        overruled, report, _ = self.job("both", "--recipe", recipe, "--bits", 4)
        self.assertEqual(report["bits"], 4)
        four, _, _ = self.job("four", "--bits", 4, *flags, method="gptq")
        self.assertEqual(self.weights(overruled), self.weights(four))

    def test_rules(self):
        """Each module has the settings of its rule: in the report, in the tensors, in the configuration, and for readers."""
        recipe = self.recipe("""
method: gptq
bits: 4
group_size: 64
dynamic:
  '+:.*\\.down_proj': {bits: 8, group_size: 32, damp_percent: 0.2}
  '.*0.*[qkv]_proj': {sym: false, order: natural}
  '-:.*1.*o_proj': {}
""")
        result = self.ok("inspect", self.model, "--recipe", recipe)
        self.assertRegex(result.out, r"model\.layers\.\*\.mlp\.down_proj +2 +8 bits, groups of 32, symmetric.*order group-aware")
        self.assertRegex(result.out, r"self_attn\.o_proj +1 +left as it is")
        shown = {m["name"]: m for m in self.report("inspect", self.model, "--recipe", recipe)["recipe"]["modules"]}
        for form in ("gptq_v2", "compressed-tensors"):
            with self.subTest(form):
                out, report, config = self.job(form, "--recipe", recipe, "--format", form)
                modules = {m["name"]: m for m in report["modules"]}
                self.assertEqual(report["skipped"], ["model.layers.1.self_attn.o_proj"])
                for name, module in modules.items():
                    self.assertEqual({key: module[key] for key in ("bits", "group_size", "symmetric", "order", "rule")},
                                     {key: shown[name][key] for key in ("bits", "group_size", "symmetric", "order", "rule")})
                down, up = "model.layers.1.mlp.down_proj", "model.layers.1.mlp.up_proj"
                self.assertEqual((modules[down]["bits"], modules[up]["bits"]), (8, 4))
                # More damping by the rule alone: the inputs are those of different modules, the mean diagonals near.
                self.assertGreater(modules[down]["damp"], modules[up]["damp"])
                tensors = read_model(out)
                scales = "scales" if form == "gptq_v2" else "weight_scale"
                self.assertEqual(sorted(tensors[f"{down}.{scales}"].shape), [8, 128])
                self.assertEqual(sorted(tensors[f"{up}.{scales}"].shape), [2, 256])
                self.assertIn("model.layers.1.self_attn.o_proj.weight", tensors)
                if form == "gptq_v2":
                    self.assertEqual(config["dynamic"], {
                        r"-:^model\.layers\.1\.self_attn\.o_proj$": {},
                        r"+:^model\.layers\.0\.self_attn\.(k_proj|q_proj|v_proj|qkv_proj)$": {"sym": False},
                        r"+:^model\.layers\.\d+\.mlp\.down_proj$": {"bits": 8, "group_size": 32}})
                else:
                    groups = config["config_groups"].values()
                    self.assertEqual([(g["weights"]["num_bits"], g["weights"]["group_size"], g["weights"]["symmetric"])
                                      for g in groups], [(4, 64, True), (4, 64, False), (8, 32, True)])
                    self.assertEqual(config["ignore"], ["lm_head", "model.layers.1.self_attn.o_proj", "model.embed_tokens"])
                loss = self.report("eval", out, "--rows", self.rows, "--reference", self.model)["kl_mean"]
                self.assertLess(loss, 0.3)
                # A recipe's own output is a recipe.
                if form == "gptq_v2":
                    again = self.report("inspect", self.model, "--recipe", out / "quantize_config.json")["recipe"]["modules"]
                    for module in again:
                        for key in ("quantize", "bits", "group_size", "symmetric"):
                            self.assertEqual(module.get(key), shown[module["name"]].get(key), module["name"])

    def test_qqq_rules(self):
        recipe = self.recipe("dynamic: {'.*down_proj': {group_size: -1}}")
        out, report, config = self.job("out", "--recipe", recipe)
        self.assertEqual(config["dynamic"], {r"+:^model\.layers\.\d+\.mlp\.down_proj$": {"group_size": -1}})
        self.assertFalse([name for name in read_model(out) if name.endswith("s_group")])
        self.assertLess(self.report("eval", out, "--rows", self.rows, "--reference", self.model)["kl_mean"], 0.5)
        # Plain rounding looks at nothing else: a module of a rule is that of a job with these settings for all.
        ruled, rows, groups = (read_model(self.job(name, *flags, method="rtn")[0]) for name, flags in (
            ("ruled", ("--recipe", recipe)), ("rows", ("--group-size", -1)), ("groups", ())))
        for name, item in ruled.items():
            self.assertEqual(item, (rows if "down_proj" in name else groups)[name], name)

    def test_fallbacks(self):
        """No token reaches two experts; few reach the others."""
        self.model = TinyMixture(never=(2, 5)).write(self.path("mixture"))
        out = self.path("no")
        result = self.refused("quantize", self.model, "-o", out, "--calibration", self.rows, "--no-fallback", code=1,
                              says=("--no-fallback", "mlp.experts.2.gate_proj: rtn: no calibration tokens",
                                    "mlp.experts.5.down_proj"), output=out)
        self.assertNotIn("experts.1.", result.err)
        self.assertFalse(self.path("no.journal").exists())
        self.refused("quantize", self.model, "-o", out, "--calibration", self.rows, "--recipe",
                     self.recipe("fallback: null"), code=1, says=("no calibration tokens",), output=out)
        found = {}
        for threshold in (1, "25%"):
            _, report, _ = self.job(f"out{threshold}", "--fallback-threshold", threshold)
            found[threshold] = {m["name"] for m in report["modules"] if m["fallback"]}
            few = {m["name"] for m in report["modules"] if m["samples"] < (1 if threshold == 1 else 0.25 * report["tokens"])}
            self.assertEqual(found[threshold], few)
        self.assertLess(found[1], found["25%"])

    def test_refusals(self):
        def refused(text, *says, flags=(), name="recipe.yaml"):
            for verb in (("quantize", self.model, "-o", self.path("no"), "--calibration", self.rows, *flags), ("inspect", self.model)):
                if verb[0] == "inspect" and flags:
                    continue
                with self.subTest(text, verb=verb[0]):
                    self.refused(*verb, "--recipe", self.recipe(text, name), says=says, output=self.path("no"))

        refused("bits: 4\nbits: 8\n", "recipe.yaml", "stands twice, line 2")
        refused("a: &x [1]\nb: *x", "anchors are not read, line 1")
        refused("{'bits': 4}", "recipe.json", "line 1", name="recipe.json")
        refused("method: gptq\nbitz: 5\ngroup_size: 64\ndynamic: {'.*k_prj': {bits: 8}, '(': {}, '.*up_proj': {bits: 3, damp_percent: 2}}",
                "4 problems", '"bitz": no such field; is bits meant?', "matches no linear layer", "damp_percent: 2", "PCRE2 refuses")
        refused("dynamic: {'.*up_proj': {bits: 8}}", "--bits", "QQQ has 4 bits")
        refused("method: gptq\ndynamic: {'.*up_proj': {bits: 8}}", "--target vllm", "mlp.gate_up_proj", flags=("--target", "vllm"))
        result = self.ok("quantize", self.model, "-o", self.path("split"), "--method", "rtn", "--format", "gptq", "--recipe",
                         self.recipe("dynamic: {'.*up_proj': {bits: 8}}"))
        self.assertIn("gate_up_proj", result.err)
        self.refused("inspect", self.path("split"), "--recipe", self.recipe("bits: 4"), says=("is quantized already",))
        self.refused("inspect", self.model, "--recipe", self.path("none.yaml"), says=("none.yaml",))


class Contradictions(e2e.GramianTestCase):
    def setUp(self):
        super().setUp()
        self.model = TinyModel(tied=False).write(self.path("model"))
        self.rows = write_rows(self.path("rows.safetensors"), random_rows(4, 16))

    def recipe(self, text):
        self.path("recipe.yaml").write_text(text)
        return ("--recipe", self.path("recipe.yaml"))

    def test_refused(self):
        for flags, says in (((*self.recipe("method: gptq\nlm_head: true\ndynamic: {'-:lm_head': {}}\n"), "--lm-head-bits", 8),
                             ["--lm-head-bits", "leaves lm_head as it is"]),
                            (("--untie",), ["--untie", "no head is quantized"])):
            self.refused_job(self.model, *flags, calibration=self.rows, says=says)
        self.refused_job(self.model, *self.recipe("method: gptq\norder: activation\ndesc_act: false\n"), calibration=self.rows,
                         says=["order", "contradicts"])
        rules = "".join(f"  '.*q_proj{i}': {{bits: 8}}\n" for i in range(300))
        result = self.refused_job(self.model, *self.recipe("method: gptq\ndynamic:\n" + rules), calibration=self.rows,
                                  says=["300 problems", "and 250 more"])
        self.assertLess(len(result.err.splitlines()), 60)

    def test_plain_rounding_says_what_it_does_not_use(self):
        result = self.ok("quantize", self.model, "-o", self.path("out"), "--method", "rtn", "--refine", 3, "--static-groups", "--damp-percent", 0.3)
        for option in ("--refine", "--static-groups", "--damp-percent"):
            self.assertIn(option, result.err)

    def test_gguf_of_a_quantized_folder(self):
        self.quantize(self.model, self.path("out"), method="rtn")
        self.refused("convert", self.path("out"), "-o", self.path("x.gguf"), says=["is quantized (qqq", "--to bf16"])

    def test_a_look_at_a_tied_head(self):
        tied = TinyModel().write(self.path("tied"))
        out = self.ok("inspect", tied, *self.recipe("method: gptq\nformat: compressed-tensors\nlm_head: true\n")).out
        self.assertIn("needs --untie", out)
        self.assertIn("lm_head", out)


if __name__ == "__main__":
    unittest.main()
