"""What a log entry carries: versioned, replicated commands in msgpack.

Owns: what each command carries and means, the encoding of an entry, and the payload fingerprint. Pure. An entry holds
everything that waited at one tick. Those of flows are in :mod:`oncegate.gateway.machine.flow_commands`.

A new command is a class here, named in :data:`Control`; its handler, named in
:data:`oncegate.gateway.machine.apply.HANDLERS`; a row of :data:`oncegate.gateway.answers.ANSWERS`; and one of
:data:`oncegate.gateway.machine.levels.NEEDS`, so that no member meets it that does not know it.

Layout, version 2 (msgpack; a command is an array whose first element is its tag, and so is a part of operate)::

    entry        [version, time_ms, [command, ...]]
    operate      ["o", client_id, epoch, first_incomplete, [op | transaction | puts, ...], tenant, traceparent,
                  in_order]
    op           ["o", sequence, kind, table, key, fingerprint, value, by, test, operand, options or nil]
    options      [ttl_ms, bound, floor, ceiling, numbered, then, to, count]
    transaction  ["t", sequence, fingerprint, [[table, key, test, operand], ...], [op, ...]]
    puts         ["p", first sequence, table, fingerprints (8 bytes each, big-endian), [key, ...], [value, ...]]
    range        ["r", client_id, epoch, first_incomplete, table, first, fingerprints, body, tenant, traceparent]
    keyed        ["k", lifetime_ms, [[key, named_ms, op | transaction], ...], tenant, traceparent]

``value`` and ``operand`` are JSON text in canonical form (sorted keys, no blanks), ``body`` an Arrow IPC stream with
the columns ``key`` and ``value`` that only the edge and the segment writer ever decode.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

import msgspec
import xxhash

from oncegate.gateway.machine import flow_commands as f
from oncegate.gateway.machine.levels import too_old
from oncegate.rifl.ids import ClusterTimeMs, Fingerprint, SequenceNumber
from oncegate.rifl.session import SESSIONS_MAX

VERSION: Final = 2

KEY_BYTES_MAX: Final = 512
VALUE_BYTES_MAX: Final = 256 * 1024
OPERATIONS_MAX: Final = 4_096
"""Operations in one request."""
TRANSACTION_MAX: Final = 128
"""Writes of one transaction, and its conditions."""
APPENDS_MAX: Final = 1_024
"""Appends among them: each may write a list of ``LIST_BYTES_MAX`` anew."""
LIST_BYTES_MAX: Final = 64 * 1024
"""JSON text of a list that append may make."""
PART_BYTES_MAX: Final = 1024 * 1024
"""Keys and values of one part of a cascade in canonical form."""
RESULT_BYTES_MAX: Final = 64 * 1024
"""JSON text of a row that ``get`` as an operation may remember."""
REAP_MAX: Final = 1_000
END_MAX: Final = 1_000
TTL_MS_MAX: Final = 366 * 24 * 3_600_000
TAKE_MAX: Final = 64
"""Rows that one take moves."""
NUMBER_DIGITS: Final = 19
"""Digits that a numbered write adds to its key."""


class OpKind(IntEnum):
    """What an operation does to its row."""

    PUT = 1
    DELETE = 2
    INCREMENT = 3
    APPEND = 4
    GET = 5
    TAKE = 6
    """Move the first rows whose keys begin with its key; in a transaction, as its last write."""


class Test(IntEnum):
    """A condition on the row before the operation; PRESENT is ``If-Match: *``.

    Those from AT_LEAST on are of transactions alone: the row holds an integer of at least, or at most, the operand; the
    session whose client id the operand is has a live lease.
    """

    NONE = 0
    ABSENT = 1
    VERSION = 2
    VALUE = 3
    PRESENT = 4
    AT_LEAST = 5
    AT_MOST = 6
    SESSION_LIVE = 7


class Options(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What few writes say.

    Attributes:
        ttl_ms: the row ends so much cluster time after it is written; 0 for never.
        bound: it ends with the session that writes it.
        floor, ceiling: an increment whose sum is below or above it is refused.
        numbered: in a transaction, a put whose key goes on with its commit number.
        then: in a transaction, where the row is moved at its end, in place of being deleted; empty for a row that is.
        to, count: a take moves up to ``count`` rows whose keys begin with ``key`` to keys that begin with ``to``
            instead, from which they come back at their ends.
    """

    ttl_ms: int = 0
    bound: bool = False
    floor: int | None = None
    ceiling: int | None = None
    numbered: bool = False
    then: str = ""
    to: str = ""
    count: int = 0


