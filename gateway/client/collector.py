"""The one result of a ``put_many``, put together from its parts. Pure but for the promise it resolves.

Owns: counting rows, joining contiguous parts. Must not know how rows travel.
"""

from __future__ import annotations

from typing import Any

from oncegate.gateway.client.batch import Promise
from oncegate.gateway.client.failures import OperationFailed, OutcomeUnknown, PartialFailure
from oncegate.gateway.client.results import ManyResult, RowsPart, WriteResult
from oncegate.rifl.errors import Code, Outcome
from oncegate.rifl.ids import ClientId


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

    def done(self) -> bool:
        """Whether nobody waits any more."""
        return self._promise.done()

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
        applied = sum(part.last - part.first + 1 for part in parts)
        failure = self._failure
        if failure is not None:
            if applied:
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
                failure = partial
            self._promise.set_exception(failure)
            return
        self._promise.set_result(
            ManyResult(
                self._client_id,
                parts[0].first,
                parts[-1].last,
                parts[0].commit,
                all(part.replayed for part in parts),
                self._memory_ms,
                tuple(parts),
            )
        )


class RowPromise:
    """The promise of each row of a ``put_many`` that travels as operations; one object serves all rows."""

    def __init__(self, collector: RowsCollector) -> None:
        self._collector = collector

    def done(self) -> bool:
        """Whether nobody waits any more."""
        return self._collector.done()

    def set_result(self, result: Any) -> None:
        """Note one row's result."""
        verdict: WriteResult = result
        if verdict.applied:
            part = RowsPart(verdict.sequence, verdict.sequence, verdict.commit, verdict.replayed)
            self._collector.add(part, verdict.memory_ms_left)
        else:
            self._collector.fail(1, OperationFailed(Code.CONFLICT, f"row refused: {verdict.code}"))

    def set_exception(self, failure: BaseException) -> None:
        """Note that one row has no result."""
        if not isinstance(failure, OperationFailed):
            failure = OperationFailed(Code.INTERNAL, str(failure))
        self._collector.fail(1, failure)
