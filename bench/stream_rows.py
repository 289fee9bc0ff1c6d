"""Rows of stream tables into Cassandra: processor time a row of client and server, beside the driver used by hand.

    python -m bench.stream_rows [--rows N] [--url cassandra://127.0.0.1:9042/bench --server-pid PID]

Every row is a partition of its own. By hand means cassandra-driver with prepared statements, single or in unlogged
batches of any partitions, the best of some sizes; rows are bound and sent as its documentation shows. Rounds alternate.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import DCAwareRoundRobinPolicy, TokenAwarePolicy
from cassandra.query import BatchStatement, BatchType

from bench.figures import header
from oncegate.stores import WRITE_TS, open_store
from oncegate.stores.cassandra.options import CassandraOptions
from oncegate.stores.devcassandra import Config, running
from oncegate.stores.devcassandra.cluster import free_ports
from oncegate.stores.stream_rows import STREAM_ROWS

VALUE = "x" * 100
ROUNDS = 3
WAYS = ((1, 256), (20, 64), (20, 128), (50, 128), (100, 32))
"""Rows a batch, and batches in flight, of the driver by hand."""


@dataclass(frozen=True)
class Cost:
    """What a round took: processor time a row in microseconds, and rows a second."""

    client_us: float
    server_us: float
    rows_per_s: float


def batch(count: int, seed: int) -> pa.RecordBatch:
    """Return rows of ``count`` keys that no other seed has."""
    keys = [f"{seed:04d}-{(number * 2_654_435_761) % 2**32:010d}" for number in range(count)]
    columns = {"source": ["events"] * count, "key": keys, "value": [VALUE] * count, WRITE_TS: [seed + 1] * count}
    return pa.RecordBatch.from_pydict(columns, schema=STREAM_ROWS.schema)


def server_s(pids: Sequence[int]) -> float:
    """Return the processor time of the servers until now."""
    ticks = 0
    for pid in pids:
        fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def timed(write: Callable[[pa.RecordBatch], None], rows: pa.RecordBatch, pids: Sequence[int]) -> Cost:
    """Return what writing the rows took."""
    server, client, begin = server_s(pids), time.process_time(), time.perf_counter()
    write(rows)
    took_s = time.perf_counter() - begin
    count = rows.num_rows
    client, server = time.process_time() - client, server_s(pids) - server
    return Cost(client / count * 1e6, server / count * 1e6, count / took_s)


@contextmanager
def by_hand(options: CassandraOptions) -> Iterator[Callable[[int, int], Callable[[pa.RecordBatch], None]]]:
    """Yield a function from rows a batch and batches in flight to a way of writing."""
    profile = ExecutionProfile(TokenAwarePolicy(DCAwareRoundRobinPolicy()), request_timeout=60)
    with Cluster(
        list(options.places), execution_profiles={EXEC_PROFILE_DEFAULT: profile}, protocol_version=4
    ) as cluster:
        session = cluster.connect()
        insert = session.prepare(
            f"INSERT INTO {options.keyspace}.stream_rows (source, key, value) VALUES (?, ?, ?) USING TIMESTAMP ?"
        )

        def way(rows_per_batch: int, in_flight: int) -> Callable[[pa.RecordBatch], None]:
            places, errors = threading.Semaphore(in_flight), list[Exception]()

            def failed(error: Exception) -> None:
                errors.append(error)
                places.release()

            def send(statement: Any, values: Any = None) -> None:
                places.acquire()
                session.execute_async(statement, values).add_callbacks(lambda _: places.release(), failed)

            def write(rows: pa.RecordBatch) -> None:
                cells = list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
                for at in range(0, len(cells), rows_per_batch):
                    if rows_per_batch == 1:
                        send(insert, cells[at])
                        continue
                    statement = BatchStatement(BatchType.UNLOGGED)
                    for cell in cells[at : at + rows_per_batch]:
                        statement.add(insert, cell)
                    send(statement)
                for _ in range(in_flight):
                    places.acquire()
                for _ in range(in_flight):
                    places.release()
                if errors:
                    raise errors[0]

            return write

        yield way


def run(url: str, pids: Sequence[int], count: int) -> None:
    """Print the costs of both."""
    seeds = iter(range(10_000))
    with ExitStack() as stack:
        store = stack.enter_context(open_store(url))
        store.create([STREAM_ROWS])
        way = stack.enter_context(by_hand(CassandraOptions.parse(url)))
        header("rows of stream tables into Cassandra", seed=0, durability=store.durability(), calibrations={})
        found = {}
        for rows_per_batch, in_flight in WAYS:
            cost = timed(way(rows_per_batch, in_flight), batch(count // 4, next(seeds)), pids)
            found[rows_per_batch, in_flight] = cost
            print(f"  by hand, {rows_per_batch} rows a batch, {in_flight} in flight: {_line(cost)}", flush=True)
        best = max(found, key=lambda one: found[one].rows_per_s)

        def write(rows: pa.RecordBatch) -> None:
            store.write(STREAM_ROWS, rows)

        timed(write, batch(count // 4, next(seeds)), pids)
        rounds = [
            (timed(write, batch(count, next(seeds)), pids), timed(way(*best), batch(count, next(seeds)), pids))
            for _ in range(ROUNDS)
        ]
    ours, theirs = zip(*rounds, strict=True)
    for name, costs in (("store", ours), (f"by hand, {best[0]} rows a batch", theirs)):
        for cost in costs:
            print(f"  {name}: {_line(cost)}")
    ratio = statistics.median(one.rows_per_s / other.rows_per_s for one, other in rounds)
    core = statistics.median(1e6 / one.client_us for one in ours)
    print(f"stream_rows: {core:,.0f} rows/s a client core; {ratio:.2f} of the rate of the driver by hand")


def _line(cost: Cost) -> str:
    return f"client {cost.client_us:.1f} us/row, server {cost.server_us:.1f} us/row, {cost.rows_per_s:,.0f} rows/s"


def main() -> None:
    """Run against a cluster that is there, or one of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="of a round")
    parser.add_argument("--nodes", type=int, default=1, choices=(1, 3))
    parser.add_argument("--url")
    parser.add_argument("--server-pid", type=int, action="append", default=[])
    options = parser.parse_args()
    # The driver warns of each batch over partitions; here it is meant.
    logging.getLogger("cassandra").setLevel(logging.ERROR)
    if options.url:
        run(options.url, options.server_pid, options.rows)
        return
    with running(free_ports(Config(nodes=options.nodes))) as cluster:
        run(cluster.url("bench"), [pid for node in cluster.nodes if (pid := node.pid())], options.rows)


if __name__ == "__main__":
    main()
