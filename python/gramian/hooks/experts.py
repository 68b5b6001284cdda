"""Stacks of experts: 3-D parameters that a forward slices and multiplies with, without a module for each.

Nothing is assumed of how a mixture is written: while a layer runs, products with a slice of a stack are watched, and what they
multiply is the expert's input.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

# model type -> names under which checkpoints and loaders have an expert's matrices, and their parent.
FILE_NAMES = {
    "mixtral": ("block_sparse_moe.experts", {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}),
    "minimax": ("block_sparse_moe.experts", {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}),
}


@dataclass(frozen=True)
class ExpertPart:
    """Rows first, first + step, ... of the matrix of each expert in a stack, as a linear layer of its own."""
    stack: str
    name: str  # "gate_proj"
    first: int
    step: int
    out_features: int


@dataclass
class Stack:
    """transposed: a matrix is [in, out]. parts: linear layers that its matrices hold."""
    name: str  # full
    parameter: nn.Parameter
    transposed: bool
    parts: list[ExpertPart]
    parent: str  # of the modules' names: "model.layers.0.mlp.experts"
    bias: str | None = None

    @property
    def experts(self) -> int:
        return self.parameter.shape[0]

    @property
    def in_features(self) -> int:
        return self.parameter.shape[1 if self.transposed else 2]

    def module(self, expert: int, part: ExpertPart) -> str:
        return f"{self.parent}.{expert}.{part.name}"


def describe_stack(name: str, model: nn.Module, transposed: bool, model_type: str, prefix: str) -> Stack:
    """transposed: as its products were seen."""
    owner, _, own = name.rpartition(".")
    module = model.get_submodule(owner)
    parameter = getattr(module, own)
    out = parameter.shape[2 if transposed else 1]
    if "gate_up" in own and out % 2 == 0:
        half = out // 2
        # transformers says of a class whether gate and up lie in halves, or in pairs of columns.
        paired = not getattr(module, "is_concatenated", True)
        parts = [ExpertPart(name, "gate_proj", 0, 2 if paired else 1, half),
                 ExpertPart(name, "up_proj", 1 if paired else half, 2 if paired else 1, half)]
    else:
        parts = [ExpertPart(name, own.removesuffix(".weight"), 0, 1, out)]
    parent = owner
    if model_type in FILE_NAMES:
        place, names = FILE_NAMES[model_type]
        parent = prefix + place
        parts = [ExpertPart(p.stack, names.get(p.name, p.name), p.first, p.step, p.out_features) for p in parts]
    bias = f"{name}_bias" if getattr(module, f"{own}_bias", None) is not None else None
    return Stack(name, parameter, transposed, parts, parent, bias)


class WatchExperts(TorchFunctionMode):
    """Calls seen(stack name, expert, transposed, x) for each product of x [tokens, in] with a matrix of a stack."""

    def __init__(self, stacks: dict[str, nn.Parameter], seen: Callable[[str, int, bool, torch.Tensor], None]) -> None:
        super().__init__()
        self._by_storage = {parameter.untyped_storage().data_ptr(): (name, parameter) for name, parameter in stacks.items()}
        self._seen = seen

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in ("linear", "matmul", "mm", "bmm", "__matmul__", "addmm", "baddbmm", "_grouped_mm", "grouped_mm"):
            self._look(name, args, kwargs)
        return func(*args, **kwargs)

    def _look(self, name: str, args, kwargs) -> None:
        shift = 1 if name in ("addmm", "baddbmm") else 0
        operands = [*args, *[kwargs[key] for key in ("input", "self", "weight", "other", "mat2", "mat_b") if key in kwargs]]
        if len(operands) < 2 + shift:
            return
        x, weight = operands[shift], operands[shift + 1]
        if not isinstance(x, torch.Tensor) or not isinstance(weight, torch.Tensor):
            return
        found = self._by_storage.get(weight.untyped_storage().data_ptr())
        if found is None:
            return
        stack, parameter = found
        linear = name == "linear"
        if weight.dim() == 2:
            size = parameter.shape[1] * parameter.shape[2]
            expert, rest = divmod(weight.storage_offset() - parameter.storage_offset(), size)
            if rest == 0 and 0 <= expert < parameter.shape[0]:
                self._seen(stack, expert, self._transposed(weight, parameter, linear), x.reshape(-1, x.shape[-1]))
        elif weight.dim() == 3 and weight.shape[0] == parameter.shape[0] and x.dim() == 3 and x.shape[0] == weight.shape[0]:
            transposed = self._transposed(weight[0], parameter, False)
            for expert in range(parameter.shape[0]):
                rows = x[expert]
                # Tokens of other experts stand there as zeros.
                self._seen(stack, expert, transposed, rows[rows.ne(0).any(dim=-1)])

    @staticmethod
    def _transposed(weight: torch.Tensor, parameter: torch.Tensor, linear: bool) -> bool:
        """Whether a stored matrix is [in, out]."""
        as_stored = weight.stride(-1) == parameter.stride(-1)
        return as_stored != linear
