"""Takes the batches through a model layer by layer, with the weights that the engine has solved (python/src/hook_forward.h says what
it asks of this)."""
from __future__ import annotations

from contextlib import ExitStack, nullcontext

import torch
from torch import nn

from .capture import Capture, Stop, batches_of, first_tensor, run_model, watch_linears
from .decoder import Decoder
from .experts import WatchExperts
from .subject import Subject


class Driver:
    def __init__(self, decoder: Decoder, seen: Capture, subject: Subject, rows: list[list[int]], batch: int, keep: bool,
                 progress=None) -> None:
        self.tokens = sum(map(len, rows))
        self.batches = len(seen.hidden)
        self._decoder, self._seen, self._subject, self._keep, self._progress = decoder, seen, subject, keep, progress
        self._rows, self._batch = rows, batch
        self._hidden = list(seen.hidden)
        self._originals: dict[int, tuple[nn.Parameter, torch.Tensor]] = {}  # by the parameter's id, of replaced ones

    # ---- called by the engine

    def collect(self, layer: int, sums: dict) -> int:
        wanted = {self._subject.sources[name]: accumulator for name, accumulator in sums.items()}
        added = 0

        def seen(name: str, x: torch.Tensor) -> None:
            nonlocal added
            accumulator = wanted.get(name)
            if accumulator is None:
                return
            accumulator.add(x)
            added += 1
            missing.discard(name)
            if not missing and last:
                raise Stop

        # Where each module runs once a batch, the forward may stop at the last one that is waited for.
        readings = self._seen.readings[layer]
        once = {name for name in wanted
                if name in readings and all(len(readings[name].tensors.get(b, ())) == 1 for b in range(self.batches))}
        last = len(once) == len(wanted) and not any(".experts." in name for name in wanted)
        for batch in range(self.batches):
            missing = set(wanted)
            try:
                with self._watching(layer, wanted, seen):
                    self._run(layer, batch)
            except Stop:
                pass
        return added

    def collect_head(self, sums: dict) -> int:
        (name, accumulator), = sums.items()
        head = self._decoder.model.get_submodule(name)
        added = 0

        def before(_, args):
            nonlocal added
            accumulator.add(args[0])
            added += 1
            raise Stop

        with ExitStack() as stack:
            stack.callback(head.register_forward_pre_hook(before).remove)
            for index, layer in enumerate(self._decoder.layers):
                stack.enter_context(_passing(layer, self._seen.tuples[index], lambda: self._hidden[batch]))
            for batch, ids in enumerate(batches_of(self._rows, self._batch)):
                run_model(self._decoder.model, ids)
        return added

    def replace(self, layer: int, name: str, weight: torch.Tensor) -> None:
        target = self._subject.targets[name]
        parameter = target.parameter
        if id(parameter) not in self._originals:
            self._originals[id(parameter)] = (parameter, parameter.data)
            parameter.data = parameter.data.clone()
        target.weight().copy_(weight)

    def finish(self, layer: int) -> None:
        for batch in range(self.batches):
            self._hidden[batch] = self._run(layer, batch)
        if not self._keep:
            self.restore()
        if self._progress is not None:
            self._progress(layer + 1, len(self._decoder.layers))

    def hidden(self) -> list[torch.Tensor]:
        return self._hidden

    def set_hidden(self, tensors: list[torch.Tensor]) -> None:
        self._hidden = [tensor.to(old.device) for tensor, old in zip(tensors, self._hidden)]

    # ---- called by quantize()

    def restore(self) -> None:
        """The original weights, the very same memory."""
        for parameter, data in self._originals.values():
            parameter.data = data
        self._originals.clear()

    def _run(self, layer: int, batch: int) -> torch.Tensor:
        call, hidden = self._seen.calls[batch][layer], self._hidden[batch]
        module = self._decoder.layers[layer]
        output = (module(*call.args, hidden_states=hidden, **call.kwargs) if call.in_kwargs
                  else module(hidden, *call.args, **call.kwargs))
        return first_tensor(output)

    def _watching(self, layer: int, wanted: dict, seen) -> ExitStack:
        stack = ExitStack()
        linears = {name: linear for name, linear in self._decoder.linears[layer].items() if name in wanted}
        for handle in watch_linears(linears, seen):
            stack.callback(handle.remove)
        stacks = self._seen.stacks[layer]

        def seen_expert(name: str, expert: int, _transposed: bool, x: torch.Tensor) -> None:
            for part in stacks[name].parts:
                seen(stacks[name].module(expert, part), x)

        by_name = {name: described.parameter for name, described in stacks.items()}
        stack.enter_context(WatchExperts(by_name, seen_expert) if by_name else nullcontext())
        return stack


class _passing:
    """Inside, the layer gives what `hidden` says instead of running."""

    def __init__(self, layer: nn.Module, as_tuple: bool, hidden) -> None:
        self._layer, self._as_tuple, self._hidden = layer, as_tuple, hidden

    def __enter__(self) -> None:
        self._had = self._layer.__dict__.get("forward")
        self._layer.forward = lambda *_, **__: (self._hidden(),) if self._as_tuple else self._hidden()

    def __exit__(self, *_) -> None:
        if self._had is None:
            del self._layer.forward
        else:
            self._layer.forward = self._had
