"""Which data directory a member may come with, and who is told why not."""

from __future__ import annotations

import shutil

import msgspec
import pytest

from oncegate.consensus.errors import Corrupt, ProtocolError
from oncegate.consensus.log.identity import BOOTS_KEPT, begin_incarnation, open_identity
from oncegate.consensus.log.storage import DirectoryStorage
from oncegate.consensus.messages import Hello, PeerRefused
from oncegate.consensus.net.handshake import Acceptor, Credentials, Dialler, PeerRefusedError, Stamp
from oncegate.consensus.net.known_peers import KNOWN_PEERS_FILE, KnownPeers
from oncegate.proof.sim.engine.fake_disk import FakeDisk

SECRET = b"a secret of the cluster"


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

    def full(call, name):
        raise OSError("no space left")

    disk.on_call = full
    stamp = directory.opened()
    peers.remember("n2", 0, stamp, {"n2"})
    assert peers.judge("n2", 0, stamp) is None
    assert peers.judge("n2", 0, Stamp("another", 1, (1,))) == "wiped"


# -- in the handshake ----------------------------------------------------------------------------------------


def credentials(node_id, *, judge=None):
    return Credentials(
        cluster_id="c",
        node_id=node_id,
        stamp=Stamp(f"uuid of {node_id}", 1, (7,)),
        secret=SECRET,
        peer_ids={"n1", "n2"},
        judge=judge or (lambda peer_id, stamp: None),
    )


def refuse(peer_id, stamp):
    return "wiped"


def test_an_acceptor_says_why_it_refuses_a_caller_that_has_proved_itself():
    dialler, acceptor = Dialler(credentials("n2"), "n1"), Acceptor(credentials("n1", judge=refuse))
    challenge, _ = acceptor.receive(dialler.opening())
    proof, _ = dialler.receive(challenge)
    refused, established = acceptor.receive(proof)
    assert (refused, established) == (PeerRefused("wiped"), None)
    with pytest.raises(PeerRefusedError, match="remove the member"):
        dialler.receive(refused)


def test_a_dialler_says_why_it_refuses_and_proves_nothing():
    dialler, acceptor = Dialler(credentials("n2", judge=refuse), "n1"), Acceptor(credentials("n1"))
    challenge, _ = acceptor.receive(dialler.opening())
    refused, established = dialler.receive(challenge)
    assert (refused, established) == (PeerRefused("wiped"), None)
    with pytest.raises(PeerRefusedError):
        acceptor.receive(refused)


def test_a_caller_that_is_no_member_is_told_so_only_once_it_has_proved_the_secret():
    stranger, acceptor = Dialler(credentials("n9"), "n1"), Acceptor(credentials("n1"))
    challenge, _ = acceptor.receive(stranger.opening())
    proof, _ = stranger.receive(challenge)
    assert acceptor.receive(proof) == (PeerRefused("unknown"), None)


@pytest.mark.parametrize(
    "changed", [Stamp("forged", 1, (7,)), Stamp("uuid of n2", 9, (7,)), Stamp("uuid of n2", 1, (8,))]
)
def test_what_a_caller_says_of_its_directory_cannot_be_changed_on_the_way(changed):
    dialler, acceptor = Dialler(credentials("n2"), "n1"), Acceptor(credentials("n1"))
    said = Hello(*msgspec.structs.astuple(dialler.opening()))
    hello = msgspec.structs.replace(
        said, node_uuid=changed.node_uuid, incarnation=changed.incarnation, boots=list(changed.boots)
    )
    challenge, _ = acceptor.receive(hello)
    with pytest.raises(ProtocolError, match="secret"):
        dialler.receive(challenge)
