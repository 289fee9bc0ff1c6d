"""The way of a job's spans to the collector: a bounded queue, a thread, and a bound on what a task waits.

Owns: what waits, what is dropped, and how long a task may wait for what it told. Must not know what spans say. Read
next: `tracing`.

Whoever ends a span never waits for it. But Spark kills its Python workers as soon as a job is done, and what waits in
one is gone with it; so a task waits at its end until the collector has what it told, for as long as its allowance
lasts: a second at once, and over time a hundredth of the process's life. A collector that is slow, silent or gone
costs a job no more than that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from random import SystemRandom
from socket import gethostname
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

_log = logging.getLogger(__name__)

WAITING_MAX: Final = 2_048
"""Spans that wait for the collector in one process; those beyond are dropped."""
_SENT_AT_ONCE_MAX: Final = 512
_SEND_S: Final = 2.0
"""How long the collector may take for one request; the thread waits, nobody else."""
ALLOWANCE_S_MAX: Final = 1.0
ALLOWANCE_SHARE: Final = 0.01
"""Of the life of the process that may be spent waiting."""


class Allowance:
    """How long this process may still wait; pure.

    Args:
        now_s: of any clock that never goes back.
    """

    def __init__(self, now_s: float) -> None:
        self._left_s, self._since_s = ALLOWANCE_S_MAX, now_s

    def granted_s(self, now_s: float) -> float:
        """Return how long a wait may take that begins now."""
        return min(self._left_s + (now_s - self._since_s) * ALLOWANCE_SHARE, ALLOWANCE_S_MAX)

    def spend(self, began_s: float, now_s: float) -> None:
        """Count a wait that is over."""
        self._left_s, self._since_s = max(self.granted_s(began_s) - (now_s - began_s), 0.0), now_s


class SpanSender(SpanProcessor):
    """Sends spans from a thread of its own, which lives as long as the process; from any thread.

    Args:
        exporter: it gives up after a while of its own.
        waiting_max: spans that wait, at most.
    """

    def __init__(self, exporter: SpanExporter, waiting_max: int = WAITING_MAX) -> None:
        self._exporter, self._waiting_max = exporter, waiting_max
        self._changed = threading.Condition()
        self._waiting: deque[ReadableSpan] = deque()
        self._sending = 0
        self._is_due = False
        self._dropped = 0
        self._allowance = Allowance(time.monotonic())
        threading.Thread(target=self._run, name="oncegate-spans", daemon=True).start()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing: a span is sent when it has ended."""

    def on_end(self, span: ReadableSpan) -> None:
        """Take a span; it leaves with the next `send`."""
        with self._changed:
            if len(self._waiting) < self._waiting_max:
                self._waiting.append(span)
            else:
                self._dropped += 1

    def send(self) -> None:
        """Let the thread send what waits; returns at once."""
        with self._changed:
            self._is_due = True
            self._changed.notify_all()

    def settle(self) -> bool:
        """Wait until nothing waits, or the allowance is spent; returns whether nothing waits."""
        with self._changed:
            began_s = time.monotonic()
            granted_s = self._allowance.granted_s(began_s)
            settled = self._changed.wait_for(lambda: not self._waiting and not self._sending, granted_s)
            self._allowance.spend(began_s, time.monotonic())
            return settled

    def take_dropped(self) -> int:
        """Return how many spans were dropped since the last call, for lack of room or because the collector failed."""
        with self._changed:
            dropped, self._dropped = self._dropped, 0
            return dropped

    def shutdown(self) -> None:
        """Do nothing: the thread ends with the process."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See `settle`, whose allowance bounds it."""
        self.send()
        return self.settle()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_due and bool(self._waiting))
                spans = [self._waiting.popleft() for _ in range(min(len(self._waiting), _SENT_AT_ONCE_MAX))]
                self._is_due = bool(self._waiting)
                self._sending = len(spans)
            sent = self._sent(spans)
            with self._changed:
                self._dropped += 0 if sent else len(spans)
                self._sending = 0
                self._changed.notify_all()

    def _sent(self, spans: list[ReadableSpan]) -> bool:
        try:
            return self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001 - whatever an exporter makes of a broken answer, the thread goes on
            _log.warning("%d spans are lost: %s", len(spans), error)
            return False


class _Ids(IdGenerator):
    """Numbers that a derivation which seeds `random` does not repeat."""

    _random = SystemRandom()

    def generate_span_id(self) -> int:
        return self._random.randrange(1, 1 << 64)

    def generate_trace_id(self) -> int:
        return self._random.randrange(1, 1 << 128)


@cache
def of_process(pid: int, endpoint: str, cluster: str) -> tuple[TracerProvider, SpanSender]:
    """Return what makes and sends the spans of this process; a fork gets its own, for threads do not come along."""
    named = {
        "service.name": "oncegate-job",
        "service.namespace": cluster,
        "service.instance.id": f"{gethostname()}-{pid}",
    }
    with suppress(PackageNotFoundError):  # sent along in a zip file
        named["service.version"] = version("oncegate")
    # Callers have decided what is sampled; no variable of the executor's environment does it again.
    provider = TracerProvider(ALWAYS_ON, Resource.create(named), shutdown_on_exit=False, id_generator=_Ids())
    sender = SpanSender(OTLPSpanExporter(endpoint, timeout=_SEND_S))
    provider.add_span_processor(sender)
    return provider, sender
