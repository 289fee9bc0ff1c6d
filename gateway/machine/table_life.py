"""Tables come and go: what a declaration makes, when it is refused, and how a table is dropped. Pure.

Owns: the bound on the number of tables, the rule that a stream table has its own flow from the beginning, and what
:class:`oncegate.gateway.machine.commands.DropTable` and ``SweepTables`` do. A table is dropped by the number of its
incarnation, which its declaration got and no other will get. From then on it is not there for anybody. Its rows are
removed by entries that the leader orders, so that none takes long; until the last is gone the name is not free. An
incarnation's rows have their own place in the saved state and its flows' batches their own numbers, so nothing of it
can be taken for what a later table of the same name holds. Part of the state machine: deterministic and total. Read
next: :mod:`oncegate.gateway.machine.tables`, :mod:`oncegate.gateway.machine.flow_state`.
"""

from __future__ import annotations

from typing import Final

from oncegate.flows.flow import FlowDeclaration
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.commands import DeclareTable
from oncegate.gateway.machine.flow_handlers import check_sheds_no_rows
from oncegate.gateway.machine.flow_state import FlowTable, declaration_of
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.results import Dropped
from oncegate.gateway.machine.tables import TABLES_EVER_MAX, TABLES_MAX, Closing, Swept, Table, TableKind
from oncegate.rifl.errors import Code, OncegateError

RETRY_AFTER_MS: Final = 100


def declare_table(machine: Machine, command: DeclareTable) -> Table:
    """Add a table, or change its quota; an equal declaration changes nothing.

    Raises:
        OncegateError: QUOTA at ``TABLES_MAX`` or ``TABLES_EVER_MAX``; OVERLOADED while the rows of a dropped table of
            this name are being removed; CONFLICT when it is declared with another kind or another flow, or a flow has
            its name; as :meth:`oncegate.gateway.machine.flow_state.FlowTable.declare` says. Nothing has changed then.
    """
    name, flows = command.name, machine.flows
    table = machine.tables.get(name)
    if table is None:
        _check_room(machine, name)
        kind: TableKind = "stream" if command.kind == "stream" else "resident"
        if kind == "stream":
            # Reads of a stream table go through its flow, so it always has a flow of its own name.
            _declare_own_flow(command, flows, machine.time_ms)
        number = machine.tables_declared
        dropped = number > len(machine.tables) + len(machine.closing)
        rows = None if machine.new_rows is None else machine.new_rows(number)
        since = machine.commit if dropped else 0
        table = Table(name, kind, command.quota_bytes, rows, machine.changes, machine.ends, number=number, since=since)
        machine.tables_declared += 1
        machine.tables[name] = table
        return table
    if table.kind != command.kind:
        raise OncegateError(Code.CONFLICT, f"{command.name} is a {table.kind} table")
    if table.kind == "stream" and command.flow:
        _declare_own_flow(command, flows, machine.time_ms)
    table.quota_bytes = command.quota_bytes
    return table


def _check_room(machine: Machine, name: str) -> None:
    closing = machine.closing.get(name)
    if closing is not None:
        detail = f"table {name} is being dropped: {len(closing.table.rows)} rows are left"
        raise OncegateError(Code.OVERLOADED, detail, retry_after_ms=RETRY_AFTER_MS)
    if len(machine.tables) + len(machine.closing) >= TABLES_MAX:
        raise OncegateError(Code.QUOTA, f"{TABLES_MAX} tables are declared")
    if machine.tables_declared >= TABLES_EVER_MAX:
        raise OncegateError(Code.QUOTA, f"{TABLES_EVER_MAX} tables were declared: no number is left for another")


def _declare_own_flow(command: DeclareTable, flows: FlowTable, now_ms: int) -> None:
    name = command.name
    flow = declaration_of(command.flow) if command.flow else FlowDeclaration(name=name, source=name)
    check_sheds_no_rows(flow, None)
    flows.declare(flow, {name}, now_ms)


SWEEP_ROWS_MAX: Final = 300
"""Rows that one entry removes."""
SWEEP_BYTES_MAX: Final = 1 << 20
"""Values of these rows; a single one may exceed it."""
_SHOWN: Final = 3


def drop_table(machine: Machine, command: c.DropTable) -> Dropped:
    """Drop a table; one that was dropped before is answered as if it were now.

    Raises:
        OncegateError: NOT_FOUND; CONFLICT for another incarnation, for a flow on the table or to it, and, unless
            ``force``, for rows, or for consumers of a stream table's own flow. Nothing has changed then.
    """
    name, incarnation = command.name, command.incarnation
    table = machine.tables.get(name)
    if table is None:
        known = 1 <= incarnation <= machine.tables_declared
        if known and all(one.incarnation != incarnation for one in machine.tables.values()):
            return Dropped(name, incarnation)  # sent again
        raise OncegateError(Code.NOT_FOUND, f"no table {name}")
    if table.incarnation != incarnation:
        detail = f"table {name} is incarnation {table.incarnation}, not {incarnation}: look again"
        raise OncegateError(Code.CONFLICT, detail)
    why = _blocked(machine, table, force=command.force)
    if why:
        raise OncegateError(Code.CONFLICT, f"table {name} {why}")
    own = machine.flows.find(name) if table.kind == "stream" else None
    if own is not None:
        machine.flows.remove(own)
    del machine.tables[name]
    closing = machine.closing[name] = Closing(table)
    if not len(table.rows):
        _finish(machine, closing)
    return Dropped(name, incarnation)


def _blocked(machine: Machine, table: Table, *, force: bool) -> str:
    """Say what stands in the way, empty if nothing does."""
    name = table.name
    own = machine.flows.find(name) if table.kind == "stream" else None
    others = [
        flow.declaration.name
        for flow in machine.flows.all()
        if flow is not own and (flow.declaration.source == name or name in flow.declaration.targets)
    ]
    if others:
        return f"has flows, delete them first: {_shown(others)}"
    if force:
        return ""
    if own is not None:
        attached = [one.name for one in own.consumers.all() if one.attached or one.required]
        if attached:
            return f"has consumers: {_shown(attached)}; remove them, or force it"
        if own.segment.items or own.batches.first <= own.batches.last:
            return "has rows that its flow retains: force it, and they are gone"
    if len(table.rows):
        return f"has {len(table.rows)} rows: delete them, or force it"
    return ""


def _shown(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


def sweep_tables(machine: Machine, _: c.SweepTables) -> int:
    """Remove rows of the table that was dropped first; returns how many. They have no commit numbers."""
    closing = next(iter(machine.closing.values()), None)
    if closing is None:
        return 0
    table = closing.table
    page = table.rows.page(f"{closing.swept}\0" if closing.swept else "", None, SWEEP_ROWS_MAX, SWEEP_BYTES_MAX)
    for key, row in page:
        table.change(key, row, None, machine.commit)
        closing.swept = key
    table.changes.clear()
    if not len(table.rows):
        _finish(machine, closing)
    return len(page)


def _finish(machine: Machine, closing: Closing) -> None:
    table = closing.table
    del machine.closing[table.name]
    ends = machine.ends.take_changes_of(table.name)
    if machine.new_rows is not None:
        machine.swept.append(Swept(table.number, table.rows, ends))
