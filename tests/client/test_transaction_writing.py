"""How a transaction is written down (``client.transaction``): copies, bounds, and blocks that have ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from oncegate import Code, OperationFailed, Transaction
from oncegate.gateway.client.transaction import WRITES_MAX, OpenTransaction
from tests.client.answers import fails

WAYS: dict[str, Callable[[Transaction], Transaction]] = {
    "put": lambda t: t.put("t", "k", 1),
    "take": lambda t: t.take("t", "a/", "b/"),
    "delete": lambda t: t.delete("t", "k"),
    "increment": lambda t: t.increment("t", "k"),
    "append": lambda t: t.append("t", "k", 1),
    "get": lambda t: t.get("t", "k"),
    "check": lambda t: t.check("t", "k", present=True),
    "check_session": lambda t: t.check_session(7),
}


def said(transaction: Transaction) -> tuple[list[Any], list[Any]]:
    operation = transaction.operation
    assert isinstance(operation.writes, list)
    assert isinstance(operation.conditions, list)
    return operation.writes, operation.conditions


@pytest.mark.parametrize("way", WAYS)
def test_what_is_added_to_a_copy_or_to_the_original_is_added_to_no_other(way: str) -> None:
    """Nor to an operation that was made of it before, which may be on its way."""
    first = Transaction(encode=repr).put("t", "a", 1).check("t", "a", absent=True)
    second, operation, before = first.copy(), first.operation, said(first)
    assert said(second) == before
    WAYS[way](second)
    assert said(first) == before == (operation.writes, operation.conditions)
    WAYS[way](first)
    assert (operation.writes, operation.conditions) == before
    assert said(first) == said(second) != before
    if way != "take":
        odd: Any = {1}
        assert said(second.copy().put("t", "z", odd)), "a copy encodes as the first does"


@pytest.mark.parametrize("way", [way for way in WAYS if way != "take"])
def test_one_more_than_a_transaction_has_is_refused_and_not_kept(way: str) -> None:
    transaction = Transaction()
    for _ in range(WRITES_MAX):
        WAYS[way](transaction)
    others = WAYS["check" if way not in ("check", "check_session") else "put"]
    others(transaction)
    before = said(transaction)
    for _ in range(2):
        with fails(Code.PAYLOAD_TOO_LARGE):
            WAYS[way](transaction)
        assert said(transaction) == before
    assert sorted(map(len, before)) == [1, WRITES_MAX]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("raises", [False, True])
def test_block_that_has_ended_takes_nothing_more_and_is_sent_once_exactly_if_it_ended_well(
    way: str, raises: bool
) -> None:
    sent: list[Any] = []

    def send(made: Transaction) -> str:
        sent.append(said(made))
        return "result"

    block = OpenTransaction(send)
    error = RuntimeError if raises else None
    with fails(Code.BAD_REQUEST):
        _ = block.result
    assert block.__enter__() is block
    block.put("t", "a", 1)
    before = said(block)
    block.__exit__(error, None, None)
    assert sent == ([] if raises else [before])
    with fails(Code.BAD_REQUEST):
        WAYS[way](block)
    with fails(Code.BAD_REQUEST):
        block.__enter__()
    assert said(block) == before
    if raises:
        with fails(Code.BAD_REQUEST):
            _ = block.result
    else:
        assert block.result == "result"  # type: ignore[comparison-overlap]


@pytest.mark.parametrize("raises", [False, True])
async def test_block_without_a_write_is_not_sent(raises: bool) -> None:
    async def send(_: Transaction) -> Any:
        raise AssertionError

    for block in (OpenTransaction(send), OpenTransaction(send).check("t", "k", absent=True)):
        assert block.empty
        await block.__aenter__()
        await block.__aexit__(RuntimeError if raises else None, None, None)
        with fails(Code.BAD_REQUEST):
            _ = block.result


@pytest.mark.parametrize("way", [way for way in WAYS if not way.startswith("check")])
def test_nothing_is_written_behind_a_take_and_conditions_may_be(way: str) -> None:
    transaction = Transaction().take("t", "a/", "b/", 64)
    with fails(Code.BAD_REQUEST):
        WAYS[way](transaction)
    writes, conditions = said(transaction.check("t", "k", present=True).check_session(7))
    assert (len(writes), len(conditions)) == (1, 2)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda t: t.take("t", "a/", "b/", 0),
        lambda t: t.take("t", "a/", "b/", 65),
        lambda t: t.check_session(0),
        lambda t: t.put("t", "k", 1, ttl_ms=0),
        lambda t: t.check("t", "k"),
        lambda t: t.check("t", "k", absent=True, version=0),
        lambda t: t.check("t", "k", at_least=1, at_most=2),
        lambda t: t.put("t", "k", 1, if_version=-1),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_the_transaction_as_it_was(wrong: Callable[[Transaction], Any]) -> None:
    transaction = Transaction().put("t", "a", 1)
    before = said(transaction)
    with pytest.raises(OperationFailed) as refused:
        wrong(transaction)
    assert refused.value.code is Code.BAD_REQUEST
    assert said(transaction) == before


ENDS: dict[str, Any] = {"ttl_ms": 5, "bound": True}


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        (lambda t: t.put("t", "k", "v"), {"op": "put", "value": "v"}),
        (lambda t: t.put("t", "k", "v", **ENDS), {"op": "put", "value": "v", **ENDS}),
        (lambda t: t.put("t", "k", 1, if_absent=True), {"op": "put", "value": 1, "if": {"absent": True}}),
        (lambda t: t.put("t", "k", 1, if_version=0), {"op": "put", "value": 1, "if": {"version": 0}}),
        (lambda t: t.put("t", "k", 1, if_value=None), {"op": "put", "value": 1, "if": {"value": None}}),
        (lambda t: t.put("t", "k", 1, numbered=True), {"op": "put", "value": 1, "numbered": True}),
        (lambda t: t.put("t", "k", 1, then="l", **ENDS), {"op": "put", "value": 1, "then": "l", **ENDS}),
        (lambda t: t.insert("t", "k", 1, **ENDS), {"op": "put", "value": 1, "if": {"absent": True}, **ENDS}),
        (lambda t: t.delete("t", "k"), {"op": "delete"}),
        (lambda t: t.delete("t", "k", if_version=3), {"op": "delete", "if": {"version": 3}}),
        (lambda t: t.delete("t", "k", if_value=0), {"op": "delete", "if": {"value": 0}}),
        (lambda t: t.increment("t", "k"), {"op": "increment", "by": 1}),
        (
            lambda t: t.increment("t", "k", -2, floor=-9, ceiling=9, **ENDS),
            {"op": "increment", "by": -2, "floor": -9, "ceiling": 9, **ENDS},
        ),
        (lambda t: t.append("t", "k", [1], **ENDS), {"op": "append", "item": [1], **ENDS}),
        (lambda t: t.get("t", "k"), {"op": "get"}),
        (lambda t: t.take("t", "k", "l", 64, **ENDS), {"op": "take", "to": "l", "count": 64, **ENDS}),
    ],
)
def test_write_says_what_the_call_says_and_nothing_else(
    written: Callable[[Transaction], Transaction], wanted: dict[str, Any]
) -> None:
    ((one,), conditions) = said(written(Transaction()))
    told = msgspec.msgpack.decode(msgspec.msgpack.encode(one))
    assert {name: value for name, value in told.items() if name not in ("table", "key")} == wanted
    assert (one.table, one.key, conditions) == ("t", "k", [])


@pytest.mark.parametrize(
    ("tests", "wanted"),
    [({name: value}, {name: value}) for name in ("version", "at_least", "at_most") for value in (0, 1, 9)]
    + [({"absent": True}, {"absent": True}), ({"present": True}, {"present": True}), ({"value": None}, {"value": None})]
    + [({"value": 1, "absent": False, "present": False}, {"value": 1})],
)
def test_condition_says_what_the_call_says_and_nothing_else(tests: dict[str, Any], wanted: dict[str, Any]) -> None:
    transaction = Transaction().put("t", "a", 1).check("t", "k", **tests).check_session(11)
    row, session = (msgspec.msgpack.decode(msgspec.msgpack.encode(one)) for one in said(transaction)[1])
    assert row == {"table": "t", "key": "k", "if": wanted}
    assert session == {"session": "000000000000000b"}
