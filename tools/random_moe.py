#!/usr/bin/env python3
"""Makes a Qwen 3 MoE checkpoint of random bf16 weights: a model to measure with, not to read from.

The default has 64 experts in each of 2 layers, whose Hessians (64 x 4096 x 4096 in fp32, a layer) need more than 4 GiB.
"""
import argparse
import array
import json
import math
import pathlib
import random
import struct


def weights(source, shape, deviation):
    """Uniform values of this standard deviation as bf16, cut from one random block: quick, and no two rows alike."""
    count, block = math.prod(shape), 1 << 18
    width = deviation * math.sqrt(3)
    values = array.array("f", (source.uniform(-width, width) for _ in range(min(count, block)))).tobytes()
    short = bytearray(len(values) // 2)
    short[0::2], short[1::2] = values[2::4], values[3::4]
    data = bytearray()
    while len(data) < 2 * count:
        turn = 2 * source.randrange(len(short) // 2)
        data += short[turn:] + short[:turn]
    return bytes(data[:2 * count])


def shapes(args):
    """name -> (shape, standard deviation; None: ones)."""
    hidden, q, kv = args.hidden, args.heads * args.head_dim, args.kv_heads * args.head_dim
    found = {"model.embed_tokens.weight": ((args.vocab, hidden), 0.5), "model.norm.weight": ((hidden,), None)}

    def linear(name, out, width):
        found[name + ".weight"] = ((out, width), 1 / math.sqrt(width))
    for i in range(args.layers):
        layer = f"model.layers.{i}."
        for name, size in (("input_layernorm", hidden), ("post_attention_layernorm", hidden),
                           ("self_attn.q_norm", args.head_dim), ("self_attn.k_norm", args.head_dim)):
            found[f"{layer}{name}.weight"] = ((size,), None)
        for name, out, width in (("q", q, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, q)):
            linear(f"{layer}self_attn.{name}_proj", out, width)
        linear(layer + "mlp.gate", args.experts, hidden)
        for e in range(args.experts):
            for name, out, width in (("gate", args.intermediate, hidden), ("up", args.intermediate, hidden),
                                     ("down", hidden, args.intermediate)):
                linear(f"{layer}mlp.experts.{e}.{name}_proj", out, width)
    return found


def config(args):
    return {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": args.hidden,
            "head_dim": args.head_dim, "num_attention_heads": args.heads, "num_key_value_heads": args.kv_heads,
            "intermediate_size": args.intermediate, "moe_intermediate_size": args.intermediate, "num_experts": args.experts,
            "num_experts_per_tok": args.top_k, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
            "num_hidden_layers": args.layers, "vocab_size": args.vocab, "tie_word_embeddings": True, "rms_norm_eps": 1e-6,
            "hidden_act": "silu", "max_position_embeddings": 4096, "rope_theta": 10000.0, "torch_dtype": "bfloat16"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    for name, value in (("experts", 64), ("layers", 2), ("hidden", 4096), ("intermediate", 256), ("heads", 8), ("kv-heads", 2),
                        ("head-dim", 64), ("top-k", 8), ("vocab", 1024), ("rows", 16), ("length", 256), ("seed", 1)):
        parser.add_argument("--" + name, type=int, default=value, metavar="N")
    args = parser.parse_args()
    args.folder.mkdir(parents=True)
    source = random.Random(args.seed)
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (shape, _) in shapes(args).items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(args.folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for shape, deviation in shapes(args).values():
            file.write(b"\x80\x3f" * math.prod(shape) if deviation is None else weights(source, shape, deviation))
    (args.folder / "config.json").write_text(json.dumps(config(args), indent=1) + "\n")
    ids = struct.pack(f"<{args.rows * args.length}q", *(source.randrange(args.vocab) for _ in range(args.rows * args.length)))
    rows = json.dumps({"input_ids": {"dtype": "I64", "shape": [args.rows, args.length], "data_offsets": [0, len(ids)]}}).encode()
    (args.folder / "rows.safetensors").write_bytes(struct.pack("<Q", len(rows)) + rows + ids)


if __name__ == "__main__":
    main()
