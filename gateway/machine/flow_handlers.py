"""What commands do to flows and consumers (:mod:`oncegate.gateway.machine.flow_commands`). Pure, of the state machine.

Owns: what is refused, in which order things happen, and that a command which is sent again changes nothing.

A stream table's own flow keeps its rows, so it cannot be deleted. Rows of its dropped batches are in the store, where
the consumer ``rows`` brought them. If nobody brought some of them, the store would answer with older rows than
were acknowledged. So that consumer comes and goes only while no batch has been dropped, never skips, and never expires.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from oncegate.flows.errors import FlowError
from oncegate.flows.flow import ROWS_CONSUMER, FlowDeclaration
from oncegate.gateway.machine import flow_commands as f
from oncegate.gateway.machine.flow_state import Flow, declaration_of, typed
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.tables import Table
from oncegate.rifl.errors import Code, OncegateError

ALTERABLE: Final = frozenset(
    (
        *("consumers", "consumer_expiry_ms", "retention_ms", "retention_bytes", "event_time", "shed_lag_bytes"),
        *("max_items", "max_bytes", "linger_ms"),
    )
)
"""Fields of a declaration that may change. Name, source and target are what the flow is."""


def declare_flow(machine: Machine, command: f.DeclareFlow) -> str:
    """Declare a flow; returns its name; raises as :meth:`oncegate.gateway.machine.flow_state.FlowTable.declare`."""
    return machine.flows.declare(declaration_of(command.declaration), machine.tables, machine.time_ms)


def seal(machine: Machine, command: f.Seal) -> int:
    """Close the open segment of a flow; returns the number of its newest batch."""
    return machine.flows.seal(command.flow, command.number, machine.time_ms)


def clock_batches(machine: Machine, command: f.ClockBatches) -> int:
    """Record event times; returns the newest batch of which one is known."""
    return machine.flows.clock(command.flow, command.field, command.first, command.newest_ms, machine.time_ms)


def attach(machine: Machine, command: f.Attach) -> tuple[int, int]:
    """Attach an instance of a consumer; returns (fence, cursor)."""
    return machine.flows.attach(command.flow, command.consumer, command.nonce, machine.time_ms)


def move_cursor(machine: Machine, command: f.MoveCursor) -> int:
    """Move a cursor; returns it."""
    where = command.flow, command.consumer, command.batch, command.fence
    return machine.flows.move(*where, replay=command.replay, now_ms=machine.time_ms)


def alter_flow(machine: Machine, command: f.AlterFlow) -> str:
    """Change a flow's declaration; returns its name.

    Raises:
        OncegateError: NOT_FOUND; CONFLICT for another version, or for what its table's rows do not allow; BAD_REQUEST
            for a field that cannot change or a value out of bounds; QUOTA for too many consumers.
    """
    name, version = command.flow, command.version
    flow = machine.flows.get(name)
    declaration = altered(flow.declaration, command.changes)
    check_sheds_no_rows(declaration, machine.tables.get(name))
    if flow.version == version + 1 and declaration == flow.declaration:
        return name  # sent again
    _check_version(flow, version)
    if declaration == flow.declaration:
        return name
    if ROWS_CONSUMER in {*flow.declaration.consumers} ^ {*declaration.consumers}:
        _check_rows(machine, flow, ROWS_CONSUMER)
    try:
        flow.consumers.require(declaration.consumers, flow.batches, machine.time_ms)
    except FlowError as fault:
        raise typed(fault) from None
    if ROWS_CONSUMER in {*declaration.consumers} - {*flow.declaration.consumers} and _keeps_rows(machine, flow):
        # It may have been there, not required, and have skipped batches: it brings all of them from now on.
        flow.consumers.remove(ROWS_CONSUMER)
        flow.consumers.require(declaration.consumers, flow.batches, machine.time_ms)
    if declaration.event_time != flow.declaration.event_time:
        flow.batches.reset_clock()
    machine.flows.replace(flow, declaration, machine.time_ms)
    _changed(machine, flow)
    return name


def altered(declaration: FlowDeclaration, changes: bytes) -> FlowDeclaration:
    """Return the declaration with changes, a JSON object; raises BAD_REQUEST."""
    try:
        fields = msgspec.json.decode(changes, type=dict[str, Any])
        if not fields.keys() <= ALTERABLE:
            what = ", ".join(sorted(fields.keys() - ALTERABLE))
            raise OncegateError(Code.BAD_REQUEST, f"{what} of a flow cannot change")
        return msgspec.convert({**msgspec.to_builtins(declaration), **fields}, FlowDeclaration)
    except (FlowError, msgspec.MsgspecError) as fault:
        raise OncegateError(Code.BAD_REQUEST, str(fault)) from None


def delete_flow(machine: Machine, command: f.DeleteFlow) -> int:
    """Delete a flow; returns the number of the last batch it ever had.

    Raises:
        OncegateError: NOT_FOUND; CONFLICT for another version, for a stream table's own flow, and, unless ``force``,
            for a flow that consumers have attached to.
    """
    name, version = command.flow, command.version
    deleted = machine.flows.retired.find(name)
    if machine.flows.find(name) is None and deleted is not None and deleted.versions == version + 1:
        return deleted.batches  # sent again
    flow = machine.flows.get(name)
    _check_version(flow, version)
    if _keeps_rows(machine, flow):
        raise OncegateError(Code.CONFLICT, f"flow {name} keeps the rows of stream table {name}: alter it instead")
    attached = [one.name for one in flow.consumers.all() if one.attached]
    if attached and not command.force:
        shown = ", ".join(attached[:3]) + (", …" if len(attached) > 3 else "")
        raise OncegateError(Code.CONFLICT, f"consumers have attached to flow {name}: {shown}; remove them, or force it")
    machine.flows.remove(flow)
    return flow.batches.last


def start_consumer(machine: Machine, command: f.StartConsumer) -> tuple[int, int]:
    """Attach to a consumer at a place; returns (fence, cursor). Instances that were attached before are fenced.

    Raises:
        OncegateError: NOT_FOUND for ``cursor`` of nobody; BAD_REQUEST and RETENTION_EXCEEDED for a place that is not
            there; CONFLICT where rows of the table would be skipped; as an attach.
    """
    name, consumer, nonce = command.flow, command.consumer, command.nonce
    flow = machine.flows.get(name)
    known = next((one for one in flow.consumers.all() if one.name == consumer), None)
    again = known is not None and any(nonce == used for used, _ in known.nonces)
    cursor = None if again else _cursor(flow, command.start, command.number, machine.time_ms)
    if cursor is None and known is None:
        raise OncegateError(Code.NOT_FOUND, f"no consumer {consumer} of flow {name}")
    if cursor is not None and known is not None and known.required and cursor > known.cursor:
        _check_rows(machine, flow, consumer, skips=True)
    return machine.flows.attach(name, consumer, nonce, machine.time_ms, cursor=cursor)


def _cursor(flow: Flow, where: f.Start, number: int, now_ms: int) -> int | None:
    batches = flow.batches
    try:
        match where:
            case "beginning":
                return batches.first - 1
            case "now":
                return batches.last
            case "cursor":
                return None
            case "batch":
                return number - 1
            case "time":
                return batches.before_time(number)
            case "ago":
                return batches.before_time(now_ms - number)
            case "event":
                if not flow.declaration.event_time:
                    raise OncegateError(Code.BAD_REQUEST, f"flow {flow.declaration.name} declares no event_time")
                return batches.before_event(number)
    except FlowError as fault:
        raise typed(fault) from None


def remove_consumer(machine: Machine, command: f.RemoveConsumer) -> str:
    """Remove a consumer; returns the flow's name.

    Raises:
        OncegateError: NOT_FOUND; CONFLICT for another version, and for ``rows`` once it has kept rows.
    """
    name, consumer, version = command.flow, command.consumer, command.version
    flow = machine.flows.get(name)
    there = any(one.name == consumer for one in flow.consumers.all())
    if not there and flow.version == version + 1:
        return name  # sent again
    _check_version(flow, version)
    if not there:
        raise OncegateError(Code.NOT_FOUND, f"no consumer {consumer} of flow {name}")
    declaration = flow.declaration
    if consumer in declaration.consumers:
        _check_rows(machine, flow, consumer)
        left = tuple(one for one in declaration.consumers if one != consumer)
        machine.flows.replace(flow, msgspec.structs.replace(declaration, consumers=left), machine.time_ms)
    flow.consumers.remove(consumer)
    _changed(machine, flow)
    return name


def overdue_consumers(machine: Machine, flow: Flow, now_ms: int) -> list[str]:
    """Return the required consumers that never moved in the flow's ``consumer_expiry_ms``, at ``now_ms``."""
    names = flow.consumers.overdue(flow.declaration.consumer_expiry_ms, flow.altered_ms, now_ms)
    return [one for one in names if one != ROWS_CONSUMER or not _keeps_rows(machine, flow)]


