"""Idempotency keys: completion records of callers without a session (docs/decisions/0012-idempotency-keys.md).

Owns: which keys are remembered, until when, and the rule that reads them. Runs inside the state machine, from log
entries alone; ``now`` is cluster time. First row that holds decides:

| row | condition | verdict |
|---|---|---|
| 1 | the key is remembered for this tenant, fingerprint equal | its record |
| 2 | the key is remembered for this tenant, fingerprint differs | PAYLOAD_MISMATCH |
| 3 | the key names a cluster time after ``now`` | BAD_REQUEST |
| 4 | the key names a cluster time at or before the first use of a forgotten key | SESSION_EXPIRED |
| 5 | the bound on the bytes of all keys is reached | QUOTA |
| 6 | otherwise | EXECUTE |

The first use of a key gives it the next *number*: (``KEYS_CLIENT``, number) is its request id. Keys are forgotten in
the order of their first use, so one time tells which are gone: a key that names a later time was never used.

Where the records lie is :class:`oncegate.rifl.key_records.KeyRecords`' business, which may keep forgotten ones for a
while: here, what is below ``first`` is not there. Keys are forgotten by the bucket (:mod:`oncegate.rifl.key_buckets`).
The bound of row 5 is out of reach: the leader refuses before.

Invariants; a call that would break one raises InvariantViolation and changes nothing:

- a key is remembered once: a second record would hide a second execution;
- numbers follow each other without a gap, from ``first`` up to, not including, ``next``, but for those that a restored
  cluster leaves out between two buckets;
- first uses, ends and commit numbers ascend with the number, and no first use is before ``forgotten_ms``: else a key
  could be forgotten before an older one, and its retry be executed;
- ``bytes`` is the sum of the remembered keys' sizes, and what buckets, kinds and tenants hold adds up to it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from math import inf
from typing import Any, Final, NamedTuple

import msgspec

from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.errors import InvariantViolation
from oncegate.rifl.ids import ID_MAX, ClientId, ClusterTimeMs, CommitNumber, Fingerprint, SequenceNumber
from oncegate.rifl.key_buckets import Bucket, Held, opened, owner_of
from oncegate.rifl.key_records import KeyKind, KeyRecord, KeyRecords, MemoryKeys, name_of
from oncegate.rifl.resolve_rule import Fate, ResolveVerdict
from oncegate.rifl.result_tracker import Sized
from oncegate.rifl.rule import EXECUTE, Execute, Refusal

KEYS_CLIENT: Final = ClientId(ID_MAX)
"""Client id of the request ids that keys are mapped to; no session ever gets it."""
KEYS_BYTES_DEFAULT: Final = 8 * 2**30
"""What a leader takes, unless its setting says another number."""
KEYS_BYTES_MAX: Final = 2**44
"""What the rule takes, whatever the leader's setting says."""
NO_TIME: Final = ClusterTimeMs(-1)
"""Stands for the time of a key that names none."""


class Taken(NamedTuple):
    """Bytes that remembered keys take: of all, of one kind, and of it one tenant's."""

    all: int
    of_kind: int
    own: int


