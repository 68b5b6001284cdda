"""gramian.quantize(): any PyTorch decoder to a checkpoint of fewer bits."""
from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ._native import core
from .data import calibration_rows
from .errors import refuse
from .hooks.capture import capture, untouched
from .hooks.decoder import find_decoder
from .hooks.driver import Driver
from .hooks.subject import engine_subject
from .notebook import layer_progress


def quantize(model: nn.Module, data: Any, *, output: str | os.PathLike, recipe: str | os.PathLike | Mapping | None = None,
             method: str | None = None, format: str | None = None, tokenizer: Any = None,
             layers: str | nn.Module | None = None, batch_size: int = 8, sequence_length: int = 512,
             samples: int | None = None, sequential: str | None = None, hessian_input_dtype: str = "auto",
             shared_inputs: bool = True, min_expert_tokens: int = 1, memory: str | int | None = None, skip_unfit: bool = False,
             skip_scan: bool = False, compat: str | None = None, target: str | None = None, lm_head_bits: int | None = None,
             untie: bool = False, keep: bool = False, force: bool = False, resume: bool = False, dry_run: bool = False,
             telemetry: str | os.PathLike | None = None, statistics: str | os.PathLike | None = None,
             imatrix: str | os.PathLike | None = None, quiet: bool = False, progress: bool | None = None,
             config: Mapping | None = None, **options: Any) -> dict:
    """Quantizes `model` layer by layer on what its own forward gives, and writes a checkpoint that loaders read.

    model: a transformers model or any nn.Module whose decoder layers are a chain: each takes the hidden states first and gives the
    next one's. Its forward is called with token ids [rows, length] (`input_ids` where it has that name).
    data: calibration data, see calibration_rows(); texts need `tokenizer`, which is also saved beside the weights.
    output: folder to make, or the file NAME.gguf; appears only when it is complete and has been read back. `force` replaces one.
    method ("qqq", "gptq", "local_hessian", "imatrix", "rtn", ...), format ("qqq", "gptq", "gptq_v2", "compressed-tensors", "gguf"),
    recipe (a file, or a mapping of its fields) and **options by GPT-QModel's names (bits, group_size, sym, desc_act, damp_percent, mse,
    dynamic, ...: docs/recipes.md); options go before the recipe. For "gguf" there is `type` ("q4_k", "iq2_xxs", ...) instead of bits,
    and the model must be of a type that GGUF has names for (docs/formats.md).
    layers: the list of decoder layers or its name, where it is not found. batch_size: rows of one length that run together.
    sequential: "subset" (each statistic sees all quantized modules before it), "layer" or "none".
    statistics: with sequential="none", a file that keeps the statistics of the original model, or has them from an earlier job, also
    one of `gramian quantize` over the same weights, configuration and rows. imatrix: with method="imatrix", a file that has the importance
    instead of a forward (`data` then only shows how the layers run; one row will do).
    memory: most resident memory of this process, "24GiB" or bytes. Sums of inputs are then taken in as many parts as fit, for each of
    which a layer's batches run once more, to the same bytes; the model itself and its rows' hidden states must fit (docs/python.md).
    keep: leave the dequantized weights in the model. Otherwise, and whenever anything fails, the model is as before: its parameters
    are the same memory, hooks are gone, modes and the global random state too.
    config: what config.json is to say, where the model has no `config`.

    A job that stops leaves OUTPUT.journal; the same call goes on after its last finished layer.

    Returns the report (docs/report.md) with "unhooked": matrices of the layers that no hook reached, which stay as they are.
    Raises GramianError with everything that is wrong before any work, and for values that are not finite, naming the module.
    """
    if not isinstance(model, nn.Module):
        raise refuse("model", f"a {type(model).__name__} is no torch.nn.Module", "pass a loaded model; for a folder there is "
                     "`python -m gramian quantize`")
    if batch_size < 1:
        raise refuse("batch_size", f"{batch_size} rows", "give 1 or more")
    rows = calibration_rows(data, tokenizer=tokenizer, sequence_length=sequence_length, samples=samples)
    config = _config(model, config)
    if method is not None:
        options["method"] = method
    if format is not None:
        options["format"] = format
    settings = {
        "name": type(model).__name__, "source": _source(model), "output": str(Path(output)), "batch": batch_size, "compat": compat,
        "one_matrix": target == "vllm", "untie": untie, "lm_head_bits": lm_head_bits, "sequential": sequential,
        "hessian_input_dtype": hessian_input_dtype, "shared_inputs": shared_inputs, "min_expert_tokens": min_expert_tokens,
        "skip_unfit": skip_unfit, "skip_scan": skip_scan, "dry_run": dry_run, "force": force, "resume": resume,
        "memory": "" if memory is None else str(memory), "telemetry": "" if telemetry is None else str(telemetry), "quiet": quiet,
        "statistics": "" if statistics is None else str(statistics), "imatrix": "" if imatrix is None else str(imatrix),
        "calibration": str(data) if isinstance(data, (str, os.PathLike)) else "",
        "options": json.dumps(options), **_recipe(recipe),
    }
    core.check_settings(json.dumps(settings), json.dumps(config))
    decoder = find_decoder(model, layers)
    given = {"rows": rows.ids, "asked": rows.asked, "blank": rows.blank, "split": rows.split, "policy": rows.policy}
    with ExitStack() as stack:
        side = stack.enter_context(tempfile.TemporaryDirectory()) if tokenizer is not None else ""
        if tokenizer is not None:
            _save_tokenizer(tokenizer, Path(side))
        _save_generation_config(model, side)
        stack.enter_context(untouched(model))
        seen = capture(decoder, rows.ids, batch_size, str(config.get("model_type", "")))
        subject = engine_subject(decoder, seen, config, side)
        if subject.unhooked:
            warnings.warn(f"left as they are, because no hook reaches them: {', '.join(subject.unhooked)}", stacklevel=2)
        driver = Driver(decoder, seen, subject, rows.ids, batch_size, keep, layer_progress(progress, quiet))
        done = False
        try:
            report = json.loads(core.quantize(json.dumps(settings), subject.engine, given, driver))
            done = True
        finally:
            if not (done and keep):
                driver.restore()
    return report | {"unhooked": subject.unhooked}


