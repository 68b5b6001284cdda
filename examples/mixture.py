"""A mixture of experts whose experts are stacked parameters: python examples/mixture.py OUTPUT

Each expert becomes three modules of its own, calibrated on the tokens that are sent to it. A random model, to have something small.
"""
import sys

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

import gramian

model = Qwen3MoeForCausalLM(Qwen3MoeConfig(hidden_size=128, intermediate_size=256, moe_intermediate_size=128, num_hidden_layers=2,
                                           num_attention_heads=2, num_key_value_heads=1, head_dim=64, num_experts=8,
                                           num_experts_per_tok=2, vocab_size=512))
report = gramian.quantize(model, torch.randint(0, 512, (32, 64)), output=sys.argv[1], method="gptq", bits=4, group_size=64,
                          min_expert_tokens=16, dynamic={r"-:.*self_attn": {}})
for module in report["modules"]:
    print(f"{module['name']}: {module['samples']} tokens{', ' + module['fallback'] if module['fallback'] else ''}")
