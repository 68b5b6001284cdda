"""Statistics of what linear layers receive."""
from ._native import core

HessianAccumulator = core.HessianAccumulator
ImatrixAccumulator = core.ImatrixAccumulator

__all__ = ["HessianAccumulator", "ImatrixAccumulator"]
