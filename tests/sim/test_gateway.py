"""The simulated cluster with clients: a seed repeats exactly, and enough happens in a run."""

from collections import Counter

import pytest

from oncegate.proof.mutants.catalogue import MUTANTS
from oncegate.proof.sim.engine.command import shrink
from oncegate.proof.sim.gateway.__main__ import main
from oncegate.proof.sim.gateway.run import plan_of, run_plan
from oncegate.proof.sim.gateway.world import WORKLOADS
from tests.sim.test_world import printed_elsewhere

SEEDS = 100
BLOCK = 10


@pytest.mark.parametrize("start", range(0, SEEDS, BLOCK))
def test_what_clients_saw_is_as_promised(start):
    totals = Counter()
    for seed in range(start, start + BLOCK):
        outcome = run_plan(plan_of(seed))
        assert not outcome.failed, (
            f"{outcome.findings}; reproduce and shrink with: python -m oncegate.proof.sim.gateway --seed {seed}"
        )
        totals.update(outcome.counts)
    # A run in which nothing happened proves nothing.
    for name in ("operations ok", "reads ok", "states compared", "kills", "elections"):
        assert totals[name] >= BLOCK, name


def test_a_range_that_was_cut_does_not_wait_for_ever_for_room():
    """Found by seed 779: its pieces took more places at the server than the client thought, with nobody to give any."""
    plan = plan_of(779, "flow").only({0, 6, 7, 10, 33, 34, 36, 40}, 4.052205107334752)
    assert run_plan(plan).findings == []


def test_an_owner_that_was_replaced_may_hear_that_its_successor_has_acknowledged():
    """Found by seed 293: it asked for the fate of a number, although it did not own the session any more."""
    plan = plan_of(293, "ledger").only({2, 3, 4, 5, 6, 8, 11, 14, 15}, 4.746890964532331)
    assert run_plan(plan).findings == []


def test_a_number_whose_fate_is_somebody_elses_is_not_acknowledged():
    """Found by seed 60479: a client asked without its epoch, and took an answer that may be another's for its end."""
    plan = plan_of(60479, "ledger").only({1, 4}, 3.70972466643056)
    assert run_plan(plan).findings == []


def test_a_seed_repeats_exactly_in_any_process():
    here = [run_plan(plan_of(seed)).trace_hash for seed in range(len(WORKLOADS))]
    assert here == [run_plan(plan_of(seed)).trace_hash for seed in range(len(WORKLOADS))]
    for hash_seed in ("0", "77"):
        assert f"trace {here[1]}" in printed_elsewhere("oncegate.proof.sim.gateway", 1, hash_seed)


def test_the_runner_counts_over_processes(capsys):
    assert main(["--seeds", "4", "--jobs", "2"]) == 0
    assert "0 anomalies" in capsys.readouterr().out


def test_a_failing_seed_shrinks_and_is_repeated_by_the_command_that_is_printed(capsys):
    with MUTANTS["apply-without-dedup"].planted():
        whole = run_plan(plan_of(2, "counter"))
        small, runs = shrink(whole, run_plan, runs_max=15)
        assert whole.failed
        assert runs <= 15
        assert small.checker == whole.checker
        assert len(small.plan.faults) < len(whole.plan.faults)
        assert main(["--seed", "2", "--workload", "counter", "--only", "-"]) == 1
        command = capsys.readouterr().out.split("reproduce with: ")[1].split()
        assert command[:3] == ["python", "-m", "oncegate.proof.sim.gateway"]
        assert main(command[3:]) == 1
    assert main(command[3:]) == 0
