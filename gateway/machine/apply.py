"""Applying log entries: each command of an entry is handed to what handles its type, in their order.

Owns: the table of handlers, the only place where commands meet what they do. Pure, deterministic and total: no clock,
no I/O, no exception out of :func:`apply` for anything a client can send. Every replica applies the same entries and
ends in the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from oncegate.gateway.machine import cascades, ending, flow_handlers, levels, operations, session_handlers, table_life
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.idempotency_keys import forget_keys, operate_keyed
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.tables import Table
from oncegate.rifl.errors import InvariantViolation, OncegateError
from oncegate.rifl.key_records import name_of
from oncegate.rifl.key_table import KeyTable


def identify(machine: Machine, command: c.Identify) -> None:
    """Give the cluster its identity; the first one stays."""
    machine.identity = machine.identity or command.identity


def raise_level(machine: Machine, command: c.RaiseLevel) -> int:
    """Raise the feature level, and return the one in force.

    Raises:
        InvariantViolation: this build does not know the level; it must not go on in this cluster.
    """
    level = command.level
    if level > levels.NEWEST:
        newer = "start this node with the build of the others"
        raise InvariantViolation(f"feature level {level}, this build knows {levels.NEWEST}: {newer}")
    machine.level = max(machine.level, level)
    return machine.level


HANDLERS: Final[dict[type, Callable[[Machine, Any], Any]]] = {
    c.Operate: operations.operate,
    c.Range: operations.operate_range,
    c.Keyed: operate_keyed,
    c.ForgetKeys: forget_keys,
    c.EndRows: ending.end_rows,
    c.Cascade: cascades.cascade,
    c.Identify: identify,
    c.RaiseLevel: raise_level,
    c.OpenSession: session_handlers.open_session,
    c.RenewSession: session_handlers.renew_session,
    c.TakeOver: session_handlers.take_over,
    c.Resolve: session_handlers.resolve_request,
    c.CloseSession: session_handlers.close_session,
    c.Reap: session_handlers.reap,
    c.DeclareTable: table_life.declare_table,
    c.DropTable: table_life.drop_table,
    c.SweepTables: table_life.sweep_tables,
    c.DeclareFlow: flow_handlers.declare_flow,
    c.Seal: flow_handlers.seal,
    c.ClockBatches: flow_handlers.clock_batches,
    c.Attach: flow_handlers.attach,
    c.MoveCursor: flow_handlers.move_cursor,
    c.AlterFlow: flow_handlers.alter_flow,
    c.DeleteFlow: flow_handlers.delete_flow,
    c.StartConsumer: flow_handlers.start_consumer,
    c.RemoveConsumer: flow_handlers.remove_consumer,
    c.ExpireConsumers: flow_handlers.expire_consumers,
}
"""What handles a command. It must be deterministic; it refuses with an OncegateError, and has changed nothing then."""


def apply(machine: Machine, index: int, term: int, data: bytes) -> list[Any]:
    """Apply one log entry.

    Returns:
        One result per command: one of :mod:`oncegate.gateway.machine.results`, or the OncegateError that refuses it.

    Raises:
        InvariantViolation: the state contradicts itself; the text names the entry. The node stops.
    """
    entry = c.decode_entry(data)
    machine.begin(entry.time_ms)
    if machine.new_rows is not None:
        look_ahead(entry.commands, machine.tables, machine.keys)
    handlers, results = HANDLERS, list[Any]()
    try:
        for command in entry.commands:
            try:
                results.append(handlers[type(command)](machine, command))
            except OncegateError as refusal:
                if isinstance(command, c.Operate | c.Range | c.Keyed):
                    raise  # their operations are refused one by one: some may have been done
                results.append(refusal)
    except InvariantViolation as broken:
        raise InvariantViolation(f"log entry {index} (term {term}): {broken}") from broken
    return results


def look_ahead(commands: Iterable[c.Command], tables: Mapping[str, Table], keys: KeyTable) -> None:
    """Read in one go what commands will look up: of each resident table the rows, unless it is one, and the keys.

    It changes no result, only what the look-ups cost: a row that is left out is read when its turn comes, and one too
    many is read for nothing.
    """
    rows: dict[str, list[str]] = {}
    under: list[str] = []
    for command in commands:
        if type(command) is c.Operate:
            parts: Sequence[c.Op | c.Transaction | c.Puts] = command.parts
        elif type(command) is c.Keyed:
            under += [name_of(command.tenant, item.key) for item in command.ops]
            parts = [item.op for item in command.ops]
        else:
            continue
        for part in parts:
            if isinstance(part, c.Puts):
                rows.setdefault(part.table, []).extend(part.keys)
                continue
            for op in part.writes if isinstance(part, c.Transaction) else (part,):
                if op.table in rows:
                    rows[op.table].append(op.key)
                else:  # most often there is one, which costs no call
                    rows[op.table] = [op.key]
    for name, wanted in rows.items():
        table = tables.get(name)
        if table is not None and table.kind == "resident" and len(wanted) > 1:
            table.rows.look_ahead(wanted)
    if under:
        keys.look_ahead(under)
