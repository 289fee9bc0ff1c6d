"""The checker against a checker that tries every order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from oncegate.proof.lincheck import ILLEGAL, MODELS, Limits, Model, Operation, check, sequential, sorting
from oncegate.proof.lincheck.explain import let_go
from oncegate.proof.lincheck.history import Status
from oncegate.proof.lincheck.search import search
from tests.lincheck.oracle import brute_force, by_process, history

PER_MODEL = 1250


@pytest.mark.parametrize("name", sorted(MODELS))
def test_verdicts_agree_with_brute_force_on_small_random_histories(name: str) -> None:
    bad = 0
    for seed in range(PER_MODEL):
        ops = history(name, seed)
        expected = "valid" if brute_force(ops, MODELS[name]) else "invalid"
        assert check(ops, MODELS[name]).verdict == expected, (seed, ops)
        kept = [op for op in ops if op.status != "failed"]
        assert search(MODELS[name], kept, Limits()).verdict == expected, (seed, ops)
        bad += expected == "invalid"
    assert 0.08 * PER_MODEL < bad < 0.8 * PER_MODEL


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"lease"}))
def test_sequential_verdicts_agree_with_brute_force(name: str) -> None:
    bad = 0
    for seed in range(400):
        ops = by_process(history(name, seed, width=2), 3)
        expected = "valid" if brute_force(ops, MODELS[name], precedes=_earlier_in_process) else "invalid"
        assert sequential(ops, MODELS[name]).verdict == expected, (seed, ops)
        bad += expected == "invalid"
    assert 4 < bad < 300


def _earlier_in_process(a, b) -> bool:
    return a.process == b.process and (a.invoked, a.index) < (b.invoked, b.index)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_failing_window_fails_by_itself_whatever_the_others_did(name: str) -> None:
    model = MODELS[name]
    checked = 0
    for seed in range(150):
        ops = history(name, seed)
        result = check(ops, model)
        if result.verdict != "invalid":
            continue
        (failure,) = result.failures
        assert failure.words
        assert failure.window
        window = set(failure.window)
        known = [op for op in ops if op.status != "failed"]
        begins = min(op.invoked for op in known if op.index in window)
        # A proof that tells its first states keeps what came before.
        kept = window | {op.index for op in known if failure.states and op.returned and op.returned < begins}
        loose = [op if op.index in kept else let_go(model, op) for op in known]
        assert not brute_force([op for op in loose if op is not None], model), (seed, ops, failure)
        assert len(window) <= sum(op.status == "ok" for op in ops)
        checked += 1
    assert checked > 10


def _is_good(model: Model, order: Sequence[Operation]) -> bool:
    """Tell whether the model takes the operations in this order, which keeps real time."""
    state = model.initial()
    for place, op in enumerate(order):
        state = model.step(state, op)
        ended = float("inf") if op.returned is None else op.returned
        if state is ILLEGAL or any(ended < before.invoked for before in order[:place]):
            return False
    return True


@pytest.mark.parametrize("name", sorted(MODELS))
def test_longest_prefix_is_a_good_order_and_keeps_real_time(name: str) -> None:
    model = MODELS[name]
    for seed in range(150):
        ops = history(name, seed)
        by_index = {op.index: op for op in ops}
        for failure in check(ops, model).failures:
            assert _is_good(model, [by_index[index] for index in failure.prefix]), (seed, failure)


def test_order_that_zones_give_is_good_keeps_real_time_and_holds_all_that_is_known() -> None:
    model, found = MODELS["register"], 0
    for seed in range(1500):
        ops = [op for op in history("register", seed) if op.status != "failed"]
        order = sorting.register_order(ops)
        if order is None:
            continue
        found += 1
        assert _is_good(model, order), (seed, order)
        assert {op.index for op in ops if op.status == "ok"} <= {op.index for op in order}
    assert found > 300


def test_zones_say_what_every_order_says_where_values_come_once_and_most_writes_have_no_answer() -> None:
    """As in an outage: what a write of unknown outcome bounds is when it was written at the earliest."""
    model, verdicts = MODELS["register"], Counter[bool]()
    for seed in range(6000):
        dice = random.Random(seed)
        ops = list[Operation]()
        for index in range(dice.randint(3, 6)):
            invoked = dice.randrange(20)
            write = index < 2 or dice.random() < 0.2
            answered = not write or dice.random() < 0.4
            returned = invoked + dice.randint(1, 8) if answered else None
            f, argument, result = ("write", index, None) if write else ("read", None, dice.choice((0, 0, 1, 1, None)))
            status: Status = "ok" if answered else "unknown"
            ops.append(Operation(index, index, f, "k", argument, result, status, 2 * invoked, _odd(returned)))
        clash = sorting.register_clash(ops)
        assert clash is not None, "values come once"
        assert (clash == []) == brute_force(ops, model), (seed, ops)
        verdicts[clash == []] += 1
    assert min(verdicts.values()) > 500


def _odd(moment: int | None) -> int | None:
    return None if moment is None else 2 * moment + 1
