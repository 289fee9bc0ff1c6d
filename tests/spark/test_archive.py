"""Batches that are archived are read without a gateway, whole and unchanged, whatever was killed between."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import InputPartition

from oncegate.spark_sink.jobs import archive as job
from oncegate.spark_sink.jobs.archive import ArchiveSettings, Gathered
from oncegate.spark_sink.options import SourceOptions
from oncegate.spark_sink.source import FlowReader
from oncegate.stores.archive import FlowArchive
from oncegate.stores.errors import StoreCode, StoreError
from tests.spark.fake_gateway import FakeNode

ITEMS = [(commit, f"k{commit % 5}", None if commit % 7 == 0 else json.dumps(commit)) for commit in range(1, 101)]


def settings(node: FakeNode, directory: Path, **how: object) -> ArchiveSettings:
    how = {"file_bytes": 1_000, "available_now": True, "timeout_s": 0, **how}
    return ArchiveSettings(endpoints=node.url, flow=node.flow.name, archive=f"file://{directory}", **how)


def archived(node: FakeNode, directory: Path) -> FlowArchive:
    return FlowArchive(f"file://{directory}", node.flow.cluster_identity, node.flow.name)


def items(archive: FlowArchive) -> list[tuple[int, str, str | None]]:
    assert commits(reader, shares) == everything


def test_archive_is_read_without_a_gateway(node: FakeNode, tmp_path: Path) -> None:
    node.flow.seal_all(ITEMS, 10)
    assert job.run(settings(node, tmp_path), threading.Event()) == 0
    alone = source(node, tmp_path, endpoints="", cluster=node.flow.cluster_identity)
    before = len(node.requests)
    assert read(alone) == [commit for commit, _, _ in ITEMS]
    assert read(source(node, tmp_path, endpoints="", cluster="c0ffee", starting_batch="4", ending_batch="5")) == [
        *range(31, 51)
    ]
    assert len(node.requests) == before
    refused = {"endpoints": "", "cluster": "c0ffee", "consumer": "c"}
    assert code_of(lambda: source(node, tmp_path, **refused)) is StoreCode.BAD_OPTION
    assert code_of(lambda: source(node, tmp_path, endpoints="")) is StoreCode.BAD_OPTION


def test_batch_that_neither_has_is_refused(node: FakeNode, tmp_path: Path) -> None:
    node.flow.seal_all(ITEMS[:20], 5)
    assert job.run(settings(node, tmp_path), threading.Event()) == 0
    node.flow.seal_all(ITEMS[20:], 5)
    node.flow.drop_before(7)
    assert code_of(lambda: read(source(node, tmp_path, starting_batch="1"))) is StoreCode.RETENTION_EXCEEDED
    assert read(source(node, tmp_path)) == [commit for commit, _, _ in ITEMS[30:]], "the earliest that is whole"


@pytest.mark.parametrize("url", ["nowhere", "file://", "ftp://x/y"])
def test_url_that_names_no_archive_is_refused(url: str) -> None:
    assert code_of(FlowArchive, url, "c", "f") is StoreCode.BAD_OPTION


@given(st.lists(st.tuples(st.integers(1, 300), st.floats(0, 5)), min_size=1, max_size=30))
def test_file_is_due_at_its_bytes_or_at_the_age_of_its_first_batch(coming: list[tuple[int, float]]) -> None:
    gathered, now, held, since = Gathered(1_000, 10.0), 0.0, 0, 0.0
    for rows, later_s in coming:
        now += later_s
        if not held:
            since = now
        batch = pa.RecordBatch.from_pydict({"commit": pa.array(range(rows), pa.int64())})
        held += batch.nbytes
        gathered.add(batch, now)
        assert gathered.due(now) == (held >= 1_000 or now >= since + 10.0)
        if gathered.due(now):
            gathered.clear()
            held = 0
        assert not gathered.batches or gathered.due(since + 10.0)
