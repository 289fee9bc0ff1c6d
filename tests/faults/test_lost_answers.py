"""Where a leader can die around one operation: the retry with the same id ends where the first attempt would have."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from oncegate.proof.check.cluster import CheckCluster
from tests.conftest import Api
from tests.gateway.http_contract import declare

pytestmark = pytest.mark.faults
INCREMENT = {"sequence": 1, "op": "increment", "table": "rows", "key": "n"}


@pytest.fixture
def gateways(tmp_path: Path) -> Iterator[CheckCluster]:
    """Three gateway nodes, ready, each pair joined through a proxy."""
    with CheckCluster(tmp_path / "gateways") as started:
        started.start()
        started.wait_ready()
        yield started


@contextlib.asynccontextmanager
async def _nodes(gateways: CheckCluster) -> AsyncIterator[dict[str, Api]]:
    async with contextlib.AsyncExitStack() as stack:
        yield {
            node: Api(await stack.enter_async_context(aiohttp.ClientSession(base_url=gateways.endpoint(node))))
            for node in gateways.ids
        }


async def _send(api: Api, client_id: str) -> tuple[int, Any]:
    """Send the operation; connection lost is an answer too."""
    body = {"client_id": client_id, "epoch": 1, "first_incomplete": 1, "operations": [INCREMENT]}
    try:
        status, _, answer = await api.call("POST", "/v1/operations", body)
    except aiohttp.ClientError:
        return 0, None
    return status, answer


async def _retried(nodes: dict[str, Api], client_id: str) -> dict[str, Any]:
    """Send the operation again, to all nodes in turn, until one has a verdict."""
    async with asyncio.timeout(60):
        while True:
            for api in nodes.values():
                status, answer = await _send(api, client_id)
                if status == 200 and answer["results"][0]["status"] == "applied":
                    result: dict[str, Any] = answer["results"][0]
                    return result
                await asyncio.sleep(0.05)


async def _stale(api: Api) -> Any:
    """Return what a node has applied of the counter, or None."""
    with contextlib.suppress(aiohttp.ClientError):
        status, _, row = await api.call("GET", "/v1/tables/rows/rows/n?consistency=stale")
        return row["value"] if status == 200 else None
    return None


async def _all_say(nodes: dict[str, Api], value: int) -> None:
    async with asyncio.timeout(60):
        for api in nodes.values():
            while await _stale(api) != value:
                await asyncio.sleep(0.05)


async def _started(gateways: CheckCluster, nodes: dict[str, Api]) -> tuple[str, dict[str, Api], str]:
    """Return the leader, the others and a session."""
    leader = await asyncio.to_thread(gateways.leader)
    await declare(nodes[leader])
    client_id = await nodes[leader].session(lease_ms=600_000)
    return leader, {node: api for node, api in nodes.items() if node != leader}, client_id


async def test_leader_killed_after_the_commit_and_before_the_reply_is_replayed_by_its_successor(
    gateways: CheckCluster,
) -> None:
    """Case 20: what the leader said is thrown away, and it is dead before anybody asks again."""
    async with _nodes(gateways) as nodes:
        leader, others, client_id = await _started(gateways, nodes)
        lost = asyncio.create_task(_send(nodes[leader], client_id))
        await _all_say(others, 1)
        gateways.kill(leader)
        await lost
        result = await _retried(others, client_id)
        assert (result["replayed"], result["value"], result["commit"]) == (True, 1, 1)
        assert await _stale(next(iter(others.values()))) == 1


@pytest.mark.parametrize("ends", ["killed", "cut off"])
async def test_attempt_that_was_never_committed_is_executed_once_by_the_retry(
    gateways: CheckCluster, ends: str
) -> None:
    """Cases 21 and 23: the attempt is only in the log of a leader that is killed, or cut off and truncated later."""
    async with _nodes(gateways) as nodes:
        leader, others, client_id = await _started(gateways, nodes)
        before = (await asyncio.to_thread(gateways.state, leader) or {})["log_index"]
        gateways.links.isolate(leader)
        attempt = asyncio.create_task(_send(nodes[leader], client_id))
        async with asyncio.timeout(30):
            while not attempt.done():
                state = await asyncio.to_thread(gateways.state, leader)
                if state is not None and state["log_index"] > before:
                    break
                await asyncio.sleep(0.01)
        if ends == "killed":
            gateways.kill(leader)
        result = await _retried(others, client_id)
        assert (result["replayed"], result["value"]) == (False, 1)
        status, answer = await attempt
        assert status in (0, 503, 504), "nobody was told that the lost attempt was applied"
        if status == 504:
            assert answer["outcome"] == "unknown"
        gateways.links.heal()
        gateways.start()
        await asyncio.to_thread(gateways.wait_ready)
        await _all_say(nodes, 1)
        again = await _retried({leader: nodes[leader]}, client_id)
        assert (again["replayed"], again["commit"]) == (True, result["commit"])
