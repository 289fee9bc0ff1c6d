from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
from aiohttp import web

from oncegate import Client, Session, Tuning
from oncegate.testing import FakeGateway


@pytest.fixture
async def fake() -> AsyncIterator[FakeGateway]:
    """One node with a table of each kind."""
    async with FakeGateway() as gateway:
        gateway.declare("rows")
        gateway.declare("events", "stream")
        yield gateway


@pytest.fixture
def hasty(fake: FakeGateway) -> FakeGateway:
    """A gateway that tells the owners of sessions to renew their leases every 20 ms."""
    node = fake.nodes[0]

    async def shorten(request: web.Request) -> web.StreamResponse | None:
        if request.path != "/v1/sessions" and not request.path.endswith("/renew"):
            return None
        answer = await node.serve(request)
        assert isinstance(answer, web.Response)
        assert isinstance(answer.body, bytes)
        body = msgspec.json.decode(answer.body)
        if answer.status < 300:
            body.update({name: 40 for name in ("lease_ms", "lease_ms_left") if name in body})
        return web.json_response(body, status=answer.status)

    node.before = shorten
    return fake


@pytest.fixture
async def trio() -> AsyncIterator[FakeGateway]:
    """Three nodes with a table of each kind; the first leads."""
    async with FakeGateway(nodes=3) as gateway:
        gateway.declare("rows")
        gateway.declare("events", "stream")
        yield gateway


@pytest.fixture
async def client(fake: FakeGateway) -> AsyncIterator[Client]:
    """A client of ``fake`` that waits a few milliseconds between attempts."""
    async with Client(fake.endpoints, tuning=Tuning(backoff_first_s=0.001, backoff_cap_s=0.01)) as connected:
        yield connected


@pytest.fixture
async def session(client: Client) -> AsyncIterator[Session]:
    async with client.session() as opened:
        yield opened
