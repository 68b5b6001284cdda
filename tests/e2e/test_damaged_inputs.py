"""Damaged, hostile and awkward models and rows: each is refused at once with a message that helps, or runs and says so.

Numbers of cases are those of docs on hard cases: 1 heads, 3 dead columns, 4 zero groups, 5 damaged files, 6 missing
shards, 7 non-finite weights, 8 few tokens, 9 shapes, 10 padding, 11 other sets of rows than asked for, 15 what is unknown.
"""
import json
import math
import struct
import time
import unittest

import gramian_e2e as e2e
from gramian_e2e import TinyModel, digests, random_rows, read_model, tensor, write_rows, write_safetensors

Q0, K0, DOWN0 = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj", "model.layers.0.mlp.down_proj"


class Heads(e2e.GramianTestCase):
    def test_tied(self):
        """Case 1a: the flag stays, no head appears, the embedding stays as it was."""
        tiny = TinyModel(tied=True)
        model = tiny.write(self.path("model"))
        rows = write_rows(self.path("rows.safetensors"), random_rows(8, 48))
        self.quantize(model, self.path("out"), calibration=rows)
        written = read_model(self.path("out"))
        self.assertIs(json.loads((self.path("out") / "config.json").read_text())["tie_word_embeddings"], True)
        self.assertNotIn("lm_head.weight", written)
        self.assertEqual(written["model.embed_tokens.weight"], tiny.tensors["model.embed_tokens.weight"])
        self.report("eval", self.path("out"), "--rows", rows)

    def test_head_in_no_file(self):
        """Case 1b: refused with the tensor's name and the switch; the switch makes an output that reads back alone."""
        tiny = TinyModel(tied=False)
        del tiny.tensors["lm_head.weight"]
        model = tiny.write(self.path("model"))
        rows = write_rows(self.path("rows.safetensors"), random_rows(8, 48))
        for arguments in (("eval", model, "--rows", rows), ("quantize", model, "-o", self.path("out"), "--method", "rtn"),
                          ("logits", model, "--input", rows, "--output", self.path("logits.safetensors"))):
            self.refused(*arguments, says=("lm_head.weight", "--treat-as-tied"), output=self.path("out"))
        for flag in (None, 0, "yes"):
            tiny.config["tie_word_embeddings"] = flag
            other = tiny.write(self.path(f"model-{flag}"))
            self.refused("eval", other, "--rows", rows, says=("tie_word_embeddings",))
        self.quantize(model, self.path("out"), "--treat-as-tied", method="rtn")
        self.assertNotIn("lm_head.weight", read_model(self.path("out")))
        self.report("eval", self.path("out"), "--rows", rows)

    def test_untied(self):
        tiny = TinyModel(tied=False)
        model = tiny.write(self.path("model"))
        self.quantize(model, self.path("out"), method="rtn")
        written = read_model(self.path("out"))
        for name in ("lm_head.weight", "model.embed_tokens.weight"):
            self.assertEqual(written[name], tiny.tensors[name])

    def test_switch_does_not_replace_a_head(self):
        """--treat-as-tied is for checkpoints without a head: one that is there is used."""
        model = TinyModel(tied=False).write(self.path("model"))
        rows = write_rows(self.path("rows.safetensors"), random_rows(2, 32))
        self.assertEqual(self.report("eval", model, "--rows", rows)["perplexity"],
                         self.report("eval", model, "--rows", rows, "--treat-as-tied")["perplexity"])


