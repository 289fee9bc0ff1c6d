"""A follower whose next entry is gone gets the state instead, whole or not at all."""

from __future__ import annotations

import contextlib
import random
from types import SimpleNamespace

import pytest

from oncegate.consensus.configuration import Configuration, RaftMember, encode
from oncegate.consensus.core.applying import Freshness, begin_at_saved
from oncegate.consensus.core.snapshots import Snapshots
from oncegate.consensus.errors import SafetyViolation, StorageError
from oncegate.consensus.messages import (
    Ack,
    Append,
    PreVoteRequest,
    SnapshotAnswer,
    SnapshotChunk,
    SnapshotOffer,
    SnapshotVerdict,
    TimeoutNow,
)
from oncegate.consensus.ports import Role, SavedPoint, SnapshotFile, SnapshotManifest
from oncegate.consensus.snapshot.snapshot_leader import SnapshotSender
from oncegate.consensus.snapshot.snapshot_receive import is_sound
from oncegate.consensus.snapshot.snapshot_send import WINDOW_CHUNKS, Outgoing, chunk_crc
from oncegate.proof.sim.engine.durable_machine import DurableMachine
from oncegate.proof.sim.engine.fake_disk import FakeDisk, InlineWorker, Killed
from tests.consensus.one_engine import OneEngine, config_of, open_log

CONFIGURATION = encode(Configuration({"n1": RaftMember("127.0.0.1", 1), "n2": RaftMember("127.0.0.1", 2)}))


class BlockLost(StorageError):
    pass


class FragileMachine(DurableMachine):
    """Comes upon damage at the entry ``bad``; a snapshot makes it whole."""

    bad = None

    def apply(self, index, term, command):
        if index == self.bad:
            self.damaged = True
            raise BlockLost("a block cannot be read")
        return super().apply(index, term, command)

    def store(self, state):
        super().store(state)
        self.damaged = self.wants_state = False
        self.bad = None


class Follower(OneEngine):
    """A follower to which a leader ``n2`` speaks; the snapshot is that of another machine."""

    def __init__(self, point_index=50, machine=DurableMachine):
        disk = FakeDisk()
        super().__init__(disk=disk, machine=machine(disk, every=1 << 30), log_kept_bytes=0)
        leader = DurableMachine(FakeDisk())
        for index in range(2, point_index + 1):
            leader.apply(index, 1, b"command %d" % index)
        leader.begin_save(SavedPoint(point_index, 1, CONFIGURATION))
        self.source = leader.open_snapshot()

    def hear(self, *messages, peer="n2"):
        self.now += 0.01
        self.receives(peer, *messages)

    def offer(self, term=1, transfer=1, **options):
        self.hear(SnapshotOffer(term, transfer, self.source.manifest), **options)

    def chunks(self, transfer=1, term=1):
        size = self.source.manifest.files[0].size
        for offset in range(0, size, 300):
            data = self.source.read(0, offset, min(300, size - offset))
            yield SnapshotChunk(term, transfer, 0, offset, chunk_crc(transfer, 0, offset, data), data)

    def append(self, first, last, *, commit, term=1):
        entries = [(b"command %d" % index, index, 1) for index in range(first, last + 1)]
        self.hear(Append(term, first - 1, 1 if first > 2 else 0, commit, entries))

    @property
    def answers(self):
        return [message for _, _, message in self.sent if isinstance(message, SnapshotAnswer)]


def test_the_commit_index_moves_at_the_installation_and_not_before():
    follower = Follower()
    follower.append(2, 9, commit=3)
    follower.offer()
    *chunks, last = follower.chunks()
    assert len(chunks) >= 2
    for chunk in chunks:
        follower.hear(chunk)
        assert (follower.engine.raft.commit_index(), follower.engine.applier.applied_index) == (3, 3)
    follower.hear(last)
    engine = follower.engine
    assert (engine.raft.commit_index(), engine.applier.applied_index, engine.log.base.index) == (50, 50, 50)
    assert [entry[0] for entry in follower.machine.log] == list(range(2, 51))
    assert (follower.answers[-1].verdict, follower.answers[-1].index) == (SnapshotVerdict.INSTALLED, 50)
    follower.append(51, 53, commit=53)
    assert engine.applier.applied_index == 53
    # Appends that reach back behind the base are known; the part behind it is taken.
    follower.append(45, 54, commit=54)
    assert (engine.applier.applied_index, engine.log.last_index) == (54, 54)


