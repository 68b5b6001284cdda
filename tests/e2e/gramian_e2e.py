"""What the end-to-end tests share: running the binary, safetensors files, tiny random models, reading QQQ back.

Standard library only. GRAMIAN_BINARY names the program (default: build/gramian of this tree), GRAMIAN_FORK_SERVER the server
that runs commands without starting it anew each time (tests/support/fork_server.cpp; default: none).
"""
import array
import hashlib
import json
import math
import os
import pathlib
import random
import shutil
import struct
import subprocess
import tempfile
import unittest

from fork_server import ForkServer

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("GRAMIAN_BINARY", str(ROOT / "build" / "gramian"))
TINYSTORIES = ROOT / "models" / "tinystories"
REPORT = "gramian-report.json"
# The program sets this for itself by starting once more (src/cli/openmp.cpp), which would be half of what most commands here take.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

DTYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "I8": 1}
DTYPE_CODE = {"F64": "d", "F32": "f", "F16": "e", "I64": "q", "I32": "i", "U8": "B", "I8": "b"}


# ---- running -------------------------------------------------------------------------------------------------------

class Result:
    def __init__(self, arguments, code, out, err):
        self.command = " ".join(str(a) for a in arguments)
        self.code = code
        self.out = out.decode("utf-8", "replace")
        self.err = err.decode("utf-8", "replace")

    def __str__(self):
        return f"gramian {self.command}\nexit code {self.code}\nstdout: {self.out[:2000]}\nstderr: {self.err[:4000]}"

    def json(self):
        return json.loads(self.out)


def gramian(*arguments, timeout=120, environment=None):
    given = list(map(str, arguments))
    if environment is None and "GRAMIAN_FORK_SERVER" in os.environ:
        return Result(arguments, *ForkServer.here().run(given, timeout))
    # LibTorch and OpenMP read their environment when they are loaded.
    process = subprocess.run([BINARY, *given], stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False,
                             env={**os.environ, **(environment or {})})
    return Result(arguments, process.returncode, process.stdout, process.stderr)


# ---- safetensors ---------------------------------------------------------------------------------------------------

class Tensor:
    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, list(shape), bytes(data)

    def __eq__(self, other):
        return (self.dtype, self.shape, self.data) == (other.dtype, other.shape, other.data)

    def values(self):
        """Flat list of numbers."""
        if self.dtype == "BF16":
            wide = bytearray(2 * len(self.data))
            wide[2::4], wide[3::4] = self.data[0::2], self.data[1::2]
            return array.array("f", bytes(wide)).tolist()
        code = DTYPE_CODE[self.dtype]
        return list(struct.unpack(f"<{len(self.data) // DTYPE_BYTES[self.dtype]}{code}", self.data))


def tensor(dtype, shape, values):
    values = list(values)
    if math.prod(shape) != len(values):
        raise ValueError(f"{len(values)} values for {shape}")
    if dtype == "BF16":  # rounded toward zero: good enough for test weights
        wide = array.array("f", values).tobytes()
        data = bytearray(2 * len(values))
        data[0::2], data[1::2] = wide[2::4], wide[3::4]
    else:
        data = struct.pack(f"<{len(values)}{DTYPE_CODE[dtype]}", *values)
    return Tensor(dtype, shape, data)


def safetensors_bytes(tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, item in tensors.items():
        header[name] = {"dtype": item.dtype, "shape": item.shape, "data_offsets": [at, at + len(item.data)]}
        at += len(item.data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(item.data for item in tensors.values())


def write_safetensors(path, tensors):
    pathlib.Path(path).write_bytes(safetensors_bytes(tensors))


def read_safetensors(path):
    content = pathlib.Path(path).read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:8 + length])
    header.pop("__metadata__", None)
    data = content[8 + length:]
    return {name: Tensor(entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
            for name, entry in header.items()}


def read_model(folder):
    """All tensors of a model folder, by its index where it has one."""
    folder = pathlib.Path(folder)
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return read_safetensors(folder / "model.safetensors")
    tensors = {}
    for shard in sorted(set(json.loads(index.read_text())["weight_map"].values())):
        tensors.update(read_safetensors(folder / shard))
    return tensors


# ---- tiny models ---------------------------------------------------------------------------------------------------

LAYER_MODULES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
                 "mlp.up_proj", "mlp.down_proj")
