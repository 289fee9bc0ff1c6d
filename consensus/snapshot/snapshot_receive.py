"""A snapshot on its way in: which messages belong to it, in which order they reach the disk; no sockets.

Owns the checks that keep mixed, stale, out-of-order and damaged chunks away from the sink. Everything that touches the
disk runs on a worker, one job at a time. Nothing here moves the commit index or the log (B2): that is done by whoever
installs what is :attr:`Receiving.ready`. Read next: :mod:`oncegate.consensus.core.snapshots`.
"""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from oncegate.consensus.messages import SnapshotChunk, SnapshotOffer, SnapshotVerdict
from oncegate.consensus.ports import DurableState, SnapshotManifest, SnapshotSink
from oncegate.consensus.snapshot.snapshot_send import WINDOW_CHUNKS, Position, chunk_crc, position_from
from oncegate.consensus.worker import Task, Worker

logger = logging.getLogger(__name__)

_QUEUE_CHUNKS_MAX: Final = 2 * WINDOW_CHUNKS

Answer = Callable[[SnapshotVerdict, Position], None]
"""Says something to the sender of the present transfer."""


class _Phase(enum.Enum):
    IDLE = "idle"
    OPENING = "opening"
    RECEIVING = "receiving"
    FINISHING = "finishing"
    READY = "ready"


def is_sound(manifest: SnapshotManifest) -> bool:
    """Names are flat and differ, sizes are not negative."""
    names = [file.name for file in manifest.files]
    flat = all(name not in ("", ".", "..") and "/" not in name and "\\" not in name for name in names)
    return flat and len(set(names)) == len(names) and all(file.size >= 0 for file in manifest.files)


