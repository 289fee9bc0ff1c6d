"""What the cells of a saved state are: keys, encodings, format version.

Owns: the layout below, pure. All integers in keys are big-endian, so that cells lie in the order of their numbers.

| key | value |
|---|---|
| ``00`` | format version (u32), then :class:`Meta` |
| ``01`` flow (u16) | :class:`FlowHead` |
| ``02`` flow (u16) batch (u64) | five little-endian int64: first commit, last commit, items through, bytes, seal time;
a sixth where the flow's event-time clock at it is known |
| ``03`` flow (u16) first commit (u64) part (u32) | a piece of the open segment (:class:`Piece`), or bytes of a body |
| ``04`` table (u16) row key (UTF-8) | row version (u64), then the row's JSON text; of a row that ends by itself the
highest bit of the version is set, and its end (u64, cluster time or 0) and owner (u64, client id or 0) come before the
text; of one that is moved then the next bit is set too, and the key (u16 bytes, UTF-8) comes behind them |
| ``05`` client id (u64) | :class:`SessionImage` |
| ``06`` number (u64) | :class:`StoredKey` |
| ``07`` | :class:`FlowIndex` |
| ``08`` table (u16) row key (UTF-8) | end (u64) and owner (u64) of a row that ends by itself |
| ``0a`` tenant, NUL, key (UTF-8) | number (u64) of an idempotency key |
| ``0b`` | :class:`KeysHead` |

Tables are numbered from 0 in the order of their declaration, and no number is given out twice; flows as
:class:`FlowIndex` says. There may be cells ``06`` and ``0a`` of numbers below the oldest remembered one
(:mod:`oncegate.gateway.machine.state.keys`), which count for nothing. Values are msgpack arrays
unless said otherwise. Checksums are the store's (one for each block).
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from oncegate.consensus.ports import SavedPoint
from oncegate.flows.chunks import RangeChunk, SinglesChunk
from oncegate.flows.cursor import ConsumerState
from oncegate.flows.flow import FlowDeclaration
from oncegate.flows.retired import RetiredState
from oncegate.gateway.machine import levels
from oncegate.gateway.machine.row_ends import Life
from oncegate.gateway.machine.row_rule import Remembered
from oncegate.gateway.machine.rows import StoredRow
from oncegate.gateway.machine.state.errors import StateCorrupt, StateVersionUnknown
from oncegate.gateway.machine.tables import TableKind
from oncegate.gateway.machine.transactions import Taken, Took, Transacted
from oncegate.rifl.completion import CompletionRecord, RangeRecord
from oncegate.rifl.ids import ClusterTimeMs, CommitNumber, Fingerprint, SequenceNumber
from oncegate.rifl.key_buckets import Bucket
from oncegate.rifl.key_records import KeyRecord
from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.session import SessionRecord

FORMAT: Final = 10
META_KEY: Final = b"\x00"
HEADS: Final = b"\x01"
BATCHES: Final = b"\x02"
PIECES: Final = b"\x03"
ROWS: Final = b"\x04"
SESSIONS: Final = b"\x05"
KEYS: Final = b"\x06"
FLOWS_KEY: Final = b"\x07"
ENDS: Final = b"\x08"
KEY_NAMES: Final = b"\x0a"
KEYS_HEAD_KEY: Final = b"\x0b"
LAST_PREFIX: Final = KEYS_HEAD_KEY
"""No cell has a key that begins with a higher byte."""
BODY_PART_BYTES: Final = 1 << 20
"""A range's body is stored in parts of this size: copying one takes a fraction of a millisecond."""

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_PIECE: Final = struct.Struct(">HQI")
_BATCH: Final = struct.Struct(">HQ")
BATCH_COLUMNS: Final = struct.Struct("<5q")
EVENT_COLUMN: Final = struct.Struct("<q")
_VERSION_BYTES: Final = 8
_ENDS: Final = 1 << 63
"""Set in the version of a row that ends by itself."""
_MOVES: Final = 1 << 62
"""Set beside it where the row is moved then."""
_LIFE: Final = struct.Struct(">QQ")
_TEXT_OF_ENDING: Final = _VERSION_BYTES + _LIFE.size


