"""The real directory and the fake disk keep the same contract."""

from __future__ import annotations

import pytest

from oncegate.consensus.errors import DirectoryLocked
from oncegate.consensus.log.storage import DirectoryStorage
from oncegate.proof.sim.engine.fake_disk import FakeDisk


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
