"""Loads the extension module, after a look at the torch that is there: another one than it was built for would fail somewhere
in the dynamic linker, or later."""
from __future__ import annotations

import torch

try:
    from . import _build
except ImportError as error:
    raise ImportError("gramian's extension module is not built; `pip install --no-build-isolation .` in its source folder, "
                      "or `make python` and PYTHONPATH=build/python") from error


def _release(version: str) -> str:
    return version.split("+")[0]


if _release(torch.__version__) != _release(_build.TORCH_VERSION):
    raise ImportError(f"gramian was built for torch {_build.TORCH_VERSION}, but torch {torch.__version__} is loaded; "
                      "build it again for this one (`pip install --no-build-isolation --force-reinstall .`), or install "
                      f"torch {_build.TORCH_VERSION}")

from . import _core as core  # noqa: E402

__all__ = ["core"]