def test_a_snapshot_that_the_log_has_overtaken_is_not_installed():
    follower = Follower()
    follower.offer()
    *chunks, last = follower.chunks()
    for chunk in chunks:
        follower.hear(chunk)
    follower.append(2, 60, commit=55)
    follower.hear(last)
    assert follower.machine.installs == 0
    assert follower.engine.applier.applied_index == 55
    assert (follower.answers[-1].verdict, follower.answers[-1].index) == (SnapshotVerdict.HAVE, 55)
    follower.offer(transfer=2)
    assert follower.answers[-1].verdict is SnapshotVerdict.HAVE


def test_an_older_snapshot_over_a_newer_state_is_caught(monkeypatch):
    monkeypatch.setattr(Snapshots, "_is_old", lambda self, point: False)
    with pytest.raises((AssertionError, SafetyViolation)):
        test_a_snapshot_that_the_log_has_overtaken_is_not_installed()


def test_damage_that_apply_meets_ends_applying_and_nothing_else():
    follower = Follower(machine=FragileMachine)
    follower.machine.bad = 40
    follower.append(2, 60, commit=55)
    engine = follower.engine
    assert (engine.applier.applied_index, engine.raft.commit_index(), engine.log.flushed_index) == (39, 55, 60)
    follower.append(61, 70, commit=70)
    assert (engine.applier.applied_index, engine.raft.commit_index(), engine.log.flushed_index) == (39, 70, 70)
    acks = [ack for _, ack in follower.said(Ack)]
    assert (acks[-1].success, acks[-1].index) == (True, 70), "the log is sound: the node counts for majorities"
    assert acks[-1].wanted_from == 0, "nobody has asked for a repair"
    follower.offer()
    assert follower.answers[-1].verdict is SnapshotVerdict.HAVE
    assert not follower.machine.saving


def test_an_error_of_apply_that_is_no_damage_goes_through(monkeypatch):
    follower = Follower(machine=FragileMachine)
    monkeypatch.setattr(FragileMachine, "damaged", property(lambda self: False, lambda self, value: None))
    follower.machine.bad = 40
    with pytest.raises(BlockLost):
        follower.append(2, 60, commit=55)


def test_a_damaged_state_is_replaced_by_an_older_one_and_the_log_is_applied_again():
    follower = Follower(machine=FragileMachine)
    follower.machine.bad = 58
    follower.append(2, 60, commit=60)
    engine = follower.engine
    age_before = engine.age_s
    follower.machine.wants_state = True
    follower.append(61, 61, commit=61)
    assert follower.said(Ack)[-1][1].wanted_from == 1
    follower.offer()
    for chunk in follower.chunks():
        follower.hear(chunk)
    assert follower.answers[-1].verdict is SnapshotVerdict.INSTALLED
    assert follower.machine.installs == 1
    assert (engine.raft.commit_index(), engine.applier.applied_index, engine.log.last_index) == (61, 61, 61)
    assert [entry[0] for entry in follower.machine.log] == list(range(2, 62)), "each entry once, none left out"
    follower.append(62, 62, commit=62)
    assert engine.applier.applied_index == 62
    assert follower.said(Ack)[-1][1].wanted_from == 0
    assert engine.age_s < age_before + 1


def test_a_state_that_was_replaced_by_an_older_one_has_no_age_until_it_has_caught_up():
    freshness = Freshness(3)
    freshness.heard(10, 7.0)
    freshness.applied(10)
    assert freshness.current_at(None) == 7.0
    freshness.applied(4)
    assert freshness.current_at(None) == float("-inf")
    freshness.applied(10)
    assert freshness.current_at(None) == 7.0


def test_a_damaged_state_whose_log_was_cut_takes_no_snapshot_from_before_the_cut():
    follower = Follower(machine=FragileMachine)
    follower.append(2, 90, commit=90)
    follower.machine.begin_save(SavedPoint(90, 1, CONFIGURATION))
    engine = follower.engine
    engine.log.reset_to(SavedPoint(95, 1, CONFIGURATION))
    follower.machine.damaged = follower.machine.wants_state = True
    follower.offer()
    for chunk in follower.chunks():
        follower.hear(chunk)
    assert follower.machine.installs == 0