class TableMeta(msgspec.Struct, array_like=True, frozen=True):
    """A declared table and the exact size of what it holds.

    ``number`` and ``since`` of :class:`oncegate.gateway.machine.tables.Table`; of a dropped table ``swept``, the key up
    to which its rows are gone.
    """

    name: str
    kind: TableKind
    quota_bytes: int
    bytes: int
    rows: int
    number: int
    since: int
    swept: str | None


class Meta(msgspec.Struct, array_like=True, frozen=True):
    """The point that the state has reached, and how much of each kind the other cells must hold."""

    point: SavedPoint
    commit: CommitNumber
    time_ms: ClusterTimeMs
    next_client_id: int
    replayed: int
    sessions: int
    flows: int
    tables: list[TableMeta]
    next_key: SequenceNumber
    forgotten_ms: ClusterTimeMs
    identity: str
    origin_identity: str
    origin_commit: int
    """Of :class:`oncegate.gateway.machine.machine.Origin`."""
    level: int
    ending_rows: int
    tables_declared: int
    closed_nonces: list[tuple[str, int]]
    """Of :attr:`oncegate.rifl.session.SessionTable.closed`."""


class FlowHead(msgspec.Struct, array_like=True, frozen=True):
    """A flow without its batches and open items; ``pieces`` counts the cells of the open segment."""

    declaration: FlowDeclaration
    consumers: tuple[ConsumerState, ...]
    retained_bytes: int
    first: int
    last: int
    items_dropped: int
    last_commit: int
    size_bytes: int
    pieces: int
    version: int
    altered_ms: int
    fences: int
    event_dropped_ms: int
    unclocked_dropped: bool
    shed_items: int


class FlowIndex(msgspec.Struct, array_like=True, frozen=True):
    """The numbers of the flows' cells, in order of declaration, and what names of deleted flows have used."""

    numbers: list[int]
    retired: RetiredState


class RangeHead(msgspec.Struct, array_like=True, frozen=True, tag="range"):
    """A range of the open segment; its body follows in ``body_parts`` cells."""

    first_commit: int
    count: int
    time_ms: int
    client_id: int
    first_sequence: int
    offset: int
    body_parts: int
    traceparent: str = ""


class Run(msgspec.Struct, array_like=True, frozen=True, tag="run"):
    """Adjacent single writes of the open segment."""

    chunk: SinglesChunk


Piece = Run | RangeHead


class StoredResult(Remembered, array_like=True, frozen=True, gc=False):
    """A result as it is read back; ``count`` None: an operation's, else a transaction's."""

    count: int | None = None
    results: list[tuple[int, Remembered]] = msgspec.field(default_factory=list)
    failed: str = ""
    taken: list[Taken] | None = None


class StoredRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A completion record as it is read back, with the type of its result."""

    fingerprint: Fingerprint
    commit: CommitNumber
    result: StoredResult | None = None
    traceparent: str = ""


class SessionImage(msgspec.Struct, array_like=True, frozen=True):
    """A session with its completion records."""

    session: SessionRecord
    first_incomplete: SequenceNumber
    highest: SequenceNumber
    records: dict[int, StoredRecord]
    ranges: list[RangeRecord]
    runs: list[RangeRecord]


class StoredKey(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A used idempotency key as it is read back; written from :class:`oncegate.rifl.key_table.KeyRecord`."""

    number: SequenceNumber
    tenant: str
    key: str
    used_ms: ClusterTimeMs
    ends_ms: ClusterTimeMs
    record: StoredRecord


class KeysHead(msgspec.Struct, array_like=True, frozen=True):
    """What is remembered of idempotency keys; the cells ``06`` begin at the number ``kept``, here."""

    kept: int
    buckets: list[Bucket]


_encode = msgspec.msgpack.Encoder().encode
_meta = msgspec.msgpack.Decoder(Meta)
_head = msgspec.msgpack.Decoder(FlowHead)
_flow_index = msgspec.msgpack.Decoder(FlowIndex)
_piece = msgspec.msgpack.Decoder(Piece)
_session = msgspec.msgpack.Decoder(SessionImage)
_key = msgspec.msgpack.Decoder(StoredKey)
_keys_head = msgspec.msgpack.Decoder(KeysHead)
T = TypeVar("T")


def encode_meta(meta: Meta) -> bytes:
    """Return the value of :data:`META_KEY`."""
    return _U32.pack(FORMAT) + _encode(meta)


