"""What the SDK costs its own process: CPU time of an operation, the gateway in another process.

``python -m bench.sdk [--rounds 7] [--operations 20000] [--profile]``: 1, 64 and 512 outstanding puts and increments on
a resident table, puts on a stream table (which travel as ranges), and puts with an outbox. Closed loop; the loop of the
load generator itself is part of the figure. CPU time is ``process_time`` of this process, so what waits costs nothing.

Two calibrations run interleaved with the rounds: a future that is awaited and resolved from a batch (the least that an
operation with a result of its own can cost in asyncio), and one bare aiohttp POST.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from bench.figures import header, save
from oncegate import Client, Session
from oncegate.testing import FakeGateway

BUDGET_US = 25.0
VALUE = "v" * 198
Operation = Callable[[int], Awaitable[Any]]


class Round:
    """CPU time and latencies of one round."""

    def __init__(self, cpu_s: float, operations: int, latencies_s: list[float]) -> None:
        self.cpu_us = cpu_s / operations * 1e6
        self.p50_ms, self.p99_ms = (float(ms) for ms in np.percentile(latencies_s, [50, 99]) * 1000)


async def closed_loop(operation: Operation, outstanding: int, operations: int) -> Round:
    """Keep ``outstanding`` operations under way until ``operations`` are done."""
    numbers = iter(range(operations))
    latencies: list[float] = []
    clock = time.perf_counter

    async def worker() -> None:
        for number in numbers:
            began = clock()
            await operation(number)
            latencies.append(clock() - began)

    gc.collect()
    began = time.process_time()
    await asyncio.gather(*(worker() for _ in range(outstanding)))
    return Round(time.process_time() - began, operations, latencies)


async def bare_futures(outstanding: int, operations: int) -> Round:
    """Await futures that one task resolves, as many at once as wait."""
    loop = asyncio.get_running_loop()
    waiting: deque[asyncio.Future[int]] = deque()

    async def resolver() -> None:
        while True:
            await asyncio.sleep(0)
            while waiting:
                waiting.popleft().set_result(1)

    async def operation(number: int) -> int:
        future: asyncio.Future[int] = loop.create_future()
        waiting.append(future)
        return await future

    task = asyncio.create_task(resolver())
    found = await closed_loop(operation, outstanding, operations)
    task.cancel()
    return found


async def bare_posts(endpoint: str, operations: int) -> Round:
    """POST 200 bytes again and again."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as http:

        async def operation(number: int) -> None:
            async with http.post(f"{endpoint}/nothing", data=VALUE) as answer:
                await answer.read()

        return await closed_loop(operation, 16, operations)


def _operations(session: Session) -> dict[str, Operation]:
    return {
        "put": lambda n: session.put("rows", f"k{n}", VALUE),
        "increment": lambda n: session.increment("rows", f"c{n % 5000}"),
        "stream put": lambda n: session.put("events", f"k{n}", VALUE),
    }


async def run(endpoint: str, rounds: int, operations: int, profile: cProfile.Profile | None) -> list[dict[str, Any]]:
    """Run all cases in turn, ``rounds`` times; return the median of each."""
    found: dict[tuple[str, int], list[Round]] = {}
    with tempfile.TemporaryDirectory() as directory:
        async with Client(endpoint) as client:
            await client.declare_table("rows")
            await client.declare_table("events", kind="stream")
            for number in range(rounds + 1):
                async with client.session() as session, client.session(outbox=Path(directory) / "o") as kept:
                    cases = [(name, n, act) for name, act in _operations(session).items() for n in (1, 64, 512)]
                    cases.append(("put, outbox", 512, _operations(kept)["put"]))
                    for name, outstanding, act in cases:
                        count = operations if outstanding > 1 else operations // 20
                        if profile is not None and outstanding == 512 and number:
                            profile.enable()
                        one = await closed_loop(act, outstanding, count)
                        if profile is not None:
                            profile.disable()
                        found.setdefault((name, outstanding), []).append(one)
                    found.setdefault(("bare future", 512), []).append(await bare_futures(512, operations))
                    found.setdefault(("bare POST", 16), []).append(await bare_posts(endpoint, operations // 20))
    rows = []
    for (name, outstanding), measured in found.items():
        kept_rounds = measured[1:]  # the first one warms up
        cpu = [one.cpu_us for one in kept_rounds]
        rows.append(
            {
                "case": name,
                "outstanding": outstanding,
                "cpu_us": statistics.median(cpu),
                "cpu_us_least": min(cpu),
                "p50_ms": statistics.median(one.p50_ms for one in kept_rounds),
                "p99_ms": statistics.median(one.p99_ms for one in kept_rounds),
            }
        )
    return rows


def _serve() -> None:
    """Run the fake gateway, its address printed first, until standard input closes."""

    async def serve() -> None:
        gc.set_threshold(100_000, 50, 1000)
        async with FakeGateway() as gateway:
            gateway.executed = deque(maxlen=1)
            print(gateway.endpoints[0], flush=True)
            await asyncio.to_thread(sys.stdin.read)

    asyncio.run(serve())


def main() -> None:
    """Print the figures, and with ``--profile`` where the time goes at 512."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--operations", type=int, default=20_000)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        _serve()
        return
    profile = cProfile.Profile() if given.profile else None
    command = [sys.executable, "-m", "bench.sdk", "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        endpoint = server.stdout.readline().strip()
        rows = asyncio.run(run(endpoint, given.rounds, given.operations, profile))
        server.terminate()
    bare = next(row["cpu_us"] for row in rows if row["case"] == "bare future")
    post = next(row["cpu_us"] for row in rows if row["case"] == "bare POST")
    about = header(
        "cpu of the sdk", seed=0, durability="none: fake gateway", calibrations={"future_us": bare, "post_us": post}
    )
    for row in rows:
        print(
            f"   {row['case']:<12} {row['outstanding']:>4} outstanding: {row['cpu_us']:7.1f} us CPU an operation "
            f"(least {row['cpu_us_least']:.1f}), {row['cpu_us'] / bare:5.1f} bare futures; "
            f"p50 {row['p50_ms']:.2f} ms, p99 {row['p99_ms']:.2f} ms"
        )
    worst = max(row["cpu_us"] for row in rows if row["outstanding"] == 512 and row["case"] in ("put", "increment"))
    print(f"   {'within' if worst <= BUDGET_US else 'OVER'} the budget of {BUDGET_US:.0f} us at 512 outstanding")
    save("sdk", about, rows)
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(28)


if __name__ == "__main__":
    main()
