"""Opening a journal again and again: cut off at any system call, by a kill or by the death of its process alone.

What an opening has shown is on the disk from then on; until one has come to its end, each finds a state that the last
flush allows. The walk is that of :mod:`tests.consensus.test_journal_model`, with more ends and worse ones: segments
that were removed come back, the only segment left is empty, a tail is torn twice, a flush fails.
"""

from __future__ import annotations

import random
import struct
from typing import cast

import pytest

from oncegate.consensus.errors import FlushFailed
from oncegate.consensus.log.segment import RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, SEGMENT_SUFFIX, scan, segment_name
from oncegate.consensus.log.wal import Journal
from oncegate.proof.sim.engine.fake_disk import InlineWorker, Killed, SimDisk
from tests.consensus.test_journal_model import SEGMENT_BYTES, Entry, State, Walk, members


def forgotten(states: list[State], base: int, term: int) -> list[State]:
    """Return the states as they are behind a later base."""
    return [State(base, term, one.entries[base - one.base :]) for one in states if one.base < base <= one.last[0]]


def is_clean(disk: SimDisk) -> bool:
    """Whether every segment is zero behind its last record: what lies there could line up with a later batch."""
    for name in disk.names():
        if name.endswith(SEGMENT_SUFFIX):
            data = bytes(disk.bytes_of(name))
            (seed,) = struct.unpack_from("<I", data, 32)
            records = list(scan(data, SEGMENT_HEADER_BYTES, seed))
            end = records[-1].offset + RECORD_HEADER_BYTES + len(records[-1].payload) if records else 0
            if any(data[max(end, SEGMENT_HEADER_BYTES) :]):
                return False
    return True