_made = {}

# family -> (class name, settings beside those of a Llama, norms of a layer on the hidden state, norms of a head)
_SANDWICH = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
_PRE = _SANDWICH[:2]
FAMILIES = {
    "llama": ("LlamaForCausalLM", {}, _PRE, ()),
    "mistral": ("MistralForCausalLM", {"sliding_window": 12}, _PRE, ()),
    "qwen2": ("Qwen2ForCausalLM", {}, _PRE, ()),
    "qwen3": ("Qwen3ForCausalLM", {}, _PRE, ("q_norm", "k_norm")),
    "gemma": ("GemmaForCausalLM", {"hidden_act": "gelu_pytorch_tanh"}, _PRE, ()),
    "gemma2": ("Gemma2ForCausalLM", {"sliding_window": 12, "query_pre_attn_scalar": 64}, _SANDWICH, ()),
    "gemma3_text": ("Gemma3ForCausalLM", {"sliding_window": 12, "sliding_window_pattern": 2, "query_pre_attn_scalar": 64,
                                          "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
                    _SANDWICH, ("q_norm", "k_norm")),
}


class TinyModel:
    """A random model of one of FAMILIES (Qwen2: biases on q, k and v). Every linear has a group-128 and a whole-row form by
    default."""
    mixture = {}

    def __init__(self, hidden=128, head_dim=64, heads=2, kv_heads=1, intermediate=256, layers=2, vocab=300, tied=True,
                 family="llama", seed=1):
        self.shape = dict(hidden=hidden, head_dim=head_dim, heads=heads, kv_heads=kv_heads, intermediate=intermediate,
                          layers=layers, vocab=vocab, tied=tied, family=family, seed=seed)
        self.config = {
            "architectures": [FAMILIES[family][0]], "model_type": family,
            "hidden_size": hidden, "head_dim": head_dim, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
            "intermediate_size": intermediate, "num_hidden_layers": layers, "vocab_size": vocab,
            "tie_word_embeddings": tied, "rms_norm_eps": 1e-6, "hidden_act": "silu", "max_position_embeddings": 512,
            "rope_theta": 10000.0, "torch_dtype": "bfloat16", "bos_token_id": 0, "made_by": {"test": [1, 2, {"x": None}]},
            **FAMILIES[family][1],
        }
        key = (*self.shape.values(), *self.mixture.values())
        if key not in _made:
            _made[key] = self._weights()
        self.tensors = dict(_made[key])

    def linears(self):
        """name -> (out, in) of every linear layer, in the order of the forward."""
        s = self.shape
        q, kv = s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
        sizes = ((q, s["hidden"]), (kv, s["hidden"]), (kv, s["hidden"]), (s["hidden"], q), (s["intermediate"], s["hidden"]),
                 (s["intermediate"], s["hidden"]), (s["hidden"], s["intermediate"]))
        return {f"model.layers.{i}.{name}": size for i in range(s["layers"]) for name, size in zip(LAYER_MODULES, sizes)}

    def _weights(self):
        s, source = self.shape, random.Random(self.shape["seed"])
        gauss = source.gauss

        def normal(shape, deviation):
            return tensor("BF16", shape, [gauss(0, deviation) for _ in range(math.prod(shape))])
        # The weights of Gemma's norms are offsets from one, and its embedding is scaled by sqrt(hidden).
        gemma = s["family"].startswith("gemma")

        def ones(size):
            return tensor("BF16", [size], [0.0 if gemma else 1.0] * size)
        size = 0.5 / math.sqrt(s["hidden"]) if gemma else 0.5
        tensors = {"model.embed_tokens.weight": normal([s["vocab"], s["hidden"]], size)}
        if not s["tied"]:
            tensors["lm_head.weight"] = normal([s["vocab"], s["hidden"]], 0.1)
        for i in range(s["layers"]):
            for norm in FAMILIES[s["family"]][2]:
                tensors[f"model.layers.{i}.{norm}.weight"] = ones(s["hidden"])
            for norm in FAMILIES[s["family"]][3]:
                tensors[f"model.layers.{i}.self_attn.{norm}.weight"] = ones(s["head_dim"])
        for name, (out, width) in self.linears().items():
            tensors[name + ".weight"] = normal([out, width], 1 / math.sqrt(width))
            if s["family"] == "qwen2" and name.rsplit(".", 1)[1] in ("q_proj", "k_proj", "v_proj"):
                tensors[name + ".bias"] = normal([out], 0.1)
        tensors["model.norm.weight"] = ones(s["hidden"])
        return tensors

    def change(self, name, edits):
        """Replaces single values: {flat index: value}."""
        item = self.tensors[name]
        values = item.values()
        for index, value in edits.items():
            values[index] = value
        self.tensors[name] = tensor(item.dtype, item.shape, values)

    def write(self, folder, shards=1):
        """config.json, weights (with an index when sharded) and a few side files."""
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(self.config, indent=1))
        (folder / "generation_config.json").write_text('{"do_sample":  true}')
        (folder / "chat_template.jinja").write_text("{{ messages }}\n")
        if shards == 1:
            write_safetensors(folder / "model.safetensors", self.tensors)
            return folder
        names, weight_map = list(self.tensors), {}
        for shard in range(shards):
            file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
            part = names[shard::shards]
            write_safetensors(folder / file, {name: self.tensors[name] for name in part})
            weight_map.update(dict.fromkeys(part, file))
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        return folder