class KeyTable:
    """All remembered keys."""

    __slots__ = (
        "_absent",
        "_due_ms",
        "_newest",
        "_owners",
        "buckets",
        "bytes",
        "count",
        "first",
        "forgotten_ms",
        "kinds",
        "next",
        "records",
    )

    def __init__(self, records: KeyRecords | None = None) -> None:
        self.records: KeyRecords = MemoryKeys() if records is None else records
        self.buckets: list[Bucket] = []
        """What is remembered, oldest first; none is empty."""
        self.first = SequenceNumber(1)
        """Number of the oldest remembered key."""
        self.next = SequenceNumber(1)
        """Number that the next key gets."""
        self.forgotten_ms = NO_TIME
        """Cluster time of the first use of the newest forgotten key."""
        self.count = 0
        self.bytes = 0
        self.kinds: dict[str, Held] = {kind.value: Held() for kind in KeyKind}
        """What the keys of each kind take, to be read only."""
        self._owners: dict[str, Held] = {}
        self._newest: KeyRecord | None = None
        self._due_ms: float = inf
        """The next key is forgotten after this time."""
        self._absent: str | None = None
        """The name that was looked for last and not found: it is not looked for again to be added."""

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[KeyRecord]:
        """Yield the remembered keys in the order of their first use."""
        for bucket in self.buckets:
            for record in self.records.run(bucket.first, bucket.stop):
                yield _later(record, bucket)

    def of_tenant(self, tenant: str) -> Held:
        """Return what a tenant's remembered keys take."""
        each = [self._owners.get(owner_of(kind, tenant), Held()) for kind in KeyKind]
        return Held(sum(one.keys for one in each), sum(one.bytes for one in each))

    def has(self, tenant: str, key: str) -> bool:
        """Tell whether a key is remembered."""
        return self.number_of(tenant, key) is not None

    def number_of(self, tenant: str, key: str) -> SequenceNumber | None:
        """Return the number of a remembered key, None of any other."""
        found = self.records.find(name_of(tenant, key), self.first)
        return None if found is None else found.number

    def look_ahead(self, names: list[str]) -> None:
        """Prepare to decide about these soon."""
        self.records.look_ahead(names)

    @property
    def is_full(self) -> bool:
        """Whether the rule takes no new key, of whichever tenant."""
        return self.bytes >= KEYS_BYTES_MAX

    def room_in_ms(self, now_ms: int) -> int:
        """Return when the next key is forgotten, from cluster time ``now_ms`` on."""
        return 0 if self._due_ms == inf else max(0, int(self._due_ms) + 1 - now_ms)

    def taken(self, kind: KeyKind, tenant: str) -> Taken:
        """Return what keys take now."""
        own = self._owners.get(owner_of(kind, tenant))
        return Taken(self.bytes, self.kinds[kind].bytes, 0 if own is None else own.bytes)

    def room_to_come(self, kind: KeyKind, tenant: str) -> Iterator[tuple[int, Taken]]:
        """Yield the cluster time after which each bucket is forgotten, and what the keys behind it take."""
        everything, of_kind, own = self.taken(kind, tenant)
        owner = owner_of(kind, tenant)
        for bucket in self.buckets:
            everything -= sum(held.bytes for held in bucket.held.values())
            of_kind -= sum(held.bytes for name, held in bucket.held.items() if name[:1] == kind)
            own -= bucket.held[owner].bytes if owner in bucket.held else 0
            yield bucket.ends_ms, Taken(everything, of_kind, own)

    def decide(
        self, tenant: str, key: str, fingerprint: Fingerprint, named_ms: ClusterTimeMs, now_ms: ClusterTimeMs
    ) -> Execute | KeyRecord | Refusal:
        """Apply the rule to one request; changes nothing.

        Args:
            tenant: whom the token names; keys of two tenants never meet.
            key: the key with its scope, as :mod:`oncegate.gateway.http.identity` makes it.
            fingerprint: hash of the payload.
            named_ms: the cluster time in the key, ``NO_TIME`` if it names none.
            now_ms: cluster time.

        Returns:
            EXECUTE, the record to answer from, or the refusal.
        """
        name = f"{tenant}\0{key}"  # the hot path spares a call
        known = self.records.find(name, self.first)
        if known is not None:
            if known.record.fingerprint != fingerprint:
                return Refusal.PAYLOAD_MISMATCH
            return _later(known, self._bucket(known.number))
        if named_ms > now_ms:
            return Refusal.BAD_REQUEST
        if NO_TIME < named_ms <= self.forgotten_ms:
            return Refusal.SESSION_EXPIRED
        if self.is_full:
            return Refusal.QUOTA
        self._absent = name
        return EXECUTE

    def slot(self, tenant: str, key: str, now_ms: ClusterTimeMs, lifetime_ms: int) -> KeySlot:
        """Return where the record of a new key goes, in the transition that executes its request."""
        return KeySlot(self, tenant, key, now_ms, lifetime_ms)

    def add(self, record: KeyRecord) -> None:
        """Remember a key under its number, the next one."""
        number, tenant, commit, newest = record.number, record.tenant, record.record.commit, self._newest
        used_ms, ends_ms, name = record.used_ms, record.ends_ms, f"{tenant}\0{record.key}"
        if number != self.next:
            raise InvariantViolation(f"idempotency key {number} comes where {self.next} is the next")
        if name != self._absent and self.records.find(name, self.first) is not None:
            raise InvariantViolation(f"idempotency key {number} is remembered already: it was executed twice")
        if newest is None:
            is_older = used_ms < self.forgotten_ms or ends_ms < 0 or commit < 1
        else:
            is_older = (
                used_ms < newest.used_ms
                or used_ms < self.forgotten_ms
                or ends_ms < self.last_end_ms()
                or commit <= newest.record.commit
            )
        if is_older:
            raise InvariantViolation(f"idempotency key {number} is older than the one before it")
        self._absent, self._newest = None, record
        buckets = self.buckets
        if not buckets or not buckets[-1].takes(number, used_ms):
            if not buckets:
                self.first = number
            buckets.append(opened(number, used_ms, ends_ms))
        self.records.add(name, record)
        self.next = number + 1  # type: ignore[assignment]  # the hot path spares a call
        size, kind = record.size, "e" if record.key[:1] == "e" else "k"
        owner = kind + tenant
        buckets[-1].add(owner, size, used_ms, ends_ms)
        self.count += 1
        self.bytes += size
        for held in (self.kinds[kind], self._owners.setdefault(owner, Held())):
            held.keys += 1
            held.bytes += size
        if len(buckets) == 1:
            self._due_ms = ends_ms

    def last_end_ms(self) -> ClusterTimeMs:
        """Return until when the newest key is remembered; 0 without one."""
        return self.buckets[-1].ends_ms if self.buckets else 0  # type: ignore[return-value]  # spares a call

    def fence(self, now_ms: ClusterTimeMs, slept_ms: int, skipped: int) -> None:
        """Refuse every key that names a time up to ``now_ms`` and is not remembered: it may have been used elsewhere.

        Those that are remembered stay for as long as they would have, ``slept_ms`` of cluster time left out. Numbers go
        on ``skipped`` higher: one that was given elsewhere is nobody's here.
        """
        for bucket in self.buckets:
            bucket.ends_ms += slept_ms
            bucket.slept_ms += slept_ms
        self.next = SequenceNumber(self.next + skipped)
        if not self.buckets:
            self.first = self.next
        self.forgotten_ms = now_ms
        self._note_due()

    def due(self, now_ms: int) -> bool:
        """Tell whether a key is to be forgotten."""
        return now_ms > self._due_ms

    def forget(self, now_ms: int) -> int:
        """Forget the buckets whose time is over, oldest first, and return how many keys were in them."""
        before = self.count
        while self.buckets and now_ms > self._due_ms:
            bucket = self.buckets[0]
            for owner, held in bucket.held.items():
                self._take(owner, held.keys, held.bytes)
            del self.buckets[0]
            self.forgotten_ms = max(self.forgotten_ms, ClusterTimeMs(bucket.last_ms))
            self.first = SequenceNumber(self.buckets[0].first) if self.buckets else self.next
            if not self.buckets:
                self._newest = None
            self._note_due()
            self.records.forget_below(self.first)
        return before - self.count

    def _take(self, owner: str, keys: int, size: int) -> None:
        if size > self.bytes:
            raise InvariantViolation(f"{self.bytes} bytes of idempotency keys hold one of {size}")
        for name, counts in ((owner[:1], self.kinds), (owner, self._owners)):
            counts[name].take(keys, size)
        if not self._owners[owner].keys:
            del self._owners[owner]
        self.count -= keys
        self.bytes -= size

    def _note_due(self) -> None:
        self._due_ms = self.buckets[0].ends_ms if self.buckets else inf

    def _at(self, number: int) -> KeyRecord:
        if (found := self.records.at(number)) is None:
            raise InvariantViolation(f"idempotency key {number} is missing")
        return found

    def _bucket(self, number: int) -> Bucket:
        """Return the bucket with a number, or, of one that was left out, the bucket before it."""
        return self.buckets[bisect_right(self.buckets, number, key=_first_of) - 1]

    def look_up(self, number: int, tenant: str = "") -> ResolveVerdict:
        """Say what became of the request that a key was mapped to; another tenant's was never seen."""
        if number >= self.next:
            return ResolveVerdict(Fate.NEVER_SEEN)
        if number < self.first or number >= self._bucket(number).stop:
            return ResolveVerdict(Fate.EXPIRED)
        known = self._at(number)
        return (
            ResolveVerdict(Fate.EXECUTED, known.record) if known.tenant == tenant else ResolveVerdict(Fate.NEVER_SEEN)
        )

    def restore(self, next_number: SequenceNumber, forgotten_ms: ClusterTimeMs, buckets: list[Bucket]) -> None:
        """Become the table that was saved so: its records are where they are looked for, and not read.

        Raises:
            InvariantViolation: no table can have had these buckets, or a first or last record of one is missing.
        """
        self.forgotten_ms = forgotten_ms
        number, ends_ms, last_ms = 1, 0, NO_TIME
        for bucket in buckets:
            keys = sum(held.keys for held in bucket.held.values())
            if keys != bucket.stop - bucket.first or not keys:
                raise InvariantViolation(f"{keys} idempotency keys are numbered {bucket.first} to {bucket.stop - 1}")
            if bucket.first < number or bucket.ends_ms < ends_ms or bucket.last_ms < last_ms:
                raise InvariantViolation(f"idempotency key {bucket.first} is older than the one before it")
            number, ends_ms, last_ms = bucket.stop, bucket.ends_ms, ClusterTimeMs(bucket.last_ms)
            for owner, held in bucket.held.items():
                self.count += held.keys
                self.bytes += held.bytes
                self.kinds[owner[:1]].add(held.keys, held.bytes)
                self._owners.setdefault(owner, Held()).add(held.keys, held.bytes)
            self._at(bucket.first)
            self._newest = self._at(bucket.stop - 1)
        if number > next_number:
            raise InvariantViolation(f"idempotency key {number - 1} is remembered where {next_number} is the next")
        self.buckets, self.next = buckets, next_number
        self.first = SequenceNumber(buckets[0].first) if buckets else next_number
        self._note_due()

    def dump(self) -> list[Any]:
        """Return the state as plain data, equal on equal replicas."""
        return [self.first, self.next, self.forgotten_ms, self.bytes, self.buckets, list(self)]


