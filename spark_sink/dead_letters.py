"""Dead letters: items that became no row, with the value's bytes as they came, why, and where they came from.

Owns: their table, how an item becomes a row of it, and how letters are found again. Every sink writes them, whatever
its derivation. Read next: `applying`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from oncegate.spark_sink.derivation import FlowBatch
from oncegate.stores.claimed import ClaimedStore
from oncegate.stores.tables import WRITE_TS, Clustering, Column, ColumnType, StoreTable

DEAD_LETTERS: Final = StoreTable(
    name="job_dead_letters",
    columns=(
        Column("job", ColumnType.TEXT),
        Column("flow", ColumnType.TEXT),
        Column("batch", ColumnType.INT64),
        Column("commit", ColumnType.INT64),
        Column("item_key", ColumnType.TEXT),
        Column("raw", ColumnType.BLOB),
        Column("error", ColumnType.TEXT),
        Column("client_id", ColumnType.INT64),
        Column("sequence", ColumnType.INT64),
        Column("time_ms", ColumnType.INT64),
        Column("traceparent", ColumnType.TEXT, nullable=True),
    ),
    partition_key=("job", "flow", "batch"),
    clustering=(Clustering("commit"),),
)
"""One row a job and item; ``job`` is the name of the job's consumer. ``raw`` is empty for a deletion.

Before version 0.2 the timeline job alone wrote them, to the table `dead_letters`, without ``job``; nothing reads or
changes that table any more.
"""


def letters(batch: FlowBatch, job: str, errors: Mapping[int, str]) -> pa.RecordBatch:
    """Return rows of `DEAD_LETTERS` for the items of ``batch`` that ``errors`` names, by commit number."""
    chosen = np.flatnonzero(np.isin(np.asarray(batch.items.column("commit")), list(errors)))
    items = batch.items.take(pa.array(chosen))
    commit, count = items.column("commit"), len(chosen)
    columns = {
        "job": pa.array([job] * count, pa.string()),
        "flow": pa.array([batch.flow] * count, pa.string()),
        "batch": pa.array([batch.number] * count, pa.int64()),
        "commit": commit,
        "item_key": items.column("key"),
        "raw": items.column("value").cast(pa.binary()).fill_null(b""),
        "error": pa.array([errors[number] for number in commit.to_pylist()], pa.string()),
        "client_id": items.column("client_id"),
        "sequence": items.column("sequence"),
        "time_ms": items.column("time_ms"),
        "traceparent": items.column("traceparent"),
        WRITE_TS: commit,
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=DEAD_LETTERS.schema)


def found_letters(
    store: ClaimedStore, job: str = "", flow: str = "", error: str = "", commits: Collection[int] = ()
) -> Iterator[dict[str, Any]]:
    """Yield the letters of a job and a flow whose error contains a text; empty: of all. Reads the whole table.

    Args:
        store: where they are; without such a table there are none.
        job: name of the job's consumer.
        flow: name of the flow.
        error: a part of the error.
        commits: commit numbers of the items; empty: any.
    """
    if DEAD_LETTERS.name not in store.tables():
        return
    for rows in store.scan(DEAD_LETTERS):
        for letter in rows.to_pylist():
            named = job in ("", letter["job"]) and flow in ("", letter["flow"])
            if named and error in letter["error"] and (not commits or letter["commit"] in commits):
                yield letter
