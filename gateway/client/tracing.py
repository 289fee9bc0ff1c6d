"""Spans of OpenTelemetry around calls, and ``traceparent`` on the requests that carry them.

Owns: names and attributes of spans. Imports ``opentelemetry`` only when a client is made that traces: see
:func:`tracing`. Must not know when anything travels.

| span | kind | from | to |
|---|---|---|---|
| ``oncegate put``, ``oncegate get`` … | client | the call | its result; one a write or read |
| ``oncegate send`` | client | a request leaves | its last attempt has ended |

A request that carries one write is a child of that write's span; one that carries many is a trace of its own with a
link to each of them, for a batch has no single parent. Its context travels as ``traceparent``.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from oncegate.gateway.client.batch import Pending, PendingRows, RangeBatch
from oncegate.gateway.client.failures import OperationFailed
from oncegate.gateway.client.results import ManyResult, WriteResult
from oncegate.rifl.errors import Code, OncegateError, Outcome
from oncegate.version import installing

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from oncegate.gateway.client.batch_call import BatchCall
    from oncegate.gateway.client.courier import Call


def tracing(wanted: bool | None) -> Tracing | None:
    """Return the maker of spans, or None.

    Args:
        wanted: True: yes; False: no; None: if the application has imported ``opentelemetry.trace`` by now.

    Raises:
        OperationFailed: BAD_REQUEST if it is wanted and not installed.
    """
    if wanted is None:
        wanted = "opentelemetry.trace" in sys.modules
    if not wanted:
        return None
    try:
        return Tracing()
    except ImportError as missing:
        detail = f"tracing needs OpenTelemetry: {installing('otel')}"
        raise OperationFailed(Code.BAD_REQUEST, detail, outcome=Outcome.NOT_APPLIED) from missing


class Tracing:
    """Makes the spans of one client with the application's tracer provider."""

    def __init__(self) -> None:
        from opentelemetry import context, propagate, trace

        self._trace = trace
        self._inject = propagate.inject
        self._nothing = context.Context()
        self._tracer = trace.get_tracer("oncegate.client")

    def write(self, pending: Pending) -> None:
        """Span a write from now to its result."""
        operation = pending.operation
        pending.span = self._start(operation.op, operation.table)
        future: asyncio.Future[WriteResult] = pending.promise  # type: ignore[assignment]
        future.add_done_callback(partial(_end, pending.span))

    def rows(self, table: str, pendings: list[Pending | PendingRows], future: asyncio.Future[ManyResult]) -> None:
        """Span a ``put_many`` from now to its result."""
        span = self._start("put_many", table)
        for pending in pendings:
            pending.span = span
        future.add_done_callback(partial(_end, span))

    @contextmanager
    def request(self, call: BatchCall[Any]) -> Iterator[None]:
        """Span a request with all its attempts, and give it the context to carry."""
        batch = call.batch
        found = [pending.span for pending in batch.pendings or ()]
        if isinstance(batch, RangeBatch):
            found.append(batch.span)
        spans = {id(span): span for span in found if span is not None}
        contexts = [span.get_span_context() for span in spans.values()]
        parent = self._nothing
        links = []
        if len(contexts) == 1:
            parent = self._trace.set_span_in_context(next(iter(spans.values())), parent)
        else:
            links = [self._trace.Link(context) for context in contexts]
        with self._tracer.start_as_current_span(
            "oncegate send",
            context=parent,
            kind=self._trace.SpanKind.CLIENT,
            links=links,
            attributes={"http.request.method": call.method, "url.path": call.path, "oncegate.writes": len(batch)},
        ) as span:
            carried: dict[str, str] = {}
            self._inject(carried)
            call.trace = carried
            yield
            span.set_attribute("oncegate.doubtful", call.ambiguous)

    @contextmanager
    def call(self, call: Call[Any]) -> Iterator[None]:
        """Span a call that is no write."""
        with self._tracer.start_as_current_span(
            f"oncegate {call.method}",
            kind=self._trace.SpanKind.CLIENT,
            attributes={"http.request.method": call.method, "url.path": call.path.partition("?")[0]},
            set_status_on_exception=True,
        ) as span:
            carried: dict[str, str] = {}
            self._inject(carried)
            call.trace = carried
            try:
                yield
            except OncegateError as failure:
                span.set_attribute("oncegate.code", str(failure.code))
                raise

    def _start(self, operation: str, table: str) -> Span:
        return self._tracer.start_span(
            f"oncegate {operation}",
            kind=self._trace.SpanKind.CLIENT,
            attributes={"db.system.name": "oncegate", "db.operation.name": operation, "db.collection.name": table},
        )


def _end(span: Span, done: asyncio.Future[Any]) -> None:
    from opentelemetry.trace import StatusCode

    if done.cancelled():
        span.set_status(StatusCode.ERROR, "cancelled")
    elif (failure := done.exception()) is not None:
        span.set_attributes(_told(failure))
        span.set_status(StatusCode.ERROR, str(failure))
    else:
        span.set_attributes(_result(done.result()))
    span.end()


def _told(failure: BaseException) -> Mapping[str, str]:
    if not isinstance(failure, OperationFailed):
        return {}
    told = {"oncegate.code": str(failure.code), "oncegate.outcome": str(failure.outcome)}
    if failure.request_id is not None:
        told["oncegate.request_id"] = str(failure.request_id)
    return told


def _result(result: WriteResult | ManyResult) -> Mapping[str, str | int | bool]:
    told: dict[str, str | int | bool] = {"oncegate.commit": result.commit, "oncegate.replayed": result.replayed}
    if isinstance(result, WriteResult):
        told["oncegate.request_id"] = str(result.request_id)
        told["oncegate.applied"] = result.applied
    return told
