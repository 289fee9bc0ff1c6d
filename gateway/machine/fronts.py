"""The first rows under a prefix, found without a look at those that were taken before. Pure, part of the state machine.

Owns: what a table remembers of the keys at the front of a prefix. It is a cache and no state: what it finds is what a
scan from the prefix on would find, on every replica, whatever it remembers. So it is not saved, and begins empty.

It is there for queues. Their rows go at the front and come at the end: a scan from the prefix on would meet all that
was deleted since the store has last tidied up, again and again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from oncegate.gateway.machine.rows import RowStore, StoredRow

KEPT_KEYS: Final = 512
"""Keys that are read at a time; twice as many are remembered of one prefix."""
PAGE_BYTES: Final = 1 << 20
"""Values of the rows that are read at a time; a single one may exceed it."""
FRONTS_MAX: Final = 64
"""Prefixes of one table that are remembered; of further ones the front is looked for anew."""


class _Front:
    """The front of one prefix: the keys of all its rows below ``beyond`` are in ``keys``, and perhaps some of no row.

    ``beyond`` is None where that is true of all its rows.
    """

    __slots__ = ("beyond", "end", "keys")

    def __init__(self, prefix: str, end: str | None) -> None:
        self.end = end
        self.keys: list[str] = []
        self.beyond: str | None = prefix

    def note(self, key: str) -> None:
        """Take note of a row that has come."""
        if self.beyond is not None and key >= self.beyond:
            return
        keys = self.keys
        at = bisect_left(keys, key)
        if at == len(keys) or keys[at] != key:
            keys.insert(at, key)
        if len(keys) > 2 * KEPT_KEYS:
            self.beyond = keys[KEPT_KEYS]
            del keys[KEPT_KEYS:]

    def rows(self, store: RowStore) -> Iterator[tuple[str, StoredRow]]:
        """Yield the rows in key order; not to be mixed with writes."""
        keys, at = self.keys, 0
        while True:
            while at < len(keys):
                row = store.get(keys[at])
                if row is None:
                    del keys[at]
                else:
                    yield keys[at], row
                    at += 1
            if self.beyond is None:
                return
            page = store.page(self.beyond, self.end, KEPT_KEYS, PAGE_BYTES)
            keys += [key for key, _ in page]
            self.beyond = f"{page[-1][0]}\0" if page else None  # no key has a NUL: it is the next one behind


class Fronts:
    """The fronts of one table's prefixes."""

    __slots__ = ("_by_prefix", "_lengths")

    def __init__(self) -> None:
        self._by_prefix: dict[str, _Front] = {}
        self._lengths: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._by_prefix)

    def note(self, key: str) -> None:
        """Take note of a row that has come."""
        for length in self._lengths:
            front = self._by_prefix.get(key[:length])
            if front is not None:
                front.note(key)

    def rows(self, store: RowStore, prefix: str, end: str | None) -> Iterator[tuple[str, StoredRow]]:
        """Yield the rows under a prefix, which are those below ``end``, in key order; not to be mixed with writes."""
        front = self._by_prefix.pop(prefix, None)
        if front is None:
            front = _Front(prefix, end)
            if len(self._by_prefix) >= FRONTS_MAX:
                del self._by_prefix[next(iter(self._by_prefix))]  # the one that was asked for least lately
        self._by_prefix[prefix] = front
        self._lengths = set(map(len, self._by_prefix))
        return front.rows(store)
