"""Gramian: quantization of large language models after training, by what their layers see on calibration text.

    import gramian
    gramian.quantize(model, texts, tokenizer=tokenizer, output="OUT", method="qqq")

Everything is imported when it is first used: `python -m gramian --help` needs no torch.
"""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .errors import GramianError

if TYPE_CHECKING:
    from .codecs import codec_names, decode, encode
    from .data import Rows, calibration_rows
    from .files import Gguf, GgufTensor, Importance, read_gguf, read_imatrix, write_gguf, write_imatrix
    from .job import quantize
    from .linear import W4A8Linear
    from .model import Model
    from .solvers import QuantizedLinear, pack, pack_qqq, round_to_nearest, solve_gptq, solve_qqq, unpack, unpack_qqq
    from .statistics import HessianAccumulator, ImatrixAccumulator, LocalHessianAccumulator, convolution_rows

_PLACES = {
    "statistics": ["HessianAccumulator", "ImatrixAccumulator", "LocalHessianAccumulator", "convolution_rows"],
    "solvers": ["QuantizedLinear", "pack", "pack_qqq", "round_to_nearest", "solve_gptq", "solve_qqq", "unpack", "unpack_qqq"],
    "linear": ["W4A8Linear"],
    "codecs": ["codec_names", "decode", "encode"],
    "files": ["Gguf", "GgufTensor", "Importance", "read_gguf", "read_imatrix", "write_gguf", "write_imatrix"],
    "data": ["Rows", "calibration_rows"],
    "job": ["quantize"],
    "model": ["Model"],
}
_PLACE_OF = {name: module for module, names in _PLACES.items() for name in names}

__all__ = ["GramianError", "__version__", *sorted(_PLACE_OF)]


def __getattr__(name: str):
    if name == "__version__":
        from . import _build
        return _build.VERSION
    if name not in _PLACE_OF:
        raise AttributeError(f"module 'gramian' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_PLACE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
