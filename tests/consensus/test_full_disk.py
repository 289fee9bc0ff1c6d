"""A full disk refuses commands and nothing else; when there is space again, the node goes on by itself."""

from __future__ import annotations

import errno
import random
from contextlib import suppress
from itertools import count

import pytest

from oncegate.consensus.errors import Overloaded
from oncegate.consensus.log.ballot import Ballot
from oncegate.consensus.log.reserve import RESERVE_BYTES, RESERVE_FILE, recover_reserve, renew_reserve
from oncegate.consensus.log.storage import DirectoryStorage
from oncegate.consensus.log.wal import Journal
from oncegate.consensus.messages import Append
from oncegate.proof.check.equipment import SmallDisk
from oncegate.proof.check.errors import Unavailable
from oncegate.proof.sim.engine.fake_disk import FakeDisk, InlineWorker, Killed
from tests.consensus.test_saving import Node
from tests.consensus.test_snapshots import Follower

ERRNOS = [errno.ENOSPC, errno.EDQUOT, errno.EFBIG]


def fill(disk):
    """Something else takes all the space, but for what the node has set aside or given up a moment ago."""
    disk.fill(RESERVE_FILE, RESERVE_BYTES)


def refused(node, *, size=500, attempts=100):
    """Propose until the node refuses."""
    for _ in range(attempts):
        node.propose(1, size)
    raise AssertionError("the disk never filled")


@pytest.mark.parametrize("number", ERRNOS)
def test_a_full_disk_refuses_commands_before_they_are_appended_and_takes_them_again_later(number):
    disk = FakeDisk()
    node = Node(disk, every=1 << 30)
    node.propose(5, 500)
    disk.full_errno = number
    fill(disk)
    with pytest.raises(Overloaded) as overloaded:
        refused(node)
    assert overloaded.value.outcome == "not_applied"
    last_index = node.engine.log.last_index
    assert len(node.results) == last_index - 2
    for _ in range(3):
        with pytest.raises(Overloaded):
            node.propose(1, 500)
    node.engine.leading.read("read")
    node.tick(node.now + 0.01)
    assert node.results[-1] == ("read", last_index)
    assert node.engine.log.last_index == last_index
    disk.capacity = None
    node.tick(node.now + 2)
    node.tick(node.now + 0.01)
    node.propose(50, 500)
    assert node.engine.applier.applied_index == last_index + 50
    disk.kill()
    assert Node(disk, every=1 << 30).engine.log.last_index >= last_index + 50


def test_commands_of_one_tick_that_no_longer_fit_are_refused_and_the_rest_is_applied():
    disk = FakeDisk()
    node = Node(disk, every=1 << 30, uncommitted_bytes_max=1 << 20)
    fill(disk)
    for _ in range(60):
        node.engine.leading.propose(bytes(700), None)
    node.tick()
    assert 5 < len(node.results) < 60
    assert len(node.results) + len(node.failures) == 60
    assert all(isinstance(error, Overloaded) for _, error in node.failures)
    assert node.engine.log.last_index == 2 + len(node.results)


def test_a_node_restarts_on_a_full_disk_and_goes_on_when_there_is_space():
    disk = FakeDisk()
    node = Node(disk, every=1 << 30)
    fill(disk)
    with pytest.raises(Overloaded):
        refused(node)
    applied = node.machine.log
    disk.kill()
    fill(disk)
    again = Node(disk, every=1 << 30)
    assert again.machine.log == applied
    disk.capacity = None
    again.tick(again.now + 2)
    again.tick(again.now + 0.01)
    again.propose(20, 500)


def test_a_clean_stop_on_a_full_disk_loses_nothing():
    disk = FakeDisk()
    journal = Journal(disk, InlineWorker(), segment_bytes=1024, memory_bytes_max=1000)
    fill(disk)
    while journal.has_room(100):
        journal.append(bytes(52), journal.last_index + 1, 1)
    last_index = journal.last_index
    journal.close()
    assert Journal(disk, InlineWorker(), segment_bytes=1024, memory_bytes_max=1000).last_index == last_index


def test_a_vote_is_written_on_a_full_disk_and_the_room_for_it_is_set_aside_again():
    disk = FakeDisk()
    ballot = Ballot.create(disk)
    renew_reserve(disk)
    disk.fill()
    ballot.save(7, "n2")
    assert len(disk.bytes_of(RESERVE_FILE)) < RESERVE_BYTES
    disk.fill()
    with pytest.raises(OSError, match="full"):
        renew_reserve(disk)
    disk.kill()
    assert (Ballot.load(disk).term, Ballot.load(disk).voted_for) == (7, "n2")
    disk.capacity = None
    renew_reserve(disk)
    assert len(disk.bytes_of(RESERVE_FILE)) == RESERVE_BYTES


