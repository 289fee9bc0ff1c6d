"""The queue between apply and the disk, on disks that fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from oncegate.flows import range_body, segment
from oncegate.flows.chunks import SealedBatch
from oncegate.flows.errors import FlowError, NotFoundError, SegmentConflict
from oncegate.flows.open_segment import OpenSegment
from oncegate.flows.publisher import BatchStore, Publisher
from oncegate.flows.segment_store import SegmentStore

TIMEOUT_S = 60


class FakeDisk:
    """Keeps batches in memory; each error in ``failures`` spoils one attempt; closed by ``gate``."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.gate = threading.Event()
        self.gate.set()
        self.batches: dict[tuple[str, int], bytes] = {}
        self.threads: set[str] = set()
        self.written: list[tuple[str, int]] = []

    def put(self, flow: str, number: int, payload: bytes) -> str:
        self.threads.add(threading.current_thread().name)
        assert self.gate.wait(TIMEOUT_S)
        if self.failures:
            raise self.failures.pop(0)
        self.batches[flow, number] = payload
        self.written.append((flow, number))
        return segment.checksum(payload)

    def get(self, flow: str, number: int) -> bytes:
        if (flow, number) not in self.batches:
            raise NotFoundError("no such batch")
        return self.batches[flow, number]

    def checksum(self, flow: str, number: int) -> str:
        return segment.checksum(self.get(flow, number))

    def piece(self, flow: str, number: int, offset: int, size_bytes: int) -> tuple[int, str, bytes]:
        data = self.get(flow, number)
        return len(data), segment.checksum(data), data[offset : offset + size_bytes]

    def drop_through(self, flow: str, number: int) -> None:
        for key in [key for key in self.batches if key[0] == flow and key[1] <= number]:
            del self.batches[key]


class Heard:
    """What the publisher reported."""

    def __init__(self) -> None:
        self.failed: list[tuple[str, int, Exception]] = []
        self.failure = threading.Event()

    def on_failure(self, flow: str, number: int, error: Exception) -> None:
        self.failed.append((flow, number, error))
        self.failure.set()


def batch(number: int, flow: str = "f", body: bytes | None = None) -> SealedBatch:
    part = OpenSegment(flow, "t")
    part.append_one(number * 10, "k", b"%d" % number, 1, 1, 1)
    part.append_range(number * 10 + 1, 1, 1, 1, 1, range_body.encode(["l"], [b"2"]) if body is None else body)
    return part.freeze(number)


def payload(sealed: SealedBatch) -> bytes:
    return segment.build(sealed.chunks, sealed.flow, sealed.table, sealed.number)


@contextmanager
def running(store: BatchStore, *, retry_ms: int = 0, batches_max: int = 3) -> Iterator[tuple[Publisher, Heard]]:
    heard = Heard()
    publisher = Publisher(
        store,
        on_failure=heard.on_failure,
        pending_batches_max=batches_max,
        retry_ms=retry_ms,
    )
    publisher.start()
    try:
        yield publisher, heard
    finally:
        publisher.close(TIMEOUT_S)
        assert not publisher.alive


def test_batches_are_published_in_order_by_one_thread_that_is_not_the_callers() -> None:
    disk = FakeDisk()
    with running(disk) as (publisher, _):
        for number in range(1, 30):
            publisher.submit(batch(number))
        assert publisher.wait_done(publisher.mark(), TIMEOUT_S)
        assert [number for _, number in disk.written] == list(range(1, 30))
        assert disk.batches["f", 1] == payload(batch(1))
    assert disk.threads == {"segment-writer"}


def test_writer_rests_between_the_parts_of_a_batch() -> None:
    disk = FakeDisk()
    rests: list[str] = []
    publisher = Publisher(
        disk, on_failure=Heard().on_failure, rest=lambda: rests.append(threading.current_thread().name)
    )
    publisher.start()
    publisher.submit(batch(1))
    assert publisher.wait_done(publisher.mark(), TIMEOUT_S)
    publisher.close(TIMEOUT_S)
    assert disk.batches["f", 1] == payload(batch(1))
    # Behind a run, behind a range, behind their one record batch.
    assert rests == ["segment-writer"] * 3


def test_failed_write_is_reported_tried_again_and_overtaken_by_nothing() -> None:
    disk = FakeDisk(OSError(28, "No space left on device"), OSError(5, "Input/output error"))
    with running(disk) as (publisher, heard):
        publisher.submit(batch(1))
        publisher.submit(batch(2))
        assert publisher.wait_done(publisher.mark(), TIMEOUT_S)
        assert [(flow, number) for flow, number, _ in heard.failed] == [("f", 1), ("f", 1)]
        assert [number for _, number in disk.written] == [1, 2]
        assert publisher.pending_bytes == 0


