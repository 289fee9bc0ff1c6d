"""The apply rule: is this operation new, a replay, or refused? RIFL §3.4, server half.

Theory of operation
-------------------
The rule runs inside the state machine, on every replica, from the log entry alone. It sees one operation as a
:class:`Case`: the request's sequence number, ack and fingerprint, how its session stands at cluster time, and the
session's records. :data:`RULE` lists conditions in order; **the first one that holds decides**. Nothing else decides:

- :func:`decide_by_table` walks :data:`RULE`. It is the definition, and too slow to serve.
- :func:`decide` says the same of one operation, by hand. :func:`decide_each` says the same of a request's operations
  and is as fast as two comparisons where all of them are new; :func:`is_new_run` tells of many, at once, that they
  are. :func:`oncegate.rifl.range_rule.decide_range` says it of a range. ``tests/rifl/test_rule.py`` proves all of them
  equal to the table, for every tracker, request and standing that fit into small windows.
- The table in docs/SEMANTICS.md is :func:`table_as_markdown`; ``make docs`` writes it there.

To decide changes nothing. What follows from a verdict is the caller's, in one transition: after EXECUTE it applies
the operation and calls :meth:`oncegate.rifl.result_tracker.ResultTracker.record`, then ``acknowledge``; after a
:class:`Replay` it acknowledges; after a :class:`Refusal` it changes nothing.

A *place* is what the window counts: one operation, or one recorded range whatever its length. A gap below a
sequence number counts one place an operation; below a range, one place for each ``RANGE_LENGTH_MAX`` of it,
since ranges may be missing there.

An example, window 4, first incomplete 1, recorded 1 and 3: 3 is a replay, 2 and 4 are new, 5 is WINDOW_FULL. With an
ack of 2 in the request, 5 is new (2, 3, 4 and 5 take the places) and 1 is BAD_ACK: it acknowledges itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, StrEnum, auto
from typing import Final, Literal, NamedTuple, Protocol, TypeVar, assert_never

import msgspec

from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.errors import REGISTRY, Code, InvariantViolation, Outcome
from oncegate.rifl.ids import RANGE_LENGTH_MAX, ClusterTimeMs, Fingerprint, SequenceNumber
from oncegate.rifl.result_tracker import RECORD_BYTES_MAX, ResultTracker
from oncegate.rifl.session import SessionRecord


class Execute(Enum):
    """The operation is new: execute it and record it."""

    EXECUTE = auto()


EXECUTE: Final = Execute.EXECUTE


class Replay(msgspec.Struct, frozen=True, gc=False):
    """The operation was executed before: answer from its record."""

    record: CompletionRecord


class Refusal(Enum):
    """The operation is neither executed nor answered; the value is the error's code, except for a sealed id's."""

    FORBIDDEN = Code.FORBIDDEN
    BAD_ACK = Code.BAD_ACK
    SESSION_EXPIRED = Code.SESSION_EXPIRED
    FENCED = Code.FENCED
    STALE = Code.STALE
    SEALED = "sealed"
    PAYLOAD_MISMATCH = Code.PAYLOAD_MISMATCH
    WINDOW_FULL = Code.WINDOW_FULL
    QUOTA = Code.QUOTA
    # Not of the rule: what a table says of an operation that the rule would execute.
    NOT_FOUND = Code.NOT_FOUND
    BAD_REQUEST = Code.BAD_REQUEST
    PAYLOAD_TOO_LARGE = Code.PAYLOAD_TOO_LARGE
    BEHIND = Code.OVERLOADED
    """One in front of it is refused for now, and the request asked to be done in order."""

    @property
    def code(self) -> Code:
        """The error's code."""
        return self.value if isinstance(self.value, Code) else Code.STALE

    @property
    def outcome(self) -> Outcome:
        """What the caller may conclude: of a sealed id it is certain that it was never executed."""
        return Outcome.NOT_APPLIED if self is Refusal.SEALED else REGISTRY[self.code].outcome


Verdict = Execute | Replay | Refusal
"""What the rule says of one operation."""


class Standing(Enum):
    """How a request stands with the session it names; the same for all operations of the request."""

    LIVE = auto()
    ENDED = auto()
    """Its lease has ended."""
    FENCED = auto()
    """Another epoch owns it."""
    FOREIGN = auto()
    """It is another tenant's."""
    ABSENT = auto()
    """There is none."""


