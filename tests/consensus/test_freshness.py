"""How old a node says that its state is: never younger than what it has heard allows."""

from __future__ import annotations

from math import inf

from oncegate.consensus.core.freshness import Freshness
from oncegate.consensus.messages import Ack
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


def test_leader_that_sleeps_again_and_again_is_as_old_as_all_of_its_sleeps():
    one = OneEngine().lead()
    confirmed_at = one.now
    for slept_s in (60.0, 0.3, 0.7):
        one.tick(one.now + slept_s)
        assert one.engine.ready
        assert one.engine.age_s >= one.now - confirmed_at - 1e-6
    one.receives("n2", Ack(one.engine.term, 1, True, 1, 0))
    one.tick(one.now + 0.1)
    assert one.engine.age_s < 1.0
