"""The items that a flow retains, in commit order, read by anyone: no consumer, no cursor, nothing moves.

Owns: where a reading begins, and going from batch to batch. A batch is a file that never changes, so it is read at any
time and by any number of readers, beside the writes. A reader that keeps a cursor in the cluster is
:mod:`oncegate.gateway.client.consume`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

import msgspec

from oncegate.gateway.client.connection import Connection
from oncegate.gateway.client.courier import Call
from oncegate.gateway.client.failures import OperationFailed
from oncegate.gateway.client.paths import flow_path
from oncegate.gateway.client.results import FlowInfo, FlowItem
from oncegate.rifl.errors import Code

_LINES = "application/x-ndjson"
_ITEM = msgspec.json.Decoder(FlowItem)


class _BatchCall(Call[list[FlowItem]]):
    """Gets a batch as lines of JSON."""

    direct = False
    __slots__ = ()

    def accept(self, status: int, headers: Mapping[str, str], payload: bytes) -> list[FlowItem]:
        return _ITEM.decode_lines(payload)


async def read_batch(connection: Connection, flow: str, number: int, timeout_s: float | None) -> list[FlowItem]:
    """Return the items of a sealed batch, at least one; raises RETENTION_EXCEEDED with the oldest if it was dropped."""
    headers = {**connection.headers, "Accept": _LINES}
    path = f"{flow_path(flow)}/batches/{number}"
    return await connection.perform(_BatchCall("GET", path, deadline=connection.deadline(timeout_s), headers=headers))


class Items:
    """The items of a flow's sealed batches: ``async for item in client.items(...)``.

    Attributes:
        batch: number of the batch of the newest item; None before the first. A later reading goes on behind it.
    """

    def __init__(
        self,
        connection: Connection,
        flow: str,
        from_batch: int | None,
        from_commit: int | None,
        timeout_s: float | None,
    ) -> None:
        self.batch: int | None = None
        self._connection = connection
        self._flow = flow
        self._from_batch = from_batch
        self._above = -1 if from_commit is None else from_commit
        self._timeout_s = timeout_s

    async def __aiter__(self) -> AsyncGenerator[FlowItem, None]:
        async with aclosing(self.batches()) as batches:
            async for items in batches:
                for item in items:
                    yield item

    async def batches(self) -> AsyncGenerator[Sequence[FlowItem], None]:
        """Yield the same items, those of a batch at once."""
        told = await self._connection.ask(flow_path(self._flow), FlowInfo, timeout_s=self._timeout_s)
        first = await self._found(told) if self._from_batch is None else self._from_batch
        for number in range(first, told.last_batch + 1):
            items = await self._read(number)
            self.batch = number
            yield [item for item in items if item.commit > self._above]

    async def _found(self, told: FlowInfo) -> int:
        """Return the oldest batch with an item above the commit number; by halves, as nobody else knows it."""
        low, high = told.first_batch, told.last_batch + 1
        if self._above < 0 or not told.items:
            return low
        kept = (await self._read(low))[0].commit if low < high else None
        if low > 1 and (kept is None or kept > self._above + 1):
            begins = "none is kept" if kept is None else f"the first that is kept has {kept}, in batch {low}"
            detail = f"{self._flow}: items above commit number {self._above} may have been dropped; {begins}"
            raise OperationFailed(Code.RETENTION_EXCEEDED, detail)
        while low < high:
            middle = (low + high) // 2
            if (await self._read(middle))[-1].commit > self._above:
                high = middle
            else:
                low = middle + 1
        return low

    async def _read(self, number: int) -> list[FlowItem]:
        return await read_batch(self._connection, self._flow, number, self._timeout_s)
