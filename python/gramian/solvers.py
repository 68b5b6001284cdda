"""Solvers and packed layouts on their own.

Options are GPT-QModel's keyword names, those of a recipe (docs/recipes.md): bits, group_size, sym, desc_act, act_group_aware,
damp_percent, damp_auto_increment, mse, static_groups, refine, refine_scales ...
"""
from __future__ import annotations

import json

import torch

from ._native import core

QuantizedLinear = core.QuantizedLinear


def _solve(weight, hessian, tokens, method, format, options):
    return core.solve(weight, hessian, tokens, method, format, json.dumps(options))


def solve_gptq(weight: torch.Tensor, hessian: torch.Tensor, *, tokens: int = 1, format: str = "gptq",
               **options) -> QuantizedLinear:
    """GPTQ's error compensation on an integer grid.

    weight: float [N, K]; hessian: float32 [K, K], as HessianAccumulator.merge() gives it; neither is modified. tokens: rows
    behind the Hessian, for the reported loss. format: whose limits hold ("gptq", "gptq_v2", "compressed-tensors").
    Raises GramianError for options that are not known or contradict the format, other shapes, and a Hessian that does not factor.
    """
    return _solve(weight, hessian, tokens, "gptq", format, options)


def solve_qqq(weight: torch.Tensor, hessian: torch.Tensor, *, tokens: int = 1, **options) -> QuantizedLinear:
    """GPTQ's error compensation on QQQ's grid: 4 bits, groups of 128 or whole rows (group_size=-1). As solve_gptq()."""
    return _solve(weight, hessian, tokens, "qqq", "qqq", options)


def round_to_nearest(weight: torch.Tensor, *, format: str = "gptq", **options) -> QuantizedLinear:
    """Plain rounding on the format's grid: the floor to compare with."""
    return _solve(weight, None, 1, "rtn", format, options)


def pack(module: QuantizedLinear, weight: torch.Tensor, *, bias: torch.Tensor | None = None, format: str = "gptq",
         name: str = "module", **options) -> dict[str, torch.Tensor]:
    """The tensors of a module as `format` stores them, by their names behind the module's ("qweight", "scales" ...).

    module: as a solver gave it; weight: what it was solved from, [N, K]; bias: [N]. Give the options it was solved with.
    """
    return core.pack(module, weight, bias, format, json.dumps(options), name)


def unpack(parts: dict[str, torch.Tensor], out_features: int, in_features: int, *, format: str = "gptq",
           name: str = "module", **options) -> torch.Tensor:
    """float32 [out_features, in_features]: the weight that a reader of `parts` multiplies with. Raises GramianError (kind
    "corrupt_data") for tensors that are not what the format says."""
    return core.unpack(parts, out_features, in_features, format, json.dumps(options), name)


def pack_qqq(module: QuantizedLinear, weight: torch.Tensor, *, bias: torch.Tensor | None = None, name: str = "module",
             **options) -> dict[str, torch.Tensor]:
    """B, s_channel, s_group (and bias) of a module that solve_qqq() gave; as pack()."""
    return pack(module, weight, bias=bias, format="qqq", name=name, group_size=_qqq_group(module, weight), **options)


def unpack_qqq(parts: dict[str, torch.Tensor], out_features: int, in_features: int, *, name: str = "module") -> torch.Tensor:
    """float32 [out_features, in_features], as the int8 runtime multiplies with it; as unpack()."""
    grouped = "s_group" in parts and parts["s_group"].numel() > 0
    return unpack(parts, out_features, in_features, format="qqq", name=name, group_size=128 if grouped else -1)


def _qqq_group(module: QuantizedLinear, weight: torch.Tensor) -> int:
    return -1 if module.scale.shape[1] == 1 and module.group_size == weight.shape[1] != 128 else 128
