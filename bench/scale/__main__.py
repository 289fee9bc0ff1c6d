"""How cost grows: ``python -m bench.scale --case rows``; also values, keys, sessions, remembered, tables,
flows, watchers, busy-table, nodes.

At each size the load runs in turn on a cluster of that size and on one of the reference size, in the same seconds: a
ratio is formed within a turn, and the first line of each case, the reference beside itself, is the noise of the run.
While a cluster grows a probe writes one row after the other; its slowest write is the stall of growing.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from bench.harness import Bench, Side, option, part, side
from bench.load import Window, window
from bench.options import above_zero, at_least
from bench.scale.cases import CASES, Case
from bench.scale.growth import Probe, disk_mib, memory_mib, row
from oncegate.gateway.local.cluster import LocalCluster

WARM_S: Final = 0.5
GROWING_S: Final = 3_600.0


async def entered(stack: AsyncExitStack, case: Case, size: int, directory: Path) -> Side:
    """Start a cluster for a size, and declare what the case needs; it stays at size 0."""
    cluster = LocalCluster(directory, case.nodes(size), flags=case.flags)
    one = await stack.enter_async_context(side(cluster, timeout_s=60.0))
    await case.begin(one)
    return one


async def grown(case: Case, one: Side, begin_at: int, size: int) -> dict[str, Any]:
    """Bring a cluster to a size; returns seconds, and the slowest write meanwhile."""
    probe, began = Probe(one), time.perf_counter()
    async with asyncio.timeout(GROWING_S):
        await case.grow(one, begin_at, size)
    seconds = time.perf_counter() - began
    return {"grown_s": seconds, "growing_stall_ms": 1000 * await probe.end()}


async def measured(
    case: Case, sizes: tuple[int, ...], directory: Path, *, rounds: int, seconds: float, seed: int
) -> AsyncIterator[dict[str, Any]]:
    """Yield a row for each size."""
    order, number = random.Random(seed), 0
    base = sizes[0] if case.reference is None else case.reference
    async with AsyncExitStack() as stack:
        stack.push_async_callback(case.end)
        reference = await entered(stack, case, base, directory / "reference")
        await case.grow(reference, 0, base)
        one, at = None, 0
        inner = await stack.enter_async_context(AsyncExitStack())
        for size in sizes:
            if one is None or case.anew:
                await inner.aclose()
                one, at = await entered(inner, case, size, directory / f"grown-{size}"), 0
            growth = await grown(case, one, min(at, size), size)
            at = max(at, size)
            gc.collect()
            sides = [(one, case.operation(one, size)), (reference, case.operation(reference, base))]
            found: dict[int, list[Window]] = {0: [], 1: []}
            for turn in range(rounds):
                for which in order.sample([0, 1], 2):
                    loaded, operation = sides[which]
                    for length in (WARM_S, seconds) if turn == 0 else (seconds,):
                        how: dict[str, Any] = {"first": number, "nodes_s": loaded.cpu_s}
                        took = await window(operation, case.callers, length, **how)
                        number += took.operations + case.callers
                    found[which].append(took)
            of_size = {**row(size, found[0], found[1]), **growth}
            yield {**of_size, "memory_mib": memory_mib(one), "disk_mib": disk_mib(one)}


BENCH: Final = Bench(
    "scale", __doc__, drawn=True,
    options=(
        option("--case", None, "again for more [all]", action="append", choices=[case.name for case in CASES]),
        option("--rounds", 10, "of each size; fewer: a sample", quick=3, type=at_least(1)),
        option("--seconds", 2.0, "of each window; less: a sample", quick=0.7, type=above_zero),
        option("--sizes", None, "in place of the case's own; not saved", type=at_least(1), nargs="+"),
    ),
)  # fmt: skip


def main() -> int:
    """Measure the chosen cases, each saved by itself."""
    options = BENCH.parse()
    options.no_save = options.no_save or bool(options.sizes)
    how = {"rounds": options.rounds, "seconds": options.seconds}
    for kind in CASES:
        if options.case and kind.name not in options.case:
            continue
        case = kind()
        sizes = tuple(options.sizes or (case.quick if options.quick else case.sizes))
        with part(BENCH, f"scale: {case.title}", options, case=case.name, **how, callers=case.callers) as run:

            async def play(case: Case = case, sizes: tuple[int, ...] = sizes, run: Any = run) -> None:
                async for one in measured(case, sizes, run.directory, **how, seed=options.seed):
                    run.add(one)

            asyncio.run(play())
    return 0


if __name__ == "__main__":
    sys.exit(main())
