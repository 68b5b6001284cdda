"""Checkpoints that run, by the engine's own forward: what `gramian eval` and `gramian generate` measure and write."""
from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import torch

from ._native import core


class Model:
    """A model folder, plain or quantized, with all its layers in memory. dtype: "auto", "float32", "bfloat16" or "float16".

    Raises GramianError for a folder that is no checkpoint, and for families that are not built."""

    def __init__(self, folder: str | os.PathLike, *, dtype: str = "auto") -> None:
        self._model = core.ResidentModel(os.fspath(folder), dtype)

    @property
    def vocab(self) -> int:
        return self._model.vocab

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """float32 [tokens, vocab] of one row of token ids. Raises GramianError for ids outside the vocabulary."""
        return self._model.logits(list(ids))

    def greedy(self, prompt: Sequence[int], tokens: int) -> Iterator[int]:
        """The likeliest next token, `tokens` times; stop when you have seen enough."""
        row = core.GrowingRow(self._model, len(prompt) + tokens)
        ids = list(prompt)
        for _ in range(tokens):
            ids = [int(row.append(ids).argmax())]
            yield ids[0]