def expire_consumers(machine: Machine, command: f.ExpireConsumers) -> int:
    """Stop waiting for the consumers that are overdue; returns how many; raises NOT_FOUND."""
    flow = machine.flows.get(command.flow)
    names = overdue_consumers(machine, flow, machine.time_ms)
    for one in names:
        flow.consumers.expire(one)
    if names:
        _changed(machine, flow)
    return len(names)


def _changed(machine: Machine, flow: Flow) -> None:
    flow.version += 1
    flow.moves += 1
    machine.flows.retain(flow, machine.time_ms)


def _check_version(flow: Flow, version: int) -> None:
    if flow.version != version:
        raise OncegateError(
            Code.CONFLICT, f"flow {flow.declaration.name} is at version {flow.version}, not {version}: look again"
        )


def _keeps_rows(machine: Machine, flow: Flow) -> bool:
    """Whether it is the own flow of a stream table: nothing else has its table's name."""
    table = machine.tables.get(flow.declaration.name)
    return flow.declaration.name == flow.declaration.source and table is not None and table.kind == "stream"


def check_sheds_no_rows(declaration: FlowDeclaration, table: Table | None) -> None:
    """Refuse that the own flow of a stream table sheds: its items are the table's rows; raises BAD_REQUEST."""
    own = declaration.name == declaration.source and (table is None or table.kind == "stream")
    if own and declaration.shed_lag_bytes:
        raise OncegateError(Code.BAD_REQUEST, f"flow {declaration.name} keeps the rows of its table: it cannot shed")


def _check_rows(machine: Machine, flow: Flow, consumer: str, *, skips: bool = False) -> None:
    """Refuse what would let rows of a stream table be lost between its batches and the store."""
    if consumer != ROWS_CONSUMER or not _keeps_rows(machine, flow) or not (skips or flow.batches.has_dropped):
        return
    what = "would skip rows of" if skips else "cannot come or go: it has brought dropped rows to the store of"
    raise OncegateError(Code.CONFLICT, f"consumer {consumer} {what} stream table {flow.declaration.source}")
