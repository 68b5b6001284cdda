"""Ranks of torchrun that share one job: `torchrun --nproc-per-node N -m gramian quantize ...` (docs/python.md)."""
from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist

# A rank waits for others while these solve their modules.
TIMEOUT_SECONDS = float(os.environ.get("GRAMIAN_RANK_TIMEOUT", "1800"))


class Group:
    """The process group of this job, over Gloo: rank, size, and two operations in place that raise when a rank does not answer."""

    def __init__(self) -> None:
        dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_SECONDS))
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def sum(self, values: torch.Tensor) -> None:
        dist.all_reduce(values)

    def broadcast(self, values: torch.Tensor, source: int) -> None:
        dist.broadcast(values, src=source)

    def close(self) -> None:
        dist.destroy_process_group()


def threads_of_rank() -> int:
    """This rank's share of the host's cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
