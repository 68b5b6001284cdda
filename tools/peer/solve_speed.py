#!/usr/bin/env python3
"""One linear layer from its Hessian to codes: GPT-QModel 7.7.0's quantize() and gramian.solve_qqq(), in turns, factor included.

  PYTHONPATH=build/python solve_speed.py [--N 4096] [--K 4096] [--mse 2.4] [--turns 3]

Both get the same float32 weight and Hessian and the same threads. The best turn of each counts; the error is that of the solved
weight under the undamped Hessian, relative to the weight's own. docs/qqq.md says how the environment is made.
"""
import argparse
import json
import os
import time

os.environ["CUDA_VISIBLE_DEVICES"] = ""
# Its thread pool does not start on two cores with the default.
os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")

import torch  # noqa: E402


def problem(rows, columns):
    """A weight, and the Hessian of correlated inputs of unequal columns: (2 / n) X^T X."""
    source = torch.Generator().manual_seed(1)
    weight = torch.randn(rows, columns, generator=source) / columns ** 0.5
    inputs = torch.randn(2 * columns, columns, generator=source)
    inputs[:, 1:] += 0.5 * inputs[:, :-1]
    inputs *= torch.logspace(-1, 1, columns)[torch.randperm(columns, generator=source)]
    return weight, inputs.T.mm(inputs).mul_(2 / len(inputs)), len(inputs)


def peer(weight, hessian, _, args):
    from gptqmodel import QuantizeConfig
    from gptqmodel.quantization.qqq import QQQ

    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight.data.copy_(weight)
    task = QQQ(layer, QuantizeConfig(bits=4, group_size=args.group_size, quant_method="qqq", format="qqq", sym=True,
                                     desc_act=False, damp_percent=args.damp, mse=args.mse, offload_to_disk=False, device="cpu"))
    task.quantizer.configure(bits=4, perchannel=True, sym=True, mse=args.mse > 0, norm=args.mse, groupsize=args.group_size)
    # It merges partial sums itself: one of two rows, as H = 2/n times their sum.
    task._device_hessian_partials[hessian.device], task._device_sample_counts[hessian.device] = hessian.clone(), 2
    start = time.perf_counter()
    solved = task.quantize()[0]
    return time.perf_counter() - start, solved.float()


def ours(weight, hessian, tokens, args):
    import gramian

    start = time.perf_counter()
    solved = gramian.solve_qqq(weight, hessian, tokens=tokens, group_size=args.group_size, mse=args.mse, damp_percent=args.damp,
                               refine=args.refine)
    return time.perf_counter() - start, solved


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--N", type=int, default=4096)
    parser.add_argument("--K", type=int, default=4096)
    parser.add_argument("--group-size", type=int, default=128)
    parser.add_argument("--mse", type=float, default=2.4)
    parser.add_argument("--damp", type=float, default=0.005)
    parser.add_argument("--refine", type=int, default=0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    weight, hessian, tokens = problem(args.N, args.K)
    seconds, solved = {"gptqmodel": [], "gramian": []}, {}
    for _ in range(args.turns):
        for name, run in (("gptqmodel", peer), ("gramian", ours)):
            took, solved[name] = run(weight, hessian, tokens, args)
            seconds[name].append(took)

    def error(q):
        gap = weight - q
        return (gap.mm(hessian).mul_(gap).sum() / weight.mm(hessian).mul_(weight).sum()).item()
    best = {name: min(all_turns) for name, all_turns in seconds.items()}
    print(json.dumps({"N": args.N, "K": args.K, "group_size": args.group_size, "mse": args.mse, "refine": args.refine,
                      "threads": args.threads, "seconds": best, "ratio": best["gptqmodel"] / best["gramian"],
                      "error": {"gptqmodel": error(solved["gptqmodel"]), "gramian": error(solved["gramian"].weight())}}))


if __name__ == "__main__":
    main()
