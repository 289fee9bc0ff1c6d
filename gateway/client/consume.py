"""A consumer of a flow: its batches in order, fenced, its cursor moved once a batch is done.

Owns: one instance of a consumer, from attaching to the end. A batch is *done* when :meth:`Batch.done` is called, or
when the next one is asked for: in an ``async for``, when the body has run to its end. A body that raises, a ``break``
and a crash leave the cursor: the next instance gets the batch again. So whatever the body does is done at least once
for each batch, and the batch's number says what has been done already.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from uuid import uuid4

import msgspec

from oncegate.gateway.client.arguments import seconds
from oncegate.gateway.client.connection import Connection
from oncegate.gateway.client.event_stream import EventStream
from oncegate.gateway.client.items import read_batch
from oncegate.gateway.client.paths import consumer_path, flow_path
from oncegate.gateway.client.results import FlowItem


class _Attached(msgspec.Struct):
    fence: int
    cursor: int


class _Moved(msgspec.Struct):
    cursor: int


class _Sealed(msgspec.Struct):
    batch: int


_SEALED = msgspec.json.Decoder(_Sealed)


class Batch:
    """A batch of a flow: its number, and its items in commit order."""

    def __init__(self, consumption: Consumption, number: int, items: list[FlowItem]) -> None:
        self._consumption = consumption
        self.number = number
        self.items = items

    async def done(self) -> None:
        """Move the consumer's cursor to this batch; once, however often it is called.

        Raises:
            OperationFailed: FENCED if another instance has attached since: stop, it has the batch too.
        """
        await self._consumption.move(self.number)


class Consumption:
    """Batches of a flow, without end: ``async for batch in client.consume(flow, name)``.

    Attributes:
        cursor: the last batch that is done; None before the first was asked for.
    """

    def __init__(self, connection: Connection, flow: str, consumer: str, timeout_s: float | None) -> None:
        self.cursor: int | None = None
        self._connection = connection
        self._flow = flow
        self._path = consumer_path(flow, consumer)
        self._timeout_s = None if timeout_s is None else seconds(timeout_s)
        self._fence = 0

    async def __aiter__(self) -> AsyncGenerator[Batch, None]:
        sent = {"nonce": uuid4().hex}
        attached = await self._connection.send("POST", f"{self._path}/attach", _Attached, sent, self._timeout_s)
        self._fence, self.cursor = attached.fence, attached.cursor
        number = attached.cursor
        async with aclosing(self._sealed(number)) as sealed:
            async for last in sealed:
                while number < last:
                    number += 1
                    items = await read_batch(self._connection, self._flow, number, self._timeout_s)
                    yield Batch(self, number, items)
                    await self.move(number)

    async def move(self, number: int) -> None:
        """Move the cursor to a batch, unless it is there."""
        if self.cursor is None or number > self.cursor:
            body = {"batch": number, "fence": self._fence}
            moved = await self._connection.send("POST", f"{self._path}/cursor", _Moved, body, self._timeout_s)
            self.cursor = moved.cursor

    async def _sealed(self, after: int) -> AsyncGenerator[int, None]:
        """Yield numbers of sealed batches above ``after``, as they come."""
        told = after
        stream = EventStream(self._connection, lambda: f"{flow_path(self._flow)}/watch?after={told}", self._timeout_s)
        async with aclosing(stream.events()) as events:
            async for name, data in events:
                if name == "sealed":
                    told = max(told, _SEALED.decode(data).batch)
                    yield told
