"""A client of bare replicas that finds the leader by itself and records everything it is told.

It keeps a connection to every node. While nothing is acknowledged it asks all of them, every few milliseconds, who
leads, and takes the ready node of the highest term. A command whose answer did not come is given up as unknown and
never sent again: there is no de-duplication at this level, so a retry would be a second command.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Self

from oncegate.proof.check.proxy import Address
from tests.faults.harness.history import Acknowledged, History, ReadDone
from tests.faults.harness.raw_wire import Ask, Done, Frames, Propose, Read, Refused, Said, command

POLL_S: Final = 0.005
PATIENCE_S: Final = 0.05
"""Without an acknowledgement for so long the client looks for another leader."""
REDIAL_S: Final = 0.02


class NoAnswer(Exception):
    """The connection ended, or time is up."""


class RawClient:
    """Connections to every node, a load of commands, and reads. Belongs to one event loop."""

    def __init__(self, addresses: Mapping[str, Address]) -> None:
        self.history = History()
        self.addresses = dict(addresses)
        self.leader: str | None = None
        self.term = 0
        self._connections: dict[str, Frames] = {}
        self._numbers = itertools.count(1)
        self._asked: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        self._sent: dict[int, tuple[str, float, range]] = {}
        self._given_up: dict[int, tuple[str, float, range]] = {}
        self._free = 0
        self._size = 0
        self._loading = False
        self._pump_due = False
        self._idle = asyncio.Event()
        self._progress_at = time.monotonic()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._keep_connected(node)) for node in self.addresses]
        self._tasks.append(asyncio.create_task(self._find_leader()))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # The aborted connections are closed in the loop's next turn.

    # -- questions -------------------------------------------------------------------------------------

    async def ask(self, node: str, what: str, argument: Any = None, *, timeout_s: float = 30.0) -> Any:
        """Ask one node; raises :class:`NoAnswer`."""
        number = next(self._numbers)
        return (await self._request(node, Ask(number, what, argument), timeout_s)).body

    async def status(self, node: str, *, timeout_s: float = 30.0) -> dict[str, Any]:
        """What the node says of itself; raises :class:`NoAnswer`."""
        status: dict[str, Any] = await self.ask(node, "status", timeout_s=timeout_s)
        return status

    async def read(self, node: str, *, timeout_s: float = 30.0) -> int | Refused:
        """A linearizable read at ``node``, recorded if it is answered; raises :class:`NoAnswer`."""
        began = time.monotonic()
        answer = await self._request(node, Read(next(self._numbers)), timeout_s)
        if isinstance(answer, Refused):
            return answer
        self.history.reads.append(ReadDone(began, time.monotonic(), answer.index, node))
        index: int = answer.index
        return index

    async def _request(self, node: str, frame: Ask | Read, timeout_s: float) -> Any:
        connection = self._connections.get(node)
        if connection is None:
            raise NoAnswer(f"{node} is not connected")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[frame.number] = (node, future)
        connection.send(frame)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise NoAnswer(f"{node} does not answer") from None
        finally:
            del self._asked[frame.number]

    # -- load ------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def loaded(self, outstanding: int, *, size: int = 200) -> AsyncIterator[None]:
        """Keep so many commands outstanding inside the block; at its end wait for those that are open."""
        self._loading, self._free, self._size = True, outstanding, size
        self._progress_at = time.monotonic()
        self._idle.clear()
        self._pump_soon()
        try:
            yield
        finally:
            self._loading, self._free = False, 0
            if self._sent:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(10):
                        await self._idle.wait()
            for number in list(self._sent):
                self._give_up(number)

    def _pump_soon(self) -> None:
        if not self._pump_due:
            self._pump_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_due = False
        connection = self._connections.get(self.leader or "")
        if connection is None or not self._free or not self._loading:
            return
        first = self.history.issued + 1
        ids = range(first, first + self._free)
        self.history.issued += self._free
        self._free = 0
        number = next(self._numbers)
        self._sent[number] = (self.leader or "", time.monotonic(), ids)
        connection.send(Propose(number, [command(one, self._size) for one in ids]))

    def _ended(self, ids: range) -> None:
        if self._loading:
            self._free += len(ids)
            self._pump_soon()
        elif not self._sent:
            self._idle.set()

    def _give_up(self, number: int) -> None:
        sent = self._sent.pop(number)
        self._given_up[number] = sent
        self.history.unknown.append(sent[2])
        self._ended(sent[2])

    # -- answers ---------------------------------------------------------------------------------------

    def _received(self, connection: Frames, frame: Done | Refused | Said) -> None:
        asked = self._asked.get(frame.number)
        if asked is not None:
            if not asked[1].done():
                asked[1].set_result(frame)
            return
        sent = self._sent.pop(frame.number, None)
        on_time = sent is not None
        sent = sent or self._given_up.pop(frame.number, None)
        if sent is None:
            return
        node, sent_at, ids = sent
        match frame:
            case Done(_, index):
                now = time.monotonic()
                self.history.acknowledged.append(Acknowledged(sent_at, now, index, ids.start, len(ids)))
                if on_time:
                    self._progress_at = now
            case Refused(_, code, outcome):
                self.history.refusals[code] += len(ids)
                if outcome == "not_applied":
                    self.history.refused.append(ids)
                elif on_time:
                    self.history.unknown.append(ids)
                if node == self.leader and code != "OVERLOADED":
                    self.leader = None
            case Said():
                pass
        if on_time:
            if isinstance(frame, Refused) and frame.code == "OVERLOADED":
                asyncio.get_running_loop().call_later(0.01, self._ended, ids)
            else:
                self._ended(ids)

    # -- connections -----------------------------------------------------------------------------------

    async def _keep_connected(self, node: str) -> None:
        loop = asyncio.get_running_loop()
        while True:
            lost = asyncio.Event()
            make = functools.partial(Frames, self._received, functools.partial(_set, lost))
            try:
                _, connection = await loop.create_connection(make, *self.addresses[node])
            except OSError:
                await asyncio.sleep(REDIAL_S)
                continue
            self._connections[node] = connection
            try:
                await lost.wait()
            finally:
                connection.abort()
                del self._connections[node]
                self._lost(node)

    def _lost(self, node: str) -> None:
        if self.leader == node:
            self.leader = None
        for asked, future in list(self._asked.values()):
            if asked == node and not future.done():
                future.set_exception(NoAnswer(f"{node} closed the connection"))
        self._give_up_sent_to(node)

    def _give_up_sent_to(self, node: str) -> None:
        for number, (where, _, _) in list(self._sent.items()):
            if where == node:
                self._give_up(number)

    async def _find_leader(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            stuck = self._loading and time.monotonic() - self._progress_at > PATIENCE_S
            if self.leader is not None and not stuck:
                continue
            await asyncio.gather(*(self._look_at(node) for node in list(self._connections)))

    async def _look_at(self, node: str) -> None:
        try:
            status = await self.status(node, timeout_s=10 * POLL_S)
        except NoAnswer:
            return
        if status["ready"] and (status["term"] > self.term or (self.leader is None and status["term"] == self.term)):
            before, self.leader, self.term = self.leader, node, status["term"]
            if before is not None:
                self._give_up_sent_to(before)
            self._pump_soon()


def _set(event: asyncio.Event, _: Frames) -> None:
    event.set()
