"""A GGUF file for llama.cpp in ten lines: python examples/gguf.py MODEL TEXT OUTPUT.gguf [TYPE]"""
import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

import gramian

folder, text, output, *kind = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
tokenizer = AutoTokenizer.from_pretrained(folder)
report = gramian.quantize(model, text, tokenizer=tokenizer, output=output, method="imatrix", type=(kind or ["q4_k"])[0], samples=64)
print(f"{len(report['modules'])} modules, {report['bits_per_weight']:.3f} bits per weight, in {output}")
