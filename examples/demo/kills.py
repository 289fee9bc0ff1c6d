"""Killing the leader with kill -9 while writes run, and starting it again.

Owns: when a leader dies and what is noted of it. Must not know what is written. Read next:
:mod:`oncegate.gateway.local.cluster`, which holds the processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import aiohttp

from examples.demo.errors import CouldNotRun
from examples.demo.recording import Kill, Recording
from oncegate.gateway.local.cluster import LocalCluster

AT_SHARES: Final = (0.3, 0.65)
"""Shares of the messages acknowledged at which a leader dies: both in the middle of the writes."""
RESTART_AFTER_S: Final = 1.5
READY_WITHIN_S: Final = 60.0
_POLL_S: Final = 0.02
_TIMEOUT: Final = aiohttp.ClientTimeout(total=1.0)


class ClusterError(CouldNotRun):
    """The cluster did not come to a leader, or a node did not come back."""


async def kill_leaders(
    cluster: LocalCluster,
    http: aiohttp.ClientSession,
    recording: Recording,
    note: Callable[[str], None],
    at_shares: Sequence[float] = AT_SHARES,
) -> None:
    """Kill the leader when a share of the messages is acknowledged, and start it again; once for each share.

    Raises:
        ClusterError: there was no leader, or the killed node was not ready again in time.
    """
    for share in at_shares:
        while recording.acknowledged < share * recording.messages:
            await asyncio.sleep(_POLL_S)
        node = await leader(cluster, http)
        kill = Kill(node, recording.now_s(), pending=recording.messages - recording.acknowledged)
        cluster.kill(node)
        recording.kills.append(kill)
        note(f"leader {node} killed with SIGKILL, {kill.pending:,} messages still to be written")
        await asyncio.sleep(RESTART_AFTER_S)
        cluster.start(node)
        kill.restarted_s = recording.now_s()
        await ready(cluster, http, node)
        kill.ready_s = recording.now_s()
        note(f"{node} is back and has caught up, {kill.ready_s - kill.at_s:.1f} s after the kill")


async def leader(cluster: LocalCluster, http: aiohttp.ClientSession) -> str:
    """Return the id of the node that leads now; waits for one.

    Raises:
        ClusterError: none within ``READY_WITHIN_S``.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + READY_WITHIN_S
    while loop.time() < deadline:
        for node in cluster.ids:
            state = await _state(cluster, http, node)
            if state is not None and state["role"] == "leader":
                return node
        await asyncio.sleep(_POLL_S)
    raise ClusterError(f"no node leads:\n{cluster.log_tail(cluster.ids[0])}")


async def ready(cluster: LocalCluster, http: aiohttp.ClientSession, *nodes: str) -> None:
    """Wait until the nodes, or all, answer linearizable reads.

    Raises:
        ClusterError: one has ended, or is not ready within ``READY_WITHIN_S``; with its log's last lines.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + READY_WITHIN_S
    for node in nodes or cluster.ids:
        while not await _ok(http, f"{cluster.endpoint(node)}/readyz"):
            if not cluster.is_running(node) or loop.time() > deadline:
                raise ClusterError(f"node {node} is not ready:\n{cluster.log_tail(node)}")
            await asyncio.sleep(_POLL_S)


async def _ok(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(url, timeout=_TIMEOUT) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


async def _state(cluster: LocalCluster, http: aiohttp.ClientSession, node: str) -> dict[str, Any] | None:
    if not cluster.is_running(node):
        return None
    try:
        async with http.get(f"{cluster.endpoint(node)}/v1/cluster", timeout=_TIMEOUT) as response:
            state: dict[str, Any] | None = await response.json() if response.status == 200 else None
            return state
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
