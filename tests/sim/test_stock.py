# ruff: noqa: T201 - pytest shows what was found when a test fails, or with -rP.
"""PySyncObj 0.3.17 as published breaks promises in the simulator, each by one defect, which its repair alone cures."""

import pytest

from oncegate.proof.sim.engine.stock_families import FAMILIES

SEEDS_MAX = 200
FAILURES_WANTED = 3


def failures(defect, seeds):
    """Seeds of this family in which the library fails, and how."""
    found = {}
    for seed in range(seeds):
        outcome = FAMILIES[defect].run(seed)
        if outcome.failed:
            found[seed] = outcome
        if len(found) >= FAILURES_WANTED:
            break
    return found


@pytest.mark.parametrize("defect", sorted(FAMILIES))
def test_the_library_as_published_fails_and_its_repair_alone_cures_it(defect):
    found = failures(defect, SEEDS_MAX)
    for seed, outcome in found.items():
        print(f"{defect}: seed {seed}: {outcome.checker}: {outcome.text}")
    assert len(found) >= FAILURES_WANTED
    for seed in range(max(found) + 1):
        repaired = FAMILIES[defect].run(seed, defect)
        assert not repaired.failed, f"{defect} repaired, seed {seed}: {repaired.checker}: {repaired.text}"
        assert repaired.counts["acknowledged"] > 10


@pytest.mark.parametrize("defect", ["B1", "B3"])
def test_another_repair_does_not_cure_it(defect):
    seed = next(iter(failures(defect, SEEDS_MAX)))
    assert FAMILIES[defect].run(seed, *(other for other in ("B1", "B2", "B3") if other != defect)).failed


def test_a_seed_of_the_library_repeats_exactly():
    runs = [FAMILIES["B1"].run(1) for _ in range(2)]
    assert runs[0].trace_hash == runs[1].trace_hash
