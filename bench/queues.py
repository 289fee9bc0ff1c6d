"""What :class:`oncegate.recipes.Queue` gives: items a second by consumers, and how soon an item is claimed.

``python -m bench.queues``: three durable nodes; how many items a second 1, 2, 8 and 32 consumers claim and complete,
each in a session of its own and one item at a time; how long it takes from a put until one of 1 and of 51 idle
consumers has claimed it; and how many commit numbers a put and its claim take (an operation has one at least). All
consumers are in one process, whose own work is in the figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any, Final

from bench.figures import Latency
from bench.harness import Bench, Run, Side, option, side
from bench.load import window
from oncegate import Session
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.recipes import Queue

CONSUMERS: Final = (1, 2, 8, 32)
IDLE: Final = (1, 51)
CLAIMS: Final = 10
PUTTING: Final = 64
"""Items that are put at the same time, to fill a queue."""


@contextlib.asynccontextmanager
async def _consumed(
    one: Side, name: str, sessions: list[Session], claimed: Callable[[Any], Any]
) -> AsyncIterator[None]:
    """Let each session claim items of a queue, one after the other, for as long as the block lasts."""

    async def consume(session: Session) -> None:
        own = Queue(one.client, session, name)
        while True:
            await claimed(await own.claim())

    tasks = [asyncio.create_task(consume(session)) for session in sessions]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _rate(one: Side, name: str, sessions: list[Session], items: int) -> float:
    """Return how many items a second these consumers complete, of so many that are there."""
    await window(Queue(one.client, one.session, name).put, PUTTING, most=items)
    done, over = 0, asyncio.Event()

    async def claimed(claim: Any) -> None:
        nonlocal done
        assert (await claim.complete()).applied
        done += 1
        if done == items:
            over.set()

    began = time.perf_counter()
    async with _consumed(one, name, sessions, claimed):
        await over.wait()
        return items / (time.perf_counter() - began)


async def _latency(one: Side, name: str, sessions: list[Session]) -> tuple[list[float], float]:
    """Return seconds from put to claim, and how many commit numbers both have taken."""
    claims, took, commits = asyncio.Queue[Any](), list[float](), list[int]()
    producer = Queue(one.client, one.session, name)
    async with _consumed(one, name, sessions, claims.put):
        await asyncio.sleep(2.0)
        for number in range(CLAIMS):
            before, began = (await one.client.cluster()).commit, time.perf_counter()
            await producer.put(number)
            claim = await claims.get()
            took.append(time.perf_counter() - began)
            await asyncio.sleep(0.3)
            commits.append((await one.client.cluster()).commit - before)
            await claim.complete()
    return took, statistics.median(commits)


async def _run(run: Run) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    async with side(LocalCluster(run.directory)) as one, AsyncExitStack() as stack:
        await one.client.declare_table("recipes")
        sessions = [await stack.enter_async_context(one.client.session()) for _ in range(max(*IDLE, *CONSUMERS))]
        for count in CONSUMERS:
            items = run.options.items * (4 + count)
            rates = [await _rate(one, f"q{count}-{at}", sessions[:count], items) for at in range(run.options.rounds)]
            rows.append({"what": f"{count} consumers", "items_per_s": statistics.median(rates), "rates": rates})
        for count in IDLE:
            found = [await _latency(one, f"i{count}-{at}", sessions[:count]) for at in range(run.options.rounds)]
            times = Latency.of([seconds for took, _ in found for seconds in took])._asdict()
            commits = statistics.median(each for _, each in found)
            rows.append({"what": f"{count} idle, put to claim", **times, "commits": commits})
    return rows


BENCH: Final = Bench(
    "queues", __doc__, lambda run: asyncio.run(_run(run)),
    options=(
        option("--rounds", 3, "of each number of consumers", quick=1, type=int),
        option("--items", 30, "of a consumer, in a measured rate; four times more of each round", quick=10, type=int),
    ),
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(BENCH.main())
