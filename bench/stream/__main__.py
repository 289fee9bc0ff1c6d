"""Sustained exactly-once events: ``python -m bench.stream [--seconds 600]``, singles and ranges, recounted at the end.

Three durable nodes, a load that waits for its answers, and a Spark job that follows the stream into a store. In the
middle of the run a range of batches is replayed beside the live traffic. At the end everything is recounted twice by a
reader of its own: the job's rows in the store, and the batches themselves. Exit status: 0 nothing was lost or came
twice, 1 something was.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.children import Failed, talking
from bench.harness import Bench, option, part
from bench.options import above_zero, at_least, not_negative
from bench.pipeline import finished, stored
from bench.stream.events import CONSUMER, TABLE, key_of
from bench.stream.parts import SAMPLE_S, Sample, sample, used
from bench.stream.reader import in_flow, in_store
from bench.stream.writer import PATIENCE_S
from oncegate import Client
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.gateway.local.waiting import wait_for
from oncegate.gateway.machine.commands import VALUE_BYTES_MAX

MODES = {"singles": 512, "ranges": 4}
"""Callers of each mode: one event, or 1,024, under way each."""
FLOW = {"retention_ms": 86_400_000, "retention_bytes": 10 << 30, "max_items": 16_384, "linger_ms": 250}
QUOTA_BYTES = 24 << 30
VALUE_BYTES = 200
VALUE_BYTES_MIN = 12
"""Quotes and the number of an event."""
STARTED_S = 180.0
CATCH_UP_S = 600.0
ENDED_S = 2 * PATIENCE_S
"""After which a load that should have ended has failed: its last writes may take `PATIENCE_S`."""
FIRST_CALLER = 9_999
"""Wrote the first event."""
REPLAYED_MAX = 64
"""Batches of the replay at most: it runs beside live traffic, and has to end before it.

