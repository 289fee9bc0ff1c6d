"""Snapshots on their way out, whatever followers answer and whatever fails, against what each follower may be told.

Followers keep what comes in order, as theirs do, and forget answers now and then. The disk is as slow as the walk says.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from oncegate.consensus.messages import Message, SnapshotAnswer, SnapshotChunk, SnapshotOffer, SnapshotVerdict
from oncegate.consensus.ports import SavedPoint, SnapshotFile, SnapshotManifest
from oncegate.consensus.snapshot.snapshot_leader import SnapshotSender
from oncegate.consensus.snapshot.snapshot_send import WINDOW_CHUNKS, chunk_crc, position_from
from tests.consensus.one_engine import config_of
from tests.consensus.test_snapshot_receive_model import Job

NAMES = ("n2", "n3", "n4")
CHUNK_BYTES, PER_S, IDLE_S, PAUSE_S, FAILURES_MAX, RETRY_S = 64, 512, 8.0, 5.0, 5, 1.0
ANSWER_S = 2.5
"""Ten heartbeats."""
SIZES = (200, 0, 140, 64)


class Copy:
    """What is sent: an immutable copy of the state."""

    def __init__(self, disk: Disk, number: int) -> None:
        self.disk = disk
        self.number = number
        self.closed = 0
        self.failed = self.was_refused = self.is_given_up = False
        self.manifest = SnapshotManifest(
            SavedPoint(disk.index, 1, b""), [SnapshotFile(f"{at}", size) for at, size in enumerate(SIZES)]
        )

    def read(self, file: int, offset: int, size: int) -> bytes:
        assert not self.closed
        assert 0 < size <= CHUNK_BYTES
        assert offset + size <= SIZES[file]
        self.failed = True
        self.disk.may_fail("read")
        self.failed = False
        return bytes([self.number % 256, file, offset] + [0] * (size - 3))

    def close(self) -> None:
        self.closed += 1


class Disk:
    """State and worker; jobs are done one after another."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.index = 50
        self.fails, self.failing = 0.0, ""
        self.opens = 0
        self.copies: list[Copy] = []
        self.jobs: list[Job] = []

    def may_fail(self, what: str) -> None:
        if what == self.failing or self.dice.random() < self.fails:
            raise OSError("cannot be read")

    def open_snapshot(self) -> Copy:
        assert all(copy.closed for copy in self.copies), "one copy at a time"
        self.opens += 1
        self.may_fail("open")
        self.copies.append(Copy(self, len(self.copies)))
        return self.copies[-1]

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        self.jobs.append(Job(work))
        return self.jobs[-1]

    def work(self) -> None:
        while self.jobs and self.jobs[0].done():
            self.jobs.pop(0)
        if self.jobs:
            self.jobs[0].run()


class Follower:
    """What the sender knows of one, and what that one has."""

    def __init__(self) -> None:
        self.heard_s = NEVER_S
        """When it was last offered something or answered."""
        self.moved_s: float | None = None
        self.told = (0, 0)
        self.follows = False
        """It has answered the last offer: the sender goes on at ``next``."""
        self.next = (0, 0)
        self.unanswered: list[tuple[int, int]] = []
        """Where chunks end that it has not told as written."""
        self.has = (0, 0)

    def begin_anew(self) -> None:
        self.heard_s, self.follows = NEVER_S, False
        self.unanswered.clear()


