"""What a session in order costs: puts a second of one session, beside a session that has the order of its rows alone.

``python -m bench.in_order [--rounds 7] [--seconds 1.5]``: a cluster of three processes on this machine; one put, and 64
and 512 of them, outstanding in a closed loop. The two sessions take turns, so that what the machine does besides goes
to both; the figure is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from oncegate import Client, Session
from oncegate.gateway.local.cluster import LocalCluster

OUTSTANDING = (1, 64, 512)
VALUE = "v" * 198


async def rate(session: Session, outstanding: int, seconds: float) -> float:
    """Return the puts a second of a closed loop, each on another row than the one before."""
    done, ends = 0, time.perf_counter() + seconds

    async def worker(number: int) -> None:
        nonlocal done
        while time.perf_counter() < ends:
            number = (number + outstanding) % 20_000
            await session.put("rows", f"k{number}", VALUE)
            done += 1

    began = time.perf_counter()
    await asyncio.gather(*(worker(number) for number in range(outstanding)))
    return done / (time.perf_counter() - began)


async def run(endpoints: list[str], rounds: int, seconds: float) -> None:
    """Print a line a case: the two rates, and the median of their ratios."""
    async with Client(endpoints) as client:
        await client.declare_table("rows")
        async with client.session() as usual, client.session(in_order=True) as ordered:
            print("outstanding   puts/s   in order   ratio (least, most)")
            for outstanding in OUTSTANDING:
                found: list[tuple[float, float]] = []
                for number in range(rounds + 1):
                    pair = (
                        await rate(usual, outstanding, seconds),
                        await rate(ordered, outstanding, seconds),
                    )
                    if number:  # the first one warms up
                        found.append(pair)
                ratios = sorted(ordered / usual for usual, ordered in found)
                usual_s, ordered_s = (statistics.median(column) for column in zip(*found, strict=True))
                of = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}, {ratios[-1]:.2f})"
                print(f"{outstanding:11} {usual_s:8,.0f} {ordered_s:10,.0f}   {of}")


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, LocalCluster(Path(directory)) as cluster:
        cluster.start()
        cluster.wait_ready()
        asyncio.run(run(cluster.endpoints, options.rounds, options.seconds))


if __name__ == "__main__":
    main()
