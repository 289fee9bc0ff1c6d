"""The way of spans to a collector: bounded, counted, and never in the way of whoever makes them."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from oncegate.gateway.local.waiting import wait_for
from oncegate.spark_sink.span_sender import ALLOWANCE_S_MAX, ALLOWANCE_SHARE, Allowance, SpanSender


class Exporter(SpanExporter):
    """Takes names of spans; waits while it is held, and fails where it is told to."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.open = threading.Event()
        self.fails: list[Exception | SpanExportResult] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.open.wait()
        if self.fails:
            if isinstance(failure := self.fails.pop(), Exception):
                raise failure
            return failure
        self.names += [span.name for span in spans]
        return SpanExportResult.SUCCESS


def told(exporter: Exporter, *names: str, waiting_max: int = 100) -> SpanSender:
    sender = SpanSender(exporter, waiting_max)
    tell(sender, *names)
    return sender


def tell(sender: SpanSender, *names: str) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(sender)
    for name in names:
        provider.get_tracer("test").start_span(name).end()


def test_spans_beyond_the_bound_are_dropped_and_counted_once() -> None:
    exporter = Exporter()
    sender = told(exporter, *"abcdefg", waiting_max=5)
    assert sender.take_dropped() == 2
    assert sender.take_dropped() == 0
    exporter.open.set()
    assert sender.force_flush()
    assert exporter.names == list("abcde")


def test_spans_leave_together_when_they_are_told_to() -> None:
    exporter = Exporter()
    exporter.open.set()
    sender = told(exporter, "a", "b")
    assert not exporter.names
    sender.send()
    wait_for(lambda: exporter.names == ["a", "b"], 60, "the collector")


def test_what_a_collector_refuses_or_an_exporter_raises_is_counted_and_later_spans_go() -> None:
    exporter = Exporter()
    exporter.open.set()
    sender = SpanSender(exporter)
    for failure in (SpanExportResult.FAILURE, ValueError("no answer of a collector")):
        exporter.fails = [failure]
        tell(sender, "lost", "lost")
        sender.send()
        wait_for(lambda: sender.take_dropped() == 2, 60, "the collector")
    tell(sender, "sent")
    assert sender.force_flush()
    assert exporter.names == ["sent"]


def test_a_wait_ends_when_the_allowance_is_spent_and_the_next_one_at_once() -> None:
    exporter = Exporter()
    sender = told(exporter, "a")
    assert not sender.force_flush()
    assert not any(sender.settle() for _ in range(1000)), "each would take a second if none were spent"
    exporter.open.set()
    wait_for(lambda: exporter.names == ["a"], 60, "the collector")
    assert sender.settle(), "with nothing to wait for, no allowance is needed"


def test_the_allowance_is_one_wait_of_its_bound_and_then_a_share_of_the_time() -> None:
    allowance = Allowance(100.0)
    assert allowance.granted_s(100.0) == ALLOWANCE_S_MAX
    allowance.spend(100.0, 100.0 + ALLOWANCE_S_MAX)
    now_s = 100.0 + ALLOWANCE_S_MAX
    assert allowance.granted_s(now_s) == 0
    assert allowance.granted_s(now_s + 50) == 50 * ALLOWANCE_SHARE
    assert allowance.granted_s(now_s + 1e6) == ALLOWANCE_S_MAX
    allowance.spend(now_s + 50, now_s + 50.25)
    assert abs(allowance.granted_s(now_s + 50.25) - (50 * ALLOWANCE_SHARE - 0.25)) < 1e-9
    allowance.spend(now_s + 51, now_s + 60)
    assert allowance.granted_s(now_s + 60) == 0, "a machine that stood still owes nothing"
