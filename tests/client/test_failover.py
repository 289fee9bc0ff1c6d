"""Finding the leader, and leaving nodes that do not serve."""

from __future__ import annotations

import asyncio

from aiohttp import web

from oncegate import Client, Tuning
from oncegate.gateway.client.routing import REST_REFUSED_S
from oncegate.rifl.errors import Code, OncegateError
from oncegate.testing import FakeGateway, FakeNode
from tests.client.answers import cut

QUICK = Tuning(attempt_timeout_s=0.2, backoff_first_s=0.001, backoff_cap_s=0.01)


async def test_leader_named_in_an_answer_gets_the_following_writes(trio: FakeGateway) -> None:
    trio.leader = trio.nodes[2]
    async with Client(trio.endpoints) as client, client.session() as session:
        for number in range(5):
            await session.put("rows", f"k{number}", 1)
    assert trio.nodes[0].requests["POST /v1/sessions"] == 1
    assert trio.nodes[2].requests["POST /v1/operations"] == 5


async def test_leader_that_was_not_configured_is_learned(trio: FakeGateway) -> None:
    trio.leader = trio.nodes[1]
    async with Client(trio.nodes[0].endpoint) as client, client.session() as session:
        await session.put("rows", "k", 1)
    assert trio.nodes[1].requests["POST /v1/operations"] == 1


async def test_without_preference_for_the_leader_all_nodes_are_asked_in_turn(trio: FakeGateway) -> None:
    async with Client(trio.endpoints, prefer_leader=False) as client, client.session() as session:
        for number in range(6):
            await session.put("rows", f"k{number}", 1)
    assert all(node.requests["POST /v1/operations"] >= 1 for node in trio.nodes)


async def test_refused_connection_moves_on_to_the_next_node(trio: FakeGateway) -> None:
    async with Client(trio.endpoints) as client, client.session() as session:
        await session.put("rows", "a", 1)
        await trio.nodes[0].stop()
        result = await session.put("rows", "b", 1)
        assert result.applied
    assert [write.key for write in trio.executed] == ["a", "b"]


def refuse(node: FakeNode, code: Code, retry_after_ms: int | None = None) -> None:
    """Let a node refuse whatever it is asked; where it is not ready it names no leader either."""

    async def refused(_: web.Request) -> web.StreamResponse | None:
        if code is Code.NOT_READY:
            node._gateway.lead(None)
        return node.problem(OncegateError(code, retry_after_ms=retry_after_ms))

    node.before = refused


async def test_node_without_a_leader_is_left_for_the_next(trio: FakeGateway) -> None:
    refuse(trio.nodes[0], Code.NOT_READY, retry_after_ms=60_000)
    async with Client(trio.endpoints) as client, client.session() as session:
        assert (await session.put("rows", "a", 1)).applied
    assert trio.nodes[1].requests["POST /v1/operations"] == 1


async def test_client_without_retries_left_leaves_a_node_that_refuses_for_the_next(trio: FakeGateway) -> None:
    tuning = Tuning(retry_budget=0, backoff_cap_s=2 * REST_REFUSED_S)
    async with Client(trio.endpoints, tuning=tuning) as client, client.session() as session:
        await session.put("rows", "a", 1)
        refuse(trio.nodes[0], Code.NOT_READY)
        assert (await session.put("rows", "b", 1)).applied
    assert trio.nodes[0].requests["POST /v1/operations"] == 2, "it was asked again before the others"


async def test_not_leader_is_followed_to_the_leader(trio: FakeGateway) -> None:
    trio.leader = trio.nodes[2]
    refuse(trio.nodes[0], Code.NOT_LEADER)
    async with Client(trio.endpoints) as client, client.session() as session:
        assert (await session.put("rows", "a", 1)).applied
    assert trio.nodes[2].requests["POST /v1/sessions"] == 1
    assert not trio.nodes[1].requests


async def test_frozen_node_is_left_after_one_attempt_and_its_late_answer_does_no_harm(trio: FakeGateway) -> None:
    async with Client(trio.endpoints, tuning=QUICK) as client, client.session() as session:
        await session.put("rows", "a", 1)
        trio.nodes[0].freeze()
        asked = trio.nodes[0].requests["POST /v1/operations"]
        results = await asyncio.gather(*(session.increment("rows", "n") for _ in range(50)))
        assert trio.nodes[0].requests["POST /v1/operations"] == asked + 1, "it was asked again while it stood still"
        trio.leader = trio.nodes[1]
        trio.nodes[0].thaw()
        assert (await session.increment("rows", "n")).value == 51
        assert sorted(result.value for result in results) == list(range(1, 51))
    assert len(trio.executed) == 52


async def test_cluster_that_comes_back_before_the_deadline_gets_every_write_once(trio: FakeGateway) -> None:
    async with Client(trio.endpoints, tuning=QUICK) as client, client.session() as session:
        await session.put("rows", "warm", 1)
        for node in trio.nodes:
            await node.stop()
        writes = [session.submit("put", "rows", f"k{n}", n) for n in range(100)]
        await asyncio.wait(writes, timeout=0.05)
        assert not any(write.done() for write in writes)
        for node in trio.nodes[1:]:
            await node.start()
        trio.leader = trio.nodes[1]
        await asyncio.gather(*writes)
    assert len({write.key for write in trio.executed}) == len(trio.executed) == 101


async def test_opening_a_session_is_retried_as_the_same_session(trio: FakeGateway) -> None:
    lost = []

    async def lose_the_first(request: web.Request) -> None:
        if request.path == "/v1/sessions" and not lost:
            lost.append(request)
            cut(request)

    trio.nodes[0].after = lose_the_first
    async with Client(trio.endpoints, tuning=QUICK) as client, client.session() as session:
        assert len(lost) == 1
        assert [known.client_id for known in trio.machine.sessions] == [session.client_id]
