"""A traced write is one trace from the SDK through node and log, as a collector of OpenTelemetry reads it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from oncegate import Client
from oncegate.gateway.node.settings import Settings
from oncegate.gateway.observability.spans import Spans
from tests.gateway.http_contract import one_node, serving
from tests.observability.collector import Collector, attributes, collecting

TRACED = "00-{:032x}-{:016x}-0{}"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as taken:
        yield taken


async def test_a_write_is_one_trace_from_the_sdk_through_node_and_log(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "get_tracer", TracerProvider().get_tracer)
    settings = one_node(tmp_path, otlp_endpoint=collector.url)
    async with serving(settings) as (api, _):
        await api.call("PUT", "/v1/tables/rows", {"kind": "resident"})
        async with Client(settings.address.http, tracing=True) as client, client.session() as session:
            application = trace.get_tracer("application")
            with application.start_as_current_span("order") as order:
                done = await session.put("rows", "a", 1)
    (served,) = collector.named("POST /v1/operations")
    (logged,) = collector.named("oncegate log")
    sent = order.get_span_context().trace_id.to_bytes(16, "big")
    assert served.trace_id == logged.trace_id == sent
    assert served.parent_span_id == logged.parent_span_id != b""
    assert served.start_time_unix_nano <= logged.start_time_unix_nano
    assert logged.start_time_unix_nano < logged.end_time_unix_nano <= served.end_time_unix_nano
    assert attributes(served) == {
        "http.request.method": "POST",
        "http.route": "/v1/operations",
        "http.response.status_code": 200,
        "oncegate.commit": done.commit,
    }
    (resource,) = collector.resources
    assert resource["service.name"] == "oncegate"
    assert resource["service.instance.id"] == "n1"


def test_spans_keep_their_order_whatever_interrupts_who_tells_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns, epoch_ns, second = 7_000_000_000, 1_800_000_000_000_000_000, 1_000_000_000
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    monkeypatch.setattr(time, "time_ns", lambda: epoch_ns + now_ns)
    kept = InMemorySpanExporter()
    spans = Spans("http://127.0.0.1:9/v1/traces", "n1", "c", processor=SimpleSpanProcessor(kept))
    spans.logged([TRACED.format(1, 7, 1)], 6.5, 1)
    monkeypatch.setattr(time, "time_ns", lambda: epoch_ns + now_ns + second // 2)  # half a second behind the other
    spans.request(TRACED.format(1, 7, 1), ("POST", "/v1/operations"), 200, 6.25, "1")
    monkeypatch.setattr(time, "time_ns", lambda: epoch_ns + now_ns + 5 * second)
    spans.request(TRACED.format(1, 7, 1), ("GET", "/v1/status"), 200, 6.25, "")
    logged, served, later = kept.get_finished_spans()
    assert (logged.start_time, logged.end_time) == (epoch_ns + 6_500_000_000, epoch_ns + now_ns)
    assert (served.start_time, served.end_time) == (epoch_ns + 6_250_000_000, epoch_ns + now_ns)
    assert later.start_time == epoch_ns + 6_250_000_000 + 5 * second, "a wall clock that was set is followed"


async def test_only_what_is_sampled_has_spans_and_reads_have_them_too(tmp_path: Path, collector: Collector) -> None:
    settings = one_node(tmp_path, otlp_endpoint=collector.url)
    async with serving(settings) as (api, _):
        for number, sampled in ((1, 0), (2, 1)):
            traced = {"traceparent": TRACED.format(number, 7, sampled)}
            await api.call("GET", "/v1/tables/none", headers=traced)
        await api.call("GET", "/v1/tables/none", headers={"traceparent": "nonsense"})
        await api.call("GET", "/v1/tables/none")
    (span,) = collector.spans
    assert (span.name, span.trace_id[-1], span.parent_span_id[-1]) == ("GET /v1/tables/{table}", 2, 7)
    assert attributes(span)["http.response.status_code"] == 404


async def test_a_collector_that_is_gone_costs_requests_nothing(tmp_path: Path) -> None:
    settings = one_node(tmp_path, otlp_endpoint="http://127.0.0.1:9/v1/traces")
    async with serving(settings) as (api, _), asyncio.timeout(20):
        traced = {"traceparent": TRACED.format(1, 7, 1)}
        assert (await api.call("PUT", "/v1/tables/rows", {"kind": "resident"}, headers=traced))[0] == 200


def test_the_url_of_a_collector_is_checked() -> None:
    with pytest.raises(ValueError, match="otlp_endpoint: a collector's URL starts with http"):
        Settings(otlp_endpoint="localhost:4318")
