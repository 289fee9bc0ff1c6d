"""Rows to and from the binary form of CQL (native protocol v4), column by column instead of value by value.

Owns: the binary layout, and the hand-over to cassandra-driver. Binding and encoding each value in Python is what limits
the driver, not the server: this is about five times cheaper. The driver's own NumPy handler (3.30.1) drops every row
without an error under NumPy 2, so it is not used.

Layout of one statement of a BATCH, big-endian: kind 1 (byte), length of the prepared id (short), the id, number of
values (short), and for each value its length (int) and its bytes; an int64 is 8 bytes in two's complement, of any other
value the bytes are the cell form's (`oncegate.stores.cells`). A null goes as length -1, which writes a tombstone of the
cell, or as -2, "not set": it writes no cell and no tombstone. Layout of a ROWS result after the metadata: number of
rows (int), and for each value its length (int, -1 = null) and its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from cassandra import protocol
from cassandra.cqltypes import DateType, LongType, VarcharType
from cassandra.query import BatchStatement, BatchType

Bytes = npt.NDArray[np.uint8]

NULL: Final = -1
NOT_SET: Final = -2
_ARROW_TYPE: Final = {LongType: pa.int64(), DateType: pa.int64(), VarcharType: pa.string()}
_LENGTH: Final = struct.Struct(">i")
_RowsMessage: Final[Any] = protocol.ProtocolHandler.message_types_by_opcode[protocol.ResultMessage.opcode]


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Statements back to back: statement i is ``data[offsets[i]:offsets[i + 1]]``."""

    data: memoryview
    offsets: npt.NDArray[np.int64]


def encode(prepared_id: bytes, columns: Sequence[pa.Array], null: int = NOT_SET) -> EncodedRows:
    """Return one statement a row, the columns in bind order; int64, string or binary. ``null``: the length of one."""
    count = len(columns[0])
    head = struct.pack(f">BH{len(prepared_id)}sH", 1, len(prepared_id), prepared_id, len(columns))
    parts: list[_Part] = [_Part(np.broadcast_to(np.frombuffer(head, np.uint8), (count, len(head))), None)]
    for column in columns:
        parts += _int64(column, null) if pa.types.is_int64(column.type) else _ragged(column, null)
    if all(part.lengths is None for part in parts):
        # Equally long rows, as with fixed-width keys: columns of one matrix.
        rows = np.concatenate([part.data for part in parts], axis=1)
        return EncodedRows(memoryview(rows.data).cast("B"), np.arange(count + 1, dtype=np.int64) * rows.shape[1])
    widths = [np.full(count, part.data.shape[1]) if part.lengths is None else part.lengths for part in parts]
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.sum(widths, axis=0), out=offsets[1:])
    out = np.empty(offsets[-1], dtype=np.uint8)
    at = offsets[:-1].copy()
    for part, width in zip(parts, widths, strict=True):
        if part.lengths is None:
            out[at[:, None] + np.arange(part.data.shape[1])] = part.data
        else:
            source = np.cumsum(width) - width
            out[np.repeat(at - source, width) + np.arange(len(part.data))] = part.data
        at += width
    return EncodedRows(out.data, offsets)


class EncodedBatch(BatchStatement):  # type: ignore[misc]
    """An unlogged batch of the encoded statements ``first`` .. ``end`` - 1, all of the same replicas."""

    def __init__(self, rows: EncodedRows, first: int, end: int, keyspace: str, routing_key: bytes) -> None:
        super().__init__(BatchType.UNLOGGED)
        self._rows, self.first, self.count = rows, first, end - first
        self._statements_and_parameters = _Statements(rows.data[rows.offsets[first] : rows.offsets[end]], self.count)
        # With both the driver sends the batch to a replica.
        self.keyspace, self.routing_key = keyspace, routing_key
        self.is_idempotent = True

    def halves(self) -> list[EncodedBatch]:
        """Return two batches of its statements, at least two, to the same replicas."""
        middle, end = self.first + self.count // 2, self.first + self.count
        where = self.keyspace, self.routing_key
        return [EncodedBatch(self._rows, first, last, *where) for first, last in ((self.first, middle), (middle, end))]


class EncodedBatchProtocol(protocol.ProtocolHandler):  # type: ignore[misc]
    """The driver's protocol handler, which also knows how to send an `EncodedBatch`."""

    @classmethod
    def encode_message(cls, msg: Any, *args: Any, **kwargs: Any) -> bytes:
        """Return the frame of a message."""
        if isinstance(msg, protocol.BatchMessage) and isinstance(msg.queries, _Statements):
            encoded = _EncodedBatchMessage(msg.batch_type, msg.queries, msg.consistency_level)
            encoded.tracing, encoded.custom_payload = msg.tracing, msg.custom_payload
            msg = encoded
        frame: bytes = super().encode_message(msg, *args, **kwargs)
        return frame


@dataclass(frozen=True, slots=True)
class _Statements:
    data: memoryview
    count: int

    def __len__(self) -> int:
        return self.count


class _EncodedBatchMessage(protocol.BatchMessage):  # type: ignore[misc]
    def send_body(self, f: Any, protocol_version: int) -> None:
        protocol.write_byte(f, self.batch_type.value)
        protocol.write_short(f, self.queries.count)
        f.write(self.queries.data)
        protocol.write_consistency_level(f, self.consistency_level)
        # No flags: every statement brings its own timestamp.
        protocol.write_byte(f, 0)


