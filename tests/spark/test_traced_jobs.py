"""Through Spark: one request's trace is followed from the SDK through leader and log to the batch and the store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from pyspark.sql import SparkSession

from oncegate import Client
from oncegate.gateway.local.waiting import wait_for
from oncegate.spark_sink.derivation import Change, FlowBatch
from oncegate.spark_sink.jobs import job, stream_rows
from oncegate.spark_sink.sink import sink_of
from oncegate.stores import Clustering, Column, ColumnType, StoreTable, claimed_store
from tests.gateway.http_contract import one_node, serving
from tests.observability.collector import Collector, attributes, collecting
from tests.spark.fake_gateway import CLUSTER, FakeFlow, FakeNode

pytestmark = pytest.mark.spark

SEEN = StoreTable(
    name="seen",
    columns=(
        Column("item_key", ColumnType.TEXT),
        Column("batch", ColumnType.INT64),
        Column("commit", ColumnType.INT64),
    ),
    partition_key=("item_key",),
    clustering=(Clustering("batch"), Clustering("commit")),
)
SENT = "00-00000000000000000000000000000abc-0000000000000def-01"


def seen(batch: FlowBatch) -> Iterator[Change]:
    for item in batch:
        yield item.upsert(SEEN, item_key=item.key, batch=batch.number, commit=item.commit)


def settings(tmp_path: Path, endpoints: str, flow: str, store_url: str, collector: Collector, **more: Any) -> Any:
    given: dict[str, Any] = {"tables": (SEEN,), "sink": sink_of(seen, "seen"), "consumer": "index", "timeout_s": 20}
    given |= {"checkpoint": str(tmp_path / "checkpoint"), "otlp_endpoint": collector.url, "store": store_url}
    return job.JobSettings(**given | more, endpoints=endpoints, flow=flow)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as taken:
        yield taken


def below(collector: Collector, parent: Any) -> list[Any]:
    found = [span for span in collector.spans if span.parent_span_id == parent.span_id]
    return sorted(found, key=lambda span: span.start_time_unix_nano)


@contextmanager
def one_traced_write(directory: Path, collector: Collector, application: TracerProvider) -> Iterator[tuple[str, int]]:
    """Run a node beside this thread, which is Spark's, and give its URL and the commit of a write that is sealed."""
    node_settings = one_node(directory, otlp_endpoint=collector.url)
    sealed: Future[int] = Future()
    over = threading.Event()

    async def scenario() -> None:
        async with serving(node_settings) as (api, _):
            await api.call("PUT", "/v1/tables/orders", {"kind": "resident"})
            await api.call("PUT", "/v1/flows/orders", {"source": "orders", "linger_ms": 10})
            async with Client(node_settings.address.http, tracing=True) as client, client.session() as session:
                with application.get_tracer("application").start_as_current_span("order"):
                    done = await session.put("orders", "a-key", "a-value")
            while (await api.call("GET", "/v1/flows/orders"))[2]["last_batch"] < 1:
                await asyncio.sleep(0.01)
            sealed.set_result(done.commit)
            await asyncio.to_thread(over.wait)

    with ThreadPoolExecutor(1) as beside:
        served = beside.submit(asyncio.run, scenario())
        served.add_done_callback(lambda ended: sealed.done() or sealed.set_exception(ended.exception() or EOFError()))
        try:
            yield node_settings.address.http, sealed.result(120)
        finally:
            over.set()
        served.result(120)


