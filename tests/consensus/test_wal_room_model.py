"""The room of a journal (`wal`) as it is told, and what is tried again where there was none, against plain counting."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import pytest

from oncegate.consensus.configuration import Configuration, encode
from oncegate.consensus.errors import Corrupt
from oncegate.consensus.log.segment import RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES
from oncegate.consensus.log.segment_file import RETRY_S
from oncegate.consensus.log.wal import Journal
from oncegate.proof.sim.engine.fake_disk import FakeDisk, InlineWorker

SEGMENT_BYTES = 1024
MOST = SEGMENT_BYTES - SEGMENT_HEADER_BYTES
"""Of records in a segment."""
T = TypeVar("T")


def members(index: int) -> bytes:
    return encode(Configuration.of_addresses({f"n{index}": ("127.0.0.1", 1)}))


class Worker:
    """Runs a job at once, unless it is held: then once it is let go."""

    def __init__(self) -> None:
        self._inline, self.is_held = InlineWorker(), False
        self._held: list[tuple[Callable[[], object], Future[object]]] = []
        self.jobs = 0

    def submit(self, job: Callable[[], T], /) -> Future[T]:
        self.jobs += 1
        if not self.is_held:
            done: Future[T] = self._inline.submit(job)  # type: ignore[no-untyped-call]
            return done
        waiting: Future[T] = Future()
        self._held.append((job, waiting))  # type: ignore[arg-type]
        return waiting

    def let_go(self) -> None:
        self.is_held = False
        for job, waiting in self._held:
            waiting.set_result(job())
        self._held = []


def opened(disk: FakeDisk, worker: Worker) -> Journal:
    return Journal(disk, worker, segment_bytes=SEGMENT_BYTES, memory_bytes_max=1 << 20)


@pytest.mark.parametrize("seed", range(6))
def test_room_that_is_told_is_that_of_the_segment_in_use_and_of_the_next_one_if_there_is_any(seed: int) -> None:
    """The next one counts also while it is being made: probably there will be one. On a full disk it does not."""
    dice, disk, worker = random.Random(seed), FakeDisk(), Worker()
    journal, left, now, full = opened(disk, worker), MOST, 0.0, 0
    for _ in range(200):
        size = RECORD_HEADER_BYTES + dice.choice((1, 50, 300, max(1, left - RECORD_HEADER_BYTES), 900))
        if journal.has_room(size):
            left = (left if size <= left else MOST) - size
            worker.is_held = disk.capacity is None and dice.random() < 0.3
            journal.append(bytes([1]) * (size - RECORD_HEADER_BYTES), journal.last_index + 1, 1)
            if worker.is_held and not journal.disk_full:
                assert journal.room_bytes == left + MOST, "while the next one is being made"
            worker.let_go()
        has_next = journal.has_room(left + 1)
        assert journal.disk_full == (not has_next)
        assert journal.room_bytes == left + MOST * has_next
        assert journal.has_room(left)
        full += not has_next
        if dice.random() < 0.1:
            disk.capacity = None if disk.capacity is not None else disk.used
        if dice.random() < 0.2:
            for _ in range(3):  # it is seen, tried again, and seen
                journal.maintain(now := now + 2 * RETRY_S)
            assert disk.capacity is not None or journal.has_room(left + 1)
    assert full, "the disk was full once"


@pytest.mark.parametrize("full_errno", [errno.ENOSPC, errno.EDQUOT])
def test_removal_that_found_no_room_is_tried_again_once_a_while_and_until_it_succeeds(full_errno: int) -> None:
    disk, worker = FakeDisk(), Worker()
    journal = opened(disk, worker)
    while len(journal._segments) < 4:
        journal.append(bytes(400), journal.last_index + 1, 1)
    journal.flush()
    journal.commit_index = journal.last_index

    def full(call: str, name: str) -> None:
        if call == "remove":
            raise OSError(full_errno, "full")

    disk.on_call = full
    journal.compact(journal.last_index - 1, kept_bytes=0, configuration_at=members)
    began, now = worker.jobs, 50.0
    for _ in range(8 * 10):
        journal.maintain(now)
        now += RETRY_S / 8
    assert 7 <= worker.jobs - began <= 10, "no more than ten times in ten such whiles"
    disk.work_again()
    journal.maintain(now + RETRY_S)
    journal.maintain(now + RETRY_S)
    names = [name for name in disk.names() if name.startswith("journal-")]
    assert len(names) <= len(journal._segments) + 1
    tries = worker.jobs
    for _ in range(9):
        journal.maintain(now := now + 2 * RETRY_S)
    assert worker.jobs == tries, "what is gone is not removed again"


def test_removal_that_fails_otherwise_is_the_failure_of_the_disk() -> None:
    disk = FakeDisk()
    journal = opened(disk, Worker())
    while len(journal._segments) < 3:
        journal.append(bytes(400), journal.last_index + 1, 1)
    journal.flush()
    journal.commit_index = journal.last_index
    disk.fail_from(1, OSError(errno.EIO, "broken"))
    journal.compact(journal.last_index, kept_bytes=0, configuration_at=members)
    with pytest.raises(OSError, match="broken"):
        journal.maintain(1.0)


def test_segments_follow_one_another_also_where_starts_make_them_of_other_sizes() -> None:
    """Each segment says its own size; what a setting says is of those to come."""
    dice, disk, expected = random.Random(1), FakeDisk(), list[bytes]()
    for _ in range(12):
        size = dice.choice((1024, 2048, 4096))
        journal = Journal(disk, Worker(), segment_bytes=size, memory_bytes_max=0)
        found = list[bytes]()
        while (first := journal.first_index + len(found)) <= journal.last_index:
            found += [entry[0] for entry in journal.entries(first, journal.last_index, bytes_max=1 << 20)]
        assert found == expected
        for _ in range(dice.randint(0, 12)):
            expected.append(dice.randbytes(dice.choice((5, 300, 700))))
            journal.append(expected[-1], journal.last_index + 1, 1)
        journal.flush()
        if dice.random() < 0.5:
            journal.close()
        else:
            disk.kill()
        disk.close()


@pytest.mark.parametrize("lost", range(2, 6))
def test_log_whose_first_segments_went_still_says_which_record_at_their_border_is_missing(lost: int) -> None:
    """How the log stood at the begin of a segment is kept for when it is the first one."""
    disk = FakeDisk()
    journal = opened(disk, Worker())
    for index in range(1, 20):
        journal.append(bytes(300), index, index // 3 + 1)
        journal.flush()
    journal.commit_index = journal.last_index
    starts = {one.header.sequence: (one.prior_end, one.last_index, one.last_term) for one in journal._segments}
    for one, following in zip(journal._segments, journal._segments[1:], strict=False):
        prior_end, last_index, last_term = starts[following.header.sequence]
        assert one.header.base < prior_end <= following.header.base, "all of the segment before was flushed"
        assert journal.term_at(last_index) == last_term
        assert last_index >= one.last_index
    journal.compact(journal.last_index - lost, kept_bytes=0, configuration_at=members)
    first, entries = journal.base, journal.entries(journal.first_index, journal.last_index, bytes_max=1 << 20)
    disk.kill()
    again = opened(disk, Worker())
    assert again.base == first
    assert again.entries(again.first_index, again.last_index, bytes_max=1 << 20) == entries
    assert again._segments[0].last_term == starts[again._segments[0].header.sequence][2]
    assert again.commit_index >= first.index
    again.abandon()
    # The first record of the first segment is lost: what follows says so.
    name = min(name for name in disk.names() if name.startswith("journal-"))
    file = disk.open(name)
    file.write([bytes(RECORD_HEADER_BYTES)], SEGMENT_HEADER_BYTES)
    file.sync()
    disk.close()
    with pytest.raises(Corrupt):
        opened(disk, Worker())
