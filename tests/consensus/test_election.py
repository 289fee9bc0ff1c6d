"""When a node asks for votes, and when it would give its own."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from oncegate.consensus.core.election import Election, PreVoteStanding
from oncegate.consensus.messages import Ack, Append, PreVoteReply, PreVoteRequest, TimeoutNow, VoteRequest
from tests.consensus.one_engine import OneEngine, config_of

FOLLOWING = PreVoteStanding(term=5, last_index=10, last_term=4, leads=False, leader_reachable=True)
REQUEST = PreVoteRequest(6, 1, 10, 4)


@pytest.fixture
def election():
    election = Election(config_of(), random.Random(1), 0.0)
    election.set_voters(frozenset(("n1", "n2", "n3")), 0.0)
    return election


def test_the_time_out_starts_again_with_each_message_of_the_leader(election):
    for now in (1.0, 2.0, 2.5):
        election.heard_leader(now)
        assert now + 0.6 <= election.deadline <= now + 1.2


def test_only_the_present_leader_puts_the_election_off():
    one = OneEngine().follow("n2", term=5)
    election = one.engine._election
    due = election.deadline
    one.now += 0.1
    one.receives("n3", Append(4, 0, 0, 0, []))
    assert election.deadline == due, "a deposed leader's append starts the time-out again"
    assert one.said(Ack, "n3")[0][1].term == 5
    one.receives("n2", Append(5, 0, 0, 0, []))
    assert election.deadline > due


@pytest.mark.parametrize("late_s", [0.7, 1.3])
def test_a_node_that_is_late_itself_holds_that_against_nobody(late_s):
    one = OneEngine(heartbeat_ms=100).follow("n2", term=5)
    one.tick(one.now + 0.2 + late_s)
    one.receives("n3", PreVoteRequest(6, 1, 10, 4))
    assert [reply.granted for _, reply in one.said(PreVoteReply)] == [False], "it could not hear its leader"
    one.receives("n2", Append(5, 0, 0, 0, []))
    assert one.said(PreVoteRequest) == []


@pytest.mark.parametrize("late_s", [0.0, 0.3, 2.0])
def test_a_node_that_is_always_late_still_asks_for_votes(late_s):
    one = OneEngine(heartbeat_ms=100).follow("n2", term=5)
    began = one.now
    while not one.said(PreVoteRequest):
        one.tick(one.engine.deadline() + late_s)
        assert one.now < began + 1.2 + 1.2 + 2 * late_s


def test_the_closing_of_the_leaders_connection_shortens_the_wait(election):
    election.heard_leader(1.0)
    election.leader_lost(1.1)
    assert 1.12 <= election.deadline <= 1.18


def test_a_majority_of_pre_votes_starts_one_election(election):
    attempt = election.begin(1.0)
    assert election.count("n2", attempt, 1.0)
    assert not election.count("n3", attempt, 1.0)


def test_pre_votes_of_an_earlier_attempt_do_not_count(election):
    attempt = election.begin(1.0)
    election.begin(2.0)
    assert not election.count("n2", attempt, 2.0)


def test_a_message_of_the_leader_ends_the_attempt(election):
    attempt = election.begin(1.0)
    election.heard_leader(1.1)
    assert not election.count("n2", attempt, 1.2)


def test_no_pre_vote_while_the_leader_is_near(election):
    election.heard_leader(1.0)
    assert not election.would_vote("n2", REQUEST, FOLLOWING, 1.5)
    assert election.would_vote("n2", REQUEST, FOLLOWING, 1.61)


def test_a_pre_vote_at_once_when_the_leaders_connection_is_closed(election):
    election.heard_leader(1.0)
    assert election.would_vote("n2", REQUEST, replace(FOLLOWING, leader_reachable=False), 1.01)


def test_a_leader_and_a_later_term_refuse(election):
    assert not election.would_vote("n2", REQUEST, replace(FOLLOWING, leads=True, leader_reachable=False), 9.0)
    assert not election.would_vote("n2", REQUEST, replace(FOLLOWING, term=6), 9.0)


def test_a_candidate_whose_log_is_behind_is_refused(election):
    for last_index, last_term in ((9, 4), (99, 3)):
        assert not election.would_vote("n2", PreVoteRequest(6, 1, last_index, last_term), FOLLOWING, 9.0)
    for last_index, last_term in ((10, 4), (1, 5)):
        assert election.would_vote("n2", PreVoteRequest(6, 1, last_index, last_term), FOLLOWING, 9.0)


def test_a_node_waits_for_each_candidate_once_a_term(election):
    closed = replace(FOLLOWING, leader_reachable=False)
    waits = []
    for now, candidate, term in ((9.0, "n2", 6), (9.1, "n2", 6), (9.2, "n3", 6), (9.3, "n2", 6), (9.4, "n2", 7)):
        election.deadline = now
        assert election.would_vote(candidate, PreVoteRequest(term, 1, 10, 4), closed, now)
        waits.append(election.deadline > now)
    assert waits == [True, False, True, False, True]


def test_a_pre_vote_that_is_refused_puts_nothing_off(election):
    election.deadline = 9.0
    assert not election.would_vote("n2", PreVoteRequest(6, 1, 9, 4), replace(FOLLOWING, leader_reachable=False), 9.0)
    assert election.deadline == 9.0


def test_hand_over_is_taken_from_the_present_leader_in_its_term_alone() -> None:
    one = OneEngine().follow("n2", term=6)
    one.receives("n2", TimeoutNow(5))  # of when it led before
    one.receives("n3", TimeoutNow(6))
    one.receives("n2", TimeoutNow(7))
    assert one.said(VoteRequest) == []
    one.receives("n2", TimeoutNow(6))
    assert {vote.term for _, vote in one.said(VoteRequest)} == {7}
    assert one.said(PreVoteRequest) == []
