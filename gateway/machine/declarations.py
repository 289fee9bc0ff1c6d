"""Declaring tables: what a declaration makes, and when it is refused. Pure, part of the state machine.

Owns: the bound on the number of tables, and the rule that a stream table has its own flow from the beginning. Read
next: :mod:`oncegate.gateway.machine.tables`, :mod:`oncegate.gateway.machine.flow_state`.
"""

from __future__ import annotations

from typing import Final

from oncegate.flows.flow import FlowDeclaration
from oncegate.gateway.machine.commands import DeclareTable
from oncegate.gateway.machine.flow_handlers import check_sheds_no_rows
from oncegate.gateway.machine.flow_state import FlowTable, declaration_of
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.tables import TABLES_EVER_MAX, TABLES_MAX, Table, TableKind
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