NO_OPTIONS: Final = Options()


class Op(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="o"):
    """One operation in canonical form; inside a transaction its own number and fingerprint are 0.

    ``value`` is the item of an append; ``options`` is None where all have their defaults.
    """

    sequence: SequenceNumber
    kind: int
    table: str
    key: str
    fingerprint: Fingerprint
    value: bytes | None = None
    by: int = 0
    test: int = 0
    operand: int | bytes | None = None
    options: Options | None = None


class Condition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What must hold before a transaction, of a row that it need not write; ``operand`` is that of ``test``.

    Of SESSION_LIVE table and key are empty.
    """

    table: str
    key: str
    test: int
    operand: int | bytes | None = None


class Transaction(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="t"):
    """Up to ``TRANSACTION_MAX`` conditions and as many writes, one operation: all hold and all happen, or none does."""

    sequence: SequenceNumber
    fingerprint: Fingerprint
    conditions: list[Condition]
    writes: list[Op]


class Puts(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="p"):
    """A run: puts without conditions on one table, under adjacent sequence numbers; columns of equal length."""

    first: SequenceNumber
    table: str
    fingerprints: bytes
    keys: list[str]
    values: list[bytes]

    @property
    def ops(self) -> list[Op]:
        """The same as single operations."""
        prints = struct.unpack(f">{len(self.keys)}Q", self.fingerprints)
        kind = OpKind.PUT.value
        return [
            Op(SequenceNumber(sequence), kind, self.table, key, Fingerprint(print_), value)
            for sequence, (key, print_, value) in enumerate(
                zip(self.keys, prints, self.values, strict=True), self.first
            )
        ]


class Operate(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="o"):
    """Operations of one session, in the order of the request; runs of plain puts among them may be columns.

    ``tenant``, here and below: whom the token of the request names; checked against the session's. ``traceparent`` is
    that of the request, valid or empty. ``in_order``: nothing new is executed behind an operation that is refused for
    now.
    """

    client_id: int
    epoch: int
    first_incomplete: SequenceNumber
    parts: Sequence[Op | Transaction | Puts]
    tenant: str = ""
    traceparent: str = ""
    in_order: bool = False

    @property
    def ops(self) -> Sequence[Op | Transaction]:
        """All operations, one by one, in the order of the request."""
        if Puts not in map(type, self.parts):
            return self.parts  # type: ignore[return-value]  # there is no run among them
        ops: list[Op | Transaction] = []
        for part in self.parts:
            if isinstance(part, Puts):
                ops += part.ops
            else:
                ops.append(part)
        return ops


class Range(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="r"):
    """A run of keyed writes on one stream table; ``fingerprints`` has 8 bytes an operation."""

    client_id: int
    epoch: int
    first_incomplete: SequenceNumber
    table: str
    first: SequenceNumber
    fingerprints: bytes
    body: bytes
    tenant: str = ""
    traceparent: str = ""


class KeyedOp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One operation under an idempotency key; its sequence number is given when it is applied.

    ``named_ms`` is the cluster time that the key names, ``oncegate.rifl.key_table.NO_TIME`` if none.
    """

    key: str
    named_ms: ClusterTimeMs
    op: Op | Transaction


class Keyed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="k"):
    """Operations of callers without a session, remembered for ``lifetime_ms``."""

    lifetime_ms: int
    ops: list[KeyedOp]
    tenant: str = ""
    traceparent: str = ""


class ForgetKeys(msgspec.Struct, frozen=True, array_like=True, tag="kf"):
    """Forget idempotency keys whose time is over when this is applied."""


class EndRows(msgspec.Struct, frozen=True, array_like=True, tag="re"):
    """End rows whose time is over, ``END_MAX`` at most, keys by table; each is looked at again when this is applied."""

    rows: dict[str, list[str]]


class Cascade(msgspec.Struct, frozen=True, array_like=True, tag="cw"):
    """Write a part of what a consumer derives from a batch, and, with the last part, move its cursor.

    ``ops`` are puts, deletes and increments without conditions, whose sequence numbers mean nothing; ``fingerprint`` is
    :func:`fingerprint_part` of them.
    """

    flow: str
    consumer: str
    batch: int
    part: int
    fence: int
    last: bool
    fingerprint: int
    ops: list[Op]
    traceparent: str = ""


class Identify(msgspec.Struct, frozen=True, array_like=True, tag="ci"):
    """Give the cluster its identity, once: 32 hexadecimal digits, drawn by the leader; a second one changes nothing."""

    identity: str


