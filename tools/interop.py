#!/usr/bin/env python3
"""Do other programs read what Gramian writes? Quantizes the bundled model into every format, has each program that reads the format
compute logits, and compares them with `gramian logits` of the same folder. Writes docs/interop.md; exit code 1 when a bound is passed.

  interop.py [--python VENV/bin/python] [--keep FOLDER]

Without --python a venv is made in interop-venv/ with the programs below (a download of some hundred MB beside torch).
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent
GRAMIAN = ROOT / "build" / "gramian"
MODEL = ROOT / "models" / "tinystories"
PEER = ROOT / "tools" / "peer"
ROWS, LENGTH = 8, 256
PACKAGES = ["transformers==5.23.0", "gptqmodel==7.7.0", "compressed-tensors==0.20.0", "gguf==0.19.0", "xllamacpp==2026.10.11549", "loguru"]

# name, how it is made, program, its type, largest relative L2, largest KL. Made by flags of `gramian quantize`, by options of
# gramian.quantize() over transformers' model, or by flags of `gramian convert` into a GGUF file.
GPTQ = ["--method", "gptq"]
CELLS = [
    ("qqq, groups of 128", ["--method", "qqq"], "QQQ_TORCH", "float16", 0.06, 3e-3),
    ("qqq, one scale a row", ["--method", "qqq", "--group-size", "-1"], "QQQ_TORCH", "float16", 0.06, 3e-3),
    ("qqq, groups of 128, refined", ["--method", "qqq", "--order", "group-aware", "--refine", "3"], "QQQ_TORCH", "float16", 0.06, 3e-3),
    ("gptq, 4 bits", [*GPTQ], "GPTQ_TORCH", "float16", 0.01, 1e-4),
    ("gptq_v2, 8 bits, asymmetric", [*GPTQ, "--format", "gptq_v2", "--bits", "8", "--asym"], "GPTQ_TORCH", "float16", 0.01, 1e-4),
    ("gptq_v2, 3 bits, asymmetric, desc_act", [*GPTQ, "--format", "gptq_v2", "--bits", "3", "--asym", "--desc-act"], "GPTQ_TORCH",
     "float16", 0.01, 1e-4),
    ("compressed-tensors, W4A16", [*GPTQ, "--format", "compressed-tensors"], "transformers", "float32", 1e-3, 1e-6),
    ("compressed-tensors, W8A16, one scale a row", [*GPTQ, "--format", "compressed-tensors", "--bits", "8", "--group-size", "-1"],
     "transformers", "float32", 1e-3, 1e-6),
    ("compressed-tensors, W8A8", [*GPTQ, "--format", "compressed-tensors", "--bits", "8", "--group-size", "-1", "--activation-bits", "8"],
     "transformers", "float32", 0.06, 3e-3),
    ("compressed-tensors, W4A8", ["--method", "qqq", "--format", "compressed-tensors"], "transformers", "float32", 0.06, 3e-3),
    ("compressed-tensors, FP8 weights", ["--method", "gptq_fp8", "--activation-bits", "16"], "transformers", "float32", 1e-3, 1e-6),
    ("compressed-tensors, FP8", ["--method", "gptq_fp8"], "transformers", "float32", 0.06, 3e-3),
    ("qqq, groups of 128, by `gramian.quantize()`", {"method": "qqq"}, "QQQ_TORCH", "float16", 0.06, 3e-3),
    ("gptq, 4 bits, by `gramian.quantize()`", {"method": "gptq"}, "GPTQ_TORCH", "float16", 0.01, 1e-4),
    ("compressed-tensors, W4A16, by `gramian.quantize()`", {"method": "gptq", "format": "compressed-tensors"}, "transformers", "float32",
     1e-3, 1e-6),
    ("gptq, 8 bits", [*GPTQ, "--bits", "8"], "GPTQ_TORCH", "float16", 0.01, 1e-4),
    ("gptq, 2 bits, groups of 64", [*GPTQ, "--bits", "2", "--group-size", "64"], "GPTQ_TORCH", "float16", 0.01, 1e-4),
    ("GGUF, F16, by `gramian convert`", ("--type", "F16"), "gguf", "float32", 1e-3, 1e-6),
    ("GGUF, q4_k, imatrix", ["--method", "imatrix", "--type", "q4_k"], "gguf", "float32", 1e-3, 1e-6),
    ("GGUF, iq2_xxs, imatrix", ["--method", "imatrix", "--type", "iq2_xxs"], "gguf", "float32", 1e-3, 1e-6),
    ("GGUF, q4_k, by `gramian.quantize()`", {"method": "imatrix", "type": "q4_k"}, "gguf", "float32", 1e-3, 1e-6),
]
# Type of a GGUF file and how it is made; llama.cpp rounds activations to 8 bits, so its perplexity is compared.
BLOCKS = [
    ("F16", ("--type", "F16")),
    *((f"{kind}, {method}", ["--format", "gguf", "--method", method, "--type", kind]) for kind, method in (
        ("q8_0", "rtn"), ("q4_0", "rtn"), ("q4_1", "rtn"), ("q5_0", "rtn"), ("q5_1", "rtn"), ("iq4_nl", "imatrix"), ("q4_k", "imatrix"),
        ("q5_k", "imatrix"), ("q6_k", "imatrix"), ("q4_k_m", "imatrix"), ("q2_k", "gptq"), ("iq2_xxs", "imatrix"), ("iq2_xxs", "gptq"))),
    ("q4_k, by `gramian.quantize()`", {"method": "imatrix", "type": "q4_k"}),
]
BLOCK_ROWS = 2
PERPLEXITY_MOST = 0.005  # of ours
PROGRAM = {"QQQ_TORCH": "GPT-QModel 7.7.0, QQQ_TORCH", "GPTQ_TORCH": "GPT-QModel 7.7.0, GPTQ_TORCH",
           "transformers": "transformers 5.23.0 with compressed-tensors 0.20.0", "gguf": "transformers 5.23.0 with gguf 0.19.0"}

TEXT = """# Who reads what we write

