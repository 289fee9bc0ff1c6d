"""The wide edge: a range's columns checked once, in C where it can be, and never decoded again.

Owns: the three bodies of ``POST /v1/tables/{table}/ranges`` (Arrow IPC stream, msgpack columns, JSON lines) and the
one canonical body that the log carries: an Arrow IPC stream of one record batch with ``key: string`` and
``value: string`` (JSON text), both without nulls. See ARCHITECTURE, *The wide path*.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from flows.range_body import BODY_SCHEMA
from gateway import commands as c
from gateway import edge, wire
from rifl.errors import Code, OncegateError
from rifl.ids import RANGE_LENGTH_MAX

_raw = msgspec.json.Decoder(msgspec.Raw)


class _Line(msgspec.Struct):
    key: str
    value: Any


_lines = msgspec.json.Decoder(_Line)


def warm_up() -> None:
    """Load what pyarrow loads on first use (a second of work), so that the first range does not pay for it."""
    range_command("warm-up", 1, 1, 1, 1, b'{"key":"k","value":0}', wire.JSON)


def range_command(
    table: str, client_id: int, epoch: int, first_incomplete: int, first: int, body: bytes, content_type: str
) -> c.Range:
    """Translate a range request; ids are checked already, ``table`` is a valid name.

    Raises:
        OncegateError: BAD_REQUEST or PAYLOAD_TOO_LARGE.
    """
    if content_type == wire.ARROW:
        keys, values = _from_arrow(body)
    elif content_type == wire.MSGPACK:
        columns = edge.decode(body, wire.MSGPACK, wire.RangeBody)
        keys, values = columns.keys, columns.values
        if len(keys) != len(values):
            raise edge.bad("keys and values differ in length")
        _check_texts(values)
    else:
        keys, values = _from_lines(body)
    if not keys:
        raise edge.bad("the range is empty")
    if len(keys) > RANGE_LENGTH_MAX:
        raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"a range has at most {RANGE_LENGTH_MAX} operations")
    edge.check_number(first + len(keys) - 1, "last sequence number of the range")
    try:
        batch = pa.record_batch([pa.array(keys, pa.string()), pa.array(values, pa.string())], schema=BODY_SCHEMA)
    except pa.ArrowInvalid as fault:
        raise edge.bad(f"a key or value is not text: {fault}") from None
    _check_sizes(batch)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, BODY_SCHEMA) as writer:
        writer.write_batch(batch)
    digest, prefix = xxhash.xxh3_64_digest, f"p\0{table}\0"
    # The same hash as commands.fingerprint_put, of which the digest is the big-endian form.
    prints = b"".join([digest(f"{prefix}{key}\0{value}".encode()) for key, value in zip(keys, values, strict=True)])
    return c.Range(client_id, epoch, first_incomplete, table, first, prints, sink.getvalue().to_pybytes())


def _from_arrow(body: bytes) -> tuple[list[str], list[str]]:
    try:
        with pa.ipc.open_stream(body) as reader:
            table = reader.read_all()
        table.validate(full=True)
        columns = [table.column(name).cast(pa.string()) for name in ("key", "value")]
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, KeyError, OSError) as fault:
        raise edge.bad(f"not an Arrow stream with string columns key and value: {fault}") from None
    if len(table) > RANGE_LENGTH_MAX:
        raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"a range has at most {RANGE_LENGTH_MAX} operations")
    if columns[0].null_count or columns[1].null_count:
        raise edge.bad("key and value may not be null")
    keys, values = columns[0].to_pylist(), columns[1].to_pylist()
    _check_texts(values)
    return keys, values


def _from_lines(body: bytes) -> tuple[list[str], list[str]]:
    try:
        rows = _lines.decode_lines(body)
    except RecursionError:
        raise edge.bad("a line is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise edge.bad(str(fault)) from None
    return [row.key for row in rows], [edge.canonical_json(row.value, "value").decode() for row in rows]


def _check_texts(values: list[str]) -> None:
    try:
        deque(map(_raw.decode, values), maxlen=0)
    except RecursionError:
        raise edge.bad("a value is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise edge.bad(f"a value is not JSON: {fault}") from None


def _check_sizes(batch: pa.RecordBatch) -> None:
    keys, values = batch.column(0), batch.column(1)
    lengths = pc.min_max(pc.binary_length(keys)).as_py()
    if lengths["min"] < 1:
        raise edge.bad("a key is empty")
    if lengths["max"] > c.KEY_BYTES_MAX:
        raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"a key is over {c.KEY_BYTES_MAX} bytes")
    if pc.max(pc.binary_length(values)).as_py() > c.VALUE_BYTES_MAX:
        raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"a value is over {c.VALUE_BYTES_MAX} bytes")
    if pc.any(pc.match_substring(keys, "\0")).as_py():
        raise edge.bad("a key holds a NUL")