@dataclass(frozen=True, slots=True)
class _Part:
    """A matrix (rows, width) of equally long pieces, or all bytes in a row and the length of each piece."""

    data: Bytes
    lengths: npt.NDArray[np.int64] | None


def _int64(column: pa.Array, null: int) -> list[_Part]:
    missing = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    cells = np.zeros((len(column), 12), dtype=np.uint8)
    cells[:, 3] = 8
    cells[:, 4:] = np.asarray(column.fill_null(0)).astype(">i8").view(np.uint8).reshape(-1, 8)
    if missing is None:
        return [_Part(cells, None)]
    lengths = np.where(missing, null, 8).astype(">i4").view(np.uint8).reshape(-1, 4)
    return [_Part(lengths, None), _Part(cells[~missing, 4:].reshape(-1), np.where(missing, 0, 8))]


def _ragged(column: pa.Array, null: int) -> list[_Part]:
    missing = None
    if column.null_count:
        missing = column.is_null().to_numpy(zero_copy_only=False)
        column = pc.fill_null(column, pa.scalar(b"", pa.binary()).cast(column.type))
    _, offset_buffer, data = column.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, len(column) + 1, column.offset * 4).astype(np.int64)
    text = np.frombuffer(data or b"", np.uint8)[offsets[0] : offsets[-1]]
    lengths = np.diff(offsets)
    stated = lengths if missing is None else np.where(missing, null, lengths)
    prefix = _Part(stated.astype(">i4").view(np.uint8).reshape(-1, 4), None)
    if len(column) and np.all(lengths == lengths[0]):
        return [prefix, _Part(text.reshape(len(column), int(lengths[0])), None)]
    return [prefix, _Part(text, lengths)]


class _PageMessage(_RowsMessage):  # type: ignore[misc]
    parsed_rows: Any

    def recv_results_rows(self, f: Any, version: int, types: Any, metadata: Any, policy: Any) -> None:
        self.recv_results_metadata(f, types)
        columns = self.column_metadata or metadata
        names = [column[2] for column in columns]
        kinds = [_ARROW_TYPE.get(column[3], pa.binary()) for column in columns]
        body = f.read()
        arrays = equal_rows(body, kinds) or any_rows(body, kinds)
        self.column_names, self.column_types = names, [column[3] for column in columns]
        self.parsed_rows = [pa.RecordBatch.from_arrays(arrays, names=names)]


class PageProtocol(protocol.ProtocolHandler):  # type: ignore[misc]
    """A protocol handler whose results are pages: a `pyarrow.RecordBatch` in cell form in place of rows."""

    message_types_by_opcode: Final = {
        **protocol.ProtocolHandler.message_types_by_opcode,
        protocol.ResultMessage.opcode: _PageMessage,
    }


def equal_rows(body: bytes, kinds: Sequence[pa.DataType]) -> list[pa.Array] | None:
    """Return the columns of a result whose rows are equally long, a column's values all null or none, else None."""
    count = int.from_bytes(body[:4], "big")
    cells = np.frombuffer(body, np.uint8, offset=4)
    if count == 0:
        return [pa.array([], kind) for kind in kinds]
    if len(cells) % count:
        return None
    rows = cells.reshape(count, -1)
    arrays, at = [], 0
    for kind in kinds:
        lengths = rows[:, at : at + 4]
        length = int.from_bytes(lengths[0].tobytes(), "big", signed=True)
        # If every row shows the first one's lengths where the first one has them, all have its layout.
        if np.any(lengths != lengths[0]):
            return None
        if length < 0:
            arrays.append(pa.nulls(count, kind))
            at += 4
            continue
        column = np.ascontiguousarray(rows[:, at + 4 : at + 4 + length])
        if pa.types.is_int64(kind):
            arrays.append(pa.array(column.view(">i8").reshape(-1).astype(np.int64)))
        else:
            offsets = np.arange(count + 1, dtype=np.int32) * np.int32(length)
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(column)]
            arrays.append(pa.Array.from_buffers(kind, count, buffers))
        at += 4 + length
    return arrays if at == rows.shape[1] else None


def any_rows(body: bytes, kinds: Sequence[pa.DataType]) -> list[pa.Array]:
    """Return the columns of a result of any rows."""
    at, cells = 4, list[bytes | None]()
    for _ in range(int.from_bytes(body[:4], "big") * len(kinds)):
        (length,) = _LENGTH.unpack_from(body, at)
        at += 4
        if length < 0:
            cells.append(None)
            continue
        cells.append(body[at : at + length])
        at += length
    return [_column(cells[place :: len(kinds)], kind) for place, kind in enumerate(kinds)]


def _column(cells: list[bytes | None], kind: pa.DataType) -> pa.Array:
    if not pa.types.is_int64(kind):
        return pa.array(cells, pa.binary()).cast(kind)
    # Other clients can write a cell of no bytes, which they all read as null.
    numbers = np.frombuffer(b"".join(cell or bytes(8) for cell in cells), ">i8").astype(np.int64)
    return pa.array(numbers, mask=np.array([not cell for cell in cells], np.bool_))
