"""Resolving a request id: return its result, or seal it so that it never has one (SEMANTICS, *Resolving the unknown*).

Owns: the rule below. Runs inside the state machine like :mod:`oncegate.rifl.result_tracker`; the log decides between a
resolve and an attempt still in flight. First row that holds decides:

| row | condition | answer |
|---|---|---|
| 1 | the request carries an ack that is impossible (as in the apply rule) | BAD_ACK |
| 2 | the request carries an epoch that is not the session's | FENCED |
| 3 | sequence number < first incomplete of the session | ``acknowledged`` |
| 4 | a completion record exists, alone or in a range | ``executed`` with it, or ``sealed`` |
| 5 | no place in the window | WINDOW_FULL |
| 6 | otherwise | the id is sealed in this transition: ``sealed`` |

A seal is a completion record without result: it takes a place in the window, so its memory is bounded, and it is
dropped when it is acknowledged. It needs no live lease: after the lease nothing new is executed anyway.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import SequenceNumber
from oncegate.rifl.result_tracker import ResultTracker


class Fate(StrEnum):
    """What is known of a request id; of what ran, its record tells whether it was applied or refused."""

    EXECUTED = "executed"
    SEALED = "sealed"
    NEVER_SEEN = "never_seen"
    ACKNOWLEDGED = "acknowledged"
    EXPIRED = "expired"


class ResolveVerdict(NamedTuple):
    """Fate of a request id; with EXECUTED also the record to answer from."""

    fate: Fate
    record: CompletionRecord | None = None


def look_up(tracker: ResultTracker, sequence: int) -> ResolveVerdict:
    """Say what became of an operation; changes nothing."""
    if sequence < tracker.first_incomplete:
        return ResolveVerdict(Fate.ACKNOWLEDGED)
    record = tracker.find(sequence)
    if record is None:
        return ResolveVerdict(Fate.NEVER_SEEN)
    return ResolveVerdict(Fate.SEALED) if record.sealed else ResolveVerdict(Fate.EXECUTED, record)


def resolve(tracker: ResultTracker, sequence: SequenceNumber, first_incomplete: SequenceNumber) -> ResolveVerdict:
    """Look an operation up and seal it if it was never executed; afterwards its fate does not change.

    Args:
        tracker: the session's records.
        sequence: which operation.
        first_incomplete: ack of the session's owner, processed by the caller afterwards; 1 for none.

    Returns:
        The fate, never ``NEVER_SEEN``.

    Raises:
        OncegateError: BAD_ACK or WINDOW_FULL; nothing has changed.
    """
    if first_incomplete > sequence or first_incomplete > tracker.highest + tracker.window:
        raise OncegateError(Code.BAD_ACK)
    found = look_up(tracker, sequence)
    if found.fate is not Fate.NEVER_SEEN:
        return found
    base = max(tracker.first_incomplete, first_incomplete)
    if sequence >= base + tracker.window and tracker.places(sequence, base) >= tracker.window:
        raise OncegateError(Code.WINDOW_FULL, "acknowledge what is below before this can be sealed")
    tracker.seal(sequence)
    return ResolveVerdict(Fate.SEALED)
