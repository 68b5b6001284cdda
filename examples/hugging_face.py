"""A Hugging Face model in ten lines: python examples/hugging_face.py MODEL TEXT OUTPUT [METHOD]"""
import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

import gramian

folder, text, output, *method = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
tokenizer = AutoTokenizer.from_pretrained(folder)
report = gramian.quantize(model, text, tokenizer=tokenizer, output=output, method=(method or ["qqq"])[0], samples=64)
print(f"{len(report['modules'])} modules, {report['bits_per_weight']:.3f} bits per weight, in {output}")
