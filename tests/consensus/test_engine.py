"""The engine and its parts: whose messages count, what waits for the flush, what a leader's reads wait for, how old the
state is."""

from __future__ import annotations

from math import inf

import pytest

from oncegate.consensus.core.applying import Freshness
from oncegate.consensus.errors import NotLeader, NotReady
from oncegate.consensus.messages import (
    Ack,
    Append,
    PreVoteReply,
    PreVoteRequest,
    ReadProbe,
    ReadProbeAck,
    VoteReply,
    VoteRequest,
)
from tests.consensus.one_engine import OneEngine


def entry(index, term, command=b"command"):
    return (command, index, term)


def test_an_acknowledgement_and_a_vote_leave_after_the_flush_and_a_pre_vote_needs_none():
    one = OneEngine()
    done = []
    flush = one.engine.log.flush
    one.engine.log.flush = lambda: (done.append("flush"), flush())
    one.engine._send = lambda peer, message: done.append(type(message).__name__)
    one.engine._voting._send = one.engine._send
    one.receives("n2", PreVoteRequest(6, 1, 9, 5), VoteRequest(6, 9, 5))
    assert done == ["PreVoteReply", "flush", "VoteReply"]
    done.clear()
    one.receives("n2", Append(6, 1, 0, 1, [entry(2, 6)]))
    assert done == ["flush", "Ack"]


def test_appends_leave_before_the_leaders_own_flush():
    one = OneEngine().lead()
    one.engine.leading.propose(b"command", "token")
    flush, flushed = one.engine.log.flush, []
    one.engine.log.flush = lambda: (flushed.append(len(one.said(Append))), flush())
    one.tick()
    assert flushed[0] == 2


def test_a_message_of_an_earlier_connection_is_dropped():
    one = OneEngine()
    one.engine.peer_up("n2", 2)
    one.receives("n2", Append(5, 0, 0, 0, []))
    assert one.said(Ack) == []
    assert one.engine.leader_id is None


def test_who_is_no_member_gets_no_vote_and_raises_no_term_while_there_is_a_leader():
    one = OneEngine().follow("n2", term=5)
    one.engine.peer_up("n9", 1)
    one.receives("n9", VoteRequest(8, 9, 5), PreVoteRequest(8, 1, 9, 5), Ack(8, 1, False, 0, 0))
    assert one.engine.raft.term() == 5
    assert one.said(VoteReply) == one.said(PreVoteReply) == []
    one.receives("n3", VoteRequest(8, 9, 5))
    assert one.engine.raft.term() == 8
    assert len(one.said(VoteReply, "n3")) == 1


def test_an_acknowledgement_from_which_nothing_follows_wants_no_tick():
    one = OneEngine().lead()
    one.engine.leading.propose(b"command", "token")
    one.tick()
    appends = {peer: one.said(Append, peer)[-1][1] for peer in one.peers}
    last = one.engine.log.last_index
    answer = {peer: Ack(1, 1, True, last, append.prev_index) for peer, append in appends.items()}
    one.engine.receive("n2", 1, answer["n2"])
    assert one.engine.inbox.tick_wanted
    one.tick()
    assert one.results == [("token", (last, b"command"))]
    one.engine.receive("n3", 1, answer["n3"])
    assert not one.engine.inbox.tick_wanted, "the entry is committed, and nothing waits to be sent"


def test_a_read_waits_for_a_majority_that_confirms_its_own_round():
    one = OneEngine().lead()
    one.engine.leading.read("first")
    one.tick()
    (_, asked), (_, same) = one.said(ReadProbe)
    assert asked == same
    one.engine.receive_probe_ack("n2", ReadProbeAck(asked.term, asked.number))
    assert one.results == [("first", one.engine.raft.commit_index())]
    one.engine.leading.read("second")
    one.tick()
    one.engine.receive_probe_ack("n3", ReadProbeAck(asked.term, asked.number))
    assert len(one.results) == 1, "a late answer to the first round confirms nothing of the second"
    one.tick(one.now + 0.11)
    probes = one.said(ReadProbe)
    assert len(probes) == 4, "asked again after a heartbeat"
    one.engine.receive_probe_ack("n3", ReadProbeAck(asked.term, probes[-1][1].number))
    assert [token for token, _ in one.results] == ["first", "second"]


def test_reads_and_commands_end_with_leadership():
    one = OneEngine().lead()
    one.engine.leading.read("read")
    one.engine.leading.propose(b"command", "command")
    one.tick()
    one.receives("n2", Append(9, 0, 0, 0, []))
    assert {token: type(error).__name__ for token, error in one.failures} == {
        "command": "LeadershipLost",
        "read": "NotLeader",
    }
    with pytest.raises(NotLeader):
        one.engine.leading.read("too late")


def test_a_leader_that_has_not_committed_in_its_term_serves_no_read():
    one = OneEngine().campaign()
    one.receives("n2", VoteReply(one.engine.raft.term()))
    assert one.engine.raft.role().value == "leader"
    with pytest.raises(NotReady):
        one.engine.leading.read("too early")


# -- how old the state is: never younger than what was heard allows -----------------------------------------


def test_state_is_as_old_as_the_last_message_whose_commit_index_is_applied():
    fresh = Freshness(8)
    assert fresh.current_at(None) == -inf
    fresh.heard(5, 10.0)
    fresh.applied(4)
    assert fresh.current_at(None) == -inf
    fresh.applied(5)
    assert fresh.current_at(None) == 10.0
    fresh.heard(9, 11.0)
    fresh.applied(7)
    assert fresh.current_at(None) == 10.0
    fresh.heard(9, 12.0)
    fresh.applied(9)
    assert fresh.current_at(None) == 12.0


def test_message_that_waited_while_the_node_slept_counts_as_of_before_the_sleep():
    fresh = Freshness(8)
    fresh.woke(100.0, 60.0)
    fresh.heard(5, 100.0)
    fresh.applied(5)
    assert fresh.current_at(None) == 40.0
    fresh.heard(5, 100.1)
    fresh.applied(5)
    assert fresh.current_at(None) == 100.1


def test_leader_is_as_old_as_its_last_confirmation_and_sleep_is_not_excused():
    fresh = Freshness(8)
    assert fresh.current_at(10.0) == 10.0
    fresh.woke(100.0, 60.0)
    # Consensus moves the answers of before the sleep on by the sleep; those of the tick that ends it came any time.
    for excused in (99.9, 100.0):
        assert fresh.current_at(excused) == excused - 60.0
    assert fresh.current_at(100.1) == 100.1


def test_leader_that_sleeps_again_and_again_is_as_old_as_all_of_its_sleeps():
    one = OneEngine().lead()
    confirmed_at = one.now
    for slept_s in (60.0, 0.3, 0.7):
        one.tick(one.now + slept_s)
        assert one.engine.leading.ready
        assert one.engine.age_s >= one.now - confirmed_at - 1e-6
    one.receives("n2", Ack(one.engine.raft.term(), 1, True, 1, 0))
    one.tick(one.now + 0.1)
    assert one.engine.age_s < 1.0
