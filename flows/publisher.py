"""Writes sealed batches to disk, in order, in one worker thread.

Owns: the queue between apply and the disk. Thin: the bytes come from :mod:`oncegate.flows.segment`, the files from the
store. Must not know the log. Apply never waits for the disk and cannot refuse, so the queue's bound is a signal:
while :attr:`Publisher.overloaded`, admission refuses new writes before they are proposed.

Until a batch's file is durable its chunks stay here and reads are served from them. They are not in the files
yet and no longer in the open segment: a saved state waits for them (:meth:`Publisher.wait_done`) before it counts.
A failed write is reported and tried again; later batches wait for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

import pyarrow as pa

from oncegate.flows import segment
from oncegate.flows.chunks import SealedBatch
from oncegate.flows.errors import FlowError

PENDING_BATCHES_MAX: Final = 256
PENDING_BYTES_MAX: Final = 128 * 1024 * 1024
RETRY_MS: Final = 500


class BatchStore(Protocol):
    """Where batches go: :class:`oncegate.flows.segment_store.SegmentStore` or a fake."""

    def put(self, flow: str, number: int, payload: bytes) -> str:
        """Store a batch durably and return its checksum; idempotent for equal bytes."""

    def get(self, flow: str, number: int) -> bytes:
        """Return a batch's payload."""

    def checksum(self, flow: str, number: int) -> str:
        """Return a batch's checksum."""

    def piece(self, flow: str, number: int, offset: int, size_bytes: int) -> tuple[int, str, bytes]:
        """Return (length of the payload, its checksum, a part of it)."""

    def drop_through(self, flow: str, number: int) -> None:
        """Remove a flow's batches up to and including ``number``."""


class _Drop(NamedTuple):
    flow: str
    number: int


class _Pending:
    """A batch that is not durable yet; the first thread that needs its payload builds it, once."""

    __slots__ = ("_lock", "_payload", "batch")

    def __init__(self, batch: SealedBatch) -> None:
        self.batch = batch
        self._lock = threading.Lock()
        self._payload: bytes | None = None

    def payload(self, rest: Callable[[], None]) -> bytes:
        with self._lock:
            if self._payload is None:
                batch = self.batch
                self._payload = segment.build(batch.chunks, batch.flow, batch.table, batch.number, rest)
            return self._payload


