"""Applying cascades: what a consumer derives from a batch is written back, and its cursor moves, in one transition.

Owns: the join of :mod:`oncegate.flows.parts` (was the part written before?) and the machine (what does it do?), and
what refuses a part. A part is applied whole or not at all, so everything is checked before the first write. Pure,
deterministic and total, as :mod:`oncegate.gateway.machine.machine` is.

No session takes part: the consumer's fence says who may write, batch and part say what was written. So no lease can
end, however long a job was away.
"""

from __future__ import annotations

from typing import Final

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.effects import NO_SESSION, join, write
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.results import Cascaded
from oncegate.gateway.machine.row_rule import Remembered, incremented, row_after
from oncegate.gateway.machine.rows import StoredRow
from oncegate.gateway.machine.tables import Table
from oncegate.rifl.errors import Code, InvariantViolation, OncegateError
from oncegate.rifl.ids import CommitNumber

RETRY_AFTER_MS: Final = 1_000


def cascade(machine: Machine, command: c.Cascade) -> Cascaded:
    """Write a part that is new; answer one that was written before.

    Raises:
        OncegateError: as :meth:`oncegate.flows.cursor.Consumers.part`; BAD_REQUEST for a table that is no target of
            the flow, an operation that its table does not take, or a row that is no integer; NOT_FOUND for a table
            that is not declared; QUOTA for a full one; OVERLOADED while the consumers of a target's flows have
            more to read than the table may hold. Nothing has changed then.
    """
    flows = machine.flows
    known = flows.part(
        command.flow,
        command.consumer,
        command.batch,
        command.part,
        command.fence,
        command.fingerprint,
        last=command.last,
    )
    if known is not None:
        machine.replayed += 1
        return Cascaded(known.cursor, known.commit or 0, len(command.ops), replayed=True)
    _check(machine, command)
    commit = machine.commit + 1 if command.ops else 0
    for op in command.ops:
        _write(machine, op, command.traceparent)
    if commit:
        join(machine, commit)
    cursor = flows.wrote(
        command.flow,
        command.consumer,
        command.batch,
        command.fingerprint,
        commit,
        machine.time_ms,
        last=command.last,
    )
    return Cascaded(cursor, commit, len(command.ops), replayed=False)


def _check(machine: Machine, command: c.Cascade) -> None:
    targets = machine.flows.get(command.flow).declaration.targets
    keys: dict[str, list[str]] = {}
    new_bytes: dict[str, int] = {}
    for op in command.ops:
        keys.setdefault(op.table, []).append(op.key)
        new_bytes[op.table] = new_bytes.get(op.table, 0) + len(op.key) + len(op.value or b"")
    for name, wanted in keys.items():
        if name not in targets:
            known = ", ".join(targets) or "none"
            raise OncegateError(Code.BAD_REQUEST, f"table {name} is no target of flow {command.flow}: it has {known}")
        table = machine.tables.get(name)
        if table is None:
            raise OncegateError(Code.NOT_FOUND, f"no table {name}")
        _check_room(machine, table, new_bytes[name])
        if table.kind == "resident":
            table.rows.look_ahead(wanted)
    _check_operations(machine, command.ops)


def _check_room(machine: Machine, table: Table, new_bytes: int) -> None:
    flows, now = machine.flows, machine.time_ms
    if table.kind == "stream":
        if flows.is_full(table.name, table.quota_bytes, now):
            hold = flows.hold(table.name, now)
            why = "" if hold is None else f"; {hold.why or 'none is sealed'}"
            raise OncegateError(Code.QUOTA, f"table {table.name} is full{why}", retry_after_ms=RETRY_AFTER_MS)
        return
    if table.bytes + new_bytes > table.quota_bytes:
        raise OncegateError(Code.QUOTA, f"table {table.name}: {table.bytes} bytes of a quota of {table.quota_bytes}")
    # A client may write faster than anybody reads its table's flows. A job may not: nobody would notice but the disk.
    left = flows.undelivered(table.name, table.quota_bytes, now)
    if left is not None:
        what = f"flow {left.flow} has {left.bytes} bytes that its consumers have not read; {left.why}"
        raise OncegateError(Code.OVERLOADED, what, retry_after_ms=RETRY_AFTER_MS)


def _check_operations(machine: Machine, ops: list[c.Op]) -> None:
    """Refuse what a table or a row would refuse, one operation after the other, as far as increments need it."""
    made: dict[tuple[str, str], StoredRow | None] = {}
    counts = any(op.kind == c.OpKind.INCREMENT for op in ops)
    for at, op in enumerate(ops):
        table, place = machine.tables[op.table], (op.table, op.key)
        code = table.check(op)
        if code is not None:
            raise OncegateError(code, f"writes[{at}]: table {table.name} does not take it")
        if not counts:
            continue
        value = op.value
        if op.kind == c.OpKind.INCREMENT:
            after = incremented(op, made[place] if place in made else table.rows.get(op.key))
            if isinstance(after, Remembered):
                raise OncegateError(
                    Code.BAD_REQUEST,
                    f"writes[{at}]: row {op.key!r} of {op.table} refuses to be counted: {after.refusal}; put a number "
                    "there and send the part again",
                )
            value = after
        made[place] = None if value is None else StoredRow(CommitNumber(0), value)


def _write(machine: Machine, op: c.Op, traceparent: str) -> None:
    """Do what an operation of a session does, without a session; everything was checked."""
    table, commit = machine.tables[op.table], CommitNumber(machine.commit + 1)
    row = table.row_before(op.key, commit)
    after = row_after(op, row, commit)
    if isinstance(after, Remembered):
        raise InvariantViolation(f"a cascade's {op.kind} of {op.table} was checked, and is {after.refusal}")
    write(machine, commit, table, op.key, row, after, NO_SESSION, commit, traceparent)