def standing(session: SessionRecord, epoch: int, now_ms: ClusterTimeMs) -> Standing:
    """Say how a request of ``epoch`` stands at cluster time ``now_ms``; an epoch never given out is fenced too."""
    if epoch != session.epoch:
        return Standing.FENCED
    if session.ends_ms < now_ms:
        return Standing.ENDED
    return Standing.LIVE


class Case(NamedTuple):
    """All that the rule looks at.

    Attributes:
        sequence, first_incomplete, fingerprint: the request's.
        standing: how the request stands with its session.
        tracker: the session's records; None where the session is absent or another tenant's.
        run_first: of an operation that travels in a range and is not recorded: the first one of the unrecorded run
            that it belongs to, since a run is judged, and takes a place, as a whole. None for an operation alone.
    """

    sequence: SequenceNumber
    first_incomplete: SequenceNumber
    fingerprint: Fingerprint
    standing: Standing
    tracker: ResultTracker | None
    run_first: SequenceNumber | None = None

    @property
    def records(self) -> ResultTracker:
        """The records, where a condition above has made sure that there are some."""
        if self.tracker is None:
            raise InvariantViolation(f"a request whose session is {self.standing.name} has no records to look at")
        return self.tracker

    @property
    def record(self) -> CompletionRecord | None:
        """The operation's completion record."""
        return self.records.find(self.sequence)


class Effect(StrEnum):
    """What a verdict does to the replicated state."""

    UNCHANGED = "unchanged"
    ACKNOWLEDGED = "ack processed, lease renewed"
    EXECUTED = "operation executed and its completion record stored **in the same transition**, then as in a replay"


class Condition(NamedTuple):
    """One line of the rule: where ``holds`` says so and nothing above did, the verdict is ``outcome``."""

    words: str
    holds: Callable[[Case], bool]
    outcome: Literal["replay"] | Execute | Refusal
    said: str
    effect: Effect


def _is_bad_ack(case: Case) -> bool:
    seen = None if case.tracker is None else case.tracker.highest + case.tracker.window
    return case.first_incomplete > case.sequence or (seen is not None and case.first_incomplete > seen)


def _is_recorded(case: Case) -> bool:
    record = case.record
    return record is not None and record.fingerprint == case.fingerprint


def _has_no_place(case: Case) -> bool:
    if case.run_first is None:
        return is_beyond_window(case.records, case.sequence, case.first_incomplete)
    return is_range_beyond_window(case.records, case.run_first, case.first_incomplete)


def _refuse(words: str, holds: Callable[[Case], bool], refusal: Refusal, note: str = "") -> Condition:
    return Condition(words, holds, refusal, f"`{refusal.code}`{note}", Effect.UNCHANGED)


RULE: Final[tuple[Condition, ...]] = (
    _refuse(
        "the session is another tenant's",
        lambda case: case.standing is Standing.FOREIGN,
        Refusal.FORBIDDEN,
    ),
    _refuse(
        "the request's first incomplete > its sequence number, or > highest sequence number seen + window",
        _is_bad_ack,
        Refusal.BAD_ACK,
    ),
    _refuse(
        "no such session",
        lambda case: case.standing is Standing.ABSENT,
        Refusal.SESSION_EXPIRED,
        " (never treated as new)",
    ),
    _refuse(
        "the request's epoch is not the session's current one",
        lambda case: case.standing is Standing.FENCED,
        Refusal.FENCED,
    ),
    _refuse(
        "sequence number below the session's first incomplete",
        lambda case: case.sequence < case.records.first_incomplete,
        Refusal.STALE,
    ),
    _refuse(
        "the id was sealed, whatever the payload",
        lambda case: case.record is not None and case.record.sealed,
        Refusal.SEALED,
        " with outcome `not_applied`",
    ),
    Condition(
        "completion record exists, payload fingerprint equal",
        _is_recorded,
        "replay",
        "the stored result, byte for byte, marked as replayed",
        Effect.ACKNOWLEDGED,
    ),
    _refuse(
        "completion record exists, fingerprint differs",
        lambda case: case.record is not None,
        Refusal.PAYLOAD_MISMATCH,
    ),
    _refuse(
        "lease expired at `now`",
        lambda case: case.standing is Standing.ENDED,
        Refusal.SESSION_EXPIRED,
    ),
    _refuse(
        "sequence number ≥ max(first incomplete of session, of request) + window, in places",
        _has_no_place,
        Refusal.WINDOW_FULL,
        " (retryable)",
    ),
    _refuse(
        f"the session's remembered results, less what this ack drops, are over {RECORD_BYTES_MAX >> 20} MiB",
        lambda case: case.records.is_over_bytes(case.first_incomplete),
        Refusal.QUOTA,
        " (retryable)",
    ),
    Condition("otherwise", lambda _: True, EXECUTE, "execute", Effect.EXECUTED),
)
"""The rule; a condition may rely on none above it holding."""


