#!/usr/bin/env python3
"""Logits of a checkpoint that transformers loads (compressed-tensors and GGUF among them), on CPU.

  transformers_logits.py FOLDER ROWS.safetensors OUT.safetensors [--dtype float32]
"""
import argparse
import os
import pathlib

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "input", "output"):
        parser.add_argument(name)
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    path = pathlib.Path(args.model)
    where = [path.parent, path.name] if path.suffix == ".gguf" else [path, None]
    model = AutoModelForCausalLM.from_pretrained(where[0], gguf_file=where[1], dtype=getattr(torch, args.dtype), attn_implementation="eager",
                                                 device_map="cpu").eval()
    ids = load_file(args.input)["input_ids"].long()
    with torch.inference_mode():
        rows = [model(input_ids=row[None], use_cache=False).logits.float() for row in ids]
    save_file({"logits": torch.cat(rows).contiguous()}, args.output)


if __name__ == "__main__":
    main()
