"""What a leader knows of a follower, whatever happens in whatever order, against a model of what is on its way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.consensus.core.progress import Progress, ProgressState

PROBE, REPLICATE, SNAPSHOT = ProgressState.PROBE, ProgressState.REPLICATE, ProgressState.SNAPSHOT
NEVER = float("-inf")
indices = st.integers(0, 12)
events = st.one_of(
    st.tuples(st.just("sent"), indices, st.sampled_from([0, 0, 10, 25]), st.integers(0, 9)),
    st.tuples(st.just("matched"), indices),
    st.tuples(st.just("refused"), indices, indices),
    st.tuples(st.sampled_from(["reconnected", "begin_snapshot", "has_room"])),
    st.tuples(st.just("full"), st.sampled_from([5.0, 7.5])),
    st.tuples(st.just("snapshot_over"), indices),
)


class Model:
    """The same by a list of what is on its way."""

    def __init__(self, next_index: int, now: float) -> None:
        self.match, self.next, self.state = 0, next_index, PROBE
        self.probing = self.disk_full = False
        self.on_the_way: list[tuple[int, int, float]] = []
        self.commit, self.sent_at, self.ack_at, self.paused = 0, NEVER, now, NEVER
        self.acked_sent_at: float | None = None

    def look_for_the_place(self, state: ProgressState) -> None:
        self.state, self.probing, self.on_the_way = state, False, []

    def step(self, what: str, *given: Any) -> object:
        match what:
            case "sent":
                last, size, commit, now = given
                self.sent_at, self.commit = now, commit
                if self.state is not REPLICATE:
                    self.probing = True
                elif size:
                    self.next = last + 1
                    self.on_the_way.append((last, size, now))
            case "matched":
                (index,) = given
                self.state, self.next = REPLICATE, max(self.next, index + 1)
                came: list[tuple[int, int, float]] = []
                while self.on_the_way and self.on_the_way[0][0] <= index:
                    came.append(self.on_the_way.pop(0))
                self.acked_sent_at = came[-1][2] if came else None
                news, self.match = index > self.match, max(self.match, index)
                return news
            case "refused":
                prev, hint = given
                lost = prev >= self.match and (self.state is REPLICATE or prev == self.next - 1)
                if hint and lost and self.state is not SNAPSHOT:
                    self.next = max(self.match + 1, min(hint, prev))
                    self.look_for_the_place(PROBE)
            case "reconnected":
                self.look_for_the_place(SNAPSHOT if self.state is SNAPSHOT else PROBE)
            case "begin_snapshot":
                self.look_for_the_place(SNAPSHOT)
            case "has_room":
                self.disk_full = False
            case "full":
                self.paused, self.disk_full, self.next = given[0], True, self.match + 1
                self.look_for_the_place(PROBE)
            case "snapshot_over":
                self.next = max(self.match, given[0]) + 1
                self.look_for_the_place(PROBE)
        return None


def shown(one: Progress) -> tuple[object, ...]:
    return (
        *(one.match_index, one.next_index, one.state, one.probe_sent, one.disk_full, one.in_flight_bytes),
        *(one.commit_sent, one.sent_at, one.ack_at, one.paused_until, one.acked_sent_at),
    )


def wanted(one: Model) -> tuple[object, ...]:
    size = sum(size for _, size, _ in one.on_the_way)
    return (
        *(one.match, one.next, one.state, one.probing, one.disk_full, size),
        *(one.commit, one.sent_at, one.ack_at, one.paused, one.acked_sent_at),
    )


@given(st.integers(1, 8), st.lists(events, max_size=25))
def test_progress_is_that_of_the_model(next_index: int, steps: list[tuple[Any, ...]]) -> None:
    found, model = Progress(next_index, 3.0), Model(next_index, 3.0)
    assert shown(found) == wanted(model)
    assert found.wanted_from == 0
    for at, (what, *arguments) in enumerate(steps):
        if what == "sent":
            arguments.append(10.0 + at)
        news = getattr(found, what)(*arguments)
        assert (news, shown(found)) == (model.step(what, *arguments), wanted(model)), (at, what, arguments)


def replicating(match: int, *sent: tuple[int, int]) -> Progress:
    one = Progress(match + 1, 0.0)
    one.matched(match)
    for now, (last, size) in enumerate(sent):
        one.sent(last, size, 0, float(now))
    return one


def test_answer_covers_what_left_before_it_and_tells_when_the_newest_of_that_had_left() -> None:
    one = replicating(3, (5, 10), (7, 20), (9, 40))
    assert (one.next_index, one.in_flight_bytes) == (10, 70)
    assert one.matched(7)
    assert (one.acked_sent_at, one.in_flight_bytes, one.next_index) == (1.0, 40, 10)
    assert not one.matched(7)
    assert (one.acked_sent_at, one.in_flight_bytes, one.match_index) == (None, 40, 7)


@pytest.mark.parametrize(
    ("prev", "hint", "next_index"),
    [(5, 4, 4), (5, 9, 5), (5, 1, 4), (3, 3, 4), (2, 2, 10), (5, 0, 10)],
)
def test_refusal_moves_back_to_what_it_says_and_never_behind_what_matched(
    prev: int, hint: int, next_index: int
) -> None:
    one = replicating(3, (9, 10))
    one.refused(prev, hint)
    assert one.next_index == next_index
    assert one.state is (REPLICATE if next_index == 10 else PROBE)


@pytest.mark.parametrize(("prev", "moved"), [(6, False), (7, True), (8, False)])
def test_refusal_of_another_append_than_the_probe_changes_nothing(prev: int, moved: bool) -> None:
    one = Progress(8, 0.0)
    one.sent(8, 10, 0, 1.0)
    one.refused(prev, 2)
    assert (one.next_index, one.probe_sent) == ((2, False) if moved else (8, True))
    one.begin_snapshot()
    one.refused(one.next_index - 1, 1)
    assert one.state is SNAPSHOT
