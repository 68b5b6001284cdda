"""One pass of the calibration rows over the original model: what each layer is called with, and which linear layers read the very
same tensor."""
from __future__ import annotations

import inspect
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..errors import refuse
from .decoder import Decoder, LinearModule, first_device
from .experts import Stack, WatchExperts, describe_stack


class Stop(Exception):
    """Ends a forward that has shown what it was run for."""


@dataclass
class Call:
    """How a layer is called beside its hidden states. in_kwargs: these come by the name hidden_states."""
    args: tuple
    kwargs: dict[str, Any]
    in_kwargs: bool


@dataclass
class Reading:
    """A linear layer, or a part of an expert's matrix, and what it read: for each batch, numbers of the tensors, equal for equal
    tensors of one layer and batch. order: its place in the layer's forward."""
    name: str
    order: int
    tensors: dict[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass
class Capture:
    hidden: list[torch.Tensor]  # of each batch, what the first layer gets
    calls: list[list[Call]]  # [batch][layer]
    readings: list[dict[str, Reading]]  # of each layer
    stacks: list[dict[str, Stack]]  # of each layer, those whose products were seen
    tuples: list[bool]  # of each layer: it returns a tuple whose first part is the hidden states


def batches_of(rows: list[list[int]], size: int) -> list[list[list[int]]]:
    """Neighbouring rows of one length, at most `size` of them: nothing is padded, so every token that a layer sees counts."""
    batches: list[list[list[int]]] = []
    for row in rows:
        if batches and len(batches[-1]) < size and len(batches[-1][0]) == len(row):
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


@contextmanager
def untouched(model: nn.Module):
    """Inside, the model is in evaluation mode and records no gradients; afterwards its modes, the global random state and the number
    of threads are as before, whatever happened."""
    modes = [(module, module.training) for module in model.modules()]
    random, threads = torch.random.get_rng_state(), torch.get_num_threads()
    experts = model.get_experts_implementation() if hasattr(model, "get_experts_implementation") else None
    model.eval()
    try:
        if experts and any(kind not in (None, "eager") for kind in experts.values()):
            model.set_experts_implementation("eager")  # the one form whose products are of single experts
        with torch.no_grad():
            yield
    finally:
        if experts and any(kind not in (None, "eager") for kind in experts.values()):
            model.set_experts_implementation(experts)
        for module, mode in modes:
            module.training = mode
        torch.random.set_rng_state(random)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


def run_model(model: nn.Module, batch: list[list[int]]) -> None:
    """The model's forward of rows of one length; Stop ends it."""
    ids = torch.tensor(batch, dtype=torch.long, device=first_device(model))
    parameters = inspect.signature(model.forward).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    options = {"use_cache": False} if "use_cache" in parameters or (takes_any and hasattr(model, "config")) else {}
    try:
        if "input_ids" in parameters:
            model(input_ids=ids, **options)
        else:
            model(ids, **options)
    except Stop:
        pass


def first_tensor(output: Any) -> torch.Tensor:
    return output[0] if isinstance(output, (tuple, list)) else output


def watch_linears(linears: dict[str, LinearModule], seen) -> list:
    """Hooks that call seen(name, x) before each product; returns their handles."""
    def hook(name):
        def before(_, args, kwargs):
            seen(name, args[0] if args else kwargs["input"])
        return before
    return [linear.module.register_forward_pre_hook(hook(name), with_kwargs=True) for name, linear in linears.items()]


class _LayerWatch:
    """Records what the linear layers and stacks of one layer read in one batch."""

    def __init__(self, capture: "_Run", layer: int) -> None:
        self.run, self.layer = capture, layer
        self.alive: list[torch.Tensor] = []  # so that no address is used twice while the layer runs
        self.numbers: dict[tuple, int] = {}
        self.order = 0

    def seen(self, name: str, x: torch.Tensor) -> None:
        self.alive.append(x)
        key = (x.data_ptr(), x.numel(), x.shape[-1], x.stride() if not x.is_contiguous() else None, x.dtype, x._version)
        number = self.numbers.setdefault(key, len(self.numbers))
        readings = self.run.readings[self.layer]
        reading = readings.setdefault(name, Reading(name, self.order))
        reading.order = min(reading.order, self.order)
        self.order += 1
        batch = self.run.batch
        reading.tensors[batch] = (*reading.tensors.get(batch, ()), number)

    def seen_expert(self, name: str, expert: int, transposed: bool, x: torch.Tensor) -> None:
        stacks = self.run.stacks[self.layer]
        stack = stacks.get(name)
        if stack is None:
            stack = stacks[name] = describe_stack(name, self.run.decoder.model, transposed, self.run.model_type,
                                                  self.run.decoder.prefix(self.layer))
        for part in stack.parts:
            self.seen(stack.module(expert, part), x)


class _Run:
    def __init__(self, decoder: Decoder, model_type: str) -> None:
        count = len(decoder.layers)
        self.decoder, self.model_type = decoder, model_type
        self.hidden: list[torch.Tensor] = []
        self.calls: list[list[Call]] = []
        self.readings: list[dict[str, Reading]] = [{} for _ in range(count)]
        self.stacks: list[dict[str, Stack]] = [{} for _ in range(count)]
        self.tuples = [False] * count
        self.batch = 0
        self.output: torch.Tensor | None = None

    def before(self, layer: int, args: tuple, kwargs: dict) -> None:
        in_kwargs = not args
        hidden = kwargs.get("hidden_states") if in_kwargs else args[0]
        if not isinstance(hidden, torch.Tensor):
            raise refuse(f"{self.decoder.name}.{layer}", "its first argument is no tensor of hidden states",
                         "choose another list of layers with layers=")
        if layer == 0:
            if len(self.hidden) > self.batch:
                raise refuse(self.decoder.name, "the first layer runs more than once in a forward", kind="unsupported")
            self.hidden.append(hidden.detach())
            self.calls.append([])
        elif self.output is None or hidden.data_ptr() != self.output.data_ptr() or hidden.shape != self.output.shape:
            raise refuse(f"{self.decoder.name}.{layer}", "does not read what the layer before it gives",
                         "the layers must be a chain; name another list with layers=", "unsupported")
        rest = {key: value for key, value in kwargs.items() if not (in_kwargs and key == "hidden_states")}
        self.calls[self.batch].append(Call(args[1:], rest, in_kwargs))

    def after(self, layer: int, output: Any) -> None:
        self.tuples[layer] = isinstance(output, (tuple, list))
        self.output = first_tensor(output)
        if layer + 1 == len(self.decoder.layers):
            raise Stop


def capture(decoder: Decoder, rows: list[list[int]], batch: int, model_type: str) -> Capture:
    """Runs every row through the layers of the original model. Hooks are gone afterwards, whatever happened. Raises GramianError where
    the layers are no chain, each run once."""
    run = _Run(decoder, model_type)
    with ExitStack() as hooks:
        for index, layer in enumerate(decoder.layers):
            _hook_layer(hooks, run, index, layer)
        for run.batch, ids in enumerate(batches_of(rows, batch)):
            run.output = None
            run_model(decoder.model, ids)
            if len(run.calls) != run.batch + 1 or len(run.calls[-1]) != len(decoder.layers):
                raise refuse(decoder.name, "not every layer ran in the model's forward", kind="unsupported")
    return Capture(run.hidden, run.calls, run.readings, run.stacks, run.tuples)


def _hook_layer(hooks: ExitStack, run: _Run, index: int, layer: nn.Module) -> None:
    inner: list[ExitStack] = []

    def before(_, args, kwargs):
        run.before(index, args, kwargs)
        watch = _LayerWatch(run, index)
        stack = ExitStack()
        for handle in watch_linears(run.decoder.linears[index], watch.seen):
            stack.callback(handle.remove)
        stacks = run.decoder.stacks[index]
        stack.enter_context(WatchExperts(stacks, watch.seen_expert) if stacks else nullcontext())
        inner.append(stack)

    def after(_, __, output):
        inner.pop().close()
        run.after(index, output)

    def close_left():
        while inner:
            inner.pop().close()

    hooks.callback(close_left)
    hooks.callback(layer.register_forward_pre_hook(before, with_kwargs=True).remove)
    hooks.callback(layer.register_forward_hook(after).remove)