def decide_by_table(case: Case) -> Verdict:
    """Apply the rule to one operation by walking :data:`RULE`: the definition that all faster ways are equal to."""
    outcome = next(condition.outcome for condition in RULE if condition.holds(case))
    match outcome:
        case Execute() | Refusal():
            return outcome
        case "replay":
            record = case.record
            if record is None:
                raise InvariantViolation(f"there is no record to replay {case.sequence} from")
            return Replay(record)
        case _:
            assert_never(outcome)


def table_as_markdown() -> list[str]:
    """Return the rule as the lines of a table, for docs/SEMANTICS.md."""
    lines = ["| # | condition | outcome | state |", "|---|---|---|---|"]
    return lines + [f"| {n} | {row.words} | {row.said} | {row.effect} |" for n, row in enumerate(RULE, 1)]


class Operation(Protocol):
    """What the rule needs of an operation."""

    @property
    def sequence(self) -> SequenceNumber:
        """Its sequence number."""

    @property
    def fingerprint(self) -> Fingerprint:
        """Hash of its payload."""


class Applied(msgspec.Struct, frozen=True, gc=False):
    """The operation was executed in this entry; its record may hold a business refusal."""

    sequence: SequenceNumber
    record: CompletionRecord


class Replayed(msgspec.Struct, frozen=True, gc=False):
    """The operation was executed before: the answer comes from its record."""

    sequence: SequenceNumber
    record: CompletionRecord


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """The operation was neither executed nor recorded."""

    sequence: SequenceNumber
    refusal: Refusal


OpVerdict = Applied | Replayed | Rejected
"""Verdict on one operation."""


Op = TypeVar("Op", bound=Operation)


def decide_each(
    tracker: ResultTracker,
    operations: Sequence[Op],
    first_incomplete: SequenceNumber,
    stand: Standing,
    execute: Callable[[int, ResultTracker, Op, str], CompletionRecord | Code],
    client_id: int,
    traceparent: str,
    *,
    in_order: bool = False,
) -> tuple[list[OpVerdict], int]:
    """Apply the rule to a request's operations one by one, and execute what is new before the next is decided.

    The usual operation is new, above all that is recorded and inside the window: two comparisons say so.

    Args:
        tracker: the session's records.
        operations: in request order.
        first_incomplete: the request's ack; processed by the caller, afterwards, if a verdict is not a refusal.
        stand: LIVE, ENDED or FENCED.
        execute: executes an operation, records it in ``tracker`` and returns the record; or says why its table does not
            take it, and then nothing has happened.
        client_id: handed to ``execute``; a closure would cost a call more an operation.
        traceparent: likewise.
        in_order: whether nothing new is executed behind an operation that is refused for now. Example: 7 finds its
            table full; 8, on another table, is refused likewise, and both are sent again: 8 never comes before 7.

    Returns:
        A verdict per operation, and how many of them are no refusals.
    """
    known = tracker.first_incomplete
    base = known if known > first_incomplete else first_incomplete
    # No recorded place lies between base and a number above all that is recorded, so numbers count as places.
    new_below = base + tracker.window if stand is _LIVE and base <= tracker.highest + 1 else 0
    verdicts: list[OpVerdict] = []
    add = verdicts.append
    refused = 0
    for op in operations:
        sequence = op.sequence
        if not (tracker.highest < sequence < new_below and tracker.bytes <= RECORD_BYTES_MAX):
            verdict = decide(tracker, sequence, first_incomplete, op.fingerprint, stand)
            if isinstance(verdict, Replay):
                add(Replayed(sequence, verdict.record))
                continue
            if isinstance(verdict, Refusal):
                refused += 1
                add(Rejected(sequence, verdict))
                if in_order and REGISTRY[verdict.code].retryable:
                    break
                continue
        done = execute(client_id, tracker, op, traceparent)
        if type(done) is CompletionRecord:
            add(Applied(sequence, done))
        else:
            refused += 1
            refusal = Refusal(done)
            add(Rejected(sequence, refusal))
            if in_order and REGISTRY[refusal.code].retryable:
                break
    for op in operations[len(verdicts) :] if in_order else ():  # behind one that was refused for now
        verdict = decide(tracker, op.sequence, first_incomplete, op.fingerprint, stand)
        if isinstance(verdict, Replay):
            add(Replayed(op.sequence, verdict.record))
        else:
            refused += 1
            add(Rejected(op.sequence, verdict if isinstance(verdict, Refusal) else Refusal.BEHIND))
    return verdicts, len(verdicts) - refused


