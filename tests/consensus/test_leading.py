"""What a leader knows and does for its followers: progress, catching up, read rounds, heartbeats, transfers."""

from __future__ import annotations

from itertools import pairwise

import pytest

from oncegate.consensus.core.leader_reads import ReadRounds
from oncegate.consensus.core.progress import Progress, ProgressState
from oncegate.consensus.core.transfer import Transfers, most_up_to_date
from oncegate.consensus.errors import ChangeRefused, LeadershipLost, TransferFailed
from oncegate.consensus.messages import Append
from oncegate.consensus.snapshot.throttle import Growth
from tests.consensus.one_engine import OneEngine

# -- one follower: three states, and what moves it from one to another ---------------------------------------

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


# -- catching up and heartbeats ------------------------------------------------------------------------------


def test_growth_is_that_of_the_last_window_and_forgotten_after_a_pause():
    growth = Growth()
    growth.observe(1000, 0.0)
    assert growth.per_s == 0
    growth.observe(1100, 0.1)
    growth.observe(1600, 0.5)
    assert growth.per_s == 1200
    growth.observe(9000, 100.0)
    assert growth.per_s == 1200
    growth.observe(9000, 100.6)
    assert growth.per_s == 0


@pytest.mark.parametrize("answers", [("n2", "n3"), ("n2",)], ids=["all answer", "one is silent"])
def test_an_idle_leader_sends_every_follower_a_heartbeat_in_time(answers):
    one = OneEngine(heartbeat_ms=100).lead()
    one.sent.clear()
    seen = {"n2": [one.now], "n3": [one.now]}
    end = one.now + 3.0
    while one.now < end:
        # As the owner does: no tick comes earlier, since nothing happens.
        one.tick(max(one.engine.deadline(), one.now + 0.001))
        for peer, times in seen.items():
            times += [at for at, to, message in one.sent if to == peer and type(message) is Append]
        one.acknowledge(*answers)
        one.sent.clear()
    for times in seen.values():
        assert len(times) >= 30
        assert max(later - earlier for earlier, later in pairwise(times)) < 0.1 + 0.002


# -- rounds of reads (Raft thesis §6.4) ----------------------------------------------------------------------


def rounds_among(voters):
    rounds = ReadRounds()
    rounds.set_peers(frozenset(f"n{number}" for number in range(2, voters + 1)))
    return rounds


def test_a_read_is_answered_after_a_majority_has_confirmed():
    rounds = rounds_among(5)
    rounds.add("a")
    number = rounds.start(17, 0.0)
    rounds.confirm("n2", number)
    rounds.confirm("n2", number)
    assert rounds.finish() == (0, [])
    rounds.confirm("n3", number)
    assert rounds.finish() == (17, ["a"])
    assert rounds.finish() == (0, [])


def test_a_read_that_arrives_during_a_round_waits_for_the_next():
    rounds = rounds_among(3)
    rounds.add("a")
    number = rounds.start(17, 0.0)
    rounds.add("b")
    assert not rounds.wanted
    rounds.confirm("n2", number)
    assert rounds.finish() == (17, ["a"])
    assert rounds.wanted
    number = rounds.start(20, 0.0)
    rounds.confirm("n3", number)
    assert rounds.finish() == (20, ["b"])


def test_confirmations_of_an_earlier_round_do_not_count():
    rounds = rounds_among(3)
    rounds.add("a")
    old = rounds.start(17, 0.0)
    rounds.start(18, 1.0)
    rounds.confirm("n2", old)
    assert rounds.finish() == (0, [])


def test_a_late_answer_counts_though_the_peer_was_asked_again_meanwhile():
    rounds = rounds_among(3)
    rounds.add("a")
    number = rounds.start(17, 0.0)
    rounds.add("b")
    assert rounds.ask_again(0.1) == number
    rounds.confirm("n2", number)
    assert rounds.finish() == (17, ["a"])
    assert rounds.wanted


def test_a_cluster_of_one_needs_no_confirmation():
    rounds = rounds_among(1)
    rounds.add("a")
    rounds.start(3, 0.0)
    assert rounds.finish() == (3, ["a"])


def test_an_aborted_round_returns_every_read():
    rounds = rounds_among(3)
    rounds.add("a")
    rounds.start(3, 0.0)
    rounds.add("b")
    assert rounds.abort() == ["a", "b"]
    assert not rounds.asking
    assert not rounds.wanted


def test_a_confirmation_of_a_node_that_does_not_vote_does_not_count():
    rounds = rounds_among(3)
    rounds.add("a")
    number = rounds.start(3, 0.0)
    rounds.confirm("learner", number)
    assert rounds.finish() == (0, [])
    rounds.confirm("n2", number)
    assert rounds.finish() == (3, ["a"])


# -- transfers -----------------------------------------------------------------------------------------------


@pytest.fixture
def ended():
    return {}


@pytest.fixture
def transfers(ended):
    return Transfers(ended.__setitem__, ended.__setitem__)


def test_the_target_is_told_once_it_has_everything_and_callers_have_their_results(transfers):
    transfers.begin("n2", "token", 5.0)
    assert not transfers.tell(applied_index=10, matched_index=9, last_index=10)
    assert not transfers.tell(applied_index=9, matched_index=10, last_index=10)
    assert transfers.tell(applied_index=10, matched_index=10, last_index=10)
    assert not transfers.tell(applied_index=10, matched_index=10, last_index=10)


def test_a_transfer_ends_well_when_the_target_leads(transfers, ended):
    transfers.begin("n2", "first", 5.0)
    transfers.begin("n2", "second", 6.0)
    transfers.leader_seen("n2")
    assert ended == {"first": "n2", "second": "n2"}
    assert transfers.target is None


def test_a_transfer_fails_when_somebody_else_leads_or_time_is_up(transfers, ended):
    transfers.begin("n2", "token", 5.0)
    transfers.leader_seen("n3")
    assert isinstance(ended["token"], TransferFailed)
    transfers.begin("n2", "late", 5.0)
    assert not transfers.expire(4.9)
    assert transfers.expire(5.0)
    assert isinstance(ended["late"], TransferFailed)
    assert not transfers.expire(6.0)


def test_one_transfer_at_a_time(transfers):
    transfers.begin("n2", "token", 5.0)
    with pytest.raises(ChangeRefused):
        transfers.begin("n3", "token", 5.0)


def test_a_stopping_node_answers_those_who_wait(transfers, ended):
    transfers.begin("n2", "token", 5.0)
    transfers.stop(LeadershipLost("stopped"))
    assert isinstance(ended["token"], LeadershipLost)


def test_the_most_up_to_date_voter_takes_over():
    assert most_up_to_date({"n2": 5, "n3": 7, "n4": 7}, {"n2", "n3", "n4"}) == "n3"
    with pytest.raises(TransferFailed):
        most_up_to_date({}, set())
