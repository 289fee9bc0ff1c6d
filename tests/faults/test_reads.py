"""Real processes without a quorum: what may still be read, what must not, and how soon that is said."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from tests.conftest import Api
from tests.gateway.http_contract import assert_problem, declare, put

if TYPE_CHECKING:
    from oncegate.gateway.local.cluster import LocalCluster

pytestmark = pytest.mark.faults

ANSWER_S = 8.0
"""Longest answer: 5 s for a forwarded command or a read, and what a busy machine adds."""
RETRYABLE = ("NO_LEADER", "NOT_READY", "TIMEOUT", "NOT_LEADER")


async def _refused(api: Api, method: str, path: str, body: Any = None) -> str:
    """Send what needs a quorum; check that the refusal is typed, retryable and in time; return its code."""
    started = time.monotonic()
    answer = await api.call(method, path, body)
    assert time.monotonic() - started < ANSWER_S
    code: str = answer[2].get("code", "")
    assert code in RETRYABLE, answer
    assert assert_problem(answer, code)["retryable"] is True
    return code


async def _without_quorum(cluster: LocalCluster, left: str, key: str) -> None:
    """Kill all nodes but ``left``, check what it still answers, and bring the others back."""
    async with aiohttp.ClientSession(base_url=cluster.endpoint(left)) as http:
        api = Api(http)
        client_id = await api.session(f"session-{key}", lease_ms=600_000)
        (first,) = await api.operate(client_id, put(1, key, 1))
        path = f"/v1/tables/rows/rows/{key}"
        last_seen = f"session&min_commit={first['commit']}"
        assert (await api.call("GET", f"{path}?consistency={last_seen}"))[0] == 200
        cluster.kill(*(node_id for node_id in cluster.ids if node_id != left))
        request = {"client_id": client_id, "epoch": 1, "first_incomplete": 1, "operations": [put(2, key, 2)]}
        for _ in range(5):
            await _refused(api, "POST", "/v1/operations", request)
            await _refused(api, "GET", path)
            await _refused(api, "GET", f"/v1/requests/{client_id}/1")
            await _refused(api, "POST", "/v1/sessions", {"nonce": f"other-{key}"})
            assert_problem(await api.call("GET", "/readyz"), "NOT_READY")
        await asyncio.gather(*(_refused(api, "GET", "/v1/flows") for _ in range(50)))
        for level in ("stale", last_seen):
            _, headers, row = await api.call("GET", f"{path}?consistency={level}")
            assert (row["value"], headers["Oncegate-Commit"]) == (1, str(first["commit"]))
        assert (await api.call("GET", "/livez"))[0] == 200
        assert (await api.call("GET", "/v1/cluster"))[2]["role"] != "leader"
        cluster.start()
        await asyncio.to_thread(cluster.wait_ready)
        # Whatever became of the attempts, the retry of the same id settles it: applied once.
        (settled,) = await api.operate(client_id, put(2, key, 2))
        assert settled["status"] == "applied"
        assert (await api.operate(client_id, put(2, key, 2)))[0] == {**settled, "replayed": True}
        _, _, row = await api.call("GET", path)
        assert (row["value"], row["version"]) == (2, settled["version"])


async def test_without_a_quorum_nothing_is_written_or_read_as_newest_until_it_is_back(cluster: LocalCluster) -> None:
    leader = await asyncio.to_thread(cluster.leader)
    async with aiohttp.ClientSession(base_url=cluster.endpoint(leader)) as http:
        await declare(Api(http))
    await _without_quorum(cluster, leader, "leader-left")
    leader = await asyncio.to_thread(cluster.leader)
    follower = next(node_id for node_id in cluster.ids if node_id != leader)
    await _without_quorum(cluster, follower, "follower-left")