def is_new_run(
    tracker: ResultTracker, first: SequenceNumber, count: int, first_incomplete: SequenceNumber, stand: Standing
) -> bool:
    """Tell whether ``count`` operations from ``first`` on are surely new, if each leaves a record without result.

    Then what :func:`decide_each` would do with them one by one may be done at once. False says nothing.
    """
    known = tracker.first_incomplete
    base = known if known > first_incomplete else first_incomplete
    return (
        stand is _LIVE
        and base <= tracker.highest + 1
        and tracker.highest < first
        and first + count <= base + tracker.window
        and tracker.bytes <= RECORD_BYTES_MAX
    )


def decide(
    tracker: ResultTracker,
    sequence: SequenceNumber,
    first_incomplete: SequenceNumber,
    fingerprint: Fingerprint,
    stand: Standing,
) -> Verdict:
    """Apply the rule to one operation of a session that is there; changes nothing."""
    if first_incomplete > sequence or first_incomplete > tracker.highest + tracker.window:
        return Refusal.BAD_ACK
    if stand is Standing.FENCED:
        return Refusal.FENCED
    if sequence < tracker.first_incomplete:
        return Refusal.STALE
    record = tracker.find(sequence)
    if record is not None:
        if record.sealed:
            return Refusal.SEALED
        return Replay(record) if record.fingerprint == fingerprint else Refusal.PAYLOAD_MISMATCH
    if stand is Standing.ENDED:
        return Refusal.SESSION_EXPIRED
    if is_beyond_window(tracker, sequence, first_incomplete):
        return Refusal.WINDOW_FULL
    return Refusal.QUOTA if tracker.is_over_bytes(first_incomplete) else EXECUTE


def decide_without_session(sequence: SequenceNumber, first_incomplete: SequenceNumber) -> Refusal:
    """Apply the rule where there is no session: never treated as new."""
    return Refusal.BAD_ACK if first_incomplete > sequence else Refusal.SESSION_EXPIRED


def is_beyond_window(tracker: ResultTracker, sequence: int, first_incomplete: int) -> bool:
    """Tell whether an unrecorded operation has no place in the window."""
    known = tracker.first_incomplete
    base = known if known > first_incomplete else first_incomplete
    # Cheap first: places are never more than sequence numbers.
    return sequence >= base + tracker.window and tracker.places(sequence, base) >= tracker.window


def is_range_beyond_window(tracker: ResultTracker, first: int, first_incomplete: int) -> bool:
    """Tell whether an unrecorded run of operations that begins at ``first`` has no place in the window."""
    base = max(tracker.first_incomplete, first_incomplete)
    if first >= base + tracker.window and tracker.places(first, base, RANGE_LENGTH_MAX) >= tracker.window:
        return True
    # Short ranges from high to low would each see one gap below and pass for ever; the lowest missing always may.
    return (
        tracker.records_count + len(tracker.ranges) >= tracker.window
        and tracker.held(base) >= tracker.window
        and tracker.has_gap(base, first)
    )


_LIVE: Final = Standing.LIVE
