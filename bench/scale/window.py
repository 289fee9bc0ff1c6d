"""One window of a load: what an operation took, of time and of processors, and the longest time without an answer.

Owns: the closed loop and its figures. Must not know what grows. Read next: :mod:`bench.scale.cases`.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.dedup import Side
from bench.figures import Latency

Operation = Callable[[int], Awaitable[object]]
"""Makes the operation of this number; no two have the same one."""
PROBE_S: Final = 0.005
"""Between two writes of a probe."""


class Window(NamedTuple):
    """What a window of a load found.

    Attributes:
        operations: that were answered in it.
        seconds: its length.
        latencies_s: of each of them.
        stall_s: longest time without any answer, the window's ends included.
        nodes_cpu_s, client_cpu_s: processor time of all nodes, of this process.
    """

    operations: int
    seconds: float
    latencies_s: list[float]
    stall_s: float
    nodes_cpu_s: float
    client_cpu_s: float

    def nodes_us(self) -> float:
        """Return the processor time of all nodes for an operation; infinite without any."""
        return 1e6 * self.nodes_cpu_s / self.operations if self.operations else float("inf")

    def p50_ms(self) -> float:
        """Return the median latency."""
        return Latency.of(self.latencies_s).p50_ms


async def window(side: Side, operation: Operation, first: int, callers: int, seconds: float) -> Window:
    """Keep ``callers`` operations outstanding for ``seconds``; their numbers begin at ``first``."""
    latencies: list[float] = []
    number, nodes_s, client_s = first, side.cpu_s(), time.process_time()
    began = answered = time.perf_counter()
    until, stall = began + seconds, 0.0

    async def caller() -> None:
        nonlocal number, answered, stall
        while (asked := time.perf_counter()) < until:
            number += 1
            await operation(number)
            now = time.perf_counter()
            latencies.append(now - asked)
            stall, answered = max(stall, now - answered), now

    await asyncio.gather(*(caller() for _ in range(callers)))
    ended = time.perf_counter()
    stall = max(stall, ended - answered)
    return Window(
        len(latencies), ended - began, latencies, stall, side.cpu_s() - nodes_s, time.process_time() - client_s
    )


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
    latency = Latency.of([took for one in windows for took in one.latencies_s])
    return {
        "size": size,
        "operations_per_s": operations / sum(one.seconds for one in windows),
        **latency._asdict(),
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


def anonymous_mib(pid: int) -> float:
    """Return the anonymous memory of a process: what the page cache cannot give back."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def memory_mib(side: Side) -> float:
    """Return that of the node that has most."""
    return max(anonymous_mib(side.cluster.pid(name)) for name in side.cluster.ids)


def disk_mib(side: Side) -> float:
    """Return the size of the data of the node that has most; files may go while they are counted."""
    return max(sum(_sizes(side.cluster.directory / name)) for name in side.cluster.ids) / 2**20


def _sizes(directory: Path) -> list[int]:
    found = []
    for path in directory.rglob("*"):
        try:
            found.append(path.stat().st_blocks * 512 if path.is_file() else 0)
        except FileNotFoundError:
            continue
    return found
