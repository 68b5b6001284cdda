"""Calibration data: whatever people have, as rows of token ids."""
from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .errors import refuse


@dataclass
class Rows:
    """ids: one list of token ids a row, never empty; blank: rows dropped because nothing was in them; split: rows cut into
    several; policy: what was done, in words."""
    ids: list[list[int]]
    asked: int | None = None
    blank: int = 0
    split: int = 0
    policy: str = "rows as given"

    @property
    def tokens(self) -> int:
        return sum(map(len, self.ids))


def calibration_rows(data: Any, *, tokenizer: Any = None, sequence_length: int = 512, samples: int | None = None) -> Rows:
    """Rows of token ids out of

    - a tensor [rows, length] of integers, or a mapping {"input_ids": ..., "attention_mask": ...} of such (masked tokens are left out);
    - a path to a .txt (one stream, cut into whole windows, `samples` (128) of them taken evenly) or a .jsonl;
    - an iterable (a list, a dataset) of strings; of mappings with "input_ids", "messages" or "text"; of lists of messages; of rows
      of token ids, as lists or tensors.

    Texts need `tokenizer`, a transformers tokenizer or any callable text -> {"input_ids": [...]}; messages need one with a chat
    template. Rows longer than sequence_length are split, empty ones dropped, the first `samples` taken. Raises GramianError naming
    the row for what is none of these.
    """
    if isinstance(data, Rows):
        return data
    if isinstance(data, (str, os.PathLike)):
        return _of_file(Path(data), tokenizer, sequence_length, samples)
    if isinstance(data, Mapping) or hasattr(data, "input_ids"):
        ids = data["input_ids"]
        mask = data["attention_mask"] if "attention_mask" in data else None
        return _cut(_unmasked(ids, mask), None, samples, "ready rows")
    if isinstance(data, torch.Tensor):
        return _cut(_unmasked(data, None), None, samples, "ready rows")
    if not isinstance(data, Iterable):
        raise refuse("calibration data", f"a {type(data).__name__} is none of the kinds that are read",
                     "pass strings, mappings, messages, token ids, a tensor or a path")
    return _cut(_of_items(data, tokenizer), sequence_length, samples, "in the order given, rows that are too long split")


def _of_file(path: Path, tokenizer: Any, length: int, samples: int | None) -> Rows:
    if not path.is_file():
        raise refuse(str(path), "no such calibration file", "pass a path to a .txt or .jsonl, or a list of texts")
    if path.suffix == ".jsonl":
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        items = []
        for number, line in enumerate(lines, 1):
            try:
                items.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise refuse(f"{path}:{number}", f"no JSON ({error})") from None
        return _cut(_of_items(items, tokenizer), length, samples if samples is not None else 128, "first rows of the file")
    if path.suffix != ".txt":
        raise refuse(str(path), "calibration files are .txt or .jsonl", "load other files and pass their rows")
    stream = _tokenize(tokenizer, path.read_text(encoding="utf-8"), str(path), special=False)
    total, wanted = len(stream) // length, 128 if samples is None else samples
    if total == 0:
        raise refuse(str(path), f"{len(stream)} tokens, fewer than one row of {length}", "lower sequence_length")
    count = min(wanted, total)
    starts = [i * total // count * length for i in range(count)]
    return Rows([stream[start:start + length] for start in starts], wanted, policy="whole windows of the text, taken evenly")


def _of_items(items: Iterable, tokenizer: Any) -> Iterator[list[int]]:
    for number, item in enumerate(items):
        yield _of_item(item, tokenizer, f"calibration row {number}")


def _of_item(item: Any, tokenizer: Any, where: str) -> list[int]:
    if isinstance(item, str):
        return _tokenize(tokenizer, item, where, special=True)
    if isinstance(item, Mapping):
        if "input_ids" in item:
            ids = _unmasked(item["input_ids"], item.get("attention_mask"))
            if len(ids) != 1:
                raise refuse(where, f"input_ids of {len(ids)} rows", "give one row a mapping")
            return ids[0]
        if "messages" in item:
            return _chat(tokenizer, item["messages"], where)
        if "text" in item:
            return _of_item(item["text"], tokenizer, where)
        raise refuse(where, f"has {sorted(map(str, item))}, but none of text, messages and input_ids")
    if isinstance(item, torch.Tensor):
        rows = _unmasked(item, None)
        if len(rows) == 1:
            return rows[0]
    elif isinstance(item, (list, tuple)):
        if item and all(isinstance(message, Mapping) for message in item):
            return _chat(tokenizer, item, where)
        if all(isinstance(token, int) for token in item):
            return list(item)
    raise refuse(where, f"a {type(item).__name__} is no text, mapping, list of messages or row of token ids")


def _tokenize(tokenizer: Any, text: str, where: str, *, special: bool) -> list[int]:
    if tokenizer is None:
        raise refuse(where, "texts need a tokenizer", "pass tokenizer=..., or rows of token ids")
    if hasattr(tokenizer, "encode") and not hasattr(tokenizer, "apply_chat_template") and hasattr(tokenizer, "token_to_id"):
        return list(tokenizer.encode(text, add_special_tokens=special).ids)  # of the package `tokenizers`
    try:
        encoded = tokenizer(text, add_special_tokens=special)
    except TypeError:
        encoded = tokenizer(text)
    return [int(token) for token in encoded["input_ids"]]


def _chat(tokenizer: Any, messages: Any, where: str) -> list[int]:
    if not hasattr(tokenizer, "apply_chat_template"):
        raise refuse(where, "messages need a tokenizer with a chat template", "pass tokenizer=..., or texts")
    return _tokenize(tokenizer, tokenizer.apply_chat_template(list(messages), tokenize=False), where, special=False)


def _unmasked(ids: Any, mask: Any) -> list[list[int]]:
    table = ids if isinstance(ids, torch.Tensor) else torch.as_tensor(ids)
    if table.dim() == 1:
        table = table[None]
    if table.dim() != 2 or table.is_floating_point() or table.dtype == torch.bool:
        raise refuse("input_ids", f"expected integers [rows, length], not {table.dtype} {list(table.shape)}")
    if mask is None:
        return table.tolist()
    keep = (mask if isinstance(mask, torch.Tensor) else torch.as_tensor(mask)).reshape(table.shape).bool()
    return [row[kept].tolist() for row, kept in zip(table, keep)]


def _cut(rows: Iterable[list[int]], length: int | None, samples: int | None, policy: str) -> Rows:
    result = Rows([], samples, policy=policy)
    if length is not None and length < 1:
        raise refuse("sequence_length", f"{length} tokens", "give 1 or more")
    for row in rows:
        if samples is not None and len(result.ids) >= samples:
            break
        if not row:
            result.blank += 1
            continue
        parts = [row] if length is None else [row[i:i + length] for i in range(0, len(row), length)]
        result.split += len(parts) > 1
        result.ids += parts
    if samples is not None:
        del result.ids[samples:]
    if not result.ids:
        raise refuse("calibration data", "holds no row of tokens", "give rows with text in them")
    return result
