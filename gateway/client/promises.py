"""Who waits for the results of writes: one caller, or one ``put_many``, whose parts become one result.

Owns: counting the rows of a ``put_many`` and joining contiguous parts. Must not know how rows travel. Pure but for the
promises that it resolves.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from oncegate.gateway.client.failures import OperationFailed, OutcomeUnknown, PartialFailure
from oncegate.gateway.client.results import ManyResult, RowsPart, WriteResult
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


class RowsCollector:
    """Collects what became of ``count`` rows and resolves ``promise`` once, with the last of them."""

    def __init__(self, client_id: ClientId, count: int, promise: Promise) -> None:
        self._client_id = client_id
        self._count = count
        self._left = count
        self._promise = promise
        self._parts: list[RowsPart] = []
        self._memory_ms = 0
        self._failure: OperationFailed | None = None
        self.done = promise.done

    def add(self, part: RowsPart, memory_ms: int) -> None:
        """Note that some rows are applied."""
        self._memory_ms = memory_ms
        parts = self._parts
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
        parts = sorted(self._parts, key=lambda part: part.first)
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
