"""Known-good and known-bad histories of every model."""

from __future__ import annotations

from typing import Any

import pytest

from oncegate.proof.lincheck import MODELS, ModelError, Operation, check
from tests.lincheck.lines import one_by_one, op

NO = {"refused": True}
MS = 1_000_000


def lease(*calls: tuple[str, str, Any, int, int]) -> list[Operation]:
    """(f, owner, token or result, invoked, returned) in milliseconds; leases last 10 ms."""
    made = []
    for place, (f, owner, told, invoked, returned) in enumerate(calls):
        argument = {"owner": owner, "ms": 10} | ({} if f == "acquire" else {"token": told[0]})
        result = told if f == "acquire" else told[1]
        made.append(op(place, f, argument, result, invoked * MS, returned * MS))
    return made


FIRST = ("acquire", "a", {"token": 1}, 0, 1)

GOOD: dict[str, list[list[Operation]]] = {
    "register": [
        one_by_one(("read", None, None), ("write", 1, None), ("read", None, 1)),
        [op(0, "write", 1, None, 0, 10), op(1, "read", None, None, 1, 2), op(2, "read", None, 1, 3, 4)],
        [op(0, "write", 1, None, 0, None), op(1, "read", None, None, 50, 60), op(2, "read", None, 1, 70, 80)],
        [op(0, "write", 1, None, 0, 10, key="a"), op(1, "read", None, None, 20, 30, key="b")],
    ],
    "cas-register": [
        one_by_one(("write", 1, None), ("cas", [1, 2], None), ("cas", [1, 3], NO), ("read", None, 2)),
        one_by_one(("cas", [None, 1], None), ("cas", [2, 3], {"refused": True, "value": 1})),
        [op(0, "cas", [None, 1], None, 0, None), op(1, "cas", [1, 2], None, 5, None), op(2, "read", None, 2, 9, 10)],
    ],
    "counter": [
        one_by_one(("increment", 2, 2), ("increment", None, None), ("read", None, 3)),
        [op(0, "increment", 5, None, 0, None), op(1, "read", None, 0, 9, 10), op(2, "read", None, 5, 11, 12)],
        one_by_one(("increment", -2, -2), ("read", None, -2)),
    ],
    "list": [
        one_by_one(("append", 1, None), ("append", 1, None), ("read", None, [1, 1])),
        [op(0, "append", 1, None, 0, 9), op(1, "append", 2, None, 0, 9), op(2, "read", None, [2, 1], 10, 11)],
        [op(0, "append", 1, None, 0, None), op(1, "append", 2, None, 3, 5), op(2, "read", None, [2], 6, 7)],
    ],
    "set": [
        one_by_one(("add", 1, None), ("add", 1, None), ("remove", 1, None), ("add", 2, None), ("read", None, [2])),
        [op(0, "add", True, None, 0, None), op(1, "read", None, [], 3, 4), op(2, "read", None, [True], 5, 6)],
    ],
    "queue": [
        one_by_one(("enqueue", 1, None), ("enqueue", 2, None), ("dequeue", None, 1), ("dequeue", None, 2)),
        one_by_one(("dequeue", None, None), ("enqueue", 1, None), ("dequeue", None, 1), ("dequeue", None, None)),
        [op(0, "enqueue", 1, None, 0, 9), op(1, "enqueue", 2, None, 0, 9), op(2, "dequeue", None, 2, 10, 11)],
        [op(0, "enqueue", 1, None, 0, 9), op(1, "dequeue", None, None, 20, None), op(2, "dequeue", None, None, 21, 22)],
    ],
    "mutex": [
        one_by_one(("acquire", "a", None), ("acquire", "b", NO), ("release", "a", None), ("acquire", "b", None)),
        [op(0, "acquire", "a", None, 0, 5), op(1, "release", "a", None, 6, None), op(2, "acquire", "b", None, 9, 10)],
    ],
    "lease": [
        lease(FIRST, ("acquire", "b", NO, 2, 3), ("acquire", "b", {"token": 2}, 12, 13)),
        lease(FIRST, ("renew", "a", (1, None), 4, 5), ("acquire", "b", NO, 12, 13)),
        lease(FIRST, ("release", "a", (1, None), 2, 3), ("acquire", "b", {"token": 2}, 4, 5)),
        lease(FIRST, ("renew", "a", (1, NO), 14, 15)),
        [  # the token that nobody was told is any one: that is refused which is not it
            op(0, "acquire", {"owner": "a", "ms": 10}, None, 0, None),
            op(1, "acquire", {"owner": "b", "ms": 10}, NO, 1 * MS, 2 * MS),
            op(2, "renew", {"owner": "a", "ms": 10, "token": 7}, NO, 3 * MS, 4 * MS),
        ],
    ],
    "row": [
        one_by_one(
            ("get", {}, {"version": 0}),
            ("put", {"value": "x"}, {"version": 3}),
            ("insert", {"value": "y"}, {"version": 3, "value": "x", "refused": "CONDITION_FAILED"}),
            ("put", {"value": "z", "if": {"version": 3}}, {"version": 8}),
            ("delete", {}, {"version": 9}),
            ("get", {}, {"version": 0}),
            ("increment", {"by": 2}, {"version": 11, "value": 2}),
            ("append", {"item": 1}, {"version": 11, "value": 2, "refused": "NOT_A_LIST"}),
        ),
        [
            op(0, "put", {"value": "x"}, None, 0, None),
            op(1, "get", {}, {"version": 0}, 5, 6),
            op(2, "get", {}, {"version": 7, "value": "x"}, 8, 9),
            op(3, "put", {"value": "y"}, {"version": 9}, 10, 11),
        ],
    ],
}

