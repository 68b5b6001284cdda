"""lm-evaluation-harness: `lm_eval --model gramian --model_args pretrained=FOLDER`, after `import gramian.lm_eval`.

Scores rows with the engine's own forward, so that a checkpoint is measured as `gramian eval` measures it.
"""
from __future__ import annotations

import os
from typing import Any

import torch

from .errors import refuse
from .model import Model

try:
    from lm_eval.api.model import LM as _Base
    from lm_eval.api.registry import register_model
except ImportError:
    _Base = object

    def register_model(*_names):
        return lambda cls: cls


@register_model("gramian")
class GramianLM(_Base):
    """pretrained: a model folder, plain or quantized; max_length: tokens of a row (its start is cut); max_gen_toks: of generated
    texts; dtype: "auto", "float32" or "bfloat16". `tokenizer`: anything with encode(text) -> ids and decode(ids) -> text; by default
    transformers' of the folder."""

    def __init__(self, pretrained: str | os.PathLike, *, max_length: int = 2048, max_gen_toks: int = 256, dtype: str = "auto",
                 tokenizer: Any = None, batch_size: Any = 1, **_ignored: Any) -> None:
        super().__init__()
        self._model = Model(pretrained, dtype=dtype)
        if tokenizer is None:
            try:
                from transformers import AutoTokenizer
            except ImportError:
                raise refuse("tokenizer", "transformers is not installed", "pass tokenizer=...") from None
            tokenizer = AutoTokenizer.from_pretrained(os.fspath(pretrained))
        self._tokenizer = tokenizer
        self.max_length, self.max_gen_toks = int(max_length), int(max_gen_toks)

    @classmethod
    def create_from_arg_string(cls, text: str, additional_config: dict | None = None) -> "GramianLM":
        pairs = dict(part.split("=", 1) for part in text.split(",") if part)
        return cls(**{**pairs, **{k: v for k, v in (additional_config or {}).items() if v is not None}})

    def _encode(self, text: str, *, special: bool) -> list[int]:
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=special))
        except TypeError:
            return list(self._tokenizer.encode(text))

    def _start(self) -> list[int]:
        for name in ("bos_token_id", "eos_token_id"):
            token = getattr(self._tokenizer, name, None)
            if token is not None:
                return [int(token)]
        raise refuse("tokenizer", "has neither a begin nor an end token", "give requests a context")

    def _score(self, context: list[int], continuation: list[int]) -> tuple[float, bool]:
        """Summed log likelihood of the continuation, and whether each of its tokens is the likeliest."""
        row = (context + continuation)[-(self.max_length + 1):]
        count = min(len(continuation), len(row) - 1)
        logits = self._model.logits(row[:-1])[-count:].double()
        targets = torch.tensor(row[-count:])
        picked = logits.log_softmax(-1).gather(1, targets[:, None]).sum().item()
        return picked, bool((logits.argmax(-1) == targets).all())

    def loglikelihood(self, requests: list, disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Of each request's (context, continuation)."""
        results = []
        for context, continuation in (request.args for request in requests):
            # The space between them is the continuation's, as the harness has it.
            trailing = len(context) - len(context.rstrip())
            if trailing:
                context, continuation = context[:-trailing], context[-trailing:] + continuation
            if context:
                before = self._encode(context, special=True)
                whole = self._encode(context + continuation, special=True)
                results.append(self._score(before, whole[len(before):]))
            else:
                results.append(self._score(self._start(), self._encode(continuation, special=False)))
        return results

    def loglikelihood_rolling(self, requests: list, disable_tqdm: bool = False) -> list[float]:
        """Of each request's whole text, in windows of max_length tokens."""
        results = []
        for (text,) in (request.args for request in requests):
            tokens, total = self._encode(text, special=False), 0.0
            for begin in range(0, len(tokens), self.max_length):
                window = tokens[begin:begin + self.max_length]
                total += self._score(tokens[begin - 1:begin] or self._start(), window)[0]
            results.append(total)
        return results

    def generate_until(self, requests: list, disable_tqdm: bool = False) -> list[str]:
        """Greedy text of each request's (context, {"until": [...], "max_gen_toks": n})."""
        results = []
        for context, options in (request.args for request in requests):
            until = options.get("until") or []
            until = [until] if isinstance(until, str) else list(until)
            most = int(options.get("max_gen_toks", self.max_gen_toks))
            prompt = self._encode(context, special=True)[-(self.max_length - most):]
            made: list[int] = []
            text = ""
            end = getattr(self._tokenizer, "eos_token_id", None)
            for token in self._model.greedy(prompt, most):
                if token == end:
                    break
                made.append(token)
                text = self._tokenizer.decode(made)
                if any(stop in text for stop in until):
                    break
            for stop in until:
                text = text.split(stop)[0]
            results.append(text)
        return results
