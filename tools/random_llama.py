#!/usr/bin/env python3
"""Makes a Llama checkpoint of random bf16 weights: a model to measure speed with, not to read from.

The default has 202 M weights, nearly all in its linear layers, and a vocabulary of bytes.
"""
import argparse
import math
import pathlib

import random_model

SPECIALS = ["<unknown>", "<pad>", "<start>", "<end>"]


def shapes(args):
    """name -> (shape, standard deviation; None: ones)."""
    hidden, q, kv = args.hidden, args.heads * args.head_dim, args.kv_heads * args.head_dim
    found = {"model.embed_tokens.weight": ((args.vocab, hidden), 0.5), "model.norm.weight": ((hidden,), None)}
    for i in range(args.layers):
        layer = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{layer}{name}.weight"] = ((hidden,), None)
        for name, out, width in (("self_attn.q", q, hidden), ("self_attn.k", kv, hidden), ("self_attn.v", kv, hidden),
                                 ("self_attn.o", hidden, q), ("mlp.gate", args.intermediate, hidden),
                                 ("mlp.up", args.intermediate, hidden), ("mlp.down", hidden, args.intermediate)):
            found[f"{layer}{name}_proj.weight"] = ((out, width), 1 / math.sqrt(width))
    return found


def config(args):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": args.hidden, "head_dim": args.head_dim,
            "num_attention_heads": args.heads, "num_key_value_heads": args.kv_heads, "intermediate_size": args.intermediate,
            "num_hidden_layers": args.layers, "vocab_size": args.vocab, "tie_word_embeddings": True, "rms_norm_eps": 1e-6,
            "hidden_act": "silu", "max_position_embeddings": 4096, "rope_theta": 10000.0, "torch_dtype": "bfloat16",
            "eos_token_id": args.vocab - 1}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    for name, value in (("layers", 16), ("hidden", 1024), ("intermediate", 3072), ("heads", 16), ("kv-heads", 8), ("head-dim", 64),
                        ("vocab", 256 + len(SPECIALS)), ("rows", 16), ("length", 256), ("seed", 1)):
        parser.add_argument("--" + name, type=int, default=value, metavar="N")
    args = parser.parse_args()
    if args.vocab < 256 + len(SPECIALS):
        parser.error(f"--vocab: the tokenizer has {256 + len(SPECIALS)} tokens")
    source = random_model.write_model(args.folder, shapes(args), config(args), args.seed)
    random_model.write_rows(args.folder, source, args.rows, args.length, 256)
    random_model.write_byte_tokenizer(args.folder, SPECIALS)


if __name__ == "__main__":
    main()
