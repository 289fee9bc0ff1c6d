"""Which rows end by themselves, and when. Pure, part of the state machine.

Owns: the index of rows with a time to live or an owner, its bounds, and what has changed of it since the last save. A
row says of itself when it ends and whose it is (:class:`oncegate.gateway.machine.rows.StoredRow`); the index finds it
without a look at all rows, and holds no row that does not end. What happens at the end is
:mod:`oncegate.gateway.machine.ending`.

Invariant: the index holds a row if, and only if, the row ends, under the end and the owner that it has. Whoever is
about to break it gets an InvariantViolation.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final, NamedTuple

from oncegate.rifl.errors import InvariantViolation

BUCKET_MS: Final = 100
"""Width of a bucket: how late past its end a row may be noticed. Early is impossible."""
ENDING_ROWS_MAX: Final = 1_000_000
"""Rows that end, of all tables."""
ENDING_ROWS_TABLE_MAX: Final = 500_000
"""Rows that end, of one table."""
BOUND_ROWS_MAX: Final = 1_024
"""Rows that are bound to one session."""
ENDED_AT_ONCE_MAX: Final = 4_096
"""Rows that the sessions which end in one entry may take with them."""
NO_OWNER: Final = 0
"""Client id of no session."""
_EMPTY_KEPT: Final = 4_096
"""Empty buckets may stay filed up to this number, and beyond it up to half of all."""

Place = tuple[str, str]
"""Names of a table and a row."""


class Life(NamedTuple):
    """When a row ends: at ``ends_ms`` of cluster time, 0 for never, and with the session ``owner``, 0 for none.

    ``then``: the key to which it is moved at its end; empty for a row that is deleted. The index need not know it.
    """

    ends_ms: int
    owner: int
    then: str = ""


class RowEnds:
    """The rows that end; O(1) a change. Equal on equal replicas, but for the order of what :meth:`due` finds.

    ``saved``: somebody saves the state and takes what has changed. ``used``: whether there has ever been one, in this
    process.
    """

    __slots__ = ("_buckets", "_changes", "_count", "_empty", "_order", "_owned", "_saved", "used")

    def __init__(self, *, saved: bool = False) -> None:
        self._saved = saved
        self.used = False
        self._buckets: dict[int, dict[Place, None]] = {}
        self._order: list[int] = []  # heap of the buckets' numbers, each once
        self._empty = 0
        self._owned: dict[int, dict[Place, None]] = {}
        self._count = 0
        self._changes: dict[str, dict[str, Life | None]] = {}

    def __len__(self) -> int:
        """Return how many rows end."""
        return self._count

    def owners(self) -> Iterable[int]:
        """Return the sessions that rows are bound to."""
        return self._owned.keys()

    def bound(self, client_id: int) -> int:
        """Return how many rows are bound to a session."""
        return len(self._owned.get(client_id, ()))

    def bound_places(self, client_id: int) -> list[Place]:
        """Return the rows that are bound to a session, in the order of their names."""
        return sorted(self._owned.get(client_id, ()))

    def places(self) -> set[Place]:
        """Return all rows that end; takes time in proportion to their number."""
        found = {place for bucket in self._buckets.values() for place in bucket}
        return found.union(*self._owned.values())

    def change(self, place: Place, before: Life | None, after: Life | None) -> None:
        """Note that a row was written or deleted that ended before, or ends from now on."""
        if before is not None:
            self._remove(place, before)
        if after is not None:
            self.put_back(place, after)
        if self._saved:
            table, key = place
            self._changes.setdefault(table, {})[key] = after

    def put_back(self, place: Place, life: Life) -> None:
        """Add a row that a saved state has."""
        self.used = True
        if life.ends_ms:
            number = life.ends_ms // BUCKET_MS
            bucket = self._buckets.get(number)
            if bucket is None:
                bucket = self._buckets[number] = {}
                heappush(self._order, number)
            elif not bucket:
                self._empty -= 1
            _file(bucket, place)
        if life.owner:
            _file(self._owned.setdefault(life.owner, {}), place)
        self._count += 1

    def _remove(self, place: Place, life: Life) -> None:
        if life.ends_ms:
            number = life.ends_ms // BUCKET_MS
            bucket = self._buckets.get(number, {})
            _take(bucket, place)
            if not bucket:
                self._buckets[number] = {}  # an emptied dict keeps the memory that it had when it was full
                self._empty += 1
                if self._empty > max(_EMPTY_KEPT, len(self._buckets) // 2):
                    self._free_empty()
        if life.owner:
            owned = self._owned.get(life.owner, {})
            _take(owned, place)
            if not owned:
                del self._owned[life.owner]
        self._count -= 1

    def _free_empty(self) -> None:
        self._buckets = {number: bucket for number, bucket in self._buckets.items() if bucket}
        self._order = list(self._buckets)
        heapify(self._order)
        self._empty = 0

    def due(self, now_ms: int, limit: int) -> dict[str, list[str]]:
        """Return up to ``limit`` rows whose time is over at ``now_ms``, keys by table, those that ended first first.

        Candidates for a log entry that ends them; changes nothing that is replicated.
        """
        found: dict[str, list[str]] = {}
        order, current = self._order, now_ms // BUCKET_MS
        looked: list[int] = []
        while order and order[0] < current and limit:
            number = heappop(order)
            bucket = self._buckets[number]
            if not bucket:
                del self._buckets[number]
                self._empty -= 1
                continue
            looked.append(number)
            for table, key in islice(bucket, limit):
                found.setdefault(table, []).append(key)
            limit = max(0, limit - len(bucket))
        for number in looked:  # a row stays filed until it has ended: the proposal may be lost
            heappush(order, number)
        return found

    def take_changes(self) -> dict[str, dict[str, Life | None]]:
        """Return what has changed since the last call, by table: None where a row is gone, or stays from now on."""
        changes, self._changes = self._changes, {}
        return changes

    def take_changes_of(self, table: str) -> dict[str, Life | None]:
        """Return the same of one table, which is gone: its name may come again before the next save."""
        return self._changes.pop(table, {})


def _file(places: dict[Place, None], place: Place) -> None:
    if place in places:
        raise InvariantViolation(f"row {place} is filed twice under one end")
    places[place] = None


def _take(places: dict[Place, None], place: Place) -> None:
    if place not in places:
        raise InvariantViolation(f"row {place} is not filed under its end")
    del places[place]
