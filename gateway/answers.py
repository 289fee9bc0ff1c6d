"""Results of the machine as they travel: bodies of API.md.

Owns: the translation from machine results to wire shapes. Pure; reads the machine, never changes it. Made on the
leader when an entry has been applied; a follower that forwarded a command relays the finished answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, assert_never

import msgspec

from oncegate.flows import retention
from oncegate.flows.cursor import ConsumerState
from oncegate.gateway import wire
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.flow_state import Flow
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.results import AppliedPart, Operated, PartVerdict, Ranged, Resolved, SessionAnswer
from oncegate.gateway.machine.tables import Remembered, Table
from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.errors import REGISTRY, Code, OncegateError
from oncegate.rifl.ids import format_client_id
from oncegate.rifl.key_table import KEYS_CLIENT
from oncegate.rifl.range_rule import RefusedPart, ReplayPart
from oncegate.rifl.resolve_rule import Fate, ResolveVerdict, look_up
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


class Shape(NamedTuple):
    """Body of the answer to one kind of command: its type, and how it is made of command, result and machine."""

    body: Any
    make: Callable[[Any, Any, Machine], Any]


def _operations(command: c.Operate | c.Keyed, result: Operated, machine: Machine) -> wire.OperationsResponse:
    ops = [one.op for one in command.ops] if isinstance(command, c.Keyed) else command.ops
    found = [_operation(verdict, command, machine) for verdict in result.verdicts]
    details: dict[str, str] = {}
    for op, one in zip(ops, found, strict=True):
        if one.code == Code.QUOTA.value:
            if op.table not in details:
                details[op.table] = quota_detail(machine, op.table, op)
            one.detail = details[op.table] or one.detail
    return wire.OperationsResponse(found, result.memory_ms)


def _range(command: c.Range, result: Ranged, machine: Machine) -> wire.RangeResponse:
    return wire.RangeResponse([_range_part(part, command, machine) for part in result.parts], result.memory_ms)


def _opened(_: c.OpenSession, session: SessionAnswer, __: Machine) -> wire.SessionOpened:
    return wire.SessionOpened(format_client_id(session.client_id), session.epoch, session.lease_ms, session.window)


def _taken(_: c.TakeOver, session: SessionAnswer, __: Machine) -> wire.SessionTaken:
    return wire.SessionTaken(session.epoch, session.first_incomplete, session.highest)


_UNREAD: Final = Shape(None, lambda *_: None)
"""For what a node orders by itself."""
ANSWERS: Final[dict[type, Shape]] = {
    c.Operate: Shape(wire.OperationsResponse, _operations),
    c.Range: Shape(wire.RangeResponse, _range),
    c.Keyed: Shape(wire.OperationsResponse, _operations),
    c.ForgetKeys: _UNREAD,
    c.Identify: _UNREAD,
    c.OpenSession: Shape(wire.SessionOpened, _opened),
    c.RenewSession: Shape(wire.SessionRenewed, lambda _, session, __: wire.SessionRenewed(session.memory_ms)),
    c.TakeOver: Shape(wire.SessionTaken, _taken),
    c.Resolve: Shape(wire.RequestState, lambda command, found, _: _fate(command.sequence, found.resolution)),
    c.CloseSession: Shape(wire.SessionClosed, lambda *_: wire.SessionClosed()),
    c.Reap: _UNREAD,
    c.DeclareTable: Shape(wire.TableState, lambda _, table, __: table_state(table)),
    c.DeclareFlow: Shape(wire.FlowState, lambda _, flow, machine: flow_state(machine, flow)),
    c.Seal: _UNREAD,
    c.Attach: Shape(wire.ConsumerAttached, lambda _, fence_and_cursor, __: wire.ConsumerAttached(*fence_and_cursor)),
    c.MoveCursor: Shape(wire.CursorMoved, lambda _, cursor, __: wire.CursorMoved(cursor)),
    c.AlterFlow: Shape(wire.FlowState, lambda _, flow, machine: flow_state(machine, flow)),
    c.DeleteFlow: Shape(wire.FlowDeleted, lambda command, last, _: wire.FlowDeleted(command.flow, last)),
    c.StartConsumer: Shape(wire.ConsumerAttached, lambda _, attached, __: wire.ConsumerAttached(*attached)),
    c.RemoveConsumer: Shape(wire.FlowState, lambda _, flow, machine: flow_state(machine, flow)),
    c.ExpireConsumers: _UNREAD,
}
"""The answer to each member of :data:`oncegate.gateway.machine.commands.Command`."""


def answer(command: c.Command, result: Any, machine: Machine) -> Answer:
    """Return the answer to ``command``; raises OncegateError: the command was refused as a whole."""
    if isinstance(result, OncegateError):
        raise result
    body = ANSWERS[type(command)].make(command, result, machine)
    created = isinstance(result, SessionAnswer) and not result.existed
    memory_ms = result.memory_ms if isinstance(result, Operated | Ranged | Resolved | SessionAnswer) else None
    return Answer(body, machine.commit, created, memory_ms)


def relayed_body(command: c.Command, body: Any) -> Any:
    """Return the body that the leader sent as plain data, in its shape; raises msgspec.ValidationError."""
    shape = ANSWERS[type(command)].body
    return None if shape is None else msgspec.convert(body, shape)


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


def quota_detail(machine: Machine, name: str, op: c.Op | None = None) -> str:
    """Say which table is full, and of a stream table also who holds it; empty if it is not the table that is full.

    A resident table may have room for less than ``op`` needs.
    """
    table = machine.tables.get(name)
    if table is None:
        return ""
    if table.kind == "stream":
        hold = machine.flows.hold(name, machine.time_ms)
        if hold is None or hold.bytes <= table.quota_bytes:
            return ""
        return f"table {name}: {hold.bytes} bytes of a quota of {table.quota_bytes}; {hold.why or 'none is sealed'}"
    if op is None or table.check(op) is not Code.QUOTA:
        return ""
    return f"table {name}: {table.bytes} bytes of a quota of {table.quota_bytes}"


def _recorded(sequence: int, record: CompletionRecord, *, replayed: bool) -> wire.OperationResult:
    result: Remembered | None = record.result
    if result is None:
        return wire.OperationResult(sequence, "applied", record.commit, record.commit, replayed=replayed)
    value = msgspec.UNSET if result.value is None else msgspec.json.decode(result.value)
    status, code = ("applied", msgspec.UNSET) if result.refusal is None else ("refused", result.refusal)
    return wire.OperationResult(sequence, status, record.commit, result.version, value, replayed=replayed, code=code)


def rejected(sequence: int, refusal: Refusal, detail: str = "") -> wire.OperationResult:
    """Return the verdict on an operation that was not executed and not recorded."""
    return wire.OperationResult(sequence, "rejected", **_why(refusal, detail or _DETAILS.get(refusal, "")))


def _why(refusal: Refusal, detail: str) -> dict[str, Any]:
    traits = REGISTRY[refusal.code]
    return {
        "code": refusal.code.value,
        "outcome": refusal.outcome.value,
        "retryable": traits.retryable,
        "detail": detail or traits.title,
    }


def _range_part(part: PartVerdict, command: c.Range, machine: Machine) -> wire.RangeResult:
    match part:
        case AppliedPart(first, last, commit):
            return wire.RangeResult(first, last, "applied", commit=commit, replayed=False)
        case ReplayPart(first, last, commit):
            return wire.RangeResult(first, last, "applied", commit=commit, replayed=True)
        case RefusedPart(first, last, refusal):
            return wire.RangeResult(first, last, "rejected", **_why(refusal, _of_range(refusal, command, machine)))
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
        case Refusal.QUOTA:
            return quota_detail(machine, command.table)
        case _:
            return ""


def table_state(table: Table) -> wire.TableState:
    """Describe a table."""
    return wire.TableState(table.name, table.kind, table.quota_bytes, len(table.rows))


def flow_state(machine: Machine, flow: str, now_ms: int | None = None) -> wire.FlowState:
    """Describe a flow at cluster time ``now_ms``, by default that of the newest entry; raises NOT_FOUND."""
    found = machine.flows.get(flow)
    now_ms = machine.time_ms if now_ms is None else now_ms
    declaration, batches, consumers = found.declaration, found.batches, found.consumers
    return wire.FlowState(
        flow=flow,
        source=declaration.source,
        target=declaration.target,
        version=found.version,
        first_batch=batches.first,
        last_batch=batches.last,
        items=batches.items_total,
        open_items=found.segment.items,
        watermark=consumers.watermark(),
        retained_bytes=found.retained_bytes,
        held=retention.why_held(declaration, batches, consumers, now_ms),
        retention_ms=declaration.retention_ms,
        consumer_expiry_ms=declaration.consumer_expiry_ms,
        max_items=declaration.max_items,
        max_bytes=declaration.max_bytes,
        linger_ms=declaration.linger_ms,
        consumers={one.name: _consumer_state(one, found, now_ms) for one in consumers.all()},
        cluster_identity=machine.identity,
    )


def _consumer_state(one: ConsumerState, flow: Flow, now_ms: int) -> wire.ConsumerState:
    lag = flow.consumers.lag(one.name, flow.batches, now_ms)
    return wire.ConsumerState(
        one.cursor,
        one.fence,
        lag.batches,
        lag.items,
        lag.ms,
        required=one.required,
        attached=one.attached,
        expired=one.expired,
        replays=one.replays,
        lag_bytes=flow.batches.bytes_after(one.cursor),
        idle_ms=max(0, now_ms - one.alive_ms),
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


def _fate(sequence: int, found: ResolveVerdict) -> wire.RequestState:
    if found.record is None:
        return wire.RequestState(found.fate.value)
    traceparent = found.record.traceparent or msgspec.UNSET
    return wire.RequestState(found.fate.value, _recorded(sequence, found.record, replayed=True), traceparent)
