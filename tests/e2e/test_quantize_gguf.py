"""`gramian quantize --format gguf`: the file, how it comes about, and what it is worth."""
import json
import signal
import subprocess
import time
import unittest

import gramian_e2e as e2e
from gramian_e2e import BINARY, TINYSTORIES, TinyMixture, TinyModel, random_rows, write_rows
from test_gguf import Gguf


class QuantizeGguf(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = TinyModel(hidden=256, head_dim=64, heads=4, kv_heads=2, layers=4, intermediate=288).write(cls.top / "model")
        cls.rows = write_rows(cls.top / "rows.safetensors", random_rows(12, 40))

    def job(self, name, method, kind, *flags, model=None, calibration=True):
        out = self.path(name + ".gguf")
        rows = ("--calibration", self.rows) if calibration else ()
        report = self.report("quantize", model or self.model, "-o", out, "--method", method, "--format", "gguf", "--type",
                             kind, "--dtype", "float32", *rows, *flags)
        report.pop("stderr", None)
        self.assertEqual(report, json.loads(out.with_name(out.name + ".report.json").read_text()))
        return out, report

    def test_types_of_the_file(self):
        """Rows of 256 get the type, rows of 288 its fallback; what is no module gets llama.cpp's types."""
        out, report = self.job("types", "imatrix", "iq2_xxs")
        file = Gguf(out)
        kinds = {name: item[0] for name, item in file.tensors.items()}
        self.assertEqual({kinds[f"blk.0.{name}.weight"] for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate",
                                                                    "ffn_up")}, {"IQ2_XXS"})
        self.assertEqual((kinds["blk.0.ffn_down.weight"], kinds["token_embd.weight"]), ("IQ4_NL", "Q5_K"))
        self.assertEqual({kinds[name] for name in kinds if "norm" in name}, {"F32"})
        self.assertEqual([one["name"] for one in report["type_fallbacks"]],
                         [f"model.layers.{i}.mlp.down_proj" for i in range(4)])
        share = report["type_shares"]["IQ2_XXS"]
        self.assertAlmostEqual(report["bits_per_weight"], 2.0625 * share + 4.5 * (1 - share), delta=1e-6)
        self.assertEqual(report["other_types"], {"token_embd.weight": "Q5_K"})
        expected = {"general.file_type": 19, "general.quantization_version": 2, "gramian.method": "imatrix",
                    "gramian.encoder": "search", "quantize.imatrix.dataset": "rows.safetensors",
                    "quantize.imatrix.entries_count": 28, "quantize.imatrix.chunks_count": 12}
        self.assertEqual({key: file.metadata.get(key) for key in expected}, expected)
        self.ok("verify", out)
        self.assertEqual(self.report("inspect", out)["model_type"], "llama")

    def test_mixture_of_types(self):
        """llama.cpp's Q4_K_M: better types for values and down projections of some layers; a rule's own type goes before it."""
        out, report = self.job("mixture", "rtn", "Q4_K_M", calibration=False)
        file = Gguf(out)
        kinds = {name: item[0] for name, item in file.tensors.items()}
        self.assertEqual([kinds[f"blk.{i}.attn_v.weight"] for i in range(4)], ["Q4_K", "Q4_K", "Q6_K", "Q6_K"])
        # Rows of 288 are divided by neither.
        self.assertEqual([kinds[f"blk.{i}.ffn_down.weight"] for i in range(4)], ["Q5_0", "Q5_0", "Q8_0", "Q8_0"])
        self.assertEqual({kinds[f"blk.{i}.{name}.weight"] for i in range(4) for name in ("attn_q", "attn_k", "attn_output", "ffn_up")}, {"Q4_K"})
        self.assertEqual((kinds["token_embd.weight"], file.metadata["general.file_type"]), ("Q6_K", 15))
        self.assertEqual(report["type_mix"], "q4_k_m")
        self.ok("verify", out)
        recipe = self.path("rule.yaml")
        recipe.write_text("method: rtn\ndynamic:\n  '.*layers\\.3\\..*v_proj': {type: q8_0}\n")
        ruled, _ = self.job("ruled", "rtn", "q4_k_m", "--recipe", recipe, calibration=False)
        kinds = {name: item[0] for name, item in Gguf(ruled).tensors.items()}
        self.assertEqual([kinds[f"blk.{i}.attn_v.weight"] for i in range(4)], ["Q4_K", "Q4_K", "Q6_K", "Q8_0"])

    def test_rows_that_blocks_do_not_divide(self):
        """2,688 columns, as in real models: another type, said and counted with the bits that were asked for and those that came of it; refused on request."""
        model = TinyModel(hidden=256, head_dim=64, heads=4, kv_heads=2, layers=2, intermediate=2688).write(self.path("wide"))
        out, report = self.job("wide", "rtn", "q2_k", model=model, calibration=False)
        names = [f"model.layers.{i}.mlp.down_proj" for i in range(2)]
        self.assertEqual(report["type_fallbacks"], [{"name": name, "type": "Q4_0", "in_features": 2688} for name in names])
        self.assertEqual(report["nominal_bits_per_weight"], 2.625)
        share = report["type_shares"]["Q2_K"]
        self.assertAlmostEqual(report["bits_per_weight"], 2.625 * share + 4.5 * (1 - share), delta=1e-6)
        never = self.path("never.gguf")
        self.refused("quantize", model, "-o", never, "--method", "rtn", "--format", "gguf", "--type", "q2_k", "--no-fallback", output=never,
                     says=(*names, "256 x 2688", "Q2_K's blocks of 256 do not divide its rows, Q4_0's do", "leave --no-fallback out"))
        # A type that divides them is not refused, neither is one that a rule gives.
        self.job("fits", "rtn", "q4_0", "--no-fallback", model=model, calibration=False)
        recipe = self.path("down.yaml")
        recipe.write_text("method: rtn\ndynamic:\n  '.*down_proj': {type: q8_0}\n")
        self.job("ruled", "rtn", "q2_k", "--no-fallback", "--recipe", recipe, model=model, calibration=False)
        recipe.write_text("method: rtn\ndynamic:\n  '.*down_proj': {type: q6_k}\n")
        self.refused("quantize", model, "-o", never, "--method", "rtn", "--format", "gguf", "--type", "q4_0", "--no-fallback", "--recipe", recipe,
                     output=never, says=(names[0], "Q6_K's blocks of 256"))

    def test_measured_and_read_importance_give_the_same_blocks(self):
        """Also with other threads; and blocks are what the decoded weights say, rotary pairs in their places."""
        one, _ = self.job("measured", "imatrix", "iq2_xxs", "--threads", 1)
        two, _ = self.job("threads", "imatrix", "iq2_xxs", "--threads", 2)
        self.assertEqual(one.read_bytes(), two.read_bytes())
        importance = self.path("importance.gguf")
        self.report("imatrix", self.model, "--calibration", self.rows, "-o", importance, "--dtype", "float32")
        read, report = self.job("read", "imatrix", "iq2_xxs", "--imatrix", importance, calibration=False)
        self.assertEqual(Gguf(read).tensors, Gguf(one).tensors)
        self.assertEqual(report["imatrix"], str(importance))
        self.assertEqual(Gguf(read).metadata["quantize.imatrix.file"], "importance.gguf")
        # The encoder and the order of statistics are options that change bytes.
        seen = {Gguf(one).tensors["blk.2.attn_output.weight"][2]}
        for flags in (("--encoder", "anchored"), ("--sequential", "subset")):
            seen.add(Gguf(self.job(flags[1], "imatrix", "iq2_xxs", *flags)[0]).tensors["blk.2.attn_output.weight"][2])
        seen.add(Gguf(self.job("plain", "rtn", "iq2_xxs", calibration=False)[0]).tensors["blk.2.attn_output.weight"][2])
        self.assertEqual(len(seen), 4)

    def test_rows_of_rotary_heads(self):
        """Q8_0 blocks of q lie as llama.cpp wants its rows, and come back in the checkpoint's order."""
        out, _ = self.job("rotary", "rtn", "q8_0", calibration=False)
        back = self.path("back")
        self.report("convert", out, "-o", back, "--to", "bf16")
        found, source = e2e.read_model(back), e2e.read_model(self.model)
        name = "model.layers.1.self_attn.q_proj.weight"
        largest = max(map(abs, source[name].values()))
        self.assertLess(max(abs(a - b) for a, b in zip(found[name].values(), source[name].values())), largest / 100)
        plain = self.path("plain.gguf")
        self.report("convert", self.model, "-o", plain, "--type", "F32")
        rows = Gguf(plain).tensors["blk.1.attn_q.weight"][2]
        encoded = Gguf(out).tensors["blk.1.attn_q.weight"][2]
        # The scale of a block of 32 is its largest magnitude by 127.
        first = e2e.struct.unpack("<32f", rows[1024:1024 + 128])
        scale = e2e.struct.unpack("<e", encoded[272:274])[0]
        self.assertAlmostEqual(scale, max(map(abs, first)) / 127, delta=scale / 500)

    def test_interrupted(self):
        """A killed job goes on and ends with the same bytes."""
        for method in ("imatrix", "gptq"):
            flags = ("--batch", 2, "--sequential", "subset")
            expected, _ = self.job(method + "-whole", method, "iq2_xxs", *flags)
            out = self.path(method + "-killed.gguf")
            command = ["quantize", self.model, "-o", out, "--method", method, "--format", "gguf", "--type", "iq2_xxs", "--dtype",
                       "float32", "--calibration", self.rows, *flags]
            process = subprocess.Popen([BINARY, *map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            record = out.with_name(out.name + ".journal") / "layer-00001.json"
            while not record.exists() and process.poll() is None:
                time.sleep(0.002)
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=60)
            self.assertFalse(out.exists())
            report = self.report(*command)
            self.assertGreaterEqual(report["resumed_at_layer"], 2)
            self.assertEqual(out.read_bytes(), expected.read_bytes())
            self.assertFalse(record.parent.exists())
            self.refused(*command, says=("the output exists", "--force"))

    def test_experts(self):
        """Stacks of one type; an expert without tokens is encoded without importance, and named."""
        mixture = TinyMixture(hidden=256, experts=4, expert_intermediate=256, never=(2,)).write(self.path("mixture"))
        out, report = self.job("experts", "imatrix", "iq2_xxs", model=mixture)
        kind, sizes, data = Gguf(out).tensors["blk.0.ffn_up_exps.weight"]
        self.assertEqual((kind, sizes), ("IQ2_XXS", [256, 256, 4]))
        starved = [module for module in report["modules"] if module["fallback"]]
        self.assertEqual(len(starved), 3)
        self.assertTrue(all(".experts.2." in module["name"] for module in starved))
        expert = len(data) // 4
        self.assertGreater(len(set(data[2 * expert:3 * expert])), 50)
        self.ok("verify", out)
        recipe = self.path("rules.yaml")
        recipe.write_text("dynamic:\n  '.*experts.1.up_proj': {type: q4_k}\n")
        self.refused("quantize", mixture, "-o", self.path("x.gguf"), "--method", "rtn", "--format", "gguf", "--type", "q8_0",
                     "--recipe", recipe, says=("blk.0.ffn_up_exps.weight", "several types"))

    def test_sums_of_nothing(self):
        """Half of a file's values zeroed: what cannot be is refused, what hardly can be is named."""
        importance, out = self.path("importance.gguf"), self.path("zeroed.gguf")
        self.report("imatrix", self.model, "--calibration", self.rows, "-o", importance)
        job = ("quantize", self.model, "-o", out, "--method", "imatrix", "--type", "q4_k", "--imatrix", importance)
        content = bytearray(importance.read_bytes())
        tensors = Gguf(importance).tensors
        sums = content.index(tensors["blk.2.ffn_down.weight.in_sum2"][2])
        content[sums:sums + 4 * 200] = bytes(800)
        importance.write_bytes(content)
        self.assertIn('"model.layers.2.mlp.down_proj (200 of 288)"', self.ok(*job).err)
        counts = sums + len(tensors["blk.2.ffn_down.weight.in_sum2"][2])
        self.assertEqual(content[counts:counts + 4], tensors["blk.2.ffn_down.weight.counts"][2])
        content[counts:counts + 4] = bytes(4)
        importance.write_bytes(content)
        self.refused(*job, "--force", says=(importance, 'sum 200 of "blk.2.ffn_down.weight"', "(at byte", "count of its tokens is 0"), output=out)

    def test_stacked_experts_give_the_same_file(self):
        """Also by a plain conversion, and with importance that was measured of them."""
        shape = dict(hidden=256, experts=4, expert_intermediate=256)
        one, stack = (TinyMixture(stacked=stacked, **shape).write(self.path(f"mixture-{stacked}")) for stacked in (False, True))
        importance = self.path("importance.gguf")
        self.report("imatrix", stack, "--calibration", self.rows, "-o", importance)
        for name, method, flags, calibration in (("rtn", "rtn", (), False), ("gptq", "gptq", (), True),
                                                 ("imatrix", "imatrix", ("--imatrix", importance), False)):
            files = [Gguf(self.job(f"{name}-{model.name}", method, "q4_0", *flags, model=model, calibration=calibration)[0])
                     for model in (one, stack)]
            self.assertEqual(files[0].tensors, files[1].tensors, name)
        self.ok("verify", self.path(f"gptq-{stack.name}.gguf"))
        plain = []
        for model in (one, stack):
            plain.append(self.path(f"plain-{model.name}.gguf"))
            self.report("convert", model, "-o", plain[-1])
        self.assertEqual(Gguf(plain[0]).tensors, Gguf(plain[1]).tensors)

    def test_rules(self):
        recipe = self.path("rules.yaml")
        recipe.write_text("method: gptq\nformat: gguf\ntype: q4_0\nimportance_weighted: true\ndynamic:\n"
                          "  '-:.*\\.0\\.self_attn\\.v_proj': {}\n  '.*o_proj': {type: q6_k}\n")
        out = self.path("rules.gguf")
        report = self.report("quantize", self.model, "-o", out, "--recipe", recipe, "--calibration", self.rows)
        kinds = {name: item[0] for name, item in Gguf(out).tensors.items()}
        self.assertEqual([kinds[f"blk.0.{name}.weight"] for name in ("attn_q", "attn_v", "attn_output", "ffn_down")],
                         ["Q4_0", "BF16", "Q6_K", "Q4_0"])
        self.assertTrue(report["importance_weighted"])
        self.ok("verify", out)
        self.assertGreater(self.report("eval", out, "--rows", self.rows)["perplexity"], 1)

    def test_refusals(self):
        base = ("quantize", self.model, "-o", self.path("x.gguf"), "--format", "gguf", "--method")
        self.refused(*base, "rtn", says=("--type", "is needed"))
        self.refused(*base, "rtn", "--type", "q9_k", says=("unknown type 'q9_k'", "iq2_xxs"))
        self.refused(*base, "rtn", "--type", "q4_k", "--encoder", "anchored", says=("--encoder", "IQ2_XXS"))
        self.refused(*base, "imatrix", "--type", "q4_k", says=("calibration",))
        self.refused(*base, "rtn", "--type", "q4_k", "--lm-head-bits", 8, "--untie", says=("--lm-head-bits",))
        self.refused("quantize", self.model, "-o", self.path("x"), "--format", "gguf", "--method", "rtn", "--type", "q4_k",
                     says=(".gguf",))
        self.refused("quantize", self.model, "-o", self.path("x"), "--method", "rtn", "--type", "q4_k", says=("--type", "--format gguf"))
        self.refused("quantize", e2e.ROOT / "tests" / "golden" / "arch" / "olmo2", "-o", self.path("x.gguf"), "--method", "rtn",
                     "--format", "gguf", "--type", "q4_0", says=('"olmo2" cannot be written as GGUF',))
        other = self.path("importance.gguf")
        self.report("imatrix", TINYSTORIES, "--calibration", self.rows, "-o", other, "--samples", 1)
        self.refused(*base, "imatrix", "--type", "iq2_xxs", "--imatrix", other, says=("no tensors of this model", "blk.4."))
        self.refused(*base, "gptq", "--type", "q4_0", "--imatrix", other, says=("--imatrix", "takes no importance"))
        content = other.read_bytes()
        damaged = self.path("damaged.gguf")
        damaged.write_bytes(content + b"more")
        self.refused(*base, "imatrix", "--type", "iq2_xxs", "--imatrix", damaged, says=(damaged, f"ends at byte {len(content)}"))
        self.refused(*base, "qqq", "--type", "q4_0", "--calibration", self.rows, says=("qqq", "8-bit activations"))
        plain = ("quantize", self.model, "-o", self.path("x"), "--method", "rtn")
        self.refused(*plain, "--encoder", "anchored", says=("--encoder: is for GGUF",))
        self.refused("quantize", self.model, "-o", self.path("x.gguf"), "--method", "rtn", says=("x.gguf", "writes a folder", "--format gguf"))
        rules = self.path("rules.json")
        for rule, format, says in (({"type": "q6_k"}, "gptq", ("down_proj", "is for GGUF")),
                                   ({"bits": 8}, "gguf", ("down_proj", "which a GGUF type has of its own"))):
            rules.write_text(json.dumps({"method": "rtn", "format": format, "dynamic": {".*down_proj": rule}}))
            kind = ("--type", "q4_0") if format == "gguf" else ()
            name = "x.gguf" if format == "gguf" else "x"
            self.refused("quantize", self.model, "-o", self.path(name), "--recipe", rules, *kind, says=says)

    def test_a_quantized_file_as_source_and_as_reference(self):
        """Quantizing blocks again is said; a page and kept states take a file like a folder."""
        first, rows = self.job("first", "rtn", "q4_0", calibration=False)[0], ("--rows", self.rows)
        again = self.ok("quantize", first, "-o", self.path("again.gguf"), "--method", "rtn", "--format", "gguf", "--type", "q2_k")
        self.assertIn("the source is quantized itself", again.err)
        states = self.path("states")
        for _ in range(2):
            found = self.report("eval", self.path("again.gguf"), *rows, "--reference", first, "--reference-states", states)
            self.assertGreater(found["kl_mean"], 0)
        self.refused("eval", self.path("again.gguf"), *rows, "--reference", self.model, "--reference-states", states,
                     says=("another model",))


class Quality(e2e.GramianTestCase):
    def test_compensation_is_nearer_than_importance_is_nearer_than_none(self):
        """The bundled model at IQ2_XXS."""
        heldout = self.path("heldout.txt")
        heldout.write_text((TINYSTORIES / "heldout.txt").read_text()[:16000])
        protocol = ("--protocol", "wikitext-kl", "--text", heldout, "--reference", TINYSTORIES)
        rows = ("--calibration", TINYSTORIES / "calibration.txt", "--samples", 24, "--sequence-length", 256)
        loss = {}
        for method in ("gptq", "imatrix", "rtn"):
            out = self.path(method + ".gguf")
            self.report("quantize", TINYSTORIES, "-o", out, "--method", method, "--format", "gguf", "--type", "iq2_xxs",
                        *(() if method == "rtn" else rows))
            report = self.report("eval", out, *protocol)
            # The second half of each window.
            self.assertEqual((report["protocol"], report["tokens"]), ("wikitext-kl", 255 * report["rows"]))
            loss[method] = report["kl_mean"]
        self.assertLess(loss["gptq"], loss["imatrix"])
        self.assertLess(loss["imatrix"], loss["rtn"])
        pair = self.report("compare", self.path("gptq.gguf"), self.path("imatrix.gguf"), *protocol)
        self.assertEqual((pair["kl"]["a"], pair["kl"]["b"]), (loss["gptq"], loss["imatrix"]))
        self.refused("eval", TINYSTORIES, *protocol, "--samples", 3, says=("--samples", "--protocol"))
        page = self.path("page.html")
        self.ok("report", self.path("gptq.gguf"), "--reference", TINYSTORIES, "--prompt", "Once upon a time", "-o", page)
        self.assertTrue('id="story"' in page.read_text() and "Once upon a time" in page.read_text())
        prompt = ("-p", "Once upon a time", "-n", 8, "--temperature", 0)
        self.assertTrue(self.report("generate", self.path("gptq.gguf"), *prompt)["text"])


if __name__ == "__main__":
    unittest.main()