def leader_with_a_damaged_follower(*, saved):
    disk = FakeDisk()
    leader = OneEngine(disk=disk, machine=DurableMachine(disk, every=1 << 30), log_kept_bytes=0).lead()
    for number in range(5):
        leader.engine.leading.propose(b"command %d" % number, number)
    leader.tick()
    leader.acknowledge("n2", "n3")
    if saved:
        leader.machine.begin_save(
            SavedPoint(leader.engine.applier.applied_index, leader.engine.raft.term(), CONFIGURATION)
        )
    return leader


@pytest.mark.parametrize("saved", [True, False])
def test_a_leader_saves_if_it_must_and_sends_its_state_to_who_wants_one_besides_entries(saved):
    leader = leader_with_a_damaged_follower(saved=saved)
    engine = leader.engine
    ack = Ack(engine.raft.term(), 1, True, engine.log.last_index, engine.log.last_index, False, 1)
    leader.receives("n2", ack)
    leader.tick(leader.now + 0.01)
    leader.tick(leader.now + 0.01)
    offered = leader.said(SnapshotOffer, "n2")
    assert offered[0][1].manifest.point.index <= engine.applier.applied_index
    assert leader.machine.saved is not None
    leader.said(Append)
    engine.leading.propose(b"one more", "more")
    leader.tick()
    assert [message.entries for _, message in leader.said(Append, "n2") if message.entries], "entries go on"
    done = SnapshotAnswer(
        engine.raft.term(), 1, offered[0][1].transfer, SnapshotVerdict.INSTALLED, index=engine.raft.commit_index()
    )
    leader.receives("n2", done)
    leader.receives("n2", Ack(engine.raft.term(), 1, True, engine.log.last_index, engine.log.last_index))
    leader.tick(leader.now + 60)
    assert not leader.said(SnapshotOffer, "n2")


def test_a_leader_whose_state_is_damaged_hands_over_without_applying_what_is_left():
    disk = FakeDisk()
    leader = OneEngine(disk=disk, machine=FragileMachine(disk, every=1 << 30)).lead()
    engine = leader.engine
    leader.machine.bad = engine.log.last_index + 1
    engine.leading.propose(b"command", "command")
    leader.tick()
    leader.acknowledge("n2", "n3")
    assert engine.applier.applied_index < engine.raft.commit_index()
    assert not engine.leading.ready
    engine.transfer(None, "transfer", 1.0)
    leader.tick()
    assert leader.said(TimeoutNow, "n2")


def test_a_node_that_starts_with_a_damaged_state_waits_at_the_beginning_of_its_log():
    follower = Follower()
    follower.append(2, 60, commit=60)
    follower.machine.begin_save(SavedPoint(60, 1, CONFIGURATION))
    follower.append(61, 61, commit=61)
    follower.engine.log.close()
    machine = FragileMachine(FakeDisk(), every=1 << 30)
    machine.damaged = True
    again = OneEngine(disk=follower.disk, machine=machine, log_kept_bytes=0)
    again.receives("n2", Append(1, 61, 1, 61, []))
    base = again.engine.log.base.index
    assert (again.engine.applier.applied_index, again.machine.log) == (max(base, 1), [])
    assert again.engine.log.last_index == 61


def test_a_deposed_leader_that_sends_a_snapshot_learns_the_term():
    follower = Follower()
    follower.append(2, 3, commit=2, term=4)
    follower.offer(term=1)
    assert follower.answers[-1].term == 4
    for chunk in follower.chunks():
        follower.hear(chunk)
    assert follower.machine.installs == 0


def test_a_snapshot_goes_on_in_the_term_of_another_leader_only_with_its_own_chunks():
    follower = Follower()
    follower.offer()
    first, *others = follower.chunks()
    follower.hear(first)
    follower.append(2, 3, commit=2, term=2)
    for chunk in others:
        follower.hear(chunk)
    assert follower.machine.installs == 0
    follower.offer(term=2)
    assert (follower.answers[-1].verdict, follower.answers[-1].offset) == (SnapshotVerdict.NEXT, 300)
    for chunk in list(follower.chunks(term=2))[1:]:
        follower.hear(chunk)
    assert follower.machine.installs == 1