class RaiseLevel(msgspec.Struct, frozen=True, array_like=True, tag="lv"):
    """Raise the feature level (:mod:`oncegate.gateway.machine.levels`); a lower one than now changes nothing."""

    level: int


class OpenSession(msgspec.Struct, frozen=True, array_like=True, tag="so"):
    """Open a session, or find the one this nonce opened; refused with QUOTA when as many are live as the bounds say."""

    nonce: str
    lease_ms: int
    window: int
    tenant: str = ""
    sessions_max: int = SESSIONS_MAX
    tenant_sessions_max: int = SESSIONS_MAX


class RenewSession(msgspec.Struct, frozen=True, array_like=True, tag="sr"):
    """Extend the lease."""

    client_id: int
    epoch: int
    tenant: str = ""


class TakeOver(msgspec.Struct, frozen=True, array_like=True, tag="st"):
    """Give the session to a new owner and fence the old one."""

    client_id: int
    nonce: str
    tenant: str = ""


class Resolve(msgspec.Struct, frozen=True, array_like=True, tag="sv"):
    """Answer what became of an operation; seal it if it was never executed.

    ``epoch`` is 0 and ``first_incomplete`` 1 where whoever asks does not own the session.
    """

    client_id: int
    sequence: SequenceNumber
    epoch: int = 0
    first_incomplete: SequenceNumber = SequenceNumber(1)
    tenant: str = ""


class CloseSession(msgspec.Struct, frozen=True, array_like=True, tag="sc"):
    """Drop the session, its records, and the rows that are bound to it; one that has gone is closed already."""

    client_id: int
    epoch: int
    tenant: str = ""


class Reap(msgspec.Struct, frozen=True, array_like=True, tag="sx"):
    """Drop sessions whose lease has ended; each is checked again when this is applied.

    A session whose rows the entry has no room to end stays until the next one.
    """

    client_ids: list[int]


class DeclareTable(msgspec.Struct, frozen=True, array_like=True, tag="td"):
    """Declare a table; the same declaration again changes nothing.

    ``flow`` is the JSON of ``oncegate.flows.flow.FlowDeclaration`` of a stream table's own flow; empty: as it is, or
    default.
    """

    name: str
    kind: str
    quota_bytes: int
    flow: bytes = b""


class DropTable(msgspec.Struct, frozen=True, array_like=True, tag="tx"):
    """Drop a table of this incarnation; ``force``: with its rows. Sent again it changes nothing."""

    name: str
    incarnation: int
    force: bool


class SweepTables(msgspec.Struct, frozen=True, array_like=True, tag="ts"):
    """Remove some rows of dropped tables."""


AlterFlow = f.AlterFlow
Attach = f.Attach
ClockBatches = f.ClockBatches
DeclareFlow = f.DeclareFlow
DeleteFlow = f.DeleteFlow
ExpireConsumers = f.ExpireConsumers
MoveCursor = f.MoveCursor
RemoveConsumer = f.RemoveConsumer
Seal = f.Seal
StartConsumer = f.StartConsumer

