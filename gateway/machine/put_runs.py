"""Runs of plain puts: what travels in columns, and what a run does at once. Pure, part of the state machine.

Owns: which operations of a request become columns in the log entry (:class:`oncegate.gateway.machine.commands.Puts`),
and their effect: rows, changes, flow items and one completion record for a run, the same as if its puts came one by
one. That they are all new says :func:`oncegate.rifl.rule.is_new_run`; a run of which that is not sure is not executed
here, its operations are decided and executed one by one. From feature level 4 on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.tables import ROW_OVERHEAD_BYTES
from oncegate.rifl.completion import FINGERPRINT_BYTES, RangeRecord
from oncegate.rifl.ids import CommitNumber, SequenceNumber

if TYPE_CHECKING:
    from oncegate.gateway.machine.machine import Machine
    from oncegate.gateway.machine.tables import Table
    from oncegate.rifl.result_tracker import ResultTracker

RUN_MIN: Final = 6
"""Fewer puts cost less one by one."""
_PUT: Final = c.OpKind.PUT.value


def in_columns(command: c.Command) -> c.Command:
    """Return a request with its runs of plain puts as columns, if they are half of it or more; else as it is."""
    if type(command) is not c.Operate or len(command.ops) < RUN_MIN:
        return command
    ops = command.ops
    if 2 * [op.kind for op in ops].count(_PUT) < len(ops):
        return command
    parts: list[c.Puts | c.Singles] = []
    in_runs = 0
    for start, end in _runs(ops):
        run = ops[start:end]
        if end - start < RUN_MIN:
            if parts and isinstance(parts[-1], c.Singles):
                parts[-1].ops.extend(run)
            else:
                parts.append(c.Singles(run))
            continue
        in_runs += end - start
        prints = struct.pack(f">{len(run)}Q", *[op.fingerprint for op in run])
        values = [op.value or b"null" for op in run]
        parts.append(c.Puts(run[0].sequence, run[0].table, prints, [op.key for op in run], values))
    if 2 * in_runs < len(ops):
        return command
    whose = command.client_id, command.epoch, command.first_incomplete
    return c.OperateRuns(*whose, parts, command.tenant, command.traceparent)


def _runs(ops: list[c.Op]) -> Iterator[tuple[int, int]]:
    """Yield where runs begin and end: plain puts on one table under adjacent numbers; any other operation is alone."""
    table: str | None = None
    start = following = 0
    for at, op in enumerate(ops):
        if op.kind != _PUT or op.test or op.table != table or op.sequence != following:
            if at:
                yield start, at
            start, table = at, op.table if op.kind == _PUT and not op.test else None
        following = op.sequence + 1
    yield start, len(ops)


def execute(
    machine: Machine, client_id: int, tracker: ResultTracker, puts: c.Puts, traceparent: str
) -> tuple[CommitNumber, int]:
    """Execute a run that is new; returns the commit number of its first put, and how many it has executed.

    The others, of which it is not sure that the table takes them, are left to be executed one by one.
    """
    commit = CommitNumber(machine.commit + 1)
    table = machine.tables.get(puts.table)
    if table is None:
        return commit, 0
    if table.kind == "stream":
        done = _append(machine, client_id, table, puts, commit, traceparent)
    else:
        done = _put(machine, client_id, table, puts, commit, traceparent)
    if done:
        machine.commit = CommitNumber(commit + done - 1)
        last = SequenceNumber(puts.first + done - 1)
        prints = puts.fingerprints[: done * FINGERPRINT_BYTES]
        tracker.record_run(RangeRecord(puts.first, last, commit, prints, traceparent))
    return commit, done


def _append(
    machine: Machine, client_id: int, table: Table, puts: c.Puts, commit: CommitNumber, traceparent: str
) -> int:
    flows, now = machine.flows, machine.time_ms
    for at, (key, value) in enumerate(zip(puts.keys, puts.values, strict=True)):
        if flows.is_full(table.name, table.quota_bytes, now):
            return at
        flows.append_one(table.name, commit + at, key, value, now, client_id, puts.first + at, traceparent)
    return len(puts.keys)


def _put(machine: Machine, client_id: int, table: Table, puts: c.Puts, commit: CommitNumber, traceparent: str) -> int:
    keys, values = puts.keys, puts.values
    size = sum(map(len, keys)) + sum(map(len, values))
    if table.bytes + size + ROW_OVERHEAD_BYTES * len(keys) > table.quota_bytes:
        return 0  # none of them may be over it if all were new rows
    table.put_run(keys, values, commit)
    flows, now = machine.flows, machine.time_ms
    if flows.is_tapped(table.name):
        for at, (key, value) in enumerate(zip(keys, values, strict=True)):
            flows.append_one(table.name, commit + at, key, value, now, client_id, puts.first + at, traceparent)
    return len(keys)
