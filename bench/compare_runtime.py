#!/usr/bin/env python3
"""Prompt and decoded tokens a second of one model in several programs, on the same threads, in turns.

Gramian runs the QQQ folder (and the plain one, if given); llama.cpp (xllamacpp) GGUF files of the same model, GPT-QModel the QQQ folder and
transformers the plain one, each where this Python can import it. Every program gets the same random prompt and decodes greedily. Turns
alternate, so that other work on the machine slows all alike; the best turn of each counts.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import random
import subprocess
import sys
import time


def gramian(program, folder, args):
    def run():
        command = [program, "bench", "run", folder, "--json", "--quiet", "--threads", args.threads, "--prompt", args.prompt,
                   "--decode", args.decode, "--repeats", 1]
        found = json.loads(subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout)
        return found["prefill_tokens_per_second"], found["decode_tokens_per_second"]
    return run


def rates(args, prefill, decode):
    """prefill() -> state; decode(state) -> state."""
    start = time.perf_counter()
    state = prefill()
    middle = time.perf_counter()
    for _ in range(args.decode):
        state = decode(state)
    return args.prompt / (middle - start), args.decode / (time.perf_counter() - middle)


def xllamacpp(file, ids, args):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools" / "peer"))
    import llama_server
    llama = llama_server.server(file, args.prompt + args.decode + 8, args.threads)

    def run():
        timings = llama_server.complete(llama, ids, args.decode, cache_prompt=False)["timings"]
        return timings["prompt_per_second"], timings["predicted_per_second"]
    return run


def torch_model(model, ids, args):
    import torch
    torch.set_num_threads(args.threads)

    def step(tokens, cache):
        with torch.inference_mode():
            out = model(input_ids=torch.tensor([tokens]), past_key_values=cache, use_cache=True)
        return int(out.logits[0, -1].argmax()), out.past_key_values
    return lambda: rates(args, lambda: step(ids, None), lambda state: step([state[0]], state[1]))


def gptqmodel(folder, ids, args):
    os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")  # its thread pool does not start on two cores with the default
    from gptqmodel import BACKEND, GPTQModel
    return torch_model(GPTQModel.load(str(folder), device="cpu", backend=BACKEND.AUTO).model, ids, args)


def transformers(folder, ids, args):
    import torch
    from transformers import AutoModelForCausalLM
    return torch_model(AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.bfloat16), ids, args)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("program", help="gramian")
    parser.add_argument("qqq", type=pathlib.Path, help="folder of the QQQ model")
    parser.add_argument("--plain", type=pathlib.Path, help="folder of the model it was made from")
    parser.add_argument("--gguf", type=pathlib.Path, action="append", default=[], help="the same model for llama.cpp; may be given again")
    parser.add_argument("--peer-qqq", type=pathlib.Path, help="folder for GPT-QModel, which reads no int8 head (default: that of QQQ)")
    for name, value in (("threads", 1), ("prompt", 512), ("decode", 64), ("turns", 3), ("vocab", 256)):
        parser.add_argument("--" + name, type=int, default=value, metavar="N")
    args = parser.parse_args()
    source = random.Random(1)
    ids = [source.randrange(args.vocab) for _ in range(args.prompt)]
    programs = {"gramian QQQ": gramian(args.program, args.qqq, args)}
    if args.plain:
        programs["gramian bf16"] = gramian(args.program, args.plain, args)
    peers = [("xllamacpp", xllamacpp, file) for file in args.gguf]
    peers += [("gptqmodel", gptqmodel, args.peer_qqq or args.qqq), ("transformers", transformers, args.plain)]
    for name, maker, model in peers:
        if model is None or importlib.util.find_spec(name) is None:
            print(f"# without {name}: {'no model given' if model is None else 'this Python has none'}")
            continue
        programs[f"{name} {model.stem if maker is xllamacpp else ''}".strip()] = maker(model, ids, args)
    found = {name: [] for name in programs}
    for _ in range(args.turns):
        for name, run in programs.items():
            found[name].append(run())
    print("| program | prompt tokens/s | decoded tokens/s |\n|---|---:|---:|")
    for name, turns in found.items():
        print(f"| {name} | {max(turn[0] for turn in turns):.1f} | {max(turn[1] for turn in turns):.1f} |")


if __name__ == "__main__":
    main()