Control = (
    ForgetKeys
    | OpenSession
    | RenewSession
    | TakeOver
    | Resolve
    | CloseSession
    | Reap
    | DeclareTable
    | DeclareFlow
    | Seal
    | Attach
    | MoveCursor
    | AlterFlow
    | DeleteFlow
    | StartConsumer
    | RemoveConsumer
    | ExpireConsumers
    | Identify
    | Cascade
    | ClockBatches
    | RaiseLevel
    | DropTable
    | SweepTables
    | EndRows
)
"""Commands that are refused by an error, as a whole."""
AnyOperate = Operate | Keyed
"""Commands of operations, each with a verdict of its own."""
Command = Operate | Range | Keyed | Control


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One log entry: all that waited at a tick, stamped with cluster time."""

    version: int
    time_ms: ClusterTimeMs
    commands: list[Command]


_encoder = msgspec.msgpack.Encoder()
_entry_decoder = msgspec.msgpack.Decoder(Entry)
_commands_decoder = msgspec.msgpack.Decoder(list[Command])


def encode_entry(time_ms: int, commands: list[Command]) -> bytes:
    """Return the bytes of an entry."""
    return _encoder.encode(Entry(VERSION, ClusterTimeMs(time_ms), commands))


def decode_entry(data: bytes) -> Entry:
    """Read an entry.

    Raises:
        msgspec.DecodeError: not an entry of this version; the log is from a newer build or damaged.
    """
    try:
        entry = _entry_decoder.decode(data)
    except msgspec.ValidationError as fault:
        raise _unread(data, f"{fault}: a newer build ordered this; start the node with that build") from None
    if entry.version != VERSION:
        raise _unread(data, f"entry version {entry.version} is not {VERSION}")
    return entry


def _unread(data: bytes, why: str) -> msgspec.ValidationError:
    # An array of three begins with one byte, and its first element, the version, is the next.
    return msgspec.ValidationError(f"entry version 1: {too_old('the log')}" if data[1:2] == b"\x01" else why)


def encode_commands(commands: list[Command]) -> bytes:
    """Return the bytes in which a follower hands commands to its leader."""
    return _encoder.encode(commands)


def decode_commands(data: bytes) -> list[Command]:
    """Read what :func:`encode_commands` wrote; raises ``msgspec.DecodeError``."""
    return _commands_decoder.decode(data)


def fingerprint_put(table: str, key: str, value: bytes) -> Fingerprint:
    """Hash a plain put: the same alone, in a batch and in a range."""
    payload = put_prefix(table) + key.encode() + b"\0" + value
    return xxhash.xxh3_64_intdigest(payload)  # type: ignore[return-value]  # the hot path spares a call


@lru_cache(maxsize=1024)
def put_prefix(table: str) -> bytes:
    """Return what the hashed payload of a plain put begins with; key, NUL and value follow."""
    return f"p\0{table}\0".encode()


def fingerprint_part(ops: list[Op], *, last: bool) -> int:
    """Return the 64-bit hash of a cascade's part: of its operations' fingerprints, and whether it is the last one."""
    prints = b"".join([op.fingerprint.to_bytes(8, "little") for op in ops])
    return xxhash.xxh3_64_intdigest(prints + bytes([last]))


def fingerprint(op: Op) -> Fingerprint:
    """Return the 64-bit hash of an operation's payload, its sequence number left out.

    Keys cannot hold NUL (the edge refuses it), so the parts cannot be shifted against each other.
    """
    if op.kind == OpKind.PUT and op.test == Test.NONE and op.value is not None and op.options is None:
        return fingerprint_put(op.table, op.key, op.value)
    fields = op.kind, op.table, op.key, op.value, op.by, op.test, op.operand
    return fingerprint_fields(*fields) if op.options is None else fingerprint_fields(*fields, op.options)


def fingerprint_fields(*fields: object) -> Fingerprint:
    """Hash the fields of an operation that is no plain put, from its kind on."""
    return xxhash.xxh3_64_intdigest(_encoder.encode(fields))  # type: ignore[return-value]  # the hot path spares a call


def fingerprint_transaction(conditions: list[Condition], writes: Sequence[Op]) -> Fingerprint:
    """Return the 64-bit hash of a transaction's payload: of its conditions and writes (:func:`in_transaction`)."""
    payload = _encoder.encode(("t", conditions, writes))
    return Fingerprint(xxhash.xxh3_64_intdigest(payload))


def in_transaction(op: Op) -> Op:
    """Return an operation as a write of a transaction, whose number and fingerprint count: its own are 0."""
    return msgspec.structs.replace(op, sequence=SequenceNumber(0), fingerprint=Fingerprint(0))


def with_options(op: Op, **changes: Any) -> Op:
    """Return an operation with these of its options changed; its fingerprint is left as it is."""
    options = msgspec.structs.replace(op.options or NO_OPTIONS, **changes)
    return msgspec.structs.replace(op, options=None if options == NO_OPTIONS else options)


def operations_of(command: AnyOperate) -> Sequence[Op | Transaction]:
    """Return the operations of a command, without keys."""
    return [one.op for one in command.ops] if isinstance(command, Keyed) else command.ops


def writes_of(ops: Sequence[Op | Transaction]) -> Sequence[Op]:
    """Return the writes of operations, those of a transaction one by one."""
    if Transaction not in map(type, ops):
        return ops  # type: ignore[return-value]  # there is no transaction among them
    return [write for op in ops for write in (op.writes if isinstance(op, Transaction) else (op,))]


def tables_of(ops: Iterable[Op | Transaction]) -> list[str]:
    """Return the table of each write, and of each condition on a row."""
    names: list[str] = []
    for op in ops:
        if isinstance(op, Transaction):
            names += [write.table for write in op.writes]
            names += [condition.table for condition in op.conditions if condition.table]
        else:
            names.append(op.table)
    return names
