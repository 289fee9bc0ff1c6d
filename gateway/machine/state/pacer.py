"""How a worker shares the interpreter with the event loop.

A thread that computes keeps the interpreter for five milliseconds each time the event loop releases it, that is at each
system call of the loop. So a worker computes in slices far shorter than that and sleeps in between.
"""

from __future__ import annotations

import time
from typing import Final

SLICE_S: Final = 0.0005
SLICE_S_MAX: Final = 0.004
REST_S: Final = 0.001


class Pacer:
    """Rests after each slice of work; one a thread."""

    def __init__(self) -> None:
        self.hurry = False
        """Nobody waits for the interpreter any more: do not rest."""
        self._slice_s = SLICE_S
        self._until = time.perf_counter() + SLICE_S

    def press(self, pressure: float) -> None:
        """Take longer slices, up to ``SLICE_S_MAX``, when more work waits; 1 means as much as is being done."""
        self._slice_s = min(max(SLICE_S, 2 * SLICE_S * pressure), SLICE_S_MAX)

    def rest(self) -> None:
        """Sleep if the slice is over; call it at least every hundred microseconds of work."""
        if time.perf_counter() >= self._until:
            if not self.hurry:
                time.sleep(REST_S)
            self._until = time.perf_counter() + self._slice_s
