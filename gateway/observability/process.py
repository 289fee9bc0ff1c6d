"""What the process takes of its machine, and the data directory of its disk.

Owns: how these figures are read. On another system than Linux, what only ``/proc`` knows is None.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_PROC: Final = Path("/proc/self")
_PAGE_BYTES: Final = resource.getpagesize()
_BLOCK_BYTES: Final = 512
"""Of ``st_blocks``, whatever the file system."""


class ProcessFigures(NamedTuple):
    """The process now."""

    cpu_s: float
    resident_bytes: int | None
    virtual_bytes: int | None
    open_files: int | None
    files_max: int | None
    threads: int
    started_s: float | None
    """Unix time."""


class DiskFigures(NamedTuple):
    """The data directory, and the file system that it is on."""

    free_bytes: int
    """For who is not root."""
    size_bytes: int
    parts: dict[str, int]
    """Bytes that each directory of the data directory takes on the disk."""


def _started_s() -> float | None:
    with suppress(OSError, ValueError, StopIteration):
        ticks = int((_PROC / "stat").read_text().rpartition(")")[2].split()[19])
        lines = Path("/proc/stat").read_text().splitlines()
        booted_s = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
        return booted_s + ticks / os.sysconf("SC_CLK_TCK")
    return None


_STARTED_S: Final = _started_s()


def process_figures() -> ProcessFigures:
    """Read the figures of this process; microseconds, and some more for thousands of open files."""
    virtual = resident = files = None
    with suppress(OSError):
        virtual, resident = (int(pages) * _PAGE_BYTES for pages in (_PROC / "statm").read_text().split()[:2])
        files = len(os.listdir(_PROC / "fd")) - 1  # one is the listing's own
    bound = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    files_max = None if bound == resource.RLIM_INFINITY else bound
    return ProcessFigures(
        time.process_time(), resident, virtual, files, files_max, threading.active_count(), _STARTED_S
    )


def disk_figures(data_dir: Path) -> DiskFigures:
    """Read the figures of a data directory; blocks for a look at each of its files.

    A file that goes meanwhile counts or not.

    Raises:
        OSError: the directory cannot be read.
    """
    system = os.statvfs(data_dir)
    parts = {entry.name: _bytes_of(entry.path) for entry in os.scandir(data_dir) if entry.is_dir(follow_symlinks=False)}
    return DiskFigures(system.f_bavail * system.f_frsize, system.f_blocks * system.f_frsize, parts)


def _bytes_of(directory: str) -> int:
    total, waiting = 0, [directory]
    while waiting:
        with suppress(FileNotFoundError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
    return total