@pytest.mark.parametrize(
    "fault", [OSError(5, "I/O"), ValueError("x"), MemoryError(), FlowError("x"), pa.ArrowException("x")], ids=repr
)
def test_fault_that_may_pass_of_whatever_kind_costs_an_attempt_and_not_the_worker(fault: Exception) -> None:
    with running(FakeDisk(fault)) as (publisher, heard):
        publisher.submit(batch(1))
        assert publisher.wait_done(publisher.mark(), TIMEOUT_S)
        assert heard.failed == [("f", 1, fault)]
        assert publisher.alive


def test_batch_is_read_from_memory_until_it_is_durable() -> None:
    disk = FakeDisk()
    disk.gate.clear()
    with running(disk) as (publisher, _):
        publisher.submit(batch(1))
        assert publisher.get("f", 1) == payload(batch(1))
        assert publisher.checksum("f", 1) == segment.checksum(payload(batch(1)))
        assert publisher.pending_bytes == batch(1).size_bytes
        assert disk.written == []
        disk.gate.set()
        assert publisher.wait_done(publisher.mark(), TIMEOUT_S)
        assert publisher.pending_bytes == 0
        assert publisher.get("f", 1) == payload(batch(1))
        assert publisher.checksum("f", 1) == segment.checksum(payload(batch(1)))
        with pytest.raises(NotFoundError):
            publisher.get("f", 2)


def test_chunks_stay_readable_while_the_disk_fails_for_good() -> None:
    disk = FakeDisk(*[OSError(28, "No space left on device")] * 1000)
    with running(disk, retry_ms=3_600_000) as (publisher, heard):
        publisher.submit(batch(1))
        assert heard.failure.wait(TIMEOUT_S)
        assert publisher.get("f", 1) == payload(batch(1))
        publisher.close(TIMEOUT_S)
        assert publisher.pending_bytes == batch(1).size_bytes


def test_backlog_raises_the_signal_and_its_end_lowers_it() -> None:
    disk = FakeDisk()
    disk.gate.clear()
    with running(disk, batches_max=3) as (publisher, _):
        for number in (1, 2):
            publisher.submit(batch(number))
        assert not publisher.overloaded
        publisher.submit(batch(3))
        assert publisher.overloaded
        assert publisher.pending_bytes == sum(batch(number).size_bytes for number in (1, 2, 3))
        disk.gate.set()
        assert publisher.wait_done(publisher.mark(), TIMEOUT_S)
        assert not publisher.overloaded
        assert publisher.pending_bytes == 0


def test_same_batch_submitted_twice_is_one() -> None:
    disk = FakeDisk()
    disk.gate.clear()
    with running(disk) as (publisher, _):
        publisher.submit(batch(1))
        publisher.submit(batch(1))
        disk.gate.set()
        assert publisher.wait_done(publisher.mark(), TIMEOUT_S)
        publisher.submit(batch(1))
        assert publisher.wait_done(publisher.mark(), TIMEOUT_S)
        assert [number for _, number in disk.written] == [1, 1]
        assert publisher.pending_bytes == 0


def test_drop_comes_after_the_writes_before_it() -> None:
    disk = FakeDisk()
    disk.gate.clear()
    with running(disk) as (publisher, _):
        for number in (1, 2, 3):
            publisher.submit(batch(number))
        publisher.drop_through("f", 2)
        disk.gate.set()
        assert publisher.wait_done(publisher.mark(), TIMEOUT_S)
    assert list(disk.batches) == [("f", 3)]


def test_close_writes_what_waits() -> None:
    disk = FakeDisk()
    with running(disk) as (publisher, _):
        for number in (1, 2, 3):
            publisher.submit(batch(number))
    assert len(disk.batches) == 3


def test_two_histories_of_one_batch_are_reported_and_the_file_stays(tmp_path: Path) -> None:
    store = SegmentStore(tmp_path)
    store.put("f", 1, b"another history")
    with running(store, retry_ms=3_600_000) as (publisher, heard):
        publisher.submit(batch(1))
        assert heard.failure.wait(TIMEOUT_S)
        assert isinstance(heard.failed[0][2], SegmentConflict)
    assert store.get("f", 1) == b"another history"


def test_body_that_is_no_body_is_reported_and_the_worker_lives() -> None:
    with running(FakeDisk(), retry_ms=3_600_000) as (publisher, heard):
        publisher.submit(batch(1, body=b"noise"))
        assert heard.failure.wait(TIMEOUT_S)
        assert publisher.alive


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_bug_in_a_store_ends_the_worker_visibly_and_nobody_waits_for_it() -> None:
    disk = FakeDisk(ZeroDivisionError())
    with running(disk) as (publisher, _):
        publisher.submit(batch(1))
        assert not publisher.wait_done(publisher.mark(), TIMEOUT_S)
        assert publisher.get("f", 1) == payload(batch(1))
