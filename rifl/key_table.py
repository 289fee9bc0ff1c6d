"""Idempotency keys: completion records of callers without a session (docs/decisions/0012-idempotency-keys.md).

Owns: which keys are remembered, until when, and the rule that reads them. Runs inside the state machine, from log
entries alone; ``now`` is cluster time. First row that holds decides:

| row | condition | verdict |
|---|---|---|
| 1 | the key is remembered for this tenant, fingerprint equal | its record |
| 2 | the key is remembered for this tenant, fingerprint differs | PAYLOAD_MISMATCH |
| 3 | the key names a cluster time after ``now`` | BAD_REQUEST |
| 4 | the key names a cluster time at or before the first use of a forgotten key | SESSION_EXPIRED |
| 5 | the bound on keys, or on their bytes, is reached | QUOTA |
| 6 | otherwise | EXECUTE |

The first use of a key gives it the next *number*: (``KEYS_CLIENT``, number) is its request id. Keys are forgotten in
the order of their first use, so one time tells which are gone: a key that names a later time was never used.

Invariants; a call that would break one raises InvariantViolation and changes nothing:

- a key is remembered once: a second record would hide a second execution;
- numbers follow each other without a gap, from ``first`` up to, not including, ``next``;
- first uses, ends and commit numbers ascend with the number, and no first use is before ``forgotten_ms``: else a key
  could be forgotten before an older one, and its retry be executed;
- ``bytes`` is the sum of the remembered keys' sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.errors import InvariantViolation
from oncegate.rifl.ids import ID_MAX, ClientId, ClusterTimeMs, CommitNumber, Fingerprint, SequenceNumber
from oncegate.rifl.resolve_rule import Fate, ResolveVerdict
from oncegate.rifl.result_tracker import Sized
from oncegate.rifl.rule import EXECUTE, Execute, Refusal

KEYS_CLIENT: Final = ClientId(ID_MAX)
"""Client id of the request ids that keys are mapped to; no session ever gets it."""
KEYS_MAX: Final = 1_000_000
KEYS_BYTES_MAX: Final = 512 * 2**20
KEY_OVERHEAD_BYTES: Final = 320
"""What a key costs beside its text and result: objects and two places in dictionaries."""
NO_TIME: Final = ClusterTimeMs(-1)
"""Stands for the time of a key that names none."""


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
        return KEY_OVERHEAD_BYTES + len(self.tenant) + len(self.key) + (0 if result is None else int(result.size))


class Held(msgspec.Struct, gc=False):
    """What the remembered keys of one tenant take; follows from the keys, and is not saved."""

    keys: int = 0
    bytes: int = 0


class Changes(NamedTuple):
    """What has changed since the last call; numbers from ``gone_first`` and below ``gone_end`` are forgotten."""

    gone_first: int
    gone_end: int
    new: list[KeyRecord]


class KeyTable:
    """All remembered keys. A tenant's name holds no NUL, which separates it from the key in ``_by_name``."""

    __slots__ = (
        "_by_name",
        "_by_number",
        "_of_tenant",
        "_saved_first",
        "_saved_next",
        "bytes",
        "first",
        "forgotten_ms",
        "next",
    )

    def __init__(self) -> None:
        self._by_name: dict[str, KeyRecord] = {}
        self._by_number: dict[int, KeyRecord] = {}
        self._of_tenant: dict[str, Held] = {}
        self.first = SequenceNumber(1)
        """Number of the oldest remembered key."""
        self.next = SequenceNumber(1)
        """Number that the next key gets."""
        self.forgotten_ms = NO_TIME
        """Cluster time of the first use of the newest forgotten key."""
        self.bytes = 0
        self._saved_first = self._saved_next = 1

    def __len__(self) -> int:
        return self.next - self.first

    def __iter__(self) -> Iterator[KeyRecord]:
        """Yield the remembered keys in the order of their first use."""
        return iter(self._by_number.values())

    def of_tenant(self, tenant: str) -> Held:
        """Return what a tenant's remembered keys take, to be read only."""
        return self._of_tenant.get(tenant) or Held()

    def has(self, tenant: str, key: str) -> bool:
        """Tell whether a key is remembered."""
        return _name(tenant, key) in self._by_name

    @property
    def is_full(self) -> bool:
        """Whether no new key is taken, of whichever tenant."""
        return len(self) >= KEYS_MAX or self.bytes >= KEYS_BYTES_MAX

    def room_in_ms(self, now_ms: int) -> int:
        """Return when the next key is forgotten, from cluster time ``now_ms`` on."""
        oldest = self._by_number.get(self.first)
        return 0 if oldest is None else max(0, oldest.ends_ms - now_ms)

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
        known = self._by_name.get(f"{tenant}\0{key}")  # the hot path spares a call
        if known is not None:
            return known if known.record.fingerprint == fingerprint else Refusal.PAYLOAD_MISMATCH
        if named_ms > now_ms:
            return Refusal.BAD_REQUEST
        if NO_TIME < named_ms <= self.forgotten_ms:
            return Refusal.SESSION_EXPIRED
        if self.next - self.first >= KEYS_MAX or self.bytes >= KEYS_BYTES_MAX:  # is_full
            return Refusal.QUOTA
        return EXECUTE

    def slot(self, tenant: str, key: str, now_ms: ClusterTimeMs, lifetime_ms: int) -> KeySlot:
        """Return where the record of a new key goes, in the transition that executes its request."""
        return KeySlot(self, tenant, key, now_ms, lifetime_ms)

    def add(self, record: KeyRecord) -> None:
        """Remember a key under its number, the next one."""
        number, tenant, commit = record.number, record.tenant, record.record.commit
        name, newest = f"{tenant}\0{record.key}", self._by_number.get(self.next - 1)
        if number != self.next:
            raise InvariantViolation(f"idempotency key {number} comes where {self.next} is the next")
        if name in self._by_name:
            raise InvariantViolation(f"idempotency key {number} is remembered already: it was executed twice")
        if newest is None:
            is_older = record.used_ms < self.forgotten_ms or record.ends_ms < 0 or commit < 1
        else:
            is_older = (
                record.used_ms < newest.used_ms or record.ends_ms < newest.ends_ms or commit <= newest.record.commit
            )
        if is_older:
            raise InvariantViolation(f"idempotency key {number} is older than the one before it")
        self._by_name[name] = record
        self._by_number[number] = record
        self.next = number + 1  # type: ignore[assignment]  # the hot path spares a call
        size = record.size
        self.bytes += size
        held = self._of_tenant.get(tenant)
        if held is None:
            self._of_tenant[tenant] = Held(1, size)
        else:
            held.keys += 1
            held.bytes += size

    def last_end_ms(self) -> ClusterTimeMs:
        """Return until when the newest key is remembered; 0 without one."""
        newest = self._by_number.get(self.next - 1)
        return 0 if newest is None else newest.ends_ms  # type: ignore[return-value]  # the hot path spares a call

    def fence(self, now_ms: ClusterTimeMs, slept_ms: int, skipped: int) -> None:
        """Refuse every key that names a time up to ``now_ms`` and is not remembered: it may have been used elsewhere.

        Those that are remembered stay for as long as they would have, ``slept_ms`` of cluster time left out, and count
        as first used at ``now_ms``. Numbers go on ``skipped`` higher, theirs too: a number that was given elsewhere is
        nobody's here.
        """
        kept = list(self)
        self._by_name.clear()
        self._by_number.clear()
        self._of_tenant.clear()
        self.bytes, self.forgotten_ms = 0, now_ms
        self.first = self.next = SequenceNumber(self.next + skipped)
        for one in kept:
            ends_ms = ClusterTimeMs(one.ends_ms + slept_ms)
            self.add(KeyRecord(self.next, one.tenant, one.key, now_ms, ends_ms, one.record))

    def due(self, now_ms: int) -> bool:
        """Tell whether a key's time is over."""
        oldest = self._by_number.get(self.first)
        return oldest is not None and oldest.ends_ms < now_ms

    def forget(self, now_ms: int, limit: int) -> int:
        """Forget up to ``limit`` keys whose time is over, oldest first; returns how many."""
        count = 0
        while count < limit and self.due(now_ms):
            gone = self._by_number[self.first]
            if gone.size > self.bytes:
                raise InvariantViolation(f"{self.bytes} bytes of idempotency keys hold one of {gone.size}")
            del self._by_number[self.first]
            del self._by_name[_name(gone.tenant, gone.key)]
            self.bytes -= gone.size
            held = self._of_tenant[gone.tenant]
            held.keys -= 1
            held.bytes -= gone.size
            if not held.keys:
                del self._of_tenant[gone.tenant]
            self.forgotten_ms = gone.used_ms
            self.first = SequenceNumber(self.first + 1)
            count += 1
        return count

    def look_up(self, number: int, tenant: str = "") -> ResolveVerdict:
        """Say what became of the request that a key was mapped to; another tenant's was never seen."""
        if number >= self.next:
            return ResolveVerdict(Fate.NEVER_SEEN)
        known = self._by_number.get(number)
        if known is None:
            return ResolveVerdict(Fate.EXPIRED)
        return (
            ResolveVerdict(Fate.EXECUTED, known.record) if known.tenant == tenant else ResolveVerdict(Fate.NEVER_SEEN)
        )

    def take_changes(self) -> Changes:
        """Return what has changed since the last call. Takes time in proportion to the number of new keys."""
        new = [self._by_number[number] for number in range(max(self._saved_next, self.first), self.next)]
        changes = Changes(self._saved_first, min(self.first, self._saved_next), new)
        self._saved_first, self._saved_next = self.first, self.next
        return changes

    def restore(
        self, first: SequenceNumber, next_number: SequenceNumber, forgotten_ms: ClusterTimeMs, records: list[KeyRecord]
    ) -> None:
        """Become the table that was saved so.

        Raises:
            InvariantViolation: no table can have held these records under these numbers.
        """
        self.first = self.next = self._saved_first = first
        self.forgotten_ms = forgotten_ms
        for record in records:
            self.add(record)
        if self.next != next_number:
            raise InvariantViolation(f"idempotency keys {self.next} to {next_number - 1} are missing")
        self._saved_next = next_number

    def dump(self) -> list[Any]:
        """Return the state as plain data, equal on equal replicas."""
        return [self.first, self.next, self.forgotten_ms, self.bytes, list(self)]


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


def _name(tenant: str, key: str) -> str:
    return f"{tenant}\0{key}"
