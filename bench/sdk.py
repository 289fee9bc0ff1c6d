"""What the SDK costs its own process: CPU time of an operation, the gateway in another process.

``python -m bench.sdk [--rounds 7] [--operations 20000] [--profile]``: 1, 64 and 512 outstanding puts and increments on
a resident table, puts on a stream table (which travel as ranges), and puts with an outbox. Closed loop; the loop of the
load generator itself is part of the figure. CPU time is ``process_time`` of this process, so what waits costs nothing.

Two more run interleaved with the rounds: a future that is awaited and resolved from a batch (the least that an
operation with a result of its own can cost in asyncio), and one bare aiohttp POST.
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import pstats
import statistics
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, Final

import aiohttp

from bench.children import serving
from bench.harness import Bench, Run, option
from bench.load import VALUE, Operation, Window, latency, window
from oncegate import Client, Session
from oncegate.testing import FakeGateway

BUDGET_US: Final = 25.0
BARE: Final = "bare future"


async def _bare_futures(outstanding: int, most: int) -> Window:
    """Await futures that one task resolves, as many at once as wait."""
    loop, waiting = asyncio.get_running_loop(), deque[asyncio.Future[int]]()

    async def resolver() -> None:
        while True:
            await asyncio.sleep(0)
            while waiting:
                waiting.popleft().set_result(1)

    async def operation(_: int) -> None:
        waiting.append(future := loop.create_future())
        await future

    task = asyncio.create_task(resolver())
    found = await window(operation, outstanding, most=most)
    task.cancel()
    return found


async def _bare_posts(endpoint: str, most: int) -> Window:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as http:

        async def operation(_: int) -> None:
            async with http.post(f"{endpoint}/nothing", data=VALUE) as answer:
                await answer.read()

        return await window(operation, 16, most=most)


def _operations(session: Session) -> dict[str, Operation]:
    return {
        "put": lambda n: session.put("rows", f"k{n}", VALUE),
        "increment": lambda n: session.increment("rows", f"c{n % 5000}"),
        "stream put": lambda n: session.put("events", f"k{n}", VALUE),
    }


async def _rounds(endpoint: str, run: Run, profile: cProfile.Profile | None) -> dict[tuple[str, int], list[Window]]:
    """Run all cases in turn, and once more before, which warms up."""
    found: dict[tuple[str, int], list[Window]] = {}
    many = run.options.operations
    async with Client(endpoint) as client:
        await client.declare_table("rows")
        await client.declare_table("events", kind="stream")
        for number in range(run.options.rounds + 1):
            async with client.session() as session, client.session(outbox=run.directory / "outbox") as kept:
                cases = [(name, n, act) for name, act in _operations(session).items() for n in (1, 64, 512)]
                cases.append(("put, outbox", 512, _operations(kept)["put"]))
                for name, outstanding, act in cases:
                    gc.collect()
                    with profile if profile is not None and outstanding == 512 and number else nullcontext():
                        one = await window(act, outstanding, most=many if outstanding > 1 else many // 20)
                    found.setdefault((name, outstanding), []).append(one)
                found.setdefault((BARE, 512), []).append(await _bare_futures(512, many))
                found.setdefault(("bare POST", 16), []).append(await _bare_posts(endpoint, many // 20))
    return found


def measure(run: Run) -> Iterator[dict[str, Any]]:
    profile = cProfile.Profile() if run.options.profile else None
    with serving("bench.sdk", "--serve") as endpoint:
        found = asyncio.run(_rounds(endpoint, run, profile))
    cpu = {key: [one.client_us() for one in windows[1:]] for key, windows in found.items()}
    bare = statistics.median(cpu[BARE, 512])
    for (name, outstanding), windows in found.items():
        middle = statistics.median(cpu[name, outstanding])
        row = {"case": name, "outstanding": outstanding, "cpu_us": middle, "cpu_us_least": min(cpu[name, outstanding])}
        judged = {"wanted": BUDGET_US, "met": middle <= BUDGET_US} if outstanding == 512 and name != BARE else {}
        yield {**row, "bare_futures": middle / bare, **latency(windows[1:]), **judged}
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(28)


async def _serve() -> None:
    """Run the fake gateway, its address printed first, until standard input closes."""
    gc.set_threshold(100_000, 50, 1000)
    async with FakeGateway() as gateway:
        gateway.executed = deque(maxlen=1)
        print(gateway.endpoints[0], flush=True)
        await asyncio.to_thread(sys.stdin.read)


BENCH: Final = Bench(
    "sdk", __doc__, measure, durability="none: fake gateway",
    options=(
        option("--rounds", 7, "of all cases", quick=1, type=int),
        option("--operations", 20_000, "of a case", quick=1_000, type=int),
        option("--profile", False, "where the time goes at 512", action="store_const", const=True),
    ),
)  # fmt: skip

if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        asyncio.run(_serve())
    else:
        raise SystemExit(BENCH.main())
