"""Exactly once, counted."""

from __future__ import annotations

from typing import Any

import pytest

from oncegate.proof.lincheck import Operation, audit, same_answers
from tests.lincheck.lines import event, op


def asked(f: str = "append") -> list[Operation]:
    """One acknowledged, one unknown, one refused, one answered with a refusal."""
    return [
        op(0, f, 10, None, 0, 5, request="7/1"),
        op(1, f, 100, None, 0, None, request="7/2"),
        op(2, f, 1000, None, 0, None, status="failed", request="7/3"),
        op(3, f, 10000, {"refused": "CONDITION_FAILED"}, 0, 5, request="7/4"),
        op(4, "read", None, [], 0, 5, request="7/5"),
    ]


@pytest.mark.parametrize("log", [["7/1"], ["7/1", "7/2"]])
def test_effects_once_or_unknown_are_right(log: list[str]) -> None:
    assert audit(asked(), log=log).verdict == "valid"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ([], "acknowledged once and is there never"),
        (["7/1", "7/1"], "at most and is there 2 times"),
        (["7/1", "7/2", "7/2"], "once at most and is there 2 times"),
        (["7/1", "7/3"], "refused and is there once"),
        (["7/1", "7/4"], "refused and is there once"),
        (["7/1", "8/1"], "nobody asked"),
    ],
)
def test_effect_lost_doubled_or_from_nowhere_is_found_in_the_log(log: list[str], words: str) -> None:
    result = audit(asked(), log=log)
    assert result.verdict == "invalid"
    assert any(words in line for failure in result.failures for line in failure.words)


@pytest.mark.parametrize(
    ("final", "verdict"),
    [
        ([10], "valid"),
        ([100, 10], "valid"),
        ([], "invalid"),
        ([10, 10], "invalid"),
        ([10, 1000], "invalid"),
        ([10, 10000], "invalid"),
        ([10, 5], "invalid"),
    ],
)
def test_items_of_a_list_are_counted(final: list[int], verdict: str) -> None:
    assert audit(asked(), final={None: final}).verdict == verdict


@pytest.mark.parametrize(
    ("final", "verdict"), [(10, "valid"), (110, "valid"), (0, "invalid"), (20, "invalid"), (1010, "invalid")]
)
def test_a_counter_is_what_its_increments_make(final: int, verdict: str) -> None:
    assert audit(asked("increment"), final={None: final}).verdict == verdict


def test_a_missing_key_has_lost_its_effects() -> None:
    assert audit([op(0, "append", 1, None, 0, 5, key="k")], final={}).verdict == "invalid"
    assert audit([op(0, "append", 1, None, 0, None, key="k")], final={}).verdict == "valid"


def test_sums_of_unknown_increments_are_found_or_too_many() -> None:
    few = [op(n, "increment", 3 + n, None, 0, None) for n in range(3)]
    assert [audit(few, final={None: total}).verdict for total in (0, 7, 12, 11)] == [
        "valid",
        "valid",
        "valid",
        "invalid",
    ]
    many = [op(n, "increment", 3**n, None, 0, None) for n in range(40)]
    assert audit(many, final={None: 2}).verdict == "unknown"


def test_many_operations_are_audited_at_once() -> None:
    ops = [op(n, "append", n, None, 0, 5, key=n % 10, request=f"1/{n}") for n in range(20_000)]
    final: dict[Any, list[int]] = {key: [n for n in range(20_000) if n % 10 == key] for key in range(10)}
    assert audit(ops, log=[f"1/{n}" for n in range(20_000)], final=final).verdict == "valid"
    final[3].remove(13)
    assert [failure.window for failure in audit(ops, final=final).failures] == [[13]]


def test_attempts_of_a_request_that_were_told_different_things_are_found() -> None:
    def told(second: int) -> str:
        events = []
        for process, value in ((1, 5), (2, second)):
            events += [event(process, "invoke", "increment", 1, request="7/1")]
            events += [event(process, "ok", "increment", value, request="7/1")]
        return same_answers(events).verdict

    assert (told(5), told(6)) == ("valid", "invalid")
