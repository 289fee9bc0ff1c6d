"""Watches are served by followers where there are any, and by the leader where there is nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import aiohttp
import msgspec
import pytest

from oncegate import Client
from oncegate.gateway.client.client import Watch
from oncegate.gateway.client.settings import Tuning
from oncegate.gateway.http.routes import watch
from oncegate.gateway.testing.nodes import FakeGateway, FakeNode
from oncegate.gateway.wire import H_ELSEWHERE
from oncegate.rifl.errors import Code, OncegateError

TUNING = Tuning(backoff_first_s=0.001, backoff_cap_s=0.01)
PATH = "GET /v1/tables/rows/watch"


@pytest.fixture
async def trio() -> AsyncIterator[FakeGateway]:
    async with FakeGateway(nodes=3) as gateway:
        gateway.declare("rows")
        yield gateway


async def serving(trio: FakeGateway, count: int = 1) -> None:
    """Wait until so many watches are there."""
    async with asyncio.timeout(60):
        while trio.watching.watchers != count:
            await asyncio.sleep(0.001)


def asked(trio: FakeGateway) -> list[int]:
    return [node.requests[PATH] for node in trio.nodes]


async def first(changes: Watch) -> str:
    async with asyncio.timeout(60), aclosing(aiter(changes)) as steps:
        return (await anext(steps)).key


@pytest.mark.parametrize("leader", [0, 1, 2])
async def test_a_client_that_knows_the_leader_watches_at_followers(trio: FakeGateway, leader: int) -> None:
    trio.lead(trio.nodes[leader])
    async with Client(trio.endpoints, tuning=TUNING) as client, client.session() as session:
        await session.put("rows", "k", 1)
        for _ in range(6):
            assert await first(client.watch("rows", from_commit=0)) == "k"
    counts = asked(trio)
    assert counts[leader] == 0
    assert sorted(counts) == [0, 3, 3], "in turn"


@pytest.mark.parametrize("leader", [0, 1, 2])
async def test_a_leader_sends_a_watch_on_whose_client_knows_others(trio: FakeGateway, leader: int) -> None:
    trio.lead(trio.nodes[leader])
    for _ in range(3):  # each begins without knowing who leads
        async with Client(trio.endpoints, tuning=TUNING) as client:
            reading = asyncio.ensure_future(first(client.watch("rows", from_commit=trio.commit)))
            await serving(trio)
            async with Client(trio.endpoints) as other, other.session() as session:
                await session.put("rows", "k", 1)
            assert await reading == "k"
    followers = [count for index, count in enumerate(asked(trio)) if index != leader]
    assert sum(followers) == 3, "each is served by a follower, and none is asked twice"


async def test_a_leader_serves_watches_that_nobody_else_can_serve(trio: FakeGateway) -> None:
    leader = trio.nodes[0]
    async with Client(trio.endpoints, tuning=TUNING) as client, client.session() as session:
        await session.put("rows", "k", 1)
        for node in trio.nodes[1:]:
            await node.stop()
        assert await first(client.watch("rows", from_commit=0)) == "k"
    async with Client(leader.endpoint, tuning=TUNING) as client:
        for node in trio.nodes[1:]:
            await node.start()
        assert await first(client.watch("rows", from_commit=0)) == "k", "this client knows nobody else"
    assert leader.requests[PATH] >= 2


async def test_a_watch_that_followers_cannot_serve_ends_up_at_the_leader(trio: FakeGateway) -> None:
    """The leader takes the others for well, the client does not reach them."""
    leader = trio.nodes[0]
    for node in trio.nodes[1:]:
        node.before = _broken
    async with Client(trio.endpoints, tuning=TUNING) as client, client.session() as session:
        await session.put("rows", "k", 1)
        assert await first(client.watch("rows", from_commit=0)) == "k"
    assert 1 <= leader.requests[PATH] <= 2


async def _broken(request: aiohttp.web.Request) -> None:
    if request.path.endswith("/watch") and request.transport is not None:
        request.transport.abort()


async def test_who_does_not_say_that_it_knows_others_is_served_by_the_leader(trio: FakeGateway) -> None:
    path = f"{trio.nodes[0].endpoint}/v1/tables/rows/watch"
    async with aiohttp.ClientSession() as http:
        async with http.get(path) as answer:
            assert answer.status == 200
            assert b"progress" in await answer.content.readuntil(b"\n\n")
        async with http.get(path, headers={H_ELSEWHERE: "1"}) as answer:
            problem = msgspec.json.decode(await answer.read())
        assert (answer.status, problem["code"], problem["retryable"]) == (429, Code.OVERLOADED, True)
        assert problem["elsewhere"] is True
        assert "Retry-After" in answer.headers
        for node in trio.nodes[1:]:
            async with http.get(f"{node.endpoint}/v1/tables/rows/watch", headers={H_ELSEWHERE: "1"}) as answer:
                assert answer.status == 200


async def test_watches_leave_a_node_that_has_begun_to_lead_and_miss_nothing(
    trio: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "KEEP_ALIVE_S", 0.05)
    async with (
        Client(trio.endpoints, tuning=TUNING) as client,
        client.session() as session,
        aclosing(aiter(client.watch("rows", from_commit=0))) as changes,
    ):
        await session.put("rows", "k0", 0)
        assert (await anext(changes)).key == "k0"
        for turn in range(1, 4):
            serves = _who(trio)
            trio.lead(serves)
            reading = asyncio.ensure_future(anext(changes))
            async with asyncio.timeout(60):
                while not any(node.requests[PATH] for node in trio.nodes if node is not serves):
                    await asyncio.sleep(0.001)
            await session.put("rows", f"k{turn}", turn)
            assert (await reading).key == f"k{turn}"
            assert _who(trio, but=serves) is not serves


async def test_a_node_that_lacked_the_past_once_serves_a_watch_that_has_gone_on_since(trio: FakeGateway) -> None:
    """Nodes are replaced one after the other: at each time another one has what the watch has not told yet."""
    keeps = 0

    async def lacks(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse | None:
        by = next(node for node in trio.nodes if node.endpoint.endswith(f":{request.url.port}"))
        lacks = request.path.endswith("/watch") and by is not trio.nodes[keeps]
        return by.problem(OncegateError(Code.RETENTION_EXCEEDED)) if lacks else None

    for node in trio.nodes:
        node.before = lacks
    async with (
        Client(trio.endpoints, tuning=TUNING) as client,
        client.session() as session,
        aclosing(aiter(client.watch("rows", from_commit=0))) as changes,
    ):
        for turn in range(5):
            await session.put("rows", f"k{turn}", turn)
            async with asyncio.timeout(60):
                assert (await anext(changes)).key == f"k{turn}"
            keeps = (keeps + 1) % 3
            for node in trio.nodes:
                await node.stop()
                await node.start()


def _who(trio: FakeGateway, but: FakeNode | None = None) -> FakeNode:
    """Return who serves the watch, and count from here on."""
    (node,) = (node for node in trio.nodes if node.requests[PATH] and node is not but)
    for one in trio.nodes:
        one.requests.clear()
    node.requests[PATH] = 1
    return node
