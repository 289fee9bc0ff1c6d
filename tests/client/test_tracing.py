"""Spans around calls, the context on the wire, and nothing of either without OpenTelemetry."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from oncegate import Client, OperationFailed
from oncegate.testing import FakeGateway

PROVIDER = TracerProvider()
EXPORTER = InMemorySpanExporter()
PROVIDER.add_span_processor(SimpleSpanProcessor(EXPORTER))


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    monkeypatch.setattr(trace, "get_tracer", PROVIDER.get_tracer)
    yield EXPORTER
    EXPORTER.clear()


@pytest.fixture
def parents(fake: FakeGateway) -> list[tuple[str, str | None]]:
    """What the gateway saw: path and ``traceparent`` of each request."""
    seen: list[tuple[str, str | None]] = []

    async def look(request: web.Request) -> web.StreamResponse | None:
        seen.append((request.path, request.headers.get("traceparent")))
        return None

    fake.nodes[0].before = look
    return seen


def named(spans: InMemorySpanExporter, name: str) -> list[Any]:
    return [span for span in spans.get_finished_spans() if span.name == name]


async def test_single_write_is_one_trace_from_the_application_to_the_wire(
    fake: FakeGateway, spans: InMemorySpanExporter, parents: list[tuple[str, str | None]]
) -> None:
    tracer = PROVIDER.get_tracer("application")
    async with Client(fake.endpoints) as client, client.session() as session:
        with tracer.start_as_current_span("order") as order:
            await session.increment("rows", "n")
    (write,) = named(spans, "oncegate increment")
    (sent,) = named(spans, "oncegate send")
    assert write.parent.span_id == order.get_span_context().span_id
    assert sent.parent.span_id == write.context.span_id
    assert write.attributes["oncegate.request_id"] == f"{session.client_id:016x}/1"
    assert write.attributes["db.collection.name"] == "rows"
    (carried,) = [parent for path, parent in parents if path == "/v1/operations"]
    assert carried.startswith(f"00-{sent.context.trace_id:032x}-{sent.context.span_id:016x}-")


async def test_request_with_many_writes_links_to_each(fake: FakeGateway, spans: InMemorySpanExporter) -> None:
    async with Client(fake.endpoints) as client, client.session() as session:
        for n in range(5):
            session.submit("put", "rows", f"k{n}", n)
        await session.drain()
        await session.put_many("events", [(f"k{n}", n) for n in range(20)])
    sends = {span.attributes["oncegate.writes"]: span for span in named(spans, "oncegate send")}
    assert len(sends[5].links) == 5
    assert sends[5].parent is None
    (many,) = named(spans, "oncegate put_many")
    assert sends[20].parent.span_id == many.context.span_id


async def test_failure_is_told_in_the_span(fake: FakeGateway, spans: InMemorySpanExporter) -> None:
    async with Client(fake.endpoints) as client, client.session() as session:
        with pytest.raises(OperationFailed):
            await session.put("nowhere", "k", 1)
        with pytest.raises(OperationFailed):
            await client.get("nowhere", "k")
    (write,) = named(spans, "oncegate put")
    assert write.attributes["oncegate.code"] == "NOT_FOUND"
    assert write.attributes["oncegate.outcome"] == "not_applied"
    assert not write.status.is_ok
    assert any(span.attributes.get("oncegate.code") == "NOT_FOUND" for span in named(spans, "oncegate GET"))


async def test_tracing_can_be_switched_off(
    fake: FakeGateway, spans: InMemorySpanExporter, parents: list[tuple[str, str | None]]
) -> None:
    async with Client(fake.endpoints, tracing=False) as client, client.session() as session:
        await session.put("rows", "k", 1)
    assert spans.get_finished_spans() == ()
    assert {parent for _, parent in parents} == {None}


def test_without_opentelemetry_nothing_is_imported_and_wanting_it_is_refused() -> None:
    code = """
import sys
from oncegate import Client, OperationFailed
client = Client("http://127.0.0.1:1")
assert client._connection.tracing is None
assert not any(name.startswith("opentelemetry") for name in sys.modules)
sys.modules["opentelemetry"] = None
try:
    Client("http://127.0.0.1:1", tracing=True)
except OperationFailed as refused:
    assert "[otel]'" in str(refused)
else:
    raise SystemExit("not refused")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
