"""Exactly-once operations through the SDK into three durable nodes on this machine, load generator included.

``python -m bench.ingest [--seconds 8] [--repeat 3]``: 1, 64 and 512 outstanding puts of 200-byte values on a resident
table, batches of 100, ranges of 500 and of 1,024 on a stream table. Closed loop: each worker waits for its result.
Every run starts on a fresh cluster; warm-up is not counted. All operations of a run belong to one session, and the SDK
sends waiting operations together. It asks the leader; with ``--rotate`` it takes the nodes in turn, as clients of etcd,
NATS and ZooKeeper do in :mod:`bench.peers`.
"""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from string import ascii_letters
from typing import Any, Final, NamedTuple

from bench.harness import Bench, Run, option, side
from bench.load import Operation, Window, latency, window
from oncegate import Client, Session
from oncegate.gateway.local.cluster import LocalCluster

WARM_UP_S: Final = 1.5
VALUE_BYTES: Final = 200
STAMP: Final = 8
"""Digits at the beginning of a value, which tell it from the others."""


class Case(NamedTuple):
    """So many calls outstanding, each of ``rows`` rows: a put each, or a range of a stream table."""

    name: str
    outstanding: int
    rows: int = 1
    range: bool = False

    def operation(self, session: Session, prefix: str = "", seed: int = 1) -> Operation:
        """Return the call of a number; ``prefix`` begins every key, so that two loads of a cluster share none."""
        # Every value has its own bytes: nothing gains by equal ones.
        tail = "".join(random.Random(seed).choices(ascii_letters, k=VALUE_BYTES - 2 - STAMP))
        put, put_many, rows = session.put, session.put_many, self.rows

        async def single(number: int) -> None:
            await put("resident", f"{prefix}k{number}", f"{number:0{STAMP}}{tail}")

        async def batch(number: int) -> None:
            await asyncio.gather(*map(single, range(rows * number, rows * number + rows)))

        async def ranged(number: int) -> None:
            numbers = range(rows * number, rows * number + rows)
            await put_many("stream", [(f"{prefix}r{at}", f"{at:0{STAMP}}{tail}") for at in numbers])

        return ranged if self.range else single if rows == 1 else batch


CASES: Final = (
    *(Case(f"{count} outstanding", count) for count in (1, 64, 512)),
    Case("batches of 100, 8 outstanding", 8, 100),
    Case("ranges of 500, 8 outstanding", 8, 500, range=True),
    Case("ranges of 1,024, 4 outstanding", 4, 1024, range=True),
)


async def declare(client: Client) -> None:
    """Declare the tables that the cases write to."""
    await client.declare_table("resident", kind="resident")
    await client.declare_table("stream", kind="stream", quota_bytes=16 * 2**30)


async def _once(directory: Path, case: Case, seconds: float, seed: int, *, rotate: bool) -> Window:
    """Run a case on a fresh cluster."""
    async with side(LocalCluster(directory), prefer_leader=not rotate) as one:
        await declare(one.client)
        gc.collect()
        gc.freeze()
        act = case.operation(one.session, seed=seed)
        warm = await window(act, case.outstanding, WARM_UP_S)
        return await window(act, case.outstanding, seconds, first=warm.operations + case.outstanding)


def measure(run: Run) -> Iterator[dict[str, Any]]:
    asked = run.options
    run.about["rotate"] = asked.rotate
    for case in CASES:
        if asked.only and asked.only not in case.name:
            continue
        found = []
        for at in range(asked.repeat):
            with tempfile.TemporaryDirectory(dir=run.directory) as name:
                once = _once(Path(name), case, asked.seconds, asked.seed + at, rotate=asked.rotate)
                found.append(asyncio.run(once))
        rates = [case.rows * one.rate() for one in found]
        rate = statistics.median(rates)
        chosen = min(found, key=lambda one: abs(case.rows * one.rate() - rate))
        yield {"case": case.name, "rate": rate, "rates": rates, **latency([chosen])}


BENCH: Final = Bench(
    "ingest", __doc__, measure,
    options=(
        option("--seconds", 8.0, "of each load", quick=0.5, type=float),
        option("--repeat", 3, "fresh clusters of each case", quick=1, type=int),
        option("--rotate", False, "take the nodes in turn, not the leader", action="store_const", const=True),
        option("--only", "", "run only the cases whose name contains this"),
    ),
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(BENCH.main())
