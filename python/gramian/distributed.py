"""Ranks of torchrun that share one job: `torchrun --nproc-per-node N -m gramian quantize ...` (docs/python.md)."""
from __future__ import annotations

import os
import socket
import struct
from datetime import timedelta

import torch
import torch.distributed as dist

from .errors import refuse

# A rank waits for others while these solve their modules.
TIMEOUT_SECONDS = float(os.environ.get("GRAMIAN_RANK_TIMEOUT", "1800"))


class Group:
    """The process group of this job, over Gloo: rank, size, and two operations in place that raise when a rank does not answer. Raises
    GramianError where the ranks do not find each other."""

    def __init__(self) -> None:
        _choose_interface()
        try:
            dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_SECONDS))
        except RuntimeError as error:
            raise refuse(f"rank {os.environ.get('RANK')} of {os.environ.get('WORLD_SIZE')}",
                         f"does not reach the others: {str(error).splitlines()[0]}",
                         "check --master-addr, the hosts' firewalls and GLOO_SOCKET_IFNAME (docs/python.md)", "io") from error
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def sum(self, values: torch.Tensor) -> None:
        dist.all_reduce(values)

    def broadcast(self, values: torch.Tensor, source: int) -> None:
        dist.broadcast(values, src=source)

    def close(self) -> None:
        dist.destroy_process_group()


def _choose_interface() -> None:
    """Gloo listens where this host's own name points, which Debian makes a loopback address: other hosts would not find it there."""
    alone = os.environ.get("WORLD_SIZE") == os.environ.get("LOCAL_WORLD_SIZE")
    if alone or "GLOO_SOCKET_IFNAME" in os.environ or "MASTER_ADDR" not in os.environ:
        return
    name = interface_to(os.environ["MASTER_ADDR"])
    if name is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = name


def interface_to(host: str) -> str | None:
    """The network interface on the way to `host` (IPv4); None where that is this machine's loopback, or cannot be said."""
    try:
        import fcntl
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect((host, 9))  # sends nothing
            own = way.getsockname()[0]
            for _, name in () if own.startswith("127.") else socket.if_nameindex():
                try:
                    answer = fcntl.ioctl(way.fileno(), 0x8915, struct.pack("256s", name.encode()))  # SIOCGIFADDR
                except OSError:  # without an address
                    continue
                if socket.inet_ntoa(answer[20:24]) == own:
                    return name
    except (OSError, ImportError):
        pass
    return None


def threads_of_rank() -> int:
    """This rank's share of the host's cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
