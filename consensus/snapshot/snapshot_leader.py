"""Snapshots leaving this node: one copy of the saved state at a time, for every follower that needs one.

Owns the copy, the transfers, and the one worker that reads. The copy outlives a term, so that a node which leads again
goes on where it was. Bytes leave at ``snapshot_bytes_per_s`` at most, all followers together.
Read next: :mod:`oncegate.consensus.snapshot.snapshot_send`, :mod:`oncegate.consensus.core.snapshots`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection

from oncegate.consensus.config import RECORD_OVERHEAD_BYTES_MAX, ReplicaConfig
from oncegate.consensus.messages import Message, SnapshotAnswer, SnapshotVerdict
from oncegate.consensus.ports import DurableState, SnapshotSource
from oncegate.consensus.snapshot.snapshot_send import Outgoing, Position, chunk_crc
from oncegate.consensus.snapshot.throttle import TokenBucket
from oncegate.consensus.worker import Task, Worker

logger = logging.getLogger(__name__)

_RETRY_S = 1.0
_FAILED_PAUSE_S = 5.0
"""How long a follower that could not take a snapshot is left alone."""
_FAILURES_MAX = 5
"""After so many the copy itself is replaced."""


class SnapshotSender:
    """The leader's side of all transfers."""

    def __init__(
        self,
        config: ReplicaConfig,
        state: DurableState,
        worker: Worker,
        wake: Callable[[], None],
        rng: random.Random,
        send: Callable[[str, Message], None],
    ) -> None:
        self._config = config
        self._state = state
        self._worker = worker
        self._rng = rng
        self._send = send
        self._opening: Task[SnapshotSource] = Task(worker, wake)
        self._reading: Task[tuple[bytes, int]] = Task(worker, wake)
        self._read: tuple[str, int, Position] | None = None
        self._source: SnapshotSource | None = None
        self._transfer = 0
        self._used_at = 0.0
        self._retry_at = 0.0
        self._outgoing: dict[str, Outgoing] = {}
        self._order: list[str] = []
        self._paused_until: dict[str, float] = {}
        self._failures = 0
        self._chunk_bytes = min(config.snapshot_chunk_bytes, config.frame_bytes_max - RECORD_OVERHEAD_BYTES_MAX)
        self._bucket = TokenBucket(config.snapshot_bytes_per_s, 2 * self._chunk_bytes)
        self._answer_s = 10 * config.heartbeat_ms / 1000

    @property
    def idle(self) -> bool:
        """There is no copy, and none is being made: nothing to do until somebody wants one."""
        return self._source is None and not self._opening.busy and not self._outgoing

    def begin_term(self) -> None:
        """Everything is offered anew: answers of an earlier term say nothing about this one."""
        for outgoing in self._outgoing.values():
            outgoing.reconnected()

    def reconnected(self, peer_id: str) -> None:
        """What was in flight to this peer may be lost."""
        if peer_id in self._outgoing:
            self._outgoing[peer_id].reconnected()

    def held_index(self, now: float) -> int | None:
        """The snapshot's index while a follower that moves receives it: the log behind it will be needed."""
        if self._source is None:
            return None
        oldest = now - self._config.snapshot_idle_s
        if any(outgoing.moved_at >= oldest for outgoing in self._outgoing.values()):
            return self._source.manifest.point.index
        return None

    def answered(self, peer_id: str, answer: SnapshotAnswer, now: float) -> None:
        """Take a follower's word; one about another transfer is old."""
        outgoing = self._outgoing.get(peer_id)
        if outgoing is None or answer.transfer != outgoing.transfer:
            return
        if answer.verdict in (SnapshotVerdict.HAVE, SnapshotVerdict.INSTALLED):
            del self._outgoing[peer_id]
        elif answer.verdict is SnapshotVerdict.FAILED:
            # Its disk is full, or the copy is bad; the first is more likely, and others may be half through.
            logger.error("%s could not take the snapshot", peer_id)
            del self._outgoing[peer_id]
            self._paused_until[peer_id] = now + _FAILED_PAUSE_S
            self._failures += 1
            if self._failures >= _FAILURES_MAX:
                self._close(now)
        else:
            outgoing.answered(answer, now)

    def advance(self, wanting: Collection[str], connected: Collection[str], term: int, base: int, now: float) -> None:
        """Open, offer, read and send as far as windows, throttle and worker allow.

        ``wanting`` are the followers without the entries behind ``base``, where the log begins.
        """
        for peer_id in [peer_id for peer_id in self._outgoing if peer_id not in wanting]:
            del self._outgoing[peer_id]
        self._open_or_close(wanting, base, now)
        source = self._source
        if source is None:
            return
        for peer_id in wanting:
            if peer_id not in connected or self._paused_until.get(peer_id, now) > now:
                continue
            outgoing = self._outgoing.get(peer_id)
            if outgoing is None:
                outgoing = self._outgoing[peer_id] = Outgoing(
                    self._transfer,
                    source.manifest,
                    chunk_bytes=self._chunk_bytes,
                    answer_s=self._answer_s,
                )
            offer = outgoing.offer(term, now)
            if offer is not None:
                self._send(peer_id, offer)
        self._pump(source, connected, term, now)

    def deadline(self, now: float) -> float:
        """When the throttle lets the next chunk go."""
        if self._outgoing and not self._reading.busy and any(one.next_read() for one in self._outgoing.values()):
            return self._bucket.open_at(now)
        return float("inf")

    def stop(self) -> None:
        """Wait for the worker and close the copy."""
        if self._opening.busy and self._opening.failure is None:
            self._opening.fetch().close()
        if self._reading.busy and self._reading.failure is None:
            self._reading.fetch()
        self._outgoing.clear()
        if self._source is not None:
            self._source.close()
            self._source = None

    def _open_or_close(self, wanting: Collection[str], base: int, now: float) -> None:
        if self._opening.done:
            error = self._opening.failure
            if error is not None:
                logger.error("no snapshot can be made: %s", error)
                self._retry_at = now + _RETRY_S
            else:
                self._source = self._opening.fetch()
                self._transfer = self._rng.getrandbits(63)
                self._failures = 0
                self._used_at = now
        if self._source is not None:
            if self._outgoing:
                self._used_at = now
            stale = self._source.manifest.point.index < base
            if stale or (not wanting and now - self._used_at > self._config.snapshot_idle_s):
                # The log no longer goes on where this copy ends, or nobody has wanted it for long.
                self._close(now)
        if wanting and self._source is None and not self._opening.busy and now >= self._retry_at:
            self._opening.start(self._state.open_snapshot)

    def _close(self, now: float) -> None:
        self._outgoing.clear()
        source, self._source = self._source, None
        if source is not None:
            self._worker.submit(source.close)

    def _pump(self, source: SnapshotSource, connected: Collection[str], term: int, now: float) -> None:
        while True:
            if self._reading.busy:
                if not self._reading.done:
                    return
                if not self._send_read(term, connected, now):
                    return
            if self._bucket.open_at(now) > now:
                return
            for peer_id in self._next_peers(connected):
                wanted = self._outgoing[peer_id].next_read()
                if wanted is not None:
                    self._start_read(source, peer_id, *wanted)
                    break
            else:
                return

    def _next_peers(self, connected: Collection[str]) -> list[str]:
        """Followers in turn, so that two share the bandwidth."""
        known = [peer_id for peer_id in self._order if peer_id in self._outgoing]
        self._order = known + [peer_id for peer_id in self._outgoing if peer_id not in known]
        return [peer_id for peer_id in self._order if peer_id in connected]

    def _start_read(self, source: SnapshotSource, peer_id: str, place: Position, size: int) -> None:
        transfer = self._transfer
        self._order.remove(peer_id)
        self._order.append(peer_id)
        self._read = (peer_id, transfer, place)

        def read() -> tuple[bytes, int]:
            data = source.read(place.file, place.offset, size)
            return data, chunk_crc(transfer, place.file, place.offset, data)

        self._reading.start(read)

    def _send_read(self, term: int, connected: Collection[str], now: float) -> bool:
        read, self._read = self._read, None
        error = self._reading.failure
        if error is not None and read is not None and read[1] != self._transfer:
            return True  # of an earlier copy, which is closed
        if error is not None:
            logger.error("a snapshot cannot be read, another copy is made: %s", error)
            self._close(now)
            self._retry_at = now + _RETRY_S
            return False
        data, crc = self._reading.fetch()
        if read is None:
            return True
        peer_id, transfer, place = read
        outgoing = self._outgoing.get(peer_id)
        if outgoing is None or outgoing.transfer != transfer or peer_id not in connected:
            return True
        chunk = outgoing.chunk(term, place, data, crc)
        if chunk is not None:
            self._bucket.take(len(data))
            self._send(peer_id, chunk)
        return True
