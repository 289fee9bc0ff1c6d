"""What the options of the command mean for a seed, and a job that runs one in another process.

Read next: :mod:`oncegate.proof.sim.engine.__main__`.
"""

from __future__ import annotations

from oncegate.proof.sim.engine.command import part_of
from oncegate.proof.sim.engine.engine_node import EngineNode
from oncegate.proof.sim.engine.faults import DEFAULT_MIX
from oncegate.proof.sim.engine.plan import make_plan
from oncegate.proof.sim.engine.planted import PLANTED
from oncegate.proof.sim.engine.run import Outcome, run_plan


def whole_plan(seed, options):
    kinds = None
    if options.faults is not None:
        kinds = {kind: DEFAULT_MIX.get(kind, 3) for kind in options.faults.split(",") if kind}
    elif options.also:
        kinds = {**DEFAULT_MIX, **dict.fromkeys(options.also.split(","), 3)}
    return make_plan(seed, nodes=options.nodes, kinds=kinds)


def chosen_plan(seed, options):
    return part_of(whole_plan(seed, options), options)


def run_chosen(plan, options, trace=None) -> Outcome:
    if options.planted:
        with PLANTED[options.planted].plant() as node_type:
            return run_plan(plan, node_type=node_type, trace=trace)
    return run_plan(plan, node_type=EngineNode, trace=trace)


class Job:
    def __init__(self, options):
        self.options = options

    def __call__(self, seed):
        outcome = run_chosen(chosen_plan(seed, self.options), self.options)
        # What travels between processes is small: a plan is made again from its seed.
        return seed, outcome.counts, outcome.failed
