"""One follower, as the leader sees it: its three states, and what moves it from one to another."""

from __future__ import annotations

import pytest

from oncegate.consensus.core.progress import Progress, ProgressState

PROBE, REPLICATE, SNAPSHOT = ProgressState


def follower(state):
    """A follower that has matched 5 entries and is sent the sixth next."""
    progress = Progress(6, now=0.0)
    progress.matched(5)
    if state is PROBE:
        progress.reconnected()
    elif state is SNAPSHOT:
        progress.begin_snapshot()
    assert (progress.state, progress.next_index) == (state, 6)
    return progress


EVENTS = {
    "matched": lambda progress: progress.matched(7),
    "refused": lambda progress: progress.refused(5, 3),
    "full": lambda progress: progress.full(1.0),
    "reconnected": lambda progress: progress.reconnected(),
    "begin_snapshot": lambda progress: progress.begin_snapshot(),
    "snapshot_over": lambda progress: progress.snapshot_over(9),
}


@pytest.mark.parametrize(
    ("event", "after"),
    [
        ("matched", (REPLICATE, REPLICATE, REPLICATE)),
        ("refused", (PROBE, PROBE, SNAPSHOT)),
        ("reconnected", (PROBE, PROBE, SNAPSHOT)),
        ("begin_snapshot", (SNAPSHOT, SNAPSHOT, SNAPSHOT)),
        ("snapshot_over", (PROBE, PROBE, PROBE)),
    ],
)
def test_each_event_leads_to_one_state(event, after):
    for before, expected in zip(ProgressState, after, strict=True):
        progress = follower(before)
        EVENTS[event](progress)
        assert progress.state is expected, f"{event} in {before}"


def test_a_probe_is_alone_until_its_answer_and_appends_stream_afterwards():
    progress = Progress(6, now=0.0)
    progress.sent(8, 100, commit=5, now=1.0)
    assert (progress.probe_sent, progress.next_index, progress.in_flight_bytes) == (True, 6, 0)
    progress.matched(8)
    for last_index in (10, 12):
        progress.sent(last_index, 100, commit=5, now=1.0)
    assert (progress.next_index, progress.in_flight_bytes) == (13, 200)
    progress.matched(10)
    assert (progress.next_index, progress.in_flight_bytes) == (13, 100)


@pytest.mark.parametrize("event", ["refused", "full", "reconnected", "begin_snapshot", "snapshot_over"])
def test_nothing_is_in_flight_to_a_follower_whose_place_is_looked_for(event):
    progress = follower(REPLICATE)
    progress.sent(9, 100, commit=5, now=1.0)
    EVENTS[event](progress)
    assert (progress.in_flight_bytes, progress.probe_sent) == (0, False)


def test_a_refusal_that_comes_late_does_not_move_the_place_that_is_known():
    """Of the appends after 5 and after 7, the first found no room; so the second found no entry 7."""
    progress = follower(REPLICATE)
    progress.sent(7, 100, commit=5, now=1.0)
    progress.sent(9, 100, commit=5, now=1.0)
    progress.matched(5)
    progress.full(until=2.0)
    progress.sent(5, 0, commit=5, now=1.5)
    progress.refused(7, 6)
    assert (progress.state, progress.next_index, progress.probe_sent) == (PROBE, 6, True)


def test_the_place_goes_back_as_far_as_the_follower_says_but_never_behind_what_matched():
    progress = follower(PROBE)
    progress.next_index = 20
    progress.refused(19, 12)
    assert progress.next_index == 12
    progress.refused(11, 3)
    assert progress.next_index == 6
