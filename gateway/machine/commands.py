"""What a log entry carries: versioned, replicated commands in msgpack.

Owns: the encoding of an entry, the payload fingerprint, and of each command all that the state machine knows of it:
what it carries, what it means, what it does. Pure. An entry holds everything that waited at one tick.

A new command is a class here, named in :data:`Control`, and a row of :data:`oncegate.gateway.answers.ANSWERS`. Its
``apply`` runs inside the state machine, so it must be deterministic; it refuses with an OncegateError and has changed
nothing then. Those of flows are in :mod:`oncegate.gateway.machine.flow_commands`. The three writes have none:
:mod:`oncegate.gateway.machine.machine` is about them.

Layout, version 1 (msgpack; a command is an array whose first element is its tag)::

    entry     [version, time_ms, [command, ...]]
    operate   ["o", client_id, epoch, first_incomplete, [[sequence, kind, table, key, fingerprint, value, by,
               test, operand], ...], tenant, traceparent]
    range     ["r", client_id, epoch, first_incomplete, table, first, fingerprints, body, tenant,
               traceparent]

``value`` and ``operand`` are JSON text in canonical form (sorted keys, no blanks), ``body`` an Arrow IPC stream with
the columns ``key`` and ``value`` that only the edge and the segment writer ever decode.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

import msgspec
import xxhash

from oncegate.gateway.machine import flow_commands as f
from oncegate.gateway.machine.results import Resolved, SessionAnswer
from oncegate.rifl.ids import ClusterTimeMs, Fingerprint, SequenceNumber
from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.session import SESSIONS_MAX

if TYPE_CHECKING:
    from oncegate.gateway.machine.machine import Machine
    from oncegate.gateway.machine.tables import Table

VERSION: Final = 1

KEY_BYTES_MAX: Final = 512
VALUE_BYTES_MAX: Final = 256 * 1024
OPERATIONS_MAX: Final = 4_096
"""Operations in one request."""
APPENDS_MAX: Final = 1_024
"""Appends among them: each may write a list of ``LIST_BYTES_MAX`` anew."""
LIST_BYTES_MAX: Final = 64 * 1024
"""JSON text of a list that append may make."""
RESULT_BYTES_MAX: Final = 64 * 1024
"""JSON text of a row that ``get`` as an operation may remember."""
REAP_MAX: Final = 1_000
FORGET_MAX: Final = 1_000


class OpKind(IntEnum):
    """What an operation does to its row."""

    PUT = 1
    DELETE = 2
    INCREMENT = 3
    APPEND = 4
    GET = 5


class Test(IntEnum):
    """A condition on the row before the operation; PRESENT is ``If-Match: *``."""

    NONE = 0
    ABSENT = 1
    VERSION = 2
    VALUE = 3
    PRESENT = 4


class Op(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One operation in canonical form; ``value`` is the item of an append."""

    sequence: SequenceNumber
    kind: int
    table: str
    key: str
    fingerprint: Fingerprint
    value: bytes | None = None
    by: int = 0
    test: int = 0
    operand: int | bytes | None = None


class Operate(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="o"):
    """Operations of one session, in the order of the request.

    ``tenant``, here and below: whom the token of the request names; checked against the session's. ``traceparent`` is
    that of the request, valid or empty.
    """

    client_id: int
    epoch: int
    first_incomplete: SequenceNumber
    ops: list[Op]
    tenant: str = ""
    traceparent: str = ""


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
    op: Op


class Keyed(msgspec.Struct, frozen=True, array_like=True, tag="k"):
    """Operations of callers without a session, remembered for ``lifetime_ms``."""

    lifetime_ms: int
    ops: list[KeyedOp]
    tenant: str = ""
    traceparent: str = ""


class ForgetKeys(msgspec.Struct, frozen=True, array_like=True, tag="kf"):
    """Forget idempotency keys whose time is over when this is applied, ``FORGET_MAX`` at most."""

    def apply(self, machine: Machine) -> int:
        """Return how many were forgotten."""
        return machine.keys.forget(machine.time_ms, FORGET_MAX)


class Identify(msgspec.Struct, frozen=True, array_like=True, tag="ci"):
    """Give the cluster its identity, once: 32 hexadecimal digits, drawn by the leader; a second one changes nothing."""

    identity: str

    def apply(self, machine: Machine) -> None:
        """Keep the first."""
        machine.identity = machine.identity or self.identity


class OpenSession(msgspec.Struct, frozen=True, array_like=True, tag="so"):
    """Open a session, or find the one this nonce opened; refused with QUOTA when as many are live as the bounds say."""

    nonce: str
    lease_ms: int
    window: int
    tenant: str = ""
    sessions_max: int = SESSIONS_MAX
    tenant_sessions_max: int = SESSIONS_MAX

    def apply(self, machine: Machine) -> SessionAnswer:
        """Return the session."""
        known = machine.sessions.of_nonce(self.nonce, self.tenant)
        if known is not None:
            machine.touch_first(known)
        session, existed = machine.sessions.open(
            self.nonce,
            self.lease_ms,
            self.window,
            machine.time_ms,
            self.tenant,
            sessions_max=self.sessions_max,
            tenant_sessions_max=self.tenant_sessions_max,
        )
        if not existed:
            machine.touch_first(session.client_id)
            machine.trackers[session.client_id] = ResultTracker(window=session.window)
        return machine.about(session, existed=existed)