def test_one_request_is_followed_from_the_sdk_through_leader_and_log_to_the_batch_and_the_store(
    spark: SparkSession, store_url: str, tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    application = TracerProvider(shutdown_on_exit=False)
    application.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(collector.url)))
    monkeypatch.setattr(trace, "get_tracer", application.get_tracer)
    with one_traced_write(tmp_path, collector, application) as (endpoint, commit):
        live = settings(tmp_path, endpoint, "orders", store_url, collector)
        assert job.run(spark, live, threading.Event()) == 0
    wait_for(lambda: collector.named("oncegate batch"), 60, "spans of the job")
    (order,) = collector.named("order")
    followed = {span.name for span in collector.spans if span.trace_id == order.trace_id}
    assert {"order", "oncegate put", "oncegate send", "POST /v1/operations", "oncegate log"} <= followed
    (sent,) = collector.named("oncegate send")
    (batch,) = collector.named("oncegate batch")
    (link,) = batch.links
    assert (link.trace_id, link.span_id) == (sent.trace_id, sent.span_id)
    assert attributes(link) == {"oncegate.commit": commit}
    assert attributes(batch)["messaging.destination.name"] == "orders"
    read, derive, write = below(collector, batch)
    assert [span.name for span in (read, derive, write)] == ["oncegate read", "oncegate derive", "oncegate write"]
    assert attributes(write)["db.system.name"] == store_url.partition(":")[0]
    assert attributes(write)["db.collection.name"] == "seen"
    (log,) = collector.named("oncegate log")
    assert log.start_time_unix_nano < write.start_time_unix_nano <= write.end_time_unix_nano
    with claimed_store(store_url) as store:
        assert store.get(SEEN, {"item_key": "a-key", "batch": 1, "commit": commit}) is not None
    assert b"a-key" not in b"".join(collector.bodies)
    assert b"a-value" not in b"".join(collector.bodies)


def test_the_job_of_a_stream_table_tells_of_its_traced_batches(
    spark: SparkSession, flow: FakeFlow, node: FakeNode, collector: Collector, tmp_path: Path
) -> None:
    flow.seal([(1, "a", "1"), (2, "b", "2")])
    flow.seal([(3, "a", "3"), (4, "b", "4")], [None, SENT])
    command = ["--endpoints", node.url, "--table", flow.name, "--store", f"sqlite://{tmp_path}/store"]
    command += ["--checkpoint", str(tmp_path / "checkpoint"), "--otlp-endpoint", collector.url]
    assert job.run(spark, stream_rows.parse(command), threading.Event()) == 0
    wait_for(lambda: collector.named("oncegate write"), 60, "spans of the job")
    (batch,) = collector.named("oncegate batch")
    assert attributes(batch)["oncegate.batch"] == 2
    assert attributes(batch)["messaging.consumer.group.name"] == stream_rows.ROWS_CONSUMER
    assert [link.trace_id.hex() for link in batch.links] == [SENT.split("-")[1]]
    (written,) = collector.named("oncegate write")
    assert attributes(written)["db.collection.name"] == "stream_rows"
    assert attributes(written)["oncegate.rows"] == 2


def test_a_replay_tells_its_name_beside_the_job_and_a_collector_that_is_gone_changes_nothing(
    spark: SparkSession, flow: FakeFlow, node: FakeNode, tmp_path: Path
) -> None:
    flow.seal([(1, "a", "1"), (2, "b", "2")], [SENT, None])
    store_url = f"sqlite://{tmp_path}/store"
    with collecting() as collector:
        live = settings(tmp_path, node.url, flow.name, store_url, collector)
        again = settings(tmp_path, node.url, flow.name, store_url, collector, replay="mend", from_batch=1, to_batch=1)
        assert job.run(spark, live, threading.Event()) == 0
        assert job.run(spark, again, threading.Event()) == 0
        wait_for(lambda: collector.named("oncegate replay"), 60, "spans of the replay")
        (first,), (replayed,) = collector.named("oncegate batch"), collector.named("oncegate replay")
        assert attributes(replayed)["oncegate.replay"] == "mend"
        assert attributes(replayed)["oncegate.batch"] == attributes(first)["oncegate.batch"] == 1
        assert first.trace_id != replayed.trace_id
    flow.seal([(3, "c", "3")], [SENT])
    assert job.run(spark, live, threading.Event()) == 0
    with claimed_store(store_url, CLUSTER) as store:
        assert store.get(SEEN, {"item_key": "c", "batch": 2, "commit": 3}) is not None