class DeadColumnsAndZeroGroups(e2e.GramianTestCase):
    def test_zero_column(self):
        """Case 3: an entry of a norm is 0. The weights of that column are rounded, not cleared, and it is counted."""
        tiny = TinyModel()
        tiny.change("model.layers.0.input_layernorm.weight", {17: 0.0})
        model = tiny.write(self.path("model"))
        rows = write_rows(self.path("rows.safetensors"), random_rows(8, 48))
        report = self.quantize(model, self.path("out"), "--group-size", -1, calibration=rows)
        dead = {m["name"]: m["dead_columns"] for m in report["modules"]}
        self.assertEqual({n for n, count in dead.items() if count}, {f"model.layers.0.self_attn.{p}_proj" for p in "qkv"})
        self.assertEqual(set(dead.values()), {0, 1})
        self.assertEqual(report["fallbacks"], 0)
        written = read_model(self.path("out"))
        out, width = tiny.linears()[Q0]
        codes = e2e.qqq_codes(written[Q0 + ".B"], out, width, False)
        scales = [16 * s for s in e2e.qqq_channel_scales(written, Q0)]
        weight = e2e.matrix(tiny.tensors[Q0 + ".weight"])
        self.assertTrue(any(codes[n][17] for n in range(out)))
        for n in range(out):
            nearest = max(-7, min(7, weight[n][17] / scales[n]))
            self.assertLessEqual(abs(codes[n][17] - nearest), 0.5001, n)
        self.assertTrue(math.isfinite(self.report("eval", self.path("out"), "--rows", rows)["perplexity"]))

    def zero_group_model(self):
        """Case 4: one group of 128 zeros in a projection, one row of zeros in another, zero rows in the vocabulary."""
        tiny = TinyModel()
        tiny.change(DOWN0 + ".weight", {5 * 256 + 128 + i: 0.0 for i in range(128)})
        tiny.change(K0 + ".weight", {9 * 128 + i: 0.0 for i in range(128)})
        tiny.change("model.embed_tokens.weight", {290 * 128 + i: 0.0 for i in range(10 * 128)})
        return tiny

    def test_zero_groups(self):
        tiny = self.zero_group_model()
        model = tiny.write(self.path("model"))
        rows = write_rows(self.path("rows.safetensors"), random_rows(8, 48) + [[295, 291, 3, 299] * 12])
        for method, group in (("rtn", 128), ("qqq", 128), ("qqq", -1), ("rtn", -1)):
            with self.subTest(method=method, group=group):
                out = self.path(f"{method}{group}")
                report = self.quantize(model, out, "--group-size", group, method=method, calibration=rows)
                written = read_model(out)
                for name, item in written.items():
                    if name.endswith((".s_channel", ".s_group")):
                        self.assertTrue(all(math.isfinite(v) and v != 0 for v in item.values()), name)
                self.assertEqual(set(e2e.qqq_weight(written, K0, 64, 128)[9]), {0})
                zero = {m["name"]: m["zero_groups"] for m in report["modules"]}
                self.assertEqual(zero[K0], 1)
                if (method, group) == ("rtn", 128):  # error compensation may move weights that were zero
                    self.assertEqual(set(e2e.qqq_weight(written, DOWN0, 128, 256)[5][128:]), {0})
                    self.assertEqual(zero[DOWN0], 1)
                self.assertTrue(math.isfinite(self.report("eval", out, "--rows", rows)["perplexity"]))

    def test_a_matrix_of_zeros(self):
        tiny = TinyModel()
        for name in (K0, DOWN0):
            item = tiny.tensors[name + ".weight"]
            tiny.tensors[name + ".weight"] = tensor("BF16", item.shape, [0.0] * math.prod(item.shape))
        model = tiny.write(self.path("model"))
        rows = write_rows(self.path("rows.safetensors"), random_rows(8, 48))
        self.quantize(model, self.path("out"), calibration=rows)
        written = read_model(self.path("out"))
        for name, size in ((K0, (64, 128)), (DOWN0, (128, 256))):
            self.assertEqual({v for row in e2e.qqq_weight(written, name, *size) for v in row}, {0})
        self.report("eval", self.path("out"), "--rows", rows)


