"""Order and placement of rows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.spark_sink.rows import DEAD_LETTERS, TIMELINE
from oncegate.stores import layout
from oncegate.stores.tables import WRITE_TS, Clustering, Column, ColumnType, StoreTable

TABLE = StoreTable(
    name="t",
    columns=(
        Column("a", ColumnType.INT64),
        Column("b", ColumnType.TEXT),
        Column("c", ColumnType.INT64),
        Column("d", ColumnType.BLOB),
        Column("v", ColumnType.INT64),
    ),
    partition_key=("a", "b"),
    clustering=(Clustering("c", descending=True), Clustering("d")),
)
cells = st.fixed_dictionaries(
    {
        "a": st.one_of(st.integers(-2, 2), st.sampled_from([-(2**63), 2**63 - 1])),
        "b": st.sampled_from(["", "a", "ab", "é", "z"]),
        "c": st.one_of(st.integers(-2, 2), st.sampled_from([-(2**63), 2**63 - 1])),
        "d": st.sampled_from([b"", b"\0", b"\xff", b"a"]),
        "v": st.integers(0, 9),
        WRITE_TS: st.just(1),
    }
)


def batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=TABLE.schema)


@given(st.lists(cells, max_size=30))
@settings(deadline=None)
def test_rows_are_sorted_by_primary_key_and_equal_keys_keep_their_order(rows: list[dict[str, Any]]) -> None:
    ordered = layout.sort_by_key(TABLE, batch(rows)).to_pylist()
    assert ordered == sorted(rows, key=lambda row: (row["a"], row["b"].encode(), -row["c"], row["d"]))
    assert layout.sort_by_key(TABLE, batch(ordered)).to_pylist() == ordered


@given(st.lists(cells, max_size=30))
@settings(deadline=None)
def test_borders_separate_partitions(rows: list[dict[str, Any]]) -> None:
    ordered = layout.sort_by_key(TABLE, batch(rows))
    borders = layout.partition_borders(TABLE, ordered)
    runs = [ordered.slice(first, end - first).to_pylist() for first, end in pairwise(borders)]
    found = [{(row["a"], row["b"]) for row in run} for run in runs]
    assert all(len(keys) == 1 for keys in found)
    assert len(found) == len({(row["a"], row["b"]) for row in rows})
    assert borders[-1] == len(rows)


def test_a_partition_stays_in_its_shard_for_ever() -> None:
    rows = [{"a": a, "b": b, "c": 1, "d": b"", "v": 1, WRITE_TS: 1} for a in (-1, 7) for b in ("", "é")]
    assert layout.shard_of(TABLE, batch(rows), 64).tolist() == [47, 15, 13, 4]


def test_declaration_survives_its_text_form() -> None:
    for table in (TIMELINE, DEAD_LETTERS):
        assert StoreTable.from_json(table.to_json()) == table
