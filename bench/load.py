"""A closed loop: what an operation took, of time and of processors, and the longest time without an answer.

Owns: the loop, its figures, and comparisons that take turns. Read next: :mod:`bench.harness`.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from bench.figures import Latency

VALUE: Final = "v" * 198
"""200 bytes as JSON."""
Operation = Callable[[int], Awaitable[object]]
"""Makes the operation of this number; no two have the same one."""


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

    def rate(self) -> float:
        """Return the operations a second."""
        return self.operations / self.seconds

    def nodes_us(self) -> float:
        """Return the processor time of all nodes for an operation; infinite without any."""
        return 1e6 * self.nodes_cpu_s / self.operations if self.operations else float("inf")

    def client_us(self) -> float:
        """Return that of this process."""
        return 1e6 * self.client_cpu_s / self.operations if self.operations else float("inf")

    def p50_ms(self) -> float:
        """Return the median latency."""
        return Latency.of(self.latencies_s).p50_ms


def _nothing() -> float:
    return 0.0


async def window(
    operation: Operation,
    callers: int,
    seconds: float = float("inf"),
    *,
    most: int | None = None,
    first: int = 0,
    nodes_s: Callable[[], float] = _nothing,
    over: Callable[[], bool] = lambda: False,
) -> Window:
    """Keep ``callers`` operations outstanding for ``seconds``, at ``most`` so many, or until it is ``over``.

    Their numbers begin behind ``first``; ``nodes_s`` tells the processor time of the nodes so far.
    """
    latencies: list[float] = []
    last = float("inf") if most is None else first + most
    number, nodes, client = first, nodes_s(), time.process_time()
    began = answered = time.perf_counter()
    until, stall = began + seconds, 0.0

    async def caller() -> None:
        nonlocal number, answered, stall
        while (asked := time.perf_counter()) < until and number < last and not over():
            number += 1
            await operation(number)
            now = time.perf_counter()
            latencies.append(now - asked)
            stall, answered = max(stall, now - answered), now

    await asyncio.gather(*(caller() for _ in range(callers)))
    ended = time.perf_counter()
    stall, spent = max(stall, ended - answered), time.process_time() - client
    return Window(len(latencies), ended - began, latencies, stall, nodes_s() - nodes, spent)


async def in_turn(
    ways: Mapping[str, Callable[[], Awaitable[Window]]], rounds: int, *, warm: int = 0
) -> dict[str, list[Window]]:
    """Return the windows of each way; in each round another one is the first, and ``warm`` rounds are not counted."""
    found: dict[str, list[Window]] = {name: [] for name in ways}
    for turn in range(rounds + warm):
        for name in turned(list(ways), turn):
            seen = await ways[name]()
            if turn >= warm:
                found[name].append(seen)
    return found


def turned(names: Sequence[str], turn: int) -> Iterator[str]:
    """Yield the names from another one on at each turn."""
    at = turn % len(names)
    yield from (*names[at:], *names[:at])


def latency(windows: Sequence[Window]) -> dict[str, float]:
    """Return the percentiles of all operations of some windows, and their number."""
    return Latency.of([took for one in windows for took in one.latencies_s])._asdict()


def paired(over: Sequence[float], under: Sequence[float]) -> dict[str, float]:
    """Return the median of the rounds' ratios, and its quartiles."""
    ratios = sorted(a / b for a, b in zip(over, under, strict=True))
    quarter = len(ratios) // 4
    ends = {"quartile_low": ratios[quarter], "quartile_high": ratios[-1 - quarter]}
    return {"ratio": statistics.median(ratios), **ends}


def compared(
    what: str, over: Sequence[float], under: Sequence[float], *, most: float | None = None, least: float | None = None
) -> dict[str, Any]:
    """Return a row: medians with and without, their ratio, and whether it is at ``most``, or at ``least``, so much."""
    found = paired(over, under)
    row = {"what": what, "with": statistics.median(over), "without": statistics.median(under), **found}
    if most is not None:
        return {**row, "wanted": most, "met": found["ratio"] <= most}
    return row if least is None else {**row, "wanted": least, "met": found["ratio"] >= least}