class DamagedTensorFiles(e2e.GramianTestCase):
    """Case 5: refused within a second or so, naming the file and its declared and real size, or what it really is."""

    def check(self, content, *says, shards=1):
        model = TinyModel().write(self.path(f"model-{len(list(self.folder.iterdir()))}"), shards=shards)
        file = sorted(model.glob("*.safetensors"))[-1]
        whole = file.read_bytes()
        damaged = content(whole)
        file.write_bytes(damaged)
        rows = write_rows(self.path("rows.safetensors"), random_rows(2, 16))
        for arguments in (("quantize", model, "-o", self.path("out"), "--method", "rtn"), ("inspect", model),
                          ("eval", model, "--rows", rows)):
            start = time.monotonic()
            self.refused(*arguments, says=(file.name, *(s(whole, damaged) if callable(s) else s for s in says)),
                         output=self.path("out"))
            self.assertLess(time.monotonic() - start, 10)  # well under a second when the machine is idle

    def test_header_longer_than_the_file(self):
        self.check(lambda whole: struct.pack("<Q", len(whole) + 100) + whole[8:],
                   lambda whole, _: len(whole) + 100, lambda whole, _: f"{len(whole)} bytes")

    def test_absurd_header_lengths(self):
        for length in (2**62, 2**63, 2**64 - 1, 2**64 - 8):
            self.check(lambda whole, length=length: struct.pack("<Q", length) + whole[8:], length,
                       lambda whole, _: f"{len(whole)} bytes")

    def test_cut(self):
        for cut in (4, 1, 4096):
            self.check(lambda whole, cut=cut: whole[:-cut], "truncated", lambda whole, _: len(whole),
                       lambda _, damaged: len(damaged))

    def test_cut_shard(self):
        self.check(lambda whole: whole[:-4], "truncated", lambda whole, _: len(whole), shards=3)

    def test_extra_bytes(self):
        self.check(lambda whole: whole + bytes(16), "extra bytes", lambda whole, _: len(whole),
                   lambda _, damaged: len(damaged))

    def test_pointer_of_a_large_file_store(self):
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 988097824\n"
        self.check(lambda whole: pointer, "git-LFS", 988097824, len(pointer))

    def test_other_files(self):
        for content, found in ((b"<!DOCTYPE html>\n<html><body>Not found</body></html>", "HTML"), (b"", "empty"),
                               (b"  <HTML>", "HTML"), (b"PK\3\4" + bytes(100), "zip"), (b"GGUF" + bytes(200), "GGUF"),
                               (b"\x80\x02}q\x00." + b"x" * 50, "pickle"), (b'{"error": "no access"}', "JSON"),
                               (b"\0" * 8, "JSON header")):
            self.check(lambda whole, content=content: content, found)

    def test_headers_that_lie(self):
        def header(change):
            def damage(whole):
                length = struct.unpack("<Q", whole[:8])[0]
                entries = json.loads(whole[8:8 + length])
                change(entries)
                text = json.dumps(entries).encode()
                return struct.pack("<Q", len(text)) + text + whole[8 + length:]
            return damage

        def set_field(key, value):
            return header(lambda entries: entries[Q0 + ".weight"].__setitem__(key, value))
        for key, value in (("shape", [2**40, 2**40]), ("shape", [-128, -128]), ("shape", [128.0, 128]), ("dtype", "F99"),
                           ("shape", [128, 127]), ("data_offsets", [0, 10]), ("data_offsets", [2**63, 2**63 + 1]),
                           ("data_offsets", [10, 4])):
            self.check(set_field(key, value), Q0)
        self.check(lambda whole: whole[:8] + b"[" + whole[9:], "JSON")
        self.check(lambda whole: whole[:8] + b"{" * 900 + whole[908:], "JSON")


