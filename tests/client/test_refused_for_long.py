"""A refusal that says to come back after the deadline ends the call at once, with its own code; and keys that last."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from oncegate import Client, Code, DeadlineExceeded, OncegateError, OperationFailed, Outcome, OutcomeUnknown, sync
from oncegate.testing import FakeGateway
from tests.client.answers import OPERATIONS, cut, fails, intercept

DAY_MS = 86_368_000
FOR_A_DAY = OncegateError(Code.QUOTA, "full", retry_after_ms=DAY_MS)


def refuse(fake: FakeGateway, path: str, refusal: OncegateError = FOR_A_DAY) -> list[str]:
    """Let every node refuse what is sent to a path; returns the attempts, which grow."""
    asked: list[str] = []
    for node in fake.nodes:

        async def refused(request: web.Request, node: Any = node) -> web.StreamResponse | None:
            asked.append(request.path)
            return node.problem(refusal)

        intercept(node, path, refused)
    return asked


@pytest.mark.parametrize(
    "refusal",
    [FOR_A_DAY, OncegateError(Code.OVERLOADED, retry_after_ms=DAY_MS), OncegateError(Code.QUOTA)],
    ids=["all keys are taken", "overloaded", "no time said: a second"],
)
async def test_keyed_write_and_write_of_a_session_are_told_at_once(fake: FakeGateway, refusal: OncegateError) -> None:
    async with Client(fake.endpoints) as client, client.session() as session:
        await session.put("rows", "warm", 1)
        for path in ("/v1/transactions", OPERATIONS):
            asked = refuse(fake, path, refusal)
            keyed = client.increment("rows", "k", idempotency_key="webhook-7", timeout_s=0.9)
            write = session.put("rows", "k", 1, timeout_s=0.9)
            used, unused = (write, keyed) if path == OPERATIONS else (keyed, write)
            unused.close()
            with pytest.raises(DeadlineExceeded) as told:
                await used
            failure = told.value
            assert (failure.code, failure.outcome) == (refusal.code, Outcome.NOT_APPLIED)
            assert failure.retry_after_ms == (refusal.retry_after_ms or 1_000)
            assert len(asked) == 1
        fake.nodes[0].before = None
        assert (await session.put("rows", "k", 2)).sequence == 2, "the number of the write that never was is reused"


async def test_session_that_cannot_be_opened_before_the_deadline_is_told_at_once(fake: FakeGateway) -> None:
    asked = refuse(fake, "/v1/sessions")
    async with Client(fake.endpoints, timeout_s=600.0) as client:
        with fails(Code.QUOTA, outcome=Outcome.NOT_APPLIED, kind=DeadlineExceeded):
            async with client.session():
                pass
    assert len(asked) == 1


async def test_wait_within_the_deadline_is_waited_for(fake: FakeGateway, client: Client) -> None:
    node, asked = fake.nodes[0], []

    async def once(request: web.Request) -> web.StreamResponse | None:
        asked.append(request.path)
        return node.problem(OncegateError(Code.QUOTA, retry_after_ms=20)) if len(asked) == 1 else None

    intercept(node, "/v1/transactions", once)
    assert (await client.increment("rows", "k", idempotency_key="a", timeout_s=60.0)).value == 1
    assert len(asked) == 2


async def test_refusal_after_an_attempt_in_doubt_leaves_the_outcome_unknown(fake: FakeGateway, client: Client) -> None:
    node, asked = fake.nodes[0], []

    async def lost_and_refused(request: web.Request) -> web.StreamResponse | None:
        asked.append(request.path)
        if len(asked) == 1:
            await node.serve(request)
            return cut(request)
        return node.problem(FOR_A_DAY)

    intercept(node, "/v1/transactions", lost_and_refused)
    with pytest.raises(OutcomeUnknown) as told:
        await client.increment("rows", "k", idempotency_key="a", timeout_s=60.0)
    assert (told.value.code, told.value.outcome) == (Code.QUOTA, Outcome.UNKNOWN)
    assert told.value.retry_after_ms == DAY_MS
    assert len(asked) == 2


async def test_node_that_is_not_ready_does_not_end_a_call_although_it_says_a_long_time(trio: FakeGateway) -> None:
    async with Client(trio.endpoints) as client, client.session() as session:
        await session.put("rows", "a", 1)
        refuse(trio, OPERATIONS, OncegateError(Code.NOT_READY, retry_after_ms=DAY_MS))
        write = session.submit("put", "rows", "b", 1)
        await asyncio.wait([write], timeout=0.1)
        assert not write.done()
        for node in trio.nodes:
            node.before = None
        assert (await write).applied


async def test_new_key_names_the_clusters_time_and_is_refused_once_it_is_forgotten(fake: FakeGateway) -> None:
    fake.advance(1_000)
    async with Client(fake.endpoints) as client:
        now_ms = (await client.cluster()).cluster_time_ms
        assert now_ms >= 1_000_000
        key, other = await client.new_idempotency_key(), await client.new_idempotency_key()
        assert key.startswith(f"oncegate-{now_ms}-")
        assert key != other
        assert await client.new_idempotency_key("order 7") == f"oncegate-{now_ms}-order 7"
        assert (await client.increment("rows", "k", idempotency_key=key)).value == 1
        fake.advance(2 * 86_400)
        with fails(Code.SESSION_EXPIRED):
            await client.increment("rows", "k", idempotency_key=key)
        assert await fake.value("rows", "k") == 1
        for wrong in ("", "ü", "x" * 250, 7):
            if wrong == "":
                assert (await client.new_idempotency_key(wrong)).endswith("-")
                continue
            with pytest.raises(OperationFailed, match="BAD_REQUEST"):
                await client.new_idempotency_key(wrong)  # type: ignore[arg-type]


async def test_new_key_without_await(fake: FakeGateway) -> None:
    def work() -> int:
        with sync.Client(fake.endpoints) as client:
            key = client.new_idempotency_key()
            first = client.increment("rows", "k", idempotency_key=key)
            assert client.increment("rows", "k", idempotency_key=key).replayed
            return first.value

    assert await asyncio.to_thread(work) == 1
