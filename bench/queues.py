"""What :class:`oncegate.recipes.Queue` gives: items a second by consumers, and how soon an item is claimed.

``python -m bench.queues --beside FOLDER`` starts three durable nodes of this checkout and three of the one in FOLDER,
and asks both the same, in turn: how many items a second 1, 2, 8 and 32 consumers claim and complete, each in a session
of its own and one item at a time; how long it takes from a put until one of 1 and of 51 idle consumers has claimed it;
and how many commit numbers a put takes while 50 consumers are idle (an operation has one at least). All consumers are
in one process, whose own work is in the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import IO, Any, Final, cast

from oncegate import Client, Session
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.recipes import Queue

HERE: Final = Path(__file__).resolve()
CONSUMERS: Final = (1, 2, 8, 32)
IDLE: Final = 50
PUTTING: Final = 64
"""Items that are put at the same time, to fill a queue."""


class Measure:
    """Questions to one cluster, each in a queue of its own."""

    def __init__(self, client: Client, sessions: list[Session]) -> None:
        self._client, self._sessions = client, sessions
        self._asked = 0

    def _queue(self, session: Session) -> Queue:
        return Queue(self._client, session, f"q{self._asked}")

    async def rate(self, consumers: int, items: int) -> float:
        """Return how many items a second so many consumers complete, of so many that are there."""
        self._asked += 1
        queue, done = self._queue(self._sessions[0]), 0
        for start in range(0, items, PUTTING):
            await asyncio.gather(*(queue.put(number) for number in range(start, min(items, start + PUTTING))))
        over = asyncio.Event()

        async def consume(session: Session) -> None:
            nonlocal done
            own = self._queue(session)
            while True:
                claim = await own.claim()
                assert (await claim.complete()).applied
                done += 1
                if done == items:
                    over.set()

        began = time.perf_counter()
        tasks = [asyncio.create_task(consume(session)) for session in self._sessions[:consumers]]
        await over.wait()
        took = time.perf_counter() - began
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return items / took

    async def latency(self, consumers: int, items: int) -> tuple[float, float]:
        """Return the median from put to claim in milliseconds, and commit numbers a put and its claim have taken."""
        self._asked += 1
        producer, took = self._queue(self._sessions[-1]), list[float]()
        claimed = asyncio.Queue[Any]()

        async def consume(session: Session) -> None:
            own = self._queue(session)
            while True:
                claimed.put_nowait(await own.claim())

        tasks = [asyncio.create_task(consume(session)) for session in self._sessions[:consumers]]
        await asyncio.sleep(2.0)
        commits: list[int] = []
        for number in range(items):
            before = (await self._client.cluster()).commit
            began = time.perf_counter()
            await producer.put(number)
            claim = await claimed.get()
            took.append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(0.3)
            commits.append((await self._client.cluster()).commit - before)
            await claim.complete()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return statistics.median(took), statistics.median(commits)


async def _serve(endpoints: list[str]) -> None:
    loop = asyncio.get_running_loop()
    async with Client(endpoints) as client, AsyncExitStack() as stack:
        await client.declare_table("recipes")
        sessions = [await stack.enter_async_context(client.session()) for _ in range(IDLE + 2)]
        measure = Measure(client, sessions)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            what, *figures = json.loads(line)
            print(json.dumps(await getattr(measure, what)(*figures)), flush=True)


def serve() -> None:
    """Start a cluster, and answer questions that come as lines of JSON."""
    with tempfile.TemporaryDirectory(prefix="oncegate-bench-") as name, LocalCluster(Path(name)) as cluster:
        cluster.start()
        cluster.wait_ready()
        asyncio.run(_serve(cluster.endpoints))


class Asked:
    """A process that measures with the code of a checkout."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = [sys.executable, str(HERE), "--serve"]
        self._process = subprocess.Popen(command, env=environment, cwd=folder, text=True, **pipes)  # type: ignore[call-overload]

    def ask(self, *question: Any) -> Any:
        """Ask, and wait for the answer."""
        sent, told = cast(IO[str], self._process.stdin), cast(IO[str], self._process.stdout)
        sent.write(json.dumps(question) + "\n")
        sent.flush()
        return json.loads(told.readline())

    def close(self) -> None:
        """End it, with its cluster."""
        cast(IO[str], self._process.stdin).close()
        self._process.wait(timeout=60)


def main() -> None:
    """Ask both checkouts in turn, and print what they say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--beside", type=Path, help="a checkout of another commit, to be asked in the same run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--items", type=int, default=30, help="of a consumer, in a measured rate; 30 more of each round"
    )
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    sides = {"this": Asked(HERE.parent.parent)}
    if options.beside is not None:
        sides["beside"] = Asked(options.beside.resolve())
    rates: dict[tuple[str, int], list[float]] = {}
    waits: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for _ in range(options.rounds):
        for consumers in CONSUMERS:
            for name, side in sides.items():
                items = options.items * (4 + consumers)
                rates.setdefault((name, consumers), []).append(side.ask("rate", consumers, items))
        for consumers in (1, IDLE + 1):
            for name, side in sides.items():
                waits.setdefault((name, consumers), []).append(side.ask("latency", consumers, 10))
    for name, side in sides.items():
        side.close()
        for consumers in CONSUMERS:
            every = rates[name, consumers]
            print(f"{name}: {consumers} consumers, {statistics.median(every):,.0f} items/s {[round(x) for x in every]}")
        for consumers in (1, IDLE + 1):
            p50, commits = (statistics.median(one[at] for one in waits[name, consumers]) for at in (0, 1))
            print(f"{name}: {consumers} idle, put to claim {p50:,.1f} ms, {commits:g} commit numbers a put and claim")


if __name__ == "__main__":
    main()
