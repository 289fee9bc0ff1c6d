"""Killing the leader with kill -9 while writes run, and starting it again.

Owns: when a leader dies and what is noted of it. Must not know what is written. Read next:
:mod:`oncegate.gateway.local.cluster`, which holds the processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from examples.demo.errors import CouldNotRun
from examples.demo.recording import Kill, Recording
from oncegate.gateway.local.cluster import LocalCluster, NodeEnded
from oncegate.gateway.local.waiting import until

AT_SHARES: Final = (0.3, 0.65)
"""Shares of the messages acknowledged at which a leader dies: both in the middle of the writes."""
RESTART_AFTER_S: Final = 1.5
READY_WITHIN_S: Final = 60.0
_POLL_S: Final = 0.02
T = TypeVar("T")


class ClusterError(CouldNotRun):
    """The cluster did not come to a leader, or a node did not come back."""


async def kill_leaders(
    cluster: LocalCluster,
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
        node = await leader(cluster)
        kill = Kill(node, recording.now_s(), pending=recording.messages - recording.acknowledged)
        cluster.kill(node)
        recording.kills.append(kill)
        note(f"leader {node} killed with SIGKILL, {kill.pending:,} messages still to be written")
        await asyncio.sleep(RESTART_AFTER_S)
        cluster.start(node)
        kill.restarted_s = recording.now_s()
        await ready(cluster, node)
        kill.ready_s = recording.now_s()
        note(f"{node} is back and has caught up, {kill.ready_s - kill.at_s:.1f} s after the kill")


async def leader(cluster: LocalCluster) -> str:
    """Return the id of the node that leads now; waits for one.

    Raises:
        ClusterError: none within ``READY_WITHIN_S``.
    """
    return await _in_time(lambda: cluster.leader_now(0.0), cluster, "a node leads")


async def ready(cluster: LocalCluster, *nodes: str) -> None:
    """Wait until the nodes, or all, answer linearizable reads.

    Raises:
        ClusterError: one has ended, or is not ready within ``READY_WITHIN_S``; with its log's last lines.
    """
    await _in_time(lambda: cluster.all_ready(*nodes), cluster, "the nodes are ready")


async def _in_time(look: Callable[[], T | None], cluster: LocalCluster, what: str) -> T:
    # Each look is a short one in a thread, so that Ctrl-C need not wait for the deadline.
    try:
        return await until(
            lambda: asyncio.to_thread(look), READY_WITHIN_S, what, state=cluster.log_tails, every_s=_POLL_S
        )
    except (NodeEnded, TimeoutError) as reason:
        raise ClusterError(str(reason)) from None
