#!/usr/bin/env python3
"""Relative L2 distance and mean KL(first || second) of two files with `logits` f32 [rows, length, vocabulary], over the rows that both have.

  compare_logits.py A.safetensors B.safetensors [ROWS.safetensors]
      with the rows (`input_ids`) their perplexities, too
"""
import sys

from safetensors.torch import load_file

if len(sys.argv) not in (3, 4):
    sys.exit(__doc__)
a, b = (load_file(path)["logits"].float() for path in sys.argv[1:3])
rows = min(len(a), len(b))
a, b = a[:rows], b[:rows]
p, q = a.log_softmax(-1), b.log_softmax(-1)
kl = (p.exp() * (p - q)).sum(-1).double().mean().item()
agreement = (a.argmax(-1) == b.argmax(-1)).float().mean().item()
text = f"relative L2 {((a - b).norm() / a.norm()).item():.5f}  KL {kl:.3e}  same best token {100 * agreement:.2f} %"
if len(sys.argv) == 4:
    targets = load_file(sys.argv[3])["input_ids"][:rows, 1:].long().unsqueeze(-1)
    found = [(-x[:, :-1].gather(-1, targets)).double().mean().exp().item() for x in (p, q)]
    text += f"  perplexities {found[0]:.6f} {found[1]:.6f}"
print(text)
