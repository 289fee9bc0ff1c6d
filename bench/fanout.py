"""Fan-out through Spark into a store, rows a second, beside the raw limit of the same store in the same run.

``python -m bench.fanout`` has both; ``--store`` chooses. The seed shifts nothing: the messages are what they are.
Batches of the real messages come from a small HTTP server in this process; a real gateway is idle in this figure.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final

from bench import fanout_raw
from bench.figures import Latency
from bench.harness import Bench, Row, option, part
from bench.options import at_least
from examples.demo import dataset
from oncegate.spark_sink import session
from oncegate.spark_sink.dead_letters import DEAD_LETTERS
from oncegate.spark_sink.jobs import job, timeline
from oncegate.spark_sink.rows import TIMELINE
from oncegate.stores import open_store
from oncegate.stores.devcassandra import Config, running
from oncegate.stores.devcassandra.cluster import free_ports
from tests.spark.fake_gateway import FakeFlow, FakeNode, serving

TUNING_MESSAGES = 6_000
OWN: Final = "our store without Spark, 2 processes"


def messages(count: int) -> list[tuple[int, str, str]]:
    """Return commit, key and value of the first messages of the file."""
    found = dataset.load(limit=count)
    return [(number, dataset.key_of(number), json.dumps(found.value(number))) for number in range(1, len(found) + 1)]


def through_spark(node: FakeNode, store_url: str, directory: Path, options: argparse.Namespace, name: str) -> Row:
    """Run the job over the whole flow; steady state is all but the first micro-batch."""
    progress = directory / f"{name}.jsonl"
    settings = timeline.TimelineSettings(
        endpoints=node.url,
        flow=node.flow.name,
        consumer=name,
        store=store_url,
        contacts=str(dataset.DATA_FILE),
        checkpoint=str(directory / f"{name}-checkpoint"),
        progress=str(progress),
        batches_per_trigger=options.batches_per_trigger,
        rows_per_write=options.rows_per_write,
    )
    spark = session.build("oncegate bench", cores=options.cores)
    begin = time.perf_counter()
    status = job.run(spark, settings, threading.Event())
    whole_s = time.perf_counter() - begin
    lines = [json.loads(line) for line in progress.read_text().splitlines()]
    if status != 0 or len(lines) < 2:
        raise SystemExit(f"the job ended with status {status} after {len(lines)} micro-batches")
    rows = sum(line["rows"] for line in lines)
    times_ms = [line["time_ms"] for line in lines]
    steady = sum(line["rows"] for line in lines[1:]) / (times_ms[-1] - times_ms[0]) * 1000
    gaps_s = [(after - before) / 1000 for before, after in pairwise(times_ms)]
    derive, write = (sum(line[name] for line in lines[1:]) for name in ("derive_s", "write_s"))
    return {
        "rows": rows, "steady_rows_per_s": steady, "whole_rows_per_s": rows / whole_s,
        "micro_batches": Latency.of(gaps_s), "derive_share": derive / (derive + write),
    }  # fmt: skip


def bench_sqlite(node: FakeNode, directory: Path, options: argparse.Namespace) -> Row:
    """Write through Spark into SQLite, beside both raw limits."""
    url = f"sqlite://{directory}/store"
    raw = fanout_raw.in_processes(fanout_raw.write_sqlite, options.messages, 2, directory)
    rate = through_spark(node, url, directory, options, "sqlite")
    own = fanout_raw.in_processes(fanout_raw.write_store, options.messages, 2, created(f"{url}-own"))
    return counted(url, rate, {"raw sqlite3, 2 processes, a file each": raw, OWN: own})


def bench_cassandra(node: FakeNode, directory: Path, options: argparse.Namespace) -> Row:
    """Write through Spark into Cassandra, beside both raw limits; the driver alone is tuned first."""
    config = free_ports(Config(heap=options.heap, commitlog_sync=options.commitlog_sync))
    with running(config, directory / "cassandra") as cluster:
        created(cluster.url("tuning"))
        way, _ = fanout_raw.tuned(config.native_port, "tuning", min(TUNING_MESSAGES, options.messages))
        print(f"best raw way: {way}", flush=True)
        created(cluster.url("raw"))
        arguments = (config.native_port, "raw", way)
        raw = fanout_raw.in_processes(fanout_raw.write_cassandra, options.messages, way.processes, *arguments)
        rate = through_spark(node, cluster.url("spark"), directory, options, "cassandra")
        own = fanout_raw.in_processes(fanout_raw.write_store, options.messages, 2, created(cluster.url("own")))
        return counted(cluster.url("spark"), rate, {f"raw cassandra-driver, {way}": raw, OWN: own})


STORES: Final[Mapping[str, Callable[[FakeNode, Path, argparse.Namespace], Row]]] = {
    "SQLite": bench_sqlite,
    "Cassandra": bench_cassandra,
}


def created(url: str) -> str:
    """Create the tables, and return the URL."""
    with open_store(url) as store:
        store.create((TIMELINE, DEAD_LETTERS))
    return url


def counted(url: str, rate: Row, raws: dict[str, float]) -> Row:
    """Read every row back; returns the row, with the raw limits by name in rows a second."""
    with open_store(url) as store:
        begin = time.perf_counter()
        read = sum(batch.num_rows for batch in store.scan(TIMELINE))
        scan_s = time.perf_counter() - begin
        durability = store.durability()
    if read != rate["rows"]:
        raise SystemExit(f"{read:,} rows are stored, the job reports {rate['rows']:,}")
    return {**rate, "raw_rows_per_s": raws, "scan_s": scan_s, "durability": durability}


BENCH: Final = Bench(
    "fanout", __doc__, drawn=True, durability="as the store says",
    options=(
        option("--store", "both", "that is written", choices=(*map(str.lower, STORES), "both")),
        option("--messages", 59_835, "of the flow; fewer: a sample", quick=6_000, type=at_least(1)),
        option("--batch", 1_000, "items in a batch of the flow", type=at_least(1)),
        option("--batches-per-trigger", 10, "of the job", type=at_least(1)),
        option("--rows-per-write", 400_000, "of the job", type=at_least(1)),
        option("--cores", 2, "of Spark", type=at_least(1)),
        option("--rounds", 1, "of each store", type=at_least(1)),
        option("--heap", "1g", "of the Cassandra node"),
        option("--commitlog-sync", "group", "of it; periodic: a sample", choices=("batch", "group", "periodic")),
    ),
)  # fmt: skip


def main() -> int:
    """Measure each store, and save what was found."""
    options = BENCH.parse()
    options.sample = options.sample or options.commitlog_sync == "periodic"
    if options.quick:
        options.batches_per_trigger = min(2, options.batches_per_trigger)
    flow = FakeFlow()
    flow.seal_all(list(messages(options.messages)), options.batch)
    with serving(flow) as node:
        for title, measure in STORES.items():
            for _ in range(options.rounds if options.store in (title.lower(), "both") else 0):
                with part(BENCH, f"fan-out into {title}", options) as run:
                    found = measure(node, run.directory, options)
                    run.about["durability"] = found.pop("durability")
                    run.add(found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
