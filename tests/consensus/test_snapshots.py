"""A follower whose next entry is gone gets the state instead, whole or not at all."""

from __future__ import annotations

import pytest

from tests.consensus.durable_simulation import DurableSimulation


def long_run(seed, *, engine_type=None, rounds=4, steps=250, simulation=DurableSimulation):
    """Faults all the time; again and again a follower is left so far behind that the log does not reach it."""
    options = {} if engine_type is None else {"engine_type": engine_type}
    sim = simulation(seed, **options)
    for _ in range(rounds):
        sim.leave_behind(20)
        for _ in range(steps):
            sim.step()
    sim.settle_and_check()
    return sim


@pytest.mark.parametrize("seed", range(10))
def test_promises_hold_while_followers_need_snapshots_under_every_fault(seed):
    sim = long_run(seed)
    assert sim.installs >= 2
    assert max(sim.bases) > 100


@pytest.mark.parametrize("seed", range(6))
def test_a_follower_left_behind_gets_the_state_and_goes_on(seed):
    sim = DurableSimulation(seed, faults=False)
    late = sim.leave_behind(10)
    sim.run_until(lambda: late.machine.installs == 1)
    sim.settle_and_check()
    assert late.machine.installs == 1
    assert late.engine.log.base.index > 10
