"""Runs of plain puts: what travels in columns, and what a run does at once. Pure, part of the state machine.

Owns: which operations of a request become columns in the log entry (:class:`oncegate.gateway.machine.commands.Puts`),
and their effect: rows, changes, flow items and one completion record for a run, the same as if its puts came one by
one. That they are all new says :func:`oncegate.rifl.rule.is_new_run`; a run of which that is not sure is not executed
here, its operations are decided and executed one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import msgspec

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
_Part: TypeAlias = c.Op | c.Transaction | c.Puts


def in_columns(command: c.Command) -> c.Command:
    """Return a request with its runs of plain puts as columns, if they are half of it or more; else as it is."""
    if type(command) is not c.Operate or len(command.parts) < RUN_MIN or command.in_order:
        return command
    parts: list[c.Op | c.Transaction | c.Puts] = []
    in_runs = 0
    for run in _runs(command.parts):
        if len(run) < RUN_MIN:
            parts += run
            continue
        in_runs += len(run)
        puts = cast(list[c.Op], run)
        prints = struct.pack(f">{len(puts)}Q", *[op.fingerprint for op in puts])
        values = [op.value or b"null" for op in puts]
        parts.append(c.Puts(puts[0].sequence, puts[0].table, prints, [op.key for op in puts], values))
    return command if 2 * in_runs < len(command.parts) else msgspec.structs.replace(command, parts=parts)


def _runs(parts: Sequence[_Part]) -> Iterator[Sequence[_Part]]:
    """Cut at each part but a plain put that goes on where the one before it ends: on its table, under the next number.

    What is no plain put is alone.
    """
    table: str | None = None
    start = following = 0
    for at, one in enumerate(parts):
        if type(one) is c.Op and one.kind == _PUT and not one.test and one.options is None:
            if one.table == table and one.sequence == following:
                following += 1
                continue
            before, table, following = start, one.table, one.sequence + 1
        else:
            before, table = start, None
        if at:
            yield parts[before:at]
        start = at
    yield parts[start:]


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
