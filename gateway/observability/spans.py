"""Spans of a node, sent to a collector over OTLP: what became of a request that its caller traces.

Owns: names and attributes of a node's spans, and their way out. Only a request whose ``traceparent`` says that it is
sampled has any. Spans wait in memory for the exporter's thread, 2048 at most; beyond that they are dropped: a collector
that is slow or gone costs requests nothing. The SDK's side is :mod:`oncegate.gateway.client.tracing`.

| span | kind | from | to |
|---|---|---|---|
| ``POST /v1/operations`` and the like | server | a node has read a request | its answer |
| ``oncegate log`` | internal | the leader proposes a traced command's entry | a majority has flushed it; applied |
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from oncegate.version import __version__

_SAMPLED = 0x01
_SEND_S = 2.0
"""How long the collector may take, also when the node stops."""
_CLOCK_SET_NS = 1_000_000_000
"""A wall clock that is further than this from the monotonic one was set: no thread waits for its time so long."""


class Spans:
    """Makes and sends the spans of one node; from any thread.

    Args:
        endpoint: of the collector, ``http://127.0.0.1:4318/v1/traces`` say.
        node: id of the node.
        cluster: id of its cluster.
    """

    def __init__(self, endpoint: str, node: str, cluster: str, *, processor: SpanProcessor | None = None) -> None:
        named = {"service.name": "oncegate", "service.namespace": cluster, "service.instance.id": node}
        self._provider = TracerProvider(resource=Resource.create({**named, "service.version": __version__}))
        self._provider.add_span_processor(processor or BatchSpanProcessor(OTLPSpanExporter(endpoint, timeout=_SEND_S)))
        self._tracer = self._provider.get_tracer("oncegate.node")
        self._epoch_ns = _epoch_ns()

    def request(self, traceparent: str, route: tuple[str, str], status: int, began_s: float, commit: str) -> None:
        """Tell of a request that was answered just now; ``commit``: its commit number, empty if it has none.

        ``began_s``: by the monotonic clock, as in :meth:`logged`.
        """
        method, path = route
        told: dict[str, str | int] = {
            "http.request.method": method,
            "http.route": path,
            "http.response.status_code": status,
        }
        if commit:
            told["oncegate.commit"] = int(commit)
        self._span(f"{method} {path}", SpanKind.SERVER, traceparent, began_s, told, failed=status >= 500)

    def logged(self, traceparents: Iterable[str], began_s: float, commands: int) -> None:
        """Tell of an entry that was applied just now; ``commands``: how many it has, traced or not."""
        for traceparent in dict.fromkeys(traceparents):
            self._span("oncegate log", SpanKind.INTERNAL, traceparent, began_s, {"oncegate.commands": commands})

    def close(self) -> None:
        """Send what waits; blocks for as long as the collector takes, some seconds at most."""
        self._provider.shutdown()

    def _span(
        self,
        name: str,
        kind: SpanKind,
        traceparent: str,
        began_s: float,
        told: Mapping[str, str | int],
        *,
        failed: bool = False,
    ) -> None:
        parent = _context(traceparent)
        if parent is None:
            return
        context = set_span_in_context(NonRecordingSpan(parent))
        # Wall time is read apart from what it is the time of: a thread that is interrupted between the two would move
        # a span before the one around it. All spans of a node stand on one reading, until the wall clock was set anew.
        epoch_ns = _epoch_ns()
        if abs(epoch_ns - self._epoch_ns) > _CLOCK_SET_NS:
            self._epoch_ns = epoch_ns
        span = self._tracer.start_span(name, context, kind, told, start_time=self._epoch_ns + int(began_s * 1e9))
        if failed:
            span.set_status(Status(StatusCode.ERROR))
        span.end(self._epoch_ns + time.monotonic_ns())


def _epoch_ns() -> int:
    """Return the wall time at which the monotonic clock read 0."""
    return time.time_ns() - time.monotonic_ns()


def _context(traceparent: str) -> SpanContext | None:
    """Return the caller's context, of a ``traceparent`` that was checked; None: it is not there, or not sampled."""
    if not traceparent:
        return None
    _, trace, span, flags = traceparent.split("-")
    if not int(flags, 16) & _SAMPLED:
        return None
    return SpanContext(int(trace, 16), int(span, 16), is_remote=True, trace_flags=TraceFlags(_SAMPLED))
