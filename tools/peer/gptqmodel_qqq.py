#!/usr/bin/env python3
"""GPT-QModel 7.7.0 beside Gramian, on CPU. docs/qqq.md says how its environment is made.

  gptqmodel_qqq.py logits   FOLDER ROWS.safetensors OUT.safetensors [--dtype bfloat16] [--backend QQQ_TORCH]
      loads a QQQ checkpoint (or, with --backend GPTQ_TORCH, one of GPTQ) and writes `logits` f32 of `input_ids` [rows, length]
  gptqmodel_qqq.py quantize MODEL ROWS.safetensors OUT_FOLDER [--rows N] [--mse P] [--group-size 128]
      quantizes on the first N rows, batch size 1, and prints seconds and peak memory of quantize()
"""
import argparse
import json
import os
import resource
import time

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["HF_HUB_OFFLINE"] = "1"
# Its thread pool does not start on two cores with the default.
os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")

import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402


def logits(args):
    from gptqmodel import BACKEND, GPTQModel

    model = GPTQModel.load(args.model, device="cpu", backend=BACKEND[args.backend], dtype=getattr(torch, args.dtype),
                           attn_implementation="eager").model.eval()
    kinds = {type(module).__name__ for name, module in model.named_modules() if hasattr(module, "s_channel") or hasattr(module, "qweight")}
    print(f"quantized modules are {', '.join(sorted(kinds))}")
    ids = load_file(args.input)["input_ids"].long()
    with torch.inference_mode():
        rows = [model(input_ids=row[None], attention_mask=torch.ones_like(row[None]), use_cache=False).logits.float()
                for row in ids]
    save_file({"logits": torch.cat(rows).contiguous()}, args.output)


def quantize(args):
    from gptqmodel import GPTQModel, QuantizeConfig

    ids = load_file(args.input)["input_ids"][: args.rows]
    calibration = [{"input_ids": row.tolist(), "attention_mask": [1] * len(row)} for row in ids]
    config = QuantizeConfig(bits=4, group_size=args.group_size, quant_method="qqq", format="qqq", sym=True, desc_act=False,
                            damp_percent=0.005, mse=args.mse, offload_to_disk=False, device="cpu")
    model = GPTQModel.load(args.model, config, dtype=getattr(torch, args.dtype))
    start = time.perf_counter()
    model.quantize(calibration, batch_size=1)
    seconds = time.perf_counter() - start
    model.save(args.output)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "peak_rss_bytes": peak, "rows": len(calibration)}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    for name, action in (("logits", logits), ("quantize", quantize)):
        verb = verbs.add_parser(name)
        verb.set_defaults(action=action)
        verb.add_argument("model")
        verb.add_argument("input")
        verb.add_argument("output")
        verb.add_argument("--dtype", default="bfloat16")
        verb.add_argument("--backend", default="QQQ_TORCH")
        if name == "quantize":
            verb.add_argument("--rows", type=int)
            verb.add_argument("--mse", type=float, default=0.0)
            verb.add_argument("--group-size", type=int, default=128)
    args = parser.parse_args()
    args.action(args)


if __name__ == "__main__":
    main()
