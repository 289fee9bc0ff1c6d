"""The rows of stream tables in a store: one row for each key, with its newest value. Pure.

Owns: the table that rows are read from once their batches are dropped, and how items become its rows. Imports no
Spark, clock or I/O: the gateway reads what the job writes. Read next: `jobs.stream_rows`, `stores.store`.

Keys, values and write timestamps follow from the item alone, so the store's rule (the largest timestamp wins) makes
the outcome the same in any order of writes and after any number of repetitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from oncegate.flows.flow import ROWS_CONSUMER as ROWS_CONSUMER
from oncegate.stores.tables import WRITE_TS, Column, ColumnType, StoreTable

STREAM_ROWS: Final = StoreTable(
    name="stream_rows",
    columns=(
        Column("source", ColumnType.TEXT),
        Column("key", ColumnType.TEXT),
        Column("value", ColumnType.TEXT),
    ),
    partition_key=("source", "key"),
)
"""One row a stream table and key: `source` is the table's name, `value` the JSON text, empty where the row is deleted.

A deleted row stays, as a tombstone of ours: a reader learns at which commit it went, which is its write timestamp.
"""


def rows_of(items: pa.RecordBatch, source: str, rows_max: int) -> Iterator[pa.RecordBatch]:
    """Yield rows of `STREAM_ROWS` for the items of table ``source``, one a key, in pieces of at most ``rows_max``.

    Of several items of one key only the newest becomes a row: the others could not be read any more anyway.
    """
    keys, commits = items.column("key").to_pylist(), np.asarray(items.column("commit"))
    newest = {keys[at]: at for at in np.argsort(commits, kind="stable").tolist()}
    chosen = items.take(pa.array(list(newest.values()), pa.int64()))
    columns = {
        "source": pa.array([source] * chosen.num_rows, pa.string()),
        "key": chosen.column("key"),
        "value": chosen.column("value").fill_null(""),
        WRITE_TS: chosen.column("commit"),
    }
    rows = pa.RecordBatch.from_arrays(list(columns.values()), schema=STREAM_ROWS.schema)
    for begin in range(0, rows.num_rows, rows_max):
        yield rows.slice(begin, rows_max)
