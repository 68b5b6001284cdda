#!/usr/bin/env python3
"""llama.cpp beside Gramian, on CPU, by the wheel of xllamacpp (llama.cpp's own server in a process).

  llama_server.py logits FILE.gguf ROWS.safetensors OUT.safetensors [--rows N]
      writes `logits` f32 [rows, length, vocabulary]: the logarithm of each token's probability behind every token of `input_ids`
  llama_server.py speed FILE.gguf [--threads 1] [--prompt 512] [--decode 64] [--turns 3]
      prints tokens a second of a random prompt and of greedy tokens behind it, the best turn of each
"""
import argparse
import json
import random


def server(file, context, threads):
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.n_ctx, params.n_parallel, params.n_gpu_layers, params.warmup = context, 1, 0, True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.verbosity = 0
    return xllamacpp.Server(params)


def complete(llama, ids, tokens, **options):
    found = llama.handle_completions({"prompt": list(ids), "n_predict": tokens, "temperature": 0.0, "ignore_eos": True, **options})
    if "timings" not in found:
        raise SystemExit(f"llama.cpp: {found}")
    return found


def logits(args):
    import torch
    from safetensors.torch import load_file, save_file

    rows = load_file(args.input)["input_ids"][: args.rows].tolist()
    llama = server(args.model, len(rows[0]) + 8, args.threads)
    out = None
    for r, row in enumerate(rows):
        for place in range(len(row)):
            found = complete(llama, row[: place + 1], 1, n_probs=1 << 20, cache_prompt=True)
            tokens = found["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
            if out is None:
                out = torch.empty(len(rows), len(row), len(tokens))
            out[r, place, [token["id"] for token in tokens]] = torch.tensor([token["logprob"] for token in tokens])
    save_file({"logits": out}, args.output)


def speed(args):
    source = random.Random(1)
    best = [0.0, 0.0]
    llama = server(args.model, args.prompt + args.decode + 8, args.threads)
    for _ in range(args.turns):
        ids = [source.randrange(3, args.vocab) for _ in range(args.prompt)]
        timings = complete(llama, ids, args.decode, cache_prompt=False)["timings"]
        best = [max(best[0], timings["prompt_per_second"]), max(best[1], timings["predicted_per_second"])]
    print(json.dumps({"prefill_tokens_per_second": best[0], "decode_tokens_per_second": best[1], "threads": args.threads}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    for name, action in (("logits", logits), ("speed", speed)):
        verb = verbs.add_parser(name)
        verb.set_defaults(action=action)
        verb.add_argument("model")
        verb.add_argument("--threads", type=int, default=1)
        if name == "logits":
            verb.add_argument("input")
            verb.add_argument("output")
            verb.add_argument("--rows", type=int)
        else:
            for key, value in (("prompt", 512), ("decode", 64), ("turns", 3), ("vocab", 256)):
                verb.add_argument("--" + key, type=int, default=value)
    args = parser.parse_args()
    args.action(args)


if __name__ == "__main__":
    main()
