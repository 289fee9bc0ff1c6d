"""Rounds of reads, as in Raft thesis §6.4."""

from __future__ import annotations

from oncegate.consensus.core.read_index import ReadRounds


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
    assert not rounds.open
    assert not rounds.wanted


def test_a_confirmation_of_a_node_that_does_not_vote_does_not_count():
    rounds = rounds_among(3)
    rounds.add("a")
    number = rounds.start(3, 0.0)
    rounds.confirm("learner", number)
    assert rounds.finish() == (0, [])
    rounds.confirm("n2", number)
    assert rounds.finish() == (3, ["a"])
