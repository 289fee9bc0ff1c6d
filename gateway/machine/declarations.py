"""Declaring tables: what a declaration makes, and when it is refused. Pure, part of the state machine.

Owns: the bound on the number of tables, and the rule that a stream table has its own flow from the beginning. Read
next: :mod:`oncegate.gateway.machine.tables`, :mod:`oncegate.gateway.machine.flow_state`.
"""

from __future__ import annotations

from collections.abc import Callable

from oncegate.flows.flow import FlowDeclaration
from oncegate.gateway.machine.commands import DeclareTable
from oncegate.gateway.machine.flow_state import FlowTable, declaration_of
from oncegate.gateway.machine.tables import TABLES_MAX, RowStore, Table, TableKind
from oncegate.rifl.errors import Code, OncegateError


def declare_table(
    command: DeclareTable,
    tables: dict[str, Table],
    flows: FlowTable,
    new_rows: Callable[[int], RowStore] | None,
    now_ms: int,
) -> Table:
    """Add a table, or change its quota; an equal declaration changes nothing.

    Args:
        command: the declaration.
        tables: all tables; the new one is added.
        flows: all flows; that of a new stream table is added.
        new_rows: makes the rows of the table with a number, from 0 in order of declaration; None: in memory.
        now_ms: cluster time.

    Raises:
        OncegateError: QUOTA at ``TABLES_MAX``; CONFLICT when it is declared with another kind or another flow, or a
            flow has its name; as :meth:`oncegate.gateway.machine.flow_state.FlowTable.declare` says. Nothing has
            changed then.
    """
    table = tables.get(command.name)
    if table is None:
        if len(tables) >= TABLES_MAX:
            raise OncegateError(Code.QUOTA, f"{TABLES_MAX} tables are declared")
        kind: TableKind = "stream" if command.kind == "stream" else "resident"
        if kind == "stream":
            # Reads of a stream table go through its flow, so it always has a flow of its own name.
            _declare_own_flow(command, flows, now_ms)
        rows = None if new_rows is None else new_rows(len(tables))
        table = Table(command.name, kind, command.quota_bytes, rows)
        tables[command.name] = table
        return table
    if table.kind != command.kind:
        raise OncegateError(Code.CONFLICT, f"{command.name} is a {table.kind} table")
    if table.kind == "stream" and command.flow:
        _declare_own_flow(command, flows, now_ms)
    table.quota_bytes = command.quota_bytes
    return table


def _declare_own_flow(command: DeclareTable, flows: FlowTable, now_ms: int) -> None:
    name = command.name
    flow = declaration_of(command.flow) if command.flow else FlowDeclaration(name=name, source=name)
    flows.declare(flow, {name}, now_ms)
