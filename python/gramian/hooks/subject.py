"""What the engine must know of a model that another forward runs: weights by the names that a checkpoint gives them, linear layers
pause by pause, configuration."""
from __future__ import annotations

import json
from dataclasses import dataclass, field

import torch
from torch import nn

from .capture import Capture, Reading
from .decoder import Decoder
from .experts import ExpertPart, Stack


@dataclass
class Target:
    """Where a module's weight lives in the model: a linear layer, or a part of an expert's matrix."""
    parameter: nn.Parameter
    transposed: bool
    expert: int | None = None
    part: ExpertPart | None = None

    def weight(self) -> torch.Tensor:
        """[out, in], a view of the parameter as it is now."""
        data = self.parameter.data
        if self.expert is not None:
            data = data[self.expert]
        if self.transposed:
            data = data.t()
        if self.part is not None:
            part = self.part
            data = data[part.first:part.first + part.step * part.out_features:part.step]
        return data


@dataclass
class Subject:
    engine: dict  # for _core.quantize
    targets: dict[str, Target]  # by the names that the engine knows
    engine_names: dict[str, str]  # of what capture.py saw, by its names
    sources: dict[str, str]  # the other way round
    unhooked: list[str] = field(default_factory=list)  # matrices that stay as they are because nothing reached them


def engine_subject(decoder: Decoder, seen: Capture, config: dict, side_folder: str) -> Subject:
    model = decoder.model
    tensors = _stored_tensors(model)
    names = _file_names(model, {name: tensor for name, tensor in tensors.items() if tensor.dim() < 3})
    apart = _names_of_parts(model, {name: tensor for name, tensor in tensors.items() if tensor.dim() == 3})
    subject = Subject({}, {}, {}, {}, list(decoder.left))
    layers, prefixes, experts = [], [], []
    for index in range(len(decoder.layers)):
        prefix = decoder.prefix(index)
        modules: dict[str, tuple] = {}
        for name, linear in decoder.linears[index].items():
            weight = names.get(f"{name}.weight", f"{name}.weight")
            own = weight.removesuffix(".weight")
            stored = {"tensor": weight, "shape": list(linear.module.weight.shape), "transposed": True} if linear.transposed else {}
            modules[name] = (own, linear.in_features, linear.out_features, linear.module.bias is not None, stored)
            subject.targets[own] = Target(linear.module.weight, linear.transposed)
        for stack in seen.stacks[index].values():
            for expert in range(stack.experts):
                for part in stack.parts:
                    name = stack.module(expert, part)
                    target = subject.targets[name] = Target(stack.parameter, stack.transposed, expert, part)
                    stored = {}
                    if f"{name}.weight" in apart and stack.bias is None:
                        tensors.pop(stack.name, None)
                        tensors[f"{name}.weight"] = target.weight()
                    else:
                        stored = _stored_part(stack, expert, part)
                    modules[name] = (name, stack.in_features, part.out_features, stack.bias is not None, stored)
                    experts.append(name)
        subject.unhooked += [name for name in decoder.stacks[index] if name not in seen.stacks[index]]
        subject.engine_names |= {name: entry[0] for name, entry in modules.items()}
        layers.append([(step, [modules[name] for name in pause]) for step, pause in _pauses(list(modules), seen.readings[index])])
        prefixes.append(_file_prefix(prefix, modules))
    # Experts that are modules of their own.
    experts += [entry for name, entry in subject.engine_names.items() if ".experts." in name]
    subject.sources = {entry: name for name, entry in subject.engine_names.items()}
    head, tied = _head(model, tensors, names)
    subject.engine = {
        "tensors": {names.get(name, name): tensor for name, tensor in tensors.items()},
        "config": json.dumps(config), "side_folder": side_folder, "model_type": str(config.get("model_type", "")),
        "dtype": next(iter(subject.targets.values())).parameter.dtype, "layers": layers, "prefixes": prefixes,
        "experts": set(experts), "head": head, "tied": tied,
    }
    return subject


def _stored_part(stack: Stack, expert: int, part: ExpertPart) -> dict:
    where = {"tensor": stack.name, "shape": list(stack.parameter.shape), "transposed": stack.transposed, "matrix": expert,
             "first_row": part.first, "row_step": part.step}
    return where | ({"bias": stack.bias} if stack.bias else {})


