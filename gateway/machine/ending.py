"""What ends rows: their time, or their session. Pure, deterministic and total, part of the state machine.

Owns: the deletions at the end, and how many of them one entry takes. The log alone ends a row; until then it is there
for everybody. Each end is a delete with a commit number of its own, which goes into the table's flows. A row that says
where it goes then (:attr:`oncegate.gateway.machine.row_ends.Life.then`) is put there under the next commit number, as a
row that stays, whatever is there; of a dropped table it is deleted.

- A row's time is over: the leader proposes what :meth:`oncegate.gateway.machine.row_ends.RowEnds.due` finds, and each
  row is looked at again when that is applied. A write that came first has moved the end, or taken it away.
- A row's session ends: its rows end in the same entry, so nobody ever sees a row bound to a session that is gone. So
  that an entry stays short, the sessions that end in it take ``ENDED_AT_ONCE_MAX`` rows with them at most, which is
  more than one session may have. A reaping leaves the others to the next one; a close is refused for a moment.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.effects import NO_SESSION, write, write_together
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.results import Ended, Endings
from oncegate.gateway.machine.row_ends import NO_OWNER, Life, Place
from oncegate.gateway.machine.rows import StoredRow
from oncegate.gateway.machine.tables import Table
from oncegate.rifl.errors import InvariantViolation
from oncegate.rifl.ids import CommitNumber

TTL_END: Final = "ttl end"
SESSION_END: Final = "session end"
"""Why a row was deleted, where it was no operation that did it."""


def end_rows(machine: Machine, command: c.EndRows) -> Endings:
    """End those of the rows whose time is over."""
    ended: list[Ended] = []
    for name, keys in command.rows.items():
        if name not in machine.tables and name not in machine.closing:
            continue
        table = machine.table_of(name)
        table.rows.look_ahead(keys)
        for key in keys:
            row = table.rows.get(key)
            if row is not None and 0 < row.ends_ms <= machine.time_ms:
                ended.append(_end(machine, table, key, row, NO_OWNER))
    return Endings(ended)


def takes_rows(machine: Machine, client_id: int) -> bool:
    """Tell whether a session can end in this entry: whether the entry has room for its rows."""
    return machine.ends.bound(client_id) <= machine.ends_left


def end_bound(machine: Machine, client_id: int) -> list[Ended]:
    """End the rows that are bound to a session; it ends in this entry."""
    places = machine.ends.bound_places(client_id)
    machine.ends_left -= len(places)
    ended: list[Ended] = []
    for name, keys in _by_table(places).items():
        table = machine.table_of(name)
        table.rows.look_ahead(keys)
        for key in keys:
            row = table.rows.get(key)
            if row is not None and row.owner == client_id:  # else another one of them has been moved there
                ended.append(_end(machine, table, key, row, client_id))
    return ended


def begin_anew(machine: Machine, slept_ms: int) -> None:
    """Make rows fit a state without sessions, whose time has moved on by ``slept_ms``.

    Rows bound to a session end now: no longer bound, they are due. Others keep the time that they had left.
    """
    for name, key in sorted(machine.ends.places()):
        table = machine.table_of(name)
        row = table.rows.get(key)
        life = None if row is None else row.life
        if row is None or life is None:
            raise InvariantViolation(f"row {name}/{key} is filed as one that ends")
        ends_ms = machine.time_ms if life.owner else life.ends_ms + slept_ms
        table.change(key, row, StoredRow(row.version, row.value, Life(ends_ms, NO_OWNER, life.then)), row.version)


def _end(machine: Machine, table: Table, key: str, row: StoredRow, owner: int) -> Ended:
    cause = SESSION_END if owner else TTL_END
    commit = CommitNumber(machine.commit + 1)
    then = "" if table.name in machine.closing else row.then
    if then:
        moved = machine.commit = CommitNumber(commit + 1)
        there = StoredRow(moved, row.value)
        writes = [(commit, table, key, row, None, None), (moved, table, then, table.rows.get(then), there, row.value)]
        write_together(machine, commit, writes, NO_SESSION, commit, cause=cause)
    else:
        write(machine, commit, table, key, row, None, NO_SESSION, commit, cause=cause)
    return Ended(table.name, key, commit, owner, then)


def _by_table(places: Iterable[Place]) -> dict[str, list[str]]:
    keys: dict[str, list[str]] = {}
    for table, key in places:
        keys.setdefault(table, []).append(key)
    return keys
