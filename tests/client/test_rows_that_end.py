"""Rows that end, as an application sees them: in the SDK, with and without ``await``, and on the test fixture."""

from __future__ import annotations

import pytest

from oncegate import Client, Code, Session, sync
from oncegate.rifl.ids import format_client_id
from oncegate.testing import FakeCluster, FakeGateway
from tests.client.answers import fails


async def test_put_ends_its_row_by_time_and_a_read_says_when(fake: FakeGateway, session: Session) -> None:
    assert (await session.put("rows", "k", 1, ttl_ms=5_000)).applied
    row = await session.get("rows", "k")
    assert row is not None
    assert (row.value, row.ends_ms, row.owner) == (1, 5_000, "")
    fake.advance(4.9)
    assert await session.get("rows", "k") is not None
    fake.advance(0.3)
    assert await session.get("rows", "k") is None


async def test_bound_row_is_its_sessions_and_ends_with_it(fake: FakeGateway, client: Client) -> None:
    async with client.session() as session:
        await session.insert("rows", "k", "mine", bound=True)
        row = await session.get("rows", "k")
        assert row is not None
        assert (row.ends_ms, row.owner) == (0, format_client_id(session.client_id))
        async with client.session() as other:
            assert not (await other.insert("rows", "k", "its", bound=True)).applied
    assert await client.get("rows", "k") is None
    async with client.session() as session:
        await session.put("rows", "k", "mine", bound=True)
        fake.expire(session.client_id)
        assert await client.get("rows", "k") is None
    fake.advance(120)


async def test_every_write_that_makes_a_row_takes_an_end(fake: FakeGateway, session: Session) -> None:
    await session.increment("rows", "n", ttl_ms=1_000)
    await session.increment("rows", "n")
    await session.append("rows", "l", "x", ttl_ms=1_000, bound=True)
    await session.submit("put", "rows", "s", 1, ttl_ms=1_000)
    await session.put_many("rows", {"a": 1, "b": 2}, ttl_ms=1_000)
    assert len(fake.machine.ends) == 5
    await session.put("rows", "stays", 1)
    fake.advance(2)
    assert [key for key, _ in fake.machine.tables["rows"].rows.items()] == ["stays"]


async def test_update_says_anew_when_its_row_ends_as_a_put_does(fake: FakeGateway, session: Session) -> None:
    await session.put("rows", "k", 1, ttl_ms=1_000)
    fake.advance(0.9)
    await session.update("rows", "k", lambda value: 2, ttl_ms=1_000, bound=True)
    row = await session.get("rows", "k")
    assert row is not None
    assert (row.value, row.ends_ms, row.owner) == (2, 1_900, format_client_id(session.client_id))
    await session.update("rows", "k", lambda value: 3)
    fake.advance(2)
    row = await session.get("rows", "k")
    assert row is not None
    assert (row.value, row.ends_ms, row.owner) == (3, 0, "")


async def test_rows_of_a_transaction_end_with_its_session_or_by_time(fake: FakeGateway, client: Client) -> None:
    async with client.session() as session:
        async with session.transaction() as t:
            t.insert("rows", "lock", 1, bound=True).increment("rows", "n", ttl_ms=1_000)
        await session.put("rows", "keyed", 1, ttl_ms=1_000, idempotency_key="a")
        with fails(Code.BAD_REQUEST):
            await session.put("rows", "keyed", 1, bound=True, idempotency_key="b")
        fake.advance(1.2)
        assert [key for key, _ in fake.machine.tables["rows"].rows.items()] == ["lock"]
    assert not len(fake.machine.ends)


async def test_end_that_cannot_be_is_refused_and_ends_nothing_else(session: Session) -> None:
    for ttl_ms in (0, -1, 2**63, 1.5, "1", True):
        with fails(Code.BAD_REQUEST):
            await session.put("rows", "k", 1, ttl_ms=ttl_ms)  # type: ignore[arg-type]
    assert session.outstanding == 0
    with fails(Code.BAD_REQUEST):
        await session.put("rows", "k", 1, ttl_ms=2**40)
    for end in ({"ttl_ms": 5}, {"bound": True}):
        with fails(Code.BAD_REQUEST):
            await session.put("events", "k", 1, **end)  # type: ignore[arg-type]
        with fails(Code.BAD_REQUEST):
            await session.put_many("events", {"k": 1}, **end)  # type: ignore[arg-type]
    assert (await session.put("rows", "k", 1)).applied


def test_script_lets_rows_end_on_the_fixture_whose_clock_it_moves(oncegate_cluster: FakeCluster) -> None:
    oncegate_cluster.declare("rows")
    with sync.Client(oncegate_cluster.endpoints) as client:
        with client.session() as session:
            session.put("rows", "hold", "ann", ttl_ms=1_000)
            session.submit("put", "rows", "mine", 1, bound=True).result()
            oncegate_cluster.advance(1.2)
            assert client.get("rows", "hold") is None
            assert client.get("rows", "mine") is not None
        assert client.get("rows", "mine") is None


@pytest.mark.parametrize("bound", [False, True])
async def test_retry_whose_first_answer_was_lost_does_not_bring_the_row_back(
    fake: FakeGateway, client: Client, bound: bool
) -> None:
    async with client.session() as session:
        fake.nodes[0].lose_answers(1)
        result = await session.put("rows", "k", 1, ttl_ms=100, bound=bound)
        assert result.replayed
        version = fake.machine.tables["rows"].rows.get("k").version  # type: ignore[union-attr]
        assert version == result.commit
