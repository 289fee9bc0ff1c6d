"""Results of the machine as they travel: bodies of API.md.

Owns: the translation from machine results to wire shapes. Pure; reads the machine, never changes it. Made on the
leader when an entry has been applied; a follower that forwarded a command relays the finished answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, assert_never

import msgspec

from oncegate.flows import bytes_text, retention
from oncegate.flows.cursor import ConsumerState
from oncegate.gateway import wire
from oncegate.gateway.answer_values import BUILT_BYTES_MAX, JsonText, Packed, built, encoding_of, shown
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import transactions
from oncegate.gateway.machine.flow_state import Flow
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.results import (
    AppliedPart,
    Cascaded,
    Operated,
    PartVerdict,
    Ranged,
    Resolved,
    SessionAnswer,
)
from oncegate.gateway.machine.row_rule import Remembered
from oncegate.gateway.machine.rows import StoredRow
from oncegate.gateway.machine.tables import Table
from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.errors import REGISTRY, Code, OncegateError
from oncegate.rifl.ids import CommitNumber, format_client_id
from oncegate.rifl.key_table import KEYS_CLIENT, NO_TIME
from oncegate.rifl.range_rule import RefusedPart, ReplayPart
from oncegate.rifl.resolve_rule import Fate, ResolveVerdict, look_up
from oncegate.rifl.rule import Applied, OpVerdict, Refusal, Rejected, Replayed

_SEALED = "the id is sealed: never executed, and never will be"
_DETAILS = {
    Refusal.SEALED: _SEALED,
    Refusal.BAD_REQUEST: "this table does not take this operation; a stream table takes puts and deletes, without"
    " conditions, ttl_ms and bound",
    Refusal.BEHIND: "an operation in front of it is refused for now",
    Refusal.PAYLOAD_TOO_LARGE: f"a result of more than {c.RESULT_BYTES_MAX} bytes is not remembered",
}


class _RelayedWrite(wire.TransactionWrite, omit_defaults=True):
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _RelayedResult(wire.OperationResult, omit_defaults=True):
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    writes: list[_RelayedWrite] | msgspec.UnsetType = msgspec.UNSET  # type: ignore[assignment]


class _RelayedResults(wire.OperationsResponse):
    results: list[_RelayedResult]  # type: ignore[assignment]


_relayed_results = msgspec.msgpack.Decoder(_RelayedResults)


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


def _operations(command: c.AnyOperate, result: Operated, machine: Machine) -> wire.OperationsResponse:
    found: list[wire.OperationResult] = []
    size, rest = 0, False
    for verdict in result.verdicts:
        if isinstance(verdict, AppliedPart):
            found += _of_run(verdict)
            continue
        if type(verdict) is not Applied or type(verdict.record.result) not in _USUAL:
            found.append(_operation(verdict, command, machine))
            rest = True
            continue
        one = _recorded(verdict.sequence, verdict.record, replayed=False)  # the usual one, as _operation says it
        found.append(one)
        if type(one.value) is JsonText:
            text = one.value.text
            one.value = shown(text, size)
            size += len(text)
    if not rest:
        return wire.OperationsResponse(found, result.memory_ms)
    details: dict[str, str] = {}
    if isinstance(command, c.Keyed):
        for keyed, one in zip(command.ops, found, strict=True):
            one.detail = _of_key(keyed.named_ms, one, machine) or one.detail
    for op, one in zip(c.operations_of(command), found, strict=True):
        if type(one.value) is JsonText:
            text = one.value.text
            one.value = shown(text, size)
            size += len(text)
        elif isinstance(op, c.Transaction):
            size = _show_transaction(op, one, size, machine)
        elif one.code == Code.NOT_FOUND.value:
            one.detail = f"no table {op.table}"
        elif one.code == Code.QUOTA.value:
            if op.table not in details:
                details[op.table] = quota_detail(machine, op.table, op)
            one.detail = details[op.table] or one.detail
    return wire.OperationsResponse(found, result.memory_ms)


def _of_run(run: AppliedPart) -> list[wire.OperationResult]:
    commits = range(run.commit, run.commit + run.last - run.first + 1)
    return [
        wire.OperationResult(sequence, "applied", commit, commit, replayed=False)
        for sequence, commit in enumerate(commits, run.first)
    ]


def _show_transaction(transaction: c.Transaction, one: wire.OperationResult, size: int, machine: Machine) -> int:
    """Show the values that its writes returned, or say which table does not take it; returns ``size`` with them."""
    if one.writes is not msgspec.UNSET:
        for write in one.writes:
            for told in (write, *(write.rows or ())):
                if type(told.value) is JsonText:
                    text = told.value.text
                    told.value = shown(text, size)
                    size += len(text)
    elif one.status == "rejected" and one.code in _OF_TABLES:
        why = transactions.table_that_refuses(machine, transaction)
        if why is not None:
            one.detail = quota_detail(machine, why.table) or f"{why.where}, table {why.table}: {one.detail}"
    return size


def _range(command: c.Range, result: Ranged, machine: Machine) -> wire.RangeResponse:
    return wire.RangeResponse([_range_part(part, command, machine) for part in result.parts], result.memory_ms)


def _opened(_: c.OpenSession, session: SessionAnswer, __: Machine) -> wire.SessionOpened:
    return wire.SessionOpened(format_client_id(session.client_id), session.epoch, session.lease_ms, session.window)


def _taken(_: c.TakeOver, session: SessionAnswer, __: Machine) -> wire.SessionTaken:
    return wire.SessionTaken(session.epoch, session.first_incomplete, session.highest)


def _cascaded(_: c.Cascade, done: Cascaded, __: Machine) -> wire.CascadeWritten:
    last = done.commit + done.operations - 1 if done.commit else 0
    return wire.CascadeWritten(done.cursor, last, replayed=done.replayed)


_USUAL: Final = (type(None), Remembered)
_OF_TABLES: Final = frozenset((Code.NOT_FOUND.value, Code.BAD_REQUEST.value, Code.QUOTA.value))
_UNREAD: Final = Shape(None, lambda *_: None)
"""For what a node orders by itself."""
ANSWERS: Final[dict[type, Shape]] = {
    c.Operate: Shape(wire.OperationsResponse, _operations),
    c.Range: Shape(wire.RangeResponse, _range),
    c.Keyed: Shape(wire.OperationsResponse, _operations),
    c.ForgetKeys: _UNREAD,
    c.Identify: _UNREAD,
    c.RaiseLevel: Shape(wire.ClusterLevel, lambda _, level, __: wire.ClusterLevel(level)),
    c.OpenSession: Shape(wire.SessionOpened, _opened),
    c.RenewSession: Shape(wire.SessionRenewed, lambda _, session, __: wire.SessionRenewed(session.memory_ms)),
    c.TakeOver: Shape(wire.SessionTaken, _taken),
    c.Resolve: Shape(wire.RequestState, lambda command, found, _: _fate(command.sequence, found.resolution)),
    c.CloseSession: Shape(wire.SessionClosed, lambda *_: wire.SessionClosed()),
    c.Reap: _UNREAD,
    c.EndRows: _UNREAD,
    c.DeclareTable: Shape(wire.TableState, lambda _, table, __: table_state(table)),
    c.DropTable: Shape(wire.TableDropped, lambda _, dropped, __: wire.TableDropped(*dropped)),
    c.SweepTables: _UNREAD,
    c.DeclareFlow: Shape(wire.FlowState, lambda _, flow, machine: flow_state(machine, flow)),
    c.Seal: _UNREAD,
    c.Attach: Shape(wire.ConsumerAttached, lambda _, fence_and_cursor, __: wire.ConsumerAttached(*fence_and_cursor)),
    c.MoveCursor: Shape(wire.CursorMoved, lambda _, cursor, __: wire.CursorMoved(cursor)),
    c.AlterFlow: Shape(wire.FlowState, lambda _, flow, machine: flow_state(machine, flow)),
    c.DeleteFlow: Shape(wire.FlowDeleted, lambda command, last, _: wire.FlowDeleted(command.flow, last)),
    c.StartConsumer: Shape(wire.ConsumerAttached, lambda _, attached, __: wire.ConsumerAttached(*attached)),
    c.RemoveConsumer: Shape(wire.FlowState, lambda _, flow, machine: flow_state(machine, flow)),
    c.ExpireConsumers: _UNREAD,
    c.ClockBatches: _UNREAD,
    c.Cascade: Shape(wire.CascadeWritten, _cascaded),
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


def relayed_body(command: c.Command, body: msgspec.Raw) -> Any:
    """Return the body that the leader sent as msgpack, in its shape; raises msgspec.DecodeError.

    Values that are too many to build at once stay as they came.
    """
    shape = ANSWERS[type(command)].body
    if shape is None:
        return None
    if shape is not wire.OperationsResponse or len(body) <= BUILT_BYTES_MAX:
        return msgspec.msgpack.decode(body, type=shape)
    response = _relayed_results.decode(body)
    for one in response.results:
        for shown_value in _valued(one):
            if shown_value.value is not msgspec.UNSET:
                shown_value.value = Packed(bytes(shown_value.value))
    return response


def _valued(
    one: wire.OperationResult,
) -> Iterator[wire.OperationResult | wire.TransactionWrite | wire.TakenRow]:
    """Yield what may have a value in a verdict: it, its writes, and the rows that they have taken."""
    yield one
    for write in one.writes or ():
        yield write
        yield from write.rows or ()


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


def _of_key(named_ms: int, one: wire.OperationResult, machine: Machine) -> str:
    """Say what is wrong with the cluster time that a refused key names; empty if that is not why."""
    if one.status != "rejected" or named_ms == NO_TIME:
        return ""
    if one.code == Code.SESSION_EXPIRED.value:
        gone = f"keys first used at {machine.keys.forgotten_ms} and before are forgotten"
        return f"the key is too old: it names the cluster time {named_ms}, {gone}, so that it may have been used"
    if one.code == Code.BAD_REQUEST.value and named_ms > machine.time_ms:
        ahead = f"{named_ms - machine.time_ms} ms ahead of {machine.time_ms}"
        return f"the key is from the future: it names the cluster time {named_ms}, {ahead} ({wire.H_TIME_MS} tells it)"
    return ""


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
    value = msgspec.UNSET if result.value is None else JsonText(result.value)
    if type(result) is Remembered and result.refusal is None:
        told = wire.OperationResult(sequence, "applied", record.commit, result.version, value, replayed=replayed)
        if result.value is not None and bytes_text.is_bytes(result.value):
            told.encoding = wire.BASE64
        return told
    status, code = ("applied", msgspec.UNSET) if result.refusal is None else ("refused", result.refusal)
    if isinstance(result, transactions.Transacted):
        if result.refusal is None:
            writes = _writes(record.commit, result)
            return wire.OperationResult(sequence, status, writes[-1].commit, replayed=replayed, writes=writes)
        failed = (result.version, value, msgspec.UNSET, result.failed, encoding_of(result.value))
        return wire.OperationResult(sequence, status, record.commit, *failed, replayed=replayed, code=code)
    told = wire.OperationResult(sequence, status, record.commit, result.version, value, replayed=replayed, code=code)
    told.encoding = encoding_of(result.value)
    return told


def _writes(first: CommitNumber, done: transactions.Transacted) -> list[wire.TransactionWrite]:
    writes = [wire.TransactionWrite(commit, commit) for commit in range(first, first + done.count)]
    for at, result in done.results:
        writes[at].version = result.version
        writes[at].value = msgspec.UNSET if result.value is None else JsonText(result.value)
        writes[at].encoding = encoding_of(result.value)
    if isinstance(done, transactions.Took):
        writes[-1].commit = done.last_of(first)
        writes[-1].rows = [
            wire.TakenRow(
                row.key,
                row.version,
                msgspec.UNSET if row.value is None else JsonText(row.value),
                encoding_of(row.value),
            )
            for row in done.taken
        ]
    return writes


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
        case Refusal.SEALED:
            return _SEALED
        case Refusal.NOT_FOUND:
            return f"no table {command.table}"
        case Refusal.BAD_REQUEST:
            return f"{command.table} is a resident table, a range is for stream tables: send its rows to /v1/operations"
        case Refusal.FENCED:
            return machine.fenced_by(command.client_id, command.epoch)
        case Refusal.QUOTA:
            return quota_detail(machine, command.table)
        case _:
            return ""


def row_state(key: str, row: StoredRow, commit: int, size: int = 0) -> wire.RowState:
    """Describe a row; ``size``: bytes of the values that the answer has already."""
    return wire.RowState(
        key,
        shown(row.value, size),
        row.version,
        commit,
        row.ends_ms or msgspec.UNSET,
        format_client_id(row.owner) if row.owner else msgspec.UNSET,
        encoding_of(row.value),
    )


def table_state(table: Table) -> wire.TableState:
    """Describe a table."""
    return wire.TableState(table.name, table.kind, table.quota_bytes, len(table.rows), table.bytes, table.incarnation)


def flow_state(machine: Machine, flow: str, now_ms: int | None = None) -> wire.FlowState:
    """Describe a flow at cluster time ``now_ms``, by default that of the newest entry; raises NOT_FOUND."""
    found = machine.flows.get(flow)
    now_ms = machine.time_ms if now_ms is None else now_ms
    declaration, batches, consumers = found.declaration, found.batches, found.consumers
    return wire.FlowState(
        flow=flow,
        source=declaration.source,
        target=[*declaration.targets] if len(declaration.targets) > 1 else next(iter(declaration.targets), None),
        version=found.version,
        first_batch=batches.first,
        last_batch=batches.last,
        items=batches.items_total,
        open_items=found.segment.items,
        watermark=consumers.watermark(),
        retained_bytes=found.retained_bytes,
        held=retention.why_held(declaration, batches, consumers, now_ms),
        retention_ms=declaration.retention_ms,
        retention_bytes=declaration.retention_bytes,
        consumer_expiry_ms=declaration.consumer_expiry_ms,
        max_items=declaration.max_items,
        max_bytes=declaration.max_bytes,
        linger_ms=declaration.linger_ms,
        consumers={one.name: _consumer_state(one, found, now_ms) for one in consumers.all()},
        cluster_identity=machine.identity,
        event_time=declaration.event_time,
        event_ms=batches.event_ms_at(batches.last),
        shed_lag_bytes=declaration.shed_lag_bytes,
        shed_level=found.shed_level,
        shed_items=found.shed_items,
    )


def _consumer_state(one: ConsumerState, flow: Flow, now_ms: int) -> wire.ConsumerState:
    lag = flow.consumers.lag(one.name, flow.batches, now_ms)
    event_ms = flow.batches.event_ms_at(one.cursor)
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
        event_ms=event_ms,
        event_lag_ms=flow.batches.event_ms_at(flow.batches.last) - event_ms if event_ms else 0,
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
    result = _recorded(sequence, found.record, replayed=True)
    for shown_value in _valued(result):  # one result: RESULT_BYTES_MAX at most
        if type(shown_value.value) is JsonText:
            shown_value.value = built(shown_value.value.text)
    return wire.RequestState(result.status, result, traceparent, executed=True, applied=result.status == "applied")
