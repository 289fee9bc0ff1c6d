"""The figures of a size: windows of it beside windows of the reference, the slowest write while it grew, its weight.

Must not know what grows. Read next: :mod:`bench.scale.cases`.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Any, Final

from bench.harness import Side
from bench.load import Window, latency
from bench.usage import anonymous_mib
from oncegate.gateway.observability.process import disk_figures

PROBE_S: Final = 0.005
"""Between two writes of a probe."""


def row(size: int, windows: Sequence[Window], beside: Sequence[Window]) -> dict[str, Any]:
    """Return the figures of a size: windows of it, and of the reference, in turn.

    Raises:
        ValueError: other numbers of windows, or none.
    """
    if not windows:
        raise ValueError("a size has at least one window")
    ratios = [
        {"cpu": one.nodes_us() / other.nodes_us(), "p50": one.p50_ms() / other.p50_ms()}
        for one, other in zip(windows, beside, strict=True)
    ]
    operations = sum(one.operations for one in windows)
    return {
        "size": size,
        "operations_per_s": operations / sum(one.seconds for one in windows),
        **latency(windows),
        "stall_ms": 1000 * max(one.stall_s for one in windows),
        "nodes_cpu_us": 1e6 * sum(one.nodes_cpu_s for one in windows) / operations,
        "client_cpu_us": 1e6 * sum(one.client_cpu_s for one in windows) / operations,
        "cpu_ratio": statistics.median(one["cpu"] for one in ratios),
        "p50_ratio": statistics.median(one["p50"] for one in ratios),
    }


class Probe:
    """Writes one row after the other while something grows; ``worst_s`` is what the slowest one took."""

    def __init__(self, side: Side) -> None:
        self.worst_s = 0.0
        self._session, self._ending = side.session, asyncio.Event()
        self._task = asyncio.ensure_future(self._run())

    async def end(self) -> float:
        """Stop, and return the longest time that a write took."""
        self._ending.set()
        await self._task
        return self.worst_s

    async def _run(self) -> None:
        while not self._ending.is_set():
            began = time.perf_counter()
            await self._session.put("probe", "row", "v")
            self.worst_s = max(self.worst_s, time.perf_counter() - began)
            await asyncio.sleep(PROBE_S)


def memory_mib(side: Side) -> float:
    """Return that of the node that has most."""
    return max(anonymous_mib(side.cluster.pid(name)) for name in side.cluster.ids)


def disk_mib(side: Side) -> float:
    """Return the size of the data of the node that has most; files may go while they are counted."""
    found = (disk_figures(side.cluster.directory / name).parts for name in side.cluster.ids)
    return max(sum(parts.values()) for parts in found) / 2**20
