"""How cost grows: ``python -m bench.scale --case rows``; also values, keys, sessions, remembered, tables,
flows, watchers, nodes.

At each size the load runs in turn on a cluster of that size and on one of the reference size, in the same seconds: a
ratio is formed within a turn, and the first line of each case, the reference beside itself, is the noise of the run.
While a cluster grows a probe writes one row after the other; its slowest write is the stall of growing.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from bench.dedup import Side
from bench.experiments import page
from bench.experiments.results import parser, watched
from bench.figures import save
from bench.options import above_zero, at_least
from bench.scale.cases import CASES, Case
from bench.scale.window import Probe, Window, disk_mib, memory_mib, row, window
from oncegate import Client
from oncegate.gateway.local.cluster import LocalCluster

WARM_S = 0.5
GROWING_S = 3_600.0
ROUNDS = 10
SECONDS = 2.0


async def entered(stack: AsyncExitStack, case: Case, size: int, directory: Path) -> Side:
    """Start a cluster for a size, and declare what the case needs; it stays at size 0."""
    cluster = stack.enter_context(LocalCluster(directory, case.nodes(size), flags=case.flags))
    cluster.start()
    await asyncio.to_thread(cluster.wait_ready)
    client = await stack.enter_async_context(Client(cluster.endpoints, timeout_s=60.0))
    side = Side(cluster, client, await stack.enter_async_context(client.session(window=4_096)))
    await case.begin(side)
    return side


async def grown(case: Case, side: Side, begin_at: int, size: int) -> dict[str, Any]:
    """Bring a cluster to a size; returns seconds, and the slowest write meanwhile."""
    probe, began = Probe(side), time.perf_counter()
    async with asyncio.timeout(GROWING_S):
        await case.grow(side, begin_at, size)
    seconds = time.perf_counter() - began
    return {"grown_s": seconds, "growing_stall_ms": 1000 * await probe.end()}


async def measured(
    case: Case, sizes: tuple[int, ...], directory: Path, *, rounds: int, seconds: float, seed: int
) -> list[dict[str, Any]]:
    """Return a row for each size."""
    order, rows, number = random.Random(seed), list[dict[str, Any]](), 0
    base = sizes[0] if case.reference is None else case.reference
    async with AsyncExitStack() as stack:
        stack.push_async_callback(case.end)
        reference = await entered(stack, case, base, directory / "reference")
        await case.grow(reference, 0, base)
        side, at = None, 0
        inner = await stack.enter_async_context(AsyncExitStack())
        for size in sizes:
            if side is None or case.anew:
                await inner.aclose()
                side, at = await entered(inner, case, size, directory / f"grown-{size}"), 0
            growth = await grown(case, side, min(at, size), size)
            at = max(at, size)
            gc.collect()
            sides = [(side, case.operation(side, size)), (reference, case.operation(reference, base))]
            found: dict[int, list[Window]] = {0: [], 1: []}
            for turn in range(rounds):
                turns = [0, 1]
                order.shuffle(turns)
                for which in turns:
                    one, operation = sides[which]
                    if turn == 0:
                        number += (await window(one, operation, number, case.callers, WARM_S)).operations + case.callers
                    took = await window(one, operation, number, case.callers, seconds)
                    number += took.operations + case.callers
                    found[which].append(took)
            of_size = {**row(size, found[0], found[1]), **growth}
            rows.append({**of_size, "memory_mib": memory_mib(side), "disk_mib": disk_mib(side)})
            show(rows[-1])
    return rows


def show(one: dict[str, Any]) -> None:
    """Print a size."""
    print(
        f"   {one['size']:>12,}: {one['operations_per_s']:>8,.0f}/s of {one['samples']:,}, "
        f"p50 {one['p50_ms']:.2f} p99 {one['p99_ms']:.2f} max {one['max_ms']:.1f} ms, "
        f"nodes {one['nodes_cpu_us']:.0f} us ({one['cpu_ratio']:.2f}), {one['memory_mib']:.0f} MiB, "
        f"stall {one['stall_ms']:.0f} ms, growing {one['growing_stall_ms']:.0f} ms",
        flush=True,
    )


def main() -> int:
    """Run what the command line says."""
    options = parser(__doc__ or "")
    options.add_argument("--case", action="append", choices=[case.name for case in CASES], help="again for more [all]")
    options.add_argument("--rounds", type=at_least(1), help="of each size [10; 3 with --quick]; fewer: a sample")
    options.add_argument("--seconds", type=above_zero, help="of each window [2.0; 0.7 with --quick]; less: a sample")
    options.add_argument("--sizes", type=at_least(1), nargs="+", help="in place of the case's own; not drawn")
    return run(options.parse_args())


def run(options: argparse.Namespace) -> int:
    """Measure the chosen cases, each saved by itself."""
    rounds = options.rounds or (3 if options.quick else ROUNDS)
    seconds = options.seconds or (0.7 if options.quick else SECONDS)
    sample = options.quick or rounds < ROUNDS or seconds < SECONDS
    for kind in CASES:
        if options.case and kind.name not in options.case:
            continue
        case = kind()
        sizes = tuple(options.sizes or (case.quick if options.quick else case.sizes))
        with (
            tempfile.TemporaryDirectory(prefix="oncegate-scale-", dir=options.directory) as name,
            watched(f"scale: {case.title}", Path(name), seed=options.seed, quick=sample) as about,
        ):
            about |= {"case": case.name, "rounds": rounds, "seconds": seconds, "callers": case.callers}
            rows = asyncio.run(measured(case, sizes, Path(name), rounds=rounds, seconds=seconds, seed=options.seed))
        if not options.no_save and not options.sizes:
            save("scale", about, rows)
            print(f"drawn: {page.write()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
