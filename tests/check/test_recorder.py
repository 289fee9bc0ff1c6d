"""A history says what happened: one open operation a process, and unknown outcomes stay open for ever."""

from __future__ import annotations

import pytest

from oncegate.proof.check.direct_session import AttemptReply, verdict_of
from oncegate.proof.check.recorder import LANES, HistoryRecorder
from oncegate.proof.lincheck import Event, operations


def test_process_goes_on_under_a_new_number_after_an_unknown_outcome() -> None:
    events: list[Event] = []
    ticks = iter(range(100))
    recorder = HistoryRecorder(events.append, clock=lambda: next(ticks))
    recorder.begin(3, "write", "k", 1).info("TIMEOUT")
    recorder.begin(3, "write", "k", 2).ok()
    recorder.begin(3, "read", "k").fail("NO_LEADER")
    assert [event.process for event in events] == [3, 3, 3 + LANES, 3 + LANES, 3 + LANES, 3 + LANES]
    assert [operation.status for operation in operations(events)] == ["unknown", "ok", "failed"]
    assert [event.time for event in events] == sorted(event.time for event in events)


def test_second_operation_of_a_process_at_once_is_refused() -> None:
    recorder = HistoryRecorder(lambda event: None)
    recorder.begin(0, "read", "k")
    with pytest.raises(ValueError, match="under way"):
        recorder.begin(0, "read", "k")


def test_history_is_bounded_and_what_is_under_way_is_still_completed() -> None:
    events: list[Event] = []
    recorder = HistoryRecorder(events.append, events_max=1)
    operation = recorder.begin(0, "read", "k")
    assert recorder.full
    operation.ok(None)
    assert len(events) == 2


REJECTED = {"sequence": 1, "status": "rejected", "code": "X", "retryable": False}


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (AttemptReply(0, None, {}, "no answer in time", doubt=True, retryable=True), "unknown"),
        (AttemptReply(0, None, {}, "no connection", doubt=False, retryable=True), "failed"),
        (AttemptReply(504, {}, {}, "TIMEOUT", doubt=True, retryable=True), "unknown"),
        (AttemptReply(429, {}, {}, "OVERLOADED", doubt=False, retryable=True), "failed"),
        (AttemptReply(410, {}, {}, "FENCED", doubt=True, retryable=False), "failed"),
        (AttemptReply(200, b"nonsense", {}, "", doubt=False, retryable=False), "unknown"),
        (
            AttemptReply(
                200, {"results": [{**REJECTED, "outcome": "not_applied"}]}, {}, "", doubt=False, retryable=False
            ),
            "failed",
        ),
        (
            AttemptReply(200, {"results": [{**REJECTED, "outcome": "unknown"}]}, {}, "", doubt=False, retryable=False),
            "unknown",
        ),
        (AttemptReply(200, {"results": [{"status": "applied"}]}, {}, "", doubt=False, retryable=False), "applied"),
        (AttemptReply(200, {"results": [{"status": "refused"}]}, {}, "", doubt=False, retryable=False), "refused"),
    ],
)
def test_end_of_an_attempt_is_read_in_doubt_as_unknown(reply: AttemptReply, kind: str) -> None:
    assert verdict_of(reply, "n1").kind == kind
