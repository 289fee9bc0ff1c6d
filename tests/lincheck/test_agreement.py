"""The checker against a checker that tries every order."""

from __future__ import annotations

import pytest

from rifl.lincheck import MODELS, check
from tests.lincheck.oracle import brute_force, history

PER_MODEL = 1250


@pytest.mark.parametrize("name", sorted(MODELS))
def test_verdicts_agree_with_brute_force_on_small_random_histories(name: str) -> None:
    bad = 0
    for seed in range(PER_MODEL):
        ops = history(name, seed)
        expected = "valid" if brute_force(ops, MODELS[name]) else "invalid"
        assert check(ops, MODELS[name]).verdict == expected, (seed, ops)
        bad += expected == "invalid"
    assert 0.08 * PER_MODEL < bad < 0.8 * PER_MODEL
