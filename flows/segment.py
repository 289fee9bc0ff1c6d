"""The payload of a batch: an Arrow IPC stream that depends on the items alone.

Owns: turning chunks into bytes, bytes into JSON lines, and the checksum that identifies them. Must not know files
(:mod:`oncegate.flows.segment_store`) or when a batch is cut.

Every node builds the payload by itself, from chunks that lie differently in memory: a node that restarted, or
received a range in two parts, has other slices. So nothing of Arrow's memory layout may reach the bytes: each
column is laid out anew, in record batches of ROWS_PER_RECORD_BATCH rows, with offsets from zero, no data under
nulls, no validity bitmap where nothing is null, and zero bits after the last row. A dictionary holds its entries
once, in the order in which items first have them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import google_crc32c
import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from oncegate.flows import range_body
from oncegate.flows.bytes_text import is_bytes
from oncegate.flows.chunks import SealedChunk, SinglesChunk
from oncegate.flows.schema import batch_schema

ROWS_PER_RECORD_BATCH: Final = 16_384
"""Fixed for ever: it is part of what makes the bytes the same. Divisible by 8."""

_INT64: Final = np.dtype("<i8")
_INT32: Final = np.dtype("<i4")
_Int64s = npt.NDArray[np.int64]
_Int32s = npt.NDArray[np.int32]


class Columns(NamedTuple):
    """Items by column, all of one length, in commit order; the trace contexts are not among them."""

    commits: _Int64s
    keys: pa.Array
    values: pa.Array
    times_ms: _Int64s
    client_ids: _Int64s
    sequences: _Int64s


def columns(chunk: SealedChunk) -> Columns:
    """Return a chunk by column.

    Raises:
        BadRequestError: a range body is not one.
        ValueError: a key or value is not UTF-8.
    """
    if isinstance(chunk, SinglesChunk):
        return Columns(
            np.frombuffer(chunk.commits, _INT64),
            pa.array(chunk.keys, pa.string()),
            pa.array(chunk.values, pa.string()),
            np.frombuffer(chunk.times_ms, _INT64),
            np.frombuffer(chunk.client_ids, _INT64),
            np.frombuffer(chunk.sequences, _INT64),
        )
    keys, values = range_body.decode(chunk.body, chunk.offset, chunk.count)
    steps = np.arange(chunk.count, dtype=_INT64)
    return Columns(
        steps + chunk.first_commit,
        keys,
        values,
        np.full(chunk.count, chunk.time_ms, _INT64),
        np.full(chunk.count, chunk.client_id, _INT64),
        steps + chunk.first_sequence,
    )


def build(
    chunks: Sequence[SealedChunk], flow: str, table: str, number: int, rest: Callable[[], None] = lambda: None
) -> bytes:
    """Return the payload of a batch: Arrow IPC stream, :data:`oncegate.flows.schema.ITEM_SCHEMA`, identity in its
    metadata.

    Deterministic: equal items give equal bytes, however they were chunked. ``rest`` is called between two parts of the
    work, for a thread beside an event loop.

    Raises:
        ValueError: no chunks, or a key or value that is not UTF-8.
        BadRequestError: a range body is not one.
    """
    if not chunks:
        raise ValueError(f"batch {number} of {flow} has no items")
    parts = []
    for chunk in chunks:
        parts.append(columns(chunk))
        rest()
    commits, times_ms, client_ids, sequences = (
        np.concatenate([part[column] for part in parts]) for column in (0, 3, 4, 5)
    )
    keys = _Strings(pa.concat_arrays([part.keys for part in parts]))
    values = _Strings(pa.concat_arrays([part.values for part in parts]))
    traceparents = _Traceparents(chunks)
    schema = batch_schema(flow, table, number)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for start in range(0, len(commits), ROWS_PER_RECORD_BATCH):
            stop = min(start + ROWS_PER_RECORD_BATCH, len(commits))
            arrays = [
                _int64s(commits[start:stop]),
                keys.rows(start, stop),
                values.rows(start, stop),
                _int64s(times_ms[start:stop]),
                _int64s(client_ids[start:stop]),
                _int64s(sequences[start:stop]),
                traceparents.rows(start, stop),
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
            rest()
    payload: bytes = sink.getvalue().to_pybytes()
    return payload


def _int64s(column: _Int64s) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(column), [None, pa.py_buffer(column)], null_count=0)


class _Strings:
    """A string column from which canonical slices are cut."""

    __slots__ = ("_data", "_offsets", "_valid")

    def __init__(self, column: pa.Array) -> None:
        self._valid: npt.NDArray[np.bool_] | None = None
        if column.null_count:
            self._valid = pc.is_valid(column).to_numpy(zero_copy_only=False)
            column = pc.fill_null(column, "")
        _, offsets, data = column.buffers()
        self._offsets = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4)
        self._data = pa.py_buffer(b"") if data is None else data

    def rows(self, start: int, stop: int) -> pa.Array:
        """Return rows ``start .. stop`` as an array whose buffers hold them and nothing else."""
        offsets = self._offsets[start : stop + 1]
        low, high = int(offsets[0]), int(offsets[-1])
        validity, null_count = None, 0
        if self._valid is not None:
            validity, null_count = _validity(self._valid[start:stop])
        buffers = [validity, pa.py_buffer(offsets - np.int32(low)), self._data.slice(low, high - low)]
        return pa.Array.from_buffers(pa.string(), stop - start, buffers, null_count=null_count)


class _Traceparents:
    """The trace contexts of all items, of which canonical slices with one dictionary are cut."""

    __slots__ = ("_codes", "_dictionary")

    def __init__(self, chunks: Sequence[SealedChunk]) -> None:
        codes: dict[str | None, int] = {}
        self._codes = np.concatenate([_codes(chunk, codes) for chunk in chunks])
        entries = list(codes)
        self._dictionary = _Strings(pa.array(entries, pa.string())).rows(0, len(entries))

    def rows(self, start: int, stop: int) -> pa.DictionaryArray:
        """Return rows ``start .. stop``; all slices share their dictionary."""
        codes = self._codes[start:stop]
        validity, null_count = _validity(codes >= 0)
        buffers = [validity, pa.py_buffer(np.maximum(codes, 0))]
        indices = pa.Array.from_buffers(pa.int32(), stop - start, buffers, null_count=null_count)
        return pa.DictionaryArray.from_arrays(indices, self._dictionary)


def _codes(chunk: SealedChunk, codes: dict[str | None, int]) -> _Int32s:
    """Return each item's place in the dictionary, -1 for none; new entries are added to ``codes``."""
    if isinstance(chunk, SinglesChunk):
        if not chunk.traceparents:
            return np.full(chunk.items, -1, _INT32)
        places = (-1 if trace is None else codes.setdefault(trace, len(codes)) for trace in chunk.traceparents)
        return np.fromiter(places, _INT32, chunk.items)
    place = codes.setdefault(chunk.traceparent, len(codes)) if chunk.traceparent else -1
    return np.full(chunk.count, place, _INT32)


