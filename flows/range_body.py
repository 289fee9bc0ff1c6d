"""The body of a range: an Arrow IPC stream with the columns ``key`` and ``value``.

Owns: its layout. The edge checks keys and values once, before the range enters the log; afterwards the bytes are
trusted and only :func:`decode` touches them, off the hot path. Must not know commit numbers.

Layout: IPC stream, schema exactly ``key: string, value: string`` (value null = deleted), any number of record
batches; rows are operations in order of their sequence numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from oncegate.flows.errors import BadRequestError

BODY_SCHEMA: Final[pa.Schema] = pa.schema([pa.field("key", pa.string()), pa.field("value", pa.string())])


def encode(keys: Sequence[str], values: Sequence[bytes | None]) -> bytes:
    """Return the body for rows given by column; ``values`` are JSON text, None = deleted."""
    return write(rows(keys, values))


def rows(keys: Sequence[str], values: Sequence[bytes | str | None]) -> pa.RecordBatch:
    """Return rows given by column as one record batch; raises ``pa.ArrowInvalid`` for what is not UTF-8."""
    return pa.record_batch([pa.array(keys, pa.string()), pa.array(values, pa.string())], schema=BODY_SCHEMA)


def write(batch: pa.RecordBatch) -> bytes:
    """Return the body that holds one record batch of :func:`rows`."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, BODY_SCHEMA) as writer:
        writer.write_batch(batch)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def decode(body: bytes, offset: int, count: int) -> tuple[pa.Array, pa.Array]:
    """Return rows ``offset .. offset + count`` as (keys, values), string arrays without copying where possible.

    Raises:
        BadRequestError: not such a body, or it has fewer rows.
    """
    table = _read(body)
    if offset + count > table.num_rows:
        raise BadRequestError(f"a range body has {table.num_rows} rows, not {offset + count}")
    part = table.slice(offset, count)
    return _one(part.column(0)), _one(part.column(1))


def _read(body: bytes) -> pa.Table:
    try:
        with pa.ipc.open_stream(body) as reader:
            # Names and types must match; nullability and metadata may differ.
            if reader.schema.names != BODY_SCHEMA.names or reader.schema.types != BODY_SCHEMA.types:
                raise BadRequestError("a range body has the columns key: string, value: string")
            return reader.read_all()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadRequestError(f"not an Arrow IPC stream: {error}") from error


def _one(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], pa.string())