class MissingShards(e2e.GramianTestCase):
    """Case 6: one message that names all missing files."""

    def test_missing(self):
        for missing in ((2,), (1, 3), (1, 2, 3)):
            model = TinyModel().write(self.path(f"model{len(missing)}"), shards=3)
            names = [f"model-0000{i}-of-00003.safetensors" for i in missing]
            for name in names:
                (model / name).unlink()
            self.refused_job(model, says=names)

    def test_linked_files(self):
        """A download cache holds links into a store; one whose target is gone is a missing file."""
        store = TinyModel().write(self.path("store"), shards=3)
        model = self.path("model")
        model.mkdir()
        for file in store.iterdir():
            (model / file.name).symlink_to(file)
        self.quantize(model, self.path("out"), method="rtn")
        self.quantize(store, self.path("out-store"), method="rtn")
        for folder in (self.path("out"), self.path("out-store")):
            (folder / e2e.REPORT).unlink()
        self.assertEqual(digests(self.path("out")), digests(self.path("out-store")))
        self.assertFalse(any(path.is_symlink() for path in self.path("out").iterdir()))
        (store / "model-00002-of-00003.safetensors").unlink()
        self.refused_job(model, says=("model-00002-of-00003.safetensors", "1 of 3"))

    def test_no_index(self):
        model = TinyModel().write(self.path("model"), shards=2)
        (model / "model.safetensors.index.json").unlink()
        self.refused_job(model, says=("model.safetensors.index.json",))

    def test_index_and_shards_disagree(self):
        model = TinyModel().write(self.path("model"), shards=2)
        index = model / "model.safetensors.index.json"
        good = index.read_text()
        content = json.loads(good)
        content["weight_map"]["model.layers.9.mlp.up_proj.weight"] = "model-00001-of-00002.safetensors"
        index.write_text(json.dumps(content))
        self.refused_job(model, says=("model.layers.9.mlp.up_proj.weight",))
        for text in (good[:-20], "[]", '{"weight_map": 3}', '{"weight_map": {"a": "../../etc/passwd"}}', "{}",
                     '{"weight_map": {}}', '{"weight_map": {"a": 7}}', "\xff"):
            index.write_text(text, encoding="latin-1")
            self.refused_job(model, says=(index.name,))

    def test_sharded_source(self):
        """All shards are read; the index of the source does not stay behind as the index of the output."""
        tiny = TinyModel()
        model = tiny.write(self.path("model"), shards=3)
        self.quantize(model, self.path("out"), method="rtn")
        whole = tiny.write(self.path("whole"))
        self.quantize(whole, self.path("out-whole"), method="rtn")
        self.assertEqual(read_model(self.path("out")), read_model(self.path("out-whole")))
        index = self.path("out") / "model.safetensors.index.json"
        if index.exists():
            self.assertEqual(set(json.loads(index.read_text())["weight_map"]), set(read_model(self.path("out"))))


