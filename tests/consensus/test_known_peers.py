"""Which data directory a member may come with."""

from __future__ import annotations

import shutil

import pytest

from oncegate.consensus.errors import Corrupt
from oncegate.consensus.log.identity import BOOTS_KEPT, begin_incarnation, open_identity
from oncegate.consensus.log.storage import DirectoryStorage
from oncegate.consensus.net import known_peers
from oncegate.consensus.net.handshake import Stamp
from oncegate.consensus.net.known_peers import KNOWN_PEERS_FILE, KnownPeers
from oncegate.proof.sim.engine.fake_disk import FakeDisk


class Directory:
    """A data directory that is opened again and again, and can be copied."""

    def __init__(self, path):
        self.path = path

    def opened(self):
        storage = DirectoryStorage(self.path)
        identity, _ = open_identity(storage, cluster_id="c", node_id="n2")
        identity = begin_incarnation(storage, identity)
        # What a node writes before it takes part, so that it may be opened again.
        return Stamp(identity.node_uuid, identity.incarnation, tuple(identity.boots))

    def copy(self, name):
        shutil.copytree(self.path, self.path.parent / name)
        return Directory(self.path.parent / name)


@pytest.fixture
def directory(tmp_path):
    return Directory(tmp_path / "n2")


@pytest.fixture
def peers():
    return KnownPeers(FakeDisk())


def test_each_start_raises_the_incarnation_durably(tmp_path):
    disk = FakeDisk()
    seen = []
    for _ in range(BOOTS_KEPT + 4):
        identity, _ = open_identity(disk, cluster_id="c", node_id="n2")
        seen.append(begin_incarnation(disk, identity))
        disk.kill()
    assert [identity.incarnation for identity in seen] == list(range(1, BOOTS_KEPT + 5))
    assert len({identity.node_uuid for identity in seen}) == 1
    assert len({identity.boots[-1] for identity in seen}) == len(seen)
    assert seen[-1].boots == [identity.boots[-1] for identity in seen][-BOOTS_KEPT:]


def test_the_first_directory_is_trusted_and_its_restarts_are_known(peers, directory):
    for _ in range(BOOTS_KEPT * 2):
        stamp = directory.opened()
        assert peers.judge("n2", 0, stamp) is None
        peers.remember("n2", 0, stamp, {"n2"})


def test_a_directory_made_anew_is_refused(peers, directory, tmp_path):
    peers.remember("n2", 0, directory.opened(), {"n2"})
    assert peers.judge("n2", 0, Directory(tmp_path / "empty").opened()) == "wiped"


def test_an_old_copy_is_refused_however_often_it_was_opened_since(peers, directory):
    directory.opened()
    copy = directory.copy("backup")
    for _ in range(5):
        peers.remember("n2", 0, directory.opened(), {"n2"})
    for _ in range(10):
        assert peers.judge("n2", 0, copy.opened()) == "cloned"


def test_of_a_directory_and_its_copy_the_second_to_come_is_refused(peers, directory):
    directory.opened()
    copy = directory.copy("copy")
    first, second = directory.opened(), copy.opened()
    peers.remember("n2", 0, first, {"n2"})
    assert peers.judge("n2", 0, first) is None
    assert peers.judge("n2", 0, second) == "cloned"


def test_what_is_known_survives_a_restart_and_a_kill(directory):
    disk = FakeDisk()
    directory.opened()
    copy = directory.copy("copy")
    KnownPeers(disk).remember("n2", 0, directory.opened(), {"n2"})
    disk.kill()
    assert KnownPeers(disk).judge("n2", 0, copy.opened()) == "cloned"


def test_a_member_that_was_removed_and_added_again_may_be_another_directory(peers, directory, tmp_path):
    peers.remember("n2", 0, directory.opened(), {"n2"})
    empty = Directory(tmp_path / "empty")
    assert peers.judge("n2", 17, empty.opened()) is None
    peers.remember("n2", 17, empty.opened(), {"n2"})
    assert peers.judge("n2", 17, directory.opened()) == "wiped"


def test_the_file_holds_members_only(directory):
    disk = FakeDisk()
    peers = KnownPeers(disk)
    for number in range(50):
        peers.remember(f"n{number}", 0, directory.opened(), {f"n{number}"})
    size = len(disk.bytes_of(KNOWN_PEERS_FILE))
    peers.remember("n50", 0, directory.opened(), {"n50"})
    assert len(disk.bytes_of(KNOWN_PEERS_FILE)) <= size + 8


def test_an_unchanged_peer_costs_no_write(directory):
    disk = FakeDisk()
    stamp = directory.opened()
    peers = KnownPeers(disk)
    peers.remember("n2", 0, stamp, {"n2"})
    disk.trace.clear()
    peers.remember("n2", 0, stamp, {"n2"})
    assert disk.trace == []


def test_a_changed_bit_anywhere_in_the_file_is_refused(directory):
    disk = FakeDisk()
    KnownPeers(disk).remember("n2", 0, directory.opened(), {"n2"})
    data = disk.bytes_of(KNOWN_PEERS_FILE)
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            KnownPeers(disk)
        data[bit // 8] ^= 1 << bit % 8


def test_a_disk_that_cannot_remember_costs_no_connection(directory):
    disk = FakeDisk()
    peers = KnownPeers(disk)
    disk.fail_from(1, OSError("no space left"))
    stamp = directory.opened()
    peers.remember("n2", 0, stamp, {"n2"})
    assert peers.judge("n2", 0, stamp) is None
    assert peers.judge("n2", 0, Stamp("another", 1, (1,))) == "wiped"


@pytest.mark.parametrize("told", range(BOOTS_KEPT + 1))
def test_a_stamp_is_judged_by_the_start_that_is_known_as_far_back_as_it_tells(told):
    """One that tells of no start, or of none so old, comes from where it says: its other numbers are right."""
    boots = [100 + at for at in range(2 * BOOTS_KEPT + 4)]
    for known in range(1, len(boots) + 1):
        peers = KnownPeers(FakeDisk())
        peers.remember("n2", 0, Stamp("u", known, tuple(boots[max(0, known - max(told, 1)) : known])), {"n2"})
        for now in range(1, len(boots) + 1):
            tells = tuple(boots[max(0, now - told) : now])
            behind = now < known
            assert peers.judge("n2", 0, Stamp("u", now, tells)) == ("cloned" if behind else None), (known, now)
            other = tuple(-boot for boot in tells)
            reaches = now - known < len(other)
            assert peers.judge("n2", 0, Stamp("u", now, other)) == ("cloned" if behind or reaches else None)


def test_a_member_that_tells_of_no_start_is_remembered_and_one_that_cannot_be_written_is_told_of(
    peers, caplog, monkeypatch
):
    peers.remember("n2", 0, Stamp("u", 1, ()), {"n2"})
    assert peers.judge("n2", 0, Stamp("v", 1, ())) == "wiped"

    def full_disk(*_):
        raise OSError("no room")

    monkeypatch.setattr(known_peers, "write_small", full_disk)
    full = KnownPeers(FakeDisk())
    full.remember("n3", 0, Stamp("u", 1, (7,)), {"n3"})
    assert "what is known of n3 could not be written" in caplog.text
    assert full.judge("n3", 0, Stamp("u", 1, (8,))) == "cloned", "it is known until a restart"
