"""Sustained exactly-once events: ``python -m bench.stream [--seconds 600]``, singles and ranges, recounted at the end.

Three durable nodes, a load that waits for its answers, and a Spark job that follows the stream into a store. In the
middle of the run a range of batches is replayed beside the live traffic. At the end everything is recounted twice by a
reader of its own: the job's rows in the store, and the batches themselves. Exit status: 0 nothing was lost or came
twice, 1 something was.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.children import Failed, talking
from bench.experiments import page
from bench.experiments.results import parser, watched
from bench.figures import save
from bench.options import above_zero, at_least, not_negative
from bench.stream.events import TABLE, key_of
from bench.stream.parts import SAMPLE_S, Sample, caught_up, sample, used
from bench.stream.reader import in_flow, in_store
from bench.stream.writer import PATIENCE_S
from oncegate import Client
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.gateway.local.waiting import wait_for
from oncegate.gateway.machine.commands import VALUE_BYTES_MAX
from oncegate.stores.devcassandra.cluster import free_ports, running
from oncegate.stores.devcassandra.node import Config

MODES = {"singles": 512, "ranges": 4}
"""Callers of each mode: one event, or 1,024, under way each."""
FLOW = {"retention_ms": 86_400_000, "retention_bytes": 10 << 30, "max_items": 16_384, "linger_ms": 250}
QUOTA_BYTES = 24 << 30
WHOLE_S = 600.0
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


@contextlib.contextmanager
def stored(kind: str, directory: Path) -> Iterator[str]:
    """Yield the URL of an empty store."""
    if kind == "sqlite":
        yield f"sqlite://{directory}/store"
        return
    with running(free_ports(Config(nodes=1)), directory / "cassandra") as cassandra:
        yield cassandra.url("stream")


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
        endpoints = ",".join(cluster.endpoints)
        words = (store, str(directory), endpoints)
        driver = stack.enter_context(talking("bench.stream.driver", *words, log=directory / "spark.log"))
        driver.wait("started", STARTED_S)
        wait_for(lambda: caught_up(cluster), STARTED_S, "the job delivers", state=driver.log_tail, every_s=0.1)
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
        wait_for(lambda: caught_up(cluster), CATCH_UP_S + seconds, "the job has caught up", every_s=0.1)
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


def show(row: dict[str, Any]) -> None:
    """Print a mode."""
    print(
        f"   {row['mode']}: {row['events']:,} events, {row['events_per_s']:,.0f}/s acknowledged, "
        f"{row['delivered_per_s']:,.0f}/s delivered, p50 {row['p50_ms']:.2f} p99 {row['p99_ms']:.2f} "
        f"max {row['max_ms']:.1f} ms of {row['samples']:,}, stall {row['stall_ms']:.0f} ms; nodes "
        f"{row['nodes_cpu_us']:.1f}, spark {row['spark_cpu_us']:.1f}, client {row['client_cpu_us']:.1f} us each; "
        f"largest lag {row['lag_max']:,}, caught up after {row['caught_up_s']:.1f} s; replay of "
        f"{row['replay']['batches']} batches {row['replay']['seconds']:.1f} s; rows {row['rows']}; "
        f"batches {row['batches']}: {'exact' if row['exact'] else 'NOT EXACT'}",
        flush=True,
    )


def main() -> int:
    """Run what the command line says; returns the exit status."""
    options = parser(__doc__ or "")
    options.add_argument("--mode", action="append", choices=[*MODES], help="again for more [both]")
    options.add_argument("--seconds", type=above_zero, help="of each mode [600; 15 with --quick]; less: a sample")
    options.add_argument(
        "--rate", type=not_negative, default=0.0, help="events a second; 0: as fast as they are answered [0]"
    )
    options.add_argument(
        "--value-bytes", type=at_least(VALUE_BYTES_MIN, VALUE_BYTES_MAX), default=VALUE_BYTES, help="[200]"
    )
    options.add_argument("--store", choices=("sqlite", "cassandra"), default="sqlite")
    try:
        return run(options.parse_args())
    except Failed as failure:
        print(f"failed: {failure}", file=sys.stderr)
        return 1


def run(options: argparse.Namespace) -> int:
    """Measure the chosen modes, each saved by itself."""
    seconds, exact = options.seconds or (15.0 if options.quick else WHOLE_S), True
    # What lasts less, is paced, or is of other values is not what the page judges.
    sample = options.quick or seconds < WHOLE_S or options.rate > 0 or options.value_bytes != VALUE_BYTES
    for mode in options.mode or MODES:
        with (
            tempfile.TemporaryDirectory(prefix="oncegate-stream-", dir=options.directory) as name,
            watched(f"stream: {mode}", Path(name), seed=options.seed, quick=sample) as about,
        ):
            directory = Path(name)
            about |= {"mode": mode, "store": options.store, "rate": options.rate, "value_bytes": options.value_bytes}
            with stored(options.store, directory) as store:
                row, _ = measured(
                    mode, store, directory, seconds=seconds, rate=options.rate, value_bytes=options.value_bytes
                )
        show(row)
        exact = exact and row["exact"]
        if not options.no_save:
            save("stream", about, [row])
            print(f"drawn: {page.write()}", flush=True)
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