class KeySlot(msgspec.Struct, frozen=True, gc=False):
    """Takes the completion record of one new key (:meth:`oncegate.rifl.result_tracker.ResultTracker.record` of a
    session).
    """

    keys: KeyTable
    tenant: str
    key: str
    now_ms: ClusterTimeMs
    lifetime_ms: int

    def record(
        self,
        sequence: SequenceNumber,
        fingerprint: Fingerprint,
        commit: CommitNumber,
        result: Sized | None = None,
        traceparent: str = "",
    ) -> CompletionRecord:
        """Remember the applied request and return its record. A key never ends before an older one does."""
        record = CompletionRecord(fingerprint, commit, result, traceparent)
        ends_ms: ClusterTimeMs = self.now_ms + self.lifetime_ms  # type: ignore[assignment]
        if ends_ms < (least_ms := self.keys.last_end_ms()):
            ends_ms = least_ms
        self.keys.add(KeyRecord(sequence, self.tenant, self.key, self.now_ms, ends_ms, record))
        return record


def _first_of(bucket: Bucket) -> int:
    return bucket.first


def _later(record: KeyRecord, bucket: Bucket) -> KeyRecord:
    """Return a record with the end that it has here."""
    if not bucket.slept_ms:
        return record
    return msgspec.structs.replace(record, ends_ms=ClusterTimeMs(record.ends_ms + bucket.slept_ms))
