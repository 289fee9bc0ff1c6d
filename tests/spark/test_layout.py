"""Rows on their way into a store: order and placement, and CQL against the driver's own encoding."""

from __future__ import annotations

import io
import struct
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from cassandra import ConsistencyLevel
from cassandra.protocol import _UNSET_VALUE, BatchMessage
from cassandra.query import BatchType
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.spark_sink.dead_letters import DEAD_LETTERS
from oncegate.spark_sink.rows import TIMELINE
from oncegate.stores import layout
from oncegate.stores.cassandra import encoding as cql_encoding
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


ints = st.integers(-(2**63), 2**63 - 1)
texts = st.one_of(st.text(max_size=6), st.sampled_from(["aa", "bb", "éx"]))
blobs = st.none() | st.binary(max_size=4)
rows_of_any_length = st.lists(st.tuples(ints, texts | st.none(), blobs, ints | st.none()), min_size=1, max_size=8)
rows_of_one_length = st.lists(st.tuples(ints, st.just("m0000001"), st.binary(min_size=3, max_size=3), ints), min_size=1)
rows_without_texts = st.lists(st.tuples(ints, st.none(), st.binary(min_size=3, max_size=3), ints), min_size=1)
any_rows = st.one_of(rows_of_any_length, rows_of_one_length, rows_without_texts)
KINDS = [pa.int64(), pa.string(), pa.binary(), pa.int64()]
CONSISTENCY = ConsistencyLevel.LOCAL_QUORUM


def columns(rows: list[tuple[Any, ...]]) -> list[pa.Array]:
    return [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), KINDS, strict=True)]


def serialised(row: tuple[Any, ...]) -> list[bytes | None]:
    first, text, raw, last = row
    number = None if last is None else struct.pack(">q", last)
    return [struct.pack(">q", first), None if text is None else text.encode(), raw, number]


def bound(row: tuple[Any, ...], null: int) -> list[Any]:
    absent = _UNSET_VALUE if null == cql_encoding.NOT_SET else None
    return [absent if value is None else value for value in serialised(row)]


@pytest.mark.parametrize("null", [cql_encoding.NULL, cql_encoding.NOT_SET])
@given(rows=any_rows, query=st.binary(min_size=16, max_size=16), data=st.data())
@settings(deadline=None)
def test_encoded_batch_is_what_the_driver_would_send(
    rows: list[Any], query: bytes, data: st.DataObject, null: int
) -> None:
    first = data.draw(st.integers(0, len(rows) - 1))
    # A slice, to see that offsets inside a larger array are respected.
    encoded = cql_encoding.encode(query, [column[first:] for column in columns(rows)], null)
    end = data.draw(st.integers(1, len(rows) - first))
    batch = cql_encoding.EncodedBatch(encoded, 0, end, "k", b"r")
    sent = BatchMessage(BatchType.UNLOGGED, batch._statements_and_parameters, CONSISTENCY)
    sent.tracing = False
    frame = cql_encoding.EncodedBatchProtocol.encode_message(sent, 5, 4, None, allow_beta_protocol_version=False)
    statements = [(True, query, bound(row, null)) for row in rows[first : first + end]]
    expected = io.BytesIO()
    BatchMessage(BatchType.UNLOGGED, statements, CONSISTENCY).send_body(expected, 4)
    assert frame[9:] == expected.getvalue()


@given(any_rows)
@settings(deadline=None)
def test_rows_of_equal_length_are_read_as_columns_and_others_cell_by_cell(rows: list[Any]) -> None:
    cells = [
        [struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value for value in serialised(row)]
        for row in rows
    ]
    body = struct.pack(">i", len(rows)) + b"".join(b"".join(row) for row in cells)
    read = cql_encoding.equal_rows(body, KINDS)
    equal = len({tuple(cell[:4] for cell in row) for row in cells}) == 1
    assert (read is not None) == equal
    for found in (read, cql_encoding.any_rows(body, KINDS)):
        assert found is None or [column.to_pylist() for column in found] == [
            column.to_pylist() for column in columns(rows)
        ]


def test_no_rows_and_nulls_are_told_apart() -> None:
    nothing = cql_encoding.equal_rows(struct.pack(">i", 0), KINDS)
    assert nothing is not None
    assert [len(column) for column in nothing] == [0, 0, 0, 0]
    null = cql_encoding.equal_rows(struct.pack(">i", 2) + struct.pack(">i", -1) * 8, KINDS)
    assert null is not None
    assert [column.to_pylist() for column in null] == [[None, None]] * 4
