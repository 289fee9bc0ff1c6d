"""Rows of stream tables into Cassandra: processor time a row of client and server, beside the driver used by hand.

``python -m bench.stream_rows [--rows N] [--url cassandra://127.0.0.1:9042/bench --server-pid PID]``. Every row is a
partition of its own. By hand means single rows, or unlogged batches of any partitions (:mod:`bench.raw_cassandra`), the
best of some sizes. Rounds alternate.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import pyarrow as pa

from bench.harness import Bench, Run, option
from bench.raw_cassandra import Writer, connected
from bench.usage import Usage
from oncegate.stores import WRITE_TS, open_store
from oncegate.stores.cassandra.options import CassandraOptions
from oncegate.stores.devcassandra import Config, running
from oncegate.stores.devcassandra.cluster import free_ports
from oncegate.stores.stream_rows import STREAM_ROWS

VALUE: Final = "x" * 100
ROUNDS: Final = 3
WAYS: Final = ((1, 256), (20, 64), (20, 128), (50, 128), (100, 32))
"""Rows a batch, and batches in flight, of the driver by hand."""
INSERT: Final = "INSERT INTO {}.stream_rows (source, key, value) VALUES (?, ?, ?) USING TIMESTAMP ?"


def batch(count: int, seed: int) -> pa.RecordBatch:
    """Return rows of ``count`` keys that no other seed has."""
    keys = [f"{seed:04d}-{(number * 2_654_435_761) % 2**32:010d}" for number in range(count)]
    columns = {"source": ["events"] * count, "key": keys, "value": [VALUE] * count, WRITE_TS: [seed + 1] * count}
    return pa.RecordBatch.from_pydict(columns, schema=STREAM_ROWS.schema)


def timed(what: str, write: Callable[[pa.RecordBatch], None], rows: pa.RecordBatch, pids: Sequence[int]) -> Any:
    """Return what writing the rows took: processor time a row in microseconds, and rows a second."""
    server, client, began = Usage.of(pids).cpu_s, time.process_time(), time.perf_counter()
    write(rows)
    took_s, count = time.perf_counter() - began, rows.num_rows
    client, server = time.process_time() - client, Usage.of(pids).cpu_s - server
    costs = {"client_us": client / count * 1e6, "server_us": server / count * 1e6, "rows_per_s": count / took_s}
    return {"what": what, **costs}


def by_hand(session: Any, insert: str, rows_per_batch: int, in_flight: int, rows: pa.RecordBatch) -> None:
    cells = list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    Writer(session, insert, in_flight).write([cells], rows_per_batch)


def measure(run: Run) -> Iterator[dict[str, Any]]:
    # The driver warns of each batch over partitions; here it is meant.
    logging.getLogger("cassandra").setLevel(logging.ERROR)
    asked, seeds = run.options, iter(range(10_000))
    with ExitStack() as stack:
        url, pids = asked.url, asked.server_pid
        if not url:
            cluster = stack.enter_context(running(free_ports(Config(nodes=asked.nodes))))
            url, pids = cluster.url("bench"), [pid for node in cluster.nodes if (pid := node.pid())]
        store = stack.enter_context(open_store(url))
        store.create([STREAM_ROWS])
        run.about["durability"], options = store.durability(), CassandraOptions.parse(url)
        session = stack.enter_context(connected(options.places))
        ways = {way: partial(by_hand, session, INSERT.format(options.keyspace), *way) for way in WAYS}
        tried = {}
        for way, write in ways.items():
            what = f"by hand, {way[0]} rows a batch, {way[1]} in flight"
            tried[way] = timed(what, write, batch(asked.rows // 4, next(seeds)), pids)
            yield tried[way]
        best = max(tried, key=lambda one: float(tried[one]["rows_per_s"]))
        both = {"store": partial(store.write, STREAM_ROWS), f"by hand, {best[0]} rows a batch": ways[best]}
        both["store"](batch(asked.rows // 4, next(seeds)))
        rounds = [
            [timed(what, write, batch(asked.rows, next(seeds)), pids) for what, write in both.items()]
            for _ in range(ROUNDS)
        ]
    for pair in rounds:
        yield from pair
    ratio = statistics.median(ours["rows_per_s"] / theirs["rows_per_s"] for ours, theirs in rounds)
    core = statistics.median(1e6 / ours["client_us"] for ours, _ in rounds)
    yield {"what": "store over the driver by hand", "rows_per_s": ratio, "rows_a_client_core": core}


BENCH: Final = Bench(
    "stream_rows", __doc__, measure, durability="as the store says",
    options=(
        option("--rows", 100_000, "of a round", quick=4_000, type=int),
        option("--nodes", 1, "of a Cassandra of its own", type=int, choices=(1, 3)),
        option("--url", "", "of a cluster that is there"),
        option("--server-pid", (), "of that", type=int, action="append"),
    ),
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(BENCH.main())
