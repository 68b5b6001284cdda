"""Would QQQ gain from solving against the int8 activations that its runtime multiplies with?

    python activation_objective.py MODEL ROWS.safetensors [MODULE...]     (an environment with torch and transformers)

For each module, codes are chosen by GPTQ (groups of 128, searched scales) on three quarters of the rows: against the Hessian XX' of the
inputs; of the inputs rounded to int8, Q; and of Q with the weight moved to the least-squares answer for Q's error. Printed is the output's
relative squared error on the last quarter, int8 inputs and 4-bit weights together, and the last over the first.
"""
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

GROUP, DAMP, ROWS = 128, 0.005, 40
MODULES = [f"model.layers.{i}.{name}" for i in (2, 9, 15)
           for name in ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")]


def rounded(x):
    scale = x.abs().amax(1, keepdim=True) / 127
    return torch.round(x / scale).clamp(-128, 127) * scale


def searched_scale(w):
    largest = w.abs().amax(1, keepdim=True) / 7.5
    best, scale = torch.full_like(largest, float("inf")), largest
    for shrink in range(0, 60, 2):
        tried = largest * (1 - shrink / 100)
        error = ((torch.round(w / tried).clamp(-8, 7) * tried - w).abs() ** 2.4).sum(1, keepdim=True)
        scale, best = torch.where(error < best, tried, scale), torch.minimum(error, best)
    return scale


def gptq(weight, hessian):
    columns = hessian.shape[0]
    hessian = hessian + torch.eye(columns, dtype=hessian.dtype) * DAMP * hessian.diag().mean()
    factor = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(hessian)), upper=True)
    weight, result = weight.clone(), torch.zeros_like(weight)
    for begin in range(0, columns, GROUP):
        end = min(columns, begin + GROUP)
        part = weight[:, begin:end].clone()
        scale, errors = searched_scale(part), torch.zeros_like(part)
        for i in range(end - begin):
            result[:, begin + i] = (torch.round(part[:, i:i + 1] / scale).clamp(-8, 7) * scale)[:, 0]
            error = (part[:, i] - result[:, begin + i]) / factor[begin + i, begin + i]
            part[:, i:] -= error[:, None] * factor[begin + i, begin + i:end]
            errors[:, i] = error
        weight[:, end:] -= errors @ factor[begin:end, end:]
    return result


def main():
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
    rows = load_file(sys.argv[2])["input_ids"][:ROWS].long()
    names = sys.argv[3:] or MODULES
    modules, inputs = dict(model.named_modules()), {name: [] for name in names}
    for name in names:
        modules[name].register_forward_pre_hook(lambda _, given, name=name: inputs[name].append(given[0].flatten(0, -2).clone()))
    with torch.no_grad():
        for begin in range(0, len(rows), 8):
            model(rows[begin:begin + 8])
    for name in names:
        x = torch.cat(inputs[name]).double()
        split = len(x) * 3 // 4
        given, held, weight = x[:split], x[split:], modules[name].weight.detach().double()
        int8 = rounded(given)
        plain, runtime = given.T @ given, int8.T @ int8
        damped = runtime + DAMP * runtime.diag().mean() * torch.eye(len(runtime), dtype=runtime.dtype)
        moved = weight + torch.linalg.solve(damped, int8.T @ (given - int8) @ weight.T).T
        output = held @ weight.T

        def error(codes):
            return ((output - rounded(held) @ codes.T).square().sum() / output.square().sum()).item()

        a, b, c = error(gptq(weight, plain)), error(gptq(weight, runtime)), error(gptq(moved, runtime))
        print(f"{name:36s} int8 alone {error(weight):.5f}   XX' {a:.5f}   QQ' {b:.5f}   moved {c:.5f}   {c / a:.3f}", flush=True)


if __name__ == "__main__":
    main()