Checked by `make interop`: the bundled model, calibrated on 16 windows, {rows} held-out rows of {length} tokens; the other program's logits against
`gramian logits` of the same folder in the same type. A row passes below the bounds in brackets.

| checkpoint | read by | type | relative L2 | KL | |
|---|---|---|---:|---:|---|
{table}

## GGUF in llama.cpp

Perplexity of the first {block_rows} of these rows by the probabilities of llama.cpp (in xllamacpp 2026.10.11549, float16 cache of keys and values) and by
`gramian logits` in float32, at most {perplexity_most:g} % apart. llama.cpp rounds the activations of quantized layers to 8 bits.

| file | perplexity | llama.cpp's | apart | KL | |
|---|---:|---:|---:|---:|---|
{blocks}

## What loads where
**measured**: a row above. *tested*: the tests of this repository read it back. documented: that program's own pages say so, in sources: a reader
stands in its sources; neither is run here. no: there is no reader for it. not run: nothing known against it, and nobody has tried.

| what we write | Gramian | GPT-QModel 7.7.0 | transformers 5.23.0 | llama.cpp | vLLM, SGLang (GPUs) |
|---|---|---|---|---|---|
| `qqq`, groups of 128 or whole rows | *tested* | **measured** | through GPT-QModel, not run | no | no, since vLLM removed QQQ in August 2025 |
| `gptq`, 4 and 8 bits, symmetric | *tested* | **measured** | through GPT-QModel, not run | no | documented |
| `gptq`, 2 and 3 bits, symmetric | *tested* | **measured** (2 bits) | through GPT-QModel, not run | no | in sources |
| `gptq`, asymmetric | *tested* | no, its own only | through GPT-QModel, not run | no | in sources |
| `gptq_v2` | *tested* | **measured** | through GPT-QModel, not run | no | in sources |
| `compressed-tensors` W4A16, W8A16 | *tested* | no | **measured** | no | documented |
| `compressed-tensors` W8A8, W4A8 | *tested* | no | **measured** | no | documented |
| `compressed-tensors` FP8 | *tested* | no | **measured** | no | documented |
| `compressed-tensors` NVFP4 | *tested* | no | no, on GPUs alone | no | documented |
| GGUF, F16 and BF16 | *tested* | no | **measured** (F16), decoded to a plain model | **measured** (F16) | one file, documented for vLLM |
| GGUF, Q4_K and IQ2_XXS | *tested* | no | **measured**, decoded | **measured** | one file, documented for vLLM |
| GGUF, Q8_0, Q6_K, Q5_K, Q5_1, Q5_0, Q4_1, Q4_0, IQ4_NL, Q2_K | *tested* | no | not run | **measured** | one file, documented for vLLM |

`gramian.quantize()` writes through the same formats as `gramian quantize`: what loads one loads the other.

What is left for QQQ is mostly GPT-QModel's rounding of the stored channel scales to the model's type; where activations are rounded to int8 a last
bit may move one to the next of its 255 steps.

GPT-QModel refuses asymmetric checkpoints of format `gptq` that it has not written itself; `gptq_v2` is for them. vLLM and SGLang need a GPU and are not run here; [formats](formats.md) says what they document.
"""


def run(*command):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{result.stdout[-2000:]}{result.stderr[-4000:]}")
    return result.stdout


def make(how, out):
    """A checkpoint of the bundled model; returns the path to open."""
    calibration = [MODEL / "calibration.txt", 16, LENGTH]
    if "type" in how or "--type" in how:
        out = out.with_suffix(".gguf")
    if isinstance(how, dict):
        code = """
import sys, torch, transformers, gramian
model, text, samples, length, output = sys.argv[1:6]
options = dict(pair.split("=") for pair in sys.argv[6:])
gramian.quantize(transformers.AutoModelForCausalLM.from_pretrained(model).eval(), text, output=output, force=True, quiet=True,
                 tokenizer=transformers.AutoTokenizer.from_pretrained(model), samples=int(samples), sequence_length=int(length), **options)
