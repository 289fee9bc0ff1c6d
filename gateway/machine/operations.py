"""Writes of sessions: what the rule lets run is executed, with its completion record, in request order.

Owns: the join of :mod:`oncegate.rifl.rule` (was it done before, may it be done?) and
:mod:`oncegate.gateway.machine.effects`. A code that an execution returns means that nothing happened and nothing is
remembered; a business refusal has a commit number and is remembered. Pure, deterministic and total.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Final, TypeAlias, assert_never, cast

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import transactions
from oncegate.gateway.machine.effects import write, write_range, write_run
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.results import AppliedPart, Operated, PartVerdict, Ranged
from oncegate.gateway.machine.row_rule import Remembered, holds, life_of, refused, row_after
from oncegate.gateway.machine.rows import StoredRow
from oncegate.gateway.machine.tables import Table
from oncegate.rifl.completion import FINGERPRINT_BYTES, CompletionRecord, RangeRecord
from oncegate.rifl.errors import Code
from oncegate.rifl.ids import CommitNumber, SequenceNumber
from oncegate.rifl.key_table import KeySlot
from oncegate.rifl.range_rule import NewPart, RefusedPart, ReplayPart, decide_range, decide_range_without_session
from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.rule import (
    OpVerdict,
    Refusal,
    Rejected,
    Replayed,
    Standing,
    decide_each,
    decide_without_session,
    is_new_run,
    standing,
)

# Looking a member up in its enum costs a tenth of what applying an operation does.
_INCREMENT: Final = c.OpKind.INCREMENT.value
_GET: Final = c.OpKind.GET.value
_How: TypeAlias = tuple[SequenceNumber, Standing, Callable[..., CompletionRecord | Code], int, str]
"""What :func:`oncegate.rifl.rule.decide_each` takes behind the operations."""


def operate(machine: Machine, command: c.Operate) -> Operated:
    """Decide and execute the operations of a request."""
    first_incomplete = command.first_incomplete
    session = machine.sessions.get(command.client_id)
    if session is None:
        return Operated(
            [Rejected(op.sequence, decide_without_session(op.sequence, first_incomplete)) for op in command.ops], 0
        )
    if session.tenant != command.tenant:  # case 3: neither executed nor answered from another's record
        return Operated([Rejected(op.sequence, Refusal.FORBIDDEN) for op in command.ops], 0)
    if command.client_id not in machine.touched:
        machine.touch_first(command.client_id)
    tracker = machine.trackers[command.client_id]
    stand = standing(session, command.epoch, machine.time_ms)
    how = first_incomplete, stand, partial(execute, machine), command.client_id, command.traceparent
    verdicts: Sequence[OpVerdict | AppliedPart]
    if command.in_order or c.Puts not in map(type, command.parts):
        verdicts, accepted = decide_each(tracker, command.ops, *how, in_order=command.in_order)
    else:
        verdicts, accepted = _decide_runs(machine, command, tracker, how)
    for verdict in verdicts:
        if type(verdict) is Replayed:
            machine.replayed += 1
    if accepted:
        machine.acknowledge(session, tracker, first_incomplete)
    return Operated(verdicts, session.left_ms(machine.time_ms))


def _decide_runs(
    machine: Machine, command: c.Operate, tracker: ResultTracker, how: _How
) -> tuple[Sequence[OpVerdict | AppliedPart], int]:
    """Decide and execute a request with runs of puts: a run that is new at once, as one by one it would be done."""
    first_incomplete, stand, *_ = how
    verdicts: list[OpVerdict | AppliedPart] = []
    accepted = 0
    for kind, group in groupby(command.parts, type):
        if kind is not c.Puts:
            told, more = decide_each(tracker, cast("list[c.Op | c.Transaction]", [*group]), *how)
            verdicts += told
            accepted += more
            continue
        for run in cast("Iterable[c.Puts]", group):
            done = 0
            if is_new_run(tracker, run.first, len(run.keys), first_incomplete, stand):
                done = execute_run(machine, command, tracker, run)
            if done:
                last = SequenceNumber(run.first + done - 1)
                verdicts.append(AppliedPart(run.first, last, CommitNumber(machine.commit - done + 1)))
                accepted += done
            if done < len(run.keys):
                told, more = decide_each(tracker, run.ops[done:], *how)
                verdicts += told
                accepted += more
    return verdicts, accepted


def execute(
    machine: Machine,
    client_id: int,
    tracker: ResultTracker | KeySlot,
    op: c.Op | c.Transaction,
    traceparent: str,
) -> CompletionRecord | Code:
    """Run a new operation or transaction: effects, record and flow items are one transition. A code means nothing
    happened.
    """
    if type(op) is not c.Op:  # isinstance takes five times as long, here and below
        return transactions.execute(machine, client_id, tracker, op, traceparent)  # type: ignore[arg-type]
    table = machine.tables.get(op.table)
    if table is None:
        return Code.NOT_FOUND
    life = None
    if op.options is not None:
        life = life_of(op.options, client_id, machine.time_ms)
        if life is not None and (code := table.check_life(op, life)) is not None:
            return code
    code = table.check(op)
    if code is not None:
        return code
    if table.kind == "stream" and machine.flows.is_full(op.table, table.quota_bytes, machine.time_ms):
        return Code.QUOTA
    commit: CommitNumber = machine.commit + 1  # type: ignore[assignment]  # the hot path spares a call
    row = table.row_before(op.key, commit)
    result: Remembered | None = None
    if op.test and not holds(op.test, op.operand, row):
        result = refused("CONDITION_FAILED", row)
    elif op.kind == _GET:
        result = Remembered(None, 0, None) if row is None else Remembered(None, row.version, row.value)
    else:
        after = row_after(op, row, commit, life)
        if type(after) is Remembered:
            result = after
        else:
            written: StoredRow | None = after  # type: ignore[assignment]  # it is not refused
            write(machine, commit, table, op.key, row, written, client_id, op.sequence, traceparent)
            if op.kind == _INCREMENT and written is not None:
                result = Remembered(None, commit, written.value)
    machine.commit = commit
    return tracker.record(op.sequence, op.fingerprint, commit, result, traceparent)


def execute_run(machine: Machine, command: c.Operate, tracker: ResultTracker, run: c.Puts) -> int:
    """Execute a run that is new, or the first puts of it that the table surely takes; returns how many."""
    table = machine.tables.get(run.table)
    if table is None:
        return 0
    commit, trace = CommitNumber(machine.commit + 1), command.traceparent
    done = write_run(machine, table, run.keys, run.values, command.client_id, run.first, trace)
    if done:
        prints = run.fingerprints[: done * FINGERPRINT_BYTES]
        tracker.record_run(RangeRecord(run.first, SequenceNumber(run.first + done - 1), commit, prints, trace))
    return done


def operate_range(machine: Machine, command: c.Range) -> Ranged:
    """Decide and execute a range, whose operations are judged in runs (:mod:`oncegate.rifl.range_rule`)."""
    first, prints = command.first, command.fingerprints
    last = first + len(prints) // FINGERPRINT_BYTES - 1
    session = machine.sessions.get(command.client_id)
    if session is None:
        return Ranged([*decide_range_without_session(first, last, command.first_incomplete)], 0)
    if session.tenant != command.tenant:
        return Ranged([RefusedPart(first, SequenceNumber(last), Refusal.FORBIDDEN)], 0)
    if command.client_id not in machine.touched:
        machine.touch_first(command.client_id)
    table = machine.tables.get(command.table)
    tracker = machine.trackers[command.client_id]
    stand = standing(session, command.epoch, machine.time_ms)
    parts: list[PartVerdict] = []
    for part in decide_range(tracker, first, prints, command.first_incomplete, stand):
        match part:
            case NewPart():
                # A refusal of the part, not of the range: what is a replay beside it was applied.
                refusal = _refusal_of(machine, table)
                parts.append(
                    execute_part(machine, command, tracker, part)
                    if refusal is None
                    else RefusedPart(part.first, part.last, refusal)
                )
            case ReplayPart():
                machine.replayed += part.last - part.first + 1
                parts.append(part)
            case RefusedPart():
                parts.append(part)
            case _:
                assert_never(part)
    if not all(isinstance(part, RefusedPart) for part in parts):
        machine.acknowledge(session, tracker, command.first_incomplete)
    return Ranged(parts, session.left_ms(machine.time_ms))


def _refusal_of(machine: Machine, table: Table | None) -> Refusal | None:
    """Say why a table takes no range now, or None."""
    if table is None:
        return Refusal.NOT_FOUND
    if table.kind != "stream":
        return Refusal.BAD_REQUEST
    return Refusal.QUOTA if machine.flows.is_full(table.name, table.quota_bytes, machine.time_ms) else None


def execute_part(machine: Machine, command: c.Range, tracker: ResultTracker, part: NewPart) -> AppliedPart:
    """Execute a part of a range that is new: one record, and one item of each flow, which nobody looks into."""
    count, offset = part.last - part.first + 1, part.first - command.first
    commit, low = CommitNumber(machine.commit + 1), offset * FINGERPRINT_BYTES
    prints = command.fingerprints[low : low + count * FINGERPRINT_BYTES]
    tracker.record_range(RangeRecord(part.first, part.last, commit, prints, command.traceparent))
    write_range(machine, command, part.first, count)
    return AppliedPart(part.first, part.last, commit)