class Publisher:
    """The queue and its worker.

    Args:
        store: where the batches go.
        on_failure: called with (flow, number, error) after each failed attempt, **on the worker thread**.
        pending_batches_max: from this many waiting batches on, :attr:`overloaded`.
        pending_bytes_max: from this many waiting bytes on, :attr:`overloaded`.
        retry_ms: pause after a failed attempt.
        rest: called often by whoever builds a batch, who sleeps in it if others are to go on.
    """

    def __init__(
        self,
        store: BatchStore,
        *,
        on_failure: Callable[[str, int, Exception], None],
        pending_batches_max: int = PENDING_BATCHES_MAX,
        pending_bytes_max: int = PENDING_BYTES_MAX,
        retry_ms: int = RETRY_MS,
        rest: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._on_failure = on_failure
        self._batches_max = pending_batches_max
        self._bytes_max = pending_bytes_max
        self._retry_s = retry_ms / 1000
        self._rest = rest
        self._changed = threading.Condition()
        self._queue: deque[SealedBatch | _Drop] = deque()
        self._pending: dict[tuple[str, int], _Pending] = {}
        self._pending_bytes = 0
        self._keepers = 0
        self._kept: dict[str, int] = {}
        """Newest batch that is to be removed of each flow, once nobody keeps them."""
        self._submitted = 0
        self._finished = 0
        self._closing = False
        self._ended = False
        self._worker = threading.Thread(target=self._run, name="segment-writer", daemon=True)

    def start(self) -> None:
        """Start the worker; what was submitted before is written now."""
        self._worker.start()

    def submit(self, batch: SealedBatch) -> None:
        """Take over a sealed batch. Never blocks, never refuses; submitting a waiting batch again changes nothing."""
        with self._changed:
            if (batch.flow, batch.number) in self._pending:
                return
            self._pending[batch.flow, batch.number] = _Pending(batch)
            self._pending_bytes += batch.size_bytes
            self._queue.append(batch)
            self._submitted += 1
            self._changed.notify_all()

    def drop_through(self, flow: str, number: int) -> None:
        """Remove a flow's files up to and including ``number``, after what was submitted before."""
        with self._changed:
            self._queue.append(_Drop(flow, number))
            self._submitted += 1
            self._changed.notify_all()

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Remove no file while this lasts: for whoever takes the batches of a saved state. What is due goes after."""
        with self._changed:
            self._keepers += 1
        try:
            yield
        finally:
            with self._changed:
                self._keepers -= 1
                kept, self._kept = (self._kept, {}) if not self._keepers else ({}, self._kept)
            for flow, number in kept.items():
                self.drop_through(flow, number)

    @property
    def overloaded(self) -> bool:
        """Whether the disk has fallen behind so far that nothing new should be proposed."""
        return len(self._pending) >= self._batches_max or self._pending_bytes >= self._bytes_max

    @property
    def pending_bytes(self) -> int:
        """Size of the batches that are not durable yet."""
        return self._pending_bytes

    @property
    def alive(self) -> bool:
        """Whether the worker runs. False after :meth:`close`, and after a bug has ended it."""
        return self._worker.is_alive() and not self._ended

    def get(self, flow: str, number: int) -> bytes:
        """Return a batch's payload, from memory while its file is not durable. Blocking.

        Raises:
            NotFoundError: this node does not have it.
            SegmentCorrupt: its file is damaged.
        """
        with self._changed:
            pending = self._pending.get((flow, number))
        # The batch may become a file between the two look-ups, never the reverse.
        return self._store.get(flow, number) if pending is None else pending.payload(self._rest)

    def piece(self, flow: str, number: int, offset: int, size_bytes: int) -> tuple[int, str, bytes]:
        """Return (length, checksum, part of the payload); as :meth:`get`, but reads no more than the part."""
        with self._changed:
            pending = self._pending.get((flow, number))
        if pending is None:
            return self._store.piece(flow, number, offset, size_bytes)
        payload = pending.payload(self._rest)
        return len(payload), segment.checksum(payload), payload[offset : offset + size_bytes]

    def checksum(self, flow: str, number: int) -> str:
        """Return a batch's checksum; as :meth:`get`, but reads only the header of a file."""
        with self._changed:
            pending = self._pending.get((flow, number))
        return self._store.checksum(flow, number) if pending is None else segment.checksum(pending.payload(self._rest))

    def has(self, flow: str, number: int) -> bool:
        """Tell whether a batch waits here to be written; the store has those that are."""
        with self._changed:
            return (flow, number) in self._pending

    def mark(self) -> int:
        """Return a mark of what has been submitted by now, for :meth:`wait_done`."""
        return self._submitted

    def wait_done(self, mark: int, timeout_s: float) -> bool:
        """Wait until everything submitted before ``mark`` is durable; False after ``timeout_s`` or if the worker ended.

        It ends although new batches keep coming.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._finished >= mark or self._ended, timeout_s)
            return self._finished >= mark

    def close(self, timeout_s: float = 10.0) -> None:
        """Write the waiting batches, up to the first failure, and end the worker. The rest is in the log."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._worker.is_alive():
            self._worker.join(timeout_s)

    def _run(self) -> None:
        try:
            while (job := self._next_job()) is not None:
                if not self._done(job):
                    return
        finally:
            # Also after a bug: waiting threads must see that the worker has ended.
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _next_job(self) -> SealedBatch | _Drop | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            return self._queue[0] if self._queue else None

    def _done(self, job: SealedBatch | _Drop) -> bool:
        """Try one job until it succeeds; False if the publisher was closed first."""
        while True:
            try:
                self._attempt(job)
            except (OSError, ValueError, MemoryError, FlowError, pa.ArrowException) as error:
                self._on_failure(job.flow, job.number, error)
            else:
                break
            with self._changed:
                if self._changed.wait_for(lambda: self._closing, self._retry_s):
                    return False
        with self._changed:
            if isinstance(job, SealedBatch):
                del self._pending[job.flow, job.number]
                self._pending_bytes -= job.size_bytes
            self._queue.popleft()
            self._finished += 1
            self._changed.notify_all()
        return True

    def _attempt(self, job: SealedBatch | _Drop) -> None:
        match job:
            case SealedBatch(flow=flow, number=number):
                self._store.put(flow, number, self._pending[flow, number].payload(self._rest))
            case _Drop(flow=flow, number=number):
                with self._changed:
                    if self._keepers:
                        self._kept[flow] = max(number, self._kept.get(flow, 0))
                        return
                self._store.drop_through(flow, number)
