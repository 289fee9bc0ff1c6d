"""What the cells of a saved state are: each kind is declared once, in :data:`CELLS`, with its key and its value.

Owns: that table, the structs behind it and the format version. A value is a msgpack array unless its declaration
says otherwise. Tables are numbered from 0 in the order of their declaration, and no number is given out twice; flows as
:class:`FlowIndex` says. There may be :data:`KEYS` and :data:`NAMES` of numbers below the oldest remembered one
(:mod:`oncegate.gateway.machine.state.keys`), which count for nothing. Checksums are the store's (one for each block).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from typing import Final, Self, TypeAlias, TypeVar

import msgspec

from oncegate.consensus.ports import SavedPoint
from oncegate.flows.chunks import RangeChunk, SinglesChunk, int64s_from_bytes, int64s_to_bytes
from oncegate.flows.cursor import ConsumerState
from oncegate.flows.flow import FlowDeclaration
from oncegate.flows.retired import RetiredState
from oncegate.gateway.machine import levels
from oncegate.gateway.machine.row_ends import Life
from oncegate.gateway.machine.row_rule import Remembered
from oncegate.gateway.machine.rows import StoredRow
from oncegate.gateway.machine.state.cells import Cells, packed
from oncegate.gateway.machine.state.errors import StateCorrupt, StateVersionUnknown
from oncegate.gateway.machine.state.store import RocksStore
from oncegate.gateway.machine.tables import TableKind
from oncegate.gateway.machine.transactions import Taken, Took, Transacted
from oncegate.rifl.completion import CompletionRecord, RangeRecord
from oncegate.rifl.ids import ClusterTimeMs, CommitNumber, SequenceNumber
from oncegate.rifl.key_buckets import Bucket
from oncegate.rifl.key_records import KeyRecord
from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.session import SessionRecord

FORMAT: Final = 10
BODY_PART_BYTES: Final = 1 << 20
"""A range's body is stored in parts of this size: copying one takes a fraction of a millisecond."""

T = TypeVar("T")
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
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

    @classmethod
    def of(cls, chunk: RangeChunk) -> Self:
        """Return the head of a range."""
        numbers = chunk.first_commit, chunk.count, chunk.time_ms, chunk.client_id, chunk.first_sequence, chunk.offset
        return cls(*numbers, body_parts(chunk.body), chunk.traceparent)

    def chunk(self, body: bytes) -> RangeChunk:
        """Return the range, given its body."""
        numbers = self.first_commit, self.count, self.time_ms, self.client_id, self.first_sequence
        return RangeChunk(*numbers, body, self.offset, self.traceparent)


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


class SessionImage(msgspec.Struct, array_like=True, frozen=True):
    """A session with its completion records."""

    session: SessionRecord
    first_incomplete: SequenceNumber
    highest: SequenceNumber
    records: dict[int, CompletionRecord]
    ranges: list[RangeRecord]
    runs: list[RangeRecord]


class KeysHead(msgspec.Struct, array_like=True, frozen=True):
    """What is remembered of idempotency keys; those on disk begin at the number ``kept``, here."""

    kept: int
    buckets: list[Bucket]


SessionKnown = tuple[SessionRecord, ResultTracker]
BatchColumns: TypeAlias = "array[int]"


