"""Exactly-once operations through the SDK into three durable nodes on this machine, load generator included.

``python -m bench.ingest [--seconds 8] [--repeat 3]``: 1, 64 and 512 outstanding puts of 200-byte values on a resident
table, batches of 100, ranges of 500 and of 1,024 on a stream table. Closed loop: each worker waits for its result.
Every run starts on a fresh cluster; warm-up is not counted. All operations of a run belong to one session, and the SDK
sends waiting operations together. It asks the leader; with ``--rotate`` it takes the nodes in turn, as clients of etcd,
NATS and ZooKeeper do in :mod:`bench.peers`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from string import ascii_letters
from typing import Any

from bench.calibrate import bare_posts, fdatasync_4k
from bench.figures import Latency, header, save
from oncegate import Client, Session
from oncegate.gateway.local.cluster import LocalCluster

WARM_UP_S = 1.5
VALUE_BYTES = 200
STAMP = 8
"""Digits at the beginning of a value, which tell it from the others of its worker."""

Worker = Callable[["Load", int], Awaitable[None]]


class Load:
    """One closed loop: counts operations and latencies inside the measured window.

    ``prefix`` begins every key, so that two loads of one cluster share none.
    """

    def __init__(
        self, session: Session, seconds: float, seed: int, *, warm_s: float = WARM_UP_S, prefix: str = ""
    ) -> None:
        self.session = session
        self.prefix = prefix
        # Every value has its own bytes: nothing gains by equal ones.
        self.tail = "".join(random.Random(seed).choices(ascii_letters, k=VALUE_BYTES - 2 - STAMP))
        now = time.perf_counter()
        self.from_s = now + warm_s
        self.until_s = self.from_s + seconds
        self.operations = 0
        self.latencies_s: list[float] = []

    def note(self, began_s: float, operations: int) -> None:
        """Count what began and ended inside the window."""
        ended = time.perf_counter()
        if began_s >= self.from_s and ended <= self.until_s:
            self.operations += operations
            self.latencies_s.append(ended - began_s)


async def single_puts(load: Load, worker: int) -> None:
    put, clock, tail = load.session.put, time.perf_counter, load.tail
    number = 0
    while (began := clock()) < load.until_s:
        number += 1
        await put("resident", f"{load.prefix}k{worker}-{number}", f"{number:0{STAMP}}{tail}")
        load.note(began, 1)


async def batches_of_100(load: Load, worker: int) -> None:
    put, clock, tail = load.session.put, time.perf_counter, load.tail
    number = 0
    while (began := clock()) < load.until_s:
        number += 1
        first = 100 * number
        keyed = ((f"{load.prefix}b{worker}-{i}", f"{i:0{STAMP}}{tail}") for i in range(first, first + 100))
        await asyncio.gather(*(put("resident", key, value) for key, value in keyed))
        load.note(began, 100)


def ranges_of(rows: int) -> Worker:
    """Return the worker that puts ranges of so many rows on a stream table."""

    async def worker(load: Load, worker: int) -> None:
        put_many, clock, tail = load.session.put_many, time.perf_counter, load.tail
        number = 0
        while (began := clock()) < load.until_s:
            number += 1
            first = rows * number
            keyed = [(f"{load.prefix}r{worker}-{i}", f"{i:0{STAMP}}{tail}") for i in range(first, first + rows)]
            await put_many("stream", keyed)
            load.note(began, rows)

    return worker


CASES: list[tuple[str, Worker, int]] = [
    ("1 outstanding", single_puts, 1),
    ("64 outstanding", single_puts, 64),
    ("512 outstanding", single_puts, 512),
    ("batches of 100, 8 outstanding", batches_of_100, 8),
    ("ranges of 500, 8 outstanding", ranges_of(500), 8),
    ("ranges of 1,024, 4 outstanding", ranges_of(1024), 4),
]


async def declare(client: Client) -> None:
    """Declare the tables that the workers write to."""
    await client.declare_table("resident", kind="resident")
    await client.declare_table("stream", kind="stream", quota_bytes=16 * 2**30)


async def _run(
    cluster: LocalCluster, worker: Worker, outstanding: int, seconds: float, seed: int, *, rotate: bool
) -> Load:
    async with Client(cluster.endpoints, prefer_leader=not rotate) as client:
        await declare(client)
        async with client.session(window=4096) as session:
            gc.collect()
            gc.freeze()
            load = Load(session, seconds, seed)
            await asyncio.gather(*(worker(load, i) for i in range(outstanding)))
            return load


def measure(worker: Worker, outstanding: int, seconds: float, seed: int, *, rotate: bool) -> tuple[float, Latency]:
    """Run one case on a fresh cluster and return (operations/s, latencies)."""
    with tempfile.TemporaryDirectory(prefix="oncegate-bench-") as directory, LocalCluster(Path(directory)) as cluster:
        cluster.start()
        cluster.wait_ready()
        load = asyncio.run(_run(cluster, worker, outstanding, seconds, seed, rotate=rotate))
        return load.operations / seconds, Latency.of(load.latencies_s)


def main() -> None:
    """Run all cases and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rotate", action="store_true", help="take the nodes in turn, not the leader")
    parser.add_argument("--only", help="run only the cases whose name contains this")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="oncegate-bench-") as directory:
        flush = fdatasync_4k(Path(directory))
    about = header(
        "ingest",
        seed=options.seed,
        durability="three nodes, each flushed with fdatasync before the answer",
        calibrations={"fdatasync_4k_ms": flush.p50_ms, "bare_posts_per_s": bare_posts(64)},
    )
    about["rotate"] = options.rotate
    rows: list[dict[str, Any]] = []
    print(f"{'case':<32}{'operations/s':>14}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}{'samples':>10}")
    for name, worker, outstanding in CASES:
        if options.only and options.only not in name:
            continue
        runs = [
            measure(worker, outstanding, options.seconds, options.seed + i, rotate=options.rotate)
            for i in range(options.repeat)
        ]
        rate = statistics.median(rate for rate, _ in runs)
        chosen = min(runs, key=lambda run: abs(run[0] - rate))[1]
        print(
            f"{name:<32}{rate:>14,.0f}{chosen.p50_ms:>9.2f}{chosen.p99_ms:>9.2f}"
            f"{chosen.max_ms:>9.1f}{chosen.samples:>10,}",
            flush=True,
        )
        rows.append({"case": name, "rate": rate, "rates": [r for r, _ in runs], **chosen._asdict()})
    print(f"saved in {save('ingest', about, rows).name}")


if __name__ == "__main__":
    main()
