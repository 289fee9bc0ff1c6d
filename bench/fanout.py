"""Fan-out through Spark into a store, rows a second, beside the raw limit of the same store in the same run.

``python -m bench.fanout`` has both; ``--store`` chooses. The seed shifts nothing: the messages are what they are.
Batches of the real messages come from a small HTTP server in this process; a real gateway is idle in this figure.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from bench import fanout_raw
from bench.experiments.results import parser, watched
from bench.figures import Latency, save
from bench.options import at_least
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
MESSAGES: Final = 59_835
MESSAGES_QUICK: Final = 6_000
OWN: Final = "our store without Spark, 2 processes"


@dataclass(frozen=True)
class Rate:
    """What a run through Spark reached."""

    rows: int
    steady_rows_per_s: float
    whole_rows_per_s: float
    micro_batches: Latency
    derive_share: float


@dataclass(frozen=True)
class Found:
    """A run through Spark, raw limits by name in rows a second, how long reading back took, and what is durable."""

    rate: Rate
    raws: dict[str, float]
    scan_s: float
    durability: str


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


def bench_sqlite(node: FakeNode, directory: Path, options: argparse.Namespace) -> Found:
    """Write through Spark into SQLite, beside both raw limits."""
    with fresh(directory, "raw") as raw_directory:
        raw = fanout_raw.in_processes(fanout_raw.write_sqlite, DATA, options.messages, 2, raw_directory)
    with fresh(directory, "spark") as path:
        url = f"sqlite://{path}/store"
        rate = through_spark(node, url, path, options, "sqlite")
        own = fanout_raw.in_processes(fanout_raw.write_store, DATA, options.messages, 2, created(f"{url}-own"))
        return counted(url, rate, {"raw sqlite3, 2 processes, a file each": raw, OWN: own})


def bench_cassandra(node: FakeNode, directory: Path, options: argparse.Namespace) -> Found:
    """Write through Spark into Cassandra, beside both raw limits; the driver alone is tuned first."""
    config = free_ports(Config(heap=options.heap, commitlog_sync=options.commitlog_sync))
    with running(config, directory / "cassandra") as cluster:
        created(cluster.url("tuning"))
        way, _ = fanout_raw.tuned(DATA, config.native_port, "tuning", min(TUNING_MESSAGES, options.messages))
        print(f"best raw way: {way}", flush=True)
        created(cluster.url("raw"))
        arguments = (config.native_port, "raw", way)
        raw = fanout_raw.in_processes(fanout_raw.write_cassandra, DATA, options.messages, way.processes, *arguments)
        rate = through_spark(node, cluster.url("spark"), directory, options, "cassandra")
        own = fanout_raw.in_processes(fanout_raw.write_store, DATA, options.messages, 2, created(cluster.url("own")))
        return counted(cluster.url("spark"), rate, {f"raw cassandra-driver, {way}": raw, OWN: own})


STORES: Final[Mapping[str, Callable[[FakeNode, Path, argparse.Namespace], Found]]] = {
    "SQLite": bench_sqlite,
    "Cassandra": bench_cassandra,
}


def created(url: str) -> str:
    """Create the tables, and return the URL."""
    with open_store(url) as store:
        store.create((TIMELINE, DEAD_LETTERS))
    return url


def counted(url: str, rate: Rate, raws: dict[str, float]) -> Found:
    """Read every row back."""
    with open_store(url) as store:
        begin = time.perf_counter()
        read = sum(batch.num_rows for batch in store.scan(TIMELINE))
        scan_s = time.perf_counter() - begin
        durability = store.durability()
    if read != rate.rows:
        raise SystemExit(f"{read:,} rows are stored, the job reports {rate.rows:,}")
    return Found(rate, raws, scan_s, durability)


def show(found: Found) -> None:
    """Print the figures of one run beside the raw limits."""
    rate, spent = found.rate, found.rate.micro_batches
    print(f"   through Spark: {rate.steady_rows_per_s:,.0f} rows/s steady, {rate.whole_rows_per_s:,.0f} with the start")
    print(
        f"   micro-batches: p50 {spent.p50_ms:.0f} ms, p99 {spent.p99_ms:.0f} ms, max {spent.max_ms:.0f} ms, "
        f"{spent.samples} samples; {rate.derive_share:.0%} of the tasks' time makes rows, the rest writes them"
    )
    for what, raw in found.raws.items():
        print(f"   {what}: {raw:,.0f} rows/s; through Spark is {rate.steady_rows_per_s / raw:.2f} of it")
    print(f"   read back: {rate.rows:,} rows, all there, in {found.scan_s:.1f} s; {found.durability}", flush=True)


def parse() -> argparse.Namespace:
    """Return the options; a run that differs from a whole one is a sample."""
    own = parser(__doc__ or "")
    own.add_argument("--store", choices=("sqlite", "cassandra", "both"), default="both")
    own.add_argument("--messages", type=at_least(1), help=f"[{MESSAGES:,}: all; {MESSAGES_QUICK:,} with --quick]")
    own.add_argument("--batch", type=at_least(1), default=1_000, help="items in a batch of the flow")
    own.add_argument("--batches-per-trigger", type=at_least(1), help="[10; 2 with --quick]")
    own.add_argument("--rows-per-write", type=at_least(1), default=400_000)
    own.add_argument("--cores", type=at_least(1), default=2)
    own.add_argument("--rounds", type=at_least(1), default=1)
    own.add_argument("--heap", default="1g", help="of the Cassandra node")
    own.add_argument("--commitlog-sync", choices=("batch", "group", "periodic"), default="group")
    found = own.parse_args()
    found.messages = found.messages or (MESSAGES_QUICK if found.quick else MESSAGES)
    found.batches_per_trigger = found.batches_per_trigger or (2 if found.quick else 10)
    found.sample = found.quick or found.messages < MESSAGES or found.commitlog_sync == "periodic"
    return found


def main() -> None:
    """Measure each store, and save what was found."""
    options = parse()
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="oncegate-bench-") as name:
        flow = FakeFlow()
        flow.seal_all(list(messages(options.messages)), options.batch)
        with serving(flow) as node:
            for title, measure in STORES.items():
                for number in range(options.rounds if options.store in (title.lower(), "both") else 0):
                    directory = Path(name, f"{title.lower()}{number}")
                    directory.mkdir()
                    durability = "what the store says, below"
                    with watched(f"fan-out into {title}", directory, seed=options.seed, quick=options.sample,
                                 durability=durability) as about:  # fmt: skip
                        found = measure(node, directory, options)
                        about["durability"] = found.durability
                    show(found)
                    if not options.no_save:
                        row = {**asdict(found.rate), "raw_rows_per_s": found.raws, "scan_s": found.scan_s}
                        print(
                            f"saved in {save('fanout', about, [row]).name}; python -m bench.experiments page draws it"
                        )


if __name__ == "__main__":
    main()
