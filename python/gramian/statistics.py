"""Statistics of what linear layers receive."""
from __future__ import annotations

import torch
from torch import nn

from ._native import core
from .errors import refuse

HessianAccumulator = core.HessianAccumulator
ImatrixAccumulator = core.ImatrixAccumulator
LocalHessianAccumulator = core.LocalHessianAccumulator


def convolution_rows(convolution: nn.Conv1d | nn.Conv2d, x: torch.Tensor) -> torch.Tensor:
    """The rows that `convolution` multiplies its flattened weight with, for the accumulators: one for each place that its kernel
    takes in x [images, channels, length] or [images, channels, height, width].

    Returns [images * groups * places, channels / groups * kernel], in x's dtype. A solver then takes
    `convolution.weight.flatten(1)`. All groups share a Hessian. Raises GramianError for other modules and shapes, and for a
    padding that is not of zeros.
    """
    if not isinstance(convolution, (nn.Conv1d, nn.Conv2d)):
        raise refuse(type(convolution).__name__, "no nn.Conv1d or nn.Conv2d", "give rows of a linear layer to the accumulators as they are")
    if convolution.padding_mode != "zeros":
        raise refuse("padding_mode", f"{convolution.padding_mode!r}, not zeros", "pad x before, and give a module without padding")
    if convolution.padding == "same" and any(size % 2 == 0 for size in convolution.kernel_size):
        raise refuse("padding", "'same' pads the ends of an even kernel differently", "pad x before, and give a module without padding")
    if convolution.padding == "same":
        padding = [step * (size // 2) for size, step in zip(convolution.kernel_size, convolution.dilation)]
    else:
        padding = [0, 0] if convolution.padding == "valid" else list(convolution.padding)

    def both(values, absent):
        return [*values, absent][:2]
    return core.patch_rows(x, both(convolution.kernel_size, 1), both(convolution.stride, 1), both(padding, 0),
                           both(convolution.dilation, 1), convolution.groups)


__all__ = ["HessianAccumulator", "ImatrixAccumulator", "LocalHessianAccumulator", "convolution_rows"]
