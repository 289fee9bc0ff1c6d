"""A stream of server-sent events that goes on at another node when one fails.

Owns: the connection of a stream, its form (one event a blank line), where a stream is opened and when it is given up.
What the events mean is for whoever reads them: :mod:`oncegate.gateway.client.watch`,
:mod:`oncegate.gateway.client.consume`.

Followers go first: the leader has the writes to order, and what a follower tells comes some milliseconds later. A
leader that is asked nevertheless may send the stream elsewhere, once: if no other node serves it, the leader does.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final, NamedTuple

import aiohttp
import msgspec

from oncegate.gateway.client.arguments import seconds
from oncegate.gateway.client.connection import Connection
from oncegate.gateway.client.failures import UNREADABLE, DeadlineExceeded, OperationFailed, known_code, known_outcome
from oncegate.gateway.wire import H_ELSEWHERE, H_LEADER, Problem
from oncegate.rifl.errors import Code, Outcome

LOG = logging.getLogger("oncegate.client")
SILENCE_S: Final = 75.0
"""A node tells something every 30 s; one that has told nothing for so long is taken for gone."""
EVENT_BYTES_MAX: Final = 16 * 2**20
"""A transaction has 4 MiB at most."""
_PROBLEM: Final = msgspec.json.Decoder(Problem)


class Event(NamedTuple):
    """One event: its name and its data."""

    name: str
    data: bytes


class _Lost(Exception):
    """The stream has ended; another node, or the same one later, may go on."""


class EventStream:
    """Events of one path, from one node after the other.

    Args:
        connection: of the client.
        path: returns path and query of what is still asked for, each time the stream is opened.
        timeout_s: how long no node may answer before the stream is given up.

    Raises:
        OperationFailed: BAD_REQUEST for a time that is none.
    """

    def __init__(self, connection: Connection, path: Callable[[], str], timeout_s: float | None) -> None:
        self._connection = connection
        self._path = path
        self._timeout_s = connection.timeout_s if timeout_s is None else seconds(timeout_s)
        self._exceeded: dict[str, OperationFailed] = {}
        """What the nodes have said that do not keep what is asked for."""
        self._sent_away: set[str] = set()
        """The nodes that have sent the stream elsewhere since one has told anything."""

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield events without end, each as it comes; an event ``end`` is acted on here.

        Raises:
            OperationFailed: OVERLOADED, at once, where the client follows as many streams as it may; a final refusal;
                RETENTION_EXCEEDED once every node has said so.
            DeadlineExceeded: no node has answered for ``timeout_s``.
        """
        with self._connection.stream_place():
            async with aclosing(self._from_each()) as events:
                async for event in events:
                    yield event

    async def _from_each(self) -> AsyncGenerator[Event, None]:
        connection = self._connection
        router, clock, tuning = connection.router, connection.courier.clock, connection.tuning
        deadline, pause_s = clock() + self._timeout_s, tuning.backoff_first_s
        while True:
            endpoint, has_told = self._pick(), False
            try:
                async with aclosing(self._of(endpoint)) as events:
                    async for event in events:
                        self._exceeded.clear()
                        self._sent_away.clear()
                        has_told = True
                        yield event
            except _Lost as lost:
                LOG.debug("stream lost: endpoint=%s reason=%s", endpoint, lost)
                if has_told:
                    # It was there until now, however long ago its last event is: nothing may have changed since, or
                    # the reader was at work. The time in which no node answers begins here.
                    deadline, pause_s = clock() + self._timeout_s, tuning.backoff_first_s
                if clock() + pause_s >= deadline:
                    detail = f"no node has told anything for {self._timeout_s:g} s; last: {endpoint}: {lost}"
                    raise DeadlineExceeded(Code.TIMEOUT, detail, outcome=Outcome.NOT_APPLIED) from lost.__cause__
                if not router.rested(clock()) or endpoint in self._exceeded:
                    await asyncio.sleep(random.uniform(0, pause_s))
                    pause_s = min(2 * pause_s, tuning.backoff_cap_s)

    def _pick(self) -> str:
        router, now = self._connection.router, self._connection.courier.clock()
        last_resort = {router.leader, *self._sent_away}
        for avoided in (last_resort, ()):
            for _ in router.endpoints:
                endpoint = router.pick(now, anywhere=True)
                if endpoint not in self._exceeded and endpoint not in avoided:
                    return endpoint
        return next((one for one in router.endpoints if one not in self._exceeded), endpoint)

    def _may_go_elsewhere(self, endpoint: str) -> bool:
        """Whether there are others to ask, so that this node may send the stream there."""
        others = [one for one in self._connection.router.endpoints if one != endpoint and one not in self._exceeded]
        return bool(others) and endpoint not in self._sent_away

    async def _of(self, endpoint: str) -> AsyncGenerator[Event, None]:
        """Yield the events of one node; raises _Lost when they end, OperationFailed when that is final."""
        connection = self._connection
        router, courier = connection.router, connection.courier
        if connection.http is None or connection.http.closed:
            raise OperationFailed(Code.CONFLICT, "the client is closed", outcome=Outcome.NOT_APPLIED)
        sent = {**connection.headers, "Accept": "text/event-stream, application/json"}
        if self._may_go_elsewhere(endpoint):
            sent[H_ELSEWHERE] = "1"
        try:
            async with asyncio.timeout(connection.tuning.attempt_timeout_s):
                response = await courier.open_stream(endpoint, self._path(), sent)
        except (aiohttp.ClientError, OSError, TimeoutError) as failed:
            router.unreachable(endpoint, courier.clock(), silent=isinstance(failed, TimeoutError))
            raise _Lost("no connection") from failed
        connection.streams.add(response)
        async with response:
            try:
                if response.status != 200:
                    self._refused(endpoint, await response.read(), response.headers.get(H_LEADER))
                router.answered(endpoint, response.headers.get(H_LEADER), courier.clock())
                buffer = bytearray()
                while True:
                    async with asyncio.timeout(SILENCE_S):
                        chunk = await response.content.readany()
                    if not chunk:
                        break
                    buffer += chunk
                    *whole, rest = buffer.split(b"\n\n")
                    buffer = bytearray(rest)
                    for text in whole:
                        event = _event(bytes(text))
                        if event.name == "end":
                            self._refused(endpoint, event.data)
                        yield event
                    if len(buffer) > EVENT_BYTES_MAX:
                        router.unreachable(endpoint, courier.clock())  # others first, and a pause where there are none
                        raise _Lost(f"an event of more than {EVENT_BYTES_MAX} bytes")
            except (aiohttp.ClientError, OSError, TimeoutError) as failed:
                router.unreachable(endpoint, courier.clock(), silent=isinstance(failed, TimeoutError))
                raise _Lost("connection lost") from failed
            finally:
                connection.streams.discard(response)
        router.refused(endpoint, None, courier.clock())
        raise _Lost("the node has ended it")

    def _refused(self, endpoint: str, body: bytes, leader: str | None = None) -> None:
        """Raise what a node's refusal means; ``leader``: whom it names."""
        router, now = self._connection.router, self._connection.courier.clock()
        try:
            problem = _PROBLEM.decode(body)
        except UNREADABLE as malformed:
            router.unreachable(endpoint, now)
            raise _Lost(f"an answer outside the contract: {malformed}") from malformed
        code = known_code(problem.code)
        final = OperationFailed(code, problem.detail or problem.title, outcome=known_outcome(problem.outcome))
        if code is Code.RETENTION_EXCEEDED:
            self._exceeded[endpoint] = final
            if all(one in self._exceeded for one in router.endpoints):
                raise final
            raise _Lost(problem.detail)
        if not problem.retryable:
            raise final
        if problem.elsewhere:
            self._sent_away.add(endpoint)
            router.answered(endpoint, leader, now)  # it is well
            raise _Lost(problem.detail)
        router.refused(endpoint, None, now)
        raise _Lost(f"{problem.code}: {problem.detail}")


def _event(text: bytes) -> Event:
    name, data = "message", b""
    for line in text.split(b"\n"):
        field, _, value = line.partition(b": ")
        if field == b"event":
            name = value.decode()
        elif field == b"data":
            data = value
    return Event(name, data)
