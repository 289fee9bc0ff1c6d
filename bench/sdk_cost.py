"""What the SDK costs its own process against a server that answers at once, beside another checkout's SDK.

``python -m bench.sdk_cost [--vs CHECKOUT] [--rounds 7] [--operations 20000] [--uvloop] [--profile OUTSTANDING]``. The
figure is processor time of the client process for one operation, the load generator's loop included: what waits costs
nothing, so other work on the machine hardly matters. Runs of the two checkouts alternate, each in a process of its own;
the table has the medians and the median of the ratios of neighbours. ``--uvloop``: this checkout under uvloop against
this checkout under asyncio.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import itertools
import json
import os
import pstats
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent.parent
VALUE: Final = "v" * 198
CASES: Final = (("put", 1), ("put", 64), ("put", 512), ("increment", 512), ("stream put", 512), ("get", 1))


async def _closed_loop(operation: Callable[[int], Awaitable[Any]], outstanding: int, operations: int) -> float:
    numbers = iter(range(operations))

    async def worker() -> None:
        for number in numbers:
            await operation(number)

    gc.collect()
    began = time.process_time()
    await asyncio.gather(*(worker() for _ in range(outstanding)))
    return (time.process_time() - began) / operations * 1e6


async def _measure(endpoint: str, operations: int, profile: cProfile.Profile | None, only: int) -> dict[str, float]:
    from oncegate import Client

    found = {}
    async with Client(endpoint) as client:
        await client.declare_table("rows")
        await client.declare_table("events", kind="stream")
        async with client.session() as session:
            acts: dict[str, Callable[[int], Awaitable[Any]]] = {
                "put": lambda n: session.put("rows", f"k{n}", VALUE),
                "increment": lambda n: session.increment("rows", f"c{n % 5000}"),
                "stream put": lambda n: session.put("events", f"k{n}", VALUE),
                "get": lambda n: client.get("rows", "k"),
            }
            for name, outstanding in CASES:
                count = operations if outstanding > 1 else operations // 10
                await _closed_loop(acts[name], outstanding, count // 5)
                if profile is not None and name == "put" and outstanding == only:
                    profile.enable()
                found[f"{name} {outstanding}"] = await _closed_loop(acts[name], outstanding, count)
                if profile is not None:
                    profile.disable()
    return found


@contextmanager
def _server() -> Iterator[str]:
    command = [sys.executable, "-m", "bench.instant_server"]
    with subprocess.Popen(command, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def _child(checkout: Path, endpoint: str, operations: int, *, uvloop: bool) -> dict[str, float]:
    command = [sys.executable, str(Path(__file__).resolve()), "--operations", str(operations), "--child", endpoint]
    done = subprocess.run(
        [*command, *(["--uvloop"] if uvloop else [])],
        env={**os.environ, "PYTHONPATH": str(checkout)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    told: dict[str, float] = json.loads(done.stdout)
    return told


def _run(endpoint: str, operations: int, profile: cProfile.Profile | None, only: int, *, uvloop: bool) -> Any:
    if uvloop:
        import uvloop as fast  # type: ignore[import-not-found,unused-ignore]

        with asyncio.Runner(loop_factory=fast.new_event_loop) as runner:
            return runner.run(_measure(endpoint, operations, profile, only))
    return asyncio.run(_measure(endpoint, operations, profile, only))


def _told(old: list[dict[str, float]], new: list[dict[str, float]]) -> None:
    print("| case, outstanding | before, µs | after, µs | ratio |" if old else "| case, outstanding | µs |")
    print("|---|---|---|---|" if old else "|---|---|")
    for case in new[0]:
        after = statistics.median(one[case] for one in new)
        if old:
            before = statistics.median(one[case] for one in old)
            ratio = statistics.median(late[case] / early[case] for early, late in zip(old, new, strict=True))
            print(f"| {case} | {before:.1f} | {after:.1f} | {ratio:.2f} |")
        else:
            print(f"| {case} | {after:.1f} |")


def main() -> None:
    """Print the table; ``--profile`` prints where the time of puts goes instead."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vs", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--operations", type=int, default=20_000)
    parser.add_argument("--uvloop", action="store_true")
    parser.add_argument("--profile", type=int, metavar="OUTSTANDING")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        print(json.dumps(_run(given.child, given.operations, None, 0, uvloop=given.uvloop)))
        return
    with _server() as endpoint:
        if given.profile is not None:
            profile = cProfile.Profile()
            _run(endpoint, given.operations, profile, given.profile, uvloop=given.uvloop)
            pstats.Stats(profile).sort_stats("tottime").print_stats(28)
            return
        old: list[dict[str, float]] = []
        new: list[dict[str, float]] = []
        both = given.vs is not None or given.uvloop
        for _ in itertools.repeat(None, given.rounds):
            if both:
                old.append(_child(given.vs or HERE, endpoint, given.operations, uvloop=False))
            new.append(_child(HERE, endpoint, given.operations, uvloop=given.uvloop))
    _told(old, new)


if __name__ == "__main__":
    main()
