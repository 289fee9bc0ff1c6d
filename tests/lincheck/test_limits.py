"""Hard and long histories end, within limits."""

from __future__ import annotations

import itertools

import pytest

from oncegate.proof.lincheck import MODELS, Limits, Operation, check, sequential
from oncegate.proof.lincheck.search import search
from tests.lincheck.lines import one_by_one, op

HARD = [op(place, "write", place % 7, None, place, None) for place in range(30)]


def hard(name: str) -> list[Operation]:
    """Thirty unknown operations on one key, then reads that none of them explains."""
    if name == "queue":
        unknown = [op(n, "enqueue", n % 7, None, n, None) for n in range(20)]
        unknown += [op(n, "dequeue", None, None, n, None) for n in range(20, 30)]
        return [*unknown, *(op(40 + n, "dequeue", None, n % 6, 100 + 10 * n, 105 + 10 * n) for n in range(20))]
    call = {"register": "write", "cas-register": "write", "counter": "increment", "list": "append", "set": "add"}[name]
    unknown = [op(n, call, 2 ** (n % 15) if name == "counter" else n % 7, None, n, None) for n in range(30)]
    results = {"counter": 99_999_999, "list": [99], "set": [99]}
    reads = [op(40 + n, "read", None, n % 6, 100 + 10 * n, 105 + 10 * n) for n in range(12)]
    if name in ("list", "set"):
        reads = [op(40, "read", None, [1, 2, 3, 4, 5], 100, 105)]
    return [*unknown, *reads, op(99, "read", None, results.get(name, 99), 500, 505)]


@pytest.mark.parametrize("name", ["register", "cas-register", "counter", "list", "set", "queue"])
def test_thirty_unknown_operations_on_one_key_end_in_an_answer_or_in_unknown(name: str) -> None:
    result = check(hard(name), MODELS[name], Limits(states_max=20_000))
    assert result.verdict in ("invalid", "unknown")
    assert result.verdict == "invalid" or "over 20000 states" in result.reason
    assert result.states_visited <= 20_001


def subset_sum() -> list[Operation]:
    """Unknown increments of which no sum is what was read: truly hard."""
    unknown = [op(n, "increment", 2 * 3**n, None, n, None) for n in range(24)]
    return [*unknown, op(50, "read", None, 3**24 - 2, 100, 105)]


def test_states_are_bounded_and_the_reason_says_so() -> None:
    result = check(subset_sum(), MODELS["counter"], Limits(states_max=5_000))
    assert (result.verdict, result.states_visited) == ("unknown", 5_001)
    assert "over 5000 states" in result.reason


def test_memory_is_bounded_and_the_reason_says_so() -> None:
    result = check(subset_sum(), MODELS["counter"], Limits(bytes_max=1_000_000))
    assert result.verdict == "unknown"
    assert "over 1000000 bytes" in result.reason
    assert result.bytes_estimated < 1_100_000


def test_time_is_bounded_by_the_clock_that_is_given() -> None:
    clock = itertools.count()
    result = check(subset_sum(), MODELS["counter"], Limits(seconds=20, clock=lambda: float(next(clock))))
    assert result.verdict == "unknown"
    assert "no time left" in result.reason


def test_an_invalid_key_is_told_though_another_is_unknown() -> None:
    lost = [op(90, "increment", 1, None, 0, 5, key="b"), op(91, "read", None, 0, 6, 7, key="b")]
    result = check([*subset_sum(), *lost], MODELS["counter"], Limits(states_max=5_000))
    assert result.verdict == "invalid"
    assert "over" in result.reason
    assert [failure.key for failure in result.failures] == ["b"]


def test_long_histories_are_checked_without_recursion() -> None:
    calls = [("write", n % 5, None) if n % 2 else ("read", None, ((n - 1) % 5) if n else None) for n in range(20_000)]
    ops = one_by_one(*calls)
    assert search(MODELS["register"], ops, Limits()).verdict == "valid"
    assert check(ops, MODELS["register"]).verdict == "valid"
    assert sequential(ops, MODELS["register"]).verdict == "valid"


def test_rows_with_versions_are_decided_in_as_many_steps_as_operations() -> None:
    ops = [op(n, "put", {"value": n}, {"version": n + 1}, n - n % 16, n - n % 16 + 20) for n in range(4_000)]
    result = check(ops, MODELS["row"])
    assert result.verdict == "valid"
    assert result.states_visited <= 4_001


def test_unique_registers_need_no_search() -> None:
    ops = [op(n, "write", n, None, n - n % 16, n - n % 16 + 40) for n in range(4_000)]
    ops.append(op(9_999, "read", None, 7, 10_000, 10_001))
    result = check(ops, MODELS["register"])
    assert (result.verdict, result.states_visited) == ("invalid", 0)
    assert len(result.failures[0].window) <= 4


def test_nothing_at_all_is_valid() -> None:
    for name, model in MODELS.items():
        assert check([], model).verdict == "valid", name
        assert sequential([], model).verdict == "valid", name
