"""A tracker that goes on after a restart of its client."""

from __future__ import annotations

from oncegate.rifl.request_tracker import RequestTracker


def test_resumed_tracker_acknowledges_nothing_that_is_missing_and_reuses_no_number() -> None:
    tracker = RequestTracker.resumed(window=8, highest=10, held=[7, 12])
    assert tracker.first_incomplete == 7
    assert tracker.incomplete == 2
    assert tracker.room_for_singles == 2  # 7 to 12 take six places, as the server counts them
    assert list(tracker.take_singles(2)) == [13, 14]
    tracker.complete([7])
    assert tracker.first_incomplete == 12
    tracker.complete([12, 13, 14])
    assert tracker.first_incomplete == 15


def test_resumed_tracker_without_open_numbers_begins_behind_the_highest() -> None:
    tracker = RequestTracker.resumed(window=8, highest=10, held=[])
    assert tracker.first_incomplete == 11
    assert list(tracker.take_singles(8)) == list(range(11, 19))


def test_settled_doubt_is_acknowledged_and_an_open_number_is_not() -> None:
    tracker = RequestTracker(window=8)
    tracker.take_singles(3)
    tracker.abandon([1])
    assert not tracker.settle(2)
    assert not tracker.settle(9)
    assert tracker.settle(1)
    assert not tracker.settle(1)
    assert tracker.first_incomplete == 2


def test_resumed_tracker_acknowledges_no_more_than_the_server_accepts() -> None:
    tracker = RequestTracker.resumed(window=16, highest=41, held=[61])
    assert tracker.first_incomplete == 41 + 16
    assert list(tracker.take_singles(2)) == [57, 62]
    tracker.complete([57])
    assert tracker.first_incomplete == 61 <= 57 + 16
    tracker.complete([61])
    assert tracker.first_incomplete == 62