class NonFinite(e2e.GramianTestCase):
    """Case 7: refused with tensor, position and count."""

    def test_nan_in_a_projection(self):
        tiny = TinyModel()
        tiny.change(DOWN0 + ".weight", {3 * 256 + 17: math.nan})
        self.refused_job(tiny.write(self.path("model")), says=(DOWN0 + ".weight", "1 value", "[3, 17]"))

    def test_infinity_in_an_unused_embedding_row(self):
        tiny = TinyModel()
        tiny.change("model.embed_tokens.weight", {299 * 128 + 5: math.inf, 299 * 128 + 6: -math.inf})
        rows = write_rows(self.path("rows.safetensors"), random_rows(4, 16, vocab=290))
        self.refused_job(tiny.write(self.path("model")), "--method", "qqq", calibration=rows,
                         says=("model.embed_tokens.weight", "2 value", "[299, 5]"))

    def test_all_tensors_at_once_and_every_type(self):
        tiny = TinyModel()
        for name, dtype in ((Q0, "F32"), (K0, "F16"), (DOWN0, "F64")):
            item = tiny.tensors[name + ".weight"]
            values = item.values()
            values[130] = math.nan
            tiny.tensors[name + ".weight"] = tensor(dtype, item.shape, values)
        self.refused_job(tiny.write(self.path("model")), says=(Q0, K0, DOWN0, "[1, 2]", "[0, 130]"))

    def test_without_the_scan(self):
        """A weight that is used still cannot pass; one that is not leaves a note in the report."""
        tiny = TinyModel()
        tiny.change("model.embed_tokens.weight", {299 * 128: math.inf})
        rows = write_rows(self.path("rows.safetensors"), random_rows(8, 32, vocab=290))
        model = tiny.write(self.path("model"))
        self.assertIs(self.quantize(model, self.path("out"), "--skip-scan", calibration=rows)["source_scan"], False)
        tiny.change(DOWN0 + ".weight", {9: math.nan})
        for method in ("rtn", "qqq"):
            self.refused_job(tiny.write(self.path(method)), "--skip-scan", "--method", method, calibration=rows, code=1,
                             says=("NaN", DOWN0))

    def test_bias_beyond_half(self):
        """Biases of quantized modules are stored as F16: what that cannot hold is found before work, all of it at once."""
        tiny = TinyModel(family="qwen2")
        tiny.change("model.layers.1.self_attn.v_proj.bias", {5: 70000.0, 9: -1e30})
        tiny.change("model.layers.0.self_attn.q_proj.bias", {1: math.inf})
        model = tiny.write(self.path("model"))
        rows = write_rows(self.path("rows.safetensors"), random_rows(2, 16))
        self.refused_job(model, calibration=rows,
                         says=("layers.1.self_attn.v_proj.bias: 2 value(s) beyond 65504", "first at [5]",
                               "layers.0.self_attn.q_proj.bias: 1 value(s), the first at [1]"))

    def test_overflow_in_the_forward(self):
        """Activations that leave float16 are named by layer; a wider type takes them."""
        tiny = TinyModel()
        for name in ("gate_proj", "up_proj"):
            key = f"model.layers.1.mlp.{name}.weight"
            item = tiny.tensors[key]
            tiny.tensors[key] = tensor("BF16", item.shape, [300 * v for v in item.values()])
        model = tiny.write(self.path("model"))
        rows = write_rows(self.path("rows.safetensors"), random_rows(4, 16))
        self.refused_job(model, "--method", "qqq", "--dtype", "float16", calibration=rows, code=1,
                         says=("model.layers.1.mlp.down_proj", "infinite"))
        self.quantize(model, self.path("out"), "--dtype", "bfloat16", calibration=rows)

    def test_weights_near_the_end_of_the_range(self):
        tiny = TinyModel()
        item = tiny.tensors[K0 + ".weight"]
        tiny.tensors[K0 + ".weight"] = tensor("F32", item.shape, [math.copysign(3e38, v) for v in item.values()])
        result = e2e.gramian("quantize", tiny.write(self.path("model")), "-o", self.path("out"), "--method", "rtn")
        self.assertEqual(result.code, 1, result)
        self.assertRegex(result.err, r"(?m)^error: .*" + K0)
        self.assertFalse(self.path("out").exists())


