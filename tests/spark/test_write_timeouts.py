"""A write that Cassandra has done and that its client was told nothing of."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from cassandra import OperationTimedOut

from oncegate.stores import WRITE_TS, Clustering, Column, ColumnType, StoreTable, open_store
from oncegate.stores.cassandra.store import CassandraStore
from oncegate.stores.devcassandra import DevCluster

NOTES = StoreTable(
    name="notes",
    columns=(Column("owner", ColumnType.TEXT), Column("place", ColumnType.INT64), Column("text", ColumnType.TEXT)),
    partition_key=("owner",),
    clustering=(Clustering("place"),),
)


def _rows(*found: tuple[int, str, int]) -> pa.RecordBatch:
    columns = [{"owner": "ann", "place": place, "text": text, WRITE_TS: ts} for place, text, ts in found]
    return pa.RecordBatch.from_pylist(columns, schema=NOTES.schema)


@pytest.mark.cassandra
def test_write_that_timed_out_after_it_was_done_converges_on_one_row_and_beats_nothing_newer(
    cassandra: DevCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 38: between the time-out and the retry somebody even writes the row again, with a newer timestamp."""
    url = cassandra.url(f"t{uuid.uuid4().hex[:20]}")
    with open_store(url) as store, open_store(url) as other:
        assert isinstance(store, CassandraStore)
        store.create([NOTES])
        send = store._send
        sent: list[int] = []

        def silent_once(batches: Sequence[Any]) -> tuple[list[Any], Exception | None]:
            left, error = send(batches)
            assert error is None
            sent.append(len(batches))
            if len(sent) == 1:
                other.write(NOTES, _rows((2, "newer", 20)))
                return list(batches), OperationTimedOut()
            return left, error

        monkeypatch.setattr(store, "_send", silent_once)
        store.write(NOTES, _rows((1, "once", 10), (2, "older", 10)))
        assert len(sent) == 2, "it was retried"
        found = [row for batch in store.scan(NOTES) for row in batch.to_pylist()]
        assert [(row["place"], row["text"], row[WRITE_TS]) for row in found] == [(1, "once", 10), (2, "newer", 20)]
