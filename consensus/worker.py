"""Where blocking work goes: a thread in a node, inline in a simulation.

Owns the protocol and :class:`Task`, one job at a time whose outcome is fetched by its owner.
Read next: :mod:`oncegate.consensus.log.segment_file`, :mod:`oncegate.consensus.core.snapshots`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

from oncegate.consensus.errors import ConsensusError

T = TypeVar("T")


class Worker(Protocol):
    """Runs jobs one after the other, in the order of their submission."""

    def submit(self, job: Callable[[], T], /) -> Future[T]:
        """Start the job."""


class InlineWorker:
    """Runs a job where it is submitted, for owners that have one thread."""

    def submit(self, job: Callable[[], T], /) -> Future[T]:
        """Run the job."""
        future: Future[T] = Future()
        try:
            future.set_result(job())
        except (OSError, ValueError, ConsensusError) as error:
            future.set_exception(error)
        return future


class Task(Generic[T]):
    """At most one job under way; its owner polls, and is woken when the job has ended."""

    def __init__(self, worker: Worker, wake: Callable[[], None]) -> None:
        """``wake`` is called from the worker's thread."""
        self._worker = worker
        self._wake = wake
        self._future: Future[T] | None = None
        self.busy = False
        """A job was started and its outcome has not been fetched."""

    @property
    def done(self) -> bool:
        """There is an outcome to fetch."""
        return self._future is not None and self._future.done()

    def start(self, job: Callable[[], T]) -> None:
        """Start a job; none may be under way."""
        if self._future is not None:
            raise RuntimeError("a job is under way")
        self._future = self._worker.submit(job)
        self.busy = True
        self._future.add_done_callback(lambda _: self._wake())

    @property
    def failure(self) -> Exception | None:
        """What the job raised, once it is :attr:`done`; asking for it is instead of fetching."""
        error = None if self._future is None else self._future.exception()
        if error is None:
            return None
        self._future, self.busy = None, False
        if not isinstance(error, Exception):
            raise error
        return error

    def fetch(self) -> T:
        """Wait for the outcome; raises what the job raised."""
        future, self._future, self.busy = self._future, None, False
        if future is None:
            raise RuntimeError("no job was started")
        return future.result()
