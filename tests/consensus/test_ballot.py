"""Term and vote: durable before they are used, refused when they cannot be read."""

from __future__ import annotations

import contextlib

import pytest

from oncegate.consensus.errors import Corrupt, IdentityMismatch, StorageError
from oncegate.consensus.log.ballot import BALLOT_FILE, Ballot
from oncegate.consensus.log.identity import IDENTITY_FILE, open_identity
from oncegate.consensus.log.library_log import LibraryLog
from oncegate.proof.sim.engine.fake_disk import FakeDisk, InlineWorker


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
