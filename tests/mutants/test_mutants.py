# ruff: noqa: T201 - pytest shows the table with -rP; ``python -m oncegate.proof.mutants`` prints it.
"""Every planted bug is caught by a verdict within its number of runs, and the same run passes without the bug."""

import pytest

from oncegate.proof.mutants import liars, planting
from oncegate.proof.mutants.bugs import BUGS
from oncegate.proof.mutants.catalogue import CATALOGUE, CLIENTS, MUTANTS, PLANTED, SCRIPT, hunt, run, says, seeds
from oncegate.proof.sim.gateway.scripts import SCRIPTS

SCRIPTED = {name: bug for name, bug in MUTANTS.items() if bug.by.startswith(SCRIPT)}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught_and_nothing_else_is(name):
    bug = MUTANTS[name]
    caught = hunt(bug)
    assert caught is not None, (
        f"{bug.check!r} says nothing of {name} in {len(seeds(bug))} runs of {bug.by}: {bug.breaks}"
    )
    text = next(text for check, text in caught.outcome.findings if check == bug.check)
    print(f"{name}: {bug.by}, {caught.runs} runs: {bug.check}: {text}")
    sound = run(bug, caught.seed, planted=False)
    assert not sound.failed, f"seed {caught.seed} fails without {name}: {sound.findings}"


@pytest.mark.parametrize("name", SCRIPTED)
def test_a_script_shows_its_bug_whatever_the_seed_draws(name):
    bug = SCRIPTED[name]
    for seed in range(1, 4):
        caught, sound = run(bug, seed), run(bug, seed, planted=False)
        assert says(bug, caught), f"seed {seed}: {caught.findings}"
        assert not sound.failed, f"seed {seed} fails without {name}: {sound.findings}"


def test_every_script_shows_a_planted_bug():
    assert {bug.by.removeprefix(SCRIPT) for bug in SCRIPTED.values()} == set(SCRIPTS)


def test_every_planted_bug_has_one_check_that_has_to_speak_and_a_crash_is_none():
    assert all(bug.check and bug.check != "crash" for bug in BUGS.values())


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
    } == {bug.by for bug in MUTANTS.values() if not bug.by.startswith(SCRIPT)}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_changes_functions_that_there_are_and_goes_with_its_block(name):
    found = [
        function
        for path, code in planting.changed_texts(BUGS[name].changes).items()
        for key in planting.exchanges(path, code)
        for function in planting.functions(path).get(key, ())
    ]
    before = [function.__code__ for function in found]
    with BUGS[name].planted():
        assert found, "nothing runs what is changed"
        assert all(function.__code__ is not code for function, code in zip(found, before, strict=True))
    assert [function.__code__ for function in found] == before


def test_a_place_that_has_changed_is_refused_and_nothing_is_planted():
    for change in (("rifl/rule.py", "nowhere", ""), ("rifl/rule.py", "_LIVE: Final = Standing.LIVE", "_LIVE = 1")):
        with pytest.raises(planting.PlaceChangedError), planting.planted([planting.Change(*change)]):
            pass


def test_every_planted_bug_says_what_it_breaks_and_what_catches_it():
    assert all(name == bug.name and bug.breaks and bug.caught_by for name, bug in CATALOGUE.items())
    assert len(CATALOGUE) == len(MUTANTS) + len(PLANTED) + len(liars.CASES) + len(CLIENTS)
