"""Files that a journal has open: those of its segments and of one made ready, whichever system call fails.

A node tries for as long as the disk is full, every second, so a file that stays open at one failure, or a half-made
one that keeps its room, ends the process or the disk after an hour. A walk appends, compacts and makes room while one
system call in some fails; each call of an opening fails once; and a real directory gives descriptors back as well.
"""

from __future__ import annotations

import errno
import mmap
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from oncegate.consensus.configuration import Configuration, encode
from oncegate.consensus.errors import Corrupt, FlushFailed, StorageError
from oncegate.consensus.log.ballot import Ballot
from oncegate.consensus.log.library_log import LibraryLog
from oncegate.consensus.log.log_reader import LogReader
from oncegate.consensus.log.reserve import RESERVE_FILE, renew_reserve, write_small
from oncegate.consensus.log.sealed_file import TEMPORARY_SUFFIX, read_sealed
from oncegate.consensus.log.segment import SegmentHeader, segment_name
from oncegate.consensus.log.segment_file import RETRY_S, make_segment
from oncegate.consensus.log.storage import BLOCK_BYTES, DirectoryStorage, File
from oncegate.consensus.log.wal import Journal
from oncegate.proof.sim.engine.fake_disk import FakeDisk, InlineWorker

SEGMENT_BYTES = 1024
MAGIC = b"TESTING1"
MEMBERS = encode(Configuration.of_addresses({"n1": ("127.0.0.1", 1)}))


class Counted(FakeDisk):
    """Knows which files are open."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: set[File] = set()

    def open(self, name: str) -> File:
        return self._counted(super().open(name))

    def create(self, name: str, size: int = 0) -> File:
        return self._counted(super().create(name, size))

    def _counted(self, file: File) -> File:
        self.opened.add(file)
        close = file.close

        def closed() -> None:
            self.opened.discard(file)
            close()

        vars(file)["close"] = closed
        return file

    def fail_once(self, number: int, code: int, never: tuple[str, ...] = ("close",)) -> None:
        """The ``number``-th system call from now on fails, and no other."""
        calls = count(1)

        def called(call: str, name: str) -> None:
            if call not in never and next(calls) == number:
                raise OSError(code, f"{call} failed", name)

        self.on_call = called


def opened(disk: FakeDisk, memory_bytes: int = 0) -> Journal:
    return Journal(disk, InlineWorker(), segment_bytes=SEGMENT_BYTES, memory_bytes_max=memory_bytes)


def half_made(disk: FakeDisk) -> list[str]:
    """What was begun and keeps its room; a small file's is written over by its next save."""
    return [
        name for name in disk.names() if name.endswith(TEMPORARY_SUFFIX) and name.startswith(("journal-", RESERVE_FILE))
    ]


@pytest.mark.parametrize("seed", range(8))
def test_a_journal_has_its_segments_and_one_more_open_whatever_fails_for_want_of_room(seed: int) -> None:
    dice, disk, clock = random.Random(seed), Counted(), 0.0
    journal = opened(disk)
    failed = 0
    for _ in range(300):
        if dice.random() < 0.3:
            disk.fail_once(dice.randint(1, 12), errno.ENOSPC)
        step = dice.random()
        command = bytes(dice.choice((10, 200, 600)))
        if step < 0.6 and journal.has_room(48 + len(command)):
            try:
                journal.append(command, journal.last_index + 1, 1)
                journal.flush()
            except FlushFailed:  # a node ends here
                failed += 1
                journal.abandon()
                assert not disk.opened
                disk.work_again()
                journal = opened(disk)
        elif step < 0.8:
            journal.commit_index = journal.flushed_index
            if journal.flushed_index > journal.base.index:
                journal.compact(journal.flushed_index, kept_bytes=0, configuration_at=lambda index: MEMBERS)
        clock += dice.choice((0.0, RETRY_S, 2 * RETRY_S))
        journal.maintain(clock)
        failed += journal.disk_full
        own = {segment.file for segment in (*journal._segments, *journal._unneeded)}
        assert own <= disk.opened
        assert len(disk.opened - own) <= 1, "one is made ready"
        assert not [name for name in half_made(disk) if not name.startswith(RESERVE_FILE)]
        disk.work_again()
    assert failed
    leave = dice.choice((journal.close, journal.abandon))
    leave()
    assert not disk.opened


def with_surplus_segments() -> Counted:
    """A disk of a node that was killed: some segments in use, two empty ones, and old ones that nobody needs."""
    disk = Counted()
    journal = opened(disk)
    for index in range(1, 8):
        journal.append(bytes(300), index, 1)
        journal.flush()
    journal.commit_index = journal.flushed_index
    journal.abandon()
    newest = max(int(name[8:24]) for name in disk.names() if name.startswith("journal-"))
    base = newest * SEGMENT_BYTES
    make_segment(disk, SegmentHeader(newest + 1, base, SEGMENT_BYTES, 7)).file.close()
    disk.remove(RESERVE_FILE)
    return disk


