#!/usr/bin/env python3
"""Makes a Qwen 3 MoE checkpoint of random bf16 weights: a model to measure with, not to read from.

The default has 64 experts in each of 2 layers, whose Hessians (64 x 4096 x 4096 in fp32, a layer) need more than 4 GiB.
"""
import argparse
import math
import pathlib

import random_model


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
    source = random_model.write_model(args.folder, shapes(args), config(args), args.seed)
    random_model.write_rows(args.folder, source, args.rows, args.length, args.vocab)


if __name__ == "__main__":
    main()
