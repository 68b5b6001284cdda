"""A QQQ layer as a torch module."""
from __future__ import annotations

import os

import torch
from torch import nn

from ._native import core
from .errors import refuse


class W4A8Linear(nn.Module):
    """y = x W^T + b with 4-bit weights and activations rounded to int8 row by row, on the CPU.

    B int32 [K/16, 2N], s_channel float32 [1, N], s_group float16 [K/128, N] (groups of 128) or None, bias [N] or None, as
    pack_qqq() gives them and QQQ checkpoints hold them. They are the module's buffers: state_dict() stores them, load_state_dict()
    takes them. Forward: x [..., K] of float32, float16 or bfloat16 -> [..., N] of the same type; no gradients.
    """

    def __init__(self, B: torch.Tensor, s_channel: torch.Tensor, s_group: torch.Tensor | None = None,
                 bias: torch.Tensor | None = None, *, name: str = "W4A8Linear") -> None:
        super().__init__()
        if B.dim() != 2:
            raise refuse(name, f"B must be [K/16, 2N], not {list(B.shape)}")
        self.in_features, self.out_features, self.name = B.shape[0] * 16, B.shape[1] // 2, name
        for key, value in (("B", B), ("s_channel", s_channel), ("s_group", s_group), ("bias", bias)):
            if value is not None and value.numel() == 0:
                value = None
            self.register_buffer(key, None if value is None else value.detach())
        self._kernel = self._build()
        self.register_load_state_dict_post_hook(lambda module, _: module._rebuild())

    @classmethod
    def from_parts(cls, parts: dict[str, torch.Tensor], *, name: str = "W4A8Linear") -> "W4A8Linear":
        """Of what pack_qqq() gave."""
        return cls(parts["B"], parts["s_channel"], parts.get("s_group"), parts.get("bias"), name=name)

    @classmethod
    def from_checkpoint(cls, folder: str | os.PathLike, name: str) -> "W4A8Linear":
        """Module `name` ("model.layers.0.self_attn.q_proj") of a QQQ checkpoint. Raises GramianError when it is not there."""
        parts = core.module_tensors(os.fspath(folder), name)
        if "B" not in parts or "s_channel" not in parts:
            raise refuse(f"{folder}", f"no QQQ module {name}", "name a module that has tensors .B and .s_channel")
        return cls.from_parts(parts, name=name)

    def _build(self):
        return core.QqqKernel(self.B, self.s_channel, self.s_group, self.bias, self.out_features, self.in_features, self.name)

    def _rebuild(self) -> None:
        self._kernel = self._build()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._kernel.forward(x)

    def __getstate__(self):
        state = super().__getstate__() if hasattr(super(), "__getstate__") else self.__dict__.copy()
        state = dict(state)
        state.pop("_kernel", None)
        return state

    def __setstate__(self, state) -> None:
        super().__setstate__(state)
        self._rebuild()

    def extra_repr(self) -> str:
        layout = "whole rows" if self.s_group is None else "groups of 128"
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, {layout}"
