"""Inputs that several linear layers read: every architecture's module tree against its forward, and one Hessian for all of
them, with the same weights as with one each."""
import json
import unittest

import gramian_e2e as e2e
from gramian_e2e import FAMILIES, ROOT, TinyMixture, TinyModel, random_rows, read_model, write_rows
from tiny_architectures import ARCHITECTURES, EXPERTS, TinyArchitecture
from tiny_recurrent import RECURRENT, TinyRecurrent
from tiny_streams import TinyStreams

GOLDEN = ROOT / "tests" / "golden" / "arch"
# Followers in both layers: q, k and v, gate and up, and the same of each expert; less where nothing is shared as it is stored.
FOLLOWERS = {"phi3": 0, "mixtral": 2 * (2 + EXPERTS), "gpt_oss": 2 * (2 + EXPERTS), "qwen3_moe": 3 + 2 + EXPERTS,
             "qwen2_moe": 3 + 3 + EXPERTS, "deepseek_v3": 2 + 2 + EXPERTS, "glm4_moe": 3 + 3 + EXPERTS,
             "llama4_text": 3 + 3 + EXPERTS, "qwen3_next": 1 + EXPERTS + 3, "qwen3_5_text": 2 + 3,
             "qwen3_5_moe_text": 2 + EXPERTS + 3 + EXPERTS, "olmo_hybrid": 4 + 3, "kimi_linear": 3 + 2 + EXPERTS}


def tiny(kind):
    if kind in FAMILIES:
        return TinyModel(family=kind)
    if kind == "qwen3_moe":
        return TinyMixture(experts=EXPERTS)
    return TinyArchitecture(kind) if kind in ARCHITECTURES else TinyRecurrent(kind)


