"""Where the leader's time goes, by part of the path of a command; and what that says about the limit.

Owns the attribution of functions to parts. A profiler slows Python code down and system calls not, so shares of a
profiled run favour Python; the utilisations beside them come from a run without it.
"""

from __future__ import annotations

import cProfile
import os
import pstats
from typing import Any, Final

_PARTS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("waiting for events", ("select.epoll", "'poll' of 'select")),
    ("flush", ("posix.fdatasync", "posix.fsync")),
    ("journal write", ("posix.pwritev", "posix.pwrite")),
    (
        "journal encode",
        ("consensus/log/wal.py", "consensus/log/segment.py", "consensus/log/entries.py", "crc32c.extend", "_struct"),
    ),
    ("sockets", ("_socket.socket", "asyncio/selector_events.py", "asyncio/transports.py")),
    (
        "messages",
        (
            "consensus/net/wire.py",
            "consensus/messages.py",
            "consensus/net/connection.py",
            "consensus/net/transport.py",
            "msgspec",
            "crc32c.value",
            "memoryview",
        ),
    ),
    ("library", ("pysyncobj", "consensus/core/library", "consensus/core/voting.py", "consensus/core/repairs.py")),
    ("apply", ("consensus/core/applier.py", "consensus/core/proposals.py", "replica_process.py")),
    ("engine", ("consensus/",)),
    ("loop", ("asyncio/", "_asyncio", "contextvars", "Context")),
    ("load of the bench", ("bench/",)),
)


def part_of(file: str, function: str) -> str:
    """Return the part that a profiled function belongs to."""
    where = f"{file} {function}"
    return next((part for part, marks in _PARTS if any(mark in where for mark in marks)), "other")


def shares(profile: cProfile.Profile) -> dict[str, float]:
    """Return seconds of own time by part, largest first."""
    found: dict[str, float] = {}
    stats: dict[tuple[str, int, str], Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    for (file, _, function), (_, _, own, _, _) in stats.items():
        part = part_of(file, function)
        found[part] = found.get(part, 0.0) + own
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def limit(row: dict[str, Any]) -> str:
    """Say in one line what a run without profiler was limited by.

    ``row`` has processor time by process (``cpu``: name to share of a core, the leader first), ``machine_busy`` (cores
    that anything kept busy) and the flushes.
    """
    cpu: dict[str, float] = row["cpu"]
    leader, *followers = cpu.values()
    cores = os.cpu_count() or 1
    flush = row["flushes_per_second"] * row["flush_p50_ms"] / 1000
    busy = f"leader {leader:.0%} of a core and {flush:.0%} of its time in flushes, followers "
    busy += (
        " and ".join(f"{share:.0%}" for share in followers) + f" of a core, {sum(cpu.values()):.2f} of {cores} cores"
    )
    if row["machine_busy"] > 0.85 * cores > 1.5 * sum(cpu.values()):
        return f"other work on this machine, which took what was left of {cores} cores: {busy}"
    if row["machine_busy"] > 0.9 * cores:
        return f"the processors: {busy}"
    if leader + flush > 0.85:
        longer = "the leader's one thread" if leader > flush else "the flush"
        return f"{longer}: {busy}"
    return f"the round of messages, flushes of the followers included: {busy}"