def decode_meta(path: Path, value: bytes) -> Meta:
    """Read the value of :data:`META_KEY`; raises StateVersionUnknown, StateCorrupt."""
    if len(value) < _U32.size:
        raise StateCorrupt(path, "its first cell is cut short")
    (version,) = _U32.unpack_from(value)
    if version != FORMAT:
        raise StateVersionUnknown(path, version, FORMAT)
    meta = _decoded(path, _meta, value[_U32.size :])
    if meta.level > levels.NEWEST:
        raise StateVersionUnknown(path, meta.level, levels.NEWEST, "feature level")
    return meta


def encode_flow_index(index: FlowIndex) -> bytes:
    """Return the value of :data:`FLOWS_KEY`."""
    return _encode(index)


def decode_flow_index(path: Path, value: bytes | None) -> FlowIndex:
    """Read the value of :data:`FLOWS_KEY`; raises StateCorrupt, also if there is none."""
    if value is None:
        raise StateCorrupt(path, "the numbers of the flows are missing")
    return _decoded(path, _flow_index, value)


def head_key(flow: int) -> bytes:
    """Return the key of a flow's head."""
    return HEADS + _U16.pack(flow)


def encode_head(head: FlowHead) -> bytes:
    """Return the value of a flow's head."""
    return _encode(head)


def decode_head(path: Path, value: bytes) -> FlowHead:
    """Read a flow's head; raises StateCorrupt."""
    return _decoded(path, _head, value)


def batch_key(flow: int, number: int) -> bytes:
    """Return the key of a sealed batch's columns."""
    return BATCHES + _BATCH.pack(flow, number)


def batches_prefix(flow: int) -> bytes:
    """Return what the keys of a flow's batches begin with."""
    return BATCHES + _U16.pack(flow)


def piece_key(flow: int, first_commit: int, part: int = 0) -> bytes:
    """Return the key of a piece of the open segment; parts from 1 on are of a range's body."""
    return PIECES + _PIECE.pack(flow, first_commit, part)


def pieces_prefix(flow: int) -> bytes:
    """Return what the keys of a flow's pieces begin with."""
    return PIECES + _U16.pack(flow)


def encode_piece(chunk: SinglesChunk | RangeChunk) -> bytes:
    """Return the value of a piece, a range's without its body."""
    if isinstance(chunk, SinglesChunk):
        return _encode(Run(chunk))
    return _encode(
        RangeHead(
            chunk.first_commit,
            chunk.count,
            chunk.time_ms,
            chunk.client_id,
            chunk.first_sequence,
            chunk.offset,
            body_parts(chunk.body),
            chunk.traceparent,
        )
    )


