"""A request that asks for its order: nothing new is executed behind an operation that is refused for now."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.errors import REGISTRY, Code
from oncegate.rifl.ids import CommitNumber, Fingerprint, SequenceNumber
from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.rule import Applied, OpVerdict, Rejected, Standing, decide_each

OTHER = Fingerprint(999)
"""That of another payload."""


class Op(NamedTuple):
    """What the rule needs of an operation."""

    sequence: SequenceNumber
    fingerprint: Fingerprint


@given(
    st.lists(st.tuples(st.integers(1, 8), st.sampled_from((None, None, Code.QUOTA, Code.NOT_FOUND))), max_size=8),
    st.lists(st.integers(1, 8), unique=True),
    st.integers(1, 3),
)
def test_in_order_nothing_new_is_executed_behind_what_is_refused_for_now(
    asked: list[tuple[int, Code | None]], known: list[int], ack: int
) -> None:
    """Else, and up to there, a request is decided as one that does not ask for its order."""
    executed: list[int] = []

    def tried(_: int, tracker: ResultTracker, operation: Op, traceparent: str) -> CompletionRecord | Code:
        code = asked[operation.fingerprint][1]
        if code is not None:
            return code
        executed.append(operation.sequence)
        commit = CommitNumber(100 + operation.sequence)
        return tracker.record(operation.sequence, operation.fingerprint, commit, None, traceparent)

    def decided(*, in_order: bool) -> tuple[list[OpVerdict], list[int]]:
        tracker = ResultTracker(window=4)
        for sequence in sorted(known):
            tracker.record(SequenceNumber(sequence), OTHER, CommitNumber(sequence), None, "")
        executed.clear()
        operations = [Op(SequenceNumber(number), Fingerprint(at)) for at, (number, _) in enumerate(asked)]
        acked, live = SequenceNumber(ack), Standing.LIVE
        told, accepted = decide_each(tracker, operations, acked, live, tried, 1, "", in_order=in_order)
        assert accepted == sum(not isinstance(verdict, Rejected) for verdict in told)
        assert [verdict.sequence for verdict in told] == [operation.sequence for operation in operations]
        return told, list(executed)

    apart, _ = decided(in_order=False)
    told, done = decided(in_order=True)
    stops = [isinstance(one, Rejected) and REGISTRY[one.refusal.code].retryable for one in told]
    first = stops.index(True) if True in stops else len(told)
    assert told[:first] == apart[:first]
    assert done == [one.sequence for one in told if isinstance(one, Applied)]
    assert not any(isinstance(one, Applied) for one in told[first:])
