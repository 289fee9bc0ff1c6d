"""The requests that reached this node lately, and how each was answered; lost when the node restarts.

Owns: a bounded list. What is in the log is found there (:mod:`gateway.explain.search`); this adds what never came so
far, and at which node each attempt arrived. Read next: :mod:`gateway.explain.timeline`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

import msgspec

ATTEMPTS_MAX: Final = 32_768
FOUND_MAX: Final = 256
"""Attempts handed to whoever asks, the newest."""
ANSWERED: Final = "answered"


class Attempt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One HTTP request with operations ``first`` to ``last`` of a session.

    ``came_ms`` and ``took_ms`` are milliseconds of the node's wall clock and of its answer; ``ended`` is
    ``answered`` or the code of the problem that it got.
    """

    came_ms: int
    took_ms: int
    client_id: int
    first: int
    last: int
    ended: str


class AttemptLog:
    """The last ``ATTEMPTS_MAX`` attempts at this node. One thread."""

    def __init__(self, attempts_max: int = ATTEMPTS_MAX) -> None:
        self._attempts: deque[Attempt] = deque(maxlen=attempts_max)

    def note(self, attempt: Attempt) -> None:
        """Remember an attempt that has been answered."""
        self._attempts.append(attempt)

    def of(self, client_id: int, sequences: frozenset[int]) -> list[Attempt]:
        """Return the attempts that carried one of these operations, oldest first, the newest ``FOUND_MAX``."""
        found: deque[Attempt] = deque(self._matching(client_id, sequences), FOUND_MAX)
        return list(found)

    def _matching(self, client_id: int, sequences: frozenset[int]) -> Iterator[Attempt]:
        for attempt in self._attempts:
            if attempt.client_id == client_id and any(attempt.first <= one <= attempt.last for one in sequences):
                yield attempt
