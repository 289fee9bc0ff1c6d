"""What travels in one request: operations, or a range of rows on a stream table. Pure.

Owns: a batch's numbers and promises, and how a batch is cut in two. Must not know asyncio, HTTP or verdicts. Formed by
:mod:`oncegate.gateway.client.send_queue`; settled by :mod:`oncegate.gateway.client.verdicts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import msgspec

from oncegate.gateway.client.promises import Promise, RowsCollector
from oncegate.gateway.wire import Operation


class Pending(msgspec.Struct):
    """One write that waits to be sent; its sequence number is 0 until then.

    Attributes:
        operation: what travels; the value is encoded already, so that later changes of it do not matter.
        text: the value as JSON if the write may be a row of a range, else None.
        promise: where its result goes.
        deadline: when its promise fails.
        position: what the outbox stores in the same transaction, or None.
        span: of the call, where it is traced.
    """

    operation: Operation
    text: str | None
    promise: Promise
    deadline: float
    position: Any = None
    span: Any = None


class PendingRows(msgspec.Struct):
    """Rows of one ``put_many`` on a stream table that travel as one range."""

    table: str
    keys: list[str]
    texts: list[str]
    promise: RowsCollector
    deadline: float
    span: Any = None


class OperationsBatch(msgspec.Struct, eq=False):
    """Writes that travel in one ``POST /v1/operations``, in the order in which they were submitted."""

    pendings: list[Pending]
    sequences: Sequence[int]

    def __len__(self) -> int:
        return len(self.pendings)

    @property
    def deadline(self) -> float:
        """When the last of its promises fails."""
        return max([pending.deadline for pending in self.pendings])

    def keys(self) -> dict[str, set[str]]:
        """Return the rows that it touches, by table."""
        rows: dict[str, set[str]] = {}
        for pending in self.pendings:
            operation = pending.operation
            table = rows.get(operation.table)
            if table is None:
                rows[operation.table] = {operation.key}
            else:
                table.add(operation.key)
        return rows

    def halves(self) -> tuple[OperationsBatch, OperationsBatch]:
        """Cut it in two, to be sent one after the other; numbers stay."""
        middle = len(self.pendings) // 2
        return (
            OperationsBatch(self.pendings[:middle], self.sequences[:middle]),
            OperationsBatch(self.pendings[middle:], self.sequences[middle:]),
        )


class PlaceFate(Enum):
    """What becomes of a place (:mod:`oncegate.rifl.request_tracker`)."""

    COMPLETE = 0
    ABANDON = 1
    RELEASE = 2


class BatchPlace(msgspec.Struct, eq=False):
    """The place of a range, shared by the parts it was cut into: its first number, and its rows without a fate."""

    first: int
    left: int
    fates: set[PlaceFate] = msgspec.field(default_factory=set)

    def note(self, count: int, fate: PlaceFate) -> None:
        """Note what became of ``count`` rows."""
        self.left -= count
        self.fates.add(fate)

    def fate(self) -> PlaceFate | None:
        """Return what becomes of the place, or None while rows of it wait."""
        if self.left > 0:
            return None
        if PlaceFate.ABANDON in self.fates:
            return PlaceFate.ABANDON
        return PlaceFate.COMPLETE if PlaceFate.COMPLETE in self.fates else PlaceFate.RELEASE


class RangeBatch(msgspec.Struct, eq=False, kw_only=True):
    """Rows ``first``.. of one stream table that travel in one ``POST /v1/tables/{table}/ranges``.

    Attributes:
        place: of the whole range; parts of it share it.
        first: sequence number of the first row in this batch.
        table: where they go.
        keys_of_rows: one a row.
        texts: JSON values, one a row.
        deadline: when the last promise fails.
        pendings: one for each row, if the rows were written one by one; else None.
        rows: the promise for all rows, if they were written together; else None.
        span: of the call that wrote all rows together, where it is traced.
    """

    place: BatchPlace
    first: int
    table: str
    keys_of_rows: list[str]
    texts: list[str]
    deadline: float
    pendings: list[Pending] | None = None
    rows: RowsCollector | None = None
    span: Any = None

    def __len__(self) -> int:
        return len(self.keys_of_rows)

    @property
    def last(self) -> int:
        """Sequence number of the last row."""
        return self.first + len(self.keys_of_rows) - 1

    def keys(self) -> dict[str, set[str]]:
        """Return the rows that it touches, by table."""
        return {self.table: set(self.keys_of_rows)}

    def part(self, first: int, last: int) -> RangeBatch:
        """Return the rows ``first``..``last`` as a batch of the same place."""
        rows = slice(first - self.first, last - self.first + 1)
        return msgspec.structs.replace(
            self,
            first=first,
            keys_of_rows=self.keys_of_rows[rows],
            texts=self.texts[rows],
            pendings=None if self.pendings is None else self.pendings[rows],
        )

    def halves(self) -> tuple[RangeBatch, RangeBatch]:
        """Cut it in two, to be sent one after the other; numbers stay."""
        middle = self.first + len(self) // 2
        return self.part(self.first, middle - 1), self.part(middle, self.last)


Batch = OperationsBatch | RangeBatch
