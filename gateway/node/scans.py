"""Reading many rows at one commit number: pages of a table, however the table changes between them.

Owns: how an older state is made of the present one and the history behind it, and the pieces in which that is done. A
page takes the rows as they are now, takes back what has changed since its commit number, and is never mixed. Knows no
HTTP. Read next: :mod:`oncegate.gateway.node.change_history`.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.rows import StoredRow
from oncegate.gateway.machine.tables import Table
from oncegate.gateway.node.change_history import ChangeHistory, HistoryExceeded
from oncegate.gateway.node.reads import no_table
from oncegate.rifl.errors import Code, OncegateError

SLICE_CHANGES: Final = 4_000
"""Changes that are taken back before others have their turn: about a millisecond."""
UNDONE_MAX: Final = 4_000
"""Rows that a page takes back at most; with more it ends earlier."""


class KeyRange(NamedTuple):
    """Keys from ``low`` on, below ``high`` (None: all above), in order or against it."""

    low: str
    high: str | None
    reverse: bool = False

    def has(self, key: str) -> bool:
        """Whether a key is in it."""
        return key >= self.low and (self.high is None or key < self.high)

    def after(self, key: str) -> KeyRange:
        """Return what is left of it behind a key."""
        return self._replace(high=key) if self.reverse else self._replace(low=key + "\0")  # no key has a NUL


class RowPage(NamedTuple):
    """Rows at a commit number; ``rest`` is where the next page goes on, None at the end."""

    rows: list[tuple[str, StoredRow]]
    commit: int
    rest: KeyRange | None


def resident(machine: Machine, name: str) -> Table:
    """Return a resident table; raises NOT_FOUND or BAD_REQUEST."""
    table = machine.tables.get(name)
    if table is None:
        raise no_table(name)
    if table.kind != "resident":
        detail = "rows of a stream table are read by key, or in order from its flow"
        raise OncegateError(Code.BAD_REQUEST, f"{name} is a stream table: {detail}")
    return table


async def page(
    machine: Machine,
    history: ChangeHistory,
    name: str,
    wanted: KeyRange,
    commit: int | None,
    limit: int,
    bytes_max: int,
) -> RowPage:
    """Return up to ``limit`` rows of a resident table as they were at a commit number (None: now).

    A number inside a transition means its end: the page is of that.

    It may end before ``limit``: with the row that takes the values over ``bytes_max``, or where many rows are younger
    than ``commit``. Only a page without ``rest`` is the last.

    Raises:
        OncegateError: NOT_FOUND, BAD_REQUEST.
        HistoryExceeded: what has changed since ``commit`` is not known any more.
    """
    _check_since(resident(machine, name), commit)
    undone: dict[str, StoredRow | None] = {}
    at = reached = history.last if commit is None else history.end_of(commit)
    # Only keys that this page can reach are looked at: up to where as many rows are now as it takes.
    window, edge = _narrowed(machine, name, wanted, limit, bytes_max)
    while reached < history.last:
        changes, reached = history.since(reached, SLICE_CHANGES)
        for _, _, table, key, before, _, _ in changes:
            if table == name and window.has(key):
                undone.setdefault(key, before)
        if len(undone) > UNDONE_MAX:
            nearest = sorted(undone, reverse=wanted.reverse)[: UNDONE_MAX // 2]
            window, edge = _up_to(wanted, nearest[-1]), nearest[-1]
            undone = {key: undone[key] for key in nearest}
        if reached < history.last:
            await asyncio.sleep(0)
    # Nothing waits from here on: the rows and what is undone are of one moment.
    table_now = resident(machine, name)
    _check_since(table_now, commit)
    now = table_now.rows.page(window.low, window.high, limit + 1, bytes_max, reverse=wanted.reverse)
    if len(now) > limit or sum(len(row.value) for _, row in now) > bytes_max:
        edge = now[-1][0]
        window = _up_to(wanted, edge)
    found = {key: row for key, row in now if key not in undone}
    found.update((key, row) for key, row in undone.items() if row is not None and window.has(key))
    chosen: list[tuple[str, StoredRow]] = []
    size = 0
    for key in sorted(found, reverse=wanted.reverse):
        row = found[key]
        size += len(row.value)
        if chosen and (len(chosen) == limit or size > bytes_max):
            return RowPage(chosen, at, wanted.after(chosen[-1][0]))
        chosen.append((key, row))
    return RowPage(chosen, at, None if edge is None else wanted.after(edge))


def _narrowed(machine: Machine, name: str, wanted: KeyRange, limit: int, bytes_max: int) -> tuple[KeyRange, str | None]:
    """Return the part of a range that a page can reach, and the key that it ends with; None: it is all of it."""
    rows = resident(machine, name).rows
    now = rows.page(wanted.low, wanted.high, limit + 1, bytes_max, reverse=wanted.reverse)
    if len(now) <= limit and sum(len(row.value) for _, row in now) <= bytes_max:
        return wanted, None
    return _up_to(wanted, now[-1][0]), now[-1][0]


def _check_since(table: Table, commit: int | None) -> None:
    """Refuse a commit number at which the name was another table's, which was dropped; raises HistoryExceeded."""
    if commit is not None and commit < table.since:
        raise HistoryExceeded(commit, table.since)


def _up_to(wanted: KeyRange, key: str) -> KeyRange:
    """Return the part of a range that ends with a key, this one included."""
    return KeyRange(key, wanted.high) if wanted.reverse else KeyRange(wanted.low, key + "\0")