def test_a_receiving_follower_that_hears_the_leader_starts_no_election():
    follower = Follower()
    follower.offer()
    first, *_ = follower.chunks()
    for _ in range(100):
        follower.now += 0.3
        follower.hear(first)
    assert follower.engine.raft.role() is Role.FOLLOWER
    assert not follower.said(PreVoteRequest)


@pytest.mark.parametrize("crash_at", range(1, 40))
def test_a_crash_anywhere_in_an_installation_leaves_the_old_state_or_the_new(crash_at):
    follower = Follower()
    follower.append(2, 9, commit=3)
    follower.offer()
    *chunks, last = follower.chunks()
    for chunk in chunks:
        follower.hear(chunk)
    follower.disk.fail_from(crash_at, Killed())
    with contextlib.suppress(Killed):
        follower.hear(last)
    follower.disk.work_again()
    told = [one for one in follower.answers if one.verdict is SnapshotVerdict.INSTALLED]
    follower.disk.kill()
    log = open_log(follower.disk, config_of())
    machine = DurableMachine(follower.disk)
    applied_index = begin_at_saved(machine, log)
    if machine.saved is None:
        assert not told
        assert (applied_index, log.last_index) == (1, 9)
    else:
        assert (applied_index, log.base.index, log.last_index) == (50, 50, 50)
        assert [entry[0] for entry in machine.log] == list(range(2, 51))


# -- one transfer --------------------------------------------------------------------------------------


CONTENT = [b"first file, ten bytes and more", b"", b"the last one"]
MANIFEST = SnapshotManifest(
    SavedPoint(100, 3, CONFIGURATION),
    [SnapshotFile(f"file-{number}", len(data)) for number, data in enumerate(CONTENT)],
)


@pytest.mark.parametrize("name", ["", ".", "..", "../state", "a/b", "a\\b"])
def test_names_that_leave_the_directory_are_refused(name):
    assert is_sound(MANIFEST)
    assert not is_sound(SnapshotManifest(MANIFEST.point, [SnapshotFile(name, 1)]))


def test_equal_names_and_negative_sizes_are_refused():
    assert not is_sound(SnapshotManifest(MANIFEST.point, [SnapshotFile("a", 1), SnapshotFile("a", 2)]))
    assert not is_sound(SnapshotManifest(MANIFEST.point, [SnapshotFile("a", -1)]))


def answer(verdict, place, transfer=1):
    return SnapshotAnswer(3, 7, transfer, verdict, place[0], place[1], 0)


def test_the_sender_offers_first_keeps_to_its_window_and_repeats_the_offer_after_silence():
    outgoing = Outgoing(1, MANIFEST, chunk_bytes=4, answer_s=1.0)
    assert outgoing.next_read() is None
    assert outgoing.offer(3, 0.0) is not None
    assert outgoing.offer(3, 0.5) is None
    outgoing.answered(answer(SnapshotVerdict.NEXT, (0, 0)), 0.5)
    sent = []
    while (wanted := outgoing.next_read()) is not None:
        place, size = wanted
        data = CONTENT[place.file][place.offset : place.offset + size]
        sent.append(outgoing.chunk(3, place, data, chunk_crc(1, *place, data)))
    assert len(sent) == WINDOW_CHUNKS
    outgoing.answered(answer(SnapshotVerdict.NEXT, (0, 4)), 0.6)
    assert outgoing.next_read() == ((0, 16), 4)
    assert outgoing.offer(3, 1.5) is None
    assert outgoing.offer(3, 1.7) is not None
    assert outgoing.next_read() is None
    outgoing.answered(answer(SnapshotVerdict.NEXT, (2, 8)), 1.8)
    assert outgoing.next_read() == ((2, 8), 4)


def test_a_rejection_sends_again_from_there_and_a_late_read_is_dropped():
    outgoing = Outgoing(1, MANIFEST, chunk_bytes=4, answer_s=1.0)
    outgoing.offer(3, 0.0)
    outgoing.answered(answer(SnapshotVerdict.NEXT, (0, 8)), 0.1)
    place, size = outgoing.next_read()
    outgoing.answered(answer(SnapshotVerdict.REJECTED, (0, 4)), 0.2)
    assert outgoing.chunk(3, place, bytes(size), 0) is None
    assert outgoing.next_read() == ((0, 4), 4)


