"""A traced write is one trace from the SDK through node and log, as a collector of OpenTelemetry reads it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.trace import TracerProvider

from oncegate import Client
from oncegate.gateway.node.settings import Settings
from tests.gateway.http_contract import one_node, serving

TRACED = "00-{:032x}-{:016x}-0{}"


class Collector:
    """Takes what an exporter sends, and decodes it with OpenTelemetry's own schema."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Any] = []
        self.resource: dict[str, str] = {}

    async def take(self, request: web.Request) -> web.Response:
        assert request.content_type == "application/x-protobuf"
        for group in ExportTraceServiceRequest.FromString(await request.read()).resource_spans:
            self.resource = {one.key: one.value.string_value for one in group.resource.attributes}
            self.spans += [span for scope in group.scope_spans for span in scope.spans]
        return web.Response(
            body=ExportTraceServiceResponse().SerializeToString(), content_type="application/x-protobuf"
        )

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    taken = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", taken.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    taken.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/traces"
    yield taken
    await runner.cleanup()


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}


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
    assert collector.resource["service.name"] == "oncegate"
    assert collector.resource["service.instance.id"] == "n1"


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
