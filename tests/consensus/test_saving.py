"""A node with a durable state restarts from it, saves it in time, and forgets the log behind it."""

from __future__ import annotations

import dataclasses
from itertools import combinations, pairwise
from types import SimpleNamespace

import msgspec
import pytest

from oncegate.consensus.configuration import Configuration, RaftMember, decode, encode
from oncegate.consensus.core.applying import Saving, first_share
from oncegate.consensus.errors import StateMissing, StorageError
from oncegate.consensus.log.identity import open_identity
from oncegate.consensus.log.membership import Membership
from oncegate.consensus.log.sealed_file import write_sealed
from oncegate.consensus.log.segment import segment_name
from oncegate.consensus.messages import Append
from oncegate.consensus.ports import SavedPoint
from oncegate.proof.sim.engine.durable_machine import _MAGIC, STATE_FILE, DurableMachine, State
from oncegate.proof.sim.engine.fake_disk import FakeDisk
from tests.consensus.cluster import ListMachine
from tests.consensus.one_engine import OneEngine, config_of, open_log

INSTALLED = encode(Configuration({"n1": RaftMember("127.0.0.1", 1)}))


class Node(OneEngine):
    """A cluster of one, which leads."""

    def __init__(self, disk=None, *, machine=None, every=20, lazy=False, **settings):
        disk = disk or FakeDisk()
        machine = machine or DurableMachine(disk, every=every, lazy=lazy)
        super().__init__((), disk=disk, machine=machine, **{"log_kept_bytes": 0, **settings})
        while not self.engine.leading.ready:
            self.tick(self.now + 0.01)

    def propose(self, count, size=200):
        for _ in range(count):
            self.engine.leading.propose(b"%06d" % self.engine.log.last_index + bytes(size), None)
            self.tick(self.now + 0.01)


def test_a_node_that_joins_saves_no_state_before_its_log_says_who_is_a_member():
    disk = FakeDisk()
    machine = DurableMachine(disk, every=5)
    node = OneEngine(("n0",), disk=disk, machine=machine, joining=True)

    def hears(*commands):
        last = node.engine.log.last_index
        entries = [(command, last + number, 1) for number, command in enumerate(commands, 1)]
        node.receives("n0", Append(1, last, node.engine.log.term_at(last), last + len(entries), entries))

    for number in range(10):
        hears(b"command %d" % number)
    assert node.engine.applier.applied_index == 11
    assert machine.saved is None
    assert machine.unsaved_share >= 1
    named = Configuration({"n0": RaftMember("127.0.0.1", 7000), "n1": RaftMember("127.0.0.1", 7001, voter=False)})
    hears(encode(named))
    assert machine.saved.index == node.engine.applier.applied_index == 12
    assert decode(machine.saved.configuration) == named


def test_a_restart_applies_only_what_came_after_the_saved_point():
    disk = FakeDisk()
    node = Node(disk)
    node.propose(50)
    applied = node.machine.log
    disk.kill()
    again = Node(disk)
    assert again.machine.log == applied
    # The machine itself refuses an entry that it has already.
    assert again.machine.point.index >= node.machine.point.index


def test_the_saved_point_names_index_term_and_configuration():
    disk = FakeDisk()
    node = Node(disk)
    node.propose(20)
    point = node.machine.saved
    assert point.index == node.engine.applier.applied_index
    assert point.term == node.engine.log.term_at(point.index)
    assert set(decode(point.configuration).members) == {"n1"}


def test_the_log_stays_bounded_under_load_and_across_restarts():
    disk = FakeDisk()
    for _ in range(3):
        node = Node(disk)
        node.propose(400)
        assert node.engine.log.bytes_used < 5 * 10_000
        assert sum(name.endswith(".segment") for name in disk.names()) <= 6
        assert len(node.engine.log._positions) < 150
        disk.kill()
    assert segment_name(1) not in disk.names()
    assert len(Node(disk).machine.log) == 1200


def test_nothing_is_compacted_before_the_save_is_durable():
    disk = FakeDisk()
    node = Node(disk, lazy=True)
    node.propose(300)
    assert node.machine.saving
    assert node.engine.log.base.index == 0
    node.machine.work()
    node.tick()
    # The first save covers little; the second covers everything, and is not durable yet.
    assert node.machine.saving
    assert node.engine.log.base.index == 0
    node.machine.work()
    node.tick()
    assert 0 < node.engine.log.base.index <= node.machine.saved.index


@pytest.mark.parametrize("saved", [2, 60, 100])
@pytest.mark.parametrize("needed_from", [None, 2, 30, 60, 61, 100, 101, 200])
@pytest.mark.parametrize("base", [1, 29, 59])
@pytest.mark.parametrize("is_full", [False, True])
def test_the_log_is_cut_behind_what_is_saved_and_not_before_what_somebody_needs(saved, needed_from, base, is_full):
    cut, config = [], config_of(log_kept_bytes=0)
    log = SimpleNamespace(
        base=SimpleNamespace(index=min(base, saved)),
        bytes_used=config.journal_segment_bytes + is_full,
        membership=SimpleNamespace(at=None),
        compact=lambda index, **_: cut.append(index),
    )
    saving = Saving(config, log, SimpleNamespace(saved=SavedPoint(saved, 1, INSTALLED), saving=True))
    saving.needed_from = needed_from
    saving.applied(120)
    unneeded = saved if needed_from is None else min(saved, needed_from - 1)
    assert cut == ([unneeded] if is_full and saved > base else [])


def test_a_log_that_outgrows_its_bound_is_saved_unasked():
    node = Node(save_log_bytes_max=5000, every=1 << 30)
    node.propose(200)
    assert node.engine.log.base.index > 0
    assert node.engine.log.bytes_after(node.machine.saved.index) < 5000 + 2 * 1000