class Walk:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.disk = Disk(self.dice)
        self.said: list[tuple[str, Message]] = []
        config = config_of(
            NAMES,
            heartbeat_ms=250,
            election_ms_min=1000,
            election_ms_max=2000,
            snapshot_chunk_bytes=CHUNK_BYTES,
            snapshot_bytes_per_s=PER_S,
            snapshot_idle_s=IDLE_S,
        )
        self.sender = SnapshotSender(
            config,
            self.disk,  # type: ignore[arg-type]
            self.disk,
            lambda: None,
            random.Random(seed),
            lambda peer, message: self.said.append((peer, message)),
        )
        self.now_s, self.base, self.bytes = 100.0, 40, 0
        self.wanting, self.connected = set(NAMES), set(NAMES)
        self.known: dict[str, Follower] = {}
        self.paused_until_s = dict.fromkeys(NAMES, NEVER_S)
        self.failures = 0
        self.transfer = 0
        self.transfers: dict[int, Any] = {}
        self.copy: Any = None
        self.disturbed = 0.05 if seed % 4 < 2 else 0.01
        self.installed = self.refused = self.replaced = 0

    def advance(self) -> None:
        before, was_opening = self.copy, self.sender._opening.busy
        self.sender.advance(sorted(self.wanting), self.connected, 3, self.base, self.now_s)
        said, self.said = self.said, []
        self.copy = self.sender._source
        self.known = {name: known for name, known in self.known.items() if name in self.wanting}
        if self.copy is not before:
            self.known.clear()
        if self.copy is None:
            assert all(isinstance(message, SnapshotOffer) for _, message in said)
            self.check_given_up()
            assert was_opening or self.disk.fails or self.sender._opening.busy == bool(self.wanting)
            return
        assert not self.copy.failed
        if self.copy is not before:
            self.failures = 0
        assert self.copy.manifest.point.index >= self.base
        offered = [name for name in sorted(self.wanting) if self.is_offered(name)]
        for name in offered:
            known = self.known.setdefault(name, Follower())
            known.begin_anew()
            known.heard_s = self.now_s
            known.moved_s = self.now_s if known.moved_s is None else known.moved_s
        offers = [(name, offer) for name, offer in said if isinstance(offer, SnapshotOffer)]
        assert [name for name, _ in offers] == offered
        for _, offer in offers:
            assert (offer.term, offer.manifest) == (3, self.copy.manifest)
            assert self.transfers.setdefault(offer.transfer, self.copy) is self.copy
            self.transfer = offer.transfer
        for name, chunk in said:
            if isinstance(chunk, SnapshotChunk):
                self.send(name, chunk)

    def check_given_up(self) -> None:
        """A copy that was there is given up for a reason."""
        if not self.disk.copies or self.sender._opening.busy:
            return
        copy = self.disk.copies[-1]
        is_old = copy.manifest.point.index < self.base
        assert is_old or copy.failed or copy.was_refused or not self.wanting or copy.is_given_up
        copy.is_given_up = True

    def is_offered(self, name: str) -> bool:
        if name not in self.connected or self.paused_until_s[name] > self.now_s:
            return False
        known = self.known.get(name, Follower())
        waits_here = known.follows and not known.unanswered and known.next != END
        return not waits_here and self.now_s - known.heard_s >= ANSWER_S

    def send(self, name: str, chunk: SnapshotChunk) -> None:
        known = self.known[name]
        file, offset = place = (chunk.file, chunk.offset)
        assert name in self.connected
        assert known.follows
        assert place == known.next
        assert len(known.unanswered) < WINDOW_CHUNKS
        assert len(chunk.data) == min(CHUNK_BYTES, SIZES[file] - offset)
        assert chunk.data[:3] == bytes([self.copy.number % 256, file, offset])
        assert chunk.term == 3
        assert (chunk.transfer, chunk.crc) == (self.transfer, chunk_crc(self.transfer, file, offset, chunk.data))
        assert self.bytes < 2 * CHUNK_BYTES + PER_S * (self.now_s - 100.0)
        self.bytes += len(chunk.data)
        known.next = position_from(self.copy.manifest, file, offset + len(chunk.data))
        known.unanswered.append(known.next)
        if known.has == place and self.dice.random() > self.disk.fails:
            known.has = known.next

    def answer(self, name: str) -> None:
        known = self.known.get(name)
        has = known.has if known is not None else (0, 0)
        verdict, place = self.dice.choice(
            (
                *[(SnapshotVerdict.INSTALLED if has == END else SnapshotVerdict.NEXT, has)] * 10,
                (SnapshotVerdict.NEXT, (0, 0)),
                (SnapshotVerdict.REJECTED, has),
                (SnapshotVerdict.FAILED, (0, 0)),
                (SnapshotVerdict.HAVE if self.dice.random() < 0.3 else SnapshotVerdict.NEXT, has),
            )
        )
        transfer = self.transfer + (self.dice.random() < 0.1)
        self.sender.answered(name, SnapshotAnswer(3, 7, transfer, verdict, *place, 0), self.now_s)
        if known is not None and transfer == self.transfer:
            self.note(name, known, verdict, place)

    def note(self, name: str, known: Follower, verdict: SnapshotVerdict, place: tuple[int, int]) -> None:
        if verdict not in (SnapshotVerdict.NEXT, SnapshotVerdict.REJECTED):
            del self.known[name]
            self.installed += verdict is SnapshotVerdict.INSTALLED
        if verdict is SnapshotVerdict.FAILED:
            self.refused += 1
            self.failures += 1
            self.paused_until_s[name] = self.now_s + PAUSE_S
            if self.failures == FAILURES_MAX:
                self.known.clear()
                self.copy.was_refused = True
                self.copy = None
                self.replaced += 1
            return
        known.heard_s = self.now_s
        place = position_from(self.copy.manifest, *place)
        if place > known.told:
            known.told, known.moved_s = place, self.now_s
        if not known.follows or verdict is SnapshotVerdict.REJECTED:
            known.follows, known.next, known.unanswered = True, place, []
        known.unanswered = [end for end in known.unanswered if end > place]

    def step(self) -> None:
        name = self.dice.choice(NAMES)
        if len(self.wanting & self.connected) < 2 and self.dice.random() < 0.02:
            self.wanting, self.connected = set(NAMES), set(NAMES)
        what = self.dice.choice((*["advance"] * 6, *["work"] * 6, *["answer"] * 6, *["time"] * 3, *OTHERS))
        if what == "advance":
            self.advance()
        elif what == "work":
            self.disk.work()
        elif what == "answer":
            self.answer(name)
        elif what == "time":
            self.now_s += self.dice.choice((0.125, 0.125, 0.5))
        elif self.dice.random() < self.disturbed:
            self.disturb(what, name)
        self.check()

    def disturb(self, what: str, name: str) -> None:
        if what == "wants":
            self.wanting ^= {name}
        elif what == "connected":
            self.connected ^= {name}
            self.sender.reconnected(name)
            if name in self.known:
                self.known[name].begin_anew()
        elif what == "term":
            self.sender.begin_term()
            for known in self.known.values():
                known.begin_anew()
        elif what == "state":
            self.disk.index += 10
        elif what == "base":
            self.base = self.disk.index - self.dice.choice((0, 5))
        elif what == "nobody":
            self.wanting = set()
            self.now_s += IDLE_S

    def check(self) -> None:
        moves = [known.moved_s for known in self.known.values() if known.moved_s is not None]
        is_held = any(moved_s >= self.now_s - IDLE_S for moved_s in moves)
        assert self.sender.held_index(self.now_s) == (self.copy.manifest.point.index if is_held else None)
        assert all(copy.closed <= 1 for copy in self.disk.copies)


