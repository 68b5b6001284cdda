"""GGUF files and importance matrices. safetensors files have a package of their own."""
from __future__ import annotations

import os
from dataclasses import dataclass, field

import torch

from ._native import core


@dataclass
class GgufTensor:
    """type: as GGML spells it; shape: slowest size first; data: uint8 [..., bytes of a row], mapped when it was read."""
    type: str
    shape: list[int]
    data: torch.Tensor

    def decode(self) -> torch.Tensor:
        """float32, of this shape."""
        return core.decode(self.data, self.type).reshape(self.shape)

    @staticmethod
    def encode(weight: torch.Tensor, type: str, importance: torch.Tensor | None = None, *, name: str = "weight") -> "GgufTensor":
        """As gramian.encode()."""
        return GgufTensor(type, list(weight.shape), core.encode(weight, type, importance, name))


@dataclass
class Gguf:
    """Keys with their values, and tensors by name, in file order."""
    metadata: dict = field(default_factory=dict)
    tensors: dict[str, GgufTensor] = field(default_factory=dict)


def read_gguf(path: str | os.PathLike) -> Gguf:
    """Every count, length, offset and type is checked. Raises GramianError (kind "corrupt_data") with the byte."""
    raw = core.read_gguf(os.fspath(path))
    return Gguf(raw["metadata"], {name: GgufTensor(*parts) for name, parts in raw["tensors"].items()})


def write_gguf(path: str | os.PathLike, file: Gguf) -> None:
    """Appears under its name when it is complete. Metadata: bool, int (u32, or i64 outside it), float (f32), str, or lists."""
    core.write_gguf(os.fspath(path), file.metadata,
                    [(name, tensor.type, tensor.shape, tensor.data) for name, tensor in file.tensors.items()])


@dataclass
class Importance:
    """llama.cpp's imatrix: for each weight, by GGUF's name, sums of squared input columns, float32 [experts, in], and token rows,
    float32 [experts]."""
    weights: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    datasets: list[str] = field(default_factory=list)
    chunks: int = 0
    chunk_size: int = 512

    def mean(self, name: str, expert: int = 0) -> torch.Tensor:
        """[in], what encode() takes; ones where the expert saw no token."""
        sums, counts = self.weights[name]
        return sums[expert] / counts[expert] if counts[expert] > 0 else torch.ones_like(sums[expert])


def read_imatrix(path: str | os.PathLike) -> Importance:
    """A file in either of llama.cpp's two forms. Raises GramianError (kind "corrupt_data") for damage."""
    return Importance(**core.read_imatrix(os.fspath(path)))


def write_imatrix(path: str | os.PathLike, importance: Importance, *, legacy: bool = False) -> None:
    """In the GGUF form, or in the older one that llama.cpp before October 2025 reads."""
    core.write_imatrix(os.fspath(path), importance.weights, importance.datasets, importance.chunks, importance.chunk_size, legacy)
