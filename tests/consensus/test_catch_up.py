"""A follower far behind gets old entries at a bounded rate, and the others do not wait for it."""

from __future__ import annotations

from typing import ClassVar

import pytest

from oncegate.consensus.messages import Append
from oncegate.consensus.snapshot.throttle import Growth
from tests.consensus.simulation import Simulation


class SlowCatchUp(Simulation):
    settings: ClassVar = {"catch_up_bytes_per_s": 20_000}

    def __init__(self, seed):
        self.old = []
        self.ends = []
        super().__init__(seed, faults=False)

    def sent(self, source, target, message):
        if isinstance(message, Append) and message.entries:
            log = self.nodes[source].engine.log
            self.ends.append((self.now, log.end))
            if not log.in_memory(message.prev_index + 1):
                self.old.append((self.now, sum(len(entry[0]) for entry in message.entries)))
        super().sent(source, target, message)

    def grown(self, since, until):
        """Bytes by which the leader's log grew."""
        seen = [end for at, end in self.ends if since <= at <= until]
        return seen[-1] - seen[0]


def left_behind(simulation, seed):
    """A follower is cut off while 150 commands are acknowledged, and then comes back."""
    sim = simulation(seed)
    sim.run_until(lambda: sim.leader() is not None)
    late = next(node for node in sim.nodes.values() if node is not sim.leader())
    sim.cut = {late.name}
    target = len(sim.history.acknowledged) + 150
    sim.run_until(lambda: len(sim.history.acknowledged) >= target)
    sim.cut = set()
    return sim, late


@pytest.mark.parametrize("seed", range(4))
def test_old_entries_leave_at_the_configured_rate_beyond_the_growth_and_the_follower_catches_up(seed):
    sim, _ = left_behind(SlowCatchUp, seed)
    sim.settle_and_check()
    assert sum(size for _, size in sim.old) > 10_000
    piece = 300 + 512
    for start in range(len(sim.old)):
        total = 0
        for at, size in sim.old[start:]:
            total += size
            began = sim.old[start][0]
            # The growth of one window sets the rate of the next.
            bound = 20_000 * (at - began) + sim.grown(began - 2, at)
            assert total <= bound + sim.config("n1").append_bytes_max + piece


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


@pytest.mark.parametrize("seed", range(2))
def test_the_leader_goes_on_acknowledging_while_a_follower_catches_up(seed):
    sim, late = left_behind(SlowCatchUp, seed)
    behind = late.engine.log.last_index
    before = len(sim.history.acknowledged)
    sim.run_until(lambda: late.engine.log.last_index > behind + 100)
    assert len(sim.history.acknowledged) > before + 30
