"""The journal: what was flushed is read back, or the node refuses to start."""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bench.usage import written_bytes
from oncegate.consensus.errors import Corrupt, FlushFailed, SafetyViolation
from oncegate.consensus.log import storage
from oncegate.consensus.log.segment import RECORD_HEADER_BYTES, SECTOR_BYTES, SEGMENT_HEADER_BYTES, segment_name
from oncegate.consensus.log.storage import BLOCK_BYTES, BlockWriter, DirectoryStorage
from oncegate.consensus.log.wal import Journal
from oncegate.proof.sim.engine.fake_disk import FakeDisk, InlineWorker, Killed

SEGMENT = 1024


def open_journal(disk, *, segment_bytes=SEGMENT, memory_bytes_max=1 << 20):
    return Journal(disk, InlineWorker(), segment_bytes=segment_bytes, memory_bytes_max=memory_bytes_max)


def entries_of(journal):
    found = []
    while len(found) < journal.last_index:
        found += journal.entries(len(found) + 1, journal.last_index, bytes_max=1 << 20)
    return found


def fill(journal, batches, *, size=20, term=1):
    """Append batches of entries, each flushed; returns the entries."""
    for count in batches:
        for _ in range(count):
            index = journal.last_index + 1
            journal.append(bytes([index % 256]) * size, index, term)
        journal.flush()
    return entries_of(journal)


def filled(batches, **bounds):
    """A disk, its journal of so many flushed batches, and their entries."""
    disk = FakeDisk()
    journal = open_journal(disk, **bounds)
    return disk, journal, fill(journal, batches)


def failing(call, name_part):
    """A fault of the disk: every such system call from now on."""

    def fail(called, name):
        if called == call and name_part in name:
            raise OSError(errno.EIO, "input/output error", name)

    return fail


def survives(disk, expected):
    assert entries_of(open_journal(disk)) == expected


def test_entries_come_back_after_a_clean_stop_on_a_real_disk(tmp_path):
    disk = DirectoryStorage(tmp_path)
    journal = open_journal(disk)
    expected = fill(journal, [1, 30, 2], size=70)
    journal.close()
    journal = open_journal(disk)
    assert entries_of(journal) == expected
    journal.close()
    disk.close()


def test_one_flush_a_batch_and_none_for_an_empty_one():
    disk = FakeDisk()
    journal = open_journal(disk, segment_bytes=1 << 16)
    disk.trace.clear()
    fill(journal, [1, 50, 3])
    journal.flush()
    assert disk.trace == [("write", segment_name(1)), ("sync", segment_name(1))] * 3


def charged(journal, size):
    """Bytes that the file system says one flush of a command of this size writes."""
    before = written_bytes()
    fill(journal, [1], size=size)
    return written_bytes() - before


def test_a_flush_is_charged_its_blocks_and_no_more_whatever_its_size(tmp_path):
    disk = DirectoryStorage(tmp_path)
    journal = open_journal(disk, segment_bytes=8 << 20)
    sizes = [350, 30_000, 350, 2_500_000, *[9000] * 20, 250_000]
    found = [charged(journal, size) for size in sizes]
    expected = entries_of(journal)
    journal.close()
    if not any(found):
        pytest.skip("this file system does not say what is written")
    journal = open_journal(disk, segment_bytes=8 << 20)
    sizes += [350] * 5
    found += [charged(journal, 350) for _ in range(5)]
    # A block begun before, one not filled.
    assert [size for size, bytes_ in zip(sizes, found, strict=True) if bytes_ > size + 3 * 4096] == []
    assert entries_of(journal)[: len(expected)] == expected
    journal.close()
    disk.close()


