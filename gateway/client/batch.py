"""What travels in one request, operations or a range of rows on a stream table, and who waits for the results. Pure.

Owns: a batch's numbers, how a batch is cut in two, and its promises, also those of a ``put_many``, whose parts become
one result. Must not know asyncio, HTTP or verdicts. Formed by :mod:`oncegate.gateway.client.send_queue`; settled by
:mod:`oncegate.gateway.client.verdicts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from oncegate.gateway.client.failures import OperationFailed, OutcomeUnknown, PartialFailure
from oncegate.gateway.client.results import ManyResult, RowsPart, WriteResult
from oncegate.gateway.wire import Operation
from oncegate.rifl.errors import Code, Outcome
from oncegate.rifl.ids import ClientId


class Promise(Protocol):
    """Receives one result: an asyncio future, or one row of a group."""

    def done(self) -> bool:
        """Whether nobody waits any more: resolved, expired or cancelled."""

    def set_result(self, result: Any, /) -> None:
        """Give the result."""

    def set_exception(self, failure: BaseException, /) -> None:
        """Give the failure."""


class _Gone:
    """The promise of a write whose caller already has its result or error."""

    def done(self) -> bool:
        return True

    def ignore(self, *_: Any) -> None:
        pass

    set_result = set_exception = add = fail = ignore


GONE: Final[Any] = _Gone()
TOLD: Final[Any] = _Gone()
"""The same, where the caller was told that it surely was not applied: nobody will ask for it."""


class RowsCollector:
    """Collects what became of ``count`` rows and resolves ``promise`` once, with the last of them."""

    def __init__(self, client_id: ClientId, count: int, promise: Promise) -> None:
        self._client_id = client_id
        self._count = count
        self._left = count
        self._promise = promise
        self.parts: list[RowsPart] = []
        """What is applied."""
        self._memory_ms = 0
        self._failure: OperationFailed | None = None
        self.done = promise.done

    def add(self, part: RowsPart, memory_ms: int) -> None:
        """Note that some rows are applied."""
        self._memory_ms = memory_ms
        parts = self.parts
        last = parts[-1] if parts else None
        if (
            last is not None
            and last.last + 1 == part.first
            and last.commit + (part.first - last.first) == part.commit
            and last.replayed == part.replayed
        ):
            parts[-1] = RowsPart(last.first, part.last, last.commit, last.replayed)
        else:
            parts.append(part)
        self._settle(part.last - part.first + 1)

    def fail(self, count: int, failure: OperationFailed) -> None:
        """Note that ``count`` rows have no result."""
        known = self._failure
        if known is None or (failure.outcome is Outcome.UNKNOWN and known.outcome is not Outcome.UNKNOWN):
            self._failure = failure  # a doubt about one row is a doubt about the whole
        self._settle(count)

    def _settle(self, count: int) -> None:
        self._left -= count
        if self._left > 0 or self._promise.done():
            return
        parts = sorted(self.parts, key=lambda part: part.first)
        if self._failure is None:
            first, last, replayed = parts[0], parts[-1], all(part.replayed for part in parts)
            self._promise.set_result(
                ManyResult(
                    self._client_id, first.first, last.last, first.commit, replayed, self._memory_ms, tuple(parts)
                )
            )
        else:
            applied = sum(part.last - part.first + 1 for part in parts)
            self._promise.set_exception(self._partial(self._failure, applied) if applied else self._failure)

    def _partial(self, failure: OperationFailed, applied: int) -> PartialFailure:
        partial = PartialFailure(
            failure.code,
            failure.detail,
            request_id=failure.request_id,
            retry_after_ms=failure.retry_after_ms,
            outcome=failure.outcome,
            applied=applied,
            failed=self._count - applied,
        )
        if isinstance(partial, OutcomeUnknown) and isinstance(failure, OutcomeUnknown):
            partial.resolver = failure.resolver
        return partial


class RowPromise:
    """The promise of each row of a ``put_many`` that travels as operations; one object serves all rows."""

    def __init__(self, collector: RowsCollector) -> None:
        self._collector = collector
        self.done = collector.done

    def set_result(self, result: WriteResult, /) -> None:
        """Note one row's result."""
        if result.applied:
            part = RowsPart(result.sequence, result.sequence, result.commit, result.replayed)
            self._collector.add(part, result.memory_ms_left)
        else:
            self._collector.fail(1, OperationFailed(Code.CONFLICT, f"row refused: {result.code}"))

    def set_exception(self, failure: BaseException, /) -> None:
        """Note that one row has no result."""
        if not isinstance(failure, OperationFailed):
            failure = OperationFailed(Code.INTERNAL, str(failure))
        self._collector.fail(1, failure)


Rows: TypeAlias = dict[str, set[str]]
"""Rows by table."""


