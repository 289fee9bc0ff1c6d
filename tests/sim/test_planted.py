# ruff: noqa: T201 - pytest shows the table with -rP.
"""A rule of the engine that is switched off is noticed within the bug's number of seeds."""

import pytest

from oncegate.proof.sim.engine.plan import make_plan
from oncegate.proof.sim.engine.planted import PLANTED
from oncegate.proof.sim.engine.run import run_plan


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_planted_bug_is_caught(name):
    bug = PLANTED[name]
    with bug.plant() as node_type:
        for seed in range(bug.seeds):
            outcome = run_plan(make_plan(seed, kinds=bug.kinds, **bug.fixed), node_type=node_type)
            if outcome.failed:
                print(f"{name}: {bug.wrong}: seed {seed}: {outcome.checker}: {outcome.text}")
                return
    pytest.fail(f"{name} passes {bug.seeds} seeds: {bug.wrong}")


def test_the_same_plans_pass_without_the_bug():
    for bug in PLANTED.values():
        if bug.kinds is not None:
            for seed in range(3):
                outcome = run_plan(make_plan(seed, kinds=bug.kinds, **bug.fixed))
                assert not outcome.failed, f"{outcome.checker}: {outcome.text}"
