"""What an operator asks of one replica: changes of members and transfers, as coroutines with deadlines, and its status.

Owns the waiting: what is decided lives in :mod:`oncegate.consensus.core.reconfiguration` and
:mod:`oncegate.consensus.core.transfer`. Read next: :mod:`oncegate.consensus.replica.replica`, whose methods say what
each promises.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import statistics
from collections.abc import Callable
from typing import TypeAlias

from oncegate.consensus.config import ReplicaConfig
from oncegate.consensus.configuration import RaftMember
from oncegate.consensus.core.engine import Engine
from oncegate.consensus.errors import ConsensusError, NotLeader, Timeout
from oncegate.consensus.ports import ReplicaStatus, Role

logger = logging.getLogger(__name__)

_Engine: TypeAlias = Engine[asyncio.Future[object]]


class Operations:
    """The operator's side of one replica."""

    def __init__(self, config: ReplicaConfig, running: Callable[[], _Engine], wake: Callable[[], None]) -> None:
        self._config = config
        self._running = running
        self._wake = wake

    async def add_member(self, node_id: str, member: RaftMember, timeout_s: float) -> int:
        """See :meth:`oncegate.consensus.replica.replica.Replica.add_member`."""
        if not node_id:
            raise ValueError("a node id must not be empty")
        self._config.check_host(member.host)
        done = _future()
        self._running().add_member(node_id, member, done)
        return await self._change(done, f"adding {node_id}", timeout_s)

    async def remove_member(self, node_id: str, timeout_s: float) -> int:
        """See :meth:`oncegate.consensus.replica.replica.Replica.remove_member`."""
        if node_id == self._config.node_id and self._running().raft.role() is Role.LEADER and not self._running().lone:
            raise NotLeader(await self.transfer(None, timeout_s))
        done = _future()
        self._running().remove_member(node_id, done)
        return await self._change(done, f"removing {node_id}", timeout_s)

    async def transfer(self, to: str | None, timeout_s: float | None) -> str:
        """See :meth:`oncegate.consensus.replica.replica.Replica.transfer_leadership`."""
        election_s = self._config.election_ms_max / 1000
        done = _future()
        self._running().transfer(to, done, election_s if timeout_s is None else min(timeout_s, election_s))
        self._wake()
        return str(await done)

    async def drain(self, timeout_s: float) -> None:
        """Hand leadership over, if this node has it and there is somebody to take it; never raises for want of one."""
        engine = self._running()
        if engine.raft.role() is not Role.LEADER or engine.lone:
            return
        try:
            successor = await self.transfer(None, timeout_s)
        except ConsensusError as error:
            logger.warning("node %s stops as the leader: %s", self._config.node_id, error)
        else:
            logger.info("node %s has handed leadership to %s and stops", self._config.node_id, successor)

    async def _change(self, done: asyncio.Future[object], what: str, timeout_s: float) -> int:
        self._wake()
        try:
            async with asyncio.timeout(timeout_s):
                index = await done
        except TimeoutError as error:
            self._running().leading.changes.forget(done)
            raise Timeout(what, timeout_s, outcome="unknown") from error
        return index if isinstance(index, int) else 0


def status_of(engine: _Engine) -> ReplicaStatus:
    """Return what the node knows now."""
    flushes = sorted(engine.log.flush_seconds)
    queued, queued_bytes, appended, appended_bytes = engine.leading.proposals.load
    return ReplicaStatus(
        node_id=engine.config.node_id,
        role=engine.raft.role(),
        leader_id=engine.leader_id,
        term=engine.raft.term(),
        commit_index=engine.raft.commit_index(),
        applied_index=engine.applier.applied_index,
        last_index=engine.log.last_index,
        ready=engine.leading.ready,
        peers=engine.peer_status(),
        configuration=engine.membership.current,
        configuration_index=engine.membership.current_index,
        change_pending=engine.leading.changes.pending(engine.raft.commit_index()),
        transfer_target=engine.leading.transfers.target,
        stalled_s=engine.leading.replication.stalled_s(engine.clock()),
        queued_commands=queued,
        queued_bytes=queued_bytes,
        appended_commands=appended,
        appended_bytes=appended_bytes,
        counters=copy.copy(engine.counters),
        journal_bytes=engine.log.bytes_used,
        disk_full=engine.log.disk_full,
        flushes=engine.log.flushes,
        flush_times=engine.log.flush_times,
        flush_p50_ms=1000 * statistics.median_low(flushes) if flushes else 0.0,
        flush_p99_ms=1000 * flushes[len(flushes) * 99 // 100] if flushes else 0.0,
    )


def _future() -> asyncio.Future[object]:
    return asyncio.get_running_loop().create_future()