class FewTokens(e2e.GramianTestCase):
    """Case 8: finishes, says so, and rounds no worse than plain rounding on the calibration tokens."""

    def errors(self, tiny, outputs, rows):
        """Error of the first layer's q projection on the rows' own inputs, per output folder."""
        embedding = e2e.matrix(tiny.tensors["model.embed_tokens.weight"])
        norm = tiny.tensors["model.layers.0.input_layernorm.weight"].values()
        inputs = e2e.rms_normed([embedding[id] for row in rows for id in row], norm)
        weight = e2e.matrix(tiny.tensors[Q0 + ".weight"])
        size = tiny.linears()[Q0]
        return [e2e.layer_error(inputs, weight, e2e.qqq_weight(read_model(out), Q0, *size)) for out in outputs]

    def test_sixteen_tokens_for_256_columns(self):
        tiny = TinyModel(hidden=256, layers=1, seed=2)
        model = tiny.write(self.path("model"))
        rows = random_rows(1, 16)
        calibration = write_rows(self.path("rows.safetensors"), rows)
        for group in (128, -1):
            qqq, rtn = self.path(f"qqq{group}"), self.path(f"rtn{group}")
            report = self.quantize(model, qqq, "--group-size", group, "--dtype", "float32", calibration=calibration)
            self.assertRegex(report["stderr"], r"warning: .*16.*256")
            self.quantize(model, rtn, "--group-size", group, method="rtn")
            for module in report["modules"]:
                self.assertEqual(module["samples"], 16)
                self.assertGreaterEqual(module["damp_attempts"], 1)
                self.assertTrue(module["damp"] > 0 or module["fallback"])
            ours, floor = self.errors(tiny, (qqq, rtn), rows)
            self.assertLess(ours, 1.05 * floor, group)

    def test_identical_rows(self):
        tiny = TinyModel(hidden=256, layers=1, seed=2)
        model = tiny.write(self.path("model"))
        rows = random_rows(1, 8) * 64
        report = self.quantize(model, self.path("qqq"), "--dtype", "float32",
                               calibration=write_rows(self.path("rows.safetensors"), rows))
        self.quantize(model, self.path("rtn"), method="rtn")
        self.assertEqual({m["samples"] for m in report["modules"]}, {512})
        ours, floor = self.errors(tiny, (self.path("qqq"), self.path("rtn")), rows[:1])
        self.assertLess(ours, 1.05 * floor)
        self.report("eval", self.path("qqq"), "--rows", self.path("rows.safetensors"))

    def test_one_token(self):
        model = TinyModel(layers=1).write(self.path("model"))
        rows = write_rows(self.path("rows.safetensors"), [[5]])
        report = self.quantize(model, self.path("out"), calibration=rows)
        self.assertEqual(report["tokens"], 1)
        self.refused("eval", self.path("out"), "--rows", rows, says=("two tokens",))


class UnfitShapes(e2e.GramianTestCase):
    """Case 9 for QQQ's tile and the group of 128."""

    TINY = dict(head_dim=48, heads=4, kv_heads=1, intermediate=192)

    def test_group_of_128(self):
        tiny = TinyModel(**self.TINY)
        model = tiny.write(self.path("model"))
        unfit = {n: s for n, s in tiny.linears().items() if s[1] % 128 or s[0] % 64}
        self.assertEqual(len(unfit), 8)  # k, v (48 outputs), o and down (192 inputs) of both layers
        says = [f"{name} [{out} x {width}]" for name, (out, width) in unfit.items()]
        result = self.refused_job(model, says=[*says, "8 linear", "--skip-unfit", "--group-size"])
        for name in tiny.linears().keys() - unfit.keys():
            self.assertNotIn(name, result.err)
        # Before the rows are looked at.
        self.refused_job(model, "--method", "qqq", calibration=self.path("none.safetensors"), says=says)

    def test_whole_rows(self):
        tiny = TinyModel(**self.TINY)
        unfit = [n for n in tiny.linears() if n.endswith(("k_proj", "v_proj"))]
        result = self.refused_job(tiny.write(self.path("model")), "--group-size", -1, says=[*unfit, "4 linear"])
        self.assertNotIn("down_proj", result.err)

    def test_skip_unfit(self):
        tiny = TinyModel(**self.TINY)
        model = tiny.write(self.path("model"))
        rows = write_rows(self.path("rows.safetensors"), random_rows(8, 48))
        for group in (128, -1):
            with self.subTest(group=group):
                unfit = [n for n, (out, width) in tiny.linears().items()
                         if out % 64 or (group == 128 and width % 128)]
                out = self.path(f"out{group}")
                report = self.quantize(model, out, "--skip-unfit", "--group-size", group, calibration=rows)
                self.assertEqual(report["skipped"], unfit)
                self.assertEqual([m["name"] for m in report["modules"]], [n for n in tiny.linears() if n not in unfit])
                written = read_model(out)
                for name in unfit:
                    self.assertEqual(written[name + ".weight"], tiny.tensors[name + ".weight"])
                dynamic = json.loads((out / "config.json").read_text())["quantization_config"]["dynamic"]
                self.assertEqual(list(dynamic), ["-:^" + name.replace(".", "\\.") + "$" for name in unfit])
                self.assertLess(report["bits_per_weight"], report["bits_per_weight_total"])
                scores = self.report("eval", out, "--rows", rows, "--reference", model)
                self.assertLess(scores["kl_mean"], 0.5)
                self.assertGreater(scores["kl_mean"], 0)

    def test_nothing_fits(self):
        model = TinyModel(hidden=96, head_dim=48, heads=2, intermediate=96).write(self.path("model"))
        self.refused_job(model, says=("--skip-unfit",))
        self.refused_job(model, "--skip-unfit", says=("no linear layer fits",))

    def test_group_sizes(self):
        model = TinyModel().write(self.path("model"))
        for group in (0, 64, 256, -2, "x"):
            self.refused_job(model, "--group-size", group, says=("--group-size",))


