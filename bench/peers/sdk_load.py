"""The load of the gateway through its SDK; speaks as ``load/`` does. ``python -m bench.peers.sdk_load -h``.

Modes: ``sdk``, one session whose waiting operations travel together; ``rotating``, the same over all nodes in turn;
``batches`` of 100 and ``ranges`` of 1,024, as :mod:`bench.ingest` has them. ``--callers`` counts operations under way.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import heapq
import itertools
import sys
import time
import uuid
from typing import Final

import numpy as np

from bench import ingest
from bench.children import say
from oncegate import Client, Session

MODES: Final = {
    "sdk": (SINGLE := ingest.CASES[0]), "rotating": SINGLE,
    "batches": ingest.Case("", 1, 100), "ranges": ingest.Case("", 1, 1024, range=True),
}  # fmt: skip
"""The call of each mode."""
WINDOW: Final = 4096
PROGRESS_S: Final = 0.05
GAPS_KEPT: Final = 200
PATIENCE_S: Final = 30.0


class Window:
    """Counts what ended in the window, as ``load/`` does: the load goes on before it and after it."""

    def __init__(self, seconds: float, warm_s: float) -> None:
        self.from_s = time.perf_counter() + warm_s
        self.until_s = self.from_s + seconds
        self.operations = 0
        self.latencies_s: list[float] = []

    def note(self, began_s: float, operations: int) -> None:
        """Count operations that have just ended."""
        ended_s = time.perf_counter()
        if self.from_s <= ended_s <= self.until_s:
            self.operations += operations
            self.latencies_s.append(ended_s - began_s)


async def window(options: argparse.Namespace, session: Session, prefix: str) -> None:
    """Measure one window and say its result."""
    case = MODES[options.mode]
    act, numbers = case.operation(session, prefix, options.seed), itertools.count(1)
    load = Window(options.measured, options.warm)
    from_ns = time.time_ns() + int((load.from_s - time.perf_counter()) * 1e9)
    say("window", from_ns=from_ns, until_ns=from_ns + int(options.measured * 1e9))

    async def caller() -> None:
        while (began := time.perf_counter()) < load.until_s:
            await act(next(numbers))
            load.note(began, case.rows)

    await asyncio.gather(*(caller() for _ in range(max(1, options.callers // case.rows))))
    took_ms = np.asarray(load.latencies_s or [0.0]) * 1000
    p50, p99, p999, worst = np.percentile(took_ms, [50, 99, 99.9, 100]).tolist()
    figures = {"p50_ms": p50, "p99_ms": p99, "p999_ms": p999, "max_ms": worst}
    say("result", operations=load.operations, seconds=options.measured, errors=0, **figures)


async def steady(options: argparse.Namespace, client: Client, session: Session, prefix: str) -> None:
    """Write until standard input closes, then read everything back and say what was lost."""
    closing = asyncio.Event()
    answered: list[int] = []
    missing: set[str] = set()

    async def call(worker: int) -> None:
        number = 0
        while not closing.is_set():
            number += 1
            key = f"{prefix}{worker}-{number}"
            await session.put("resident", key, "v" * (ingest.VALUE_BYTES - 2), timeout_s=PATIENCE_S)
            answered.append(time.time_ns())
            missing.add(key)

    async def progress() -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            say("progress", at_ns=time.time_ns(), acknowledged=len(answered))

    async def until_closed() -> None:
        await asyncio.to_thread(sys.stdin.read)
        closing.set()

    beside = [asyncio.ensure_future(progress()), asyncio.ensure_future(until_closed())]
    await asyncio.gather(*(call(number) for number in range(options.callers)))
    for task in beside:
        task.cancel()
    acknowledged, unknown = len(missing), 0
    async for row in client.rows("resident", prefix=prefix):
        if row.key in missing:
            missing.remove(row.key)
        else:
            unknown += 1
    lost = len(missing)
    # A row has one value: what was written twice could not be seen, the SDK's ids prevent it.
    counts = {"acknowledged": acknowledged, "retries": None, "lost": lost, "twice": None, "unknown": unknown}
    say("result", **counts, gaps=gaps(answered))


def gaps(answered: list[int]) -> list[dict[str, int]]:
    """Return the longest times between two answers, the longest first."""
    times = sorted(answered)
    longest = heapq.nlargest(GAPS_KEPT, itertools.pairwise(times), key=lambda pair: pair[1] - pair[0])
    return [{"from_ns": begin, "until_ns": end} for begin, end in longest]


async def run(options: argparse.Namespace) -> None:
    """Run what the command line says."""
    prefix = f"{uuid.uuid4().hex[:12]}-"
    async with Client(options.endpoints.split(","), prefer_leader=options.mode != "rotating") as client:
        await ingest.declare(client)
        async with client.session(window=WINDOW) as session:
            gc.collect()
            gc.freeze()
            if options.steady:
                await steady(options, client, session, prefix)
            else:
                await window(options, session, prefix)


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=sorted(MODES), required=True)
    parser.add_argument("--endpoints", required=True, help="separated by commas")
    parser.add_argument("--callers", type=int, default=1)
    parser.add_argument("--warm", type=float, default=1.0)
    parser.add_argument("--measured", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steady", action="store_true", help="until standard input closes; reads everything back")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
