"""When the engine of one replica ticks: soon, at once, or at its deadline.

Owns the timer, and who is told after a tick: those who wait for an index to be applied, reads that are to be asked of
the leader. An engine that fails ends the process here. Read next: :mod:`oncegate.consensus.core.engine`,
:mod:`oncegate.consensus.replica.replica`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NoReturn

from oncegate.consensus.core.engine import Engine
from oncegate.consensus.replica.follower_reads import FollowerReads
from oncegate.consensus.replica.waiters import AppliedWaiters

logger = logging.getLogger(__name__)


class Ticker:
    """Drives one engine; every method but :meth:`wake` belongs to the event loop."""

    def __init__(self, waiters: AppliedWaiters, reads: FollowerReads, halt: Callable[[str], NoReturn]) -> None:
        """Nothing ticks before :meth:`start`. ``halt`` gets the reason when the engine fails, and does not return."""
        self._waiters = waiters
        self._reads = reads
        self._halt = halt
        self._engine: Engine[asyncio.Future[object]] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self, engine: Engine[asyncio.Future[object]]) -> None:
        """Drive this engine from now on."""
        self._loop = asyncio.get_running_loop()
        self._engine = engine

    def stop(self) -> None:
        """Nothing ticks any more."""
        self._engine = None
        if self._timer is not None:
            self._timer.cancel()

    def soon(self) -> None:
        """Tick in the next iteration of the loop: what comes until then shares the tick, and its flush."""
        if not self._scheduled and self._loop is not None:
            self._scheduled = True
            self._loop.call_soon(self._tick_if_scheduled)

    def wake(self) -> None:
        """From a worker's thread: a job has ended."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.soon)

    def tick(self) -> None:
        """Tick now."""
        self._scheduled = False
        engine, loop = self._engine, self._loop
        if engine is None or loop is None:
            return
        try:
            more = engine.tick()
        except Exception as error:
            # A failed flush, a broken invariant or an exception in apply: none of them may be survived.
            logger.critical("the engine failed", exc_info=True)
            why = str(error) or ("no memory could be had" if isinstance(error, MemoryError) else "no reason given")
            self._halt(f"{type(error).__name__}: {why}")
        if self._waiters.next_index <= engine.applied_index:
            self._waiters.applied(engine.applied_index)
        if self._reads.waiting:
            self._reads.ask(engine.leader_id)
        if more:
            self.soon()
        due = engine.deadline()
        if self._timer is None or due < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(due, self._timer_fired)

    def _tick_if_scheduled(self) -> None:
        # A message may have brought the tick forward.
        if self._scheduled:
            self.tick()

    def _timer_fired(self) -> None:
        self._timer = None
        engine, loop = self._engine, self._loop
        if engine is None or loop is None:
            return
        # Most of what it was set for has been put off since: a leader was heard, a commit index was sent.
        due = engine.deadline()
        if due > loop.time():
            self._timer = loop.call_at(due, self._timer_fired)
        else:
            self.soon()
