"""Nodes whose loops run late, as on a machine that has too little processor time for them."""

import math
from dataclasses import replace

import pytest

from oncegate.proof.sim.engine.engine_node import EngineNode
from oncegate.proof.sim.engine.plan import make_plan
from oncegate.proof.sim.engine.run import run_plan
from tests.sim.test_topologies import DEFAULT_TIMES

BEGINS_S = 5.0
"""Until then a leader is elected, and nobody is late."""


def late_nodes(shortest_s, longest_s):
    """A type of nodes whose every tick comes late, and the list of leaders they see."""
    leaders = []

    class LateNode(EngineNode):
        def _wake_at(self, at):
            if self.world.scheduler.now < BEGINS_S:
                super()._wake_at(at)
            elif self._next_tick == math.inf or at + longest_s < self._next_tick:
                super()._wake_at(at + self.rng.uniform(shortest_s, longest_s))

        def _role(self, change):
            super()._role(change)
            if change.ready:
                leaders.append((self.name, change.term))

    return LateNode, leaders


@pytest.mark.parametrize(("longest_s", "minutes", "seed"), [(0.5, 10, 1), *((1.5, 2, seed) for seed in range(4))])
def test_nodes_whose_ticks_come_late_keep_their_leader(longest_s, minutes, seed):
    fixed = {"joiners": (), "clients": 1, "read_share": 0.0, "settles": False, "save_every": None, "think_s": 1.0}
    plan = make_plan(seed, nodes=3, kinds={}, seconds=minutes * 60.0, **fixed)
    node_type, leaders = late_nodes(0.05, longest_s)
    settings = {**plan.settings, **DEFAULT_TIMES}
    outcome = run_plan(replace(plan, settings=settings), node_type=node_type)
    assert not outcome.failed, outcome.text
    assert len(leaders) == 1
    assert outcome.counts["acknowledged"] > minutes * 6
