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
from typing import TYPE_CHECKING, Final

from oncegate.flows.open_segment import GroupItem
from oncegate.gateway.machine.cascades import NO_SESSION
from oncegate.gateway.machine.commands import Op
from oncegate.gateway.machine.results import Ended
from oncegate.gateway.machine.row_ends import NO_OWNER, Life, Place
from oncegate.gateway.machine.tables import StoredRow, Table
from oncegate.rifl.errors import InvariantViolation
from oncegate.rifl.ids import CommitNumber

if TYPE_CHECKING:
    from oncegate.gateway.machine.machine import Machine

ENDED_AT_ONCE_MAX: Final = 4_096
"""Rows that the sessions which end in one entry may take with them."""
TTL_END: Final = "ttl end"
SESSION_END: Final = "session end"
"""Why a row was deleted, where it was no operation that did it."""


def life_of(op: Op, client_id: int, now_ms: int) -> Life | None:
    """Return what a write of a session at cluster time ``now_ms`` says of its row's end; None: nothing."""
    said = op.options
    if said is None or (not said.ttl_ms and not said.bound):
        return None
    return Life(now_ms + said.ttl_ms if said.ttl_ms else 0, client_id if said.bound else NO_OWNER, said.then)


def end_due(machine: Machine, rows: dict[str, list[str]]) -> list[Ended]:
    """End those of the rows, keys by table, whose time is over."""
    ended: list[Ended] = []
    for name, keys in rows.items():
        if name not in machine.tables and name not in machine.closing:
            continue
        table = machine.table_of(name)
        table.rows.look_ahead(keys)
        for key in keys:
            row = table.rows.get(key)
            if row is not None and 0 < row.ends_ms <= machine.time_ms:
                ended.append(_end(machine, table, key, row, NO_OWNER))
    return ended


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
    commit = machine.commit = CommitNumber(machine.commit + 1)
    table.change(key, row, None, commit, cause)
    then = "" if table.name in machine.closing else row.then
    if then:
        moved = machine.commit = CommitNumber(commit + 1)
        table.change(then, table.rows.get(then), StoredRow(moved, row.value), moved, cause)
        machine.join_changes(commit)
        if machine.flows.is_tapped(table.name):
            items = [GroupItem(commit, key, None), GroupItem(moved, then, row.value)]
            machine.flows.append_group(table.name, items, machine.time_ms, NO_SESSION, commit)
    elif machine.flows.is_tapped(table.name):
        machine.flows.append_one(table.name, commit, key, None, machine.time_ms, NO_SESSION, commit)
    return Ended(table.name, key, commit, owner, then)


def _by_table(places: Iterable[Place]) -> dict[str, list[str]]:
    keys: dict[str, list[str]] = {}
    for table, key in places:
        keys.setdefault(table, []).append(key)
    return keys