def body_parts(body: bytes) -> int:
    """Return in how many cells a body is stored."""
    return -(-len(body) // BODY_PART_BYTES)


def encode_row(row: StoredRow) -> bytes:
    """Return the value of a row."""
    life = row.life
    if life is not None:
        if not life.then:
            return _U64.pack(row.version | _ENDS) + _encode_end(life) + row.value
        then = life.then.encode()
        return _U64.pack(row.version | _ENDS | _MOVES) + _encode_end(life) + _U16.pack(len(then)) + then + row.value
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


def _encode_end(life: Life) -> bytes:
    return _LIFE.pack(life.ends_ms, life.owner)


def _decode_end(value: bytes) -> Life:
    return Life(*_LIFE.unpack(value))


def _encode_meta(meta: Meta) -> bytes:
    return _U32.pack(FORMAT) + packed(meta)


def _decode_meta(value: bytes) -> Meta:
    return _meta(value[_U32.size :])


def _encode_session(known: SessionKnown) -> bytes:
    """Write a session with its records, in time proportional to their number."""
    session, tracker = known
    image = session, tracker.first_incomplete, tracker.highest, tracker.kept_singly, tracker.ranges, tracker.runs
    return packed(image)


def _decode_session(value: bytes) -> SessionKnown:
    image = _session(value)
    records = {sequence: _record(stored) for sequence, stored in image.records.items()}
    known = image.first_incomplete, image.highest, records, image.ranges, image.runs
    return image.session, ResultTracker.restore(image.session.window, *known)


def _decode_used_key(value: bytes) -> KeyRecord:
    used = _used_key(value)
    return KeyRecord(used.number, used.tenant, used.key, used.used_ms, used.ends_ms, _record(used.record))


def _record(read: CompletionRecord) -> CompletionRecord:
    """Return a record as it was written: a decoder cannot know the type of its result."""
    if read.result is None:
        return read
    result = _result(msgspec.convert(read.result, StoredResult))
    return CompletionRecord(read.fingerprint, read.commit, result, read.traceparent)


def _result(stored: StoredResult) -> Remembered:
    row = stored.refusal, stored.version, stored.value
    if stored.count is None:
        return Remembered(*row)
    known = *row, stored.count, stored.results, stored.failed
    return Transacted(*known) if stored.taken is None else Took(*known, stored.taken)


def _decode_number(value: bytes) -> int:
    (number,) = _U64.unpack(value)
    return int(number)


def _decoder(of: type[T]) -> Callable[[bytes], T]:
    return msgspec.msgpack.Decoder(of).decode


_meta, _session, _used_key = _decoder(Meta), _decoder(SessionImage), _decoder(KeyRecord)

META: Final = Cells[Meta](0x00, "the point of the state", "", _decode_meta, _encode_meta)
"""The format version (u32) comes before the array; :func:`read_meta` looks at it."""
HEADS: Final = Cells[FlowHead, int](0x01, "flow", "H", _decoder(FlowHead))
"""By flow."""
BATCHES: Final = Cells[BatchColumns, int, int](0x02, "batch of flow", "HQ", int64s_from_bytes, int64s_to_bytes)
"""By flow and batch. Five little-endian int64: first commit, last commit, items through, bytes, seal time; a sixth
where the flow's event-time clock at it is known."""
PIECES: Final = Cells[Piece, int, int, int](0x03, "piece of flow", "HQI", msgspec.msgpack.Decoder(Piece).decode)
"""By flow, first commit and part: of the open segment. Parts from 1 on are bytes of a range's body."""
ROWS: Final = Cells[StoredRow, int, str](0x04, "row of table", "H", decode_row, encode_row, text=True)
"""By table and the row's key. Row version (u64), then the row's JSON text; of a row that ends by itself the highest bit
of the version is set, and its end (u64, cluster time or 0) and owner (u64, client id or 0) come before the text; of one
that is moved then the next bit is set too, and the key (u16 bytes, UTF-8) comes behind them."""
SESSIONS: Final = Cells[SessionKnown, int](0x05, "session", "Q", _decode_session, _encode_session)
"""By client id: :class:`SessionImage`."""
KEYS: Final = Cells[KeyRecord, int](0x06, "idempotency key", "Q", _decode_used_key)
"""By number: a used idempotency key."""
FLOWS: Final = Cells[FlowIndex](0x07, "the index of the flows", "", _decoder(FlowIndex))
ENDS: Final = Cells[Life, int, str](0x08, "end of a row of table", "H", _decode_end, _encode_end, text=True)
"""By table and the row's key: end (u64) and owner (u64) of a row that ends by itself."""
NAMES: Final = Cells[int, str](0x0A, "number of an idempotency key", "", _decode_number, _U64.pack, text=True)
"""By tenant, NUL and idempotency key: its number (u64)."""
KEYS_HEAD: Final = Cells[KeysHead](0x0B, "what is remembered of idempotency keys", "", _decoder(KeysHead))
CELLS: Final = (META, HEADS, BATCHES, PIECES, ROWS, SESSIONS, KEYS, FLOWS, ENDS, NAMES, KEYS_HEAD)
"""All kinds, in key order: there are no other cells."""


def read_meta(store: RocksStore) -> Meta | None:
    """Read :data:`META`, None if nothing was saved; raises StateVersionUnknown, StateCorrupt, StoreFailed."""
    if (value := store.value(META.key())) is None:
        return None
    if len(value) < _U32.size:
        raise StateCorrupt(store.path, "its first cell is cut short")
    (version,) = _U32.unpack_from(value)
    if version != FORMAT:
        raise StateVersionUnknown(store.path, version, FORMAT)
    meta = META.decode(store.path, value)
    if meta.level > levels.NEWEST:
        raise StateVersionUnknown(store.path, meta.level, levels.NEWEST, "feature level")
    return meta
