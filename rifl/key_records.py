"""Completion records of idempotency keys, and where they lie. Pure.

Owns: the shape of a record, what it counts, and :class:`KeyRecords`, what a table of keys asks of the place that keeps
them. :class:`MemoryKeys` keeps all in memory; the one of a node,
:class:`oncegate.gateway.machine.state.keys.StoredKeys`, has the newest ones there and the others on disk. Must not know
which keys are remembered: that is :mod:`oncegate.rifl.key_table`.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import takewhile
from typing import Final, Protocol

import msgspec

from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.ids import ClusterTimeMs, SequenceNumber

KEY_OVERHEAD_BYTES: Final = 320
"""What a key counts beside its text and result: more than its cells take on disk, its name twice among them."""


class KeyKind(StrEnum):
    """Whose keys share room: what a key's scope begins with."""

    KEY = "k"
    """An ``Idempotency-Key``."""
    EVENT = "e"
    """``source`` and ``id`` of an event."""


class KeyRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A used key. ``used_ms`` and ``ends_ms`` are cluster time; both ascend with the number."""

    number: SequenceNumber
    tenant: str
    key: str
    used_ms: ClusterTimeMs
    ends_ms: ClusterTimeMs
    record: CompletionRecord

    @property
    def size(self) -> int:
        """Bytes, roughly."""
        result = self.record.result
        return size_of(self.tenant, self.key) + (0 if result is None else int(result.size))


def size_of(tenant: str, key: str) -> int:
    """Return what a key without a result counts, in bytes."""
    return KEY_OVERHEAD_BYTES + len(tenant) + len(key)


def kind_of(key: str) -> KeyKind:
    """Return the kind of a key with its scope."""
    return KeyKind.EVENT if key[:1] == "e" else KeyKind.KEY


def name_of(tenant: str, key: str) -> str:
    """Return what tells a key from all others; a tenant's name holds no NUL."""
    return f"{tenant}\0{key}"


class KeyRecords(Protocol):
    """The records of a table; numbers ascend as they are added. A name may be added again once its key is forgotten."""

    def look_ahead(self, names: list[str]) -> None:
        """Prepare to find these soon."""

    def find(self, name: str, first: int) -> KeyRecord | None:
        """Return the newest record under a name, unless its number is below ``first``."""

    def at(self, number: int) -> KeyRecord | None:
        """Return the record under a number; None, or any, if it was forgotten."""

    def add(self, name: str, record: KeyRecord) -> None:
        """Keep a record."""

    def forget_below(self, first: int) -> None:
        """Nothing below a number is asked for any more."""

    def run(self, first: int, stop: int) -> Iterator[KeyRecord]:
        """Yield the records from ``first`` on, below ``stop``; not to be mixed with changes."""


class MemoryKeys:
    """Keeps all records in memory."""

    __slots__ = ("_by_name", "_by_number")

    def __init__(self) -> None:
        self._by_name: dict[str, KeyRecord] = {}
        self._by_number: dict[int, KeyRecord] = {}

    def look_ahead(self, names: list[str]) -> None:
        """Do nothing: all are here."""

    def find(self, name: str, first: int) -> KeyRecord | None:
        """Return the newest record under a name, unless its number is below ``first``."""
        found = self._by_name.get(name)
        return None if found is None or found.number < first else found

    def at(self, number: int) -> KeyRecord | None:
        """Return the record under a number."""
        return self._by_number.get(number)

    def add(self, name: str, record: KeyRecord) -> None:
        """Keep a record."""
        self._by_name[name] = self._by_number[record.number] = record

    def forget_below(self, first: int) -> None:
        """Drop all records below a number."""
        for record in list(takewhile(lambda one: one.number < first, self._by_number.values())):
            del self._by_number[record.number]
            name = name_of(record.tenant, record.key)
            if self._by_name.get(name) is record:
                del self._by_name[name]

    def run(self, first: int, stop: int) -> Iterator[KeyRecord]:
        """Yield the records from ``first`` on, below ``stop``."""
        return (record for number, record in self._by_number.items() if first <= number < stop)
