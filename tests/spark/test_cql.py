"""The vectorised encoding and decoding of CQL against the driver's own."""

from __future__ import annotations

import io
import struct
from typing import Any

import pyarrow as pa
from cassandra import ConsistencyLevel
from cassandra.protocol import _UNSET_VALUE, BatchMessage
from cassandra.query import BatchType
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.stores.cassandra import encoding as cql_encoding

ints = st.integers(-(2**63), 2**63 - 1)
texts = st.one_of(st.text(max_size=6), st.sampled_from(["aa", "bb", "éx"]))
blobs = st.none() | st.binary(max_size=4)
rows_of_any_length = st.lists(st.tuples(ints, texts | st.none(), blobs, ints), min_size=1, max_size=8)
rows_of_one_length = st.lists(st.tuples(ints, st.just("m0000001"), st.binary(min_size=3, max_size=3), ints), min_size=1)
rows_without_texts = st.lists(st.tuples(ints, st.none(), st.binary(min_size=3, max_size=3), ints), min_size=1)
any_rows = st.one_of(rows_of_any_length, rows_of_one_length, rows_without_texts)
KINDS = [pa.int64(), pa.string(), pa.binary(), pa.int64()]
CONSISTENCY = ConsistencyLevel.LOCAL_QUORUM


def columns(rows: list[tuple[Any, ...]]) -> list[pa.Array]:
    return [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), KINDS, strict=True)]


def serialised(row: tuple[Any, ...]) -> list[bytes | None]:
    first, text, raw, last = row
    return [struct.pack(">q", first), None if text is None else text.encode(), raw, struct.pack(">q", last)]


def bound(row: tuple[Any, ...]) -> list[Any]:
    return [_UNSET_VALUE if value is None else value for value in serialised(row)]


@given(any_rows, st.binary(min_size=16, max_size=16), st.data())
@settings(deadline=None)
def test_encoded_batch_is_what_the_driver_would_send(rows: list[Any], query: bytes, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(rows) - 1))
    # A slice, to see that offsets inside a larger array are respected.
    encoded = cql_encoding.encode(query, [column[first:] for column in columns(rows)])
    end = data.draw(st.integers(1, len(rows) - first))
    piece = encoded.data[encoded.offsets[0] : encoded.offsets[end]]
    batch = cql_encoding.EncodedBatch(piece, end, "k", b"r")
    sent = BatchMessage(BatchType.UNLOGGED, batch._statements_and_parameters, CONSISTENCY)
    sent.tracing = False
    frame = cql_encoding.EncodedBatchProtocol.encode_message(sent, 5, 4, None, allow_beta_protocol_version=False)
    statements = [(True, query, bound(row)) for row in rows[first : first + end]]
    expected = io.BytesIO()
    BatchMessage(BatchType.UNLOGGED, statements, CONSISTENCY).send_body(expected, 4)
    assert frame[9:] == expected.getvalue()


@given(any_rows)
@settings(deadline=None)
def test_rows_of_equal_length_are_read_as_columns_and_others_are_left_alone(rows: list[Any]) -> None:
    cells = [
        [struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value for value in serialised(row)]
        for row in rows
    ]
    body = struct.pack(">i", len(rows)) + b"".join(b"".join(row) for row in cells)
    read = cql_encoding.equal_rows(body, KINDS)
    equal = len({tuple(cell[:4] for cell in row) for row in cells}) == 1
    assert (read is not None) == equal
    if read is not None:
        assert [column.to_pylist() for column in read] == [column.to_pylist() for column in columns(rows)]


def test_no_rows_and_nulls_are_told_apart() -> None:
    nothing = cql_encoding.equal_rows(struct.pack(">i", 0), KINDS)
    assert nothing is not None
    assert [len(column) for column in nothing] == [0, 0, 0, 0]
    null = cql_encoding.equal_rows(struct.pack(">i", 2) + struct.pack(">i", -1) * 8, KINDS)
    assert null is not None
    assert [column.to_pylist() for column in null] == [[None, None]] * 4
