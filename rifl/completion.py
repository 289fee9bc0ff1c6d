"""Completion records: what is remembered of an applied operation (RIFL §3.3).

Owns: the shape of a record of one operation and of a range. A record is stored in the same transition as its
effect and is immutable; only the state machine knows what ``result`` means.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from oncegate.rifl.ids import CommitNumber, Fingerprint, SequenceNumber

FINGERPRINT_BYTES: Final = 8
"""Width of one operation's fingerprint in a range's column, big-endian."""
SEALED_COMMIT: Final = CommitNumber(0)
"""Commit number of an operation that was sealed: never executed, so it has none."""


class CompletionRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Result of one applied operation.

    Attributes:
        fingerprint: 64-bit hash of the payload that was applied.
        commit: its commit number, or ``SEALED_COMMIT``: the id was sealed, whatever payload comes under it.
        result: what the machine needs to answer again, byte for byte; None for a plain ``applied``.
        traceparent: trace context of the request that applied it (W3C), empty if it had none.
    """

    fingerprint: Fingerprint
    commit: CommitNumber
    result: Any = None
    traceparent: str = ""

    @property
    def sealed(self) -> bool:
        """Whether this says that the operation was never executed and never will be."""
        return self.commit == SEALED_COMMIT


class RangeRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Results of the operations ``first``..``last``, applied in order with adjacent commit numbers: a range's, or those
    of a run of single operations (:meth:`oncegate.rifl.result_tracker.ResultTracker.record_run`).

    Costs one object whatever its length; ``fingerprints`` is one buffer of 8 bytes an operation, so that a
    retry that is cut differently can be compared part by part (SEMANTICS, *Ranges*).
    """

    first: SequenceNumber
    last: SequenceNumber
    commit: CommitNumber
    fingerprints: bytes
    traceparent: str = ""

    def commit_of(self, sequence: int) -> CommitNumber:
        """Return the commit number of one operation of the range."""
        return CommitNumber(self.commit + sequence - self.first)

    def slice(self, first: int, last: int) -> bytes:
        """Return the fingerprints of the part ``first``..``last``, both inside the range."""
        low = (first - self.first) * FINGERPRINT_BYTES
        return self.fingerprints[low : (last - self.first + 1) * FINGERPRINT_BYTES]
