"""A GGUF file for llama.cpp from a model in memory: python examples/gguf.py MODEL TEXT OUTPUT.gguf [flags of gramian quantize]

GGUF knows the tensors of an architecture by their names, so the program's own forward quantizes what the model saves.
"""
import subprocess
import sys
import tempfile

from transformers import AutoModelForCausalLM, AutoTokenizer

folder, text, output, *flags = sys.argv[1:]
with tempfile.TemporaryDirectory() as plain:
    AutoModelForCausalLM.from_pretrained(folder, dtype="auto").save_pretrained(plain)
    AutoTokenizer.from_pretrained(folder).save_pretrained(plain)
    subprocess.run([sys.executable, "-m", "gramian", "quantize", plain, "-o", output, "--method", "imatrix", "--calibration", text,
                    *(flags or ["--type", "q4_k", "--samples", "64"])], check=True)
