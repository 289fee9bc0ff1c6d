"""How a worker shares the interpreter with the event loop.

A thread that computes keeps the interpreter for five milliseconds whenever the loop has let go of it, that is at
each of its system calls. So a worker computes in slices far shorter than that and sleeps in between.
"""

from __future__ import annotations

import time
from typing import Final

SLICE_S: Final = 0.0005
REST_S: Final = 0.001


class Pacer:
    """Rests after each slice of work; one a thread."""

    def __init__(self) -> None:
        self.hurry = False
        """Nobody waits for the interpreter any more: do not rest."""
        self._until = time.perf_counter() + SLICE_S

    def rest(self) -> None:
        """Sleep if the slice is over; call it at least every hundred microseconds of work."""
        if time.perf_counter() >= self._until:
            if not self.hurry:
                time.sleep(REST_S)
            self._until = time.perf_counter() + SLICE_S