def _recipe(recipe: str | os.PathLike | Mapping | None) -> dict:
    if recipe is None:
        return {"recipe_path": "", "recipe": "{}"}
    if isinstance(recipe, Mapping):
        return {"recipe_path": "", "recipe": json.dumps(dict(recipe))}
    return {"recipe_path": os.fspath(recipe), "recipe": ""}


def _config(model: nn.Module, given: Mapping | None) -> dict:
    if given is not None:
        return dict(given)
    config = getattr(model, "config", None)
    if hasattr(config, "to_json_string"):  # as save_pretrained() would write it
        fields = json.loads(config.to_json_string())
        fields["architectures"] = [type(model).__name__]
        if isinstance(getattr(model, "dtype", None), torch.dtype):
            fields["torch_dtype" if "torch_dtype" in fields else "dtype"] = str(model.dtype).removeprefix("torch.")
        return dict(sorted(fields.items()))
    return dict(config) if isinstance(config, Mapping) else {"architectures": [type(model).__name__]}


def _source(model: nn.Module) -> str:
    """Where the model is from, or what it is."""
    return getattr(getattr(model, "config", None), "name_or_path", None) or type(model).__name__


def _save_tokenizer(tokenizer: Any, folder: Path) -> None:
    if hasattr(tokenizer, "save_pretrained"):
        tokenizer.save_pretrained(folder)
    elif hasattr(tokenizer, "save"):
        tokenizer.save(str(folder / "tokenizer.json"))


def _save_generation_config(model: nn.Module, folder: str) -> None:
    generation = getattr(model, "generation_config", None)
    if folder and hasattr(generation, "save_pretrained"):
        generation.save_pretrained(folder)
