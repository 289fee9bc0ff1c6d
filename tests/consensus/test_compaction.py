"""Removing the log's head, and restarting the log behind a snapshot: atomic at every system call."""

from __future__ import annotations

import random

import pytest

from oncegate.consensus.configuration import Configuration, RaftMember, encode
from oncegate.consensus.errors import Corrupt, SafetyViolation
from oncegate.consensus.log.ballot import Ballot
from oncegate.consensus.log.library_log import LibraryLog
from oncegate.consensus.log.log_base import BASE_FILE
from oncegate.consensus.log.segment import segment_name
from oncegate.consensus.log.storage import DirectoryStorage
from oncegate.consensus.log.wal import Journal
from oncegate.consensus.ports import SavedPoint
from oncegate.proof.sim.engine.fake_disk import FakeDisk, InlineWorker

INSTALLED = encode(Configuration({"n1": RaftMember("127.0.0.1", 1)}))
SEGMENT = 1024


def open_journal(disk, *, memory_bytes_max=600):
    for name in disk.names():
        if name.endswith(".tmp"):
            disk.remove(name)
    return Journal(disk, InlineWorker(), segment_bytes=SEGMENT, memory_bytes_max=memory_bytes_max)


def configuration_at(index):
    return encode(Configuration({f"n{index}": RaftMember("127.0.0.1", 1)}))


def compact(journal, index, kept_bytes=0):
    journal.compact(index, kept_bytes=kept_bytes, configuration_at=configuration_at)
    journal.maintain(0.0)


