"""Calls that wait while a lost session is opened anew: each up to its deadline, and no longer than there is hope."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from oncegate import Client, Code, DeadlineExceeded, Outcome, Session
from oncegate.rifl.errors import OncegateError
from oncegate.testing import FakeGateway
from tests.client.answers import Answer, arrived, fails, intercept, settle

SESSIONS = "/v1/sessions"
CALLS: dict[str, Callable[[Session, float], Awaitable[Any]]] = {
    "put_many": lambda session, timeout_s: session.put_many("rows", {"k": 1}, timeout_s=timeout_s),
    "rows": lambda session, timeout_s: session.put_many("events", {"k": 1}, timeout_s=timeout_s),
    "put": lambda session, timeout_s: session.put("rows", "k", 1, timeout_s=timeout_s),
}


@asynccontextmanager
async def between(
    fake: FakeGateway, answer: Callable[[], web.Response | None]
) -> AsyncIterator[tuple[Session, asyncio.Event]]:
    """A session that is lost; the next one is opened, or refused, once the event is set."""
    go_on = asyncio.Event()

    async def hold(_: web.Request) -> Answer:
        await go_on.wait()
        return answer()

    async with Client(fake.endpoints) as client, client.session(renew_lost=True) as session:
        await session.put("rows", "a", 1)
        await client.table("rows")
        await client.table("events")
        fake.advance(61)
        intercept(fake.nodes[0], SESSIONS, hold)
        found = session.submit("put", "rows", "b", 1)
        await arrived(fake.nodes[0], SESSIONS, count=2)
        yield session, go_on
        await asyncio.wait([found])


@pytest.mark.parametrize("kind", CALLS)
async def test_who_gives_up_takes_nobody_with_him(fake: FakeGateway, kind: str) -> None:
    call = CALLS[kind]
    async with between(fake, lambda: None) as (session, go_on):
        before = session.client_id
        patient = [asyncio.ensure_future(call(session, 60)) for _ in range(2)]
        hasty, gone = asyncio.ensure_future(call(session, 0.05)), asyncio.ensure_future(call(session, 60))
        await settle()
        gone.cancel()
        with fails(Code.TIMEOUT, Outcome.NOT_APPLIED, kind=DeadlineExceeded):
            await hasty
        with pytest.raises(asyncio.CancelledError):
            await gone
        patient.append(asyncio.ensure_future(call(session, 60)))
        await settle()
        assert not any(one.done() for one in patient)
        go_on.set()
        for one in patient:
            assert (await one).client_id == session.client_id != before
    assert len(fake.executed) == 2 + len(patient)


@pytest.mark.parametrize("kind", CALLS)
async def test_who_waits_is_told_at_once_that_no_session_follows(fake: FakeGateway, kind: str) -> None:
    node = fake.nodes[0]
    async with between(fake, lambda: node.problem(OncegateError(Code.CONFLICT))) as (session, go_on):
        waiting = [asyncio.ensure_future(CALLS[kind](session, 60)) for _ in range(3)]
        await settle()
        go_on.set()
        async with asyncio.timeout(20):
            for one in waiting:
                with fails(Code.INTERNAL, Outcome.NOT_APPLIED):
                    await one
        assert session.lost.is_set()
        assert session.outstanding == 0
        with fails(Code.INTERNAL, Outcome.NOT_APPLIED):
            await CALLS[kind](session, 60)
    assert len(fake.executed) == 1