class Padding(e2e.GramianTestCase):
    """Case 10: 5 + 37 + 128 tokens, padded or not, in one batch or several."""

    def test_counts_and_results(self):
        model = TinyModel().write(self.path("model"))
        rows = [row[:length] for row, length in zip(random_rows(3, 128), (5, 37, 128))]
        lines = self.path("rows.jsonl")
        lines.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
        left = write_rows(self.path("left.safetensors"), rows, "left")
        right = write_rows(self.path("right.safetensors"), rows, "right")
        outputs = {}
        for name, calibration, batch in (("alone", lines, 1), ("together", lines, 3), ("left", left, 3), ("right", right, 3),
                                         ("left-1", left, 1)):
            report = self.quantize(model, self.path(name), "--batch", batch, calibration=calibration)
            self.assertEqual(report["tokens"], 170)
            self.assertEqual({m["samples"] for m in report["modules"]}, {170})
            self.assertEqual(report["linear_multiplications"], 14 * (3 if batch == 1 else 1))
            outputs[name] = read_model(self.path(name))
        self.assertEqual(outputs["left"], outputs["right"])
        self.assertEqual(outputs["left"], outputs["together"])
        self.assertEqual(outputs["left-1"], outputs["alone"])
        # Other batch sizes add in another order.
        first = {n: s for n, s in TinyModel().linears().items() if ".0.self_attn." in n and "o_proj" not in n}
        gap, codes = e2e.compare_quantized(outputs["alone"], outputs["together"], first)
        self.assertLessEqual(gap, 1e-5)
        self.assertLessEqual(codes, 0.001)


class OtherRowsThanAskedFor(e2e.GramianTestCase):
    """Case 11: 20 rows, 3 of them blank, one of a single token, one of 9,000; 128 of 2,048 tokens are asked for."""

    def test_counts(self):
        model = TinyModel().write(self.path("model"))
        rows = random_rows(15, 20) + [[], [3], [], random_rows(1, 9000)[0], []]
        lines = self.path("rows.jsonl")
        lines.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
        flags = ("--method", "qqq", "--sequence-length", 2048)
        self.refused_job(model, "--samples", 128, *flags, calibration=lines, says=("21", "128", "--allow-fewer"))
        report = self.quantize(model, self.path("out"), "--samples", 128, "--allow-fewer", *flags[2:], calibration=lines)
        # 15 + 1 + ceil(9000 / 2048) rows, all their tokens.
        self.assertEqual((report["rows_asked"], report["rows"], report["rows_blank"], report["rows_split"], report["tokens"]),
                         (128, 21, 3, 1, 15 * 20 + 1 + 9000))
        self.assertRegex(report["stderr"], "128 rows asked, 21 used, 9301 tokens")
        self.assertIn("2048", report["rows_policy"])
        # Over half of the request: enough, with a warning.
        report = self.quantize(model, self.path("half"), "--samples", 40, *flags[2:], calibration=lines)
        self.assertEqual((report["rows_asked"], report["rows"]), (40, 21))
        self.assertIn("warning", report["stderr"])

    def test_ready_rows(self):
        model = TinyModel().write(self.path("model"))
        rows = write_rows(self.path("rows.safetensors"), random_rows(20, 16))
        report = self.quantize(model, self.path("all"), calibration=rows)
        self.assertEqual((report["rows_asked"], report["rows"]), (None, 20))  # the default count asks for nothing
        self.refused_job(model, "--method", "qqq", "--samples", 41, calibration=rows, says=("20", "41", "--allow-fewer"))
        blank = write_rows(self.path("blank.safetensors"), random_rows(4, 16) + [[], []], "right")
        report = self.quantize(model, self.path("blank"), calibration=blank)
        self.assertEqual((report["rows"], report["rows_blank"], report["tokens"]), (4, 2, 64))