def fill(journal, count, *, term=1, size=100):
    for _ in range(count):
        index = journal.last_index + 1
        journal.append(index.to_bytes(4, "big") * (size // 4), index, term)
    journal.flush()


def entries_of(journal):
    found = []
    while journal.first_index + len(found) <= journal.last_index:
        found += journal.entries(journal.first_index + len(found), journal.last_index, bytes_max=1 << 20)
    return found


def filled(count, *, commit=0):
    """A journal of so many flushed entries, of which some are committed."""
    disk = FakeDisk()
    journal = open_journal(disk)
    fill(journal, count)
    journal.commit_index = commit
    return disk, journal


def compacted(*, upto=40):
    """Sixty entries of 148 bytes, six a segment, compacted."""
    disk, journal = filled(60, commit=50)
    compact(journal, upto)
    return disk, journal


def test_whole_segments_up_to_the_saved_point_are_removed_and_the_rest_is_kept():
    disk, journal = compacted()
    assert journal.base == SavedPoint(36, 1, configuration_at(36))
    assert (journal.first_index, journal.last_index) == (37, 60)
    assert [entry[1] for entry in entries_of(journal)] == list(range(37, 61))
    assert (journal.term_at(35), journal.term_at(36), journal.term_at(37)) == (None, 1, 1)
    assert segment_name(6) not in disk.names()
    assert segment_name(7) in disk.names()


def test_a_tail_of_the_log_is_kept_behind_the_saved_point():
    _, journal = filled(60, commit=60)
    compact(journal, 60, kept_bytes=3 * SEGMENT)
    assert journal.bytes_after(journal.base.index) + SEGMENT >= 3 * SEGMENT
    assert journal.bytes_used >= 3 * SEGMENT
    assert 0 < journal.base.index <= 60 - 18


def test_everything_may_be_removed_but_the_segment_in_use():
    disk, journal = filled(6, commit=6)
    fill(journal, 1, term=3)
    journal.commit_index = 7
    compact(journal, 7)
    assert journal.base.index == 6
    journal = open_journal(disk)
    assert entries_of(journal) == [((7).to_bytes(4, "big") * 25, 7, 3)]


def test_what_is_not_committed_is_never_removed():
    _, journal = filled(20, commit=10)
    with pytest.raises(SafetyViolation):
        compact(journal, 11)


def test_replaced_entries_before_and_behind_the_base_are_told_apart():
    disk, journal = filled(30, commit=12)
    journal.truncate_from(14)
    fill(journal, 30, term=2)
    journal.commit_index = 40
    for upto in (12, 13, 14, 20, 31, 40):
        compact(journal, upto)
        expected, base = entries_of(journal), journal.base
        reopened = open_journal(disk.fork())
        assert (entries_of(reopened), reopened.base) == (expected, base)
    assert base.index > 31


def test_the_library_sees_the_base_as_its_first_entry():
    disk, _ = compacted()
    ballot = Ballot.create(disk)
    ballot.save(3, None)
    log = LibraryLog(disk, InlineWorker(), ballot, segment_bytes=SEGMENT, memory_bytes_max=600)
    assert len(log) == 25
    assert log[0] == (b"", 36, 1)
    assert log[0:2] == [(b"", 36, 1), log.entry(37)]
    assert log[1] == log[1:2][0] == log.entry(37)
    assert log[24:] == [log.entry(60)]
    log.deleteEntriesFrom(22)
    assert (log.last_index, log[-1]) == (57, (b"", 57, 1))


def scripted(disk, rng, observe):
    """Appends, commits, truncations, compactions and resets; ``observe`` hears what must be durable and what may be."""
    journal = open_journal(disk)
    term = 1
    for _ in range(25):
        kind = rng.choice(("fill", "fill", "fill", "truncate", "compact", "compact", "reset"))
        if kind == "fill":
            journal.commit_index = rng.randint(journal.commit_index, journal.flushed_index)
            first = journal.last_index + 1
            added = [
                (index.to_bytes(4, "big") * rng.randrange(2, 60), index, term)
                for index in range(first, first + rng.randrange(1, 9))
            ]
            with observe(journal, adding=added):
                for entry in added:
                    journal.append(*entry)
                journal.flush()
        elif kind == "truncate" and journal.commit_index < journal.last_index:
            term += 1
            index = rng.randint(journal.commit_index + 1, journal.last_index)
            with observe(journal, removing_from=index):
                journal.truncate_from(index)
                journal.append(b"new", index, term)
                journal.flush()
        elif kind == "compact":
            with observe(journal):
                compact(journal, rng.randint(0, journal.commit_index), rng.choice((0, 0, SEGMENT)))
        elif kind == "reset" and rng.random() < 0.4:
            term += 1
            point = SavedPoint(journal.last_index + rng.randrange(1, 9), term, INSTALLED)
            with observe(journal, resetting=point):
                journal.reset_to(point)
    return journal


class Observer:
    """At every system call, opens what a power loss would leave, and compares it with what was promised."""

    def __init__(self, disk, rng, *, partly):
        self.disk, self.rng, self.partly = disk, rng, partly
        self.checked = 0
        disk.on_call = lambda call, name: self.check()
        self.durable, self.base, self.optional = [], 0, {}

    def __call__(self, journal, **optional):
        self.durable, self.base, self.optional = entries_of(journal), journal.base.index, optional
        return self

    def __enter__(self):
        self.check()

    def __exit__(self, *failure):
        self.optional.setdefault("resetting", None)

    def check(self):
        forked = self.disk.fork(self.rng) if self.partly else self.disk.fork()
        found = open_journal(forked)
        self.checked += 1
        entries = entries_of(found)
        point = self.optional.get("resetting")
        if point is not None and found.base == point:
            assert entries == []
            return
        held = {entry[1]: entry for entry in entries}
        removing_from = self.optional.get("removing_from", 1 << 60)
        for entry in self.durable:
            if entry[1] > found.base.index and entry[1] < removing_from:
                assert held[entry[1]] == entry
        # Nothing that was not on its way may appear.
        expected = {entry[1]: entry for entry in [*self.durable, *self.optional.get("adding", ())]}
        for entry in entries:
            if self.base < entry[1] < removing_from:
                assert expected[entry[1]] == entry
        fill(found, 2, term=99)
        again = open_journal(forked)
        assert entries_of(again) == entries_of(found)


@pytest.mark.parametrize("partly", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_power_loss_at_every_system_call_loses_nothing_and_the_journal_opens(seed, partly):
    rng = random.Random(seed)
    disk = FakeDisk()
    open_journal(disk)
    observer = Observer(disk, random.Random(seed), partly=partly)
    scripted(disk, rng, observer)
    assert observer.checked > 60


@pytest.mark.parametrize("stop_at", ["rename base.tmp base", "remove", "sync_directory"])
def test_segments_left_behind_by_a_crash_are_removed_at_the_next_start(stop_at):
    class CrashError(BaseException):
        pass

    disk, journal = filled(60, commit=60)
    expected = entries_of(journal)
    published = False

    def crash(call, name):
        nonlocal published
        published |= name == "base.tmp base"
        if published and f"{call} {name}".startswith(stop_at):
            raise CrashError

    disk.on_call = crash
    with pytest.raises(CrashError):
        compact(journal, 50)
    disk.work_again()
    disk.kill()
    journal = open_journal(disk)
    assert entries_of(journal) == expected[journal.base.index :]
    kept = [name for name in disk.names() if name.endswith(".segment")]
    if journal.base.index:
        assert segment_name(1) not in kept


def test_a_reset_survives_a_kill_and_keeps_nothing_of_the_old_log():
    disk, journal = filled(20, commit=10)
    point = SavedPoint(500, 7, INSTALLED)
    journal.reset_to(point)
    assert (journal.first_index, journal.last_index, journal.last_term, journal.commit_index) == (501, 500, 7, 500)
    disk.kill()
    journal = open_journal(disk)
    assert (journal.base, journal.last_index, journal.commit_index) == (point, 500, 500)
    fill(journal, 20, term=7)
    journal.commit_index = 505
    compact(journal, 505)
    assert segment_name(1) not in disk.names()
    reopened = open_journal(disk.fork())
    assert (reopened.base, entries_of(reopened)) == (journal.base, entries_of(journal))


def test_a_reset_keeps_the_suffix_when_the_log_holds_the_entry():
    _, journal = filled(20)
    before = entries_of(journal)
    journal.reset_to(SavedPoint(15, 1, INSTALLED))
    assert entries_of(journal) == before
    assert journal.commit_index == 15


def test_a_reset_below_the_commit_index_to_another_term_is_refused():
    _, journal = filled(20, commit=18)
    with pytest.raises(SafetyViolation):
        journal.reset_to(SavedPoint(15, 2, INSTALLED))


def test_a_flip_or_cut_at_any_byte_of_the_base_is_refused_and_names_the_file():
    disk, _ = compacted()
    good = bytes(disk.bytes_of(BASE_FILE))
    for offset in range(len(good)):
        for damaged in (good[:offset] + bytes([good[offset] ^ 0x40]) + good[offset + 1 :], good[:offset]):
            disk.bytes_of(BASE_FILE)[:] = damaged
            with pytest.raises(Corrupt) as refused:
                open_journal(disk)
            assert refused.value.file == f"fake:/{BASE_FILE}"


def test_a_missing_base_or_first_segment_is_refused():
    disk, _ = compacted()
    kept = disk.fork()
    disk.remove(BASE_FILE)
    with pytest.raises(Corrupt, match="missing"):
        open_journal(disk)
    first = min(name for name in kept.names() if name.endswith(".segment"))
    kept.remove(first)
    with pytest.raises(Corrupt, match=first):
        open_journal(kept)


def test_a_flip_in_any_flushed_record_behind_the_base_is_refused():
    disk, journal = compacted(upto=50)
    name = segment_name(journal._segments[0].header.sequence)
    good = bytes(disk.bytes_of(name))
    for offset in range(len(good.rstrip(b"\0"))):
        disk.bytes_of(name)[:] = good[:offset] + bytes([good[offset] ^ 1]) + good[offset + 1 :]
        with pytest.raises(Corrupt):
            open_journal(disk)


def test_a_compacted_journal_on_a_real_disk_gives_its_space_back(tmp_path):
    disk = DirectoryStorage(tmp_path)
    journal = open_journal(disk)
    fill(journal, 200)
    journal.commit_index = 200
    before = len(disk.names())
    compact(journal, 190)
    expected = entries_of(journal)
    journal.close()
    assert len(disk.names()) < before / 4
    journal = open_journal(disk)
    assert entries_of(journal) == expected
    journal.close()
    disk.close()


def test_a_first_segment_without_a_flushed_record_is_taken_up_exactly():
    disk, journal = filled(12, commit=12)
    journal.append(bytes(100), 13, 1)
    compact(journal, 12)
    assert len(journal._segments) == 1
    disk.kill()
    for last_index in (12, 13, 14):
        journal = open_journal(disk)
        assert (journal.base.index, journal.last_index) == (12, last_index)
        fill(journal, 1)
