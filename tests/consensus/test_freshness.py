"""How old a node says that its state is: never younger than what it has heard allows."""

from __future__ import annotations

from math import inf

from oncegate.consensus.core.freshness import Freshness


def test_state_is_as_old_as_the_last_message_whose_commit_index_is_applied():
    fresh = Freshness()
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
    fresh = Freshness()
    fresh.woke(100.0, 60.0)
    fresh.heard(5, 100.0)
    fresh.applied(5)
    assert fresh.current_at(None) == 40.0
    fresh.heard(5, 100.1)
    fresh.applied(5)
    assert fresh.current_at(None) == 100.1


def test_leader_is_as_old_as_its_last_confirmation_and_sleep_is_not_excused():
    fresh = Freshness()
    assert fresh.current_at(10.0) == 10.0
    fresh.woke(100.0, 60.0)
    # Consensus moves the answers of before the sleep on by the sleep; those of the tick that ends it came any time.
    for excused in (99.9, 100.0):
        assert fresh.current_at(excused) == excused - 60.0
    assert fresh.current_at(100.1) == 100.1
