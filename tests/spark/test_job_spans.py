"""A batch's spans, as a collector reads them: linked to the traces of its items, no row in them, never in the way."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from oncegate.flows.schema import PLAIN_SCHEMA
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.local.waiting import wait_for
from oncegate.spark_sink.applying import Applier, Done
from oncegate.spark_sink.dead_letters import DEAD_LETTERS
from oncegate.spark_sink.derivation import Change, Derivation, FlowBatch, Upsert
from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.flow_batches import numbered
from oncegate.spark_sink.options import SinkOptions
from oncegate.spark_sink.sink import TaskDone, write_items
from oncegate.spark_sink.tracing import LINKS_MAX, STEPS_MAX, Traced, task_spans
from oncegate.stores import claimed_store
from oncegate.stores.errors import StoreCode
from oncegate.stores.retry import Retry
from oncegate.stores.tables import StoreTable
from oncegate.version import installing
from tests.observability.collector import Collector, attributes, collecting
from tests.spark.fake_gateway import CLUSTER
from tests.spark.planted import LATEST

ERROR = 2
"""Of a span's status, in OpenTelemetry's schema."""


def trace(number: int, *, sampled: bool = True) -> str:
    return f"00-{number:032x}-{number + 1:016x}-0{int(sampled)}"


def latest(batch: FlowBatch) -> Iterator[Change]:
    for item in batch:
        yield item.reject("why-not") if item.value is None else item.upsert(LATEST, item_key=item.key, value=item.value)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as taken:
        yield taken


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., TaskDone]:
    """Write items with these trace contexts as one task of a job does, without Spark."""
    store_url = f"sqlite://{tmp_path}/store"
    with claimed_store(store_url, CLUSTER) as store:
        store.create([LATEST, DEAD_LETTERS])
        epoch = store.claim().epoch

    def written(
        endpoint: str, contexts: Sequence[str | None], *, derivation: Derivation = latest, number: int = 1, **more: str
    ) -> TaskDone:
        values = (("secret-key", "secret-value") for _ in contexts)
        items = FlowBatch.of(*values, first_commit=10 * number).items
        at = PLAIN_SCHEMA.get_field_index("traceparent")
        items = items.set_column(at, PLAIN_SCHEMA.field(at), pa.array(contexts, pa.string()))
        options = {"endpoints": "http://127.0.0.1:9", "flow": "posts", "cluster": CLUSTER, "epoch": str(epoch)}
        options |= {"store": store_url, "job": "hourly", "otlp_endpoint": endpoint, **more}
        return write_items(iter([numbered(items, number)]), SinkOptions.parse(options), derivation)

    return written


def came(collector: Collector, count: int, name: str = "oncegate batch") -> list[Any]:
    wait_for(lambda: len(collector.named(name)) == count, 60, "the collector")
    return collector.named(name)


def links_of(span: Any) -> dict[str, int]:
    """Contexts that a span links to, as `trace` makes them, and the commit that each link tells."""
    found = {f"00-{link.trace_id.hex()}-{link.span_id.hex()}-01": attributes(link) for link in span.links}
    return {context: told["oncegate.commit"] for context, told in found.items()}


def test_a_batch_is_a_trace_of_its_own_with_its_steps_linked_to_the_traces_of_its_items(
    collector: Collector, write: Callable[..., TaskDone], tmp_path: Path
) -> None:
    done = write(collector.url, [None, trace(5), trace(3), trace(5)], number=7)
    [batch] = came(collector, 1)
    assert links_of(batch) == {trace(5): 71, trace(3): 72}
    assert not batch.parent_span_id
    assert attributes(batch) == {
        "messaging.system": "oncegate",
        "messaging.operation.type": "process",
        "messaging.destination.name": "posts",
        "messaging.consumer.group.name": "hourly",
        "messaging.batch.message_count": 4,
        "oncegate.batch": 7,
        "oncegate.rows": 4,
        "oncegate.dead_letters": 0,
        "oncegate.store": f"sqlite://{tmp_path}/store",
        "oncegate.attempt": 1,
        "oncegate.links_left_out": 0,
        "oncegate.steps_left_out": 0,
    }
    steps = [collector.named(f"oncegate {name}") for name in ("read", "derive", "write")]
    (read,), (derive,), (written,) = steps
    assert {step.trace_id for (step,) in steps} == {batch.trace_id}
    assert {step.parent_span_id for (step,) in steps} == {batch.span_id}
    assert batch.start_time_unix_nano == read.start_time_unix_nano
    assert read.end_time_unix_nano <= derive.start_time_unix_nano <= derive.end_time_unix_nano
    assert derive.end_time_unix_nano <= written.start_time_unix_nano <= written.end_time_unix_nano
    assert written.end_time_unix_nano <= batch.end_time_unix_nano
    assert attributes(written) == {
        "db.system.name": "sqlite",
        "db.operation.name": "write",
        "db.collection.name": "latest",
        "oncegate.rows": 4,
        "oncegate.rows_refused": 0,
        "oncegate.attempts": 1,
    }
    (resource,) = collector.resources
    assert (resource["service.name"], resource["service.namespace"]) == ("oncegate-job", CLUSTER)
    assert done.spans_dropped == 0


def test_a_replay_is_named_as_such_and_says_its_name(collector: Collector, write: Callable[..., TaskDone]) -> None:
    write(collector.url, [trace(1)], replay="fix-hours")
    [replayed] = came(collector, 1, "oncegate replay")
    assert attributes(replayed)["oncegate.replay"] == "fix-hours"
    assert not collector.named("oncegate batch")


def test_only_sampled_contexts_are_linked_and_what_is_none_is_left_alone(
    collector: Collector, write: Callable[..., TaskDone]
) -> None:
    odd = ["", "nonsense", trace(9)[:-1], trace(9).upper().replace("9", "A"), "00-" + "0" * 32 + trace(9)[35:]]
    write(collector.url, [trace(1, sampled=False), None, *odd])
    write(collector.url, [trace(1, sampled=False), *odd, trace(2)], number=2)
    [batch] = came(collector, 1)
    assert set(links_of(batch)) == {trace(2)}
    assert attributes(batch)["oncegate.batch"] == 2


def test_links_and_steps_are_bounded_and_what_is_left_out_is_counted(
    collector: Collector, write: Callable[..., TaskDone]
) -> None:
    def scattered(batch: FlowBatch) -> Iterator[Change]:
        columns = [batch.items.column(name) for name in ("key", "value", "commit")]
        rows = pa.RecordBatch.from_arrays(columns, schema=LATEST.schema)
        for at in range(STEPS_MAX):
            yield Upsert(LATEST, rows.slice(at % rows.num_rows, 1))

    write(collector.url, [trace(n) for n in range(1, LINKS_MAX + 6)], derivation=scattered)
    [batch] = came(collector, 1)
    assert list(links_of(batch)) == [trace(n) for n in range(1, LINKS_MAX + 1)]
    told = attributes(batch)
    assert told["oncegate.links_left_out"] == 5
    wait_for(lambda: len(collector.spans) == STEPS_MAX + 1, 60, "the collector")
    assert told["oncegate.steps_left_out"] == 1 + 2 * STEPS_MAX - STEPS_MAX
    assert told["oncegate.rows"] == STEPS_MAX, "those left out count too"


def test_no_span_holds_a_key_a_value_or_the_text_of_an_error(
    collector: Collector, write: Callable[..., TaskDone]
) -> None:
    def broken(batch: FlowBatch) -> Iterator[Change]:
        for item in batch:
            yield item.upsert(LATEST, item_key=item.key, value=item.value)
        raise OSError(f"the disk that should take {next(iter(batch)).value}")

    def rejecting(batch: FlowBatch) -> Iterator[Change]:
        for item in batch:
            yield item.reject(f"{item.key} is no key")

    write(collector.url, [trace(1)])
    write(collector.url, [trace(1)], number=2, derivation=rejecting)
    with pytest.raises(OSError, match="secret-value"):
        write(collector.url, [trace(1)], number=3, derivation=broken)
    plain, rejected, failed = came(collector, 3)
    assert "error.type" not in attributes(plain)
    assert attributes(rejected)["oncegate.dead_letters"] == 1
    assert attributes(rejected)["oncegate.rows"] == 0
    assert attributes(failed)["error.type"] == "OSError"
    assert [span.status.code == ERROR for span in (plain, rejected, failed)] == [False, False, True]
    sent = b"".join(collector.bodies)
    assert b"oncegate batch" in sent
    assert b"secret" not in sent


def test_rows_that_the_store_refuses_are_told_and_are_no_failure(
    collector: Collector, write: Callable[..., TaskDone]
) -> None:
    def too_long(batch: FlowBatch) -> Iterator[Change]:
        for at, item in enumerate(batch):
            yield item.upsert(LATEST, item_key="k" * (1 + at * 70_000), value="v")

    write(collector.url, [trace(1), trace(1)], derivation=too_long)
    [batch] = came(collector, 1)
    refused, letters = collector.named("oncegate write")
    assert attributes(refused)["oncegate.rows_refused"] == 1
    assert attributes(letters)["db.collection.name"] == DEAD_LETTERS.name
    assert (attributes(batch)["oncegate.rows"], attributes(batch)["oncegate.dead_letters"]) == (1, 1)
    assert not {span.status.code for span in collector.spans} & {ERROR}


class Unsteady:
    """A store that answers each time at the third attempt, or, when it is given up, not at all."""

    def __init__(self, retry: Retry) -> None:
        self.retry = retry
        self.asked = 0

    def write(self, table: StoreTable, rows: pa.RecordBatch) -> None:
        self.retry.run(self.attempt, lambda _: True)

    def attempt(self) -> None:
        self.asked += 1
        if self.asked % 3:
            raise SinkError(StoreCode.STORE_UNAVAILABLE, "no answer")

    update = delete = write


def test_a_write_says_how_many_attempts_it_took_and_a_failure_its_code(collector: Collector) -> None:
    spans = task_spans(Traced(endpoint=collector.url, store="cassandra://host/rows", attempt=4))
    batch = FlowBatch.of(("a", 1), number=9)
    at = PLAIN_SCHEMA.get_field_index("traceparent")
    items = batch.items.set_column(at, PLAIN_SCHEMA.field(at), pa.array([trace(1)]))
    batch = FlowBatch("posts", 9, items)
    patient, given_up = Unsteady(Retry(60, sleep=lambda _: None)), Unsteady(Retry(0))
    with spans.batch(batch, time.perf_counter()) as watch:
        Applier(latest).apply(batch, patient, Done(), watch)
    with pytest.raises(SinkError), spans.batch(batch, time.perf_counter()) as watch:
        Applier(latest).apply(batch, given_up, Done(), watch)
    spans.settle()
    done, failed = came(collector, 2)
    assert attributes(done)["oncegate.attempt"] == 4
    written, unavailable = collector.named("oncegate write")
    assert attributes(written)["oncegate.attempts"] == 3
    assert attributes(written)["db.system.name"] == "cassandra"
    assert attributes(unavailable)["oncegate.attempts"] == 1
    assert attributes(unavailable)["error.type"] == attributes(failed)["error.type"] == StoreCode.STORE_UNAVAILABLE
    assert unavailable.status.code == failed.status.code == ERROR
    assert attributes(failed)["oncegate.rows"] == 0


def test_traces_of_two_attempts_differ_though_the_derivation_seeds_its_random_numbers(
    collector: Collector, write: Callable[..., TaskDone]
) -> None:
    import random

    def seeded(batch: FlowBatch) -> Iterator[Change]:
        random.seed(batch.number)
        return latest(batch)

    for _ in range(2):
        write(collector.url, [trace(1)], derivation=seeded)
    first, second = came(collector, 2)
    assert first.trace_id != second.trace_id


def test_without_traced_items_a_collector_hears_nothing(collector: Collector, write: Callable[..., TaskDone]) -> None:
    write(collector.url, [None, trace(1, sampled=False)])
    write(collector.url, [trace(1)], number=2)
    came(collector, 1)
    assert len(collector.bodies) == 1


@pytest.mark.parametrize("how", ["gone", "refusing"])
def test_a_collector_that_is_gone_or_refuses_fails_nothing_and_what_is_lost_is_counted(
    how: str, collector: Collector, write: Callable[..., TaskDone], tmp_path: Path
) -> None:
    collector.status = 400
    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}/v1/traces" if how == "gone" else collector.url
    dropped, batches = 0, 0
    while not dropped:
        batches += 1
        dropped += write(endpoint, [trace(1)], number=batches).spans_dropped
    with claimed_store(f"sqlite://{tmp_path}/store", CLUSTER) as store:
        row = store.get(LATEST, {"item_key": "secret-key"})
    assert row is not None
    assert row["write_ts"] == 10 * batches


def test_spans_that_a_failing_task_drops_are_told_by_the_next_one(
    collector: Collector, write: Callable[..., TaskDone]
) -> None:
    def broken(batch: FlowBatch) -> Iterator[Change]:
        raise OSError("a disk")

    collector.status = 400
    with pytest.raises(OSError, match="a disk"):
        write(collector.url, [trace(1)], derivation=broken)
    dropped = 0
    while not dropped:  # the first answer may come after the task has ended
        dropped = write(collector.url, [None]).spans_dropped
    assert dropped == 2, "the batch, and reading it"


@pytest.mark.timeout(240)
def test_a_collector_that_never_answers_holds_up_no_task(collector: Collector, write: Callable[..., TaskDone]) -> None:
    collector.open.clear()
    task = dropped = 0
    while task < 300 or not dropped:  # at a second a task, five minutes
        task += 1
        dropped += write(collector.url, [trace(1)], number=task).spans_dropped
    assert not collector.spans


def test_a_collector_that_was_killed_gets_the_spans_again_when_it_is_back(write: Callable[..., TaskDone]) -> None:
    with collecting() as first:
        write(first.url, [trace(1)])
        came(first, 1)
    number, dropped = 1, 0
    while not dropped:
        number += 1
        dropped = write(first.url, [trace(2)], number=number).spans_dropped
    with collecting(int(first.url.split(":")[2].partition("/")[0])) as second:
        write(first.url, [trace(3)], number=number + 1)
        wait_for(
            lambda: any(trace(3) in links_of(span) for span in second.named("oncegate batch")), 60, "the collector"
        )


@pytest.mark.parametrize(
    "endpoint", ["collector:4318", "ftp://collector", "http://", "http://user:word@collector/v1/traces", "http://[x/"]
)
def test_what_is_no_url_of_a_collector_is_refused_without_quoting_it(endpoint: str) -> None:
    options = {"endpoints": "http://n", "flow": "f", "store": "sqlite:///s", "otlp_endpoint": endpoint}
    with pytest.raises(SinkError, match="otlp_endpoint") as refused:
        SinkOptions.parse(options)
    assert refused.value.code is StoreCode.BAD_OPTION
    assert "word" not in str(refused.value)


def test_a_missing_library_is_refused_where_the_job_begins_and_means_no_spans_in_an_executor(
    collector: Collector, write: Callable[..., TaskDone], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "oncegate.spark_sink.span_sender", None)
    done = write(collector.url, [trace(1)])
    assert json.dumps(done.rows) == '{"latest": 1}'
    monkeypatch.setattr("oncegate.spark_sink.tracing.find_spec", lambda name: None)
    with pytest.raises(SinkError, match=re.escape(installing("otlp"))):
        write(collector.url, [trace(1)])
