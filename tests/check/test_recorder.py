"""A history says what happened: one open operation a process, and unknown outcomes stay open for ever."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any

import pytest

from oncegate.proof.check.direct_session import AttemptReply, verdict_of
from oncegate.proof.check.recorder import LANES, HistoryRecorder, OpenOperation
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


ENDS: dict[str, tuple[str, Any, str | None]] = {
    "ok": ("ok", 7, None),
    "fail": ("fail", None, "E"),
    "info": ("info", None, "E"),
    "no result, failed": ("fail", None, "E"),
    "no result, in doubt": ("info", None, "E"),
}


def end(operation: OpenOperation, how: str, node: str | None) -> None:
    match how:
        case "ok":
            operation.ok(7, node)
        case "fail":
            operation.fail("E", node)
        case "info":
            operation.info("E", node)
        case _:
            operation.no_result("E", node, failed=how.endswith("failed"))


@pytest.mark.parametrize("seed", range(20))
def test_each_event_is_of_its_operation_and_only_a_doubt_takes_a_new_number(seed: int) -> None:
    dice, ticks, events, wanted = Random(seed), count(1_000), list[Event](), list[Event]()
    recorder = HistoryRecorder(events.append, clock=lambda: next(ticks))
    under_way: dict[int, tuple[OpenOperation, Event]] = {}
    numbers = {worker: worker for worker in (0, 1, LANES - 1)}
    for time in range(1, 120):
        worker, node = dice.choice([*numbers]), dice.choice(["n1", "n2", None])
        if worker in under_way:
            operation, begun = under_way.pop(worker)
            how = dice.choice([*ENDS])
            kind, value, error = ENDS[how]
            end(operation, how, node)
            wanted.append(Event(begun.process, kind, begun.f, begun.key, value, time, node, begun.request, error))  # type: ignore[arg-type]
            numbers[worker] += LANES if kind == "info" else 0
        else:
            begun = Event(
                numbers[worker], "invoke", dice.choice("fg"), dice.choice("kl"), time, time, node, f"a/{time}"
            )
            operation = recorder.begin(worker, begun.f, begun.key, time, node=node, request=begun.request)
            under_way[worker] = operation, begun
            wanted.append(begun)
    assert events == wanted
    assert recorder.now_ns() == 120, "since the run began"
    for none in (-1, LANES):
        with pytest.raises(ValueError, match="is none"):
            recorder.begin(none, "f")


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
