"""What a node tells of itself and of the last hour, and what the other members tell of themselves.

Owns: when readings are taken, and the question between nodes. :mod:`oncegate.gateway.observability.last_hour` makes
moments of readings and keeps them. Must not know HTTP: who counts requests gives :attr:`Figures.requests`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from oncegate.consensus.errors import ConsensusError
from oncegate.consensus.histogram import Histogram
from oncegate.gateway.machine.levels import FIRST
from oncegate.gateway.node.commit_stall import stall_of
from oncegate.gateway.observability.last_hour import STEP_MS, LastHour, Moment, Reading
from oncegate.gateway.observability.process import process_figures
from oncegate.gateway.observability.request_times import Totals
from oncegate.version import __version__

if TYPE_CHECKING:
    from oncegate.gateway.node.node import Node

FIGURES: Final = b"h"
"""First byte of a peer call that asks for a node's figures; a build before it refuses the call."""
PEER_S: Final = 1.0
_NOTHING: Final = Totals(0, 0, 0, Histogram())
log = logging.getLogger(__name__)


class Seen(msgspec.Struct, array_like=True, frozen=True):
    """What the asker has of a node: the moments up to ``number`` of its process ``life``."""

    life: int = 0
    number: int = 0


class NodeFigures(msgspec.Struct, kw_only=True):
    """A node's own word on itself; ``moments``: those that the asker has not got.

    ``stalled`` says why it commits nothing as the leader. ``life`` identifies the process, by its start in Unix
    milliseconds. Indexes are of the log, ``commit`` is a commit number.
    """

    node: str
    version: str
    role: str
    leader: str | None
    term: int
    log_index: int
    commit_index: int
    applied_index: int
    commit: int
    saved_index: int
    cluster_time_ms: int
    life: int
    moments: list[Moment]
    damage: str = ""
    disk_full: bool = False
    stalled: str = ""
    change_pending: bool = False
    level: int = FIRST

    @property
    def seen(self) -> Seen:
        """What its receiver has of the node now."""
        return Seen(self.life, self.moments[-1].number if self.moments else 0)


_encode = msgspec.msgpack.Encoder().encode
_decode_seen = msgspec.msgpack.Decoder(Seen).decode
_decode_figures = msgspec.msgpack.Decoder(NodeFigures).decode


class Figures:
    """One a node; event loop's thread. ``requests`` tells what was answered so far."""

    def __init__(self, node: Node) -> None:
        self.requests: Callable[[], Totals] = lambda: _NOTHING
        self.connections: Callable[[], int] = lambda: 0
        self._node = node
        self._hour = LastHour()
        self._life = int(time.time() * 1000)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to take readings."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except OSError as fault:
                log.warning("no figures of this moment: %s", fault)
            await asyncio.sleep(STEP_MS / 1000)

    async def look(self) -> None:
        """Take a reading now; raises OSError if the data directory cannot be looked at."""
        # A network file system that is gone would hold the loop.
        system = await asyncio.to_thread(os.statvfs, self._node.settings.data_dir)
        node, process, requests = self._node, process_figures(), self.requests()
        status = node.replica.status()
        self._hour.take(
            Reading(
                at_ms=int(time.time() * 1000),
                clock_s=time.monotonic(),
                operations=node.machine.commit,
                requests=requests.requests,
                refused=requests.refused,
                failed=requests.failed,
                request_times=requests.times.counts,
                entry_times=tuple(node.proposer.entry_times.counts),
                flush_times=tuple(status.flush_times.counts),
                cpu_s=process.cpu_s,
                lag=status.commit_index - status.applied_index,
                sessions=len(node.machine.sessions),
                connections=self.connections(),
                memory_bytes=process.resident_bytes,
                disk_free_bytes=system.f_bavail * system.f_frsize,
                disk_size_bytes=system.f_blocks * system.f_frsize,
                data_bytes=status.journal_bytes + node.state.disk_bytes,
            )
        )

    def own(self, seen: Seen = Seen()) -> NodeFigures:  # noqa: B008 - it is frozen
        """Return this node's figures, with the moments that were not seen."""
        node, status = self._node, self._node.replica.status()
        return NodeFigures(
            node=status.node_id,
            version=__version__,
            role=status.role.value,
            leader=status.leader_id,
            term=status.term,
            log_index=status.last_index,
            commit_index=status.commit_index,
            applied_index=status.applied_index,
            commit=node.machine.commit,
            saved_index=0 if node.state.saved is None else node.state.saved.index,
            cluster_time_ms=node.machine.time_ms,
            life=self._life,
            moments=self._hour.after(seen.number if seen.life == self._life else 0),
            damage=node.damage,
            disk_full=status.disk_full,
            stalled=stall_of(status),
            change_pending=status.change_pending,
            level=node.machine.level,
        )

    def serve(self, payload: bytes) -> bytes:
        """Answer another node; raises msgspec.DecodeError."""
        return _encode(self.own(_decode_seen(payload)))

    async def of(self, others: Iterable[str], seen: Mapping[str, Seen]) -> dict[str, NodeFigures | str]:
        """Ask other members at once, and return what each tells, or in words why it does not.

        Args:
            others: their ids.
            seen: by id, what the asker has got already.
        """
        asked = sorted(others)
        told = await asyncio.gather(*(self._ask(peer, seen.get(peer, Seen())) for peer in asked))
        return dict(zip(asked, told, strict=True))

    async def _ask(self, peer: str, seen: Seen) -> NodeFigures | str:
        try:
            return _decode_figures(await self._node.replica.call(peer, FIGURES + _encode(seen), timeout_s=PEER_S))
        except ConsensusError as fault:
            return "runs an earlier build" if fault.code == "CALL_FAILED" else "does not answer"
        except msgspec.DecodeError:
            return "gives an answer that this build cannot read"