They are the last of the older half of what is delivered, which the flow still retains.
"""


async def declare(cluster: LocalCluster) -> None:
    """Declare the stream table and write one event: when it is delivered, the job is up."""
    async with Client(cluster.endpoints) as client:
        await client.declare_table(TABLE, kind="stream", quota_bytes=QUOTA_BYTES, flow=FLOW)
        async with client.session() as session:
            await session.put(TABLE, key_of(FIRST_CALLER, 1), "first")


class Measured(NamedTuple):
    """The row of a mode, and how many events of each caller were acknowledged."""

    row: dict[str, Any]
    acknowledged: dict[int, int]


def measured(mode: str, store: str, directory: Path, *, seconds: float, rate: float, value_bytes: int) -> Measured:
    """Run one mode on a fresh cluster; its rows stay in the store."""
    directory.mkdir(parents=True, exist_ok=True)
    with LocalCluster(directory / "nodes") as cluster, contextlib.ExitStack() as stack:
        cluster.start()
        cluster.wait_ready()
        asyncio.run(declare(cluster))
        caught_up = partial(finished, cluster.endpoints, TABLE, CONSUMER)
        endpoints = ",".join(cluster.endpoints)
        words = (store, str(directory), endpoints)
        driver = stack.enter_context(talking("bench.stream.driver", *words, log=directory / "spark.log"))
        driver.wait("started", STARTED_S)
        wait_for(caught_up, STARTED_S, "the job delivers", state=driver.log_tail, every_s=0.1)
        wanted = ("--mode", mode, "--seconds", str(seconds), "--rate", str(rate), "--value-bytes", str(value_bytes))
        load = ("--endpoints", endpoints, "--callers", str(MODES[mode]), *wanted)
        writer = stack.enter_context(talking("bench.stream.writer", *load, log=directory / "writer.log"))
        writer.wait("begun", STARTED_S)
        before, began_s = used(cluster, writer, driver), time.monotonic()
        samples: list[Sample] = []
        replay: dict[str, Any] | None = None
        until = began_s + seconds + ENDED_S
        while not writer.of("result") and writer.process.poll() is None and time.monotonic() < until:
            time.sleep(SAMPLE_S)
            found = sample(cluster, writer, began_s)
            if found is None:
                continue
            samples.append(found)
            # Not the first batch alone, unless the job is so late that there is no other in time.
            if replay is None and found.at_s > seconds / 3 and (found.cursor > 3 or found.at_s > seconds / 2):
                last = max(1, found.cursor // 2)
                first = max(1, last - REPLAYED_MAX + 1)
                replay = {"first": first, "batches": last - first + 1, "from_s": found.at_s}
                driver.tell(f"{first} {last}")
            if replay is not None and "until_s" not in replay and driver.of("replayed"):
                replay["until_s"] = found.at_s
        result = writer.wait("result", 5.0)
        after_load = used(cluster, writer, driver)
        wait_for(caught_up, CATCH_UP_S + seconds, "the job has caught up", every_s=0.1)
        delivered_s, after = time.monotonic() - began_s, used(cluster, writer, driver)
        if replay is None:  # the job had not begun to deliver while there was load
            replay = {"first": 1, "batches": 1, "from_s": delivered_s}
            driver.tell("1 1")
        replay |= driver.wait("replayed", CATCH_UP_S)
        replay["beside_load"] = "until_s" in replay
        status = driver.finish(STARTED_S)
        acknowledged = {int(caller): count for caller, count in result.pop("acknowledged").items()}
        acknowledged[FIRST_CALLER] = 1
        events = sum(acknowledged.values())
        by_rows = in_store(store, acknowledged)
        by_batches = in_flow(cluster.endpoints, acknowledged, FIRST_CALLER)
    cpu = {name: 1e6 * after[name].since(before[name]).cpu_s / events for name in ("nodes", "spark")}
    row = {
        "mode": mode,
        "events": events,
        "events_per_s": events / result["seconds"],
        "delivered_per_s": events / delivered_s,
        **{name: result[name] for name in ("seconds", "samples", "p50_ms", "p99_ms", "max_ms", "stall_ms")},
        "nodes_cpu_us": cpu["nodes"],
        "spark_cpu_us": cpu["spark"],
        "client_cpu_us": 1e6 * result["cpu_s"] / events,
        "nodes_cores": after_load["nodes"].since(before["nodes"]).cpu_s / result["seconds"],
        "lag_max": max((one.lag_items for one in samples), default=0),
        "caught_up_s": delivered_s - result["seconds"],
        "replay": replay,
        "job_status": status,
        "rows": by_rows._asdict(),
        "batches": {**by_batches.recount._asdict(), "first": by_batches.first_batch, "last": by_batches.last_batch},
        "exact": by_rows.exact and by_batches.recount.exact and replay["status"] == 0 and status == 0,
        "over_time": thinned(samples),
    }
    return Measured(row, acknowledged)


def thinned(samples: list[Sample], most: int = 120) -> list[tuple[float, float, int]]:
    """Return seconds, events a second since the one before, and items behind; at most about ``most`` of them."""
    every = max(1, len(samples) // most)
    kept = samples[::every]
    return [
        (round(now.at_s, 2), (now.acknowledged - then.acknowledged) / (now.at_s - then.at_s), now.lag_items)
        for then, now in itertools.pairwise(kept)
        if now.at_s > then.at_s
    ]


BENCH: Final = Bench(
    "stream", __doc__, drawn=True,
    options=(
        option("--mode", None, "again for more [both]", action="append", choices=[*MODES]),
        option("--seconds", 600.0, "of each mode; less: a sample", quick=15.0, type=above_zero),
        option("--rate", 0.0, "events a second; 0: as fast as they are answered", type=not_negative),
        option("--value-bytes", VALUE_BYTES, "of an event", type=at_least(VALUE_BYTES_MIN, VALUE_BYTES_MAX)),
        option("--store", "sqlite", "of the job", choices=("sqlite", "cassandra")),
    ),
)  # fmt: skip


def main() -> int:
    """Measure the chosen modes, each saved by itself; returns the exit status."""
    options, exact = BENCH.parse(), True
    load = {"rate": options.rate, "value_bytes": options.value_bytes}
    # What is paced, or is of other values, is not what the page judges.
    options.sample = options.sample or options.rate > 0 or options.value_bytes != VALUE_BYTES
    for mode in options.mode or MODES:
        try:
            with (
                part(BENCH, f"stream: {mode}", options, mode=mode, store=options.store, **load) as run,
                stored(options.store, run.directory, "stream", nodes=1) as (store, _),
            ):
                row, _ = measured(mode, store, run.directory, seconds=options.seconds, **load)
                run.add(row)
        except Failed as failure:
            print(f"failed: {failure}", file=sys.stderr)
            return 1
        exact = exact and row["exact"]
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
