"""Where a model's decoder layers are, and what in them can be quantized."""
from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from ..errors import refuse

# Last parts of the names of modules that choose experts or mix their outputs: never quantized, as in the engine's own families.
ROUTERS = {"gate", "router", "shared_expert_gate", "wg"}


def is_conv1d(module: nn.Module) -> bool:
    """transformers' Conv1D: a linear layer whose weight is [in, out]."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf") and getattr(module, "weight", None) is not None


def is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or is_conv1d(module)


@dataclass
class LinearModule:
    """name: full; transposed: its weight is [in, out]."""
    name: str
    module: nn.Module
    transposed: bool = False

    @property
    def in_features(self) -> int:
        return self.module.weight.shape[0 if self.transposed else 1]

    @property
    def out_features(self) -> int:
        return self.module.weight.shape[1 if self.transposed else 0]


@dataclass
class Decoder:
    model: nn.Module
    name: str  # of the list of layers, "model.layers"
    layers: list[nn.Module]
    linears: list[dict[str, LinearModule]] = field(default_factory=list)  # of each layer, by full name
    stacks: list[dict[str, nn.Parameter]] = field(default_factory=list)  # 3-D parameters of each layer, by full name
    left: list[str] = field(default_factory=list)  # matrices of the layers that no hook reaches

    def prefix(self, layer: int) -> str:
        return f"{self.name}.{layer}."


def find_decoder(model: nn.Module, layers: str | nn.Module | None = None) -> Decoder:
    """layers: name of the list of layers, or the list; None: the largest list of modules that hold linear layers."""
    name, modules = _find_layers(model, layers)
    decoder = Decoder(model, name, list(modules))
    for index, layer in enumerate(decoder.layers):
        prefix = decoder.prefix(index)
        linears = {prefix + inner: LinearModule(prefix + inner, module, is_conv1d(module))
                   for inner, module in layer.named_modules()
                   if is_linear(module) and inner.rsplit(".", 1)[-1] not in ROUTERS}
        stacks = {prefix + inner: parameter for inner, parameter in layer.named_parameters()
                  if parameter.dim() == 3 and parameter.is_floating_point() and _holds_stacks(layer, inner)}
        known = {f"{linear}.weight" for linear in linears} | {f"{stack}_bias" for stack in stacks}
        decoder.linears.append(linears)
        decoder.stacks.append(stacks)
        decoder.left += [prefix + inner for inner, parameter in layer.named_parameters()
                         if parameter.dim() > 1 and prefix + inner not in known and prefix + inner not in stacks
                         and not _is_router(inner)]
    if not any(decoder.linears) and not any(decoder.stacks):
        raise refuse(name, "no linear layers (nn.Linear, Conv1D) in it", "name the list of decoder layers with layers=")
    return decoder


def _is_router(parameter: str) -> bool:
    parts = parameter.split(".")
    return len(parts) > 1 and parts[-2] in ROUTERS


def _holds_stacks(layer: nn.Module, parameter: str) -> bool:
    owner = layer.get_submodule(parameter.rpartition(".")[0])
    return not isinstance(owner, (nn.Conv1d, nn.Conv2d)) and not any(is_linear(child) for child in owner.children())


def _find_layers(model: nn.Module, layers: str | nn.Module | None) -> tuple[str, nn.ModuleList]:
    if isinstance(layers, str):
        try:
            found = model.get_submodule(layers)
        except AttributeError:
            raise refuse("layers", f"the model has no module {layers!r}", "name a list of modules") from None
        if not isinstance(found, (nn.ModuleList, nn.Sequential)):
            raise refuse("layers", f"{layers!r} is a {type(found).__name__}, no list of modules")
        return layers, found
    lists = {name: module for name, module in model.named_modules() if isinstance(module, (nn.ModuleList, nn.Sequential))}
    if layers is not None:
        for name, module in lists.items():
            if module is layers:
                return name, module
        raise refuse("layers", "is not a list of modules of this model")
    # A list inside another one's modules (experts, streams) is no list of layers.
    outer = {name: module for name, module in lists.items()
             if not any(name.startswith(f"{other}.") for other in lists if other != name)
             and len(module) > 0 and all(any(is_linear(part) for part in layer.modules()) for layer in module)}
    if not outer:
        raise refuse(type(model).__name__, "no list of layers found", "name it: layers=\"decoder.blocks\"")
    sizes = sorted(((sum(p.numel() for p in module.parameters()), name) for name, module in outer.items()), reverse=True)
    text = getattr(model, "get_decoder", None)
    if len(sizes) > 1 and callable(text):
        decoder = text()
        inside = [name for _, name in sizes if any(module is outer[name] for module in decoder.modules())] if decoder else []
        if len(inside) == 1:
            return inside[0], outer[inside[0]]
    if len(sizes) > 1 and sizes[1][0] > sizes[0][0] // 2:
        raise refuse(type(model).__name__, f"several lists of layers: {', '.join(name for _, name in sizes)}",
                     "choose one with layers=")
    return sizes[0][1], outer[sizes[0][1]]


def first_device(module: nn.Module) -> torch.device:
    parameter = next(module.parameters(), None)
    return parameter.device if parameter is not None else torch.device("cpu")
