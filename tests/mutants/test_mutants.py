# ruff: noqa: T201 - pytest shows the table with -rP; ``python -m oncegate.proof.mutants`` prints it.
"""Every planted bug is caught by a verdict within its number of runs, and the same run passes without the bug."""

import inspect

import pytest

from oncegate.gateway.machine.apply import HANDLERS
from oncegate.proof.mutants import clients, liars
from oncegate.proof.mutants.catalogue import CATALOGUE, MUTANTS
from oncegate.proof.mutants.checks import CHECK_IN_ENGINE, CHECK_OF, IN_ENGINE, SPEAKS
from oncegate.proof.sim.engine.planted import PLANTED
from oncegate.proof.sim.gateway.scripts import SCRIPTS


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught_and_nothing_else_is(name):
    mutant = MUTANTS[name]
    caught = mutant.hunt()
    runs = f"{len(mutant.seeds)} runs of {mutant.shown_by}"
    assert caught is not None, f"{mutant.check!r} says nothing of {name} in {runs}: {mutant.breaks}"
    print(f"{name}: {mutant.shown_by}, {caught.runs} runs: {caught.verdict}: {caught.text}")
    sound = mutant.run(caught.seed, planted=False)
    assert not sound.failed, f"seed {caught.seed} fails without {name}: {sound.findings}"


@pytest.mark.parametrize("name", [name for name, mutant in MUTANTS.items() if mutant.script is not None])
def test_a_script_shows_its_bug_whatever_the_seed_draws(name):
    mutant = MUTANTS[name]
    for seed in range(1, 4):
        caught, sound = mutant.run(seed), mutant.run(seed, planted=False)
        assert mutant.check in {check for check, _ in caught.findings}, f"seed {seed}: {caught.findings}"
        assert not sound.failed, f"seed {seed} fails without {name}: {sound.findings}"


def test_every_script_shows_a_planted_bug():
    assert {mutant.script.name for mutant in MUTANTS.values() if mutant.script is not None} == set(SCRIPTS)


def test_every_planted_bug_has_one_check_that_has_to_speak_and_a_crash_is_none():
    assert sorted(CHECK_OF) == sorted(MUTANTS)
    assert sum(map(len, SPEAKS.values())) == len(CHECK_OF)
    assert sorted(CHECK_IN_ENGINE) == sorted(PLANTED)
    assert sum(map(len, IN_ENGINE.values())) == len(CHECK_IN_ENGINE)
    assert "crash" not in SPEAKS | IN_ENGINE


def test_there_are_enough_planted_bugs_of_every_kind():
    assert len(MUTANTS) >= 25
    assert {
        "register",
        "runs",
        "counter",
        "dedup",
        "bank",
        "hand-over",
        "resolve",
        "lease",
        "keys",
        "flow",
        "stream",
        "chain",
        "holds",
        "ledger",
    } == {mutant.workload for mutant in MUTANTS.values() if mutant.script is None}


def test_a_planted_bug_takes_what_the_function_in_whose_place_it_stands_is_given():
    for mutant in MUTANTS.values():
        for owner, name, replacement in mutant.patches:
            original = owner[name] if owner is HANDLERS else getattr(owner, name)
            if callable(original) and callable(replacement):
                given = inspect.signature(original).parameters.values()
                by_name = {each.name: None for each in given if each.kind is each.KEYWORD_ONLY}
                inspect.signature(replacement).bind(*(None for each in given if each.name not in by_name), **by_name)


def test_every_planted_bug_says_what_it_breaks_and_what_catches_it():
    assert all(name == bug.name and bug.breaks and bug.caught_by for name, bug in CATALOGUE.items())
    assert len(CATALOGUE) == len(MUTANTS) + len(PLANTED) + len(liars.CASES) + len(clients.CASES)
