"""Who may use a connection, to which node, and in which order: the bound on what one client has open.

Owns: how many requests each node has under way, and the calls that wait until one ends. A turn at a node stands for one
connection, so that a client has at most ``connections_max`` open to each, whatever is asked of it at once. Must not
know what a call carries, nor how it travels: :mod:`oncegate.gateway.client.courier` takes a turn for each attempt and
gives it back when the attempt ends. Streams without an end take none: they would keep it.

Calls get turns in the order in which they were made, also one that is made again after a failed attempt. Which node is
decided when a turn is free and not when the call begins to wait. Example: 64 reads wait for the answers of a leader
that is frozen, and 1,000 wait for a turn. When the first of the 64 has no answer in time, its node rests, and the
oldest 64 of the 1,000 go to the next node at once; nothing of them was ever on its way to the frozen one.
"""

from __future__ import annotations

import asyncio
import heapq
from itertools import count
from typing import Final, TypeAlias

from oncegate.gateway.client.routing import AttemptFailed, Router
from oncegate.gateway.sweep import NEVER
from oncegate.rifl.errors import Code

FIRST: Final = -1.0
"""When a call began that goes before all others: what keeps a session alive must not wait behind reads."""
_Waiting: TypeAlias = tuple[float, int, asyncio.Future[str | None]]
"""When the call began, the order of arrival, and where its node is told."""


class ConnectionTurns:
    """The turns of one client at each of its nodes.

    Args:
        loop: the client's.
        router: chooses nodes; what an attempt has told of its node is noted there before its turn is given back.
        connections_max: turns at one node.
    """

    __slots__ = ("_all", "_arrivals", "_closed", "_gone", "_lines", "_loop", "_router", "_taken", "connections_max")

    def __init__(self, loop: asyncio.AbstractEventLoop, router: Router, connections_max: int) -> None:
        self.connections_max = connections_max
        self._loop = loop
        self._router = router
        self._taken: dict[str, int] = {}
        self._all = 0
        self._lines: tuple[list[_Waiting], list[_Waiting]] = ([], [])
        """Heaps of calls for the leader, and of those for any node. Bounded by the application's own tasks."""
        self._gone = 0
        """Calls in the heaps that wait no longer."""
        self._arrivals = count()
        self._closed = False

    def take(self, now: float, *, anywhere: bool) -> str | None:
        """Take a turn that is free now and return its node; None if the call has to wait for one."""
        if self._lines[0] or self._lines[1]:
            return None  # a node that rested may serve again: then it is the turn of the oldest call, of either kind
        endpoint = self._router.pick(now, anywhere=anywhere)
        taken = self._taken.get(endpoint, 0)
        if taken >= self.connections_max:
            other = self._free(now, anywhere=anywhere)
            if other is None:
                return None
            endpoint, taken = other, self._taken.get(other, 0)
        self._taken[endpoint] = taken + 1
        self._all += 1
        return endpoint

    async def wait(self, began: float, deadline: float, *, anywhere: bool) -> str | None:
        """Wait for a turn, behind the calls that began before, and return its node; None: the client is closed.

        ``began``, ``deadline``: on the loop's clock.

        Raises:
            AttemptFailed: the deadline has passed first: nothing was sent.
        """
        if self._closed:
            return None
        loop, turn = self._loop, self._loop.create_future()
        heapq.heappush(self._lines[anywhere], (began, next(self._arrivals), turn))
        timer = None if deadline == NEVER else loop.call_at(deadline, self._late, turn, loop.time())
        self._hand_out()  # a node may have come back since it was looked at last
        try:
            endpoint: str | None = await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget()
            elif turn.exception() is None and (given := turn.result()) is not None:
                self.give_back(given)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        return endpoint

    def give_back(self, endpoint: str) -> None:
        """Note that an attempt has ended; the oldest call that can use the turn gets it."""
        self._taken[endpoint] -= 1
        self._all -= 1
        if self._lines[0] or self._lines[1]:
            self._hand_out()

    def close(self) -> None:
        """Let nobody wait any longer."""
        self._closed = True
        for line in self._lines:
            for _, _, turn in line:
                if not turn.done():
                    turn.set_result(None)
            line.clear()

    def _free(self, now: float, *, anywhere: bool) -> str | None:
        """Return a node that may be asked now and has a free turn."""
        router = self._router
        endpoint = router.pick(now, anywhere=anywhere)
        if self._taken.get(endpoint, 0) < self.connections_max:
            return endpoint
        if anywhere or not router.prefer_leader:
            for _ in router.endpoints[1:]:  # in turn: another one may have room
                endpoint = router.pick(now, anywhere=anywhere)
                if self._taken.get(endpoint, 0) < self.connections_max:
                    return endpoint
        return None

    def _hand_out(self) -> None:
        """Give free turns to those who wait, to the oldest call first, as long as somebody can use one."""
        now = self._loop.time()
        usable = [0, 1]
        while True:
            for at in (0, 1):
                line = self._lines[at]
                while line and line[0][2].done():
                    heapq.heappop(line)
                    self._gone -= 1
            usable = [at for at in usable if self._lines[at]]
            if not usable or self._all >= self.connections_max * len(self._router.endpoints):
                return
            at = min(usable, key=lambda at: self._lines[at][0])
            endpoint = self._free(now, anywhere=bool(at))
            if endpoint is None:
                usable.remove(at)
                continue
            _, _, turn = heapq.heappop(self._lines[at])
            self._taken[endpoint] = self._taken.get(endpoint, 0) + 1
            self._all += 1
            turn.set_result(endpoint)

    def _late(self, turn: asyncio.Future[str | None], since: float) -> None:
        if turn.done():
            return
        waited_s = self._loop.time() - since
        detail = f"waited {waited_s:.3g} s for a connection: all {self.connections_max} to a node were in use"
        turn.set_exception(AttemptFailed(Code.TIMEOUT, detail, ambiguous=False))
        self._forget()

    def _forget(self) -> None:
        """Note that one who waited is gone, and rebuild the heaps when most of them are."""
        self._gone += 1
        if self._gone > 64 and 2 * self._gone > len(self._lines[0]) + len(self._lines[1]):
            for line in self._lines:
                line[:] = [waiting for waiting in line if not waiting[2].done()]
                heapq.heapify(line)
            self._gone = 0
