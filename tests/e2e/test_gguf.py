"""`gramian convert` and `gramian imatrix`: what the files hold, read here on their own."""
import hashlib
import json
import os
import pathlib
import struct
import unittest

import gramian_e2e as e2e
from gramian_e2e import (TINYSTORIES, TinyMixture, TinyModel, random_rows, read_model, read_safetensors,
                         write_rows)

GOLDEN = pathlib.Path(os.environ.get("GRAMIAN_GOLDEN", e2e.ROOT / "tests" / "golden")) / "ggml" / "tiny"
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TYPES = {0: "F32", 1: "F16", 30: "BF16", 2: "Q4_0", 6: "Q5_0", 8: "Q8_0", 10: "Q2_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 16: "IQ2_XXS",
         20: "IQ4_NL"}
# Values and bytes of a block.
BLOCKS = {"F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q4_0": (32, 18), "Q5_0": (32, 22), "Q8_0": (32, 34), "Q2_K": (256, 84), "Q4_K": (256, 144),
          "Q5_K": (256, 176), "Q6_K": (256, 210), "IQ2_XXS": (256, 66), "IQ4_NL": (32, 18)}


class Gguf:
    """metadata by key; tensors by name: (type, sizes with the fastest first, bytes)."""

    def __init__(self, path):
        self.content, self.at = pathlib.Path(path).read_bytes(), 0
        magic, version, tensors, keys = self.take("<4sIQQ")
        assert (magic, version) == (b"GGUF", 3)
        self.metadata, self.raw_keys = {}, []
        for _ in range(keys):
            begin = self.at
            key = self.string()
            self.metadata[key] = self.value(self.take("<I")[0])
            self.raw_keys.append(self.content[begin:self.at])
        infos = []
        for _ in range(tensors):
            name = self.string()
            sizes = self.take(f"<{self.take('<I')[0]}Q")
            infos.append((name, sizes, *self.take("<IQ")))
        data, self.tensors = -(-self.at // 32) * 32, {}
        for name, sizes, kind, offset in infos:
            values, count = BLOCKS[TYPES[kind]]
            for size in sizes:
                count *= size
            count //= values
            assert offset % 32 == 0
            self.tensors[name] = (TYPES[kind], list(sizes), self.content[data + offset:data + offset + count])

    def take(self, form):
        values = struct.unpack_from(form, self.content, self.at)
        self.at += struct.calcsize(form)
        return values

    def string(self):
        size = self.take("<Q")[0]
        return self.take(f"<{size}s")[0].decode()

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            element, count = self.take("<IQ")
            return [self.value(element) for _ in range(count)]
        return self.take("<" + SCALARS[kind])[0]


def halves_side_by_side(rows, heads):
    """Rows of a matrix as llama.cpp orders them for rotary pairs."""
    size = len(rows) // heads
    return [rows[h * size + part * (size // 2) + j] for h in range(heads) for j in range(size // 2) for part in range(2)]


class Convert(e2e.GramianTestCase):
    def test_bundled_model(self):
        report = self.report("convert", TINYSTORIES, "-o", self.path("model.gguf"), "--type", "BF16")
        file, source = Gguf(self.path("model.gguf")), read_model(TINYSTORIES)
        config = json.loads((TINYSTORIES / "config.json").read_text())
        self.assertEqual(report["tensors"], len(file.tensors))
        self.assertTrue(report["tokenizer"])
        expected = {"general.architecture": "llama", "general.file_type": 32, "llama.block_count": 6,
                    "llama.embedding_length": 256, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2,
                    "llama.context_length": 1024, "llama.rope.dimension_count": 64, "llama.rope.freq_base": 10000.0,
                    "llama.vocab_size": 2048, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "llama-bpe",
                    "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1}
        for key, value in expected.items():
            self.assertEqual(file.metadata.get(key), value, key)
        # Tied: no head of its own.
        self.assertNotIn("output.weight", file.tensors)
        self.assertEqual(len(file.tensors), 2 + 9 * 6)
        self.assertEqual(file.tensors["token_embd.weight"],
                         ("BF16", [256, 2048], source["model.embed_tokens.weight"].data))
        self.assertEqual(file.tensors["blk.3.ffn_down.weight"],
                         ("BF16", [768, 256], source["model.layers.3.mlp.down_proj.weight"].data))
        self.assertEqual(file.tensors["blk.0.attn_norm.weight"][:2], ("F32", [256]))
        for name, heads in (("q", config["num_attention_heads"]), ("k", config["num_key_value_heads"])):
            data = source[f"model.layers.1.self_attn.{name}_proj.weight"].data
            rows = [data[at:at + 512] for at in range(0, len(data), 512)]
            self.assertEqual(file.tensors[f"blk.1.attn_{name}.weight"][2], b"".join(halves_side_by_side(rows, heads)))
        tokenizer = json.loads((TINYSTORIES / "tokenizer.json").read_text())
        tokens = file.metadata["tokenizer.ggml.tokens"]
        self.assertEqual(len(tokens), 2048)
        for text, index in tokenizer["model"]["vocab"].items():
            self.assertEqual(tokens[index], text)
        kinds = file.metadata["tokenizer.ggml.token_type"]
        self.assertEqual((kinds[0], kinds[2000]), (3, 1))
        self.assertEqual(len(file.metadata["tokenizer.ggml.merges"]), len(tokenizer["model"]["merges"]))

    def test_qwen2_keeps_its_order_and_its_biases(self):
        TinyModel(family="qwen2").write(self.path("qwen2"))
        self.report("convert", self.path("qwen2"), "-o", self.path("model.gguf"), "--type", "F32")
        file, source = Gguf(self.path("model.gguf")), read_model(self.path("qwen2"))
        self.assertEqual(file.metadata["general.architecture"], "qwen2")
        self.assertNotIn("qwen2.rope.dimension_count", file.metadata)
        for name in ("q", "k", "v"):
            for part in ("weight", "bias"):
                stored = source[f"model.layers.0.self_attn.{name}_proj.{part}"]
                kind, sizes, data = file.tensors[f"blk.0.attn_{name}.{part}"]
                self.assertEqual((kind, sizes), ("F32", stored.shape[::-1]))
                self.assertEqual(list(struct.unpack(f"<{len(data) // 4}f", data)), stored.values())

    def test_refusals(self):
        TinyModel(family="gemma2").write(self.path("gemma2"))
        output = self.path("model.gguf")
        self.refused("convert", e2e.ROOT / "tests" / "golden" / "arch" / "olmo2", "-o", output, output=output,
                     says=['models of type "olmo2" cannot be written as GGUF'])
        missing = self.path("none") / "model.gguf"
        self.refused("convert", TINYSTORIES, "-o", missing, output=missing, says=["no folder"])
        inside = self.path("gemma2") / "model.gguf"
        self.refused("convert", self.path("gemma2"), "-o", inside, output=inside, says=["lies among what the command reads"])
        file = self.path("source.gguf")
        self.report("convert", TINYSTORIES, "-o", file)
        self.refused("imatrix", file, "--calibration", TINYSTORIES / "heldout.txt", "-o", file, says=["lies among what the command reads"])
        self.refused("quantize", file, "-o", file, "--force", "--method", "rtn", "--format", "gguf", "--type", "q8_0",
                     says=["lies among what the command reads"])

    @unittest.skipUnless((GOLDEN / "model.safetensors").exists(), "the whole golden set is needed")
    def test_tensors_are_those_of_llama_cpp(self):
        self.report("convert", GOLDEN, "-o", self.path("model.gguf"), "--type", "F16")
        found = Gguf(self.path("model.gguf")).tensors
        expected = json.loads((GOLDEN / "expected.json").read_text())["f16_gguf"]["tensors"]
        self.assertEqual(sorted(found), sorted(expected))
        for name, (kind, sizes, data) in found.items():
            self.assertEqual({"type": kind, "dims": sizes, "sha256": hashlib.sha256(data).hexdigest()}, expected[name], name)


class AsModel(e2e.GramianTestCase):
    """A GGUF file stands wherever a model does."""

    def test_every_family_comes_back(self):
        """Folder -> GGUF -> folder: the same tensors, and logits that are the same bits."""
        rows = write_rows(self.path("rows.safetensors"), random_rows(2, 12))
        models = {family: TinyModel(family=family) for family in ("llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2",
                                                                  "gemma3_text")}
        models["qwen3_moe"] = TinyMixture(experts=4)
        models["gemma3_text"].config.update(sliding_window_pattern=6)
        for family, model in models.items():
            with self.subTest(family):
                source = model.write(self.path(family))
                config = json.loads((source / "config.json").read_text())
                self.assertEqual(config["model_type"], family)
                file, back = self.path(family + ".gguf"), self.path(family + "-back")
                self.report("convert", source, "-o", file, "--type", "BF16")
                self.report("convert", file, "-o", back, "--to", "bf16")
                self.assertEqual(read_model(back), read_model(source))
                one = self.path(family + "-1.safetensors"), self.path(family + "-2.safetensors")
                self.report("logits", source, "--input", rows, "--output", one[0], "--dtype", "float32")
                self.report("logits", file, "--input", rows, "--output", one[1], "--dtype", "float32")
                self.assertEqual(*(read_safetensors(path) for path in one))

    def test_small_checkpoints_of_other_families_come_back(self):
        """What their publishers' code made, in float32: routers, shared experts, fused matrices, longrope's factors."""
        for family in ("phi3", "mixtral", "qwen2_moe"):
            with self.subTest(family):
                source = e2e.ROOT / "tests" / "golden" / "arch" / family
                file, back = self.path(family + ".gguf"), self.path(family + "-back")
                self.report("convert", source, "-o", file, "--type", "F32")
                self.report("convert", file, "-o", back, "--to", "bf16")
                self.assertEqual(json.loads((back / "config.json").read_text())["model_type"], family)
                stored, found = read_model(source), read_model(back)
                self.assertEqual({name: item.shape for name, item in found.items()},
                                 {name: item.shape for name, item in stored.items()})
                for name, item in stored.items():
                    for a, b in zip(item.values(), found[name].values()):
                        self.assertLessEqual(abs(a - b), abs(a) / 256, name)
                rows = write_rows(self.path("rows.safetensors"), random_rows(2, 12, vocab=20))
                one = self.path(family + "-1.safetensors"), self.path(family + "-2.safetensors")
                self.report("logits", source, "--input", rows, "--output", one[0], "--dtype", "float32")
                self.report("logits", file, "--input", rows, "--output", one[1], "--dtype", "float32")
                a, b = (read_safetensors(path)["logits"].values() for path in one)
                # GGUF holds longrope's factors in float32.
                self.assertLess(max(abs(x - y) for x, y in zip(a, b)), 1e-5 if family == "phi3" else 1e-30)

    def test_bundled_model(self):
        """Tokenizer, generation, evaluation and quantization from the file alone."""
        file = self.path("model.gguf")
        self.report("convert", TINYSTORIES, "-o", file, "--type", "BF16")
        self.assertEqual(self.report("inspect", file)["model_type"], "llama")
        text = TINYSTORIES / "calibration.txt"
        flags = ("--text", text, "--samples", 2, "--sequence-length", 64)
        self.assertEqual(self.report("eval", file, *flags)["perplexity"], self.report("eval", TINYSTORIES, *flags)["perplexity"])
        prompt = ("-p", "Once upon a time", "-n", 8, "--temperature", 0)
        self.assertEqual(self.report("generate", file, *prompt)["text"], self.report("generate", TINYSTORIES, *prompt)["text"])
        out = self.path("quantized")
        self.report("quantize", file, "-o", out, "--method", "rtn")
        self.ok("verify", out)
        self.assertEqual(self.report("generate", out, *prompt)["prompt_ids"],
                         self.report("generate", TINYSTORIES, *prompt)["prompt_ids"])

    def test_parts(self):
        model = TinyModel().write(self.path("model"))
        whole = self.path("whole.gguf")
        self.report("convert", model, "-o", whole, "--type", "BF16")
        file = Gguf(whole)
        parts = [self.path(f"part-0000{i}-of-00002.gguf") for i in (1, 2)]
        names = list(file.tensors)
        write_gguf(parts[0], [*file.raw_keys, key_u16("split.no", 0), key_u16("split.count", 2)],
                   {name: file.tensors[name] for name in names[:5]})
        write_gguf(parts[1], [key_u16("split.no", 1), key_u16("split.count", 2)],
                   {name: file.tensors[name] for name in names[5:]})
        for part in parts:
            back = self.path(part.stem)
            self.report("convert", part, "-o", back, "--to", "bf16")
            self.assertEqual(read_model(back), read_model(model))
        parts[1].unlink()
        self.refused("inspect", parts[0], says=("part-00002-of-00002.gguf",))
        write_gguf(parts[1], [key_u16("split.no", 0), key_u16("split.count", 2)], {names[5]: file.tensors[names[5]]})
        self.refused("inspect", parts[0], says=("does not say that it is part 1",))

    def test_refusals(self):
        file = self.path("model.gguf")
        write_gguf(file, [key_string("general.architecture", "mamba")], {})
        self.refused("inspect", file, says=('architecture "mamba"',))
        write_gguf(file, [], {})
        self.refused("inspect", file, says=("general.architecture",))
        model = TinyModel().write(self.path("model"))
        self.report("convert", model, "-o", self.path("sound.gguf"))
        out = self.path("out")
        self.refused("convert", self.path("sound.gguf"), "-o", out, "--to", "gptq", output=out, says=("no other format has",))


def key_string(key, text):
    return gguf_string(key) + struct.pack("<I", 8) + gguf_string(text)


def key_u16(key, value):
    return gguf_string(key) + struct.pack("<IH", 2, value)


def gguf_string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def write_gguf(path, keys, tensors):
    """`keys`: their bytes, one after another."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys)) + b"".join(keys)
    data = b""
    for name, (kind, sizes, values) in tensors.items():
        number = next(n for n, text in TYPES.items() if text == kind)
        head += gguf_string(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, number, len(data))
        data += values + b"\0" * (-len(values) % 32)
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)


class Imatrix(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model, cls.rows = cls.top / "llama", cls.top / "rows.safetensors"
        TinyModel(family="llama").write(cls.model)
        write_rows(cls.rows, random_rows(6, 16))

    def measure(self, name, *flags):
        self.report("imatrix", self.model, "--calibration", self.rows, "-o", self.path(name), "--dtype", "float32", *flags)
        return pathlib.Path(self.path(name)).read_bytes()

    def test_lanes_and_batches_change_rounding_alone(self):
        one = self.measure("one.gguf", "--threads", 1)
        self.assertEqual(one, self.measure("two.gguf", "--threads", 2))
        file = Gguf(self.path("one.gguf"))
        self.assertEqual(file.metadata, {"general.type": "imatrix", "imatrix.datasets": ["rows.safetensors"],
                                         "imatrix.chunk_count": 6, "imatrix.chunk_size": 16})
        self.assertIn("blk.0.attn_q.weight.in_sum2", file.tensors)
        self.assertEqual(file.tensors["blk.0.attn_q.weight.counts"][2], struct.pack("<f", 96))
        # q, k and v read one input.
        self.assertEqual(file.tensors["blk.0.attn_q.weight.in_sum2"], file.tensors["blk.0.attn_v.weight.in_sum2"])

    def test_merging_adds(self):
        self.measure("one.gguf")
        self.measure("both.gguf", "--merge", self.path("one.gguf"))
        one, both = Gguf(self.path("one.gguf")), Gguf(self.path("both.gguf"))
        self.assertEqual(both.metadata["imatrix.chunk_count"], 12)
        for name, (_, _, data) in one.tensors.items():
            values = struct.unpack(f"<{len(data) // 4}f", data)
            twice = struct.unpack(f"<{len(data) // 4}f", both.tensors[name][2])
            self.assertEqual([2 * value for value in values], list(twice), name)

    def test_legacy_form(self):
        content = self.measure("old.dat", "--form", "legacy")
        entries, length = struct.unpack_from("<ii", content)
        self.assertEqual(entries, 14)
        self.assertEqual(content[8:8 + length], b"blk.0.attn_k.weight")

    def test_refusals(self):
        pathlib.Path(self.path("bad.gguf")).write_bytes(b"GGUF")
        output = self.path("x.gguf")
        self.refused("imatrix", self.model, "--calibration", self.rows, "-o", output, "--merge", self.path("bad.gguf"),
                     output=output, says=["bad.gguf", "a version"])
        self.refused("imatrix", self.model, "--calibration", self.rows, "-o", output, "--form", "other", output=output,
                     says=["--form"])


if __name__ == "__main__":
    unittest.main()
