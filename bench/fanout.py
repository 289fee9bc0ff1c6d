"""Fan-out through Spark into a store, rows a second, beside the raw limit of the same store in the same run.

    python bench/fanout.py --store sqlite
    python bench/fanout.py --store cassandra

Batches of the real messages come from a small HTTP server in this process; a real gateway is idle in this figure.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench import fanout_raw
from bench.calibrate import bare_posts, fdatasync_4k
from bench.figures import Latency, header, save
from oncegate.spark_sink import session
from oncegate.spark_sink.dead_letters import DEAD_LETTERS
from oncegate.spark_sink.jobs import job, timeline
from oncegate.spark_sink.rows import TIMELINE
from oncegate.stores import open_store
from oncegate.stores.devcassandra import Config, running
from oncegate.stores.devcassandra.cluster import free_ports
from tests.spark.fake_gateway import FakeFlow, FakeNode, serving

DATA = Path(__file__).parents[1] / "examples" / "collegemsg.txt.gz"
TUNING_MESSAGES = 6_000


@dataclass(frozen=True)
class Rate:
    """What a run through Spark reached."""

    rows: int
    steady_rows_per_s: float
    whole_rows_per_s: float
    micro_batches: Latency
    derive_share: float


def messages(count: int) -> list[tuple[int, str, str]]:
    found = []
    with gzip.open(DATA, "rt") as lines:
        next(lines)
        for commit, line in enumerate(lines, start=1):
            if commit > count:
                break
            sender, receiver, sent_at = map(int, line.split())
            value = json.dumps({"sender": sender, "receiver": receiver, "sent_at": sent_at})
            found.append((commit, f"m{commit:07d}", value))
    return found


def through_spark(node: FakeNode, store_url: str, directory: Path, options: argparse.Namespace, name: str) -> Rate:
    """Run the job over the whole flow; steady state is all but the first micro-batch."""
    progress = directory / f"{name}.jsonl"
    settings = timeline.TimelineSettings(
        endpoints=node.url,
        flow=node.flow.name,
        consumer=name,
        store=store_url,
        contacts=str(DATA),
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
    return Rate(rows, steady, rows / whole_s, Latency.of(gaps_s), derive / (derive + write))


@contextmanager
def fresh(directory: Path, name: str) -> Iterator[Path]:
    path = directory / name
    path.mkdir()
    yield path
    shutil.rmtree(path)


def bench_sqlite(node: FakeNode, directory: Path, options: argparse.Namespace) -> None:
    for number in range(options.rounds):
        with fresh(directory, f"raw{number}") as raw_directory:
            raw = fanout_raw.in_processes(fanout_raw.write_sqlite, DATA, options.messages, 2, raw_directory)
        with fresh(directory, f"spark{number}") as path:
            url = f"sqlite://{path}/store"
            rate = through_spark(node, url, path, options, f"sqlite{number}")
            own = fanout_raw.in_processes(fanout_raw.write_store, DATA, options.messages, 2, created(f"{url}-own"))
            raws = {"raw sqlite3, 2 processes, a file each": raw, "our store without Spark, 2 processes": own}
            report("SQLite", url, rate, raws, options)


def bench_cassandra(node: FakeNode, directory: Path, options: argparse.Namespace) -> None:
    config = free_ports(Config(heap=options.heap, commitlog_sync=options.commitlog_sync))
    with running(config, directory / "cassandra") as cluster:
        created(cluster.url("tuning"))
        way, _ = fanout_raw.tuned(DATA, config.native_port, "tuning", min(TUNING_MESSAGES, options.messages))
        print(f"best raw way: {way}", flush=True)
        for number in range(options.rounds):
            keyspace = f"raw{number}"
            created(cluster.url(keyspace))
            arguments = (config.native_port, keyspace, way)
            raw = fanout_raw.in_processes(fanout_raw.write_cassandra, DATA, options.messages, way.processes, *arguments)
            url = f"{cluster.url(f'spark{number}')}"
            rate = through_spark(node, url, directory, options, f"cassandra{number}")
            own_url = created(cluster.url(f"own{number}"))
            own = fanout_raw.in_processes(fanout_raw.write_store, DATA, options.messages, 2, own_url)
            raws = {f"raw cassandra-driver, {way}": raw, "our store without Spark, 2 processes": own}
            report("Cassandra", url, rate, raws, options)


def created(url: str) -> str:
    """Create the tables, and return the URL."""
    with open_store(url) as store:
        store.create((TIMELINE, DEAD_LETTERS))
    return url


def report(name: str, url: str, rate: Rate, raws: dict[str, float], options: argparse.Namespace) -> None:
    """Print the figures of one run beside the raw limits, after reading every row back."""
    with open_store(url) as store:
        begin = time.perf_counter()
        read = sum(batch.num_rows for batch in store.scan(TIMELINE))
        scan_s = time.perf_counter() - begin
        durability = store.durability()
    if read != rate.rows:
        raise SystemExit(f"{name}: {read:,} rows are stored, the job reports {rate.rows:,}")
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        flush = fdatasync_4k(Path(directory))
    calibrations = {
        "fdatasync_4k_ms": flush.p50_ms,
        "bare_posts_per_s": bare_posts(64),
        "load_1_minute": os.getloadavg()[0],
    }
    about = header(f"fan-out into {name}", seed=0, durability=durability, calibrations=calibrations)
    spent = rate.micro_batches
    print(f"   through Spark: {rate.steady_rows_per_s:,.0f} rows/s steady, {rate.whole_rows_per_s:,.0f} with the start")
    print(
        f"   micro-batches: p50 {spent.p50_ms:.0f} ms, p99 {spent.p99_ms:.0f} ms, max {spent.max_ms:.0f} ms, "
        f"{spent.samples} samples; {rate.derive_share:.0%} of the tasks' time makes rows, the rest writes them"
    )
    for what, raw in raws.items():
        print(f"   {what}: {raw:,.0f} rows/s; through Spark is {rate.steady_rows_per_s / raw:.2f} of it")
    print(f"   read back: {read:,} rows, all there, in {scan_s:.1f} s", flush=True)
    save("fanout", about, [{**asdict(rate), "raw_rows_per_s": raws, "scan_s": scan_s}])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add: Any = parser.add_argument
    add("--store", choices=("sqlite", "cassandra", "both"), default="both")
    add("--messages", type=int, default=59_835)
    add("--batch", type=int, default=1_000, help="items in a batch of the flow")
    add("--batches-per-trigger", type=int, default=10)
    add("--rows-per-write", type=int, default=400_000)
    add("--cores", type=int, default=2)
    add("--rounds", type=int, default=1)
    add("--heap", default="1g", help="of the Cassandra node")
    add("--commitlog-sync", choices=("batch", "group", "periodic"), default="group")
    add("--directory", type=Path, default=None, help="file system to write to; default: the temporary directory")
    return parser.parse_args()


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="oncegate-bench-") as name:
        directory = Path(name)
        flow = FakeFlow()
        flow.seal_all(list(messages(options.messages)), options.batch)
        with serving(flow) as node:
            if options.store in ("sqlite", "both"):
                bench_sqlite(node, directory, options)
            if options.store in ("cassandra", "both"):
                bench_cassandra(node, directory, options)


if __name__ == "__main__":
    main()
