"""Turns of many who wait for the same: given in slices, so that what else a node does goes between them.

Owns: how many are woken at once, and how long nobody is woken afterwards. One change of a table may concern ten
thousand watches; woken together they would keep the event loop from everything else until the last of them is told.
Who waits is an iterator here (:data:`Crowd`), so that a crowd of any size costs nothing until its turns come. Event
loop's thread only.

::

    turns   ████  ████              ████              ████      about SLICE_S each
    others      ░░    ░░░░░░░░░░░░░░    ░░░░░░░░░░░░░░          whatever the loop has to do, and rests
            └ BURST_S at once └ while entries are applied, SHARE of the time
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

SLICE_S: Final = 0.0003
"""What a slice takes, about: a write that arrives meanwhile waits for so long."""
SLICE_TURNS_MAX: Final = 16
"""Turns of a slice. Who is woken takes what there is, and writes it to a connection: a hundred bytes, or thirty KiB."""
SHARE: Final = 1 / 16
"""Of a node's time, while it applies entries: writes keep nine tenths of their rate at a node that is busy with them,
whoever watches."""
BURST_S: Final = 0.004
"""So much may be used at once, so that a hundred are told without a rest."""
SLICE_S_MAX: Final = 0.01
"""A slice counts as so much at most: a process that was stopped in the middle owes no rest for it."""
BUSY_S: Final = 0.02
"""A node at which nothing was applied for so long rests no more: nobody's write waits."""

Crowd: TypeAlias = Iterator[bool]
"""Gives the next one its turn at each step; False: it did not wait any more, and nobody was woken."""


class Turns:
    """Gives turns, the first come first; ``clock`` in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._crowds: deque[Crowd] = deque()
        self._next: asyncio.Handle | None = None
        """There while a slice is under way, or rests."""
        self._size = SLICE_TURNS_MAX
        """Turns of the next slice: fewer when the one before took too long."""
        self._used_s = 0.0
        """Time of slices that is not made up for yet, at ``_at_s``."""
        self._at_s = clock()
        self._applied_s = -BUSY_S

    def applied(self) -> None:
        """Note that an entry was applied: writes are under way."""
        self._applied_s = self._clock()

    def add(self, crowd: Crowd) -> None:
        """Give each of a crowd its turn, behind those that wait already; the first at once if nothing forbids it."""
        self._crowds.append(crowd)
        if self._next is None:
            self._go_on()

    def _go_on(self) -> None:
        rest_s = self._rest_s()
        if rest_s > 0:
            self._next = asyncio.get_running_loop().call_later(rest_s, self._slice)
        else:
            self._slice()

    def _rest_s(self) -> float:
        now = self._clock()
        self._used_s = max(0.0, self._used_s - SHARE * (now - self._at_s))
        self._at_s = now
        if now - self._applied_s >= BUSY_S:
            return 0.0
        return max(0.0, (self._used_s - BURST_S) / SHARE)

    def _slice(self) -> None:
        given, crowds = 0, self._crowds
        while crowds and given < self._size:
            for was_given in crowds[0]:
                given += was_given
                if given >= self._size:
                    break
            else:
                crowds.popleft()
        if given:
            # Runs behind those that were woken: callbacks run in the order in which they were asked for.
            self._next = asyncio.get_running_loop().call_soon(self._after, self._clock())
        else:
            self._next = None

    def _after(self, began_s: float) -> None:
        self._next = None
        took_s = self._clock() - began_s
        self._used_s += min(SLICE_S_MAX, took_s)
        self._size = max(1, self._size // 2) if took_s > SLICE_S else min(SLICE_TURNS_MAX, self._size + 1)
        if self._crowds:
            # Never in the same turn of the loop: what has arrived meanwhile goes first.
            rest_s = self._rest_s()
            loop = asyncio.get_running_loop()
            self._next = loop.call_later(rest_s, self._slice) if rest_s > 0 else loop.call_soon(self._slice)


def released(waiting: Iterable[asyncio.Future[None]]) -> Crowd:
    """Return those who wait for these futures as a crowd."""
    for one in waiting:
        if one.done():
            yield False
        else:
            one.set_result(None)
            yield True
