"""Who waits for an index to be applied on this node. Read next: :mod:`oncegate.consensus.replica.replica`."""

from __future__ import annotations

import asyncio
import heapq
import math

from oncegate.consensus.errors import ConsensusError

_KEPT = 1024


class AppliedWaiters:
    """Futures by index, answered in index order."""

    def __init__(self) -> None:
        self.next_index: float = math.inf
        """The first index that somebody waits for."""
        self._heap: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = 0

    def add(self, index: int, waiter: asyncio.Future[None]) -> None:
        """Wait for ``index``."""
        if len(self._heap) >= _KEPT:
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
