#!/usr/bin/env python3
"""Weights a second into GGML's blocks on one thread: llama.cpp's library (the one in the wheel of xllamacpp) and Gramian, in turns.

  PYTHONPATH=build/python codec_speed.py [--types IQ2_XXS,Q4_K,Q6_K] [--rows 256] [--columns 4096] [--turns 3]

Both get the same normal weights and importance, and must give the same bytes. The best turn of each counts; the set-up of tables is
timed apart.
"""
import argparse
import ctypes
import json
import time

import torch

GGML_TYPES = {"Q4_0": 2, "Q8_0": 8, "Q2_K": 10, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ2_XXS": 16}


class Library:
    def __init__(self):
        import xllamacpp.xllamacpp as module

        self.ggml = ctypes.CDLL(module.__file__)
        self.ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
        self.ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
                                                  ctypes.c_int64, ctypes.c_void_p]

    def set_up(self, kind):
        start = time.perf_counter()
        self.ggml.ggml_quantize_init(GGML_TYPES[kind])
        return time.perf_counter() - start

    def encode(self, weight, kind, importance, out):
        self.ggml.ggml_quantize_chunk(GGML_TYPES[kind], weight.data_ptr(), out.data_ptr(), 0, *weight.shape, importance.data_ptr())
        return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", default="IQ2_XXS,Q2_K,Q4_K,Q5_K,Q6_K")
    for name, value in (("rows", 256), ("columns", 4096), ("turns", 3)):
        parser.add_argument("--" + name, type=int, default=value)
    args = parser.parse_args()
    torch.set_num_threads(1)
    import gramian

    library = Library()
    source = torch.Generator().manual_seed(1)
    weight = torch.randn(args.rows, args.columns, generator=source) * 0.02
    importance = torch.randn(args.columns, generator=source).square() + 0.01
    for kind in args.types.split(","):
        start = time.perf_counter()
        ours = gramian.encode(weight[:1], kind, importance)
        first = time.perf_counter() - start
        set_up, theirs = library.set_up(kind), torch.empty(args.rows, ours.shape[1], dtype=torch.uint8)
        best = {"llama.cpp": float("inf"), "gramian": float("inf")}
        for _ in range(args.turns):
            start = time.perf_counter()
            library.encode(weight, kind, importance, theirs)
            middle = time.perf_counter()
            ours = gramian.encode(weight, kind, importance)
            best["llama.cpp"] = min(best["llama.cpp"], middle - start)
            best["gramian"] = min(best["gramian"], time.perf_counter() - middle)
        rate = {name: weight.numel() / seconds / 1e6 for name, seconds in best.items()}
        print(json.dumps({"type": kind, "million_weights_per_second": rate, "ratio": rate["gramian"] / rate["llama.cpp"],
                          "same_bytes": torch.equal(ours, theirs), "set_up_seconds": {"llama.cpp": set_up, "gramian, with one row": first}}))


if __name__ == "__main__":
    main()
