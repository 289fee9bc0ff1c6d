"""A full disk refuses commands and nothing else; when there is space again, the node goes on by itself."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from oncegate.consensus.core.replication import FULL_PAUSE_S
from oncegate.consensus.errors import Overloaded
from oncegate.consensus.log.ballot import Ballot
from oncegate.consensus.log.reserve import RESERVE_BYTES, RESERVE_FILE, renew_reserve
from oncegate.consensus.log.wal import Journal
from oncegate.consensus.messages import Ack, Append
from oncegate.proof.sim.engine.fake_disk import BLOCK, FakeDisk, InlineWorker
from tests.consensus.simulation import Simulation
from tests.consensus.test_saving import CONFIG, Node
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
    points = []
    leading = node.engine._leading
    leading.reads._on_result = leading.proposals._on_result = lambda token, result: points.append(result)
    node.engine.read(None)
    node.tick()
    assert points == [last_index]
    assert node.engine.log.last_index == last_index
    disk.capacity = None
    node.now += 2
    node.tick()
    node.tick()
    node.propose(50, 500)
    assert node.engine.applied_index == last_index + 50
    disk.kill()
    assert Node(disk, every=1 << 30).engine.log.last_index >= last_index + 50


def test_commands_of_one_tick_that_no_longer_fit_are_refused_and_the_rest_is_applied():
    disk = FakeDisk()
    node = Node(disk, every=1 << 30, config=replace(CONFIG, uncommitted_bytes_max=1 << 20))
    fill(disk)
    for _ in range(60):
        node.engine.propose(bytes(700), None)
    node.tick()
    assert 5 < len(node.results) < 60
    assert len(node.results) + len(node.failures) == 60
    assert all(isinstance(error, Overloaded) for error in node.failures)
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
    again.now += 2
    again.tick()
    again.tick()
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
    fill(disk)
    ballot.save(7, "n2")
    assert RESERVE_FILE not in disk.names()
    disk.capacity -= BLOCK
    with pytest.raises(OSError, match="full"):
        renew_reserve(disk)
    assert RESERVE_FILE not in disk.names()
    disk.kill()
    assert (Ballot.load(disk).term, Ballot.load(disk).voted_for) == (7, "n2")
    disk.capacity = None
    renew_reserve(disk)
    assert RESERVE_FILE in disk.names()


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
    ack = follower.said[-1][1]
    assert (ack.success, ack.index, ack.full) == (True, 5, True)
    assert follower.engine.log.last_index == tail
    assert follower.engine.commit_index == 5


class CountingReads(Simulation):
    def __init__(self, seed):
        self.reads = 0
        self.full_acks = 0
        self.entries_sent = {}
        super().__init__(seed, faults=False)

    def sent(self, source, target, message):
        self.full_acks += isinstance(message, Ack) and message.full
        if isinstance(message, Append) and message.entries:
            self.entries_sent.setdefault(target, []).append(self.now)
        super().sent(source, target, message)

    def fill(self, *nodes):
        for node in nodes:
            fill(node.disk)

    def free(self):
        for node in self.nodes.values():
            node.disk.capacity = None

    def check_reads(self):
        leader = self.leader()
        done = []
        leader.engine.read(done.append)
        self.run_until(lambda: done)

    def steady(self):
        """Run for a while without new acknowledgements; returns how many there were."""
        while True:
            before = len(self.history.acknowledged)
            for _ in range(300):
                self.step()
            if len(self.history.acknowledged) == before:
                return before


def ready(seed):
    sim = CountingReads(seed)
    sim.run_until(lambda: len(sim.history.acknowledged) > 20)
    return sim


@pytest.mark.parametrize("seed", range(3))
def test_a_leader_with_a_full_disk_refuses_and_serves_reads_until_there_is_space(seed):
    sim = ready(seed)
    leader = sim.leader()
    sim.fill(leader)
    sim.steady()
    assert sim.leader() is leader
    sim.check_reads()
    sim.free()
    before = len(sim.history.acknowledged)
    sim.run_until(lambda: len(sim.history.acknowledged) > before + 50)
    sim.settle_and_check()


@pytest.mark.parametrize("seed", range(3))
def test_a_follower_with_a_full_disk_holds_nobody_up_and_catches_up_when_there_is_space(seed):
    sim = ready(seed)
    leader = sim.leader()
    full = next(node for node in sim.nodes.values() if node is not leader)
    sim.fill(full)
    sim.run_until(lambda: sim.full_acks > 3)
    since, before = sim.now, len(sim.history.acknowledged)
    sim.run_until(lambda: len(sim.history.acknowledged) > before + 400)
    assert sim.leader() is leader
    assert full.engine.log.last_index < leader.engine.log.last_index - 100
    assert leader.engine._leading.replication._progress[full.name].ack_at > sim.now - 0.5
    # One attempt a pause, and what is in flight when the answer comes.
    tried = sum(at > since + 0.5 for at in sim.entries_sent[full.name])
    assert 0 < tried <= 6 * (sim.now - since) / FULL_PAUSE_S + 6
    sim.check_reads()
    sim.free()
    sim.settle_and_check()


@pytest.mark.parametrize("seed", range(3))
def test_with_all_disks_full_reads_go_on_a_leader_is_elected_and_nothing_is_lost(seed):
    sim = ready(seed)
    sim.fill(*sim.nodes.values())
    sim.steady()
    sim.check_reads()
    for _ in range(2):
        old = sim.leader()
        sim.cut = {old.name}
        sim.run_until(lambda old=old: sim.leader() not in (None, old))
        sim.cut = set()
        sim.check_reads()
    refused_at = len(sim.history.acknowledged)
    sim.free()
    sim.run_until(lambda: len(sim.history.acknowledged) > refused_at + 50)
    sim.settle_and_check()


@pytest.mark.parametrize("seed", range(6))
def test_disks_that_fill_and_empty_under_every_fault_lose_nothing(seed):
    sim = Simulation(seed)
    for _ in range(12):
        for node in sim.nodes.values():
            node.disk.capacity = None
            if sim.rng.random() < 0.4:
                fill(node.disk)
        for _ in range(120):
            sim.step()
    for node in sim.nodes.values():
        node.disk.capacity = None
    sim.settle_and_check()
