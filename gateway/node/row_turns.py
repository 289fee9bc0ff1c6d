"""Turns at rows that come: who waits for rows under a prefix is told of them one by one, not all of every row.

Owns: who waits for which prefix, in the order of asking, and how many of them a row wakes. Knows no HTTP; what a turn
is used for, a take above all, is not its business. Event loop's thread only.

Only the leader gives turns, so a row that comes wakes one of all who wait in the cluster. When it leads no more, all
are sent to the next leader. A turn is a hint and promises nothing: whoever has it may be too late, or have died. So
rows that lie for ``LOOK_S`` while somebody waits give turns again.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from itertools import islice
from typing import TYPE_CHECKING, Final

from oncegate.gateway.machine.rows import ChangeRun, RowChange, each_change
from oncegate.gateway.machine.tenant_share import share
from oncegate.rifl.errors import Code, OncegateError

if TYPE_CHECKING:
    from oncegate.gateway.machine.machine import Machine

WAITING_MAX: Final = 10_000
"""Who wait at one node, each with an open connection."""
COUNT_MAX: Final = 64
"""Turns that one may ask for at once."""
LOOK_S: Final = 1.0
"""How long a row may lie before it gives a turn again."""
_LOOKED_ROWS: Final = 16
"""Rows of a prefix that are looked at then."""
RETRY_AFTER_MS: Final = 1_000

_Place = tuple[str, str]


class _Waiter:
    __slots__ = ("count", "told")

    def __init__(self, count: int, told: asyncio.Future[int]) -> None:
        self.count = count
        self.told = told


class _Line:
    """Those who wait for one prefix; ``lying``: rows that were there at the last look, by key and version."""

    __slots__ = ("lying", "waiters")

    def __init__(self) -> None:
        self.waiters: deque[_Waiter] = deque()
        self.lying: set[tuple[str, int]] = set()

    def give(self, turns: int) -> None:
        """Hand out so many turns, to those first who came first."""
        while turns and self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.told.done():
                given = min(turns, waiter.count)
                turns -= given
                waiter.told.set_result(given)

    def end(self) -> None:
        """Send all away."""
        for waiter in self.waiters:
            if not waiter.told.done():
                waiter.told.set_result(0)


class RowTurns:
    """Those who wait at this node. ``leads``: whether it may give turns."""

    def __init__(self, machine: Machine, *, leads: bool = False) -> None:
        self._machine = machine
        self._leads = leads
        self._lines: dict[_Place, _Line] = {}
        self._lengths: dict[str, Counter[int]] = {}
        self._of_tenant: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self.waiting = 0

    def lead(self, *, leads: bool) -> None:
        """Take note of whether this node leads; if it does not, those who wait are to ask another one."""
        self._leads = leads
        if not leads:
            self.send_away()

    def check_leads(self) -> None:
        """Raise NOT_LEADER if another node gives turns."""
        if not self._leads:
            raise OncegateError(Code.NOT_LEADER, "only the leader gives turns", retry_after_ms=20)

    def send_away(self) -> None:
        """Give none to those who wait now: they are to ask again, perhaps elsewhere."""
        for line in self._lines.values():
            line.end()

    def applied(self, changes: list[RowChange | ChangeRun]) -> None:
        """Give a turn for each row that an entry has brought."""
        came: Counter[_Place] = Counter()
        for _, _, table, key, before, after, _ in each_change(changes):
            if before is None and after is not None:
                for length in self._lengths.get(table, ()):
                    if length <= len(key):
                        came[table, key[:length]] += 1
        for place, turns in came.items():
            line = self._lines.get(place)
            if line is not None:
                line.give(turns)

    async def wait(self, table: str, prefix: str, count: int, wait_s: float, tenant: str) -> int:
        """Wait for rows under a prefix; returns how many turns there are, at most ``count``; 0: ask again.

        Rows that are there give turns at once.

        Raises:
            OncegateError: NOT_LEADER; OVERLOADED if too many wait, of all or of this tenant.
        """
        self.check_leads()
        there = len(self._first(table, prefix, count))
        if there:
            return there
        own = self._of_tenant[tenant]
        if own >= share(tenant, WAITING_MAX, self.waiting, own):
            raise OncegateError(Code.OVERLOADED, "too many wait for turns", retry_after_ms=RETRY_AFTER_MS)
        told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        place, waiter = (table, prefix), _Waiter(count, told)
        line = self._open(place)
        line.waiters.append(waiter)
        self._count(tenant, 1)
        try:
            # Its own end of time does not cancel it: a turn that has come by then is nobody else's.
            await asyncio.wait((told,), timeout=wait_s)
            return told.result() if told.done() else 0
        except asyncio.CancelledError:
            if told.done():
                line.give(told.result())  # whoever asked has gone: the next one has the turn
            raise
        finally:
            self._count(tenant, -1)
            if waiter in line.waiters:
                line.waiters.remove(waiter)
            if not line.waiters:
                self._close(place, line)

    def _first(self, table: str, prefix: str, count: int) -> list[tuple[str, int]]:
        found = self._machine.tables.get(table)
        if found is None:
            return []
        return [(key, row.version) for key, row in islice(found.first_rows(prefix), count)]

    def _count(self, tenant: str, by: int) -> None:
        self.waiting += by
        self._of_tenant[tenant] += by
        if not self._of_tenant[tenant]:
            del self._of_tenant[tenant]

    def _open(self, place: _Place) -> _Line:
        line = self._lines.get(place)
        if line is None:
            line = self._lines[place] = _Line()
            table, prefix = place
            self._lengths.setdefault(table, Counter())[len(prefix)] += 1
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)
        return line

    def _close(self, place: _Place, line: _Line) -> None:
        if self._lines.get(place) is not line:
            return
        del self._lines[place]
        table, prefix = place
        lengths = self._lengths[table]
        lengths[len(prefix)] -= 1
        if not lengths[len(prefix)]:
            del lengths[len(prefix)]
        if not lengths:
            del self._lengths[table]

    def _look(self) -> None:
        """Give turns for rows that nobody has taken since the last look."""
        self._timer = None
        for (table, prefix), line in list(self._lines.items()):
            there = set(self._first(table, prefix, _LOOKED_ROWS))
            line.give(len(there & line.lying))
            line.lying = there
        if self._lines:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)
