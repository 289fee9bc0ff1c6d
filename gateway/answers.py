"""Results of the machine as they travel: bodies of API.md.

Owns: the translation from machine results to wire shapes. Pure; reads the machine, never changes it. Made on the
leader when an entry has been applied; a follower that forwarded a command relays the finished answer.
"""

from __future__ import annotations

from typing import Any, NamedTuple, assert_never

import msgspec

from oncegate.gateway import wire
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.results import AppliedPart, Operated, PartVerdict, Ranged, Resolved, SessionAnswer
from oncegate.gateway.machine.tables import Remembered, Table
from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.errors import REGISTRY, OncegateError
from oncegate.rifl.ids import format_client_id
from oncegate.rifl.key_table import KEYS_CLIENT
from oncegate.rifl.range_rule import RefusedPart, ReplayPart
from oncegate.rifl.resolve_rule import Fate, Resolution, look_up
from oncegate.rifl.rule import Applied, OpVerdict, Refusal, Rejected, Replayed

_SEALED = "the id is sealed: never executed, and never will be"
_DETAILS = {
    Refusal.SEALED: _SEALED,
    Refusal.NOT_FOUND: "no such table",
    Refusal.BAD_REQUEST: "this table does not take this operation",
    Refusal.PAYLOAD_TOO_LARGE: f"a result of more than {c.RESULT_BYTES_MAX} bytes is not remembered",
}


class Answer(NamedTuple):
    """A finished answer: wire body, the commit number it reflects, and whether something new was made.

    ``memory_ms``: how long the memory of the session it belongs to is still guaranteed; None without a session.
    """

    body: Any
    commit: int
    created: bool = False
    memory_ms: int | None = None


BODY_TYPES: dict[type, Any] = {
    c.Operate: wire.OperationsResponse,
    c.Range: wire.RangeResponse,
    c.Keyed: wire.OperationsResponse,
    c.OpenSession: wire.SessionOpened,
    c.RenewSession: wire.SessionRenewed,
    c.TakeOver: wire.SessionTaken,
    c.Resolve: wire.RequestState,
    c.CloseSession: wire.SessionClosed,
    c.DeclareTable: wire.TableState,
    c.DeclareFlow: wire.FlowState,
    c.Attach: wire.ConsumerAttached,
    c.MoveCursor: wire.CursorMoved,
}
"""Shape of the answer to each command that a client can cause."""


def answer(command: c.Command, result: Any, machine: Machine) -> Answer:
    """Return the answer to ``command``.

    Raises:
        OncegateError: the command was refused as a whole.
    """
    if isinstance(result, OncegateError):
        raise result
    commit = machine.commit
    if type(result) is Operated:
        done = wire.OperationsResponse([_operation(v, command, machine) for v in result.verdicts], result.memory_ms)
        return Answer(done, commit, memory_ms=result.memory_ms)
    match command, result:
        case c.Range() as command, Ranged(parts, memory_ms):
            ranged = wire.RangeResponse([_range_part(part, command, machine) for part in parts], memory_ms)
            return Answer(ranged, commit, memory_ms=memory_ms)
        case c.Resolve(), Resolved(resolution, left_ms):
            return Answer(_fate(command.sequence, resolution), commit, memory_ms=left_ms)
        case c.OpenSession(), SessionAnswer() as session:
            opened = wire.SessionOpened(
                format_client_id(session.client_id), session.epoch, session.lease_ms, session.window
            )
            return Answer(opened, commit, created=not session.existed, memory_ms=session.left_ms)
        case c.RenewSession(), SessionAnswer() as session:
            return Answer(wire.SessionRenewed(session.left_ms), commit, memory_ms=session.left_ms)
        case c.TakeOver(), SessionAnswer() as session:
            taken = wire.SessionTaken(session.epoch, session.first_incomplete, session.highest)
            return Answer(taken, commit, memory_ms=session.left_ms)
        case c.CloseSession(), _:
            return Answer(wire.SessionClosed(), commit)
        case c.DeclareTable(), Table() as table:
            return Answer(table_state(table), commit)
        case c.DeclareFlow(), str() as flow:
            return Answer(flow_state(machine, flow), commit)
        case c.Attach(), (int() as fence, int() as cursor):
            return Answer(wire.ConsumerAttached(fence, cursor), commit)
        case c.MoveCursor(), int() as cursor:
            return Answer(wire.CursorMoved(cursor), commit)
        case _:
            return Answer(None, commit)