class SharedInputs(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.rows = write_rows(cls.top / "rows.safetensors", random_rows(4, 20))

    def both(self, model, *flags, name=""):
        """Reports with and without one Hessian for several modules; the weights are the same."""
        outs = self.path(name + "on"), self.path(name + "off")
        reports = [self.quantize(model, out, "--skip-scan", *flags, *switch, calibration=self.rows)
                   for out, switch in zip(outs, ((), ("--no-shared-inputs",)))]
        self.assertEqual(*map(read_model, outs))
        on, off = (report["shared_inputs"] for report in reports)
        self.assertEqual((on["enabled"], off["enabled"]), (True, False))
        self.assertEqual((off["planned"], off["adopted"]), (0, 0))
        self.assertEqual(on["adopted"], on["planned"])
        self.assertEqual(off["sums"] - on["sums"], on["planned"])
        self.assertEqual(off["sums"], len(reports[0]["modules"]))
        self.assertEqual(on["contradictions"], [])
        metas = [json.loads((out / "config.json").read_text())["quantization_config"]["meta"] for out in outs]
        self.assertEqual([meta["dedup_shared_inputs"] for meta in metas], [True, False])
        return reports

    def test_every_architecture(self):
        for kind in (*FAMILIES, "qwen3_moe", *ARCHITECTURES, *RECURRENT):
            with self.subTest(kind):
                model = tiny(kind).write(self.path(kind))
                probed = self.report("probe", model)
                self.assertTrue(probed["ok"] and probed["shares_inputs"], probed)
                on, _ = self.both(model, name=kind)
                followers = FOLLOWERS.get(kind, 2 * 3)
                self.assertEqual(on["shared_inputs"]["planned"], followers)
                self.assertIn(f"shared inputs: {followers} of {len(on['modules'])} linear layers", on["stderr"])
                sharing = self.report("inspect", model)["sharing"]
                self.assertEqual((sharing["verified"], sharing["followers"]), (True, followers))

    def test_models_with_streams(self):
        """Tags of our own. The top of a GLM file names a class of another type, which is not listed: its tree is true all the same."""
        for kind, followers in (("glm5_next", 0), ("qwen4_exp_text", 1 + 2 + 2 * (1 + EXPERTS))):
            with self.subTest(kind):
                model = TinyStreams(kind).write(self.path(kind))
                probed = self.report("probe", model)
                self.assertEqual((probed["ok"], probed["shares_inputs"]), (True, followers > 0))
                on, _ = self.both(model, name=kind)
                self.assertEqual(on["shared_inputs"]["planned"], followers)

    def test_every_kind_of_layer_of_the_golden_models(self):
        for folder in sorted(path for path in GOLDEN.iterdir() if path.is_dir()):
            with self.subTest(folder.name):
                probed = self.report("probe", folder, "--dtype", "float32")
                self.assertTrue(probed["ok"], probed)
                self.assertFalse(probed["has_errors"])
                self.assertTrue(all(min(layer["call_counts"].values()) > 0 for layer in probed["layers"]))

    def test_orders_and_lanes(self):
        model = tiny("qwen2_moe").write(self.path("model"))
        for flags in (("--lanes", "cpu:2", "--batch", 1), ("--sequential", "layer"), ("--experts", "all", "--activations", "replay")):
            self.both(model, *flags, name=flags[1])
        # Statistics are of inputs, whoever shares them.
        file = self.path("statistics")
        for name, switch in (("written", ()), ("read", ("--no-shared-inputs",))):
            self.quantize(model, self.path(name), "--sequential", "none", "--statistics", file, *switch, calibration=self.rows)
        self.assertEqual(read_model(self.path("written")), read_model(self.path("read")))

    def test_dense_inputs_are_added_once_a_sum(self):
        on, off = self.both(tiny("llama").write(self.path("model")), "--batch", 2)
        self.assertEqual((on["shared_inputs"]["accumulations"], off["shared_inputs"]["accumulations"]), (2 * 8, 2 * 14))

    def test_telemetry(self):
        model, file = tiny("deepseek_v3").write(self.path("model")), self.path("events")
        self.quantize(model, self.path("out"), "--telemetry", file, calibration=self.rows)
        events = [json.loads(line) for line in file.read_text().splitlines()]
        events = [event for event in events if event["event"] == "hessian_input_collection_dedup"]
        for event in events:
            del event["event"], event["ts"]
        pairs = [("mlp.gate_proj", "mlp.up_proj")], [(f"mlp.experts.{e}.gate_proj", f"mlp.experts.{e}.up_proj") for e in range(EXPERTS)], \
            [("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj")]
        latent = [("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa")]
        expected, cumulative = [], 0
        for layer, total, block, members in ((0, 5, 1, latent), (0, 5, 4, pairs[0]), (1, 7, 1, latent), (1, 7, 4, pairs[1]),
                                             (1, 7, 6, pairs[2])):
            cumulative += len(members)
            expected.append({
                "lifecycle_stage": "forward_capture_complete", "layer_index": layer, "subset_index": block, "subset_total": total,
                "enabled": True, "expected_followers": len(members), "adopted_followers": len(members),
                "cumulative_adopted_followers": cumulative, "leader_count": len(members),
                "follower_to_leader": {follower: leader for leader, follower in members},
                "subset_module_count": 2 * len(members), "status": "verified"})
        self.assertEqual(events, expected)

    def probe_tree(self, model, children):
        file = self.path("tree.json")
        file.write_text(json.dumps(["model", "layers", "#", children]))
        result = e2e.gramian("probe", model, "--tree", file, "--json")
        self.assertEqual(result.code, 3, result)
        return result.json(), result.err

    def test_trees_that_are_not_true(self):
        model = tiny("deepseek_v3").write(self.path("model"))
        latent = ["q_a_proj:0:in=x", "kv_a_proj_with_mqa:0:in=x", "q_b_proj:1", "kv_b_proj:1", "o_proj:2"]
        mlp = ["gate_proj:0:in=x", "up_proj:0:in=x", "down_proj:1"]
        mixture = {"": mlp, "experts": {"#": mlp}, "shared_experts": mlp}
        wrong = [leaf + ":in=y" if "_b_" in leaf else leaf for leaf in latent]
        found, err = self.probe_tree(model, {"self_attn": wrong, "mlp": mixture})
        self.assertEqual([(m["leader"], m["module"]) for m in found["layers"][0]["mismatches"]],
                         [("self_attn.q_b_proj", "self_attn.kv_b_proj")])
        self.assertIn("self_attn.kv_b_proj does not read the input of self_attn.q_b_proj", err)
        self.assertTrue(found["has_errors"])
        untagged = {**mixture, "experts": {"#": ["gate_proj", "up_proj", "down_proj:1"]}}
        found, err = self.probe_tree(model, {"self_attn": latent, "mlp": untagged})
        self.assertEqual(found["layers"][0]["undeclared"], [])
        self.assertEqual(found["layers"][1]["undeclared"],
                         [[f"mlp.experts.{e}.gate_proj", f"mlp.experts.{e}.up_proj"] for e in range(EXPERTS)])
        self.assertIn("mlp.experts.0.gate_proj and mlp.experts.0.up_proj read one input", err)
        found, _ = self.probe_tree(model, {"self_attn": latent[:-1], "mlp": mixture})
        self.assertEqual(found["layers"][1]["unlisted_modules"], ["self_attn.o_proj"])

    def test_experts_without_rows_verify_nothing(self):
        model = TinyMixture(experts=EXPERTS, never=(1, 3)).write(self.path("model"))
        self.assertTrue(self.report("probe", model)["ok"])
        result = e2e.gramian("probe", model, "--experts", "routed", "--json")
        self.assertEqual(result.code, 3, result)
        found = result.json()
        self.assertEqual((found["has_errors"], found["fully_verified"], found["ok"]), (False, False, False))
        self.assertEqual(found["layers"][0]["uncalled"], [f"mlp.experts.{e}{part}" for part in (":in=x", ".down_proj")
                                                          for e in (1, 3)])

    def test_a_type_that_is_not_listed_shares_nothing(self):
        listed, unlisted = TinyModel(), TinyModel()
        del unlisted.config["model_type"]
        self.quantize(listed.write(self.path("listed")), self.path("listed-out"), calibration=self.rows)
        model = unlisted.write(self.path("unlisted"))
        report = self.quantize(model, self.path("out"), calibration=self.rows)
        self.assertEqual((report["shared_inputs"]["verified"], report["shared_inputs"]["planned"], report["shared_inputs"]["sums"]),
                         (False, 0, 14))
        self.assertEqual(read_model(self.path("out")), read_model(self.path("listed-out")))
        self.assertFalse(self.report("inspect", model)["sharing"]["verified"])
        # The probe looks all the same.
        probed = self.report("probe", model)
        self.assertEqual((probed["ok"], probed["shares_inputs"]), (True, False))

    def test_inspect_counts_and_plans(self):
        document = self.report("inspect", TinyMixture(experts=EXPERTS).write(self.path("model")), "--plan")
        linears = {m["name"]: m["out_features"] * m["in_features"] for m in document["modules"]}
        met = sum(size / (2 if ".experts." in name else 1) for name, size in linears.items()) + 300 * 128  # two of four experts
        self.assertEqual((document["parameters_per_token"], document["flops_per_token"]), (met, 2 * met))
        self.assertGreater(document["plan"]["peak_bytes"], 0)
        self.assertIn("mlp.experts.*.gate_proj", document["sharing"]["kinds"][0]["blocks"][2])
        text = self.ok("inspect", self.path("model"), "--plan").out
        for part in ("{mlp.experts.*.gate_proj, mlp.experts.*.up_proj}", f"{3 + 2 + EXPERTS} Hessians need not be taken", "statistics:"):
            self.assertIn(part, text)

    def test_what_the_probe_refuses(self):
        model = tiny("llama").write(self.path("model"))
        self.quantize(model, self.path("out"), method="rtn")
        self.refused("probe", self.path("out"), says=("is quantized already",))
        self.path("tree.json").write_text('["#", {"self_attn": ["q_proj:in="]}]')
        self.refused("probe", model, "--tree", self.path("tree.json"), says=("tree.json", "input tag is empty"))
        self.refused("probe", self.path("none"), says=("no such folder",))


if __name__ == "__main__":
    unittest.main()