BAD: dict[str, list[list[Operation]]] = {
    "register": [
        one_by_one(("write", 1, None), ("read", None, None)),
        one_by_one(("read", None, 1), ("write", 1, None)),
        one_by_one(("write", 1, None), ("read", None, True)),
        one_by_one(("write", 1, None), ("write", 2, None), ("read", None, 1), ("write", 1, None)),
        [op(0, "write", 1, None, 0, None), op(1, "read", None, 1, 5, 6), op(2, "read", None, None, 7, 8)],
    ],
    "cas-register": [
        one_by_one(("write", 1, None), ("cas", [2, 3], None)),
        one_by_one(("write", 1, None), ("cas", [1, 3], NO)),
        one_by_one(("write", 1, None), ("cas", [2, 3], {"refused": True, "value": 2})),
        one_by_one(("write", 1, None), ("cas", [1, 2], None), ("cas", [1, 2], None)),
    ],
    "counter": [
        one_by_one(("increment", 2, None), ("read", None, 0)),
        one_by_one(("increment", 2, 2), ("increment", 2, 2)),
        one_by_one(("increment", 1, None), ("read", None, 2)),
        [op(0, "increment", 5, None, 0, None), op(1, "read", None, 5, 9, 10), op(2, "read", None, 0, 11, 12)],
    ],
    "list": [
        one_by_one(("append", 1, None), ("append", 2, None), ("read", None, [2, 1])),
        one_by_one(("append", 1, None), ("read", None, [1]), ("read", None, [])),
        one_by_one(("append", 1, None), ("read", None, [1, 1])),
        [op(0, "append", 1, None, 0, 9), op(1, "append", 2, None, 0, 9), op(2, "read", None, [2], 10, 11)],
    ],
    "set": [
        one_by_one(("add", 1, None), ("read", None, [])),
        one_by_one(("add", 1, None), ("remove", 1, None), ("read", None, [1])),
        one_by_one(("add", 1, None), ("read", None, [1, 1])),
    ],
    "queue": [
        one_by_one(("enqueue", 1, None), ("enqueue", 2, None), ("dequeue", None, 2)),
        one_by_one(("enqueue", 1, None), ("dequeue", None, 1), ("dequeue", None, 1)),
        one_by_one(("enqueue", 1, None), ("dequeue", None, None)),
    ],
    "mutex": [
        one_by_one(("acquire", "a", None), ("acquire", "b", None)),
        one_by_one(("acquire", "a", None), ("release", "b", None)),
        one_by_one(("acquire", "a", NO)),
    ],
    "lease": [
        lease(FIRST, ("acquire", "b", {"token": 2}, 2, 3)),
        lease(FIRST, ("renew", "a", (1, None), 4, 5), ("acquire", "b", {"token": 2}, 12, 13)),
        lease(("acquire", "a", {"token": 2}, 0, 1), ("acquire", "a", {"token": 1}, 2, 3)),
        lease(FIRST, ("renew", "a", (1, NO), 2, 3)),
        lease(FIRST, ("acquire", "b", {"token": 2}, 20, 21), ("renew", "a", (1, None), 22, 23)),
        # What was waited for lasts from the end of the lease before it, not from when it was asked for.
        lease(FIRST, ("acquire", "b", {"token": 2}, 5, 25), ("acquire", "c", {"token": 3}, 18, 19)),
    ],
    "row": [
        one_by_one(("put", {"value": 1}, {"version": 3}), ("put", {"value": 2}, {"version": 2})),
        one_by_one(("put", {"value": 1}, {"version": 3}), ("get", {}, {"version": 0})),
        one_by_one(("put", {"value": 1}, {"version": 3}), ("put", {"value": 2, "if": {"version": 2}}, {"version": 4})),
        one_by_one(("put", {"value": 1}, {"version": 3}), ("get", {}, {"version": 3, "value": 2})),
        one_by_one(("insert", {"value": 1}, {"version": 3}), ("insert", {"value": 2}, {"version": 4})),
        one_by_one(("insert", {"value": 1}, {"version": 0, "refused": "CONDITION_FAILED"})),
    ],
}