class RoughWalk(Walk):
    """The walk on a disk that fails, of a process that is ended anywhere."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.disk: SimDisk = SimDisk()
        self.journal = self.opened()
        self.cut_off = self.came_back = self.empty = self.failed = 0

    def flush(self) -> None:
        is_written = len(self.since_flush) > 1
        if is_written and self.dice.random() < 0.1:
            self.disk.fail_syncs = 1
            with pytest.raises(FlushFailed):
                self.journal.flush()
            self.failed += 1
            self.ends()
            return
        super().flush()

    def compact(self) -> None:
        self.flush()  # as the engine does: a truncation that is not flushed would be lost with what it took back
        most = min(self.commit, self.journal.flushed_index)
        if most <= self.now.base or self.dice.random() < 0.5:
            super().compact()
            return
        self.cut_at(self.dice.randint(1, 8))
        try:
            self.journal.compact(most, kept_bytes=0, configuration_at=members)
        except Killed:
            self.cut_off += 1
        self.disk.work_again()
        base = self.journal.base
        self.since_flush += forgotten(self.since_flush, base.index, base.term)
        self.ends()

    def rolls_and_compacts(self) -> None:
        """Leave as the only segment one of which nothing is flushed yet."""
        super().flush()
        segments = len(self.journal._segments)
        while len(self.journal._segments) == segments:
            self.append_one(b"x" * 200)
        self.commit = self.journal.commit_index = self.now.last[0] - 1
        super().compact()
        self.ends()

    def append_one(self, command: bytes) -> None:
        flushes, index = self.journal.flushes, self.now.last[0] + 1
        self.journal.append(command, index, self.term)
        entry: Entry = (command, index, self.term)
        self.stepped(self.now._replace(entries=(*self.now.entries, entry)), flushes)

    def cut_at(self, number: int) -> None:
        self.disk.fail_from(number, Killed())

    def dies(self) -> None:
        """Lose power, with or without parts of what was not flushed, or only the process."""
        if self.dice.random() < 0.3:
            self.disk.release()
        else:
            self.disk.kill(self.dice.choice((self.dice, self.dice, None)))
        for name in self.disk.names():
            if name.endswith(".tmp"):
                self.disk.remove(name)

    def ends(self) -> None:
        """Die, be opened and die again on the way, some times; what the last opening finds is durable."""
        self.kills += 1
        self.dies()
        while self.dice.random() < 0.6:
            self.cut_at(self.dice.randint(1, 12))
            try:
                self.opened()
            except Killed:
                self.cut_off += 1
            self.disk.work_again()
            self.dies()
        names = set(self.disk.names())
        journal = self.journal = self.opened()
        held = [segment.header.sequence for segment in journal._segments]
        assert held == list(range(held[0], held[-1] + 1))
        self.came_back += bool({name for name in names if name < segment_name(held[0]) and name.startswith("journal")})
        self.empty += journal.last_index > 0 and journal.bytes_used < RECORD_HEADER_BYTES * 2 and len(held) == 1
        segments = [name for name in self.disk.names() if name.endswith(SEGMENT_SUFFIX)]
        assert segments == [segment_name(number) for number in range(held[0], held[-1] + 2)], "these, and a spare one"
        found = self.found()
        assert found in self.since_flush
        assert found.base <= journal.commit_index <= min(self.commit, found.last[0])
        assert is_clean(self.disk)
        assert is_clean(cast("SimDisk", self.disk.fork())), "and it stays so"
        for rng in (None, self.dice):
            later = Journal(self.disk.fork(rng), InlineWorker(), segment_bytes=SEGMENT_BYTES, memory_bytes_max=1 << 20)
            assert later.entries(later.first_index, later.last_index, bytes_max=1 << 20) == list(found.entries)
            assert (later.base, later.commit_index) == (journal.base, journal.commit_index)
        self.now, self.since_flush, self.commit = found, [found], journal.commit_index
        self.term = max(self.term, found.last[1])

    def restart(self) -> None:
        if self.dice.random() < 0.2:
            super().restart()
        else:
            self.ends()

    def step(self) -> None:
        if self.dice.random() < 0.1:
            self.dice.choice((self.ends, self.rolls_and_compacts))()
        else:
            super().step()


def test_what_an_opening_has_shown_stays_however_often_openings_are_cut_off() -> None:
    walks = [RoughWalk(seed) for seed in range(8)]
    for walk in walks:
        for _ in range(160):
            walk.step()
    for what in ("cut_off", "came_back", "empty", "failed", "resets"):
        assert sum(getattr(walk, what) for walk in walks) > 1, what


@pytest.mark.parametrize("seed", range(4))
def test_what_is_committed_by_a_flushed_record_is_known_again_whatever_is_torn_behind_it(seed: int) -> None:
    dice, disk = random.Random(seed), SimDisk()
    journal, known = Journal(disk, InlineWorker(), segment_bytes=SEGMENT_BYTES, memory_bytes_max=1 << 20), 0
    for _ in range(40):
        for _ in range(dice.randint(1, 4)):
            journal.append(b"x" * dice.choice((1, 200)), journal.last_index + 1, 1)
        if dice.random() < 0.7:
            told = journal.commit_index
            journal.flush()
            known = max(known, told)
        journal.commit_index = dice.randint(journal.commit_index, journal.flushed_index)
        if dice.random() < 0.4:
            most = journal.commit_index
            disk.kill(dice)
            journal = Journal(disk, InlineWorker(), segment_bytes=SEGMENT_BYTES, memory_bytes_max=1 << 20)
            assert known <= journal.commit_index <= most
            known = journal.commit_index


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_left_on_the_disk_of_a_batch_that_was_torn(seed: int) -> None:
    """Once the log is open: a power loss now finds zeros behind the last record, too."""
    dice, disk, torn = random.Random(seed), SimDisk(), 0

    def opened() -> Journal:
        return Journal(disk, InlineWorker(), segment_bytes=1 << 14, memory_bytes_max=1 << 20)

    def dies_in_a_flush(call: str, name: str) -> None:
        if call == "sync" and name.endswith(SEGMENT_SUFFIX):
            raise Killed

    journal = opened()
    for _ in range(40):
        for is_last in (False, True):
            for _ in range(dice.randint(1, 5)):
                journal.append(b"x" * dice.choice((1, 300, 900)), journal.last_index + 1, 1)
            if not is_last:
                journal.flush()
        disk.on_call = dies_in_a_flush
        with pytest.raises(Killed):
            journal.flush()
        flushed = journal.flushed_index
        disk.work_again()
        disk.kill(dice)
        for name in disk.names():
            if name.endswith(".tmp"):
                disk.remove(name)
        torn += not is_clean(disk)
        journal = opened()
        assert journal.last_index >= flushed
        assert is_clean(disk)
        assert is_clean(cast("SimDisk", disk.fork()))
    assert torn > 10