def body_parts(body: bytes) -> int:
    """Return in how many cells a body is stored."""
    return -(-len(body) // BODY_PART_BYTES)


def decode_piece(path: Path, value: bytes) -> Piece:
    """Read a piece; raises StateCorrupt."""
    piece: Piece = _decoded(path, _piece, value)
    return piece


def rows_prefix(table: int) -> bytes:
    """Return what the keys of a table's rows begin with."""
    return ROWS + _U16.pack(table)


def encode_row(row: StoredRow) -> bytes:
    """Return the value of a row."""
    life = row.life
    if life is not None:
        if not life.then:
            return _U64.pack(row.version | _ENDS) + encode_end(life) + row.value
        then = life.then.encode()
        return _U64.pack(row.version | _ENDS | _MOVES) + encode_end(life) + _U16.pack(len(then)) + then + row.value
    return row.version.to_bytes(_VERSION_BYTES, "big") + row.value


def encode_rows(rows: list[StoredRow | None]) -> list[bytes | None]:
    """Return what :func:`encode_row` makes of each row, None of None."""
    return [
        None
        if row is None
        else row.version.to_bytes(_VERSION_BYTES, "big") + row.value
        if row.life is None
        else encode_row(row)
        for row in rows
    ]


def decode_row(value: bytes) -> StoredRow:
    """Read a row."""
    version = int.from_bytes(value[:_VERSION_BYTES], "big")
    if version < _ENDS:
        return StoredRow(version, value[_VERSION_BYTES:])  # type: ignore[arg-type]  # each row read would pay for it
    version ^= _ENDS
    ends_ms, owner = _LIFE.unpack_from(value, _VERSION_BYTES)
    if not version & _MOVES:
        return StoredRow(CommitNumber(version), value[_TEXT_OF_ENDING:], Life(ends_ms, owner))
    (size,) = _U16.unpack_from(value, _TEXT_OF_ENDING)
    start = _TEXT_OF_ENDING + _U16.size
    life = Life(ends_ms, owner, value[start : start + size].decode())
    return StoredRow(CommitNumber(version ^ _MOVES), value[start + size :], life)


def end_key(table: int, key: str) -> bytes:
    """Return the key under which a row's end is found."""
    return ENDS + _U16.pack(table) + key.encode()


def encode_end(life: Life) -> bytes:
    """Return the value of a row's end."""
    return _LIFE.pack(life.ends_ms, life.owner)


def decode_end(path: Path, key: bytes, value: bytes) -> tuple[int, str, Life]:
    """Read table number, key and end of a row; raises StateCorrupt."""
    start = len(ENDS)
    try:
        (table,) = _U16.unpack_from(key, start)
        return table, key[start + _U16.size :].decode(), Life(*_LIFE.unpack(value))
    except (struct.error, UnicodeDecodeError) as fault:
        raise StateCorrupt(path, f"the end of a row: {fault}") from None


def session_key(client_id: int) -> bytes:
    """Return the key of a session."""
    return SESSIONS + _U64.pack(client_id)


def encode_session(session: SessionRecord, tracker: ResultTracker) -> bytes:
    """Return the value of a session with its records, in time proportional to their number."""
    image = session, tracker.first_incomplete, tracker.highest, tracker.kept_singly, tracker.ranges, tracker.runs
    return _encode(image)


def decode_session(path: Path, value: bytes) -> tuple[SessionRecord, ResultTracker]:
    """Read a session with its records; raises StateCorrupt."""
    image = _decoded(path, _session, value)
    session = image.session
    records = {sequence: _record(stored) for sequence, stored in image.records.items()}
    known = image.first_incomplete, image.highest, records, image.ranges, image.runs
    return session, ResultTracker.restore(session.window, *known)


def used_key_key(number: int) -> bytes:
    """Return the key of a used idempotency key."""
    return KEYS + _U64.pack(number)


def encode_used_key(used: KeyRecord) -> bytes:
    """Return the value of a used idempotency key."""
    return _encode(used)


def decode_used_key(path: Path, value: bytes) -> KeyRecord:
    """Read a used idempotency key; raises StateCorrupt."""
    stored = _decoded(path, _key, value)
    return KeyRecord(stored.number, stored.tenant, stored.key, stored.used_ms, stored.ends_ms, _record(stored.record))


def name_key(name: str) -> bytes:
    """Return the key under which the number of an idempotency key is found."""
    return KEY_NAMES + name.encode()


def encode_number(number: int) -> bytes:
    """Return the value of a name."""
    return _U64.pack(number)


def decode_number(path: Path, value: bytes) -> int:
    """Read the value of a name; raises StateCorrupt."""
    if len(value) != _U64.size:
        raise StateCorrupt(path, "the number of an idempotency key is cut short")
    return int.from_bytes(value, "big")


def encode_keys_head(head: KeysHead) -> bytes:
    """Return the value of :data:`KEYS_HEAD_KEY`."""
    return _encode(head)


def decode_keys_head(path: Path, value: bytes | None) -> KeysHead:
    """Read the value of :data:`KEYS_HEAD_KEY`; raises StateCorrupt, also if there is none."""
    if value is None:
        raise StateCorrupt(path, "what is remembered of idempotency keys is missing")
    return _decoded(path, _keys_head, value)


def _record(stored: StoredRecord) -> CompletionRecord:
    return CompletionRecord(stored.fingerprint, stored.commit, _result(stored.result), stored.traceparent)


def _result(stored: StoredResult | None) -> Remembered | None:
    if stored is None:
        return None
    row = stored.refusal, stored.version, stored.value
    if stored.count is None:
        return Remembered(*row)
    known = *row, stored.count, stored.results, stored.failed
    return Transacted(*known) if stored.taken is None else Took(*known, stored.taken)


def _decoded(path: Path, decoder: msgspec.msgpack.Decoder[T], value: bytes) -> T:
    try:
        return decoder.decode(value)
    except msgspec.DecodeError as fault:
        raise StateCorrupt(path, str(fault)) from None
