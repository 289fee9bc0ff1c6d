"""Idempotency keys by the time of their first use: what a stretch of numbers holds, and when it is forgotten.

Owns: a bucket, which key opens the next one, and what a bucket's tenants and kinds take in it. Pure. A bucket is
forgotten as a whole once its last key's time is over, so that nobody reads its records to forget them; a key is
remembered for up to a ``PARTS``-th of its lifetime longer than it must be.

Buckets are few whatever the lifetimes: each spans a ``PARTS``-th of the time that its first key has left, and ends
ascend, so the ages of those that are not over fall by a ``PARTS``-th from one to the next. A lifetime that stays the
same makes ``PARTS`` + 2 at most; one that changes with each key, at 30 days, some 540.
"""

from __future__ import annotations

from typing import Final

import msgspec

from oncegate.rifl.errors import InvariantViolation

PARTS: Final = 24


class Held(msgspec.Struct, array_like=True, gc=False):
    """What some keys take."""

    keys: int = 0
    bytes: int = 0

    def add(self, keys: int, size: int) -> None:
        """Count keys of ``size`` bytes together."""
        self.keys += keys
        self.bytes += size

    def take(self, keys: int, size: int) -> None:
        """Count them no more; raises InvariantViolation: they were not counted."""
        if keys > self.keys or size > self.bytes:
            raise InvariantViolation(f"{self.bytes} bytes of {self.keys} idempotency keys hold {keys} of {size}")
        self.keys -= keys
        self.bytes -= size


class Bucket(msgspec.Struct, array_like=True):
    """Keys ``first`` up to, not including, ``stop``; all of them are remembered.

    Attributes:
        until_ms: cluster time of first use from which on a key opens the next bucket.
        last_ms: first use of its newest key.
        ends_ms: until when its newest key is remembered, and so all of them.
        held: what each kind of each tenant takes (:func:`owner_of`).
        slept_ms: by how much its keys end later than their records say.
    """

    first: int
    stop: int
    until_ms: int
    last_ms: int
    ends_ms: int
    held: dict[str, Held]
    slept_ms: int = 0

    def takes(self, number: int, used_ms: int) -> bool:
        """Tell whether a new key belongs in it."""
        return number == self.stop and used_ms < self.until_ms

    def add(self, owner: str, size: int, used_ms: int, ends_ms: int) -> None:
        """Count the key ``stop``."""
        self.stop += 1
        self.last_ms, self.ends_ms = used_ms, ends_ms
        held = self.held.get(owner)
        if held is None:
            self.held[owner] = Held(1, size)
        else:
            held.keys += 1
            held.bytes += size


def opened(number: int, used_ms: int, ends_ms: int) -> Bucket:
    """Return an empty bucket for a key and those that follow it."""
    until_ms = used_ms + max(1, (ends_ms - used_ms) // PARTS)
    return Bucket(number, number, until_ms, used_ms, ends_ms, {})


def owner_of(kind: str, tenant: str) -> str:
    """Return under which name a bucket counts a tenant's keys of a kind: its letter first."""
    return kind + tenant
