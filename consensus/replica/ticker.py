"""When the engine of one replica ticks: soon, at once, or at its deadline.

Owns the timer, and who is told after a tick: those who wait for an index to be applied, reads that are to be asked of
the leader (one request is open at a time, and reads that come meanwhile share the next). An engine that fails ends the
process here. Read next: :mod:`oncegate.consensus.core.engine`, :mod:`oncegate.consensus.replica.replica`.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
import os
from collections.abc import Callable
from typing import Final, NoReturn

from oncegate.consensus.core.engine import Engine
from oncegate.consensus.errors import ConsensusError, NoLeader
from oncegate.consensus.messages import Message, ReadReply, ReadRequest

logger = logging.getLogger(__name__)

HALT_EXIT_STATUS: Final = 70
_WAITERS_KEPT = 1024

Read = asyncio.Future[object]


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
        if self._waiters.next_index <= engine.applier.applied_index:
            self._waiters.applied(engine.applier.applied_index)
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


class AppliedWaiters:
    """Who waits for an index to be applied on this node: futures by index, answered in index order."""

    def __init__(self) -> None:
        self.next_index: float = math.inf
        """The first index that somebody waits for."""
        self._heap: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = 0

    def add(self, index: int, waiter: asyncio.Future[None]) -> None:
        """Wait for ``index``."""
        if len(self._heap) >= _WAITERS_KEPT:
            # Those that gave up stay in the heap until their index comes; it may never come.
            self._heap = [entry for entry in self._heap if not entry[2].done()]
            heapq.heapify(self._heap)
        self._count += 1
        heapq.heappush(self._heap, (index, self._count, waiter))
        self.next_index = self._heap[0][0]

    def applied(self, index: int) -> None:
        """Everything up to ``index`` is applied."""
        heap = self._heap
        while heap and heap[0][0] <= index:
            waiter = heapq.heappop(heap)[2]
            if not waiter.done():
                waiter.set_result(None)
        self.next_index = heap[0][0] if heap else math.inf

    def stop(self, error: ConsensusError) -> None:
        """Fail everybody."""
        for _, _, waiter in self._heap:
            if not waiter.done():
                waiter.set_exception(error)
                waiter.exception()
        self._heap.clear()
        self.next_index = math.inf


class FollowerReads:
    """Reads that arrive at a node that does not lead, and wait for the leader's answer."""

    def __init__(self, send: Callable[[str, Message], None], fail: Callable[[Read, ConsensusError], None]) -> None:
        self._send = send
        self._fail = fail
        self.waiting: list[Read] = []
        """Reads that no request was sent for yet."""
        self._asked: list[Read] = []
        self._leader_id: str | None = None
        self._number = 0

    def add(self, read: Read) -> None:
        """A read waits for the next request."""
        self.waiting.append(read)

    def ask(self, leader_id: str | None) -> None:
        """Send one request for all reads waiting, unless one is open; fail them when nobody can be asked."""
        if self._asked or not self.waiting:
            return
        waiting, self.waiting = self.waiting, []
        if leader_id is None:
            for read in waiting:
                self._fail(read, NoLeader("the leader has changed"))
            return
        self._number += 1
        self._asked, self._leader_id = waiting, leader_id
        self._send(leader_id, ReadRequest(self._number))

    def answered(self, peer_id: str, reply: ReadReply) -> list[Read]:
        """The reads that this reply answers; none for a reply to a request that was given up."""
        if reply.number != self._number or peer_id != self._leader_id:
            return []
        asked, self._asked = self._asked, []
        return asked

    def ask_again(self, peer_id: str) -> None:
        """The connection to ``peer_id`` is a new one: it will not answer what was asked before."""
        if self._leader_id == peer_id:
            self.waiting, self._asked = self._asked + self.waiting, []

    def lost(self, error: ConsensusError, *, unless_leader: str | None) -> None:
        """Whoever was asked will not answer, unless it is ``unless_leader``."""
        if self._asked and self._leader_id != unless_leader:
            asked, self._asked = self._asked, []
            for read in asked:
                self._fail(read, error)

    def stop(self, error: ConsensusError) -> None:
        """Fail everything."""
        asked, self._asked = self._asked + self.waiting, []
        self.waiting = []
        for read in asked:
            self._fail(read, error)


def resolve(future: asyncio.Future[object], result: object) -> None:
    """Give a waiter its result, if it still waits."""
    if not future.done():
        future.set_result(result)


def fail(future: asyncio.Future[object], error: ConsensusError) -> None:
    """Give a waiter its error, if it still waits."""
    if not future.done():
        future.set_exception(error)
        # The caller may have gone away; an error nobody fetched is not worth a warning.
        future.exception()


def halt_process(reason: str) -> NoReturn:
    """End the process now: going on could break a promise, and cleaning up could write more."""
    logger.critical("halting: %s", reason)
    for handler in logging.getLogger().handlers:
        handler.flush()
    os._exit(HALT_EXIT_STATUS)