@pytest.mark.parametrize(
    "members", [["n1", "n2", "n3"], ["gateway-0", "gateway-1", "gateway-2"], list("abcde"), ["n1"]]
)
def test_first_saves_of_members_lie_evenly_within_the_bound(members):
    shares = [first_share(node_id, members) for node_id in members]
    assert shares == pytest.approx([(rank + 1) / len(members) for rank in range(len(members))])
    assert first_share("newcomer", ["n1", "n2"]) in (1 / 3, 2 / 3, 1)


class Member:
    """One of three that apply the same log, with entries of one byte; a save is durable at once."""

    saving = damaged = wants_state = False
    bytes_used = 0

    def __init__(self, node_id, every, log_bytes_max):
        self.saved, self.index, self.every = None, 1, every
        self.base = SavedPoint(0, 0, b"")
        self.membership = Membership()
        self.membership.rebase(0, encode(Configuration({f"n{at}": RaftMember("127.0.0.1", at) for at in (1, 2, 3)})))
        config = dataclasses.replace(config_of(), node_id=node_id, peers={}, save_log_bytes_max=log_bytes_max)
        self.saves = []
        self._saving = Saving(config, self, self)

    @property
    def unsaved_share(self):
        return (self.index - (self.saved.index if self.saved else 1)) / self.every

    def bytes_after(self, index):
        return self.index - index

    def term_at(self, index):
        return 1

    def begin_save(self, point):
        self.saved = point
        self.saves.append(point.index)

    def apply(self, count):
        for _ in range(count):
            self.index += 1
            self._saving.applied(self.index)


@pytest.mark.parametrize("bounds", [(1 << 30, 60), (60, 1 << 30)], ids=["by the log", "by the machine"])
def test_members_save_in_turn_once_in_each_stretch_of_the_log_that_is_as_long_as_the_bound(bounds):
    members = [Member(f"n{number}", *bounds) for number in (1, 2, 3)]
    for member in members:
        member.apply(1000)
        # A byte over the bound, and each once in 60 or 61.
        assert {after - before for before, after in pairwise(member.saves)} <= {60, 61}
        assert member.saves[0] <= 62
    for one, other in combinations(members, 2):
        assert all(abs(a - b) >= 18 for a in one.saves for b in other.saves)


def test_a_node_with_the_state_of_another_does_not_save_whenever_that_one_does():
    sender, receiver = Member("n3", 1 << 30, 60), Member("n1", 1 << 30, 60)
    sender.apply(300)
    receiver.saved = receiver.base = sender.saved
    receiver.index = sender.saved.index
    receiver.apply(sender.index - receiver.index)
    sender.apply(300)
    receiver.apply(300)
    assert receiver.saves
    assert not set(sender.saves) & set(receiver.saves)


def test_a_machine_that_is_not_durable_keeps_the_whole_log():
    node = Node(machine=ListMachine(), save_log_bytes_max=1000)
    node.propose(200)
    assert node.engine.log.base.index == 0


def compacted_disk():
    disk = FakeDisk()
    node = Node(disk)
    node.propose(300)
    assert node.engine.log.base.index > 100
    disk.kill()
    return disk, node


def test_a_log_without_its_beginning_refuses_to_start_without_a_state():
    disk, _ = compacted_disk()
    disk.remove(STATE_FILE)
    with pytest.raises(StateMissing, match="fake:/base"):
        Node(disk)
    with pytest.raises(StateMissing):
        Node(disk, machine=ListMachine())


def test_a_state_older_than_the_base_refuses_to_start():
    disk, node = compacted_disk()
    save(disk, SavedPoint(node.engine.log.base.index - 1, 1, b""))
    with pytest.raises(StateMissing, match="base"):
        Node(disk)


def save(disk, point):
    write_sealed(disk, STATE_FILE, _MAGIC, msgspec.msgpack.encode(State(point, [(point.index, INSTALLED)])))


def test_a_state_ahead_of_the_log_was_installed_before_a_crash_and_the_log_follows():
    disk, _ = compacted_disk()
    point = SavedPoint(5000, 1, INSTALLED)
    save(disk, point)
    again = Node(disk)
    assert again.machine.log == [(5000, INSTALLED)]
    assert again.engine.log.base == point
    again.propose(1)
    assert again.engine.applier.applied_index == 5002
    disk.kill()
    assert Node(disk).machine.log[-1][0] == 5002


def test_a_state_of_another_term_than_the_uncommitted_log_replaces_the_log():
    disk, _ = compacted_disk()
    _, ballot = open_identity(disk, cluster_id="c", node_id="n1")
    ballot.save(3, None)
    log = open_log(disk, config_of(()))
    first = log.last_index + 1
    for index in range(first, first + 10):
        log.append(b"never committed", index, 2)
    log.flush()
    save(disk, SavedPoint(first + 5, 3, INSTALLED))
    disk.kill()
    again = Node(disk)
    assert again.engine.log.base == SavedPoint(first + 5, 3, INSTALLED)
    assert again.machine.log == [(first + 5, INSTALLED)]


def test_a_state_that_contradicts_the_committed_log_refuses_to_start():
    disk, node = compacted_disk()
    save(disk, SavedPoint(node.engine.log.last_index - 5, 0, INSTALLED))
    with pytest.raises(StorageError, match="committed"):
        Node(disk)


def test_a_state_of_a_later_term_than_the_ballot_refuses_to_start():
    disk, _ = compacted_disk()
    save(disk, SavedPoint(5000, 9, INSTALLED))
    with pytest.raises(StorageError, match="ballot"):
        Node(disk)
