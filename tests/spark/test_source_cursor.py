"""Where a stream may go on: offsets of a checkpoint against flow and cursor, and a cursor that reaches the end."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxFiles

from oncegate.spark_sink.consumer import FlowConsumer
from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.options import SourceOptions
from oncegate.spark_sink.source import FlowStreamReader
from oncegate.stores.errors import StoreCode
from tests.spark.fake_gateway import FakeFlow, FakeNode
from tests.spark.recount import messages


@pytest.fixture(autouse=True)
def _sealed(flow: FakeFlow) -> None:
    flow.seal_all(messages(3, 90), 10)


def reader(node: FakeNode, **more: object) -> FlowStreamReader:
    """A reader as Spark makes one at each start of a query."""
    fixed = {"endpoints": node.url, "flow": node.flow.name, "timeout_s": 5, "batches_per_trigger": 2}
    return FlowStreamReader(SourceOptions.parse({name: str(value) for name, value in {**fixed, **more}.items()}))


def attached(node: FakeNode, **more: object) -> FlowStreamReader:
    """A reader whose consumer is attached by the caller, as our jobs do, whose sink moves the cursor."""
    return reader(node, **FlowConsumer.attach(node.url, node.flow.name, "c").options(), **more)


def at(node: FakeNode, batch: int) -> dict[str, Any]:
    return {"batch": batch, "flow": node.flow.name, "cluster": node.flow.cluster_identity}


def moved(flow: FakeFlow, batch: int) -> None:
    flow.move("c", batch, flow.attach("c", "before").fence)


def refused(action: Any, *arguments: object) -> str:
    with pytest.raises(SinkError) as caught:
        action(*arguments)
    assert caught.value.code is StoreCode.CURSOR_MISMATCH
    assert not caught.value.retryable
    return caught.value.detail


def test_a_consumer_that_the_source_attached_reaches_the_end_without_new_data(flow: FakeFlow, node: FakeNode) -> None:
    """Spark asks for the offset after the last one only when that micro-batch is done, and need not commit it."""
    stream = reader(node, consumer="c")
    start = stream.initialOffset()
    while (end := stream.latestOffset(start, ReadMaxFiles(4))) != start:
        assert flow.consumers["c"].cursor == start["batch"]
        start = end
    assert flow.consumers["c"].cursor == flow.last_batch == 9
    stream.latestOffset(start, ReadMaxFiles(4))
    assert [batch for _, batch, _ in flow.moves] == [4, 8, 9]


def test_a_checkpoint_ahead_of_the_cursor_is_refused_and_the_way_out_named(flow: FakeFlow, node: FakeNode) -> None:
    """An operator has moved the cursor back, or the checkpoint is of another cluster."""
    moved(flow, 3)
    for stream in (attached(node), reader(node, consumer="c")):
        assert "--replay" in refused(stream.latestOffset, at(node, 7), ReadMaxFiles(4))
        assert flow.consumers["c"].cursor == 3
    assert "--replay" in refused(attached(node).partitions, at(node, 7), at(node, 8))


def test_a_checkpoint_behind_the_cursor_goes_on_at_the_cursor(flow: FakeFlow, node: FakeNode) -> None:
    """A crash between the move of the cursor and the note in the checkpoint leaves it so."""
    moved(flow, 6)
    stream = attached(node, partitions_max=1)
    (part,) = stream.partitions(at(node, 4), at(node, 8))
    assert (part.first, part.last) == (7, 8)  # type: ignore[attr-defined]
    assert stream.latestOffset(at(node, 8), ReadMaxFiles(4)) == at(node, 9)


def test_a_source_that_moves_the_cursor_may_be_one_micro_batch_ahead_of_it(flow: FakeFlow, node: FakeNode) -> None:
    moved(flow, 3)
    assert reader(node, consumer="c").latestOffset(at(node, 5), ReadMaxFiles(2)) == at(node, 7)
    assert flow.consumers["c"].cursor == 5


def test_a_start_below_the_cursor_is_refused_instead_of_read_and_not_counted(flow: FakeFlow, node: FakeNode) -> None:
    moved(flow, 5)
    stream = attached(node, starting_batch=2)
    assert "--replay" in refused(stream.latestOffset, stream.initialOffset(), ReadMaxFiles(4))


def test_a_first_micro_batch_that_was_cut_off_after_its_cursor_moved_is_no_such_start(
    flow: FakeFlow, node: FakeNode
) -> None:
    moved(flow, 4)
    stream = attached(node, starting_batch=1)
    assert stream.partitions(stream.initialOffset(), at(node, 4)) == []
    assert stream.latestOffset(at(node, 4), ReadMaxFiles(2)) == at(node, 6)


@pytest.mark.parametrize("consumer", [{}, {"consumer": "c"}])
def test_a_checkpoint_of_another_flow_is_refused(node: FakeNode, consumer: dict[str, str]) -> None:
    assert "of flow other" in refused(
        reader(node, **consumer).latestOffset, {"batch": 1, "flow": "other"}, ReadMaxFiles(2)
    )


def test_a_checkpoint_of_another_cluster_is_refused_without_a_consumer_too(node: FakeNode) -> None:
    assert "never had" in refused(reader(node).latestOffset, at(node, 12), ReadMaxFiles(2))
    rebuilt = at(node, 5) | {"cluster": "another"}
    for stream in (reader(node), attached(node)):
        assert "cluster another" in refused(stream.latestOffset, rebuilt, ReadMaxFiles(2))


def test_a_checkpoint_that_an_older_version_wrote_is_read(node: FakeNode) -> None:
    assert reader(node).latestOffset({"batch": 4}, ReadMaxFiles(2)) == at(node, 6)


def test_a_range_ends_a_stream(node: FakeNode) -> None:
    stream = reader(node, starting_batch=3, ending_batch=5)
    assert stream.latestOffset(stream.initialOffset(), ReadMaxFiles(9)) == at(node, 5)
    assert stream.latestOffset(at(node, 5), ReadMaxFiles(9)) == at(node, 5)


def test_a_caller_may_move_the_cursor_by_hand_and_is_fenced_by_the_next(flow: FakeFlow, node: FakeNode) -> None:
    first = FlowConsumer.attach(node.url, flow.name, "c")
    assert first.finish(4) == 4
    second = FlowConsumer.attach(node.url, flow.name, "c")
    assert second.cursor == 4
    with pytest.raises(SinkError) as fenced:
        first.finish(6)
    assert fenced.value.code is StoreCode.FENCED
    assert second.finish(6) == 6