"""
        os.environ["PYTHONPATH"] = str(ROOT / "build" / "python")
        run(ROOT / ".venv" / "bin" / "python", "-W", "ignore", "-c", code, MODEL, *calibration, out, *(f"{k}={v}" for k, v in how.items()))
        del os.environ["PYTHONPATH"]
    elif isinstance(how, tuple):
        run(GRAMIAN, "convert", MODEL, "-o", out, "--force", "--quiet", *how)
    else:
        text, samples, length = calibration
        run(GRAMIAN, "quantize", MODEL, "-o", out, "--force", "--quiet", "--calibration", text, "--samples", samples,
            "--sequence-length", length, *how)
    return out


def make_venv():
    """The programs that read, apart from our own environment."""
    folder = ROOT / "interop-venv"
    python = folder / "bin" / "python"
    done = folder / "ready"
    if not done.exists():
        print("making interop-venv", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        ours = run(ROOT / ".venv" / "bin" / "python", "-c", "import torch; print(torch.__version__.split('+')[0])").strip()
        run(python, "-m", "pip", "install", "-q", f"torch=={ours}")
        run(python, "-m", "pip", "install", "-q", *PACKAGES)
        # What they asked for beside it; the CPU needs neither.
        run(python, "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", f"torch=={ours}")
        run(python, "-m", "pip", "uninstall", "-q", "-y", "torchvision", "torchaudio")
        done.touch()
    return python


def make_rows(python, path):
    code = """
import sys, tokenizers, torch
from safetensors.torch import save_file
text = open(sys.argv[2], encoding="utf-8").read()
ids = tokenizers.Tokenizer.from_file(sys.argv[1]).encode(text, add_special_tokens=False).ids
rows, length = int(sys.argv[4]), int(sys.argv[5])
save_file({"input_ids": torch.tensor(ids[: rows * length]).reshape(rows, length)}, sys.argv[3])
"""
    run(python, "-c", code, MODEL / "tokenizer.json", MODEL / "heldout.txt", path, ROWS, LENGTH)


def in_llama_cpp(python, folder, rows):
    """Table rows of BLOCKS, and how many are too far apart."""
    table, failed = [], 0
    for name, how in BLOCKS:
        ours, theirs = folder / "ours.safetensors", folder / "theirs.safetensors"
        out = make(how, folder / "out.gguf")
        run(GRAMIAN, "logits", out, "--input", rows, "--output", ours, "--dtype", "float32")
        run(python, PEER / "llama_server.py", "logits", out, rows, theirs, "--rows", BLOCK_ROWS)
        text = run(python, PEER / "compare_logits.py", ours, theirs, rows)
        kl, own, other = (float(value) for value in re.search(r"KL (\S+) .* perplexities (\S+) (\S+)", text).groups())
        good = abs(other / own - 1) < PERPLEXITY_MOST
        failed += not good
        table.append(f"| {name} | {own:.3f} | {other:.3f} | {100 * (other / own - 1):+.2f} % | {kl:.1e} | {'reads it' if good else 'DIFFERS'} |")
        print(table[-1], flush=True)
    return table, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=pathlib.Path, help="Python of an environment with the programs")
    parser.add_argument("--keep", type=pathlib.Path, help="folder for checkpoints and logits, which stay there")
    args = parser.parse_args()
    python = args.python or make_venv()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rows = folder / "rows.safetensors"
        make_rows(python, rows)
        table, failed = [], 0
        for name, how, program, dtype, l2_most, kl_most in CELLS:
            ours, theirs = folder / "ours.safetensors", folder / "theirs.safetensors"
            out = make(how, folder / "out")
            run(GRAMIAN, "logits", out, "--input", rows, "--output", ours, "--dtype", dtype)
            if program in ("transformers", "gguf"):
                run(python, PEER / "transformers_logits.py", out, rows, theirs, "--dtype", dtype)
            else:
                run(python, PEER / "gptqmodel_qqq.py", "logits", out, rows, theirs, "--dtype", dtype, "--backend", program)
            text = run(python, PEER / "compare_logits.py", ours, theirs)
            l2, kl = (float(value) for value in re.search(r"relative L2 (\S+)  KL (\S+)", text).groups())
            good = l2 < l2_most and abs(kl) < kl_most
            failed += not good
            table.append(f"| {name} | {PROGRAM[program]} | {dtype} | {l2:.1e} ({l2_most:g}) | {kl:.1e} ({kl_most:g}) | {'reads it' if good else 'DIFFERS'} |")
            print(table[-1], flush=True)
        blocks, apart = in_llama_cpp(python, folder, rows)
    (ROOT / "docs" / "interop.md").write_text(
        TEXT.format(rows=ROWS, length=LENGTH, table="\n".join(table), block_rows=BLOCK_ROWS, perplexity_most=100 * PERPLEXITY_MOST,
                    blocks="\n".join(blocks)), encoding="utf-8")
    sys.exit(1 if failed + apart else 0)


if __name__ == "__main__":
    main()
