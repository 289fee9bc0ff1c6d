"""Pages of a CQL result as Arrow columns, without an object a value where rows are equally long.

Owns: the binary layout of a ROWS result (CQL native protocol v4) and the hand-over from cassandra-driver. Its own
NumPy handler (3.30.1) drops every row without an error under NumPy 2, so it is not used.

Layout after the metadata, big-endian: number of rows (int), and for each value its length (int, -1 = null) and its
bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from cassandra.cqltypes import BytesType, LongType, VarcharType
from cassandra.protocol import ProtocolHandler, ResultMessage

_ARROW_TYPE: Final = {LongType: pa.int64(), VarcharType: pa.string(), BytesType: pa.binary()}
_RowsMessage: Final[Any] = ProtocolHandler.message_types_by_opcode[ResultMessage.opcode]


class _PageMessage(_RowsMessage):  # type: ignore[misc]
    parsed_rows: Any

    def recv_results_rows(self, f: Any, version: int, types: Any, metadata: Any, policy: Any) -> None:
        start = f.tell()
        self.recv_results_metadata(f, types)
        columns = self.column_metadata or metadata
        names, kinds = [column[2] for column in columns], [_ARROW_TYPE[column[3]] for column in columns]
        arrays = equal_rows(f.read(), kinds)
        if arrays is None:
            f.seek(start)
            super().recv_results_rows(f, version, types, metadata, policy)
            cells = zip(*self.parsed_rows, strict=True)
            arrays = [pa.array(column, kind) for column, kind in zip(cells, kinds, strict=True)]
        self.column_names, self.column_types = names, [column[3] for column in columns]
        self.parsed_rows = [pa.RecordBatch.from_arrays(arrays, names=names)]


class PageProtocol(ProtocolHandler):  # type: ignore[misc]
    """A protocol handler whose results are pages: a `pyarrow.RecordBatch` in place of rows."""

    message_types_by_opcode: Final = {
        **ProtocolHandler.message_types_by_opcode,
        ResultMessage.opcode: _PageMessage,
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