def test_an_opening_that_fails_at_any_system_call_leaves_no_file_open() -> None:
    for code in (errno.EIO, errno.ENOSPC):
        for number in count(1):
            disk = with_surplus_segments()
            disk.fail_once(number, code)
            done = len(disk.trace)
            with suppress(OSError):
                journal = opened(disk)
                with suppress(OSError):
                    journal.maintain(1.0)
                own = {segment.file for segment in journal._segments}
                assert own <= disk.opened
                assert len(disk.opened - own) <= 1
                journal.abandon()
            assert not disk.opened
            if len(disk.trace) - done < number and number > 30:
                break
        assert number > 10


@pytest.mark.parametrize("what", ["journal of a later term", "damaged", "read only", "read only and damaged"])
def test_a_directory_that_is_refused_is_left_with_no_file_open(what: str) -> None:
    disk = with_surplus_segments()
    if "damaged" in what:
        disk.bytes_of(segment_name(1))[70] ^= 1
    with suppress(StorageError, Corrupt):
        if "read only" in what:
            LogReader(disk).close()
        else:
            LibraryLog(disk, InlineWorker(), Ballot.create(disk), segment_bytes=SEGMENT_BYTES, memory_bytes_max=0)
            raise AssertionError("refused")
    assert not disk.opened


def test_small_files_are_closed_whatever_fails_and_the_room_for_them_is_whole_or_not_there() -> None:
    for number in range(1, 20):
        disk = Counted()
        write_small(disk, "ballot", MAGIC, b"first")
        disk.fail_once(number, errno.ENOSPC, ("close", "rename", "sync_directory"))
        with suppress(OSError):
            renew_reserve(disk)
        assert not disk.opened
        assert not half_made(disk)
        disk.fail_once(number, errno.ENOSPC)
        with suppress(OSError):
            write_small(disk, "ballot", MAGIC, b"second")
        disk.work_again()
        assert not disk.opened
        assert read_sealed(disk, "ballot", MAGIC) in (b"first", b"second")
        disk.bytes_of("ballot")[-1] ^= 1
        with suppress(Corrupt):
            read_sealed(disk, "ballot", MAGIC)
        assert not disk.opened


@contextmanager
def no_descriptor_more() -> Iterator[None]:
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) <= before


def failing(code: int) -> Callable[..., Any]:
    def fail(*arguments: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("call", ["posix_fallocate", "fdatasync", "pwritev", "rename", "fsync"])
def test_a_segment_that_cannot_be_made_costs_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    storage = DirectoryStorage(tmp_path)
    with no_descriptor_more():
        monkeypatch.setattr(os, call, failing(errno.ENOSPC))
        with pytest.raises(OSError, match="No space"):
            make_segment(storage, SegmentHeader(1, 0, 16 * BLOCK_BYTES, 7))
        monkeypatch.undo()
    assert not half_made_in(storage)
    storage.close()


def half_made_in(storage: DirectoryStorage) -> list[str]:
    return [name for name in storage.names() if name.endswith(TEMPORARY_SUFFIX)]


@pytest.mark.parametrize("direct", [True, False])
def test_what_the_kernel_takes_in_pieces_lies_where_it_belongs_and_a_closed_file_has_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    storage = DirectoryStorage(tmp_path)
    whole, wholev = os.pwrite, os.pwritev

    def piece(fd: int, data: Any, offset: int) -> int:
        return whole(fd, memoryview(data)[:BLOCK_BYTES], offset)

    def piecev(fd: int, buffers: Any, offset: int) -> int:
        return wholev(fd, [b"".join(buffers)[:700]], offset)

    with no_descriptor_more():
        segment = make_segment(storage, SegmentHeader(1, 0, 16 * BLOCK_BYTES, 7))
        monkeypatch.setattr(os, "pwritev", piecev)
        monkeypatch.setattr(os, "pwrite", piece)
        if not direct:
            monkeypatch.setattr(os, "O_DIRECT", 0)
        parts = [bytes([number]) * size for number, size in enumerate((1, 600, 3000, 9000, 17), 1)]
        segment.file.write(parts, 100)
        assert segment.file.read(sum(map(len, parts)), 100) == b"".join(parts)
        many = [bytes([number % 251]) * 11 for number in range(1500)]  # more buffers than one call takes
        segment.file.write(many, 50)
        assert segment.file.read(11 * len(many), 50) == b"".join(many)
        blocks = mmap.mmap(-1, 3 * BLOCK_BYTES)  # begins at a page
        for number in range(3):
            blocks[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES] = bytes([65 + number]) * BLOCK_BYTES
        with memoryview(blocks) as view:
            segment.file.write_blocks(view, 2 * BLOCK_BYTES)
        assert segment.file.read(3 * BLOCK_BYTES, 2 * BLOCK_BYTES) == blocks[:]
        segment.file.close()
    storage.close()