class RenewSession(msgspec.Struct, frozen=True, array_like=True, tag="sr"):
    """Extend the lease."""

    client_id: int
    epoch: int
    tenant: str = ""

    def apply(self, machine: Machine) -> SessionAnswer:
        """Return the session, renewed."""
        machine.check_tenant(self.client_id, self.tenant)
        machine.touch_first(self.client_id)
        session = machine.sessions.live(self.client_id, self.epoch, machine.time_ms)
        session.renew(machine.time_ms)
        return machine.about(session, existed=True)


class TakeOver(msgspec.Struct, frozen=True, array_like=True, tag="st"):
    """Give the session to a new owner and fence the old one."""

    client_id: int
    nonce: str
    tenant: str = ""

    def apply(self, machine: Machine) -> SessionAnswer:
        """Return the session, which has a new epoch unless ``nonce`` had it already."""
        machine.check_tenant(self.client_id, self.tenant)
        machine.touch_first(self.client_id)
        return machine.about(machine.sessions.take_over(self.client_id, self.nonce, machine.time_ms), existed=True)


class Resolve(msgspec.Struct, frozen=True, array_like=True, tag="sv"):
    """Answer what became of an operation; seal it if it was never executed.

    ``epoch`` is 0 and ``first_incomplete`` 1 where whoever asks does not own the session.
    """

    client_id: int
    sequence: SequenceNumber
    epoch: int = 0
    first_incomplete: SequenceNumber = SequenceNumber(1)
    tenant: str = ""

    def apply(self, machine: Machine) -> Resolved:
        """Return the operation's fate."""
        return machine.resolve_request(self)


class CloseSession(msgspec.Struct, frozen=True, array_like=True, tag="sc"):
    """Drop the session and its records."""

    client_id: int
    epoch: int
    tenant: str = ""

    def apply(self, machine: Machine) -> None:
        """Drop it."""
        machine.check_tenant(self.client_id, self.tenant)
        machine.touch_first(self.client_id)
        machine.sessions.live(self.client_id, self.epoch, machine.time_ms)
        machine.sessions.close(self.client_id)
        del machine.trackers[self.client_id]


class Reap(msgspec.Struct, frozen=True, array_like=True, tag="sx"):
    """Drop sessions whose lease has ended; each is checked again when this is applied."""

    client_ids: list[int]

    def apply(self, machine: Machine) -> int:
        """Return how many were dropped."""
        gone = 0
        for client_id in self.client_ids:
            machine.touch_first(client_id)
            if machine.sessions.reap(client_id, machine.time_ms):
                del machine.trackers[client_id]
                gone += 1
        return gone


class DeclareTable(msgspec.Struct, frozen=True, array_like=True, tag="td"):
    """Declare a table; the same declaration again changes nothing.

    ``flow`` is the JSON of ``oncegate.flows.flow.FlowDeclaration`` of a stream table's own flow; empty: as it is, or
    default.
    """

    name: str
    kind: str
    quota_bytes: int
    flow: bytes = b""

    def apply(self, machine: Machine) -> Table:
        """Return the table."""
        return machine.declare_table(self)


AlterFlow = f.AlterFlow
Attach = f.Attach
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
)
"""Commands that do what their own ``apply`` says."""
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
    entry = _entry_decoder.decode(data)
    if entry.version != VERSION:
        raise msgspec.ValidationError(f"entry version {entry.version} is not {VERSION}")
    return entry


def encode_commands(commands: list[Command]) -> bytes:
    """Return the bytes in which a follower hands commands to its leader."""
    return _encoder.encode(commands)


def decode_commands(data: bytes) -> list[Command]:
    """Read what :func:`encode_commands` wrote; raises ``msgspec.DecodeError``."""
    return _commands_decoder.decode(data)


def fingerprint_put(table: str, key: str, value: bytes) -> Fingerprint:
    """Hash a plain put: the same alone, in a batch and in a range."""
    payload = f"p\0{table}\0{key}\0".encode() + value
    return xxhash.xxh3_64_intdigest(payload)  # type: ignore[return-value]  # the hot path spares a call


def fingerprint(op: Op) -> Fingerprint:
    """Return the 64-bit hash of an operation's payload, its sequence number left out.

    Keys cannot hold NUL (the edge refuses it), so the parts cannot be shifted against each other.
    """
    if op.kind == OpKind.PUT and op.test == Test.NONE and op.value is not None:
        return fingerprint_put(op.table, op.key, op.value)
    payload = _encoder.encode((op.kind, op.table, op.key, op.value, op.by, op.test, op.operand))
    return Fingerprint(xxhash.xxh3_64_intdigest(payload))
