# ruff: noqa: T201 - pytest shows the table with -rP; ``python -m tests.mutants`` prints it.
"""Every planted bug is caught by a verdict within its number of runs, and the same run passes without the bug."""

import pytest

from tests.mutants.catalogue import MUTANTS


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught_and_nothing_else_is(name):
    mutant = MUTANTS[name]
    caught = mutant.hunt()
    assert caught is not None, f"{name} passes {mutant.runs} runs of {mutant.workload}: {mutant.breaks}"
    assert caught.verdict != "crash", f"{name}: {caught.outcome.text}"
    print(f"{name}: {mutant.workload}, {caught.runs} runs: {caught.verdict}: {caught.outcome.text}")
    sound = mutant.run(caught.seed, planted=False)
    assert not sound.failed, f"seed {caught.seed} fails without {name}: {sound.findings}"


def test_there_are_enough_planted_bugs_of_every_kind():
    assert len(MUTANTS) >= 25
    assert {"register", "counter", "dedup", "bank", "hand-over", "resolve", "lease", "keys", "flow"} == {
        mutant.workload for mutant in MUTANTS.values()
    }