class SourceState:
    def __init__(self):
        self.opened = 0

    def open_snapshot(self):
        self.opened += 1
        machine = DurableMachine(FakeDisk())
        machine.begin_save(SavedPoint(50, 1, CONFIGURATION))
        return machine.open_snapshot()


class Sender:
    def __init__(self):
        self.state, self.said, self.now = SourceState(), [], 0.0
        self.sender = SnapshotSender(
            config_of((), log_kept_bytes=0),
            self.state,
            InlineWorker(),
            lambda: None,
            random.Random(1),
            lambda peer, message: self.said.append((peer, message)),
        )

    def advance(self, *wanting, seconds=0.01):
        self.now += seconds
        self.said.clear()
        self.sender.advance(wanting, {"n2", "n3"}, 3, 40, self.now)
        return {peer: message for peer, message in self.said if isinstance(message, SnapshotOffer)}

    def answer(self, peer, transfer, verdict):
        self.sender.answered(peer, SnapshotAnswer(3, 7, transfer, verdict, 0, 0, 0), self.now)


def test_a_follower_that_cannot_take_a_snapshot_is_left_alone_and_the_others_go_on():
    sender = Sender()
    sender.advance("n2", "n3")
    offers = sender.advance("n2", "n3")
    assert set(offers) == {"n2", "n3"}
    transfer = offers["n2"].transfer
    sender.answer("n2", transfer, SnapshotVerdict.FAILED)
    sender.answer("n3", transfer, SnapshotVerdict.NEXT)
    assert sender.advance("n2", "n3") == {}
    assert any(peer == "n3" and isinstance(message, SnapshotChunk) for peer, message in sender.said)
    offers = sender.advance("n2", "n3", seconds=6)
    assert offers["n2"].transfer == transfer
    assert sender.state.opened == 1


def test_a_copy_that_nobody_can_take_is_replaced():
    sender = Sender()
    transfers = set()
    for _ in range(12):
        for offer in sender.advance("n2", seconds=6).values():
            transfers.add(offer.transfer)
            sender.answer("n2", offer.transfer, SnapshotVerdict.FAILED)
    assert 2 <= sender.state.opened == len(transfers) <= 4


def test_the_log_waits_for_a_follower_that_moves_behind_its_snapshot_and_not_for_one_that_does_not():
    at = {"n2": 50}
    replication = SimpleNamespace(
        heard=lambda peer, now: None,
        snapshot_over=lambda peer, index: None,
        match_index=lambda peer: at[peer],
        snapshots_wanted=lambda saved_index: ([], 0),
    )
    state = SimpleNamespace(saved=SavedPoint(100, 1, CONFIGURATION), open_snapshot=None)
    log, saving = SimpleNamespace(bytes_used=0, base=SimpleNamespace(index=1)), SimpleNamespace(needed_from=None)
    raft, parts = SimpleNamespace(term=lambda: 1), (None, saving, state, InlineWorker(), lambda: None)
    config = config_of(snapshot_idle_s=30.0)
    snapshots = Snapshots(config, log, raft, replication, *parts, random.Random(1), lambda peer, message: None)

    def needed(now):
        snapshots.lead(["n2"], now)
        return saving.needed_from

    snapshots.answered("n2", SnapshotAnswer(1, 1, 1, SnapshotVerdict.HAVE, index=50), 0.0)
    assert [needed(0.1), needed(29.0)] == [51, 51]
    at["n2"] = 60
    assert [needed(29.5), needed(59.0)] == [61, 61]
    assert needed(59.6) is None, "idle: it gets a newer snapshot"
    snapshots.answered("n2", SnapshotAnswer(1, 1, 1, SnapshotVerdict.HAVE, index=60), 60.0)
    log.bytes_used = config.journal_bytes_max // 2 + 1
    assert needed(60.1) is None, "room for commands goes first"
    log.bytes_used, at["n2"] = 0, 100
    assert [needed(60.2), needed(60.3)] == [None, None], "the log begins behind it anyway"