def test_a_follower_with_a_full_disk_acknowledges_what_matches_and_not_its_whole_log():
    follower = Follower()
    follower.append(2, 9, commit=3)
    fill(follower.disk)
    for index in range(10, 500):
        follower.append(index, index, commit=3)
    tail = follower.engine.log.last_index
    assert 9 < tail < 400
    # The leader of term 2 has other entries behind entry 5, and this follower no room to take them.
    entries = [(bytes(900), index, 2) for index in (6, 7)]
    follower.hear(Append(2, 5, 1, 5, entries), peer="n3")
    ack = follower.sent[-1][2]
    assert (ack.success, ack.index, ack.full) == (True, 5, True)
    assert follower.engine.log.last_index == tail
    assert follower.engine.raft.commit_index() == 5


def test_a_node_votes_in_any_number_of_elections_while_others_take_every_byte_that_it_frees():
    disk = FakeDisk()
    ballot = Ballot.create(disk)
    renew_reserve(disk)
    disk.on_call = lambda call, name: disk.fill()
    for term in range(1, 50):
        ballot.save(term, f"n{term % 3}")
        with pytest.raises(OSError, match="full"):
            renew_reserve(disk)
    disk.kill()
    assert (Ballot.load(disk).term, Ballot.load(disk).voted_for) == (49, "n1")
    ballot.save(50, "n1")
    disk.work_again()
    disk.capacity = None
    renew_reserve(disk)
    assert len(disk.bytes_of(RESERVE_FILE)) == RESERVE_BYTES


def lose_power_at(disk, number):
    """Others take every byte that is freed, and the ``number``-th system call from now on is the machine's last."""
    calls = count(1)

    def called(call, name):
        disk.fill()
        if next(calls) == number:
            raise Killed

    disk.on_call = called


def test_power_loss_at_any_system_call_of_a_vote_on_a_full_disk_leaves_that_vote_or_the_one_before():
    """For two votes in a row: the file that the first replaced is the room of the second."""
    for crash_at in range(1, 60):
        disk = FakeDisk()
        ballot = Ballot.create(disk)
        renew_reserve(disk)
        ballot.save(1, "n1")
        lose_power_at(disk, crash_at)
        term = 1
        try:
            for term in (2, 3):
                ballot.save(term, "n2")
        except Killed:
            disk.kill(random.Random(crash_at))
            found = Ballot.load(disk)
            assert found.term in {term - 1, term}
            # And the next start has the room for another one.
            disk.on_call = lambda call, name, disk=disk: disk.fill()
            recover_reserve(disk)
            found.save(9, "n3")
            assert Ballot.load(disk).term == 9
        else:
            return
    raise AssertionError("a vote takes more system calls than were tried")


@pytest.mark.parametrize("killed_at", range(1, 20))
def test_power_loss_in_the_vote_after_a_killed_one_leaves_that_vote_or_the_one_before(killed_at: int) -> None:
    """The process is killed, so that names stay as they are: its reserve must not be the vote that counts."""
    for crash_at in range(1, 40):
        disk = FakeDisk()
        ballot = Ballot.create(disk)
        renew_reserve(disk)
        lose_power_at(disk, killed_at)
        with suppress(Killed):
            ballot.save(2, "n2" * 900)
        disk.work_again()
        found = Ballot.load(disk)
        term = found.term
        lose_power_at(disk, crash_at)
        with suppress(Killed):
            recover_reserve(disk)
            found.save(9, "n3" * 900)
        disk.work_again()
        disk.kill(random.Random(crash_at))
        assert Ballot.load(disk).term in {0, term, 9}


def test_a_node_on_a_real_full_disk_votes_again_and_again_and_sets_room_aside_when_there_is_some(tmp_path):
    try:
        small = SmallDisk(tmp_path / "disk", 2**20)
    except Unavailable as reason:
        pytest.skip(str(reason))
    with small:
        disk = DirectoryStorage(small.path)
        ballot = Ballot.create(disk)
        renew_reserve(disk)
        for term in range(1, 20):
            small.fill()
            ballot.save(term, f"n{term % 3}")
            assert Ballot.load(disk).term == term
        with pytest.raises(OSError, match="No space"):
            renew_reserve(disk)
        ballot.save(20, "n2")
        assert (Ballot.load(disk).term, Ballot.load(disk).voted_for) == (20, "n2")
        small.give_back()
        renew_reserve(disk)
        file = disk.open(RESERVE_FILE)
        assert file.size() == RESERVE_BYTES
        file.close()
        assert sorted(disk.names()) == ["ballot", RESERVE_FILE]
        disk.close()
