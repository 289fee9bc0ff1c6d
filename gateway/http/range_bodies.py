"""Ranges on their way in: their columns are checked once, in C where possible, and never decoded again.

Owns: the three bodies of ``POST /v1/tables/{table}/ranges`` (Arrow IPC stream, msgpack columns, JSON lines) and the
one canonical body that the log carries: an Arrow IPC stream of one record batch with ``key: string`` and
``value: string`` (JSON text), both without nulls. See ARCHITECTURE, *The wide path*.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from oncegate.flows import bytes_text, range_body
from oncegate.gateway import wire
from oncegate.gateway.http import request_bodies, unknown_names
from oncegate.gateway.machine import commands as c
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import RANGE_LENGTH_MAX, SequenceNumber

_STRINGS: Final = (pa.string(), pa.large_string())
# Fields of Arrow's Message.fbs, by their position in it.
_MESSAGE_HEADER: Final = 2
_BATCH_LENGTH: Final = 0
_BATCH_COMPRESSION: Final = 3
_SLICE_BYTES: Final = 256 * 1024
_raw = msgspec.json.Decoder(msgspec.Raw)

AT_ONCE_BYTES_MAX: Final = 256 * 1024
"""Columns in msgpack up to this size are checked on the event loop: 0.6 ms for 1,024 rows of 200 bytes. A turn of the
thread beside it costs the leader twice that."""
BUILT_AT_ONCE_BYTES_MAX: Final = 16 * 1024
"""Of these, JSON of values that must be built to be checked."""
ALL: Final = 2**62


class TakesLongError(Exception):
    """More has to be built than may be at once."""


_TOO_LONG: Final = f"a range has at most {RANGE_LENGTH_MAX} operations"
_room = request_bodies.Room(RANGE_LENGTH_MAX, _TOO_LONG)


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    value: msgspec.Raw

    def __post_init__(self) -> None:
        _room.take()


class _Columns(msgspec.Struct, forbid_unknown_fields=True):
    keys: msgspec.Raw
    values: msgspec.Raw


_lines = msgspec.json.Decoder(_Line)


def warm_up() -> None:
    """Load what pyarrow loads on first use (a second of work), so that the first range does not pay for it.

    Like the imports above, before other threads run: numpy changes the environment while it is imported, and a thread
    that is in ``getenv`` of libc meanwhile ends the process.
    """
    range_command("warm-up", 1, 1, 1, 1, b'{"key":"k","value":0}', wire.JSON)


def range_command(
    table: str,
    client_id: int,
    epoch: int,
    first_incomplete: int,
    first: int,
    body: bytes,
    content_type: str,
    built_bytes_max: int = ALL,
) -> c.Range:
    """Translate a range request; ids are checked already, ``table`` is a valid name.

    Raises:
        OncegateError: BAD_REQUEST or PAYLOAD_TOO_LARGE.
        TakesLongError: of a range in columns, more than ``built_bytes_max`` bytes of values have to be built.
    """
    if content_type == wire.ARROW:
        keys, values = _from_arrow(body)
    elif content_type == wire.MSGPACK:
        columns = request_bodies.decode(body, wire.MSGPACK, _Columns)
        keys, values = _column(columns.keys), _column(columns.values)
        if len(keys) != len(values):
            raise request_bodies.bad("keys and values differ in length")
    else:
        keys, values = _from_lines(body)
    if not keys:
        raise request_bodies.bad("the range is empty")
    if len(keys) > RANGE_LENGTH_MAX:
        raise _too_long()
    request_bodies.check_number(first + len(keys) - 1, "last sequence number of the range")
    try:
        batch = range_body.rows(keys, values)
    except pa.ArrowInvalid as fault:
        raise request_bodies.bad(f"a key or value is not text: {fault}") from None
    _check_sizes(batch)
    if content_type in (wire.ARROW, wire.MSGPACK):
        _check_texts(values, batch.column(1), built_bytes_max)
    digest, prefix = xxhash.xxh3_64_digest, f"p\0{table}\0"
    # The same hash as commands.fingerprint_put, of which the digest is the big-endian form.
    prints = b"".join([digest(f"{prefix}{key}\0{value}".encode()) for key, value in zip(keys, values, strict=True)])
    ack, at = SequenceNumber(first_incomplete), SequenceNumber(first)
    return c.Range(client_id, epoch, ack, table, at, prints, range_body.write(batch))


def _column(packed: msgspec.Raw) -> list[str]:
    """Build a column of texts once its length is known to be allowed (msgpack specification, *Array format family*)."""
    head = bytes(memoryview(packed)[:5])
    width = {0xDC: 2, 0xDD: 4}.get(head[0], 0)
    if int.from_bytes(head[1 : 1 + width], "big") > RANGE_LENGTH_MAX:
        raise _too_long()
    return request_bodies.decode(packed, wire.MSGPACK, list[str])


def _from_arrow(body: bytes) -> tuple[list[str], list[str]]:
    try:
        _check_messages(body)
        with pa.ipc.open_stream(body) as reader:
            names, types = reader.schema.names, reader.schema.types
            if sorted(names) != ["key", "value"] or not all(kind in _STRINGS for kind in types):
                raise request_bodies.bad("an Arrow stream of a range has the string columns key and value and no other")
            table = reader.read_all()
        table.validate(full=True)
        columns = [table.column(name).cast(pa.string()) for name in ("key", "value")]
    except (pa.ArrowException, struct.error, ValueError, KeyError, OSError) as fault:
        raise request_bodies.bad(f"not an Arrow stream with string columns key and value: {fault}") from None
    if columns[0].null_count or columns[1].null_count:
        raise request_bodies.bad("key and value may not be null")
    return columns[0].to_pylist(), columns[1].to_pylist()


def _check_messages(body: bytes) -> None:
    """Walk the stream's headers and refuse everything that would grow when it is read.

    A compressed buffer or a dictionary lets a few bytes stand for gigabytes, and Arrow expands them without a
    bound; plain strings are as large as they came. Reads the flatbuffers only as far as it must.
    """
    rows = 0
    for message in pa.ipc.MessageReader.open_stream(body):
        if message.type == "schema":
            continue
        if message.type != "record batch":
            raise request_bodies.bad(f"a range may not contain an Arrow {message.type}")
        metadata = message.metadata.to_pybytes()
        header = _field(metadata, _table(metadata, 0), _MESSAGE_HEADER)
        batch = _table(metadata, header or 0)
        if _field(metadata, batch, _BATCH_COMPRESSION) is not None:
            raise request_bodies.bad("send Arrow buffers without compression")
        length = _field(metadata, batch, _BATCH_LENGTH)
        rows += 0 if length is None else struct.unpack_from("<q", metadata, length)[0]
        if rows > RANGE_LENGTH_MAX:
            raise _too_long()


def _table(flatbuffer: bytes, at: int) -> int:
    """Return the position of the table whose offset is stored at ``at``."""
    return at + int(struct.unpack_from("<I", flatbuffer, at)[0])


def _field(flatbuffer: bytes, table: int, number: int) -> int | None:
    """Return where a field of a table is stored, None if it is absent."""
    vtable = table - struct.unpack_from("<i", flatbuffer, table)[0]
    slot = 4 + 2 * number
    if slot >= struct.unpack_from("<H", flatbuffer, vtable)[0]:
        return None
    offset = struct.unpack_from("<H", flatbuffer, vtable + slot)[0]
    return table + offset if offset else None


def _from_lines(body: bytes) -> tuple[list[str], list[str]]:
    _room.open()
    try:
        rows = _lines.decode_lines(body)
    except RecursionError:
        raise request_bodies.bad("a line is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise request_bodies.bad(unknown_names.explained(str(fault), _Line)) from None
    build, canonical = request_bodies.value, request_bodies.canonical_json
    return [row.key for row in rows], [canonical(build(row.value, wire.JSON), "value").decode() for row in rows]


def _check_texts(values: list[str], column: pa.Array, built_bytes_max: int) -> None:
    """Check values that came as JSON text. The syntax check builds no objects.

    Two things are left that the syntax allows and no reader can represent: numbers out of range and boundless nesting.
    """
    try:
        if pc.any(pc.starts_with(column, bytes_text.MARK)).as_py():
            raise request_bodies.bad("a text in a range may not begin with a blank")
        for value in values:  # a loop, so that others run between two values
            _raw.decode(value)
        suspects = _suspects(column)
        if sum(len(values[row]) for row in suspects) > built_bytes_max:
            raise TakesLongError
        for row in suspects:
            request_bodies.canonical_json(request_bodies.value(values[row].encode(), wire.JSON), "value")
    except RecursionError:
        raise request_bodies.bad("a value is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise request_bodies.bad(f"a value is not JSON: {fault}") from None


def _suspects(column: pa.Array) -> list[int]:
    """Return the rows that may hold a number out of range or too deep a nesting: a superset, by whole-column steps.

    A text holds neither. A JSON number outside int64 or float64 has 20 digits and signs in a row, or a three-digit
    exponent. The steps leave many arrays as long as their text: of a long column they are made slice by slice, in
    memory that is warm.
    """
    ends, text = _layout(column)
    first = text[np.minimum(ends[:-1], len(text) - 1)] if len(text) else text  # none is empty: that is no JSON
    rows = np.flatnonzero(first != ord('"'))
    if not len(rows):
        return []
    column = column.take(pa.array(rows))
    step = max(1, len(column) * _SLICE_BYTES // max(1, column.nbytes))
    starts = range(0, len(column), step)
    return [int(rows[start + row]) for start in starts for row in _suspects_in(column.slice(start, step))]


def _layout(column: pa.Array) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Return where each row begins and the last one ends, and the bytes of all of them; shares the column's memory."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4)
    text = np.frombuffer(b"" if data is None else data, np.uint8)[ends[0] : ends[-1]]
    return ends - ends[0], text


def _suspects_in(column: pa.Array) -> list[int]:
    ends, text = _layout(column)
    folded = text | 0x20  # folds E to e and [ to {
    opens = np.searchsorted(np.flatnonzero(folded == ord("{")), ends)
    rows = set(np.flatnonzero(np.diff(opens) > request_bodies.VALUE_DEPTH_MAX).tolist())
    digit = (text - ord("0")) < 10
    run = digit | (text == ord("-"))
    for step in (1, 2, 4, 8, 4):  # runs of 2, 4, 8, 16, 20
        run = run[:-step] & run[step:]
    signed = digit | (text == ord("+"))
    exponent = (folded == ord("e"))[:-3] & signed[1:-2] & digit[2:-1] & digit[3:]
    at = np.concatenate([np.flatnonzero(run), np.flatnonzero(exponent)])
    rows.update((np.searchsorted(ends, at, side="right") - 1).tolist())
    return sorted(rows)


def _too_long() -> OncegateError:
    return OncegateError(Code.PAYLOAD_TOO_LARGE, _TOO_LONG)


def _check_sizes(batch: pa.RecordBatch) -> None:
    ends, text = _layout(batch.column(0))
    lengths = np.diff(ends)
    if lengths.min() < 1:
        raise request_bodies.bad("a key is empty")
    if lengths.max() > c.KEY_BYTES_MAX:
        raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"a key is over {c.KEY_BYTES_MAX} bytes")
    if np.diff(_layout(batch.column(1))[0]).max() > c.VALUE_BYTES_MAX:
        raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"a value is over {c.VALUE_BYTES_MAX} bytes")
    if not text.min():
        raise request_bodies.bad("a key holds a NUL")