class TinyMixture(TinyModel):
    """A Qwen 3 MoE: a mixture of `experts` in every layer but the last, stored one by one or stacked. No token goes to those
    of `never`."""

    def __init__(self, experts=8, top_k=2, expert_intermediate=128, stacked=False, never=(), **shape):
        self.mixture = dict(experts=experts, top_k=top_k, expert_intermediate=expert_intermediate)
        super().__init__(family="qwen3", **shape)
        self.mixed = [f"model.layers.{i}.mlp." for i in range(self.shape["layers"] - 1)]
        self.config.update(architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", num_experts=experts,
                           num_experts_per_tok=top_k, moe_intermediate_size=expert_intermediate, norm_topk_prob=True,
                           decoder_sparse_step=1, mlp_only_layers=[self.shape["layers"] - 1])
        source, hidden = random.Random(99), self.shape["hidden"]
        for prefix in self.mixed:
            router = [source.gauss(0, 1) for _ in range(experts * hidden)]
            self.tensors[prefix + "gate.weight"] = tensor("BF16", [experts, hidden], router)
        if never:
            self._starve(never)
        if stacked:
            self._stack()

    def _starve(self, never):
        # Entry 0 of the hidden state is the same in every token, and the router holds it against these experts.
        hidden, vocab = self.shape["hidden"], self.shape["vocab"]
        self.change("model.embed_tokens.weight", {row * hidden: 4.0 for row in range(vocab)})
        for name, (out, width) in self.linears().items():
            if name.endswith(("o_proj", "down_proj")):
                self.change(name + ".weight", dict.fromkeys(range(width), 0.0))
        for prefix in self.mixed:
            self.change(prefix + "gate.weight", {expert * hidden: -1000.0 for expert in never})

    def _stack(self):
        experts, hidden, inner = self.mixture["experts"], self.shape["hidden"], self.mixture["expert_intermediate"]
        for prefix in self.mixed:
            parts = {name: [self.tensors.pop(f"{prefix}experts.{e}.{name}.weight").data for e in range(experts)]
                     for name in ("gate_proj", "up_proj", "down_proj")}
            gate_up = b"".join(gate + up for gate, up in zip(parts["gate_proj"], parts["up_proj"]))
            self.tensors[prefix + "experts.gate_up_proj"] = Tensor("BF16", [experts, 2 * inner, hidden], gate_up)
            self.tensors[prefix + "experts.down_proj"] = Tensor("BF16", [experts, hidden, inner],
                                                                b"".join(parts["down_proj"]))

    def linears(self):
        mixture, hidden = self.mixture, self.shape["hidden"]
        found = {}
        for name, size in super().linears().items():
            layer = int(name.split(".")[2])
            if ".mlp." not in name or layer == self.shape["layers"] - 1:
                found[name] = size
                continue
            if not name.endswith("gate_proj"):
                continue
            for e in range(mixture["experts"]):
                prefix = f"model.layers.{layer}.mlp.experts.{e}."
                for part in ("gate_proj", "up_proj"):
                    found[prefix + part] = (mixture["expert_intermediate"], hidden)
                found[prefix + "down_proj"] = (hidden, mixture["expert_intermediate"])
        return found


