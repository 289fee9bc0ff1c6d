"""What travels in one request: operations, or a range of rows on a stream table. Pure.

Owns: a batch's numbers and promises, and how a batch is cut in two. Must not know asyncio, HTTP or verdicts. Formed by
:mod:`oncegate.gateway.client.send_queue`; settled by :mod:`oncegate.gateway.client.verdicts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, Protocol

import msgspec

from oncegate.gateway.client.failures import OperationFailed
from oncegate.gateway.client.results import RowsPart
from oncegate.gateway.wire import Operation


class Promise(Protocol):
    """Receives one result: an asyncio future, or one row of a group."""

    def done(self) -> bool:
        """Whether nobody waits any more: resolved, expired or cancelled."""

    def set_result(self, result: Any, /) -> None:
        """Give the result."""

    def set_exception(self, failure: BaseException, /) -> None:
        """Give the failure."""


class RowsPromise(Protocol):
    """Where the results of a ``put_many`` go, part by part."""

    def done(self) -> bool:
        """Whether nobody waits any more."""

    def add(self, part: RowsPart, memory_ms: int, /) -> None:
        """Give the result of some rows."""

    def fail(self, count: int, failure: OperationFailed, /) -> None:
        """Give the failure of ``count`` rows."""


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
    promise: RowsPromise
    deadline: float
    span: Any = None


class _Gone:
    """The promise of a write whose caller already has its result or error."""

    def done(self) -> bool:
        return True

    def set_result(self, result: Any, /) -> None:
        pass

    def set_exception(self, failure: BaseException, /) -> None:
        pass

    def add(self, part: RowsPart, memory_ms: int, /) -> None:
        pass

    def fail(self, count: int, failure: OperationFailed, /) -> None:
        pass


GONE: Final = _Gone()


class OperationsBatch:
    """Writes that travel in one ``POST /v1/operations``, in the order in which they were submitted."""

    __slots__ = ("pendings", "sequences")

    def __init__(self, pendings: list[Pending], sequences: Sequence[int]) -> None:
        self.pendings = pendings
        self.sequences = sequences

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


class BatchPlace:
    """The place of a range, shared by the parts it was cut into.

    Args:
        first: the range's first sequence number.
        length: its rows.
    """

    __slots__ = ("_fates", "_left", "first")

    def __init__(self, first: int, length: int) -> None:
        self.first = first
        self._left = length
        self._fates: set[PlaceFate] = set()

    def note(self, count: int, fate: PlaceFate) -> None:
        """Note what became of ``count`` rows."""
        self._left -= count
        self._fates.add(fate)

    def fate(self) -> PlaceFate | None:
        """Return what becomes of the place, or None while rows of it wait."""
        if self._left > 0:
            return None
        if PlaceFate.ABANDON in self._fates:
            return PlaceFate.ABANDON
        return PlaceFate.COMPLETE if PlaceFate.COMPLETE in self._fates else PlaceFate.RELEASE


class RangeBatch:
    """Rows ``first``.. of one stream table that travel in one ``POST /v1/tables/{table}/ranges``.

    Args:
        place: of the whole range; parts of it share it.
        first: sequence number of the first row in this batch.
        table: where they go.
        keys: one a row.
        texts: JSON values, one a row.
        pendings: one for each row, if the rows were written one by one; else None.
        rows: the promise for all rows, if they were written together; else None.
        deadline: when the last promise fails.
        span: of the call that wrote all rows together, where it is traced.
    """

    __slots__ = ("deadline", "first", "keys_of_rows", "pendings", "place", "rows", "span", "table", "texts")

    def __init__(
        self,
        place: BatchPlace,
        first: int,
        table: str,
        keys: list[str],
        texts: list[str],
        *,
        pendings: list[Pending] | None,
        rows: RowsPromise | None,
        deadline: float,
        span: Any = None,
    ) -> None:
        self.span = span
        self.place = place
        self.first = first
        self.table = table
        self.keys_of_rows = keys
        self.texts = texts
        self.pendings = pendings
        self.rows = rows
        self.deadline = deadline

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
        low, high = first - self.first, last - self.first + 1
        return RangeBatch(
            self.place,
            first,
            self.table,
            self.keys_of_rows[low:high],
            self.texts[low:high],
            pendings=None if self.pendings is None else self.pendings[low:high],
            rows=self.rows,
            deadline=self.deadline,
            span=self.span,
        )

    def halves(self) -> tuple[RangeBatch, RangeBatch]:
        """Cut it in two, to be sent one after the other; numbers stay."""
        middle = self.first + len(self) // 2
        return self.part(self.first, middle - 1), self.part(middle, self.last)


Batch = OperationsBatch | RangeBatch
