#!/usr/bin/env python3
"""Importance and encoding end to end: llama.cpp's imatrix and quantize, and `gramian quantize --method imatrix`, in turns.

  imatrix_speed.py MODEL TEXT --llama FOLDER [--type iq2_xxs] [--chunks 32] [--threads 2] [--turns 2] [--source f16]

MODEL is a Hugging Face folder, FOLDER holds the programs llama-imatrix and llama-quantize. Both take as many windows of 512 tokens of the same
text. llama.cpp starts from a GGUF file of the model that is made beforehand and not timed; Gramian starts from the folder. The best turn
of each counts.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
WINDOW = 512


def timed(*command):
    start = time.perf_counter()
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{command[0]}: {done.stderr[-2000:]}")
    return time.perf_counter() - start, done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--llama", type=pathlib.Path, required=True)
    parser.add_argument("--gramian", default=ROOT / "build" / "gramian")
    parser.add_argument("--type", default="iq2_xxs")
    parser.add_argument("--chunks", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--source", default="f16", help="type of the GGUF file that llama.cpp starts from")
    args = parser.parse_args()
    best = {}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        source, importance, theirs, ours = (folder / name for name in ("source.gguf", "importance.gguf", "theirs.gguf", "ours.gguf"))
        timed(args.gramian, "convert", args.model, "-o", source, "--type", args.source)
        for _ in range(args.turns):
            turn = {}
            turn["llama-imatrix"], _ = timed(args.llama / "llama-imatrix", "-m", source, "-f", args.text, "-o", importance, "-c", WINDOW,
                                             "-b", WINDOW, "--chunks", args.chunks, "-t", args.threads, "--no-ppl")
            turn["llama-quantize"], _ = timed(args.llama / "llama-quantize", "--imatrix", importance, source, theirs, args.type.upper(),
                                              args.threads)
            turn["llama.cpp"] = turn["llama-imatrix"] + turn["llama-quantize"]
            turn["gramian"], report = timed(args.gramian, "quantize", args.model, "-o", ours, "--force", "--method", "imatrix", "--format", "gguf",
                                            "--type", args.type, "--calibration", args.text, "--sequence-length", WINDOW, "--samples",
                                            args.chunks, "--threads", args.threads, "--json")
            for name, seconds in turn.items():
                best[name] = min(seconds, best.get(name, seconds))
        report = json.loads(report)
        print(json.dumps({"seconds": {name: round(value, 2) for name, value in best.items()},
                          "ratio": round(best["llama.cpp"] / best["gramian"], 2), "tokens": report["tokens"],
                          "bits_per_weight": report["bits_per_weight"], "stages": report["stages"],
                          "bytes": {"llama.cpp": theirs.stat().st_size, "gramian": ours.stat().st_size}}))


if __name__ == "__main__":
    main()
