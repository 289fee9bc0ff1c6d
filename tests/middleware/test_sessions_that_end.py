"""A gate whose session has ended: another one takes its place, once, and what the new one has claimed stays claimed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest

from oncegate import Client, Code, OperationFailed, Outcome
from oncegate.gateway.middleware.gate import Ticket
from oncegate.gateway.middleware.records import IN_PROGRESS, UNAVAILABLE, Incoming, Kept
from oncegate.middleware import Gate, Policy
from oncegate.testing import FakeGateway

ENDS = (Code.SESSION_EXPIRED, Code.FENCED)


class Opened:
    """A session; once it is over its writes are refused, those of some rows when they are let go."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.over: Code | None = None
        self.closed = False
        self.held: dict[str, asyncio.Event] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def close(self, **how: Any) -> None:
        self.closed = True
        await self._inner.close(**how)

    async def _check(self, row: str) -> None:
        code = self.over
        if row in self.held:
            await self.held[row].wait()
        if code is not None:
            raise OperationFailed(code, outcome=Outcome.NOT_APPLIED)

    async def put(self, table: str, row: str, *more: Any, **how: Any) -> Any:
        await self._check(row)
        return await self._inner.put(table, row, *more, **how)

    async def delete(self, table: str, row: str, **how: Any) -> Any:
        await self._check(row)
        return await self._inner.delete(table, row, **how)


class Opening:
    """A client that keeps the sessions that it has opened."""

    def __init__(self, inner: Client) -> None:
        self._inner = inner
        self.sessions: list[Opened] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def session(self, **options: Any) -> Opened:
        self.sessions.append(Opened(self._inner.session(**options)))
        return self.sessions[-1]


@asynccontextmanager
async def two(policy: Policy | None = None) -> AsyncIterator[tuple[Gate, Opening, Gate]]:
    """Two services; the sessions of the first are the test's."""
    async with FakeGateway() as fake, Client(fake.endpoints) as client:
        opening: Any = Opening(client)
        async with Gate(opening, policy) as gate, Gate(client, policy) as other:
            yield gate, opening, other


def asks(key: str) -> Incoming:
    return Incoming("POST", "/", {}, (key,), b"{}")


async def admitted(gate: Gate, key: str) -> Ticket:
    ticket = await gate.admit(asks(key))
    assert isinstance(ticket, Ticket)
    return ticket


@pytest.mark.parametrize("code", ENDS)
@pytest.mark.parametrize("heard", ["claiming", "recording", "freeing"])
async def test_request_after_the_one_that_heard_that_the_session_is_over_runs(code: Code, heard: str) -> None:
    async with two() as (gate, opening, _):
        ticket = await admitted(gate, "a")
        opening.sessions[0].over = code
        if heard == "claiming":
            assert await gate.admit(asks("b")) == UNAVAILABLE
        else:
            await gate.settle(ticket, Kept(201 if heard == "recording" else 503, [], b""))
        assert [one.closed for one in opening.sessions] == [True, False]
        await gate.settle(await admitted(gate, "b"), Kept(201, [], b"done"))
        replayed = await gate.admit(asks("b"))
        assert isinstance(replayed, Kept)
        assert (replayed.status, replayed.body) == (201, b"done")
        assert [one.closed for one in opening.sessions] == [True, False]


async def test_refusal_of_another_kind_leaves_the_session_as_it_is() -> None:
    async with two() as (gate, opening, _):
        running = await admitted(gate, "a")
        opening.sessions[0].over = Code.OVERLOADED
        assert await gate.admit(asks("b")) == UNAVAILABLE
        await gate.settle(running, Kept(201, [], b""))
        assert [one.closed for one in opening.sessions] == [False]


@pytest.mark.parametrize("late", ["claiming", "recording"])
@pytest.mark.parametrize("rerun", [False, True])
async def test_who_hears_late_that_a_session_is_over_leaves_the_next_one_and_its_claims(late: str, rerun: bool) -> None:
    """Else a request that runs here would count as broken off elsewhere, and run again beside itself."""
    async with two(Policy(rerun=lambda _: rerun)) as (gate, opening, other):
        first = opening.sessions[0]
        ticket = await admitted(gate, "late")
        if late == "claiming":
            await gate.settle(ticket, Kept(503, [], b""))
        first.over, first.held[ticket.row] = Code.SESSION_EXPIRED, asyncio.Event()
        ends: asyncio.Future[Any] = asyncio.ensure_future(
            gate.admit(asks("late")) if late == "claiming" else gate.settle(ticket, Kept(201, [], b""))
        )
        await asyncio.sleep(0)
        assert await gate.admit(asks("early")) == UNAVAILABLE
        running = await admitted(gate, "b")
        first.held[ticket.row].set()
        assert await ends in (UNAVAILABLE, None)
        assert [one.closed for one in opening.sessions] == [True, False]
        assert await other.admit(asks("b")) == IN_PROGRESS
        await gate.settle(running, Kept(201, [], b"once"))
        told = await other.admit(asks("b"))
        assert isinstance(told, Kept)
        assert told.body == b"once"


async def test_all_who_hear_at_once_that_a_session_is_over_open_one() -> None:
    async with two() as (gate, opening, _):
        opening.sessions[0].over = Code.FENCED
        assert await asyncio.gather(*(gate.admit(asks(key)) for key in "abcd")) == [UNAVAILABLE] * 4
        assert [one.closed for one in opening.sessions] == [True, False]


async def test_request_that_outlives_its_gate_opens_no_session() -> None:
    async with FakeGateway() as fake, Client(fake.endpoints) as client:
        opening: Any = Opening(client)
        gate = await Gate(opening).__aenter__()
        (session,) = opening.sessions
        ticket = await admitted(gate, "a")
        await gate.settle(ticket, Kept(503, [], b""))
        session.over, session.held[ticket.row] = Code.SESSION_EXPIRED, asyncio.Event()
        asked = asyncio.ensure_future(gate.admit(asks("a")))
        await asyncio.sleep(0)
        await gate.__aexit__(None, None, None)
        session.held[ticket.row].set()
        assert await asked == UNAVAILABLE
        assert [one.closed for one in opening.sessions] == [True]
        assert await gate.admit(asks("b")) == UNAVAILABLE, "a gate that is closed takes no keys"


async def test_session_that_is_being_opened_while_its_gate_is_left_is_closed_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with FakeGateway() as fake, Client(fake.endpoints) as client:
        opening: Any = Opening(client)
        gate = await Gate(opening).__aenter__()
        opening.sessions[0].over = Code.SESSION_EXPIRED
        begun, goes_on = asyncio.Event(), asyncio.Event()
        enter = Opened.__aenter__

        async def slowly(session: Opened) -> Opened:
            begun.set()
            await goes_on.wait()
            return await enter(session)

        monkeypatch.setattr(Opened, "__aenter__", slowly)
        asked = asyncio.ensure_future(gate.admit(asks("a")))
        await begun.wait()
        leaves = asyncio.ensure_future(gate.__aexit__(None, None, None))
        await asyncio.sleep(0)
        goes_on.set()
        assert await asked == UNAVAILABLE
        await leaves
        assert [one.closed for one in opening.sessions] == [True, True]
