"""Planted bugs of rows that end. Read next: :mod:`oncegate.proof.mutants.mutant`."""

from __future__ import annotations

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import ending, operations, session_handlers
from oncegate.gateway.machine.apply import HANDLERS
from oncegate.gateway.machine.results import Endings
from oncegate.gateway.machine.row_ends import RowEnds
from oncegate.gateway.machine.row_rule import row_after
from oncegate.gateway.machine.rows import StoredRow
from oncegate.proof.mutants.mutant import plants
from oncegate.rifl.rule import Replayed, decide_each

_IN_MEMORY = {"save_every": None}
_due = RowEnds.due


def _due_early(ends, now_ms, limit):
    return _due(ends, now_ms + 1_000, limit)


@plants("row-ends-early", "holds", (HANDLERS, c.EndRows), also=((RowEnds, "due", _due_early),))
def _ends_unseen(machine, command):
    """A row is ended because somebody said so, without a look at its end."""
    ended = [
        ending._end(machine, machine.tables[name], key, row, 0)
        for name, keys in command.rows.items()
        for key in keys
        if (row := machine.tables[name].rows.get(key)) is not None
    ]
    return Endings(ended)


@plants("row-never-ends", "holds", (RowEnds, "due"))
def _nothing_due(ends, now_ms, limit):
    """Nobody notices that a row's time is over."""
    return {}


@plants("replay-revives-row", "holds", (operations, "decide_each"))
def _revives(tracker, operations, first_incomplete, stand, execute, client_id, traceparent, *, in_order=False):
    """The replay of a write puts its row back, although it has ended meanwhile."""
    done = decide_each(tracker, operations, first_incomplete, stand, execute, client_id, traceparent, in_order=in_order)
    tables = execute.args[0].tables
    for op, verdict in zip(operations, done[0], strict=True):
        written = type(verdict) is Replayed and verdict.record.result is None and op.value is not None
        if written and tables[op.table].rows.get(op.key) is None:
            row = StoredRow(verdict.record.commit, op.value)
            tables[op.table].change(op.key, None, row, verdict.record.commit)
    return done


@plants("bound-row-outlives-session", "holds", (session_handlers, "end_bound"), fixed=_IN_MEMORY)
def _leaves_bound(machine, client_id):
    """A session ends, and the rows that are bound to it stay."""
    return []


@plants("put-keeps-the-end", "holds", (operations, "row_after"))
def _keeps_end(op, row, commit, life=None):
    """A put that says nothing of an end leaves the one that the row had, so that a row ends that was to stay."""
    after = row_after(op, row, commit, life)
    if op.kind != c.OpKind.PUT or row is None or row.life is None or life is not None:
        return after
    return StoredRow(after.version, after.value, row.life)
