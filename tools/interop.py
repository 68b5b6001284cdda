#!/usr/bin/env python3
"""Do other programs read what Gramian writes? Quantizes the bundled model into every format, has each program that reads the format
compute logits, and compares them with `gramian logits` of the same folder. Writes docs/interop.md; exit code 1 when a bound is passed.

  interop.py [--python VENV/bin/python] [--keep FOLDER]

Without --python a venv is made in interop-venv/ with the programs below (a download of some hundred MB beside torch).
"""
import argparse
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
PACKAGES = ["transformers==5.23.0", "gptqmodel==7.7.0", "compressed-tensors==0.20.0", "loguru"]

# name, flags of quantize, program, its type, largest relative L2, largest KL
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
]
PROGRAM = {"QQQ_TORCH": "GPT-QModel 7.7.0, QQQ_TORCH", "GPTQ_TORCH": "GPT-QModel 7.7.0, GPTQ_TORCH",
           "transformers": "transformers 5.23.0 with compressed-tensors 0.20.0"}

TEXT = """# Who reads what we write

Checked by `make interop`: the bundled model, calibrated on 16 windows, {rows} held-out rows of {length} tokens; the other program's logits against
`gramian logits` of the same folder in the same type. A row passes below the bounds in brackets.

| checkpoint | read by | type | relative L2 | KL | |
|---|---|---|---:|---:|---|
{table}

What is left for QQQ is mostly GPT-QModel's rounding of the stored channel scales to the model's type; where activations are rounded to int8 a last
bit may move one to the next of its 255 steps.

GPT-QModel refuses asymmetric checkpoints of format `gptq` that it has not written itself; `gptq_v2` is for them. vLLM and SGLang need a GPU and are not run here; [formats](formats.md) says what they document.
"""


def run(*command):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{result.stdout[-2000:]}{result.stderr[-4000:]}")
    return result.stdout


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
        for name, flags, program, dtype, l2_most, kl_most in CELLS:
            out, ours, theirs = folder / "out", folder / "ours.safetensors", folder / "theirs.safetensors"
            run(GRAMIAN, "quantize", MODEL, "-o", out, "--force", "--quiet", "--calibration", MODEL / "calibration.txt", "--samples", 16,
                "--sequence-length", LENGTH, *flags)
            run(GRAMIAN, "logits", out, "--input", rows, "--output", ours, "--dtype", dtype)
            if program == "transformers":
                run(python, PEER / "transformers_logits.py", out, rows, theirs, "--dtype", dtype)
            else:
                run(python, PEER / "gptqmodel_qqq.py", "logits", out, rows, theirs, "--dtype", dtype, "--backend", program)
            text = run(python, PEER / "compare_logits.py", ours, theirs)
            l2, kl = (float(value) for value in re.search(r"relative L2 (\S+)  KL (\S+)", text).groups())
            good = l2 < l2_most and abs(kl) < kl_most
            failed += not good
            table.append(f"| {name} | {PROGRAM[program]} | {dtype} | {l2:.1e} ({l2_most:g}) | {kl:.1e} ({kl_most:g}) | {'reads it' if good else 'DIFFERS'} |")
            print(table[-1], flush=True)
    (ROOT / "docs" / "interop.md").write_text(TEXT.format(rows=ROWS, length=LENGTH, table="\n".join(table)), encoding="utf-8")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
