"""Which batches an archive says that it has, for any files in it: those up to the first hole, each from a file that
holds it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.flow_client import FlowClient, FlowState
from oncegate.spark_sink.jobs import archive as job
from oncegate.spark_sink.jobs.archive import ArchiveSettings
from oncegate.stores.archive import VERSION, ArchivedFile, FlowArchive
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.retry import Retry
from tests.spark.fake_gateway import FakeNode

places = st.lists(
    st.tuples(st.integers(1, 12), st.integers(0, 5)).map(lambda place: (place[0], place[0] + place[1])),
    max_size=8,
    unique=True,
)
"""First and last batch of each file; several writers leave overlapping ones."""


def _archive(directory: Path, files: list[tuple[int, int]]) -> FlowArchive:
    manifest = directory / "c" / "f" / "manifest"
    manifest.mkdir(parents=True)
    for first, last in files:
        count = last - first + 1
        entry = ArchivedFile(
            VERSION, "c", "f", first, last, [1] * count, list(range(first, last + 1)), 0, 0, 1, "0" * 64
        )
        (manifest / f"{entry.name}.json").write_bytes(msgspec.json.encode(entry))
    return FlowArchive(f"file://{directory}", "c", "f")


@settings(max_examples=150, deadline=None)
@given(places)
def test_archive_is_whole_up_to_its_first_hole_and_no_further(
    tmp_path_factory: pytest.TempPathFactory, files: list[tuple[int, int]]
) -> None:
    archive = _archive(tmp_path_factory.mktemp("archive"), files)
    held = {number for first, last in files for number in range(first, last + 1)}
    begin = min(held, default=1)
    end = begin - 1
    while end + 1 in held:
        end += 1
    assert (archive.first_batch, archive.last_batch) == (begin, end)
    behind = min((number for number in held if number > end), default=None)
    assert archive.hole == (None if behind is None else (end + 1, behind - 1))
    for number in range(20):
        if number in held:
            found = archive.entry(number)
            assert found.first_batch <= number <= found.last_batch
            assert (found.first_batch, found.last_batch) in files
        else:
            with pytest.raises(StoreError) as refused:
                archive.entry(number)
            assert refused.value.code is StoreCode.RETENTION_EXCEEDED
    covered = [number for one in archive.entries() for number in range(one.first_batch, one.last_batch + 1)]
    assert set(range(begin, end + 1)) <= set(covered) <= held
    assert [one.first_batch for one in archive.entries()] == sorted({one.first_batch for one in archive.entries()})


@pytest.mark.parametrize("lost", range(1, 6))
def test_archive_that_lacks_a_file_is_never_told_as_whole(node: FakeNode, tmp_path: Path, lost: int) -> None:
    """Whichever it is: of the last one nothing is left that tells of it, but the flow's own end."""
    node.flow.seal_all([(commit, "k", "1") for commit in range(1, 6)], 1)
    client = FlowClient([node.url], node.flow.name, retry=Retry(0))
    archive = FlowArchive(f"file://{tmp_path}", node.flow.cluster_identity, node.flow.name)
    for number in range(1, 6):
        archive.append(number, [client.batch(number)])
    settings = ArchiveSettings(endpoints=node.url, flow=node.flow.name, archive=f"file://{tmp_path}", timeout_s=0)
    assert job.verify(settings) == 5
    (tmp_path / node.flow.cluster_identity / node.flow.name / "manifest" / f"{lost:016d}-{lost:016d}.json").unlink()
    if lost in (1, 5):
        assert job.verify(settings) == 4, "an archive may begin and end anywhere"
        return
    with pytest.raises(StoreError, match=rf"batches {lost}\.\.{lost} of .* are missing") as refused:
        job.verify(settings)
    assert refused.value.code is StoreCode.BAD_BATCH


spans = st.tuples(st.integers(0, 6), st.integers(1, 8), st.integers(0, 8))


@settings(max_examples=80, deadline=None)
@given(spans)
def test_archive_and_flow_join_if_and_only_if_no_batch_is_missing_between(
    tmp_path_factory: pytest.TempPathFactory, span: tuple[int, int, int]
) -> None:
    archived, first, last = span
    archive = _archive(tmp_path_factory.mktemp("archive"), [(1, archived)] if archived else [])
    state = FlowState(first, last, {})
    if not archived or first - 1 <= archived <= last:
        job.check_joins(archive, state)
        return
    with pytest.raises(SinkError) as refused:
        job.check_joins(archive, state)
    gap = archived + 1 < first
    assert refused.value.code is (StoreCode.RETENTION_EXCEEDED if gap else StoreCode.FLOW_REFUSED)
