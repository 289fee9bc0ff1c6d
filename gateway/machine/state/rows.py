"""Where a resident table's rows are found: new rows in memory, rows being saved, rows on disk.

Owns: the order of the three, the exact count, and pages across them. Event loop's thread only, except for
:class:`FrozenRows`, which is immutable.

A write goes into a dict, so hot keys cost what they cost in memory. A save freezes that dict and starts an empty
one; the frozen one stays in front of the store, durable or not, until the next freeze, as a cache of what was
written last. A deleted row is None in both dicts, so that what lies below does not show through.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple

from oncegate.gateway.machine.rows import BYTES_MAX, StoredRow, not_above
from oncegate.gateway.machine.state.layout import ROWS, decode_row, encode_rows
from oncegate.gateway.machine.state.order import in_blocks
from oncegate.gateway.machine.state.store import RocksStore
from oncegate.rifl.ids import CommitNumber

FRESH_ROW_BYTES: Final = 300
"""What a row in memory costs beside key and value: objects, dict entry, its place in a run."""
COLUMN_CELLS: Final = 64
"""Writing so many takes less than a tenth of a millisecond."""
RUN_KEYS: Final = 4096
"""Keys are put in order by runs of this many, as they come: sorting one takes less than a millisecond."""
_RUN_MASK: Final = RUN_KEYS - 1
_BELOW: Final = StoredRow(CommitNumber(-1), b"")
"""Stands for "not here, look below"; compared by identity."""
_UNREAD: Final = b"unread"
"""Stands for "not read ahead"; compared by identity."""

CellColumns = tuple[list[bytes], list[bytes | None]]
"""Adjacent cells: their keys, and their values, None for a deletion."""


class DirtyTally:
    """Rows written since the last freeze, over all tables, and the memory they take in bytes, roughly."""

    __slots__ = ("bytes", "rows")

    def __init__(self) -> None:
        self.bytes = 0
        self.rows = 0


class FrozenRows(NamedTuple):
    """What one save writes of one table; immutable. None is a deleted row."""

    table: int
    rows: dict[str, StoredRow | None]
    runs: list[list[str]]

    def columns(self) -> Iterator[CellColumns]:
        """Yield all of it in key order, ``COLUMN_CELLS`` at a time at most: most is done in C."""
        look_up, prefixed = self.rows.__getitem__, ROWS.under(self.table).__add__
        for block in in_blocks([*self.runs, _tail(self.rows)]):
            for start in range(0, len(block), COLUMN_CELLS):
                keys = block[start : start + COLUMN_CELLS]
                yield list(map(prefixed, map(str.encode, keys))), encode_rows(list(map(look_up, keys)))


class StoredRows:
    """A :class:`oncegate.gateway.machine.rows.RowStore` over a store.

    Args:
        table: the table's number.
        store: holds what was saved.
        tally: counts what is new, for all tables together.
        count: how many rows the store holds of this table.
    """

    __slots__ = (
        "_ahead",
        "_count",
        "_fresh",
        "_frozen",
        "_frozen_runs",
        "_prefix",
        "_runs",
        "_store",
        "_table",
        "_tally",
    )

    def __init__(self, table: int, store: RocksStore, tally: DirtyTally, count: int = 0) -> None:
        self._table = table
        self._prefix = ROWS.under(table)
        self._store = store
        self._tally = tally
        self._count = count
        self._fresh: dict[str, StoredRow | None] = {}
        self._runs: list[list[str]] = []
        self._frozen: dict[str, StoredRow | None] = {}
        self._frozen_runs: list[list[str]] = []
        self._ahead: dict[str, bytes | None] = {}

    def __len__(self) -> int:
        return self._count

    def look_ahead(self, keys: list[str]) -> None:
        """Read the rows that are about to be used from the store at once: three times cheaper than one by one."""
        fresh, frozen = self._fresh, self._frozen
        below = keys
        if not (fresh.keys().isdisjoint(keys) and frozen.keys().isdisjoint(keys)):
            below = [key for key in keys if key not in fresh and key not in frozen]
        self._ahead = {}
        if len(below) > 1:
            found = self._store.values(list(map(self._prefix.__add__, map(str.encode, below))))
            self._ahead = dict(zip(below, found, strict=True))

    def get(self, key: str) -> StoredRow | None:
        """Return the row, or None; raises StateCorrupt when its block on disk has changed."""
        row = self._fresh.get(key, _BELOW)
        if row is not _BELOW:
            return row
        row = self._frozen.get(key, _BELOW)
        if row is not _BELOW:
            return row
        value = self._ahead.get(key, _UNREAD)
        if value is _UNREAD:
            value = self._store.value(self._prefix + key.encode())
        return None if value is None else decode_row(value)

    def put(self, key: str, row: StoredRow, before: StoredRow | None) -> None:
        """Insert, or replace ``before``."""
        fresh, tally = self._fresh, self._tally
        size = len(fresh)
        fresh[key] = row
        if len(fresh) != size:
            tally.rows += 1
            tally.bytes += len(key) + len(row.value) + FRESH_ROW_BYTES
            if not len(fresh) & _RUN_MASK:
                self._close_run()
        else:
            tally.bytes += len(row.value) if before is None else len(row.value) - len(before.value)
        if before is None:
            self._count += 1

    def put_run(self, keys: Sequence[str], rows: Sequence[StoredRow]) -> list[StoredRow | None]:
        """Insert or replace one after the other, as :meth:`get` and :meth:`put` do."""
        if (below := self._below(keys)) is not None:
            self._put_new(keys, rows, below)
            return below
        fresh, tally = self._fresh, self._tally
        found: list[StoredRow | None] = []
        for key, row in zip(keys, rows, strict=True):
            before = fresh.get(key, _BELOW)
            if before is _BELOW:
                before = self.get(key)
                if before is not None and before.version >= row.version:
                    raise not_above(before, row)
                self.put(key, row, before)
            else:
                if before is None:
                    self._count += 1
                    tally.bytes += len(row.value)
                else:
                    if before.version >= row.version:
                        raise not_above(before, row)
                    tally.bytes += len(row.value) - len(before.value)
                fresh[key] = row
            found.append(before)
        return found

    def _below(self, keys: Sequence[str]) -> list[StoredRow | None] | None:
        """Return the rows if all of them were read ahead, are different, and none is in memory; else None.

        What was read ahead was not in memory then, and has come there only by an earlier write of the same entry.
        """
        if not self._fresh.keys().isdisjoint(keys):
            return None
        try:
            values = list(map(self._ahead.__getitem__, keys))
        except KeyError:
            return None
        if len(set(keys)) != len(keys):
            return None
        if values.count(None) == len(values):
            return values  # type: ignore[return-value]  # nothing but None
        return [None if value is None else decode_row(value) for value in values]

    def _put_new(self, keys: Sequence[str], rows: Sequence[StoredRow], below: list[StoredRow | None]) -> None:
        """Put rows of which none is in memory, as :meth:`put` does one by one; ``below``: what the store has."""
        absent = below.count(None)
        if absent != len(below):
            for before, row in zip(below, rows, strict=True):
                if before is not None and before.version >= row.version:
                    raise not_above(before, row)
        fresh, tally, start = self._fresh, self._tally, 0
        while start < len(keys):
            stop = start + RUN_KEYS - (len(fresh) & _RUN_MASK)
            fresh.update(zip(keys[start:stop], rows[start:stop], strict=True))
            if not len(fresh) & _RUN_MASK:
                self._close_run()
            start = stop
        tally.rows += len(keys)
        tally.bytes += sum(map(len, keys)) + sum([len(row.value) for row in rows]) + FRESH_ROW_BYTES * len(keys)
        self._count += absent

    def delete(self, key: str, before: StoredRow) -> None:
        """Remove ``before``."""
        fresh, tally = self._fresh, self._tally
        size = len(fresh)
        fresh[key] = None
        if len(fresh) != size:
            tally.rows += 1
            tally.bytes += len(key) + FRESH_ROW_BYTES
            if not len(fresh) & _RUN_MASK:
                self._close_run()
        else:
            tally.bytes -= len(before.value)
        self._count -= 1

    def _close_run(self) -> None:
        self._runs.append(sorted(islice(reversed(self._fresh), RUN_KEYS)))

    def page(
        self, low: str, high: str | None, limit: int, bytes_max: int = BYTES_MAX, *, reverse: bool = False
    ) -> list[tuple[str, StoredRow]]:
        """Return up to ``limit`` rows from ``low`` on, below ``high`` (None: all above), in key order or against it."""
        page: list[tuple[str, StoredRow]] = []
        if high is not None and high <= low:
            return page
        size = 0
        for key, row in self._merged(low, high, reverse=reverse):
            if len(page) == limit or size > bytes_max:
                break
            page.append((key, row))
            size += len(row.value)
        return page

    def items(self) -> Iterator[tuple[str, StoredRow]]:
        """All rows, in key order; not to be mixed with writes."""
        return self._merged("", None, reverse=False)

    def _merged(self, low: str, high: str | None, *, reverse: bool) -> Iterator[tuple[str, StoredRow]]:
        last: str | None = None
        older = -1 if reverse else 1  # of equal keys the newest layer comes first and hides the others
        for key, _, row in merge(
            _within(0, self._fresh, self._runs, low, high, reverse=reverse),
            _within(older, self._frozen, self._frozen_runs, low, high, reverse=reverse),
            self._stored(2 * older, low, high, reverse=reverse),
            reverse=reverse,
        ):
            if key != last:
                last = key
                if row is not None:
                    yield key, row

    def _stored(
        self, layer: int, low: str, high: str | None, *, reverse: bool
    ) -> Iterator[tuple[str, int, StoredRow | None]]:
        prefix, skip = self._prefix, len(self._prefix)
        end = None if high is None else high.encode()
        scan = self._store.scan_back if reverse else self._store.scan
        for key, value in scan(prefix, low.encode(), end):
            yield key[skip:].decode(), layer, decode_row(value)

    def freeze(self) -> tuple[FrozenRows, dict[str, StoredRow | None]] | None:
        """Hand over the new rows and start an empty dict; None if there are none. O(1).

        Returns:
            What to save, and the dict frozen before, which this object no longer uses. Call it only when that dict is
            durable: it then no longer hides what the store holds.
        """
        if not self._fresh:
            return None
        retired = self._frozen
        self._frozen, self._frozen_runs = self._fresh, self._runs
        self._fresh, self._runs = {}, []
        self._ahead = {}
        return FrozenRows(self._table, self._frozen, self._frozen_runs), retired


def _tail(rows: dict[str, StoredRow | None]) -> list[str]:
    """Return in order the keys that no run holds yet: the newest ones, fewer than RUN_KEYS."""
    return sorted(islice(reversed(rows), len(rows) & _RUN_MASK))


def _within(
    layer: int,
    rows: dict[str, StoredRow | None],
    runs: Iterable[list[str]],
    low: str,
    high: str | None,
    *,
    reverse: bool,
) -> Iterator[tuple[str, int, StoredRow | None]]:
    parts = [_slice(run, low, high, reverse=reverse) for run in (*runs, _tail(rows))]
    return ((key, layer, rows[key]) for key in merge(*parts, reverse=reverse))


def _slice(run: list[str], low: str, high: str | None, *, reverse: bool) -> Iterator[str]:
    start, end = bisect_left(run, low), len(run) if high is None else bisect_left(run, high)
    if reverse:
        return (run[at] for at in range(end - 1, start - 1, -1))
    return islice(run, start, end)