def random_rows(count, length, vocab=300, seed=5):
    source = random.Random(seed)
    return [[source.randrange(vocab) for _ in range(length)] for _ in range(count)]


def write_rows(path, rows, pad=None):
    """Ready rows; of different lengths with pad "left" or "right" and an attention mask."""
    length = max(len(row) for row in rows)
    if pad is None:
        write_safetensors(path, {"input_ids": tensor("I64", [len(rows), length], sum(rows, []))})
        return path
    ids, mask = [], []
    for row in rows:
        fill = length - len(row)
        ids += [7] * fill + row if pad == "left" else row + [7] * fill
        mask += [0] * fill + [1] * len(row) if pad == "left" else [1] * len(row) + [0] * fill
    write_safetensors(path, {"input_ids": tensor("I64", [len(rows), length], ids),
                             "attention_mask": tensor("I64", [len(rows), length], mask)})
    return path


# ---- QQQ read back -------------------------------------------------------------------------------------------------

def qqq_codes(packed, out, width, grouped):
    """Signed 4-bit codes [out][width] of B (int32 [width/16, 2*out]); the explicit map of the format page."""
    codes = [[0] * width for _ in range(out)]
    words = struct.unpack(f"<{len(packed.data) // 4}I", packed.data)
    for place, word in enumerate(words):
        tile_k, column = divmod(place, 2 * out)
        block, t = divmod(column, 128)
        i, j = divmod(t, 4)
        k, n = 16 * tile_k + 4 * (i % 4), 64 * block + 16 * j + i // 4
        for b in range(2):
            row = codes[n + 8 * b]
            for r in range(4):
                nibble = 2 * b + r // 2 + 4 * (r % 2) if grouped else 2 * r + 1 - b
                code = word >> (4 * nibble) & 15
                row[k + r] = code - 8 if grouped else (code ^ 8) - 8
    return codes


