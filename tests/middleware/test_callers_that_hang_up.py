"""A caller that hangs up cancels its request, never what becomes of its key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Self

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from oncegate import Client
from oncegate.gateway.middleware.gate import Ticket
from oncegate.gateway.middleware.records import OUTCOME_UNKNOWN, Incoming, Kept
from oncegate.middleware import ForAsgi, Gate, for_aiohttp
from oncegate.testing import FakeGateway
from tests.middleware.service import KINDS

Run = Callable[[], Awaitable[None]]


class SlowGate(Gate):
    """Takes its time for each record."""

    async def __aenter__(self) -> Self:
        self.writes, self.go_on, self.written = asyncio.Event(), asyncio.Event(), asyncio.Event()
        return await super().__aenter__()

    async def settle(self, ticket: Ticket, response: Kept) -> None:
        await self._slowly(super().settle(ticket, response))

    async def give_up(self, ticket: Ticket) -> None:
        await self._slowly(super().give_up(ticket))

    async def _slowly(self, work: Awaitable[None]) -> None:
        self.writes.set()
        await self.go_on.wait()
        await work
        self.written.set()


def request_of(kind: str, gate: Gate, run: Run) -> asyncio.Task[Any]:
    """Begin a request whose handler does that and answers 201."""
    if kind == "aiohttp":

        async def handler(_: web.Request) -> web.StreamResponse:
            await run()
            return web.Response(status=201)

        made = make_mocked_request("POST", "/", headers={"Idempotency-Key": "k"})
        return asyncio.ensure_future(for_aiohttp(gate)(made, handler))

    async def app(_: Any, __: Any, send: Any) -> None:
        await run()
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(_: Any) -> None:
        pass

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"idempotency-key", b"k")]}
    return asyncio.ensure_future(ForAsgi(app, gate)(scope, receive, send))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("while_it_runs", [False, True])
async def test_what_became_of_a_run_is_recorded_whenever_its_caller_hangs_up(kind: str, while_it_runs: bool) -> None:
    runs = asyncio.Event()

    async def run() -> None:
        runs.set()
        if while_it_runs:
            await asyncio.Event().wait()

    async with FakeGateway() as fake, Client(fake.endpoints) as client, SlowGate(client) as gate:
        request = request_of(kind, gate, run)
        await runs.wait()
        if while_it_runs:
            request.cancel()
        await gate.writes.wait()
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        assert request.cancelled()
        gate.go_on.set()
        await asyncio.wait_for(gate.written.wait(), 60)
        told = await gate.admit(Incoming("POST", "/", {}, ("k",), b""))
        assert isinstance(told, Kept)
        assert told.status == (OUTCOME_UNKNOWN.status if while_it_runs else 201)
        assert ("Idempotent-Replayed", "true") in told.headers, "it was recorded"
