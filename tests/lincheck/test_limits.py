"""Hard and long histories end, within limits."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection
from functools import partial

import pytest

from oncegate.proof.lincheck import ILLEGAL, MODELS, Limits, Operation, check, sequential
from oncegate.proof.lincheck.check import split, states_of_try
from oncegate.proof.lincheck.search import decide, search
from tests.lincheck.lines import one_by_one, op


def brief_proofs(states_max: int = 5_000_000) -> Limits:
    """Limits that leave a search all the time it wants, and a proof in words five looks at the clock."""
    return Limits(states_max=states_max, seconds=1e9, clock=partial(next, map(float, itertools.count())))


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
    result = check(hard(name), MODELS[name], brief_proofs(states_max=20_000))
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
    assert "1 of 2 keys were left undecided" in result.reason
    assert [failure.key for failure in result.failures] == ["b"]


def crowd(keys: int, processes: int, each: int, *, stale: Collection[int]) -> list[Operation]:
    """Texts that many processes append to and read at once; on each stale key one late read lacks an early append."""
    rng = random.Random(f"{keys} {processes} {each}")
    texts, found = dict.fromkeys(range(keys), ""), []
    for number in range(each * keys):
        key, lasts = rng.randrange(keys), rng.randrange(5 * processes, 10 * processes)
        applied = 10 * (number + processes)
        if rng.random() < 0.5:
            texts[key] += f"{number} "
            found.append(op(number, "append", f"{number} ", None, applied - lasts, applied + lasts, key=key))
        else:
            found.append(op(number, "get", None, texts[key], applied - lasts, applied + lasts, key=key))
    late = 10 * (each * keys + 2 * processes)
    last = [(key, text[1:] if key in stale else text) for key, text in texts.items()]
    return found + [op(10**6 + key, "get", None, text, late, late, key=key) for key, text in last]


class Texts:
    """A model as a stranger writes it: nothing in it but what a model must have."""

    name, partitioned = "texts", True

    def initial(self) -> str:
        return ""

    def step(self, state: str, op: Operation) -> object:
        if op.f == "append":
            return state + op.argument
        return state if op.status == "unknown" or op.result == state else ILLEGAL


def test_no_harder_key_is_searched_after_the_first_invalid_one() -> None:
    ops = crowd(10, 20, 120, stale={3, 7})
    alone = {key: decide(Texts(), part, Limits()) for key, part in split(ops, Texts())}
    assert {key for key, found in alone.items() if found.verdict == "invalid"} == {3, 7}
    assert alone[7].visited > 5 * alone[3].visited
    result = check(ops, Texts(), brief_proofs())
    assert (result.verdict, [failure.key for failure in result.failures]) == ("invalid", [3])
    assert "1 of 10 keys were left undecided" in result.reason
    assert result.states_visited < sum(found.visited for found in alone.values()) / 2


def test_hard_keys_get_all_the_states_they_need_when_no_key_is_invalid() -> None:
    ops = crowd(10, 20, 120, stale=())
    assert any(decide(Texts(), part, Limits()).visited > states_of_try(len(part), 0) for _, part in split(ops, Texts()))
    result = check(ops, Texts())
    assert (result.verdict, result.reason) == ("valid", "")


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
