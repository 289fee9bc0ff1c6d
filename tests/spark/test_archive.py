"""Batches that are archived are read without a gateway, whole and unchanged, whatever was killed between."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.fs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition

from oncegate.gateway.local.ports import free_ports
from oncegate.spark_sink.derivation import Change, FlowBatch
from oncegate.spark_sink.flow_client import FlowClient
from oncegate.spark_sink.jobs import archive as job
from oncegate.spark_sink.jobs import job as jobs
from oncegate.spark_sink.jobs.archive import ArchiveSettings, Gathered
from oncegate.spark_sink.jobs.replay import preview
from oncegate.spark_sink.jobs.settings import JobSettings
from oncegate.spark_sink.options import SourceOptions
from oncegate.spark_sink.sink import sink_of
from oncegate.spark_sink.source import FlowReader
from oncegate.stores import Clustering, Column, ColumnType, StoreTable, claimed_store
from oncegate.stores.archive import FlowArchive
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.places import FilePlace
from oncegate.stores.retry import Retry
from tests.s3 import s3_like
from tests.spark.fake_gateway import FakeNode

ITEMS = [(commit, f"k{commit % 5}", None if commit % 7 == 0 else json.dumps(commit)) for commit in range(1, 101)]


def settings(node: FakeNode, directory: Path, **how: object) -> ArchiveSettings:
    how = {"file_bytes": 1_000, "available_now": True, "timeout_s": 0, **how}
    return ArchiveSettings(endpoints=node.url, flow=node.flow.name, archive=f"file://{directory}", **how)


def archived(node: FakeNode, directory: Path) -> FlowArchive:
    return FlowArchive(f"file://{directory}", node.flow.cluster_identity, node.flow.name)


def items(archive: FlowArchive) -> list[tuple[int, str, str | None]]:
    found = []
    for number in range(archive.first_batch, archive.last_batch + 1):
        batch = archive.batch(number)
        found += zip(*(batch.column(name).to_pylist() for name in ("commit", "key", "value")), strict=True)
    return found


def read_or_refused(node: FakeNode, directory: Path) -> object:
    try:
        return items(archived(node, directory))
    except StoreError as refused:
        return refused


def code_of(call: object, *arguments: object) -> StoreCode:
    with pytest.raises(StoreError) as refused:
        call(*arguments)  # type: ignore[operator]
    return refused.value.code


def test_archive_gives_every_batch_back_after_the_flow_has_dropped_it(node: FakeNode, tmp_path: Path) -> None:
    node.flow.seal_all(ITEMS, 7)
    assert job.run(settings(node, tmp_path), threading.Event()) == 0
    assert node.flow.consumers["archive"].cursor == 15
    node.flow.drop_before(16)
    archive = archived(node, tmp_path)
    assert (archive.first_batch, archive.last_batch) == (1, 15)
    assert items(archive) == ITEMS
    assert len(list(archive.entries())) > 2, "several files"
    assert job.verify(settings(node, tmp_path)) == 15


def test_archiver_goes_on_where_the_manifest_ends(node: FakeNode, tmp_path: Path) -> None:
    node.flow.seal_all(ITEMS[:50], 5)
    assert job.run(settings(node, tmp_path), threading.Event()) == 0
    node.flow.seal_all(ITEMS[50:], 5)
    before = len(node.requests)
    assert job.run(settings(node, tmp_path), threading.Event()) == 0
    read = [path for method, path in node.requests[before:] if "/batches/" in path]
    assert [int(path.rsplit("/", 1)[1]) for path in read] == list(range(11, 21))
    assert items(archived(node, tmp_path)) == ITEMS


class Killed(BaseException):
    pass


@pytest.mark.parametrize("at", range(1, 7))
def test_archive_is_whole_after_a_kill_between_any_two_steps(
    node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    node.flow.seal_all(ITEMS, 10)
    steps = 0

    def step(real: object) -> object:
        def killed(*arguments: object) -> object:
            nonlocal steps
            steps += 1
            if steps == at:
                raise Killed
            return real(*arguments)  # type: ignore[operator]

        return killed

    with monkeypatch.context() as patched:
        patched.setattr(FilePlace, "put", step(FilePlace.put))
        patched.setattr(job.FlowClient, "move_cursor", step(job.FlowClient.move_cursor))
        with pytest.raises(Killed):
            job.follow(settings(node, tmp_path, file_bytes=2_000), threading.Event())
    cursor = node.flow.consumers["archive"].cursor
    assert cursor <= archived(node, tmp_path).last_batch, "the cursor never goes ahead of the manifest"
    node.flow.drop_before(cursor + 1)
    # Other borders than before: the files overlap.
    assert job.run(settings(node, tmp_path, file_bytes=1_300), threading.Event()) == 0
    assert items(archived(node, tmp_path)) == ITEMS
    assert job.verify(settings(node, tmp_path)) == 10


@pytest.mark.parametrize("where", ["data", "manifest"])
def test_damage_at_any_place_is_found_and_names_its_batches(node: FakeNode, tmp_path: Path, where: str) -> None:
    node.flow.seal_all(ITEMS[:20], 10)
    assert job.run(settings(node, tmp_path, file_bytes=10**9), threading.Event()) == 0
    (file,) = (tmp_path / "c0ffee" / node.flow.name / where).iterdir()
    whole = file.read_bytes()
    # Some bytes of an entry say nothing of the items, as those of a time; none of them changes what is read.
    refused = 0
    for at in range(0, len(whole), 7):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x20]) + whole[at + 1 :])
        outcome = read_or_refused(node, tmp_path)
        if isinstance(outcome, StoreError):
            assert outcome.code in (StoreCode.BAD_BATCH, StoreCode.STORE_MISMATCH)
            assert file.stem in str(outcome)
            refused += 1
        else:
            assert outcome == ITEMS[:20]
    assert refused == len(range(0, len(whole), 7)) if where == "data" else refused > 20
    file.unlink()
    if where == "data":
        assert code_of(items, archived(node, tmp_path)) is StoreCode.BAD_BATCH


def test_hole_between_archive_and_flow_is_refused(node: FakeNode, tmp_path: Path) -> None:
    node.flow.seal_all(ITEMS[:20], 10)
    assert job.run(settings(node, tmp_path), threading.Event()) == 0
    node.flow.seal_all(ITEMS[20:50], 10)
    node.flow.drop_before(4)
    assert job.run(settings(node, tmp_path), threading.Event()) == 4
    assert archived(node, tmp_path).last_batch == 2
    node.flow.batches.clear()
    node.flow.seal(ITEMS[:1])
    node.flow.first_batch = 1
    assert job.run(settings(node, tmp_path), threading.Event()) == 5, "an archive ahead of its flow"


def test_archive_ends_before_its_first_hole_and_goes_on_when_that_is_filled(node: FakeNode, tmp_path: Path) -> None:
    node.flow.seal_all([(commit, "k", "1") for commit in range(1, 8)], 1)
    client = FlowClient([node.url], node.flow.name, retry=Retry(0))
    batches = [client.batch(number) for number in range(1, 8)]
    held = archived(node, tmp_path)

    def state() -> tuple[int, list[str]]:
        seen = archived(node, tmp_path)
        assert (seen.first_batch, seen.last_batch) == (held.first_batch, held.last_batch)
        return seen.last_batch, [f"{one.first_batch}-{one.last_batch}" for one in seen.entries()]

    held.append(1, batches[:2])
    held.append(4, batches[3:5])
    assert state() == (2, ["1-2"])
    with pytest.raises(StoreError) as refused:
        held.entry(3)
    assert refused.value.code is StoreCode.RETENTION_EXCEEDED
    # Of two writers one was fenced, and both may have written a batch.
    held.append(2, batches[1:3])
    assert state() == (5, ["1-2", "2-3", "4-5"])
    held.append(4, batches[3:7])
    assert state() == (7, ["1-2", "2-3", "4-7"])
    assert all(held.batch(number).equals(batches[number - 1]) for number in range(1, 8))


def test_file_that_the_disk_gives_back_otherwise_never_counts(
    node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.flow.seal_all([(1, "k", "1")], 1)
    batch, put = FlowClient([node.url], node.flow.name, retry=Retry(0)).batch(1), FilePlace.put

    def lies(self: FilePlace, path: str, data: bytes) -> None:
        put(self, path, data[:-1] + b"?" if path.endswith(".parquet") else data)

    with monkeypatch.context() as patched:
        patched.setattr(FilePlace, "put", lies)
        assert code_of(archived(node, tmp_path).append, 1, [batch]) is StoreCode.BAD_BATCH
    assert archived(node, tmp_path).last_batch == 0
    archived(node, tmp_path).append(1, [batch])
    assert archived(node, tmp_path).batch(1).equals(batch)


def test_another_cluster_writes_beside_and_never_into_it(node: FakeNode, tmp_path: Path) -> None:
    node.flow.seal_all(ITEMS[:20], 10)
    assert job.run(settings(node, tmp_path), threading.Event()) == 0
    node.flow.cluster_identity = "decaf"
    assert archived(node, tmp_path).last_batch == 0
    assert job.run(settings(node, tmp_path), threading.Event()) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c0ffee", "decaf"]


def test_archiver_that_was_overtaken_ends(node: FakeNode, tmp_path: Path) -> None:
    node.flow.seal_all(ITEMS[:20], 10)
    node.before_batch = lambda number: node.flow.attach("archive", "another")
    assert job.run(settings(node, tmp_path), threading.Event()) == 3


def source(node: FakeNode, directory: Path, **how: str) -> SourceOptions:
    told = {"endpoints": node.url, "flow": node.flow.name, "archive": f"file://{directory}", "timeout_s": "0"}
    return SourceOptions.parse({**told, **how})


def read(options: SourceOptions) -> list[int]:
    reader = FlowReader(options)
    return commits(reader, reader.partitions())


def commits(reader: FlowReader, shares: Sequence[InputPartition]) -> list[int]:
    return [commit for share in shares for batch in reader.read(share) for commit in batch.column("commit").to_pylist()]


@pytest.mark.parametrize("dropped_before", [1, 2, 9, 15, 21])
def test_source_goes_from_the_archive_to_the_gateway_without_gap_or_overlap(
    node: FakeNode, tmp_path: Path, dropped_before: int
) -> None:
    node.flow.seal_all(ITEMS[:70], 5)
    assert job.run(settings(node, tmp_path), threading.Event()) == 0
    node.flow.seal_all(ITEMS[70:], 5)
    everything = [commit for commit, _, _ in ITEMS]
    node.flow.drop_before(min(dropped_before, 15))
    assert read(source(node, tmp_path)) == everything
    # Dropped while they are read, after the driver has planned.
    reader = FlowReader(source(node, tmp_path, partitions_max="3"))
    shares = reader.partitions()
    assert job.run(settings(node, tmp_path), threading.Event()) == 0
    node.flow.drop_before(max(dropped_before, 15))
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


@pytest.mark.parametrize("url", ["nowhere://ann:se/cr@et@b/x", "s3://ann:se/cr et@b/x", "hdfs://ann:se/cret@b/x"])
def test_a_key_in_a_url_is_not_told(url: str) -> None:
    with pytest.raises(StoreError) as refused:
        FlowArchive(url, "c", "f")
    assert refused.value.code is StoreCode.BAD_OPTION
    assert "se/cr" not in str(refused.value)


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


@pytest.fixture
def bucket() -> Iterator[str]:
    """URL of an empty place in an S3-like store."""
    with s3_like("archives") as url:
        yield url


def test_an_s3_like_store_holds_the_archive_and_gives_every_batch_back(node: FakeNode, bucket: str) -> None:
    node.flow.seal_all(ITEMS, 7)
    how = ArchiveSettings(
        endpoints=node.url, flow=node.flow.name, archive=bucket, file_bytes=1_000, available_now=True, timeout_s=0
    )
    pyarrow.fs.FileSystem.from_uri(bucket)[0].create_dir("archives")
    assert job.run(how, threading.Event()) == 0
    node.flow.drop_before(16)
    archive = FlowArchive(bucket, node.flow.cluster_identity, node.flow.name)
    assert (archive.first_batch, archive.last_batch) == (1, 15)
    assert items(archive) == ITEMS
    assert job.verify(how) == 15
    # One that was lost is named, and one that was changed.
    files, _ = pyarrow.fs.FileSystem.from_uri(bucket)
    place = f"archives/place/{node.flow.cluster_identity}/{node.flow.name}/data"
    first, *_, last = sorted(info.path for info in files.get_file_info(pyarrow.fs.FileSelector(place)))
    files.delete_file(first)
    with files.open_output_stream(last) as stream:
        stream.write(b"another")
    again = FlowArchive(bucket, node.flow.cluster_identity, node.flow.name)
    assert code_of(again.batch, 1) is StoreCode.BAD_BATCH
    assert code_of(again.batch, 15) is StoreCode.BAD_BATCH


def test_an_s3_like_store_that_does_not_answer_is_unavailable(node: FakeNode) -> None:
    (port,) = free_ports(1)
    url = f"s3://user:secret@archives/place?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
    assert code_of(FlowArchive, url, "c0ffee", "posts") is StoreCode.STORE_UNAVAILABLE


SEEN = StoreTable(
    name="seen",
    columns=(Column("key", ColumnType.TEXT), Column("commit", ColumnType.INT64), Column("length", ColumnType.INT64)),
    partition_key=("key",),
    clustering=(Clustering("commit"),),
)


def first_version(batch: FlowBatch) -> Iterator[Change]:
    for item in batch:
        yield item.upsert(SEEN, key=item.key, commit=item.commit, length=99)


def second_version(batch: FlowBatch) -> Iterator[Change]:
    for item in batch:
        if item.value is not None:
            yield item.upsert(SEEN, key=item.key, commit=item.commit, length=len(item.value))


@pytest.mark.spark
def test_a_replay_reads_dropped_batches_from_the_archive(node: FakeNode, tmp_path: Path, spark: SparkSession) -> None:
    node.flow.seal_all(ITEMS, 7)
    common = {
        "tables": (SEEN,),
        "endpoints": node.url,
        "flow": node.flow.name,
        "consumer": "seeing",
        "store": f"sqlite://{tmp_path}/store",
        "checkpoint": f"{tmp_path}/checkpoint",
        "timeout_s": 5,
    }
    live = JobSettings(**common, sink=sink_of(first_version, "first-seen"))
    assert jobs.run(spark, live, threading.Event()) == 0
    assert job.run(settings(node, tmp_path / "archive"), threading.Event()) == 0
    node.flow.drop_before(11)
    named = {"replay": "lengths", "from_batch": 3, "to_batch": 13, "sink": sink_of(second_version, "second-seen")}
    # Without the archive it is refused, and with it dry runs and restarts are as ever.
    assert jobs.run(spark, JobSettings(**common, **named), threading.Event()) == 4
    told = JobSettings(**common, **named, archive=f"file://{tmp_path}/archive")
    assert any("reads batches 3..13" in line for line in preview(told))
    for _ in range(2):
        assert jobs.run(spark, told, threading.Event()) == 0
    with claimed_store(common["store"]) as store:
        found = {row["commit"]: row["length"] for rows in store.scan(SEEN) for row in rows.to_pylist()}
    revised = range(2 * 7 + 1, 13 * 7 + 1)
    wanted = {
        commit: len(value or "") if commit in revised else 99
        for commit, _, value in ITEMS
        if commit not in revised or value is not None
    }
    assert found == wanted
    assert node.flow.consumers.keys() == {"seeing", "archive"}