def _cases(histories: dict[str, list[list[Operation]]]) -> list[Any]:
    named = [(name, number, ops) for name, all_of in histories.items() for number, ops in enumerate(all_of)]
    return [pytest.param(name, ops, id=f"{name} {number}") for name, number, ops in named]


def test_every_model_has_good_and_bad_histories() -> None:
    assert set(GOOD) == set(BAD) == set(MODELS)


@pytest.mark.parametrize(("name", "ops"), _cases(GOOD))
def test_good_history_is_valid(name: str, ops: list[Operation]) -> None:
    assert check(ops, MODELS[name]).verdict == "valid"


@pytest.mark.parametrize(("name", "ops"), _cases(BAD))
def test_bad_history_is_invalid_and_a_window_of_it_is_told(name: str, ops: list[Operation]) -> None:
    result = check(ops, MODELS[name])
    assert result.verdict == "invalid"
    assert all(failure.window and failure.words for failure in result.failures)


@pytest.mark.parametrize(
    ("name", "wrong", "reason"),
    [
        ("register", op(0, "push", 1, None, 0, 1), "no operation 'push'"),
        ("cas-register", op(0, "cas", 1, None, 0, 1), "cas takes"),
        ("counter", op(0, "increment", "x", None, 0, 1), "integer"),
        ("list", op(0, "read", None, 5, 0, 1), "returns a list"),
        ("set", op(0, "read", None, None, 0, 1), "returns a list"),
        ("row", op(0, "put", 5, None, 0, 1), "takes an object"),
        ("row", op(0, "put", {"if": {"colour": 1}}, None, 0, 1), "absent, version or value"),
        ("row", op(0, "get", {}, {"version": "x"}, 0, 1), "positive integer"),
        ("lease", op(0, "renew", {"owner": 1, "ms": 1}, None, 0, 1), "token"),
    ],
)
def test_operation_that_the_model_does_not_have_is_refused(name: str, wrong: Operation, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        check([wrong], MODELS[name])


def test_words_name_the_read_the_write_and_that_nothing_else_was_running() -> None:
    ops = [op(0, "write", 7, None, 0, 100), op(1, "write", 8, None, 200, 300), op(2, "read", None, 7, 400, 500)]
    (failure,) = check(ops, MODELS["register"]).failures
    assert failure.window == [0, 1, 2]
    text = "\n".join(failure.words)
    assert "process 2 read 7" in text
    assert "process 1 wrote 8 and had its answer" in text
    assert "no other operation that gives 7 had begun" in text


def test_counter_bounds_are_told() -> None:
    ops = [*one_by_one(*[("increment", 1, None)] * 20), op(90, "read", None, 10, 1000, 1001)]
    (failure,) = check(ops, MODELS["counter"]).failures
    assert failure.window == [90]
    assert any("at least 20, not 10" in line for line in failure.words)


def test_a_proof_that_needs_all_that_came_before_begins_at_a_quiet_moment_and_tells_its_state() -> None:
    calls = [("increment", -1 if n == 7 else 1, None) for n in range(60)]
    ops = [*one_by_one(*calls), op(90, "read", None, 20, 1000, 1001)]
    (failure,) = check(ops, MODELS["counter"]).failures
    assert (failure.window, failure.states) == ([90], ["58"])
    assert any("the state can only have been 58" in line for line in failure.words)
