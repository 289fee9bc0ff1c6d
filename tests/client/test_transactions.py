"""Transactions, idempotency keys and optimistic updates in the SDK."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from oncegate import (
    Client,
    Code,
    OncegateError,
    OperationFailed,
    Outcome,
    OutcomeUnknown,
    RequestId,
    Session,
    Transaction,
    sync,
)
from oncegate.gateway.testing.nodes import FakeCluster, FakeGateway
from tests.client.answers import cut, fails, intercept


@pytest.fixture
def bank(fake: FakeGateway) -> FakeGateway:
    fake.declare("accounts")
    fake.declare("log")
    fake.declare("events", "stream")
    return fake


def transfer(amount: int, to: str = "b") -> Transaction:
    made = Transaction().increment("accounts", "a", -amount, floor=0).increment("accounts", to, amount)
    return made.put("events", "a", {"to": to, "amount": amount})


async def balances(fake: FakeGateway) -> dict[str, Any]:
    table = fake.machine.tables["accounts"]
    return {key: await fake.value("accounts", key) for key, _ in table.rows.items()}


async def test_transaction_is_sent_when_its_block_ends_and_all_of_it_happens_or_nothing(
    bank: FakeGateway, client: Client
) -> None:
    async with client.session() as session:
        await session.put("accounts", "a", 10)
        async with session.transaction() as t:
            t.increment("accounts", "a", -3, floor=0)
            t.increment("accounts", "b", 3).insert("log", "1", {"amount": 3}).append("log", "all", 1)
            t.check("log", "closed", absent=True).get("accounts", "a")
            assert len(bank.executed) == 1, "nothing has travelled"
        done = t.result
        assert done.applied
        assert [one.commit for one in done.writes] == list(range(done.commit - 4, done.commit + 1))
        assert [one.value for one in done.writes[:2]] == [7, 3]
        assert (done.writes[4].value, await balances(bank)) == (7, {"a": 7, "b": 3})
        refused = await session.transact(transfer(8))
        assert (refused.applied, refused.code, refused.failed, refused.value) == (
            False, "CONDITION_FAILED", "writes[0]", 7,
        )  # fmt: skip
        assert await balances(bank) == {"a": 7, "b": 3}
        row = await session.get("accounts", "b")
        assert row is not None
        assert row.commit >= done.commit, "the session reads what it has written"
        done = await session.transact(transfer(1))
        assert session.highest_commit == done.writes[-1].commit == bank.machine.commit, "all of it"


async def test_block_that_raises_or_is_empty_sends_nothing(bank: FakeGateway, client: Client) -> None:
    async with client.session() as session:
        t = session.transaction()

        async def broken() -> None:
            async with t:
                t.put("accounts", "a", 1)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await broken()
        async with session.transaction() as empty:
            empty.check("accounts", "a", absent=True)
        for one in (t, empty):
            with pytest.raises(OperationFailed, match="not sent"):
                _ = one.result
    assert bank.executed == []


async def test_nothing_can_be_added_to_a_transaction_whose_block_has_ended(bank: FakeGateway, client: Client) -> None:
    async with client.session() as session:
        async with session.transaction() as t:
            t.increment("accounts", "a", 1)
        for late in (
            lambda: t.increment("accounts", "a", 1),
            lambda: t.put("events", "a", 1),
            lambda: t.check("accounts", "a", present=True),
        ):
            with pytest.raises(OperationFailed, match="block has ended"):
                late()
        with pytest.raises(OperationFailed, match="entered once"):
            await t.__aenter__()
        with pytest.raises(OperationFailed, match="entered once"):
            t.__enter__()
        assert (t.result.applied, await balances(bank)) == (True, {"a": 1})


@pytest.mark.parametrize(
    "bad",
    [
        lambda t: t.put("A", "a", 1), lambda t: t.put("accounts", "", 1), lambda t: t.put("accounts", "a", {1}),
        lambda t: t.put("accounts", "a", 2**64), lambda t: t.increment("accounts", "a", 2**63),
        lambda t: t.increment("accounts", "a", floor=2**63), lambda t: t.increment("accounts", "a", ceiling=0.5),
        lambda t: t.check("accounts", "a"), lambda t: t.check("accounts", "a", absent=True, version=1),
        lambda t: t.check("accounts", "a", at_least=True), lambda t: t.check("accounts", "\ud800", absent=True),
        lambda t: t.check_session(0), lambda t: t.put("accounts", "a", 1, if_absent=1),
        lambda t: [t.get("accounts", "a") for _ in range(130)], lambda t: Transaction().check_session(1).operation,
    ],
)  # fmt: skip
def test_bad_argument_is_refused_at_its_call_and_leaves_the_transaction_as_it_was(bad: Any) -> None:
    made = Transaction().put("accounts", "a", 1)
    with pytest.raises(OperationFailed) as refused:
        bad(made)
    assert refused.value.code in (Code.BAD_REQUEST, Code.PAYLOAD_TOO_LARGE)
    assert refused.value.outcome == "not_applied"
    assert len(made.operation.writes or []) in (1, 128)


async def test_lost_answers_leave_one_execution_and_the_same_result(bank: FakeGateway, client: Client) -> None:
    async with client.session() as session:
        await session.put("accounts", "a", 10)
        bank.nodes[0].lose_answers(3)
        done = await session.transact(transfer(4))
        assert (done.applied, done.replayed, await balances(bank)) == (True, True, {"a": 6, "b": 4})
        told = await client.request(*done.request_id)
        assert told.result is not None
        assert (told.state, told.result.writes) == ("applied", done.writes)


async def test_transactions_and_writes_of_a_row_keep_the_order_of_the_calls(bank: FakeGateway, client: Client) -> None:
    async with client.session() as session:
        bank.nodes[0].lose_answers(2)
        for number in range(30):
            if number % 3:
                last = session.submit("append", "log", "l", number)
            else:
                made = Transaction().append("log", "l", number).increment("accounts", "n", 1)
                last = asyncio.ensure_future(session.transact(made))
                await asyncio.sleep(0)
        await last
        await session.drain()
    assert await bank.value("log", "l") == list(range(30))
    assert await bank.value("accounts", "n") == 10


async def test_condition_on_a_row_waits_for_the_write_of_that_row(bank: FakeGateway, client: Client) -> None:
    async with client.session() as session:
        bank.nodes[0].lose_answers(1)
        first = session.submit("put", "log", "open", True)
        await asyncio.sleep(0)
        made = Transaction().increment("accounts", "n", 1).check("log", "open", value=True)
        assert (await session.transact(made)).applied
        await first


async def test_outbox_carries_a_transaction_over_the_death_of_its_process(
    bank: FakeGateway, client: Client, tmp_path: Path
) -> None:
    path = tmp_path / "outbox"
    async with client.session(outbox=path) as session:
        await session.put("accounts", "a", 10)
        bank.nodes[0].freeze()
        with pytest.raises(OutcomeUnknown):
            await session.transact(transfer(4), position={"at": 7}, timeout_s=0.3)
        await session.close(drain=False)
    bank.nodes[0].thaw()
    async with client.session(outbox=path) as session:
        await session.drain()
        assert session.position == {"at": 7}
    assert await balances(bank) == {"a": 6, "b": 4}


async def test_same_key_has_the_same_effect_from_whichever_process(bank: FakeGateway, client: Client) -> None:
    await client.put("accounts", "a", 10, idempotency_key='evt "0" \\')
    bank.nodes[0].before = None
    first = await client.transact(transfer(4), idempotency_key="evt-1")
    async with Client(bank.endpoints) as other, other.session() as session:
        again = await session.transact(transfer(4), idempotency_key="evt-1")
        assert (again.replayed, again.writes, again.request_id) == (True, first.writes, first.request_id)
        assert await other.put("accounts", "a", 10, idempotency_key='evt "0" \\') != first
        for number in range(2):
            counted = await session.increment("accounts", "n", 2, idempotency_key="evt-2", ceiling=3)
            assert (counted.applied, counted.value, counted.replayed) == (True, 2, number > 0)
        over = await client.increment("accounts", "n", 2, idempotency_key="evt-3", ceiling=3)
        assert (over.applied, over.code, over.value) == (False, "CONDITION_FAILED", 2)
        assert (await session.insert("log", "x", 1, idempotency_key="evt-4")).applied
        assert not (await client.put("log", "x", 1, if_absent=True, idempotency_key="evt-5")).applied
        await session.append("log", "l", 1, idempotency_key="evt-6")
        assert (await client.append("log", "l", 1, idempotency_key="evt-6")).replayed
        assert (await session.delete("log", "x", idempotency_key="evt-7")).applied
        with pytest.raises(OperationFailed, match="PAYLOAD_MISMATCH"):
            await client.transact(transfer(5), idempotency_key="evt-1")
        for key in ("", "x" * 256, "\n", 7):
            with pytest.raises(OperationFailed, match="idempotency key"):
                await client.delete("log", "x", idempotency_key=key)  # type: ignore[arg-type]
    assert await balances(bank) == {"a": 6, "b": 4, "n": 2}
    assert first.memory_ms_left > 3_600_000
    assert isinstance(first.request_id, RequestId)


@pytest.mark.parametrize(
    "made",
    [
        Transaction().check("log", "nobody", present=True).put("log", "x", 1),
        Transaction().check_session(99).put("log", "x", 1),
        Transaction().increment("accounts", "nobody", -1, floor=0),
        Transaction().delete("log", "nobody", if_version=7),
    ],
    ids=["present", "session", "floor", "version"],
)
async def test_refusal_by_a_row_that_is_not_there_is_a_result_under_a_key_too(
    bank: FakeGateway, client: Client, made: Transaction
) -> None:
    async with client.session() as session:
        plain = await session.transact(made)
    for is_again in (False, True):
        keyed = await client.transact(made, idempotency_key="k")
        assert keyed.replayed == is_again
        assert (keyed.applied, keyed.code, keyed.failed, keyed.value, keyed.version) == (
            False, plain.code, plain.failed, None, 0,
        )  # fmt: skip
    assert (plain.applied, plain.value, plain.version) == (False, None, 0)


async def test_what_a_write_asks_for_holds_under_a_key_too(bank: FakeGateway, client: Client) -> None:
    async with client.session() as session:
        here = await session.put("log", "l", [1])
        await session.put("accounts", "n", 1)
        keys = (f"evt-{number}" for number in range(10))
        for write, what in (
            (session.delete, ("log", "l")),
            (session.append, ("log", "l", 2)),
            (session.increment, ("accounts", "n", 2)),
        ):
            for test in ({"if_version": here.commit + 100}, {"if_value": "another"}):
                refused = await write(*what, **test, idempotency_key=next(keys))  # type: ignore[operator]
                assert (refused.applied, refused.code) == (False, "CONDITION_FAILED")
        assert (await session.append("log", "l", 2, if_value=[1], idempotency_key="fits")).applied
        text = await session.increment("log", "l", idempotency_key="no number")
        assert (text.applied, text.code, text.value) == (False, "NOT_AN_INTEGER", [1, 2])
        assert (await session.increment("accounts", "n", 2, if_value=1, idempotency_key="last")).value == 3
        assert session.highest_commit == bank.machine.commit, "reads of the session reflect it"


async def test_lost_answer_under_a_key_is_asked_for_again(bank: FakeGateway, client: Client) -> None:
    lost = 2

    async def lose(request: Any) -> None:
        nonlocal lost
        if request.method == "POST" and lost:
            lost -= 1
            request.transport.abort()

    bank.nodes[0].after = lose
    done = await client.increment("accounts", "n", idempotency_key="k")
    assert (done.value, done.replayed, await bank.value("accounts", "n")) == (1, True, 1)
    bank.nodes[0].after = None
    bank.nodes[0].lose_answers(1)
    done = await client.increment("accounts", "n", idempotency_key="l")
    assert (done.value, done.replayed, await bank.value("accounts", "n")) == (2, True, 2)


@pytest.mark.parametrize("code", [Code.UNAUTHENTICATED, Code.FORBIDDEN, Code.NOT_FOUND])
async def test_refusal_under_a_key_after_a_lost_answer_says_unknown(
    bank: FakeGateway, client: Client, code: Code
) -> None:
    """The token was taken away, or the table dropped, between the attempt that was applied and the next one."""
    node, asked = bank.nodes[0], 0

    async def lose_then_refuse(request: web.Request) -> web.StreamResponse | None:
        nonlocal asked
        asked += 1
        if asked > 1:
            return node.problem(OncegateError(code))
        await node.serve(request)
        cut(request)
        return None

    intercept(node, "/v1/transactions", lose_then_refuse)
    with fails(code, Outcome.UNKNOWN, kind=OutcomeUnknown):
        await client.increment("accounts", "n", idempotency_key="k")
    assert asked == 2
    with fails(code, Outcome.NOT_APPLIED):
        await client.increment("accounts", "n", idempotency_key="l")
    assert await bank.value("accounts", "n") == 1


async def test_update_computes_again_when_another_was_faster(bank: FakeGateway, client: Client) -> None:
    seen: list[Any] = []
    async with client.session() as session, client.session() as rival:

        def change(value: Any) -> Any:
            seen.append(value)
            return [*(value or []), len(seen)]

        raced = 0

        async def race(request: Any) -> None:
            nonlocal raced
            if request.method == "GET" and "rows" in request.path and raced < 2:
                raced += 1
                await rival.put("log", "r", [f"rival {raced}"])

        bank.nodes[0].after = race
        made = await session.update("log", "r", change)
        assert (made.attempts, made.value, seen) == (3, ["rival 2", 3], [None, ["rival 1"], ["rival 2"]])
        assert await bank.value("log", "r") == ["rival 2", 3]
        raced = -(10**9)
        with pytest.raises(OperationFailed, match="in each of 2 attempts") as lost:
            await session.update("log", "r", change, attempts_max=2)
        assert (lost.value.code, lost.value.outcome) == (Code.CONFLICT, "not_applied")


def test_sync_sdk_has_the_same_calls(oncegate_cluster: FakeCluster) -> None:
    oncegate_cluster.declare("accounts")
    oncegate_cluster.declare("events", "stream")
    with sync.Client(oncegate_cluster.endpoints) as client, client.session() as session:
        session.put("accounts", "a", 10)
        with session.transaction() as t:
            t.increment("accounts", "a", -1, floor=0).increment("accounts", "b", 1)
        assert t.result.applied
        assert session.transact(transfer(4)).applied
        assert client.transact(transfer(1), idempotency_key="k").applied
        assert session.increment("accounts", "a", -9, floor=0).code == "CONDITION_FAILED"
        assert session.update("accounts", "c", lambda value: (value or 0) + 1).attempts == 1
        with contextlib.suppress(KeyError), session.transaction() as t:
            t.put("accounts", "x", 1)
            raise KeyError
        assert oncegate_cluster.gateway.machine.tables["accounts"].rows.get("x") is None
    assert [oncegate_cluster.value("accounts", key) for key in "abc"] == [4, 6, 1]


def test_session_is_the_only_place_for_a_position(fake: FakeGateway) -> None:
    assert "position" not in Client.transact.__annotations__
    assert "position" in Session.transact.__annotations__