@pytest.mark.parametrize("seed", range(10))
def test_small_and_large_batches_in_one_segment_come_back_after_a_failed_flush_and_a_kill(seed, monkeypatch):
    # Written two blocks at a time: a batch meets each border within few entries.
    monkeypatch.setattr(storage, "MEMORY_BYTES", 8192)
    rng = random.Random(seed)
    disk = FakeDisk()
    journal = open_journal(disk, segment_bytes=1 << 16)
    for _ in range(3):
        for size in rng.choices((60, 700, 5000, 20_000), k=rng.randrange(1, 12)):
            journal.append(rng.randbytes(size), journal.last_index + 1, 1)
            journal.flush()
        flushed = entries_of(journal)
        journal.append(rng.randbytes(rng.choice((60, 5000))), journal.last_index + 1, 1)
        disk.on_call = failing("sync", "segment")
        with pytest.raises(FlushFailed):
            journal.flush()
        disk.work_again()
        if rng.random() < 0.5:
            disk.kill(rng)
        else:
            disk.close()
        journal = open_journal(disk, segment_bytes=1 << 16)
        assert entries_of(journal)[: len(flushed)] == flushed


@given(sizes=st.lists(st.integers(1, 20_000), max_size=12), offset=st.integers(0, 9000), seed=st.integers(0, 9))
@example(sizes=[100, 4096 - 200, 10, 4086, 8192, 5], offset=100, seed=0)  # some end where a block does
def test_whole_blocks_leave_the_bytes_that_the_batches_alone_would(sizes, offset, seed):
    rng, disk = random.Random(seed), FakeDisk()
    file_bytes = 1 << 16
    plain, blocks = disk.create("plain", file_bytes), disk.create("blocks", file_bytes)
    for file in (plain, blocks):
        file.write([b"x" * offset], 0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(storage, "MEMORY_BYTES", 8192)
        writer = BlockWriter()
        for size in sizes:
            if offset + size <= file_bytes:
                data = rng.randbytes(size)
                batch = [data[:7], data[7:]]
                plain.write(batch, offset)
                writer.write(blocks, batch, offset, size, file_bytes)
                offset += size
    assert disk.bytes_of("blocks") == disk.bytes_of("plain")


def test_blocks_come_back_from_a_disk_that_takes_fewer_at_a_time_than_it_is_given(tmp_path, monkeypatch):
    memory, seen = mmap.mmap(-1, 5 * BLOCK_BYTES), []

    def one_block(fd, data, offset, write=os.pwrite):
        seen.append(offset)
        return write(fd, data[:BLOCK_BYTES], offset)

    memory[:] = random.Random(1).randbytes(len(memory))
    disk = DirectoryStorage(tmp_path)
    file = disk.create("blocks", 8 * BLOCK_BYTES)
    monkeypatch.setattr(storage.os, "pwrite", one_block)
    file.write_blocks(memoryview(memory), 2 * BLOCK_BYTES)
    file.write([b"x" * 3 * BLOCK_BYTES, *[b"y"] * 2000], 0)
    assert sorted({*seen}) == [number * BLOCK_BYTES for number in range(7)]
    assert file.read(8 * BLOCK_BYTES, 0) == (
        b"x" * 3 * BLOCK_BYTES + b"y" * 2000 + memory[BLOCK_BYTES + 2000 :] + bytes(BLOCK_BYTES)
    )
    file.close()
    disk.close()


@pytest.mark.parametrize("before", [[], [20]], ids=["all of the segment", "what is left of it"])
def test_a_record_that_ends_where_its_segment_does_is_taken_and_the_next_one_is_in_the_next_segment(before):
    disk = FakeDisk()
    journal = open_journal(disk)
    fill(journal, [len(before)] if before else [], size=20)
    size = SEGMENT - SEGMENT_HEADER_BYTES - sum(20 + RECORD_HEADER_BYTES for _ in before) - RECORD_HEADER_BYTES
    assert journal._fits(size + RECORD_HEADER_BYTES)
    assert not journal._fits(size + RECORD_HEADER_BYTES + 1)
    for payload in (bytes(range(256)) * 4, b"next"):
        journal.append(payload[:size], journal.last_index + 1, 1)
        journal.flush()
    assert [segment.header.sequence for segment in journal._segments] == [1, 2]
    assert journal._segments[1].last_index == len(before) + 1
    expected = entries_of(journal)
    journal.close()
    disk.close()
    survives(disk, expected)


def test_a_batch_is_flushed_before_the_next_segment_is_written():
    disk = FakeDisk()
    journal = open_journal(disk)
    disk.trace.clear()
    for index in range(1, 40):
        journal.append(bytes(100), index, 1)
    journal.flush()
    used = [call for call in disk.trace if call[0] in ("write", "sync") and not call[1].endswith(".tmp")]
    assert used == [(call, segment_name(n)) for n in range(1, 8) for call in ("write", "sync")][: len(used)]
    assert len(used) >= 8


@pytest.mark.parametrize("seed", range(30))
def test_any_part_of_an_unflushed_batch_may_survive_a_kill(seed):
    rng = random.Random(seed)
    disk = FakeDisk()
    journal = open_journal(disk, segment_bytes=1 << 14)
    written, flushed = [], 0
    for _ in range(rng.randrange(1, 5)):
        for _ in range(6):
            for _ in range(rng.randrange(1, 6)):
                index = journal.last_index + 1
                journal.append(rng.randbytes(rng.randrange(2, 900)), index, 1)
                written.append(journal.entry(index))
            journal.flush()
            flushed = journal.last_index
        for _ in range(3):
            index = journal.last_index + 1
            journal.append(rng.randbytes(350) + bytes(rng.choice((0, 350, 1200))), index, 1)
            written.append(journal.entry(index))
        # The write reaches the disk, the flush does not.
        journal._segments[-1].file.write(journal._batch, journal._batch_start - journal._segments[-1].header.base)
        disk.kill(rng)
        journal = open_journal(disk, segment_bytes=1 << 14)
        found = entries_of(journal)
        assert len(found) >= flushed
        assert found == written[: len(found)]
        written = found


def test_a_shorter_batch_after_a_torn_one_never_resurrects_old_bytes():
    disk, journal, _ = filled([2], segment_bytes=1 << 14)
    for index in (3, 4, 5):
        journal.append(bytes([index]) * 1000, index, 1)
    offset = journal._batch_start
    journal.flush()
    # The first sector of the batch never arrived; its later entries did.
    missing = SECTOR_BYTES - offset % SECTOR_BYTES
    disk.bytes_of(segment_name(1))[offset : offset + missing] = bytes(missing)
    journal = open_journal(disk, segment_bytes=1 << 14)
    assert journal.last_index == 2
    journal.append(b"\3" * 1000, 3, 2)
    journal.flush()
    assert open_journal(disk, segment_bytes=1 << 14).last_index == 3


def small_journal():
    """Three flushed batches in two segments."""
    disk = FakeDisk()
    journal = open_journal(disk, segment_bytes=400)
    entries = fill(journal, [2, 1, 3], size=30)
    assert len(journal._segments) == 2
    return disk, journal, entries


def segments_of(disk):
    return [name for name in disk.names() if name.endswith(".segment")]


def end_of_records(journal, name):
    """Offset in a segment behind its last record."""
    for segment in journal._segments:
        if segment_name(segment.header.sequence) == name:
            return min(journal._end - segment.header.base, segment.header.size)
    return SEGMENT_HEADER_BYTES


def three_sectors():
    """Flushed batches in two segments of three sectors; the last one takes two of them."""
    disk = FakeDisk()
    journal = open_journal(disk, segment_bytes=3 * SECTOR_BYTES)
    entries = fill(journal, [1, 2], size=400) + fill(journal, [3], size=250)[3:]
    assert len(journal._segments) == 2
    assert SECTOR_BYTES < end_of_records(journal, segment_name(2)) < 2 * SECTOR_BYTES
    return disk, journal, entries


def opens(disk, segment_bytes=3 * SECTOR_BYTES):
    """The journal, or None when it is refused, with the file's name and a place in it."""
    try:
        return open_journal(disk, segment_bytes=segment_bytes)
    except Corrupt as error:
        refused = error
    assert refused.file.startswith("fake:/journal-")
    assert 0 <= refused.offset <= segment_bytes
    return None


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_a_flip_at_any_byte_is_refused_also_in_the_batch_flushed_last(mask):
    disk, journal, entries = three_sectors()
    refused = harmless = 0
    for name in segments_of(disk):
        data = disk.bytes_of(name)
        end = end_of_records(journal, name)
        # Behind the end only zeros can change. Up to the end of the sector that cannot be told from a record.
        trusted = end - end % SECTOR_BYTES + SECTOR_BYTES
        for offset in range(len(data)):
            whole = bytes(data)
            data[offset] ^= mask
            reader = opens(disk)
            assert (reader is None) == (offset < trusted), (name, offset)
            if reader is not None:
                assert entries_of(reader) == entries
            refused += reader is None
            harmless += reader is not None
            data[:] = whole
    assert refused > 1500
    assert harmless > 500


@pytest.mark.parametrize("size", [0, 1, 13, 300])
def test_a_flip_is_refused_wherever_the_borders_of_sectors_cut_the_last_record(size):
    for before in range(350, 350 + SECTOR_BYTES, 1 if size == 0 else 11):
        disk = FakeDisk()
        journal = open_journal(disk, segment_bytes=3 * SECTOR_BYTES)
        fill(journal, [1], size=before)
        start = journal._end
        journal.append(b"\x81" * size, 2, 1)
        journal.flush()
        data = disk.bytes_of(segment_name(1))
        for offset in (*range(start, start + RECORD_HEADER_BYTES), journal._end - 1):
            for bit in (0, 7):
                data[offset] ^= 1 << bit
                assert opens(disk) is None, (before, offset - start, bit)
                data[offset] ^= 1 << bit


def test_a_batch_of_which_any_sectors_are_missing_is_torn_not_damaged():
    for before in range(340, 340 + SECTOR_BYTES, 3):
        disk = FakeDisk()
        journal = open_journal(disk, segment_bytes=8 * SECTOR_BYTES)
        flushed = fill(journal, [1], size=before)
        start = journal._end
        for index, size in ((2, 30), (3, 0), (4, 600), (5, 500)):
            journal.append(bytes([index]) * size, index, 1)
        journal.flush()
        written = bytes(disk.bytes_of(segment_name(1)))
        sectors = range(start - start % SECTOR_BYTES, journal._end, SECTOR_BYTES)
        for count in range(1, len(sectors) + 1):
            for missing in itertools.combinations(sectors, count):
                data = bytearray(written)
                for sector in missing:
                    low = max(sector, start)
                    data[low : sector + SECTOR_BYTES] = bytes(sector + SECTOR_BYTES - low)
                disk.bytes_of(segment_name(1))[:] = data
                found = entries_of(open_journal(disk, segment_bytes=8 * SECTOR_BYTES))
                assert flushed == found[:1], (before, missing)
                assert len(found) < 5 or journal._end <= missing[0]
        disk.bytes_of(segment_name(1))[:] = written


@pytest.mark.parametrize("seed", range(20))
def test_a_wipe_of_a_torn_batch_that_is_cut_itself_leaves_a_torn_batch(seed):
    rng = random.Random(seed)
    disk, journal, expected = filled([1], segment_bytes=8 * SECTOR_BYTES)
    for index in (2, 3, 4):
        journal.append(bytes([index]) * 900, index, 1)
    journal.flush()
    file = disk.open(segment_name(1))
    file.write([bytes(SECTOR_BYTES)], SECTOR_BYTES)
    file.sync()

    def power_loss(call, name):
        if call == "sync":
            raise Killed

    for _ in range(5):
        disk.on_call = power_loss
        with pytest.raises(Killed):
            open_journal(disk, segment_bytes=8 * SECTOR_BYTES)
        disk.work_again()
        disk.kill(rng)
    assert entries_of(open_journal(disk, segment_bytes=8 * SECTOR_BYTES)) == expected


def test_a_flip_in_a_payload_with_a_zero_sector_may_be_taken_for_a_torn_write():
    """The limit of the rule: the sector that is zero by right looks as if it had never been written."""
    disk, journal, _ = filled([1], segment_bytes=8 * SECTOR_BYTES)
    start = journal._end
    journal.append(b"\1" + bytes(2 * SECTOR_BYTES), 2, 1)
    journal.flush()
    written = bytes(disk.bytes_of(segment_name(1)))
    disk.bytes_of(segment_name(1))[start + RECORD_HEADER_BYTES] ^= 2
    assert open_journal(disk, segment_bytes=8 * SECTOR_BYTES).last_index == 1
    # Not so for its header, but for the checksum of it all.
    for offset in (*range(start, start + 4), *range(start + 8, start + RECORD_HEADER_BYTES)):
        disk.bytes_of(segment_name(1))[:] = written
        disk.bytes_of(segment_name(1))[offset] ^= 2
        with pytest.raises(Corrupt):
            open_journal(disk, segment_bytes=8 * SECTOR_BYTES)


def test_a_flip_before_the_last_batch_names_file_and_offset():
    for index in range(1, 4):
        disk, journal, _ = small_journal()
        start = journal._positions[index - 1]
        name = segment_name(1)
        disk.bytes_of(name)[start + RECORD_HEADER_BYTES] ^= 1
        with pytest.raises(Corrupt) as refused:
            open_journal(disk, segment_bytes=400)
        assert refused.value.file == f"fake:/{name}"
        assert refused.value.offset == start


def test_a_truncation_at_any_byte_is_refused():
    disk, _, _ = small_journal()
    for name in segments_of(disk):
        for size in range(len(disk.bytes_of(name))):
            disk, _, _ = small_journal()
            del disk.bytes_of(name)[size:]
            with pytest.raises(Corrupt) as refused:
                open_journal(disk, segment_bytes=400)
            assert refused.value.file == f"fake:/{name}"


def test_zeroed_bytes_anywhere_are_refused_or_cut_the_last_batch_only():
    disk, _, _ = small_journal()
    for name in segments_of(disk):
        for start, length in itertools.product(range(0, len(disk.bytes_of(name)), 7), (16, 200)):
            disk, _, entries = small_journal()
            data = disk.bytes_of(name)
            data[start : start + length] = bytes(len(data[start : start + length]))
            reader = opens(disk, segment_bytes=400)
            if reader is not None:
                found = entries_of(reader)
                # A later flush proves that the first two batches were durable.
                assert len(found) >= 3, (name, start)
                assert found == entries[: len(found)], (name, start)


def test_after_a_clean_stop_not_even_the_last_entry_may_change():
    disk, journal, _ = small_journal()
    start = journal._positions[-1]
    base = journal._segments[-1].header.base
    journal.close()
    disk.bytes_of(segment_name(2))[start - base + RECORD_HEADER_BYTES] ^= 1
    with pytest.raises(Corrupt):
        open_journal(disk, segment_bytes=400)


def test_a_missing_segment_is_refused():
    for missing in (1, 2):
        disk, journal, _ = small_journal()
        journal.close()
        disk.remove(segment_name(missing))
        with pytest.raises(Corrupt):
            open_journal(disk, segment_bytes=400)


def test_truncated_entries_stay_gone_and_their_replacements_stay():
    disk, journal, _ = filled([3, 3])
    journal.commit_index = 2
    journal.truncate_from(4)
    journal.append(b"new four", 4, 2)
    journal.flush()
    disk.kill()
    journal = open_journal(disk)
    assert journal.last_index == 4
    assert journal.entry(4) == (b"new four", 4, 2)
    assert (journal.term_at(3), journal.term_at(4), journal.term_at(5)) == (1, 2, None)


def test_a_committed_entry_is_never_truncated():
    journal = open_journal(FakeDisk())
    fill(journal, [3])
    journal.commit_index = 2
    with pytest.raises(SafetyViolation):
        journal.truncate_from(2)


def test_the_commit_index_of_the_last_record_is_known_after_a_kill():
    disk, journal, _ = filled([3])
    journal.commit_index = 2
    fill(journal, [1])
    disk.kill()
    assert open_journal(disk).commit_index == 2


def test_entries_out_of_order_are_refused():
    journal = open_journal(FakeDisk())
    fill(journal, [2], term=3)
    with pytest.raises(SafetyViolation):
        journal.append(b"gap", 4, 3)
    with pytest.raises(SafetyViolation):
        journal.append(b"old term", 3, 2)


def test_entries_beyond_the_memory_bound_are_read_back_from_disk():
    disk = FakeDisk()
    journal = open_journal(disk, memory_bytes_max=600)
    for index in range(1, 101):
        journal.append(b"%03d" % index * 10, index, 1 + index // 40)
        if index % 4 == 0:
            journal.flush()
    assert not journal.in_memory(1)
    assert journal.in_memory(100)
    for reader in (journal, open_journal(disk, memory_bytes_max=600)):
        assert reader.entry(7) == (b"007" * 10, 7, 1)
        assert [entry[1] for entry in entries_of(reader)] == list(range(1, 101))
        assert all(reader.term_at(index) == 1 + index // 40 for index in range(1, 101))
        assert len(reader.entries(1, 100, bytes_max=95)) <= 3
    assert len(reader._recent) < 20


def test_an_entry_larger_than_asked_for_is_read_back_alone():
    journal = open_journal(FakeDisk(), segment_bytes=1 << 14, memory_bytes_max=200)
    for index in range(1, 30):
        journal.append(bytes([index]) * 900, index, 1)
        journal.flush()
    for index in (1, 5, 14, 16, 17):
        assert journal.entries(index, 29, bytes_max=300) == [(bytes([index]) * 900, index, 1)]


def test_an_entry_that_changed_on_disk_is_not_read_back():
    disk = FakeDisk()
    journal = open_journal(disk, memory_bytes_max=200)
    fill(journal, [2] * 20)
    disk.bytes_of(segment_name(1))[SEGMENT_HEADER_BYTES + RECORD_HEADER_BYTES + 3] ^= 4
    with pytest.raises(Corrupt):
        journal.entries(1, 1, bytes_max=100)


@pytest.mark.parametrize("batches", [[1], [2, 3], [9, 9, 9]], ids=["first-batch", "same-segment", "later-segment"])
def test_a_batch_whose_flush_failed_is_gone_or_durable_after_a_restart_never_in_the_page_cache_only(batches):
    disk, journal, flushed = filled(batches)
    disk.on_call = failing("sync", "segment")
    with pytest.raises(FlushFailed) as failed:
        fill(journal, [3])
    assert failed.value.file.endswith(".segment")
    assert "restart" in str(failed.value)
    disk.work_again()
    found = entries_of(open_journal(disk))
    assert found[: len(flushed)] == flushed
    # Whoever opened the journal has counted these entries as its own: it votes, acknowledges and commits with them.
    disk.kill()
    survives(disk, found)


def test_a_journal_whose_disk_still_refuses_the_last_batch_does_not_open():
    disk, _, _ = filled([2])
    disk.on_call = failing("sync", "segment")
    with pytest.raises(OSError, match="input/output"):
        open_journal(disk)


def test_a_segment_whose_name_a_killed_process_left_in_the_page_cache_survives_a_later_power_loss():
    disk, journal, _ = filled([2])
    disk.on_call = failing("sync_directory", "")
    with contextlib.suppress(OSError):
        fill(journal, [3] * 8, size=100)
    disk.work_again()
    journal = open_journal(disk)
    # No directory is flushed from here on, but by the recovery itself.
    disk.on_call = failing("sync_directory", "")
    with contextlib.suppress(OSError):
        fill(journal, [3] * 8, size=100)
    flushed = entries_of(journal)[: journal.flushed_index]
    assert len(disk.names()) > 1
    disk.kill()
    disk.work_again()
    survives(disk, flushed)


def test_a_crash_while_a_segment_is_made_leaves_a_journal_that_opens():
    for crash_at in range(1, 30):
        disk = FakeDisk()
        journal = open_journal(disk)
        written = fill(journal, [2])
        disk.fail_from(crash_at, OSError("crash"), part="journal")
        with contextlib.suppress(OSError):
            written = fill(journal, [3] * 8, size=100)
        disk.work_again()
        flushed = journal.flushed_index
        disk.kill()
        for name in disk.names():
            if name.endswith(".tmp"):
                disk.remove(name)
        recovered = entries_of(open_journal(disk))
        assert len(recovered) >= flushed
        assert recovered[:flushed] == entries_of(journal)[:flushed] or recovered == written[: len(recovered)]