def _validity(valid: npt.NDArray[np.bool_]) -> tuple[pa.Buffer | None, int]:
    """Return the validity bitmap, None if nothing is null, and the number of nulls."""
    null_count = len(valid) - int(np.count_nonzero(valid))
    return pa.py_buffer(np.packbits(valid, bitorder="little")) if null_count else None, null_count


def checksum(payload: bytes) -> str:
    """Return the payload's CRC32C as ``crc32c-%08x``: the batch's ETag, the same on every node."""
    return format_checksum(google_crc32c.value(payload))


def format_checksum(crc: int) -> str:
    """Return the written form of a CRC32C."""
    return f"crc32c-{crc:08x}"


def read_table(payload: bytes) -> pa.Table:
    """Return the payload as an Arrow table that shares its memory."""
    with pa.ipc.open_stream(payload) as reader:
        return reader.read_all()


def to_json_lines(payload: bytes) -> Iterator[bytes]:
    r"""Yield a payload item by item, each one JSON object and ``\n``.

    Members: ``commit``, ``key``, ``value`` (embedded JSON, not a string of it), ``time_ms``, ``client_id`` (16 hex
    digits) and ``sequence``. A delete has ``value`` null and, since null is also a value, ``"deleted":true``. Where the
    request had a trace context, ``traceparent`` follows. Bytes are base64, with ``"encoding":"base64"``.
    """
    encode = msgspec.json.encode
    with pa.ipc.open_stream(payload) as reader:
        for batch in reader:
            commits, keys, _, times_ms, client_ids, sequences, traceparents = (
                column.to_pylist() for column in batch.columns
            )
            values: list[bytes | None] = batch.column(2).cast(pa.binary()).to_pylist()
            for row, value in enumerate(values):
                more = b""
                if value is None:
                    value, more = b"null", b',"deleted":true'
                elif is_bytes(value):
                    more = b',"encoding":"base64"'
                elif b"\n" in value or b"\r" in value:
                    # Legal JSON white space, but it would end the line.
                    value = msgspec.json.format(value, indent=-1)
                traceparent = traceparents[row]
                trace = b"" if traceparent is None else b',"traceparent":' + encode(traceparent)
                yield b'{"commit":%d,"key":%s,"value":%s,"time_ms":%d,"client_id":"%016x","sequence":%d%s%s}\n' % (
                    commits[row],
                    encode(keys[row]),
                    value,
                    times_ms[row],
                    client_ids[row],
                    sequences[row],
                    more,
                    trace,
                )
