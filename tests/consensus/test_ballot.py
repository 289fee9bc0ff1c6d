"""Files of a directory: what disks promise, and term and vote, durable before they are used, refused when damaged."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os

import pytest

from oncegate.consensus.errors import Corrupt, DirectoryLocked, IdentityMismatch, StorageError
from oncegate.consensus.log.ballot import BALLOT_FILE, Ballot
from oncegate.consensus.log.identity import IDENTITY_FILE, open_identity
from oncegate.consensus.log.library_log import LibraryLog
from oncegate.consensus.log.storage import DirectoryStorage
from oncegate.proof.sim.engine.fake_disk import FakeDisk, InlineWorker

# -- the real directory and the fake disk keep the same contract ---------------------------------------------


@pytest.fixture(params=["real", "fake"])
def disk(request, tmp_path):
    storage = DirectoryStorage(tmp_path / "data") if request.param == "real" else FakeDisk()
    yield storage
    storage.close()


def test_writes_are_read_back_at_their_offsets(disk):
    file = disk.create("a", 64)
    file.write([b"one", b"", b"two"], 10)
    assert file.size() == 64
    assert file.read(8, 9) == b"\0onetwo\0"
    file.close()


def test_a_write_behind_the_end_grows_the_file(disk):
    file = disk.create("a")
    file.write([b"xy"], 5)
    assert file.read(100, 0) == b"\0\0\0\0\0xy"
    assert file.read(4, 100) == b""
    file.close()


def test_more_buffers_than_one_system_call_takes(disk):
    file = disk.create("a")
    file.write([b"%04d" % number for number in range(2500)], 0)
    assert file.read(4, 4 * 2499) == b"2499"
    file.close()


def test_blocks_and_bytes_of_one_file_are_read_as_they_were_written(disk):
    file = disk.create("a", 3 * 4096)
    file.write([b"bytes"], 4090)
    file.sync()
    assert file.read(10, 4088) == b"\0\0bytes\0\0\0"
    with mmap.mmap(-1, 2 * 4096) as memory:
        memory[:] = b"b" * 8192
        view = memoryview(memory)
        file.write_blocks(view[4096:], 4096)
        view.release()
    file.sync()
    file.write([b"more"], 8190)
    assert file.read(9, 4088) == b"\0\0bytes\0b"
    assert file.read(8, 8188) == b"bbmore\0\0"
    file.close()


def test_a_file_system_without_a_way_past_the_page_cache_is_written_through_it(tmp_path, monkeypatch):
    storage = DirectoryStorage(tmp_path)
    file = storage.create("a", 4096)
    real = os.open

    def refusing(path, flags, *mode):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no", str(path))
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", refusing)
    file.write_blocks(memoryview(b"x" * 4096), 0)
    file.write_blocks(memoryview(b"y" * 4096), 4096)
    file.sync()
    assert file.read(2, 4095) == b"xy"
    file.close()
    storage.close()


def test_rename_replaces_and_remove_forgets(disk):
    for name in ("a", "b"):
        file = disk.create(name)
        file.write([name.encode()], 0)
        file.sync()
        file.close()
    disk.rename("a", "b")
    disk.sync_directory()
    assert disk.names() == ["b"]
    file = disk.open("b")
    assert file.read(9, 0) == b"a"
    file.close()
    disk.remove("b")
    assert disk.names() == []


def test_create_empties_an_existing_file(disk):
    disk.create("a", 10).close()
    file = disk.create("a")
    assert file.size() == 0
    file.close()


def test_a_directory_is_open_once_only(tmp_path):
    first = DirectoryStorage(tmp_path)
    first.lock()
    second = DirectoryStorage(tmp_path)
    with pytest.raises(DirectoryLocked):
        second.lock()
    first.close()
    second.lock()
    second.close()


def test_a_kill_forgets_what_was_not_flushed():
    disk = FakeDisk()
    file = disk.create("a")
    file.write([b"kept"], 0)
    file.sync()
    disk.sync_directory()
    file.write([b"lost"], 0)
    disk.create("b").close()
    disk.kill()
    assert disk.names() == ["a"]
    assert disk.open("a").read(9, 0) == b"kept"


# -- identity, term and vote ---------------------------------------------------------------------------------


def opened(disk):
    return open_identity(disk, cluster_id="c", node_id="n1")


def test_the_order_of_system_calls_makes_a_vote_durable():
    disk = FakeDisk()
    ballot = Ballot.create(disk)
    disk.trace.clear()
    ballot.save(7, "n2")
    assert disk.trace == [
        ("create", "ballot.tmp"),
        ("write", "ballot.tmp"),
        ("sync", "ballot.tmp"),
        ("close", "ballot.tmp"),
        ("rename", "ballot.tmp ballot"),
        ("sync_directory", ""),
    ]


def test_an_unchanged_vote_is_not_written_again():
    disk = FakeDisk()
    ballot = Ballot.create(disk)
    ballot.save(7, "n2")
    disk.trace.clear()
    ballot.save(7, "n2")
    assert disk.trace == []


def test_a_vote_survives_a_kill_at_any_system_call_whole_or_not_at_all():
    for crash_at in range(6):
        disk = FakeDisk()
        _, ballot = opened(disk)
        ballot.save(1, "n1")
        disk.fail_from(crash_at + 1, OSError("power loss"))
        with pytest.raises(OSError, match="power loss"):
            ballot.save(2, "n3")
        disk.work_again()
        disk.kill()
        found = Ballot.load(disk)
        assert (found.term, found.voted_for) == (1, "n1")


@pytest.mark.parametrize("name", [BALLOT_FILE, IDENTITY_FILE])
def test_a_flip_or_cut_at_any_byte_is_refused(name):
    disk = FakeDisk()
    _, ballot = opened(disk)
    ballot.save(5, "n2")
    good = bytes(disk.bytes_of(name))
    for offset in range(len(good)):
        disk.bytes_of(name)[:] = good
        disk.bytes_of(name)[offset] ^= 0x10
        with pytest.raises(Corrupt):
            opened(disk)
        disk.bytes_of(name)[:] = good[:offset]
        with pytest.raises(Corrupt):
            opened(disk)


def test_a_missing_ballot_or_identity_or_journal_is_refused():
    disk = FakeDisk()
    _, ballot = opened(disk)
    ballot.save(5, "n2")
    with pytest.raises(Corrupt, match="journal is missing"):
        opened(disk)
    LibraryLog(disk, InlineWorker(), ballot, segment_bytes=4096, memory_bytes_max=4096)
    disk.rename(IDENTITY_FILE, "hidden")
    with pytest.raises(Corrupt, match="identity"):
        opened(disk)
    disk.rename("hidden", IDENTITY_FILE)
    disk.remove(BALLOT_FILE)
    with pytest.raises(Corrupt, match="ballot"):
        opened(disk)


def test_a_ballot_older_than_the_journal_is_refused():
    disk = FakeDisk()
    _, ballot = opened(disk)
    log = LibraryLog(disk, InlineWorker(), ballot, segment_bytes=4096, memory_bytes_max=4096)
    log.append(b"entry", 1, 4)
    log.flush()
    with pytest.raises(StorageError, match="ballot"):
        LibraryLog(disk, InlineWorker(), ballot, segment_bytes=4096, memory_bytes_max=4096)


def test_a_crash_while_the_directory_is_stamped_is_repaired_by_the_next_start():
    for crash_at in range(13):
        disk = FakeDisk()
        disk.fail_from(crash_at + 1, OSError("power loss"))
        with contextlib.suppress(OSError):
            opened(disk)
        disk.work_again()
        disk.kill()
        identity, ballot = opened(disk)
        assert (identity.node_id, ballot.term) == ("n1", 0)


def test_a_directory_keeps_its_uuid_and_refuses_other_names():
    disk = FakeDisk()
    first, _ = opened(disk)
    again, _ = opened(disk)
    assert first.node_uuid == again.node_uuid
    with pytest.raises(IdentityMismatch):
        open_identity(disk, cluster_id="other", node_id="n1")
    with pytest.raises(IdentityMismatch):
        open_identity(disk, cluster_id="c", node_id="n2")
