"""Where records of idempotency keys are found: new ones in memory, those being saved, and the others on disk.

Owns: the order of the three, what a save writes of keys, and the slow removal of what is forgotten. Event loop's thread
only, except for :class:`FrozenKeys`, which a worker reads. As with rows (:mod:`oncegate.gateway.machine.state.rows`),
the records frozen by a save stay in front of the store until the next one.

A record has two cells: by its number the record, by its name the number. A key that is forgotten keeps both until later
saves remove them, ``CLEANED`` at a time and the oldest first, whatever the other nodes do: a name whose number is below
the oldest remembered one counts for nothing, and a key that is used anew puts its new number there.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, Final

import msgspec

from oncegate.gateway.machine.state.layout import KEYS, KEYS_HEAD, NAMES, KeysHead
from oncegate.gateway.machine.state.order import sorted_in_runs
from oncegate.gateway.machine.state.rows import CellColumns, DirtyTally
from oncegate.gateway.machine.state.store import RocksStore
from oncegate.rifl.errors import InvariantViolation
from oncegate.rifl.key_buckets import Bucket
from oncegate.rifl.key_records import KeyRecord, name_of
from oncegate.rifl.key_table import KeyTable

FRESH_KEY_BYTES: Final = 450
"""What a key in memory costs beside its text, which is there twice, and its result."""
CLEANED: Final = 65_536
"""Forgotten keys that one save removes from the disk at least; with many new keys twice as many as these."""
PIECE_KEYS: Final = 64
"""Keys that are read or written in one step: less than a millisecond, in which nobody else reads the store."""


class FrozenKeys:
    """What one save writes of keys: all of ``new``, the head, and deletions of forgotten ones.

    Args:
        store: what was saved before; read by the worker to find what is to be removed.
        new: records by number, those below ``first`` left out; not changed any more, as ``names``.
        head: as of the freeze; ``kept`` is where the saved cells begin.
        first: the oldest remembered number.
        saved: numbers below it are on disk or nowhere.
    """

    def __init__(
        self,
        store: RocksStore,
        new: dict[int, KeyRecord],
        names: dict[str, KeyRecord],
        head: KeysHead,
        first: int,
        saved: int,
    ) -> None:
        self._store, self._new, self._names = store, new, names
        self._head, self._first = head, first
        self._clean_to = min(first, saved)
        self._clean_max = max(CLEANED, 2 * len(new))
        self._stale: dict[str, int] = {}
        self.kept = head.kept
        """Where the saved cells begin once this is written."""

    def by_number(self) -> Iterator[CellColumns]:
        """Yield what is removed, then what is new, by number; comes before :meth:`by_name`."""
        self._stale, self.kept, cleaned = {}, self._head.kept, 0
        while cleaned < self._clean_max:
            # A scan keeps others from the store, so each is short.
            scan = KEYS.between(self._store, self.kept, max(self.kept, self._clean_to))
            cells = list(islice(scan, PIECE_KEYS))
            scan.close()
            if not cells:
                self.kept = max(self.kept, self._clean_to)
                break
            for _, gone in cells:
                self._stale[name_of(gone.tenant, gone.key)] = gone.number
                self.kept = gone.number + 1
            cleaned += len(cells)
            yield [KEYS.key(*number) for number, _ in cells], [None] * len(cells)
        numbers = iter(self._new)
        while part := [self._new[number] for number in islice(numbers, PIECE_KEYS)]:
            part = [record for record in part if record.number >= self._first]
            if part:
                yield [KEYS.key(record.number) for record in part], [KEYS.encode(record) for record in part]

    def by_name(self) -> Iterator[CellColumns]:
        """Yield names with their numbers, and the removal of those that lead to a removed record; then the head."""
        for part in _pieces(sorted_in_runs(chain(self._names, (name for name in self._stale if self._is_old(name))))):
            keys: list[bytes] = []
            values: list[bytes | None] = []
            found = iter(self._store.values([NAMES.key(name) for name in part if name in self._stale]))
            for name in part:
                new = self._names.get(name)
                before = next(found) if name in self._stale else None
                if new is not None and new.number >= self._first:
                    keys.append(NAMES.key(name))
                    values.append(NAMES.encode(new.number))
                elif before is not None and NAMES.decode(self._store.path, before) == self._stale[name]:
                    keys.append(NAMES.key(name))
                    values.append(None)
            if keys:
                yield keys, values
        yield [KEYS_HEAD.key()], [KEYS_HEAD.encode(msgspec.structs.replace(self._head, kept=self.kept))]

    def _is_old(self, name: str) -> bool:
        return name not in self._names


class StoredKeys:
    """The :class:`oncegate.rifl.key_records.KeyRecords` over a store.

    Args:
        store: holds what was saved.
        tally: counts what is new, with the rows of all tables.
    """

    __slots__ = (
        "_ahead",
        "_fresh",
        "_frozen",
        "_frozen_names",
        "_frozen_numbers",
        "_kept",
        "_numbers",
        "_saved",
        "_store",
        "_tally",
    )

    def __init__(self, store: RocksStore, tally: DirtyTally) -> None:
        self._store = store
        self._tally = tally
        self._kept = self._saved = 1
        """The store has records from ``_kept`` on, below ``_saved``."""
        self._fresh: dict[str, KeyRecord] = {}
        self._numbers: dict[int, KeyRecord] = {}
        self._frozen: FrozenKeys | None = None
        self._frozen_names: dict[str, KeyRecord] = {}
        self._frozen_numbers: dict[int, KeyRecord] = {}
        self._ahead: dict[str, bytes | None] = {}

    def look_ahead(self, names: list[str]) -> None:
        """Read at once, for a third of the cost, where the names that are about to be looked for lead."""
        self._ahead = {}
        fresh, frozen = self._fresh, self._frozen_names
        below = [name for name in names if name not in fresh and name not in frozen]
        if len(below) > 1:
            self._ahead = dict(zip(below, self._store.values(list(map(NAMES.key, below))), strict=True))

    def find(self, name: str, first: int) -> KeyRecord | None:
        """Return the newest record under a name, unless its number is below ``first``; raises as :meth:`at`."""
        found = self._fresh.get(name)
        if found is None:
            found = self._frozen_names.get(name)
            if found is None:
                value = self._ahead[name] if name in self._ahead else self._store.value(NAMES.key(name))
                if value is None:
                    return None
                number = NAMES.decode(self._store.path, value)
                if number < first:
                    return None
                found = self.at(number)
                if found is None or name_of(found.tenant, found.key) != name:
                    raise InvariantViolation(f"idempotency key {number} has a name and no record")
        return None if found.number < first else found

    def at(self, number: int) -> KeyRecord | None:
        """Return the record under a number; raises StateCorrupt, StoreFailed."""
        found = self._numbers.get(number)
        if found is None:
            found = self._frozen_numbers.get(number)
        return KEYS.get(self._store, number) if found is None else found

    def add(self, name: str, record: KeyRecord) -> None:
        """Keep a record."""
        self._fresh[name] = self._numbers[record.number] = record
        tally = self._tally
        tally.rows += 1
        tally.bytes += record.size + FRESH_KEY_BYTES

    def resume(self, kept: int, saved: int) -> None:
        """Note what the store has: records from ``kept`` on, below ``saved``."""
        self._kept, self._saved = kept, saved

    def forget_below(self, first: int) -> None:
        """Do nothing: what is in memory leaves it with the next save but one."""

    def run(self, first: int, stop: int) -> Iterator[KeyRecord]:
        """Yield the records from ``first`` on, below ``stop``; raises StateCorrupt, StoreFailed."""
        oldest = min(next(iter(self._frozen_numbers), stop), next(iter(self._numbers), stop), stop)
        if first < oldest:
            for _, record in KEYS.between(self._store, first, oldest):
                yield record
        for number, record in chain(self._frozen_numbers.items(), self._numbers.items()):
            if first <= number < stop:
                yield record

    def freeze(self, keys: KeyTable) -> tuple[FrozenKeys, list[dict[Any, Any]]]:
        """Hand over what the next save writes of ``keys``; as :meth:`StoredRows.freeze`, O(1).

        Returns:
            What to save, and dicts that are used no more.
        """
        first, after, self._ahead = keys.first, keys.next, {}
        retired: list[dict[Any, Any]] = [self._frozen_names, self._frozen_numbers]
        if self._frozen is not None:
            self._kept = self._frozen.kept
        head = KeysHead(self._kept, [_copied(bucket) for bucket in keys.buckets])
        self._frozen_names, self._frozen_numbers = self._fresh, self._numbers
        self._frozen = FrozenKeys(self._store, self._numbers, self._fresh, head, first, self._saved)
        self._fresh, self._numbers, self._saved = {}, {}, after
        return self._frozen, retired


def _copied(bucket: Bucket) -> Bucket:
    """Return a bucket that does not change with the machine's."""
    held = {owner: type(one)(one.keys, one.bytes) for owner, one in bucket.held.items()}
    return Bucket(
        bucket.first,
        bucket.stop,
        bucket.until_ms,
        bucket.last_ms,
        bucket.ends_ms,
        held,
        bucket.slept_ms,
    )


def _pieces(names: Iterator[str]) -> Iterator[list[str]]:
    while part := list(islice(names, PIECE_KEYS)):
        yield part