class Pending(msgspec.Struct):
    """One write that waits to be sent; its sequence number is 0 until then.

    Attributes:
        operation: what travels; the value is encoded already, so that later changes of it do not matter.
        text: the value as JSON if the write may be a row of a range, else None.
        promise: where its result goes.
        deadline: when its promise fails.
        position: what the outbox stores in the same transaction, or None.
        span: of the call, where it is traced.
        alone: whether it is a call of its own, and no row of a ``put_many``.
    """

    operation: Operation
    text: str | None
    promise: Promise
    deadline: float
    position: Any = None
    span: Any = None
    alone: bool = True

    @property
    def waits(self) -> bool:
        """Whether its fate has a receiver, or needs none: its caller has not gone away in doubt."""
        return self.promise is TOLD or not self.promise.done()


class PendingRows(msgspec.Struct):
    """Rows of one ``put_many`` on a stream table that travel as one range, from number ``first`` on (0: not yet)."""

    table: str
    keys: list[str]
    texts: list[str]
    promise: RowsCollector
    deadline: float
    span: Any = None
    first: int = 0


def rows_of(operation: Operation) -> list[tuple[str, str]]:
    """Return the rows that an operation touches or looks at, by table and key."""
    if operation.writes is msgspec.UNSET:
        return [(operation.table, operation.key)]
    rows = [(write.table, write.key) for write in operation.writes]
    of_conditions = [(one.table, one.key) for one in operation.conditions or ()]
    return rows + [(table, key) for table, key in of_conditions if isinstance(table, str) and isinstance(key, str)]


def rows_of_all(pendings: Sequence[Pending]) -> Rows:
    """Return the rows that some writes touch or look at."""
    tables = {pending.operation.table for pending in pendings}
    if len(tables) == 1 and "" not in tables:  # what is usual, in half of the time; a transaction names no table
        return {tables.pop(): {pending.operation.key for pending in pendings}}
    rows: Rows = {}
    for pending in pendings:
        for name, key in rows_of(pending.operation):
            table = rows.get(name)
            if table is None:
                rows[name] = {key}
            else:
                table.add(key)
    return rows


def share_a_row(some: Rows, others: Rows) -> bool:
    """Tell whether a row is in both."""
    for table, keys in some.items():
        other = others.get(table)
        if other is not None and not keys.isdisjoint(other):
            return True
    return False


class OperationsBatch(msgspec.Struct, eq=False):
    """Writes that travel in one ``POST /v1/operations``, in the order in which they were submitted."""

    pendings: list[Pending]
    sequences: Sequence[int]
    touched: Rows | None = None

    def __len__(self) -> int:
        return len(self.pendings)

    @property
    def deadline(self) -> float:
        """When the last of its promises fails."""
        return max([pending.deadline for pending in self.pendings])

    def keys(self) -> Rows:
        """Return the rows that it touches."""
        return rows_of_all(self.pendings) if self.touched is None else self.touched

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
    UNCLAIMED = 3
    """Spent: the server has its result, and nobody has received it."""


class BatchPlace(msgspec.Struct, eq=False):
    """The place of a range, shared by the parts it was cut into: its first number, and its rows without a fate."""

    first: int
    left: int
    fates: set[PlaceFate] = msgspec.field(default_factory=set)

    def note(self, count: int, fate: PlaceFate, *, waits: bool = True) -> None:
        """Note what became of ``count`` rows; ``waits``: no caller of theirs has given up before."""
        self.left -= count
        self.fates.add(fate if waits else PlaceFate.ABANDON)

    def fate(self) -> PlaceFate | None:
        """Return what becomes of the place, or None while rows of it wait."""
        if self.left > 0:
            return None
        for fate in (PlaceFate.ABANDON, PlaceFate.UNCLAIMED):
            if fate in self.fates:
                return fate
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
    touched: Rows | None = None

    def __len__(self) -> int:
        return len(self.keys_of_rows)

    @property
    def last(self) -> int:
        """Sequence number of the last row."""
        return self.first + len(self.keys_of_rows) - 1

    def keys(self) -> Rows:
        """Return the rows that it touches."""
        return {self.table: set(self.keys_of_rows)} if self.touched is None else self.touched

    @property
    def waits(self) -> bool:
        """Whether the callers of all rows still wait."""
        if self.rows is not None:
            return self.rows is TOLD or not self.rows.done()
        return all(pending.waits for pending in self.pendings or ())

    def part(self, first: int, last: int) -> RangeBatch:
        """Return the rows ``first``..``last`` as a batch of the same place."""
        rows = slice(first - self.first, last - self.first + 1)
        return msgspec.structs.replace(
            self,
            first=first,
            keys_of_rows=self.keys_of_rows[rows],
            texts=self.texts[rows],
            pendings=None if self.pendings is None else self.pendings[rows],
            touched=None,
        )

    def halves(self) -> tuple[RangeBatch, RangeBatch]:
        """Cut it in two, to be sent one after the other; numbers stay."""
        middle = self.first + len(self) // 2
        return self.part(self.first, middle - 1), self.part(middle, self.last)


Batch = OperationsBatch | RangeBatch
