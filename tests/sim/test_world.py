# ruff: noqa: T201 - pytest shows what caught a bug with -rP.
"""The simulator: promises hold over many seeds, a seed repeats exactly, a rule that is
switched off is noticed, a failure shrinks to one command."""

import itertools
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from oncegate.proof.mutants.catalogue import PLANTED, hunt, seeds
from oncegate.proof.sim.engine.__main__ import main
from oncegate.proof.sim.engine.clock import NodeClock, Scheduler
from oncegate.proof.sim.engine.command import shrink
from oncegate.proof.sim.engine.faults import DEFAULT_MIX
from oncegate.proof.sim.engine.plan import make_plan
from oncegate.proof.sim.engine.run import run_plan

SEEDS = 120
BLOCK = 20


@pytest.mark.parametrize("start", range(0, SEEDS, BLOCK))
def test_every_promise_holds_under_every_fault(start):
    totals = Counter()
    for seed in range(start, start + BLOCK):
        outcome = run_plan(make_plan(seed))
        assert not outcome.failed, (
            f"{outcome.checker}: {outcome.text}; "
            f"reproduce and shrink with: python -m oncegate.proof.sim.engine --seed {seed}"
        )
        totals.update(outcome.counts)
    # A run in which nothing happened proves nothing.
    for name in ("acknowledged", "elections", "kills", "power losses", "partitions", "flips", "freezes", "breaks"):
        assert totals[name] >= BLOCK / 4, name
    for name in ("saves", "compactions", "states loaded", "full disks", "transfers"):
        assert totals[name] >= BLOCK / 10, name
    assert totals["reads checked"] > 10 * BLOCK
    assert totals["snapshots installed"] + totals["added"] + totals["removed"] > 0


def test_every_kind_of_fault_is_drawn():
    kinds = Counter(fault.kind for seed in range(100) for fault in make_plan(seed).faults)
    assert set(kinds) == set(DEFAULT_MIX)


def printed_elsewhere(module, seed, hash_seed):
    """What a simulator prints of a seed, run in another process, whose sets have another order."""
    return subprocess.run(
        [sys.executable, "-m", module, "--seed", str(seed)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_a_seed_repeats_exactly_in_any_process():
    here = {seed: run_plan(make_plan(seed)).trace_hash for seed in (3, 4)}
    assert here == {seed: run_plan(make_plan(seed)).trace_hash for seed in (3, 4)}
    assert here[3] != here[4]
    for hash_seed, (seed, trace_hash) in itertools.product(("0", "77"), here.items()):
        assert f"trace {trace_hash}" in printed_elsewhere("oncegate.proof.sim.engine", seed, hash_seed)


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_planted_bug_is_caught_by_the_check_that_it_is_for(name):
    bug = PLANTED[name]
    caught = hunt(bug)
    assert caught is not None, f"{bug.check!r} says nothing in {len(seeds(bug))} seeds: {bug.breaks}"
    print(f"{name}: {bug.breaks}: {bug.check} at seed {caught.seed}")


def test_the_same_plans_pass_without_the_bug():
    # Several bugs are shown by the same plans.
    drawn = {repr((bug.kinds, bug.fixed)): bug for bug in PLANTED.values() if bug.kinds is not None}
    for bug in drawn.values():
        for seed in range(2):
            outcome = run_plan(make_plan(seed, kinds=bug.kinds, **bug.fixed))
            assert not outcome.failed, f"{outcome.checker}: {outcome.text}"


def test_a_failing_plan_shrinks_and_still_fails_the_same_way():
    with PLANTED["engine/votes-for-any-log"].planted():
        whole = next(outcome for seed in range(100) if (outcome := run_plan(make_plan(seed))).failed)
        small, runs = shrink(whole, run_plan, runs_max=60)
    assert small.checker == whole.checker
    assert len(small.plan.faults) < len(whole.plan.faults)
    assert runs <= 60


def test_the_runner_prints_one_command_that_reproduces_a_failure(capsys):
    assert main(["--seed", "2", "--planted", "applies-uncommitted"]) == 1
    command = capsys.readouterr().out.split("reproduce with: ")[1].split()
    assert command[:3] == ["python", "-m", "oncegate.proof.sim.engine"]
    assert main(command[3:]) == 1
    assert main(["--seed", "2"]) == 0


def test_the_runner_counts_over_processes(capsys):
    assert main(["--seeds", "8", "--jobs", "2"]) == 0
    assert capsys.readouterr().out.startswith("8 seeds from 0: ")


def test_a_clock_never_goes_back():
    scheduler = Scheduler()
    clock = NodeClock(scheduler, reading=5.0, rate=2.0)
    readings = [clock.read()]
    for act in (lambda: clock.stop(), lambda: clock.resume(), lambda: clock.set_rate(0.5), lambda: clock.jump(3.0)):
        scheduler.run(scheduler.now + 1.0)
        readings.append(clock.read())
        act()
        readings.append(clock.read())
    assert readings == sorted(readings)
    assert readings == [5.0, 7.0, 7.0, 7.0, 7.0, 9.0, 9.0, 9.5, 12.5]
    assert clock.when(13.0) == pytest.approx(scheduler.now + 1.0)
