"""Whether something else had the machine: before the start, and during a load. Pure but for the wait.

Owns: the bounds, and what is said of a disturbed round. Figures of a disturbed round are kept and marked; the round is
run again while repeats are left (:mod:`bench.peers.rounds`).
"""

from __future__ import annotations

import os
import time
from typing import Final

from bench.usage import MachineTime

BUSY_BEFORE_MAX: Final = 0.15
"""Share of all cores that others may take before a round, while nothing of the bench runs."""
STOLEN_MAX: Final = 0.03
"""Share of all cores that the hypervisor may give to other machines."""
OTHERS_MAX: Final = 0.25
"""Share of all cores during a load that neither servers nor clients take. The kernel's own threads are among it."""
FLUSH_MS_MIN: Final = 0.02
"""No disk flushes faster: the folder is in memory, or the disk only says that it flushed."""
LOOK_S: Final = 1.0
_CORES: Final = os.cpu_count() or 1


def before_start(seen: MachineTime) -> str | None:
    """Return what disturbs, seen while nothing of the bench ran; None: nothing."""
    if stolen := _stolen(seen):
        return f"before the start: {stolen}"
    if seen.busy_s > BUSY_BEFORE_MAX * seen.all_s:
        return f"before the start: {_cores(seen, seen.busy_s):.2f} cores busy"
    return None


def of_disk(fdatasync_ms: float) -> str | None:
    """Return what is wrong with a disk that takes so long for an ``fdatasync``; None: nothing."""
    if fdatasync_ms < FLUSH_MS_MIN:
        return f"fdatasync takes {fdatasync_ms:.3f} ms: nothing is flushed in this folder"
    return None


def during(seen: MachineTime, ours_s: float) -> str | None:
    """Return what disturbed a load whose servers and clients took ``ours_s`` of processor time; None: nothing."""
    if stolen := _stolen(seen):
        return f"during a load: {stolen}"
    others_s = seen.busy_s - ours_s
    if others_s > OTHERS_MAX * seen.all_s:
        return f"during a load: {_cores(seen, others_s):.2f} cores busy with something else"
    return None


def wait_for_quiet(patience_s: float) -> str | None:
    """Wait until nothing disturbs; returns what still did when patience ended, or None."""
    until = time.monotonic() + patience_s
    while True:
        before = MachineTime.now()
        time.sleep(LOOK_S)
        found = before_start(MachineTime.now().since(before))
        if found is None or time.monotonic() > until:
            return found


def _stolen(seen: MachineTime) -> str | None:
    return f"{seen.stolen_s / seen.all_s:.1%} of the time stolen" if seen.stolen_s > STOLEN_MAX * seen.all_s else None


def _cores(seen: MachineTime, seconds: float) -> float:
    """Return how many cores ``seconds`` are; the machine's cores together have ``all_s``."""
    return seconds / seen.all_s * _CORES