def qqq_channel_scales(tensors, name):
    stored = tensors[name + ".s_channel"].values()
    plain = [0.0] * len(stored)
    for place, value in enumerate(stored):
        q = place % 32
        plain[place - q + 2 * (q // 8) + q % 2 + 8 * (q % 8 // 2)] = value
    return plain


def qqq_scales(tensors, name, out, width):
    """What a code is multiplied with before int8 rounding, by the stored scales: [out][groups]."""
    channel, group = qqq_channel_scales(tensors, name), tensors.get(name + ".s_group")
    if group is None:
        return [[16 * scale] for scale in channel]
    stored, scales = group.values(), [[0.0] * (width // 128) for _ in range(out)]
    for g in range(width // 128):
        for place in range(out):
            q = place % 64
            n = place - q + q // 8 + 8 * (q % 8)
            scales[n][g] = stored[g * out + place] * channel[n]
    return scales


def qqq_weight(tensors, name, out, width):
    """The weight that a reader decodes: rows of floats."""
    grouped = name + ".s_group" in tensors
    channel, scales = qqq_channel_scales(tensors, name), qqq_scales(tensors, name, out, width)
    codes = qqq_codes(tensors[name + ".B"], out, width, grouped)
    if not grouped:
        return [[code * scales[n][0] for code in codes[n]] for n in range(out)]
    return [[max(-128, min(127, round(code * (scales[n][k // 128] / channel[n])))) * channel[n]
             for k, code in enumerate(codes[n])] for n in range(out)]


def expected_tensors(linears, group_size, biased=()):
    """name -> (dtype, shape) of the packed tensors of these linear layers."""
    expected = {}
    for name, (out, width) in linears.items():
        expected[name + ".B"] = ("I32", [width // 16, 2 * out])
        expected[name + ".s_channel"] = ("F32", [1, out])
        if group_size == 128 and width != 128:
            expected[name + ".s_group"] = ("F16", [width // 128, out])
        if name in biased:
            expected[name + ".bias"] = ("F16", [out])
    return expected


def compare_quantized(a, b, linears):
    """(largest relative difference of a scale, share of codes that differ) of two folders' tensors."""
    scale_gap, different, total = 0.0, 0, 0
    for name, (out, width) in linears.items():
        for suffix in (".s_channel", ".s_group"):
            if name + suffix in a:
                for x, y in zip(a[name + suffix].values(), b[name + suffix].values()):
                    scale_gap = max(scale_gap, abs(x - y) / max(abs(x), abs(y), 1e-30))
        left, right = a[name + ".B"].data, b[name + ".B"].data
        total += out * width
        for x, y in zip(left, right):
            if x != y:
                different += (x & 15 != y & 15) + (x >> 4 != y >> 4)
    return scale_gap, different / total


# ---- arithmetic of the reference ---------------------------------------------------------------------------------

def log_softmax(logits):
    top = max(logits)
    log_sum = top + math.log(sum(math.exp(x - top) for x in logits))
    return [x - log_sum for x in logits]


def rms_normed(rows, weight, eps=1e-6):
    normed = []
    for row in rows:
        inverse = 1 / math.sqrt(sum(x * x for x in row) / len(row) + eps)
        normed.append([x * inverse * w for x, w in zip(row, weight)])
    return normed


def matrix(item):
    values, width = item.values(), item.shape[-1]
    return [values[at:at + width] for at in range(0, len(values), width)]


def layer_error(inputs, weight, decoded):
    """Sum of squares of inputs @ (weight - decoded).T."""
    total = 0.0
    for row, other in zip(weight, decoded):
        difference = [a - b for a, b in zip(row, other)]
        for x in inputs:
            total += sum(map(float.__mul__, x, difference)) ** 2
    return total


def digests(folder):
    folder = pathlib.Path(folder)
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file()}


# ---- test case -----------------------------------------------------------------------------------------------------

class GramianTestCase(unittest.TestCase):
    """A temporary folder per class, and what every command must keep to."""

    @classmethod
    def setUpClass(cls):
        if not os.access(BINARY, os.X_OK):
            raise RuntimeError(f"{BINARY} is not built (or set GRAMIAN_BINARY)")
        cls.top = pathlib.Path(tempfile.mkdtemp(prefix="gramian-e2e-"))
        cls.addClassCleanup(shutil.rmtree, cls.top, ignore_errors=True)

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=self.top))

    def path(self, name):
        return self.folder / name

    def ok(self, *arguments, **options):
        result = gramian(*arguments, **options)
        self.assertEqual(result.code, 0, result)
        return result

    def report(self, *arguments, **options):
        """Runs with --json; stdout is one document, and nothing on stderr is an error."""
        result = self.ok(*arguments, "--json", **options)
        self.assertNotIn("error", result.err, result)
        document = result.json()
        document["stderr"] = result.err
        return document

    def quantize(self, model, output, *arguments, calibration=None, method="qqq"):
        if calibration is not None:
            arguments += ("--calibration", calibration)
        return self.report("quantize", model, "-o", output, "--method", method, *arguments)

    def refused(self, *arguments, code=2, says=(), output=None, timeout=30, **options):
        """Fails with `code` and one error line that contains every text of `says`; nothing is left behind."""
        around = {path.parent for path in (output,) if path is not None and path.parent.is_dir()} | {self.folder}
        before = {path: sorted(path.iterdir()) for path in around}
        contents = digests(output) if output is not None and output.is_dir() else None
        result = gramian(*arguments, timeout=timeout, **options)
        self.assertEqual(result.code, code, result)
        self.assertEqual(result.out, "", result)
        errors = [line for line in result.err.splitlines() if line.startswith("error:")]
        self.assertEqual(len(errors), 1, result)
        message = result.err[result.err.index("error:"):]
        for text in says:
            self.assertIn(str(text), message, result)
        for noise in ("terminate", "Exception raised", "frame #", "Segmentation", "bug:", "nlohmann", "json.exception", "what()"):
            self.assertNotIn(noise, result.err, result)
        self.assertLess(len(result.err), 20000, result)
        for path, files in before.items():
            self.assertEqual(sorted(path.iterdir()), files, result)
        if contents is not None:
            self.assertEqual(digests(output), contents, result)
        return result

    def refused_job(self, model, *arguments, says=(), code=2, calibration=None, **options):
        """`quantize` of `model` is refused as refused() says."""
        output = self.path("refused-output")
        if calibration is not None:
            arguments += ("--calibration", calibration)
        elif "--method" not in arguments:
            arguments += ("--method", "rtn")
        return self.refused("quantize", model, "-o", output, *arguments, says=says, code=code, output=output, **options)