OTHERS = ("wants", "connected", "term", "state", "base", "nobody")
END = (len(SIZES), 0)
NEVER_S = float("-inf")


@pytest.mark.parametrize("seed", range(10))
def test_followers_get_offers_and_chunks_when_they_are_due_and_of_one_copy(seed: int) -> None:
    walk = Walk(seed)
    walk.disk.fails = 0.05 * (seed % 2)
    for _ in range(5000):
        walk.step()
    assert walk.refused
    assert walk.installed
    assert walk.replaced or walk.disturbed > 0.01 or walk.disk.fails
    walk.sender.stop()
    while any(not job.done() for job in walk.disk.jobs):
        walk.disk.work()
    assert [copy.closed for copy in walk.disk.copies] == [1] * len(walk.disk.copies)


def test_followers_that_answer_share_the_whole_rate_chunk_by_chunk() -> None:
    walk, turns, sizes = Walk(0), list[str](), list[int]()
    for _ in range(2000):
        walk.sender.advance(NAMES, set(NAMES), 3, walk.base, walk.now_s)
        said, walk.said = walk.said, []
        for name, message in said:
            place = (0, 0)
            if isinstance(message, SnapshotChunk):
                turns.append(name)
                sizes.append(len(message.data))
                place = (message.file, message.offset + len(message.data))
            answer = SnapshotAnswer(3, 7, message.transfer, SnapshotVerdict.NEXT, *place, 0)  # type: ignore[union-attr]
            walk.sender.answered(name, answer, walk.now_s)
        walk.disk.work()
        if not walk.sender._reading.busy and walk.now_s < (next_s := walk.sender.deadline(walk.now_s)) < float("inf"):
            assert sum(sizes) >= PER_S * (walk.now_s - 100.0), "nothing waits that may go"
            walk.now_s = next_s
    assert sum(sizes) == len(NAMES) * sum(SIZES)
    assert turns == [*NAMES] * (len(turns) // len(NAMES))
    assert walk.now_s > 100.0


@pytest.mark.parametrize("what", ["open", "read"])
def test_copy_that_cannot_be_made_or_read_is_made_anew_after_a_pause(what: str) -> None:
    walk = Walk(0)

    def go_on() -> None:
        for _ in range(8):
            walk.sender.advance(("n2",), {"n2"}, 3, walk.base, walk.now_s)
            for name, message in walk.said:
                transfer = message.transfer  # type: ignore[union-attr]
                answer = SnapshotAnswer(3, 7, transfer, SnapshotVerdict.NEXT, 0, 0, 0)
                walk.sender.answered(name, answer, walk.now_s)
            walk.said.clear()
            for _ in walk.disk.jobs[:]:
                walk.disk.work()

    walk.disk.failing = what
    for tried in range(1, 4):
        go_on()
        walk.now_s += RETRY_S - 0.125
        go_on()
        assert walk.disk.opens == tried
        assert [copy.closed for copy in walk.disk.copies] == [1] * len(walk.disk.copies)
        walk.now_s += 0.125
    walk.disk.failing = ""
    go_on()
    assert [copy.closed for copy in walk.disk.copies] == [1] * (0 if what == "open" else 3) + [0]
