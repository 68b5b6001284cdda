#!/usr/bin/env python3
"""Relative L2 distance and mean KL(first || second) of two files with `logits` f32 [rows, length, vocabulary].

  compare_logits.py A.safetensors B.safetensors
"""
import sys

from safetensors.torch import load_file

if len(sys.argv) != 3:
    sys.exit(__doc__)
a, b = (load_file(path)["logits"].float() for path in sys.argv[1:])
p, q = a.log_softmax(-1), b.log_softmax(-1)
kl = (p.exp() * (p - q)).sum(-1).double().mean().item()
agreement = (a.argmax(-1) == b.argmax(-1)).float().mean().item()
print(f"relative L2 {((a - b).norm() / a.norm()).item():.5f}  KL {kl:.3e}  same best token {100 * agreement:.2f} %")