class UnknownTensorsAndFiles(e2e.GramianTestCase):
    """Case 15: what the quantizer does not know is copied byte for byte."""

    def test_copied(self):
        tiny = TinyModel()
        tiny.tensors["model.mtp.0.proj.weight"] = tensor("F32", [3, 5], range(15))
        tiny.tensors["counter"] = tensor("I64", [], [2**40])
        tiny.tensors["empty"] = tensor("U8", [0, 4], [])
        tiny.tensors["odd"] = tensor("U8", [7], range(7))
        model = tiny.write(self.path("model"))
        for name, content in (("modeling_x.py", b"print(1)\n"), ("tokenizer.json", b"{}\r\n"), ("notes.txt", b"\xff\0\xfe"),
                              ("empty.txt", b"")):
            (model / name).write_bytes(content)
        self.quantize(model, self.path("out"), method="rtn")
        written = read_model(self.path("out"))
        for name in ("model.mtp.0.proj.weight", "counter", "empty", "odd"):
            self.assertEqual(written[name], tiny.tensors[name], name)
        source, copied = digests(model), digests(self.path("out"))
        for name in source.keys() - {"config.json", "model.safetensors"}:
            self.assertEqual(copied[name], source[name], name)

    def test_folders_links_and_hidden_names(self):
        """Sub-folders are copied whole, links to files followed; what is left out is said once."""
        model = TinyModel().write(self.path("model"))
        for name in ("1_Pooling/config.json", "2_Dense/model.safetensors", "assets/deep/er/x.bin", ".git/config", "assets/.cache/x",
                     "old/config.json", f"old/{e2e.REPORT}", "pytorch_model.bin"):
            (model / name).parent.mkdir(parents=True, exist_ok=True)
            (model / name).write_bytes(name.encode() * 1000)
        (self.path("blob")).write_bytes(b"template")
        (model / "chat_template.jinja").unlink()
        (model / "chat_template.jinja").symlink_to(self.path("blob"))
        (model / "merges.txt").symlink_to(self.path("gone"))
        report = self.quantize(model, self.path("out"), method="rtn")
        copied = digests(self.path("out"))
        same = {n for n, digest in digests(model).items() if copied.get(n) == digest}
        self.assertEqual(same, {"1_Pooling/config.json", "2_Dense/model.safetensors", "assets/deep/er/x.bin",
                                "generation_config.json", "chat_template.jinja"})
        self.assertEqual(copied.keys() - same, {"config.json", "quantize_config.json", "model.safetensors", e2e.REPORT})
        self.assertFalse((self.path("out") / "chat_template.jinja").is_symlink())
        said = [line for line in report["stderr"].splitlines() if "not copied" in line]
        self.assertEqual(len(said), 1, report["stderr"])
        for name in (".git", "assets/.cache", "merges.txt", "old", "pytorch_model.bin"):
            self.assertIn(f'"{name}"', said[0])

    def test_large_files_take_little_memory(self):
        model = TinyModel().write(self.path("model"))
        plain = self.quantize(model, self.path("out"), method="rtn")["peak_rss_bytes"]
        with open(model / "large.dat", "wb") as file:
            file.truncate(256 << 20)
        large = self.quantize(model, self.path("large"), method="rtn")["peak_rss_bytes"]
        self.assertEqual((self.path("large") / "large.dat").stat().st_size, 256 << 20)
        self.assertLess(large, plain + (64 << 20))


if __name__ == "__main__":
    unittest.main()
