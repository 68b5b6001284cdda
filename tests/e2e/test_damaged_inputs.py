"""Damaged, hostile and awkward models: each is refused at once with a message that helps, or runs and says so.

Cases 5, 6, 7 and 15 of test_hard_cases.py in depth: damaged files, missing shards, non-finite weights, files of any kind.
"""
import json
import math
import struct
import time
import unittest

import gramian_e2e as e2e
from gramian_e2e import TinyModel, digests, random_rows, read_model, tensor, write_rows

Q0, K0, DOWN0 = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj", "model.layers.0.mlp.down_proj"


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

    def test_all_tensors_at_once_and_every_type(self):
        tiny = TinyModel()
        for name, dtype in ((Q0, "F32"), (K0, "F16"), (DOWN0, "F64")):
            item = tiny.tensors[name + ".weight"]
            values = item.values()
            values[130] = math.nan
            tiny.tensors[name + ".weight"] = tensor(dtype, item.shape, values)
        self.refused_job(tiny.write(self.path("model")), says=(Q0, K0, DOWN0, "[1, 2]", "[0, 130]"))

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


class FilesBesideTheWeights(e2e.GramianTestCase):
    """Case 15: sub-folders, links, what is left out."""

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
