"""The raw limit of a store for the rows of the fan-out, and our store without Spark beside it.

Raw means: the same rows, the same driver, no Spark, none of our store.

Each process generates its share outside the clock, piece by piece, and times only the driver's work; the rate is all
rows over the busiest process's time. For Cassandra the way of writing is tuned first: processes, rows a batch,
batches in flight.
"""

from __future__ import annotations

import multiprocessing as mp
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.raw_cassandra import Writer, connected
from examples.demo import dataset
from oncegate.spark_sink import contacts, rows
from oncegate.stores import open_store

Row = tuple[int, int, int, int, str, int, int, int]
PIECE_ROWS = 400_000


@dataclass(frozen=True)
class Share:
    """What one process writes."""

    messages: int
    number: int
    of: int

    def pieces(self) -> Iterator[pa.RecordBatch]:
        """Yield this share of the timeline rows, sorted by primary key within a piece."""
        known, sent = contacts.load(dataset.DATA_FILE), dataset.load(limit=self.messages)
        commit = np.arange(1, len(sent) + 1)
        keys = pa.array(map(dataset.key_of, commit.tolist()))
        posts = rows.Posts(keys, commit, sent.sender, sent.sent_at, pa.nulls(len(commit), pa.string()))
        for at, piece in enumerate(rows.pieces(posts, known, PIECE_ROWS)):
            if at % self.of == self.number:
                yield rows.fan_out(piece, known)


def tuples(batch: pa.RecordBatch) -> list[Row]:
    written = batch.drop_columns(["traceparent"])
    return list(zip(*(column.to_pylist() for column in written.columns), strict=True))


def write_sqlite(share: Share, directory: Path) -> tuple[int, float]:
    """Write into a file of this process alone: nobody to wait for."""
    connection = sqlite3.connect(directory / f"raw-{share.number}.sqlite", isolation_level=None)
    for setting in ("page_size = 8192", "journal_mode = WAL", "synchronous = FULL", "cache_size = -131072"):
        connection.execute(f"PRAGMA {setting}")
    connection.execute(
        'CREATE TABLE timeline ("user" INTEGER, bucket INTEGER, "commit" INTEGER, ordinal INTEGER, message TEXT, '
        "sender INTEGER, sent_at INTEGER, ts INTEGER, "
        'PRIMARY KEY ("user", bucket, "commit" DESC, ordinal)) WITHOUT ROWID'
    )
    insert = (
        "INSERT INTO timeline VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
        'ON CONFLICT ("user", bucket, "commit", ordinal) DO UPDATE '
        "SET message = excluded.message, sender = excluded.sender, sent_at = excluded.sent_at, ts = excluded.ts "
        "WHERE excluded.ts >= ts"
    )
    written, busy_s = 0, 0.0
    for batch in share.pieces():
        values = tuples(batch)
        begin = time.perf_counter()
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(insert, values)
        connection.execute("COMMIT")
        busy_s += time.perf_counter() - begin
        written += len(values)
    connection.close()
    return written, busy_s


def write_store(share: Share, url: str) -> tuple[int, float]:
    """Write through our own store: what Spark adds is the difference to this."""
    written, busy_s = 0, 0.0
    with open_store(url) as store:
        store.count(rows.TIMELINE)
        for piece in share.pieces():
            begin = time.perf_counter()
            store.write(rows.TIMELINE, piece)
            busy_s += time.perf_counter() - begin
            written += piece.num_rows
    return written, busy_s


@dataclass(frozen=True)
class Way:
    """A way of writing to Cassandra."""

    processes: int
    rows_per_batch: int
    in_flight: int


def write_cassandra(share: Share, port: int, keyspace: str, way: Way) -> tuple[int, float]:
    """Write in batches of one partition."""
    statement = (
        f'INSERT INTO {keyspace}.timeline ("user", bucket, "commit", ordinal, message, sender, sent_at) '
        "VALUES (?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?"
    )
    written, busy_s = 0, 0.0
    with connected([("127.0.0.1", port)]) as session:
        writer = Writer(session, statement, way.in_flight)
        for piece in share.pieces():
            values = tuples(piece)
            begin = time.perf_counter()
            writer.write((list(of_user) for _, of_user in groupby(values, key=lambda row: row[:2])), way.rows_per_batch)
            busy_s += time.perf_counter() - begin
            written += len(values)
    return written, busy_s


def in_processes(write: Callable[..., tuple[int, float]], messages: int, processes: int, *more: Any) -> float:
    """Return rows a second of ``write`` run by several processes at once."""
    with mp.get_context("spawn").Pool(processes) as pool:
        shares = [Share(messages, number, processes) for number in range(processes)]
        done = pool.starmap(write, [(share, *more) for share in shares])
    return sum(written for written, _ in done) / max(busy_s for _, busy_s in done)


def tuned(port: int, keyspace: str, messages: int) -> tuple[Way, float]:
    """Return the best way of writing over a sample, and its rate; also warms the server up."""
    found = []
    for processes, rows_per_batch, in_flight in product((1, 2), (50, 200, 400), (32, 128)):
        way = Way(processes, rows_per_batch, in_flight)
        rate = in_processes(write_cassandra, messages, processes, port, keyspace, way)
        print(f"  {way}: {rate:,.0f} rows/s", flush=True)
        found.append((rate, way))
    rate, way = max(found, key=lambda one: one[0])
    return way, rate
