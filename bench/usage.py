"""What processes and the machine have used, from ``/proc``. Differences of two readings are what a load took."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """Processor time, and bytes that the file system was asked to write.

    Processor time is that of children too which have ended and were waited for, such as workers of a daemon.
    """

    cpu_s: float
    written_bytes: int

    @classmethod
    def of(cls, pids: Iterable[int]) -> Usage:
        """Read that of processes; one that is gone counts as nothing."""
        cpu, written = 0, 0
        for pid in pids:
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                cpu += sum(map(int, words[11:15]))
                written += written_bytes(pid)
        return cls(cpu / TICKS_PER_S, written)

    def since(self, before: Usage) -> Usage:
        """Return the difference."""
        return Usage(self.cpu_s - before.cpu_s, self.written_bytes - before.written_bytes)


def written_bytes(pid: int | str = "self") -> int:
    """Return the bytes that a process has made the file system write."""
    io = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(io["write_bytes"])


def anonymous_mib(pid: int | str = "self") -> float:
    """Return the anonymous memory of a process: what the page cache cannot give back."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def resident_mib(pid: int) -> float:
    """Return the memory of a process, shared pages included; 0 of one that is gone."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) / 1024
    return 0.0


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and they, and so on, as they are now."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1] if entry.name.isdigit() else "0"
            parents.setdefault(int(parent), []).append(int(entry.name))
    found, left = list[int](), [pid]
    while left:
        below = parents.get(left.pop(), [])
        found += below
        left += below
    return found


class MachineTime(NamedTuple):
    """Processor time of all cores together in seconds: busy without what was stolen, stolen, and all there was."""

    busy_s: float
    stolen_s: float
    all_s: float

    @classmethod
    def now(cls) -> MachineTime:
        """Read it."""
        return cls.parse(Path("/proc/stat").read_text())

    @classmethod
    def parse(cls, stat: str) -> MachineTime:
        """Read it from the text of ``/proc/stat``."""
        # user, nice, system, idle, iowait, irq, softirq, steal; what guests take is in user already
        user, nice, system, idle, iowait, irq, soft, stolen = map(int, stat.split("\n", 1)[0].split()[1:9])
        busy = user + nice + system + irq + soft
        return cls(busy / TICKS_PER_S, stolen / TICKS_PER_S, (busy + idle + iowait + stolen) / TICKS_PER_S)

    def since(self, before: MachineTime) -> MachineTime:
        """Return the difference."""
        return MachineTime(self.busy_s - before.busy_s, self.stolen_s - before.stolen_s, self.all_s - before.all_s)