def _operation(
    verdict: OpVerdict, command: c.Command | None = None, machine: Machine | None = None
) -> wire.OperationResult:
    match verdict:
        case Applied(sequence, record):
            return _recorded(sequence, record, replayed=False)
        case Replayed(sequence, record):
            return _recorded(sequence, record, replayed=True)
        case Rejected(sequence, Refusal.FENCED) if isinstance(command, c.Operate) and machine is not None:
            return rejected(sequence, Refusal.FENCED, machine.fenced_by(command.client_id, command.epoch))
        case Rejected(sequence, refusal):
            return rejected(sequence, refusal)
        case _:
            assert_never(verdict)


def _recorded(sequence: int, record: CompletionRecord, *, replayed: bool) -> wire.OperationResult:
    result: Remembered | None = record.result
    if result is None:
        return wire.OperationResult(sequence, "applied", commit=record.commit, version=record.commit, replayed=replayed)
    value = msgspec.UNSET if result.value is None else msgspec.json.decode(result.value)
    if result.refusal is None:
        return wire.OperationResult(
            sequence, "applied", commit=record.commit, version=result.version, value=value, replayed=replayed
        )
    return wire.OperationResult(
        sequence,
        "refused",
        commit=record.commit,
        version=result.version,
        value=value,
        replayed=replayed,
        code=result.refusal,
    )


def rejected(sequence: int, refusal: Refusal, detail: str = "") -> wire.OperationResult:
    """Return the verdict on an operation that was not executed and not recorded."""
    traits = REGISTRY[refusal.code]
    return wire.OperationResult(
        sequence,
        "rejected",
        code=refusal.code.value,
        outcome=refusal.outcome.value,
        retryable=traits.retryable,
        detail=detail or _DETAILS.get(refusal, traits.title),
    )


def _range_part(part: PartVerdict, command: c.Range, machine: Machine) -> wire.RangeResult:
    match part:
        case AppliedPart(first, last, commit):
            return wire.RangeResult(first, last, "applied", commit=commit, replayed=False)
        case ReplayPart(first, last, commit):
            return wire.RangeResult(first, last, "applied", commit=commit, replayed=True)
        case RefusedPart(first, last, refusal):
            traits = REGISTRY[refusal.code]
            return wire.RangeResult(
                first,
                last,
                "rejected",
                code=refusal.code.value,
                outcome=refusal.outcome.value,
                retryable=traits.retryable,
                detail=_of_range(refusal, command, machine) or traits.title,
            )
        case _:
            assert_never(part)


def _of_range(refusal: Refusal, command: c.Range, machine: Machine) -> str:
    match refusal:
        case Refusal.SEALED | Refusal.NOT_FOUND:
            return _DETAILS[refusal]
        case Refusal.BAD_REQUEST:
            return f"{command.table} is a resident table, a range is for stream tables: send its rows to /v1/operations"
        case Refusal.FENCED:
            return machine.fenced_by(command.client_id, command.epoch)
        case _:
            return ""


def table_state(table: Table) -> wire.TableState:
    """Describe a table."""
    return wire.TableState(table.name, table.kind, table.quota_bytes, len(table.rows))


def flow_state(machine: Machine, flow: str) -> wire.FlowState:
    """Describe a flow; raises NOT_FOUND."""
    found = machine.flows.get(flow)
    declaration, batches = found.declaration, found.batches
    consumers: dict[str, wire.ConsumerState] = {}
    for consumer in found.consumers.all():
        lag = found.consumers.lag(consumer.name, batches, machine.time_ms)
        consumers[consumer.name] = wire.ConsumerState(consumer.cursor, consumer.fence, lag.batches, lag.items, lag.ms)
    return wire.FlowState(
        flow=flow,
        source=declaration.source,
        first_batch=batches.first,
        last_batch=batches.last,
        items=batches.items_total,
        open_items=found.segment.items,
        watermark=found.consumers.watermark(),
        retention_ms=declaration.retention_ms,
        consumers=consumers,
    )


def request_state(machine: Machine, client_id: int, sequence: int, tenant: str = "") -> wire.RequestState:
    """Say what became of a request id (SEMANTICS, *Resolving the unknown*); raises FORBIDDEN for another tenant's."""
    if client_id == KEYS_CLIENT:
        return _fate(sequence, machine.keys.look_up(sequence, tenant))
    machine.check_tenant(client_id, tenant)
    tracker = machine.trackers.get(client_id)
    if tracker is None:
        return wire.RequestState(Fate.EXPIRED if client_id < machine.sessions.next_id else Fate.NEVER_SEEN)
    return _fate(sequence, look_up(tracker, sequence))


def _fate(sequence: int, found: Resolution) -> wire.RequestState:
    if found.record is None:
        return wire.RequestState(found.fate.value)
    traceparent = found.record.traceparent or msgspec.UNSET
    return wire.RequestState(found.fate.value, _recorded(sequence, found.record, replayed=True), traceparent)
