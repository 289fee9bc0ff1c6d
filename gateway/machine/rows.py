"""Rows of tables, how they are kept, and how a change of one is told. Pure, part of the state machine.

Owns: what a row is, and :class:`RowStore`, behind which rows live: in memory here, on disk in
:mod:`oncegate.gateway.machine.state.rows`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

import msgspec

from oncegate.gateway.machine.row_ends import NO_OWNER, Life
from oncegate.rifl.errors import InvariantViolation
from oncegate.rifl.ids import CommitNumber

BYTES_MAX: Final = 2**63
"""Stands for no bound on the bytes of a page."""


class StoredRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row: the commit number of its last write, its value as JSON text, and when it ends; None for one that stays."""

    version: CommitNumber
    value: bytes
    life: Life | None = None

    @property
    def ends_ms(self) -> int:
        """Cluster time at which it ends, 0 for never."""
        return 0 if self.life is None else self.life.ends_ms

    @property
    def owner(self) -> int:
        """Client id of the session that it ends with, 0 for none."""
        return NO_OWNER if self.life is None else self.life.owner

    @property
    def then(self) -> str:
        """Key to which it is moved at its end, empty for a row that is deleted then."""
        return "" if self.life is None else self.life.then


RowChange: TypeAlias = tuple[int, int, str, str, StoredRow | None, StoredRow | None, str]
"""A change of a resident row: commit number, that of the last change which took effect together with it, table, key,
the row before, the row after, and why it was changed: empty for an operation.

A plain tuple: one is made for each write.
"""


class ChangeRun(NamedTuple):
    """Changes of one table by puts under adjacent commit numbers from ``first`` on; columns of equal length.

    ``size``: bytes of their keys and of the values before and after.
    """

    first: CommitNumber
    table: str
    keys: Sequence[str]
    before: Sequence[StoredRow | None]
    after: Sequence[StoredRow]
    size: int

    def each(self) -> list[RowChange]:
        """Return the changes one by one."""
        return [
            (after.version, after.version, self.table, key, before, after, "")
            for key, before, after in zip(self.keys, self.before, self.after, strict=True)
        ]


def each_change(changes: Iterable[RowChange | ChangeRun]) -> Iterator[RowChange]:
    """Yield changes one by one."""
    for change in changes:
        if type(change) is ChangeRun:
            yield from change.each()
        else:
            yield change  # type: ignore[misc]


class RowStore(Protocol):
    """Keyed rows of one table, in key order where asked for it."""

    def get(self, key: str) -> StoredRow | None:
        """Return the row, or None."""

    def look_ahead(self, keys: list[str]) -> None:
        """Prepare for a look at each of these rows before anything else is done; may do nothing."""

    def put(self, key: str, row: StoredRow, before: StoredRow | None) -> None:
        """Insert, or replace ``before``, which is what :meth:`get` has just returned."""

    def put_run(self, keys: Sequence[str], rows: Sequence[StoredRow]) -> list[StoredRow | None]:
        """Insert or replace one row after the other; returns what was there before each of them.

        Raises:
            InvariantViolation: what is there has no smaller version.
        """

    def delete(self, key: str, before: StoredRow) -> None:
        """Remove a row, which is what :meth:`get` has just returned."""

    def page(
        self, low: str, high: str | None, limit: int, bytes_max: int = BYTES_MAX, *, reverse: bool = False
    ) -> list[tuple[str, StoredRow]]:
        """Return up to ``limit`` rows from ``low`` on, below ``high`` (None: to the end), in key order or against it.

        It ends earlier with the row whose value takes the values together over ``bytes_max``.
        """

    def __len__(self) -> int:
        """Return how many rows there are."""

    def items(self) -> Iterator[tuple[str, StoredRow]]:
        """All rows, in key order."""


class DictRows:
    """A :class:`RowStore` in memory. Key order is built when first asked for and kept up from then on."""

    __slots__ = ("_order", "_rows", "get")

    def __init__(self) -> None:
        self._rows: dict[str, StoredRow] = {}
        self._order: list[str] | None = None
        self.get = self._rows.get

    def __len__(self) -> int:
        return len(self._rows)

    def look_ahead(self, keys: list[str]) -> None:
        """Do nothing: a look costs nothing."""

    def delete(self, key: str, before: StoredRow) -> None:
        """Remove a row."""
        del self._rows[key]
        if self._order is not None:
            del self._order[bisect_left(self._order, key)]

    def put(self, key: str, row: StoredRow, before: StoredRow | None) -> None:
        """Insert or replace."""
        if before is None and self._order is not None:
            insort(self._order, key)
        self._rows[key] = row

    def put_run(self, keys: Sequence[str], rows: Sequence[StoredRow]) -> list[StoredRow | None]:
        """Insert or replace one after the other."""
        stored, order = self._rows, self._order
        found: list[StoredRow | None] = []
        for key, row in zip(keys, rows, strict=True):
            before = stored.get(key)
            if before is None:
                if order is not None:
                    insort(order, key)
            elif before.version >= row.version:
                raise not_above(before, row)
            stored[key] = row
            found.append(before)
        return found

    def page(
        self, low: str, high: str | None, limit: int, bytes_max: int = BYTES_MAX, *, reverse: bool = False
    ) -> list[tuple[str, StoredRow]]:
        """Return a page in key order or against it; the first call sorts all keys once."""
        order = self._order
        if order is None:
            order = self._order = sorted(self._rows)
        start, end = bisect_left(order, low), len(order) if high is None else bisect_left(order, high)
        page: list[tuple[str, StoredRow]] = []
        size = 0
        for at in range(end - 1, start - 1, -1) if reverse else range(start, end):
            if len(page) == limit or size > bytes_max:
                break
            row = self._rows[order[at]]
            page.append((order[at], row))
            size += len(row.value)
        return page

    def items(self) -> Iterator[tuple[str, StoredRow]]:
        """All rows, in key order."""
        return ((key, self._rows[key]) for key in sorted(self._rows))


def not_above(before: StoredRow, after: StoredRow) -> InvariantViolation:
    """Return the fault of a write that finds a row which its own commit number does not follow."""
    return InvariantViolation(f"commit {after.version} finds a row that {before.version} has written")


def prefix_end(prefix: str) -> str | None:
    """Return the smallest text above all that begin with ``prefix``; None if every text that is above it does."""
    for at in range(len(prefix) - 1, -1, -1):
        if prefix[at] != "\U0010ffff":
            after = ord(prefix[at]) + 1
            return prefix[:at] + chr(0xE000 if after == 0xD800 else after)  # between these are surrogates, no text
    return None
