"""What one replica says of itself, put together from its engine. Read next:
:class:`oncegate.consensus.ports.ReplicaStatus`.
"""

from __future__ import annotations

import copy
import statistics
from typing import Any

from oncegate.consensus.core.engine import Engine
from oncegate.consensus.ports import ReplicaStatus


def status_of(engine: Engine[Any]) -> ReplicaStatus:
    """Return what the node knows now."""
    flushes = sorted(engine.log.flush_seconds)
    queued, queued_bytes, appended, appended_bytes = engine.load
    return ReplicaStatus(
        node_id=engine.config.node_id,
        role=engine.role,
        leader_id=engine.leader_id,
        term=engine.term,
        commit_index=engine.commit_index,
        applied_index=engine.applied_index,
        last_index=engine.log.last_index,
        ready=engine.ready,
        peers=engine.peer_status(),
        configuration=engine.membership.current,
        configuration_index=engine.membership.current_index,
        change_pending=engine.change_pending,
        transfer_target=engine.transfer_target,
        stalled_s=engine.stalled_s,
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
