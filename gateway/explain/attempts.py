"""The requests that reached this node lately, and how each was answered; lost when the node restarts.

Owns: a bounded list. :mod:`oncegate.gateway.explain.search` finds attempts in the log; this module adds those that
never reached it, and the node at which each attempt arrived. Read next: :mod:`oncegate.gateway.explain.timeline`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

import msgspec

from oncegate.gateway.answers import Answer
from oncegate.gateway.machine import commands as c
from oncegate.rifl.completion import FINGERPRINT_BYTES
from oncegate.rifl.ids import SequenceNumber
from oncegate.rifl.key_table import KEYS_CLIENT

ATTEMPTS_MAX: Final = 32_768
FOUND_MAX: Final = 256
"""Attempts handed to whoever asks, the newest."""
ANSWERED: Final = "answered"
GIVEN_UP: Final = "given up"


class Attempt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One HTTP request with operations ``first`` to ``last`` of a session, or with keys mapped to these numbers.

    ``came_ms`` and ``took_ms`` are milliseconds of the node's wall clock and of its answer; ``ended`` is
    ``answered``, the code of the problem that it got, or ``given up``: its caller went away before.
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

    def ended(
        self, command: c.Operate | c.Range | c.Keyed, came_s: float, now_s: float, how: str, answer: Answer | None
    ) -> None:
        """Remember the outcome of the attempt to order ``command``; times are seconds of the wall clock.

        Keys that were not accepted have no number, and are not remembered.
        """
        if isinstance(command, c.Operate):
            client_id, sequences = command.client_id, [op.sequence for op in command.ops]
        elif isinstance(command, c.Range):
            client_id, count = command.client_id, len(command.fingerprints) // FINGERPRINT_BYTES
            sequences = [command.first, SequenceNumber(command.first + count - 1)]
        else:
            client_id = KEYS_CLIENT
            sequences = [] if answer is None else [one.sequence for one in answer.body.results if one.sequence]
        if sequences:
            came_ms, took_ms = int(came_s * 1000), int((now_s - came_s) * 1000)
            self.note(Attempt(came_ms, took_ms, client_id, min(sequences), max(sequences), how))

    def of(self, client_id: int, sequences: frozenset[int]) -> list[Attempt]:
        """Return the attempts that carried one of these operations, oldest first, the newest ``FOUND_MAX``."""
        found: deque[Attempt] = deque(self._matching(client_id, sequences), FOUND_MAX)
        return list(found)

    def _matching(self, client_id: int, sequences: frozenset[int]) -> Iterator[Attempt]:
        for attempt in self._attempts:
            if attempt.client_id == client_id and any(attempt.first <= one <= attempt.last for one in sequences):
                yield attempt
