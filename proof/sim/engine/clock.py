"""Simulated time: one scheduler for the world, one drifting monotonic clock for each machine.

Owns what "now" is and what happens next. Times are seconds. Read next: :mod:`oncegate.proof.sim.engine.world`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush


class Scheduler:
    """Events in order of time, then of scheduling; time never goes back."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple]] = []
        self._count = 0

    def at(self, time: float, call: Callable[..., None], *args: object) -> None:
        """Call at ``time``, or at once when that is past."""
        self._count += 1
        heappush(self._heap, (time, self._count, call, args))

    def after(self, delay: float, call: Callable[..., None], *args: object) -> None:
        """Call after ``delay`` seconds."""
        self.at(self.now + delay, call, *args)

    def run(self, until: float) -> None:
        """Run everything due up to ``until``; may be called from inside an event (a node waits for its disk)."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            time, _, call, args = heappop(heap)
            self.now = max(self.now, time)
            self.steps += 1
            call(*args)
        self.now = max(self.now, until)


class NodeClock:
    """A machine's monotonic clock: runs at its own rate, may stand still or jump forward, never goes back."""

    def __init__(self, scheduler: Scheduler, *, reading: float = 0.0, rate: float = 1.0) -> None:
        self._scheduler = scheduler
        self._reading = reading
        self._since = scheduler.now
        self._rate = rate
        self._stopped = False

    def read(self) -> float:
        """Seconds since an arbitrary moment."""
        if self._stopped:
            return self._reading
        return self._reading + (self._scheduler.now - self._since) * self._rate

    def when(self, reading: float) -> float:
        """World time at which the clock will show ``reading``, if nothing happens to it."""
        if self._stopped or reading == math.inf:
            return math.inf
        return self._since + (reading - self._reading) / self._rate

    def jump(self, seconds: float) -> None:
        """Time passed that nobody saw."""
        self._rebase()
        self._reading += seconds

    def set_rate(self, rate: float) -> None:
        """Run faster or slower from now on."""
        self._rebase()
        self._rate = rate

    def stop(self) -> None:
        """Stand still, as a paused virtual machine's clock does."""
        self._rebase()
        self._stopped = True

    def resume(self) -> None:
        """Go on where it stood."""
        if self._stopped:
            self._stopped = False
            self._since = self._scheduler.now

    def _rebase(self) -> None:
        self._reading = self.read()
        self._since = self._scheduler.now
