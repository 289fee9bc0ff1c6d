"""The journal against a list: whatever is appended, taken back, flushed, compacted, replaced, killed and opened again.

After a kill the journal holds what was flushed and, of what was not, a part from the beginning: never something later
without what came before it, and never anything that was taken back before a flush.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple, TypeVar

import pytest

from oncegate.consensus.configuration import Configuration, encode
from oncegate.consensus.errors import SafetyViolation
from oncegate.consensus.log.segment import RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, segment_name
from oncegate.consensus.log.segment_file import RETRY_S
from oncegate.consensus.log.wal import Journal
from oncegate.consensus.ports import SavedPoint
from oncegate.proof.sim.engine.fake_disk import FakeDisk, InlineWorker

SEGMENT_BYTES = 1024
Entry = tuple[bytes, int, int]
T = TypeVar("T")


def members(index: int) -> bytes:
    """Return a configuration that says where it stood."""
    return encode(Configuration.of_addresses({f"n{index}": ("127.0.0.1", 1)}))


class State(NamedTuple):
    """What a log holds: where it begins, and its entries."""

    base: int
    base_term: int
    entries: tuple[Entry, ...]

    @property
    def last(self) -> tuple[int, int]:
        return self.entries[-1][1:] if self.entries else (self.base, self.base_term)

    def term_at(self, index: int) -> int | None:
        if index == self.base:
            return self.base_term if index else None
        return self.entries[index - self.base - 1][2] if self.base < index <= self.last[0] else None


class FullDisk:
    """Runs jobs at once, on a disk that has no room at times: a removal ends before it begins, or behind some files."""

    def __init__(self, disk: FakeDisk) -> None:
        self._disk, self._remove, self._inline = disk, disk.remove, InlineWorker()
        self.removes_max: int | None = None

    def submit(self, job: Callable[[], T], /) -> Future[T]:
        if self.removes_max is not None:
            vars(self._disk)["remove"] = partial(self._remove_some, [self.removes_max])
        try:
            done: Future[T] = self._inline.submit(job)  # type: ignore[no-untyped-call]
        finally:
            vars(self._disk).pop("remove", None)
        return done

    def _remove_some(self, left: list[int], name: str) -> None:
        if not left[0]:
            raise OSError(errno.ENOSPC, "the disk is full")
        left[0] -= 1
        self._remove(name)


class Walk:
    """A journal on a disk that can be killed, and the list."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.memory_bytes = self.dice.choice((0, 300, 1 << 20))
        self.disk = FakeDisk()
        self.now = State(0, 0, ())
        self.since_flush = [self.now]
        """The states that a kill may leave: the flushed one, and those of each step behind it."""
        self.commit = 0
        self.term = 1
        self.kills = self.compactions = self.resets = 0
        self.clock = 0.0
        self.worker = FullDisk(self.disk)
        self.journal = self.opened()

    def opened(self) -> Journal:
        return Journal(self.disk, self.worker, segment_bytes=SEGMENT_BYTES, memory_bytes_max=self.memory_bytes)

    def stepped(self, after: State, flushes: int) -> None:
        """A record was added; a segment that was full was flushed before it."""
        if self.journal.flushes > flushes:
            self.since_flush = [self.now]
        self.now = after
        self.since_flush.append(after)

    # what it does

    def append(self) -> None:
        command = bytes([self.dice.randrange(256)]) * self.dice.choice((1, 1, 20, 20, 100, 300, 900))
        if not self.journal.has_room(RECORD_HEADER_BYTES + len(command)):
            return
        self.term += self.dice.random() < 0.1
        flushes, index = self.journal.flushes, self.now.last[0] + 1
        self.journal.append(command, index, self.term)
        entries = (*self.now.entries, (command, index, self.term))
        self.stepped(self.now._replace(entries=entries), flushes)

    def truncate(self) -> None:
        last = self.now.last[0]
        if last <= self.commit:
            return
        index, flushes = self.dice.randint(max(self.commit + 1, last - 3), last + 1), self.journal.flushes
        self.journal.truncate_from(index)
        if index <= last:
            self.stepped(self.now._replace(entries=self.now.entries[: index - self.now.base - 1]), flushes)
        self.term = max(self.term, self.now.last[1])

    def flush(self) -> None:
        flushes, dirty = self.journal.flushes, len(self.since_flush) > 1
        assert self.journal.dirty == dirty
        self.journal.flush()
        assert self.journal.flushes == flushes + dirty
        assert self.journal.flushed_index == self.now.last[0]
        in_memory = self.journal._recent
        assert self.journal._recent_bytes == sum(len(one[0]) + RECORD_HEADER_BYTES for one in in_memory)
        assert sum(len(one[0]) + RECORD_HEADER_BYTES for one in in_memory[1:]) <= self.memory_bytes
        self.since_flush = [self.now]

    def commits(self) -> None:
        self.commit = self.dice.randint(self.commit, max(self.commit, self.now.last[0]))
        self.journal.commit_index = self.commit

    def compact(self) -> None:
        most = min(self.commit, self.journal.flushed_index)
        with pytest.raises(SafetyViolation):
            self.journal.compact(most + 1, kept_bytes=0, configuration_at=members)
        if most <= self.now.base:
            return
        index, kept = self.dice.randint(self.now.base, most), self.dice.choice((0, 0, 500, 3000))
        self.worker.removes_max = self.dice.choice((None, None, 0, 1))
        self.journal.compact(index, kept_bytes=kept, configuration_at=members)
        self.worker.removes_max = None
        base = self.journal.base
        assert self.now.base <= base.index <= max(index, self.now.base)
        if base.index == self.now.base:
            return
        self.compactions += 1
        assert base == SavedPoint(base.index, self.now.term_at(base.index) or 0, members(base.index))
        self.since_flush = [
            State(base.index, base.term, one.entries[base.index - one.base :]) for one in self.since_flush
        ]
        self.now = self.since_flush[-1]
        assert self.journal.bytes_used >= min(kept, sum(len(one[0]) for one in self.now.entries))

    def reset(self) -> None:
        self.flush()
        last, last_term = self.now.last
        index = self.dice.randint(max(1, self.now.base), last + 5)
        held = self.now.term_at(index)
        term = held if held is not None and self.dice.random() < 0.5 else max(self.term, last_term) + 1
        if index <= self.commit:
            if held is None:
                return
            term = held
        if not self.journal.has_room(RECORD_HEADER_BYTES + 100):
            return
        self.journal.reset_to(SavedPoint(index, term, members(index)))
        if held != term:
            self.now = State(index, term, ())
            self.resets += 1
            assert self.journal.base == SavedPoint(index, term, members(index))
        self.commit = max(self.commit, index)
        assert self.journal.commit_index == self.commit
        self.term = max(self.term, term)
        self.since_flush = [self.now]

    def restart(self) -> None:
        if self.dice.random() < 0.4:
            self.journal.close()
            self.since_flush = [self.now]
        else:
            self.kills += 1
            self.disk.kill(self.dice)
        self.disk.close()
        self.journal = self.opened()
        found = self.found()
        assert found in self.since_flush
        self.now, self.since_flush = found, [found]
        assert found.base <= self.journal.commit_index <= min(self.commit, found.last[0])
        self.commit = self.journal.commit_index
        self.term = max(self.term, found.last[1])

    # what holds

    def found(self) -> State:
        """Return what the journal holds, read from its beginning in pieces of any size."""
        journal, entries = self.journal, list[Entry]()
        while (first := journal.first_index + len(entries)) <= journal.last_index:
            last, most = self.dice.randint(first, journal.last_index), self.dice.choice((1, 50, 500, 1 << 20))
            piece = journal.entries(first, last, bytes_max=most)
            assert piece, "at least one"
            assert len(piece) <= last - first + 1
            assert sum(len(command) for command, _, _ in piece[1:]) <= most
            entries += piece
        return State(journal.base.index, journal.base.term, tuple(entries))

    def check(self) -> None:
        journal, (last, last_term) = self.journal, self.now.last
        assert (journal.last_index, journal.last_term) == (last, last_term)
        assert journal.first_index == self.now.base + 1
        for index in range(self.now.base - 1, last + 3):
            if index >= 0:
                assert journal.term_at(index) == self.now.term_at(index)
        assert journal.bytes_after(last) == 0
        assert journal.bytes_after(max(0, self.now.base - 2)) == journal.bytes_after(self.now.base)
        most = SEGMENT_BYTES - SEGMENT_HEADER_BYTES
        assert (journal.has_room(most), journal.has_room(most + 1)) == (True, False)
        assert (journal.has_room(most - 9, reserve_bytes=9), journal.has_room(most, reserve_bytes=1)) == (True, False)
        if self.now.entries:
            command, index, _ = self.now.entries[-1]
            assert journal.bytes_after(index - 1) >= RECORD_HEADER_BYTES + len(command)
            assert journal.bytes_after(self.now.base) <= journal.bytes_used
        if not journal.dirty:
            assert self.found() == self.now
            if self.now.entries:
                one = self.dice.choice(self.now.entries)
                assert journal.entry(one[1]) == one

    def check_files(self) -> None:
        """With room, and after a while, the segments on the disk are those of the log, and one made ready."""
        self.clock += 2 * RETRY_S
        for _ in range(2):
            self.journal.maintain(self.clock)
        files = sorted(name for name in self.disk.names() if name.startswith("journal-"))
        own = [segment_name(segment.header.sequence) for segment in self.journal._segments]
        assert files[: len(own)] == own
        assert len(files) <= len(own) + 1

    def step(self) -> None:
        what = self.dice.choice(
            ("append",) * 10
            + ("flush",) * 4
            + ("commits",) * 3
            + ("truncate", "truncate", "compact", "compact", "rare")
        )
        if what == "rare":
            what = self.dice.choice(("reset", "restart", "restart"))
        getattr(self, what)()
        self.clock += self.dice.choice((0.0, RETRY_S / 4))
        self.journal.maintain(self.clock)
        self.check()
        if self.dice.random() < 0.02:
            self.check_files()


@pytest.mark.parametrize("seed", range(16))
def test_what_the_journal_holds_is_what_the_list_says_through_kills_and_clean_stops(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(400):
        walk.step()
    walk.check_files()
    assert min(walk.kills, walk.compactions) > 0
