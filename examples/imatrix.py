"""An importance matrix for llama.cpp, measured by a model's own forward: python examples/imatrix.py MODEL TEXT OUTPUT.gguf

For models that `gramian imatrix` has no forward for. Names are GGUF's for a Llama; change NAMES for others.
"""
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import gramian

NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}

folder, text, output = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
rows = gramian.calibration_rows(text, tokenizer=AutoTokenizer.from_pretrained(folder), sequence_length=512, samples=32)

sums, hooks = {}, []
for index, layer in enumerate(model.model.layers):
    for part, name in NAMES.items():
        linear = layer.get_submodule(part)
        sums[f"blk.{index}.{name}.weight"] = total = gramian.ImatrixAccumulator(linear.in_features)
        hooks.append(linear.register_forward_pre_hook(lambda _, args, total=total: total.add(args[0])))
with torch.no_grad():
    for row in rows.ids:
        model(torch.tensor([row]))
for hook in hooks:
    hook.remove()

weights = {name: (total.merge().float()[None], torch.tensor([float(total.tokens)])) for name, total in sums.items()}
gramian.write_imatrix(output, gramian.Importance(weights, [text], chunks=len(rows.ids), chunk_size=512))
print(f"{len(weights)} weights, {rows.tokens} tokens, in {output}")
