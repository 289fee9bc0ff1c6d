"""An election clock, whatever happens in whatever order, against a model that keeps what happened.

All times are multiples of an eighth of a second, and so are the bounds of the time-outs: what is drawn between them
meets other moments exactly, and a bound that is off by one shows.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.consensus.core.election import Election, PreVoteStanding
from oncegate.consensus.messages import PreVoteRequest
from tests.consensus.one_engine import config_of

SHORT_S, LONG_S = 1.0, 2.0
SOON_S, LATE_S = 0.25, 0.5
CONFIG = config_of(election_ms_min=1000, election_ms_max=2000, fast_election_ms_min=250, fast_election_ms_max=500)
NAMES = ("n1", "n2", "n3", "n4", "n5")


class Draws(random.Random):
    """Draws the same parts of each range again and again."""

    def __init__(self, parts: tuple[float, ...]) -> None:
        super().__init__()
        self.parts, self.drawn = parts, 0

    def uniform(self, a: float, b: float) -> float:
        self.drawn += 1
        return a + (b - a) * self.parts[self.drawn % len(self.parts)]


class Model:
    """What a node of this name remembers: whom it heard when, who granted what, and whom it let go first."""

    def __init__(self, draws: Draws, now: float) -> None:
        self.time_out: Callable[[], float] = lambda: draws.uniform(SHORT_S, LONG_S)
        self.soon: Callable[[], float] = lambda: draws.uniform(SOON_S, LATE_S)
        self.voters: frozenset[str] = frozenset()
        self.attempts = 0
        self.asking = False
        self.granted: set[str] = set()
        self.heard_at: float | None = None
        self.excused_s = 0.0
        self.let_go: set[tuple[str, int]] = set()
        self.deadline = now + self.soon()

    def set_voters(self, voters: frozenset[str], now: float) -> None:
        self.voters = voters
        self.let_go = set()
        if len(voters) == 1 and "n1" in voters:
            self.deadline = min(self.deadline, now)
        self.asking = self.asking and "n1" in voters

    def wait(self, now: float) -> None:
        self.deadline = now + LONG_S

    def heard_leader(self, now: float) -> None:
        self.heard_at, self.excused_s, self.asking = now, 0.0, False
        self.deadline = now + self.time_out()

    def excuse(self, slept_s: float) -> None:
        slept_s = min(slept_s, LONG_S - self.excused_s)
        self.excused_s += slept_s
        self.heard_at = None if self.heard_at is None else self.heard_at + slept_s
        self.deadline += slept_s

    def voted(self, now: float) -> None:
        self.asking = False
        self.deadline = now + self.time_out()

    def leader_lost(self, now: float) -> None:
        self.heard_at = None
        self.deadline = min(self.deadline, now + self.soon())

    def begin(self, now: float) -> int:
        self.attempts += 1
        self.asking, self.granted = True, set()
        self.deadline = now + 2 * self.soon()
        return self.attempts

    def count(self, voter: str, attempt: int, now: float) -> bool:
        if not self.asking or attempt != self.attempts:
            return False
        if voter in self.voters:
            self.granted.add(voter)
        return self.settle(now)

    def settle(self, now: float) -> bool:
        votes = [name for name in self.voters if name == "n1" or name in self.granted]
        if not self.asking or 2 * len(votes) <= len(self.voters):
            return False
        self.asking = False
        self.deadline = now + self.time_out() / 3
        return True

    def would_vote(self, candidate: str, request: PreVoteRequest, mine: PreVoteStanding, now: float) -> bool:
        silent = self.heard_at is None or now - self.heard_at >= SHORT_S
        if request.last_term != mine.last_term:
            up_to_date = request.last_term > mine.last_term
        else:
            up_to_date = request.last_index >= mine.last_index
        near = mine.leads or (mine.leader_reachable and not silent)
        if near or request.term <= mine.term or not up_to_date:
            return False
        if all(name != candidate or term < request.term for name, term in self.let_go):
            self.let_go.add((candidate, request.term))
            self.deadline = max(self.deadline, now + self.soon() + LATE_S)
        return True


Step = tuple[float, tuple[Any, ...]]
"""How much later something happens, and what."""

candidates = st.sampled_from(NAMES[1:])
requests = st.builds(PreVoteRequest, st.integers(1, 3), st.just(1), st.integers(1, 3), st.integers(0, 1))
standings = st.builds(
    PreVoteStanding,
    term=st.sampled_from([0, 0, 1, 2]),
    last_index=st.integers(1, 3),
    last_term=st.integers(0, 1),
    leads=st.sampled_from([False, False, False, True]),
    leader_reachable=st.booleans(),
)
voters = st.one_of(st.integers(1, 5).map(lambda count: frozenset(NAMES[:count])), st.frozensets(st.sampled_from(NAMES)))
begins = st.just(("begin",))
counts = st.tuples(st.just("count"), candidates, st.sampled_from([0, 0, 0, -1, 1]))
asked = st.tuples(st.just("would_vote"), candidates, requests, standings)
asked_of_a_short_log = st.tuples(
    st.just("would_vote"),
    st.sampled_from(NAMES[1:3]),
    st.builds(PreVoteRequest, st.integers(1, 2), st.just(1), st.just(2), st.just(1)),
    st.builds(
        PreVoteStanding,
        term=st.just(0),
        last_index=st.just(1),
        last_term=st.just(1),
        leads=st.just(False),
        leader_reachable=st.booleans(),
    ),
)
others = st.one_of(
    st.tuples(st.sampled_from(["heard_leader", "voted", "leader_lost", "settle", "wait"])),
    st.tuples(st.just("set_voters"), voters),
    st.tuples(st.just("excuse"), st.integers(1, 12).map(lambda eighths: eighths / 8)),
)


def after(*times_s: float) -> Callable[[st.SearchStrategy[tuple[Any, ...]]], st.SearchStrategy[Step]]:
    return lambda events: st.tuples(st.sampled_from(times_s), events)


steps: st.SearchStrategy[list[Step]] = st.lists(
    st.one_of(
        st.lists(after(0.0, 0.125, 0.5)(others | asked | counts | begins), max_size=3),
        st.tuples(after(0.0)(begins), st.lists(after(0.0, 0.125)(counts | counts | counts | others), max_size=5)).map(
            lambda campaign: [campaign[0], *campaign[1]]
        ),
        st.tuples(after(0.0)(st.just(("heard_leader",))), after(0.875, 1.0, 1.125)(asked_of_a_short_log)).map(list),
        st.lists(after(0.0, 0.5)(asked_of_a_short_log | asked_of_a_short_log | others), max_size=4),
    ),
    max_size=6,
).map(lambda parts: [step for part in parts for step in part])
parts = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=3).map(tuple)


def both_do(election: Election, model: Model, now: float, what: str, *given: Any) -> tuple[object, object]:
    """Let the same happen to both, as long as a node would do it."""
    if what == "begin" and "n1" not in model.voters:
        what = "wait"
    match what:
        case "count":
            voter, other = given
            return election.count(voter, model.attempts + other, now), model.count(voter, model.attempts + other, now)
        case "excuse":
            election.excuse(*given)
            return None, model.excuse(*given)
    return getattr(election, what)(*given, now), getattr(model, what)(*given, now)


@given(parts, voters, steps)
def test_election_clock_is_that_of_the_model(
    parts: tuple[float, ...], first: frozenset[str], steps: list[Step]
) -> None:
    now = 8.0
    election, model = Election(CONFIG, Draws(parts), now), Model(Draws(parts), now)
    assert not election.may_campaign
    for at, (later_s, event) in enumerate([(0.0, ("set_voters", first)), *steps]):
        now += later_s
        found, wanted = both_do(election, model, now, *event)
        seen = (found, election.may_campaign, election.deadline)
        assert seen == (wanted, "n1" in model.voters, pytest.approx(model.deadline, abs=1e-9)), (at, event)


@given(parts, steps)
def test_before_the_first_configuration_no_pre_vote_is_counted(parts: tuple[float, ...], steps: list[Step]) -> None:
    now = 8.0
    election, model = Election(CONFIG, Draws(parts), now), Model(Draws(parts), now)
    for later_s, event in steps:
        now += later_s
        if event[0] != "set_voters":
            found, wanted = both_do(election, model, now, *event)
            assert (found, election.deadline) == (wanted, pytest.approx(model.deadline, abs=1e-9)), event


@pytest.mark.parametrize("voters", range(1, 6))
def test_pre_vote_is_won_by_more_than_half_of_the_voters_this_node_among_them(voters: int) -> None:
    election = Election(CONFIG, random.Random(1), 0.0)
    election.set_voters(frozenset(NAMES[:voters]), 0.0)
    attempt = election.begin(0.0)
    answers = [election.settle(0.0), *(election.count(name, attempt, 0.0) for name in NAMES[1:voters])]
    needed = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3}[voters]
    assert answers == [votes == needed for votes in range(1, voters + 1)]