def _pauses(modules: list[str], readings: dict[str, Reading]) -> list[tuple[int, list[str]]]:
    """(step, modules that read one tensor in every batch), in the order of the forward. Modules of several experts that differ in the
    expert's number only are of one step. What never ran stands alone, behind the others."""
    groups: dict[tuple, list[Reading]] = {}
    for name in modules:
        reading = readings.get(name) or Reading(name, 1 << 30)
        key = tuple(sorted(reading.tensors.items())) or (name,)
        groups.setdefault(key, []).append(reading)
    steps: dict[tuple[str, ...], list[list[Reading]]] = {}
    for group in groups.values():
        kinds = tuple(sorted({_without_expert(reading.name) for reading in group}))
        steps.setdefault(kinds, []).append(sorted(group, key=lambda reading: (reading.order, reading.name)))
    ordered = sorted(steps.values(), key=lambda step: min(group[0].order for group in step))
    return [(number, [reading.name for reading in group])
            for number, step in enumerate(_with_strays(ordered)) for group in sorted(step, key=_expert_order)]


def _with_strays(steps: list[list[list[Reading]]]) -> list[list[list[Reading]]]:
    """Experts that no token reached stand apart from their kind, one module each: they join the step of their kind's first."""
    home: dict[str, int] = {}
    result: list[list[list[Reading]]] = []
    for step in steps:
        kinds = {_without_expert(reading.name) for group in step for reading in group}
        place = next((home[kind] for kind in kinds if kind in home), None)
        if place is None:
            place = len(result)
            result.append([])
        for kind in kinds:
            home.setdefault(kind, place)
        result[place] += step
    return result


def _without_expert(name: str) -> str:
    parts = name.split(".")
    for place in range(1, len(parts)):
        if parts[place].isdigit() and parts[place - 1] == "experts":
            parts[place] = "#"
    return ".".join(parts)


def _expert_order(group: list[Reading]) -> tuple:
    return tuple(int(part) if part.isdigit() else -1 for part in group[0].name.split(".")), group[0].order


def _stored_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """state_dict() without second names of one tensor."""
    seen: set[tuple] = set()
    tensors = {}
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, torch.Tensor):
            continue
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
        if tensor.numel() > 0 and key in seen:
            continue
        seen.add(key)
        tensors[name] = tensor
    return tensors


def _file_names(model: nn.Module, tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """Names in checkpoints, where transformers renames tensors while it loads them."""
    if not hasattr(model, "save_pretrained"):
        return {}
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:
        return {}
    by_identity = {id(tensor): name for name, tensor in tensors.items()}
    renamed = revert_weight_conversion(model, dict(tensors))
    return {by_identity[id(tensor)]: name for name, tensor in renamed.items() if id(tensor) in by_identity}


def _names_of_parts(model: nn.Module, stacks: dict[str, torch.Tensor]) -> set[str]:
    """Names in checkpoints of what lies in `stacks` here, where transformers takes stacks apart while it saves them."""
    if not stacks or not hasattr(model, "save_pretrained"):
        return set()
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:
        return set()
    # Without values: taking real ones apart copies them.
    return set(revert_weight_conversion(model, {name: stack.to("meta") for name, stack in stacks.items()})) - set(stacks)


def _file_prefix(prefix: str, modules: dict[str, tuple]) -> str:
    for name, entry in modules.items():
        own = name[len(prefix):]
        if entry[0].endswith(own):
            return entry[0][:len(entry[0]) - len(own)]
    return prefix


def _head(model: nn.Module, tensors: dict[str, torch.Tensor], names: dict[str, str]) -> tuple[tuple | None, bool]:
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else getattr(model, "lm_head", None)
    if not isinstance(head, nn.Linear):
        return None, False
    own = next((name for name, module in model.named_modules() if module is head), "lm_head")
    tied = f"{own}.weight" not in tensors
    stored = {}
    if tied:
        where = next((name for name, tensor in tensors.items() if tensor.data_ptr() == head.weight.data_ptr()), None)
        if where is None:
            return None, False
        stored = {"tensor": names.get(where, where), "shape": list(head.weight.shape)}
    return (own, head.in_features, head.out_features, head.bias is not None, stored), tied
