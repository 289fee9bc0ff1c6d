"""Facts of the machine that a node is to run on, for :mod:`oncegate.gateway.node.fitness`.

Owns how each is read. Only the standard library: what is asked here is asked before anything else is loaded.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

from oncegate.gateway.node.fitness import Host

_CONTAINER_BOUNDS: Final = ("memory.max", "memory/memory.limit_in_bytes")
"""Of control groups in version 2 and in version 1."""


def host_of(data_dir: Path, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> Host:
    """Return what is known of this machine, and of the file system where the data directory is, or would be."""
    system = None
    whole = data_dir.absolute()
    with suppress(OSError):
        found = os.statvfs(next(one for one in (whole, *whole.parents) if one.is_dir()))
        system = found if found.f_blocks else None  # some file systems have no size
    return Host(
        descriptors_max=_bound(resource.RLIMIT_NOFILE),
        disk_bytes=None if system is None else system.f_blocks * system.f_frsize,
        disk_free_bytes=None if system is None else system.f_bavail * system.f_frsize,
        is_new=not (whole / "raft").is_dir(),
        memory_bytes=_memory_bytes(proc, groups),
        address_space_bytes=_address_space_bytes(),
    )


def _bound(which: int) -> int | None:
    _, hard = resource.getrlimit(which)
    return None if hard == resource.RLIM_INFINITY else hard


def _address_space_bytes() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def _memory_bytes(proc: Path, groups: Path) -> int | None:
    found = []
    with suppress(OSError, ValueError, StopIteration):
        lines = (proc / "meminfo").read_text().splitlines()
        found.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")))
    for name in _CONTAINER_BOUNDS:
        with suppress(OSError, ValueError):  # "max" is no bound
            found.append(int((groups / name).read_text()))
    return min(found, default=None)
