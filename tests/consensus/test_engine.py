"""Moments: how old a state is, heartbeats in time, the end of a transfer, a round of reads without its majority."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest

from oncegate.consensus.core.applying import Freshness
from oncegate.consensus.core.leader_reads import ReadRounds
from oncegate.consensus.core.transfer import Transfers
from oncegate.consensus.errors import TransferFailed
from oncegate.consensus.messages import Append
from tests.consensus.one_engine import OneEngine


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


def test_a_transfer_ends_at_its_deadline_and_says_so_once():
    ended = {}
    transfers = Transfers(ended.__setitem__, ended.__setitem__)
    transfers.begin("n2", "late", 5.0)
    assert [transfers.expire(now) for now in (4.9, 5.0, 6.0)] == [False, True, False]
    assert isinstance(ended["late"], TransferFailed)


def test_a_round_without_its_majority_has_no_read_point():
    rounds = ReadRounds()
    rounds.set_peers(frozenset(("n2", "n3")))
    rounds.add("a")
    rounds.confirm("n2", rounds.start(17, 0.0) + 1)
    assert rounds.finish() == (0, [])
