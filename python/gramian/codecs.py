"""GGML's block formats."""
from __future__ import annotations

import torch

from ._native import core


def codec_names() -> list[str]:
    """The formats that are built, as GGML spells them: "Q4_K", "IQ2_XXS" ..."""
    return core.codec_names()


def encode(weight: torch.Tensor, type: str, importance: torch.Tensor | None = None, *, name: str = "weight") -> torch.Tensor:
    """weight: float [..., columns] -> uint8 [..., bytes of a row], the bytes of llama.cpp's quantizer.

    importance: [columns], mean squared input of each column (Importance.mean()), the same for every row; IQ2_XXS needs it. Raises
    GramianError for columns that are no multiple of the block, values that are not finite, and unknown types; `name` is used there.
    """
    return core.encode(weight, type, importance, name)


def decode(data: torch.Tensor, type: str) -> torch.Tensor:
    """data: uint8 [..., bytes of a row] -> float32 [..., columns]."""
    return core.decode(data, type)