class Receiving:
    """The follower's side of the one transfer it takes part in."""

    def __init__(self, state: DurableState, worker: Worker, wake: Callable[[], None]) -> None:
        self._state = state
        self._task: Task[SnapshotSink | None] = Task(worker, wake)
        self._phase = _Phase.IDLE
        self._offer: SnapshotOffer | None = None
        self._answer: Answer = lambda verdict, place: None
        self._source: tuple[str, int, int] | None = None
        self._waiting: tuple[SnapshotOffer, tuple[str, int, int], Answer] | None = None
        self._sink: SnapshotSink | None = None
        self._discarded: SnapshotSink | None = None
        self._queue: deque[SnapshotChunk] = deque()
        self._expected = Position(0, 0)
        self._written = Position(0, 0)
        self._rejected: Position | None = None
        self._heard_at = 0.0

    @property
    def active(self) -> bool:
        """A snapshot is on its way, or one that was given up is being removed."""
        return self._phase is not _Phase.IDLE or self._waiting is not None or self._task.busy

    @property
    def ready(self) -> SnapshotManifest | None:
        """A whole, verified snapshot that waits to be installed."""
        return self._offer.manifest if self._offer is not None and self._phase is _Phase.READY else None

    @property
    def answer(self) -> Answer:
        """Reaches the sender of the present transfer."""
        return self._answer

    def offered(self, offer: SnapshotOffer, source: tuple[str, int, int], answer: Answer, now: float) -> None:
        """A leader offers a snapshot, or asks how far the present one is.

        ``source`` is peer, connection epoch and term: only chunks of the same belong to the offer. ``answer`` sends
        there.
        """
        self._heard_at = now
        if self._offer is not None and offer.transfer == self._offer.transfer and self._waiting is None:
            self._source, self._answer = source, answer
            self._rejected = None
            if self._phase is _Phase.RECEIVING:
                # What is queued will be written; the sender goes on behind it.
                answer(SnapshotVerdict.NEXT, self._expected)
            elif self._phase in (_Phase.FINISHING, _Phase.READY):
                answer(SnapshotVerdict.NEXT, self._written)
            return
        self._waiting = (offer, source, answer)

    def chunk(self, chunk: SnapshotChunk, source: tuple[str, int, int], now: float) -> None:
        """Take the next chunk; anything else is refused without touching the sink."""
        offer = self._offer
        if offer is None or self._waiting is not None or self._phase is not _Phase.RECEIVING:
            return
        if chunk.transfer != offer.transfer or source != self._source:
            logger.warning("a chunk of another transfer is dropped")
            return
        self._heard_at = now
        files = offer.manifest.files
        fits = (
            (chunk.file, chunk.offset) == self._expected
            and chunk.file < len(files)
            and 0 < len(chunk.data) <= files[chunk.file].size - chunk.offset
            and len(self._queue) < _QUEUE_CHUNKS_MAX
        )
        if not fits or chunk.crc != chunk_crc(chunk.transfer, chunk.file, chunk.offset, chunk.data):
            if self._rejected != self._expected:
                # Once a place: the chunks behind a bad one are bad too, and need not all be answered.
                self._rejected = self._expected
                self._answer(SnapshotVerdict.REJECTED, self._expected)
            return
        self._rejected = None
        self._queue.append(chunk)
        self._expected = position_from(offer.manifest, chunk.file, chunk.offset + len(chunk.data))

    def advance(self, now: float, idle_s: float) -> None:
        """Fetch the outcome of the worker's job, start the next; give up after ``idle_s`` without a word."""
        while True:
            if self._task.busy:
                if not self._task.done:
                    return
                self._job_ended()
            elif self._waiting is not None:
                self._begin(*self._waiting)
            elif self._phase is _Phase.RECEIVING and self._queue:
                self._write(self._queue.popleft())
            elif self._phase is _Phase.RECEIVING and self._offer is not None and self._at_end(self._offer):
                self._phase = _Phase.FINISHING
                self._run(lambda sink: sink.finish())
            elif self._phase is _Phase.RECEIVING and now - self._heard_at > idle_s:
                logger.warning("a snapshot that stopped coming is given up")
                self.drop()
            else:
                return

    def install(self) -> None:
        """Put the ready snapshot in the place of the state; raises what the state raises."""
        if self._sink is None or self._phase is not _Phase.READY:
            raise RuntimeError("no snapshot is ready")
        sink, self._sink = self._sink, None
        self._forget()
        sink.install()

    def drop(self) -> None:
        """Give up what was received; the worker removes it."""
        sink, self._sink = self._sink, None
        self._forget()
        if sink is None:
            return
        if self._task.busy:
            self._discarded = sink
        else:
            self._abort(sink)

    def stop(self) -> None:
        """Wait for the worker and remove what is there."""
        if self._task.busy:
            self._job_ended()
        self._waiting = None
        self.drop()
        if self._task.busy:
            self._job_ended()

    def _at_end(self, offer: SnapshotOffer) -> bool:
        return self._written.file >= len(offer.manifest.files)

    def _forget(self) -> None:
        self._phase = _Phase.IDLE
        self._offer = None
        self._source = None
        self._queue.clear()

    def _begin(self, offer: SnapshotOffer, source: tuple[str, int, int], answer: Answer) -> None:
        self._waiting = None
        earlier, self._sink = self._sink, None
        self._forget()
        self._phase = _Phase.OPENING
        self._offer, self._source, self._answer = offer, source, answer
        self._expected = self._written = position_from(offer.manifest, 0, 0)
        self._rejected = None
        state, manifest = self._state, offer.manifest

        def open_sink() -> SnapshotSink:
            if earlier is not None:
                earlier.abort()
            return state.open_sink(manifest)

        self._task.start(open_sink)

    def _write(self, chunk: SnapshotChunk) -> None:
        if self._offer is not None:
            self._written = position_from(self._offer.manifest, chunk.file, chunk.offset + len(chunk.data))
        self._run(lambda sink: sink.write(chunk.file, chunk.offset, chunk.data))

    def _abort(self, sink: SnapshotSink) -> None:
        def abort() -> None:
            sink.abort()

        self._task.start(abort)

    def _run(self, step: Callable[[SnapshotSink], None]) -> None:
        sink = self._sink
        if sink is None:
            raise RuntimeError("no sink is open")
        self._task.start(lambda: step(sink))

    def _job_ended(self) -> None:
        error = self._task.failure
        phase = self._phase
        if phase is _Phase.IDLE:
            # Given up meanwhile.
            came = None if error is not None else self._task.fetch()
            discarded, self._discarded = self._discarded or came, None
            if discarded is not None:
                self._abort(discarded)
            return
        if error is not None:
            logger.error("a snapshot cannot be received: %s", error)
            answer = self._answer
            self.drop()
            answer(SnapshotVerdict.FAILED, Position(0, 0))
            return
        opened = self._task.fetch()
        if phase is _Phase.OPENING:
            self._sink = opened
            self._phase = _Phase.RECEIVING
            self._answer(SnapshotVerdict.NEXT, self._expected)
        elif phase is _Phase.RECEIVING:
            self._answer(SnapshotVerdict.NEXT, self._written)
        elif phase is _Phase.FINISHING:
            self._phase = _Phase.READY
