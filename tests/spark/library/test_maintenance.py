"""A job compacts what its consumer has finished, beside its query, and a replay of that is refused by its command."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oncegate.spark_sink.applying import Applier, Done
from oncegate.spark_sink.consumer import FlowConsumer
from oncegate.spark_sink.dead_letters import DEAD_LETTERS
from oncegate.spark_sink.derivation import FlowBatch
from oncegate.spark_sink.jobs import job, maintenance
from oncegate.spark_sink.jobs import replay as replays
from oncegate.spark_sink.library.aggregates import totals
from oncegate.spark_sink.library.fields import whole
from oncegate.spark_sink.replay import recorded
from oncegate.spark_sink.sink import sink_of
from oncegate.stores import claimed_store
from oncegate.stores.errors import StoreCode, StoreError
from tests.spark.fake_gateway import CLUSTER, FakeFlow, FakeNode
from tests.spark.recount import messages

POSTS = totals("posts", [whole("sender")])


@pytest.fixture
def live(flow: FakeFlow, node: FakeNode, tmp_path: Path) -> job.JobSettings:
    """Six batches are in the store, and the consumer has finished four."""
    flow.seal_all(messages(3, 60), 10)
    settings = job.JobSettings(
        tables=POSTS.tables,
        sink=sink_of(POSTS, "posts"),
        endpoints=node.url,
        flow=flow.name,
        consumer="counting",
        store=f"sqlite://{tmp_path}/store",
        checkpoint=str(tmp_path / "checkpoint"),
        timeout_s=5,
        maintenance_s=3600,
    )
    consumer = FlowConsumer.attach(node.url, flow.name, "counting")
    with claimed_store(settings.store, CLUSTER) as store:
        store.create((*POSTS.tables, DEAD_LETTERS))
        for number in range(1, 7):
            batch = FlowBatch(flow.name, number, consumer.flow.client().batch(number))
            Applier(POSTS, "counting").apply(batch, store, Done())
    consumer.finish(4)
    return settings


def read(settings: job.JobSettings) -> tuple[dict[Any, int], set[int]]:
    with claimed_store(settings.store, CLUSTER) as store:
        counts = {row["sender"]: row["count"] for row in POSTS.read(store).to_pylist()}
        return counts, {row["batch"] for rows in store.scan(POSTS.tables[0]) for row in rows.to_pylist()}


def test_a_job_compacts_up_to_its_cursor_at_its_end(live: job.JobSettings) -> None:
    with maintenance.maintained(live):
        assert read(live)[1] == {1, 2, 3, 4, 5, 6}
    assert read(live) == ({0: 20, 1: 20, 2: 20}, {5, 6})


def test_a_job_compacts_while_it_runs(live: job.JobSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    once = maintenance.once
    monkeypatch.setattr(maintenance, "once", lambda *args: (once(*args), done.set()))
    with maintenance.maintained(replace(live, maintenance_s=0.01)):  # type: ignore[arg-type]
        assert done.wait(30)
        assert read(live) == ({0: 20, 1: 20, 2: 20}, {5, 6})


@pytest.mark.parametrize("without", [{"maintenance_s": 0}, {"replay": "x"}])
def test_a_job_that_is_told_not_to_and_a_replay_compact_nothing(live: job.JobSettings, without: Any) -> None:
    with maintenance.maintained(replace(live, **without)):
        pass
    assert read(live)[1] == {1, 2, 3, 4, 5, 6}


def test_maintenance_that_fails_does_not_end_the_job(live: job.JobSettings, node: FakeNode) -> None:
    node.refuse = True
    with maintenance.maintained(live):
        pass
    assert read(live)[1] == {1, 2, 3, 4, 5, 6}


def test_the_command_refuses_a_replay_of_compacted_batches_and_takes_one_behind(live: job.JobSettings) -> None:
    with maintenance.maintained(live):
        pass
    with claimed_store(live.store, CLUSTER) as store:
        with pytest.raises(StoreError, match="compacted up to batch 4") as refused:
            replays.begin(replace(live, replay="v2", from_batch=4, to_batch=6), store)
        assert refused.value.code is StoreCode.BAD_TABLE
        assert recorded(store, "counting", "v2") is None
        replays.begin(replace(live, replay="v2", from_batch=4, to_batch=6, keep_timestamps=True), store)
        replay, consumer = replays.begin(replace(live, replay="v3", from_batch=5, to_batch=6), store)
        assert (replay.first_batch, replay.done, consumer is None) == (5, 0, False)


@pytest.mark.parametrize("archive", [False, True])
def test_a_replay_that_a_compaction_overtakes_is_refused_also_with_an_archive(
    live: job.JobSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, archive: bool
) -> None:
    told = replace(live, replay="v2", from_batch=3, to_batch=6, archive=f"file://{tmp_path}/archive" if archive else "")
    planned = replays.planned

    def overtaken(settings: job.JobSettings, store: Any) -> Any:
        found = planned(settings, store)
        POSTS.partials.compact(store, 4)
        return found

    monkeypatch.setattr(replays, "planned", overtaken)
    with claimed_store(live.store, CLUSTER) as store:
        with pytest.raises(StoreError, match="compacted up to batch 4") as refused:
            replays.begin(told, store)
        assert refused.value.code is StoreCode.BAD_TABLE
        POSTS.partials.compact(store, 6)
        assert store.count(POSTS.tables[0]) == 0, "the replay that was refused holds nothing back"
