"""A snapshot on its way in, whatever comes in whatever order and whatever fails, against a model of bytes in a row.

The disk is as slow as the walk says. The model counts bytes over all files, and knows neither phases nor jobs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import pytest

from oncegate.consensus.messages import SnapshotChunk, SnapshotOffer, SnapshotVerdict
from oncegate.consensus.ports import SavedPoint, SnapshotFile, SnapshotManifest
from oncegate.consensus.snapshot.snapshot_receive import Receiving
from oncegate.consensus.snapshot.snapshot_send import WINDOW_CHUNKS, Position, chunk_crc

T = TypeVar("T")
CONTENT = (b"first file, ten bytes and more", b"", b"", b"the last one", b"")
ALL = b"".join(CONTENT)
PLACES = [(file, offset) for file, data in enumerate(CONTENT) for offset in range(len(data))]
"""Of each byte."""
MANIFEST = SnapshotManifest(
    SavedPoint(100, 3, b""), [SnapshotFile(f"file-{number}", len(data)) for number, data in enumerate(CONTENT)]
)
END = (len(CONTENT), 0)
IDLE_S = 5.0
QUEUED_MAX = 2 * WINDOW_CHUNKS


def place_of(byte: int) -> tuple[int, int]:
    return PLACES[byte] if byte < len(PLACES) else END


class Job(Future[Any]):
    """Work that is done when the worker comes to it, or when somebody waits for it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self.work = work

    def run(self) -> None:
        if not self.done():
            try:
                self.set_result(self.work())
            except (OSError, ValueError) as fault:
                self.set_exception(fault)

    def result(self, timeout: float | None = None) -> Any:
        self.run()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.run()
        return super().exception(timeout)


class Sink:
    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.data = b""
        self.finished = self.gone = self.installed = False

    def write(self, file: int, offset: int, data: bytes) -> None:
        self.disk.may_fail()
        assert (file, offset) == place_of(len(self.data))
        assert not self.gone
        self.data += data

    def finish(self) -> None:
        self.disk.may_fail(ValueError)
        assert self.data == ALL
        self.finished = True

    def install(self) -> None:
        assert self.finished
        self.installed = self.gone = True

    def abort(self) -> None:
        assert not self.installed
        self.gone = True


class Disk:
    """State and worker: one job at a time, each of which may fail."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.sinks: list[Sink] = []
        self.jobs: list[Job] = []
        self.fails = 0.0

    def may_fail(self, fault: type[Exception] = OSError) -> None:
        if self.dice.random() < self.fails:
            raise fault("the disk is full, or what came is not whole")

    def open_sink(self, manifest: SnapshotManifest) -> Sink:
        assert all(sink.gone for sink in self.sinks), "what came before is removed first"
        self.may_fail()
        self.sinks.append(Sink(self))
        return self.sinks[-1]

    def submit(self, work: Callable[[], T]) -> Future[T]:
        assert all(job.done() for job in self.jobs), "one job at a time"
        self.jobs.append(Job(work))
        return self.jobs[-1]

    @property
    def is_busy(self) -> bool:
        return bool(self.jobs) and not self.jobs[-1].done()


class Walk:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.disk = Disk(self.dice)
        self.receiving = Receiving(self.disk, self.disk, lambda: None)  # type: ignore[arg-type]
        self.now_s = self.heard_s = 0.0
        self.offers = 0
        self.said: list[tuple[int, SnapshotVerdict, Position]] = []
        self.transfer, self.source = 1, ("n0", 0, 0)
        """Of the last offer."""
        self.is_open = self.takes = self.is_told = False
        """Whether a sink is open for the last offer, whether its chunks are taken, whether what is missing was told."""
        self.accepted = self.chunks = self.jobs_before = self.jobs_told = 0
        self.ready = self.gave_up = self.failed = 0

    def offer(self, *, anew: bool) -> None:
        self.offers += 1
        self.transfer += anew
        self.source = self.dice.choice((self.source, ("n1", self.offers, 3), ("n2", 7, self.offers)))
        self.is_told, self.heard_s = False, self.now_s
        number = self.offers
        self.is_open, self.takes = self.is_open and not anew, self.takes and not anew
        self.receiving.offered(
            SnapshotOffer(self.source[2], self.transfer, MANIFEST),
            self.source,
            lambda verdict, place: self.said.append((number, verdict, place)),
            self.now_s,
        )
        self.hears(*[(number, SnapshotVerdict.NEXT, place_of(self.accepted))][: self.is_open])

    def hears(self, *expected: tuple[int, SnapshotVerdict, tuple[int, int]]) -> None:
        assert self.said == list(expected)
        self.said.clear()

    @property
    def queued(self) -> int:
        """Chunks that the disk has not begun to write."""
        return self.chunks - (len(self.disk.jobs) - self.jobs_before)

    def chunk(self) -> None:
        file, offset = place_of(self.accepted)
        size = self.dice.choice((1, 3, 8, 30))
        data = CONTENT[file][offset : offset + size] if file < len(CONTENT) else b"more"
        transfer, source, crc = self.transfer, self.source, None
        wrong = self.dice.choice((*[""] * 9, "transfer", "source", "crc", "place", "file", "empty", "long"))
        if wrong == "transfer":
            transfer += self.dice.choice((-1, 1))
        elif wrong == "source":
            source = self.dice.choice((("n9", *source[1:]), (source[0], -1, source[2]), (*source[:2], -1)))
        elif wrong == "crc":
            crc = chunk_crc(transfer, file, offset, data) ^ 1
        elif wrong == "place":
            offset += self.dice.choice((1, -1)) if offset else 1
        elif wrong == "file":
            file = self.dice.choice((0, 1, 3, 5))
            wrong = "" if file == place_of(self.accepted)[0] else wrong
        elif wrong == "empty":
            data = b""
        elif wrong == "long":
            data = CONTENT[min(file, 4)][offset:] + b"!"
        crc = chunk_crc(transfer, file, offset, data) if crc is None else crc
        was_full = self.queued >= QUEUED_MAX
        self.receiving.chunk(SnapshotChunk(source[2], transfer, file, offset, crc, data), source, self.now_s)
        if not self.takes or wrong in ("transfer", "source"):
            self.hears()
            return
        self.heard_s = self.now_s
        if wrong or was_full or self.accepted == len(ALL):
            told, self.is_told = self.is_told, True
            self.hears(*[(self.offers, SnapshotVerdict.REJECTED, place_of(self.accepted))][told:])
        else:
            self.hears()
            self.accepted += len(data)
            self.chunks += 1
            self.is_told = False

    def advance(self) -> None:
        jobs, queued = len(self.disk.jobs), self.queued
        ended = not self.disk.is_busy
        self.receiving.advance(self.now_s, IDLE_S)
        said, self.said = self.said, []
        assert len(said) <= 1
        if self.takes and ended:
            assert len(said) == jobs - self.jobs_told
            self.jobs_told = jobs
        for number, verdict, place in said:
            if verdict is SnapshotVerdict.FAILED:
                assert self.disk.jobs[jobs - 1].exception() is not None
                assert place == (0, 0)
                self.failed += 1
                if number == self.offers:
                    self.is_open = self.takes = False
                continue
            assert verdict is SnapshotVerdict.NEXT
            assert place == place_of(len(self.disk.sinks[-1].data)), "what is told is written"
            if number == self.offers and not self.is_open:
                self.is_open = self.takes = True
                self.accepted = self.chunks = queued = 0
                self.jobs_before = self.jobs_told = jobs
        if not self.takes:
            return
        is_whole, is_idle = self.accepted == len(ALL), self.now_s - self.heard_s > IDLE_S
        assert len(self.disk.jobs) == jobs + (ended and (queued > 0 or is_whole or is_idle))
        if ended and not queued and is_whole:
            self.takes = False  # it is being verified
        elif ended and not queued and is_idle:
            self.is_open = self.takes = False
            self.gave_up += 1

    def step(self) -> None:
        what = self.dice.choice(("offer", *["chunk"] * 8, *["advance"] * 8, *["work"] * 6, "time", "end"))
        if what == "offer":
            self.offer(anew=self.dice.random() < 0.2 or not self.offers)
        elif what == "chunk":
            for _ in range(self.dice.choice((1, 1, 1, QUEUED_MAX + 2))):
                self.chunk()
        elif what == "advance":
            self.advance()
        elif what == "work" and self.disk.is_busy:
            self.disk.jobs[-1].run()
        elif what == "time":
            self.now_s += self.dice.choice((0.5, IDLE_S, IDLE_S + 0.5))
            for _ in range(self.dice.choice((0, 1, QUEUED_MAX))):
                self.advance()
                if self.disk.is_busy:
                    self.disk.jobs[-1].run()
        elif what == "end":
            self.end()
        assert self.receiving.active or all(sink.gone for sink in self.disk.sinks)
        if self.receiving.ready is not None:
            assert self.disk.sinks[-1].finished
            assert not self.disk.sinks[-1].gone

    def end(self) -> None:
        """What came whole is installed; what did not is given up now and then."""
        if self.receiving.ready is not None:
            self.ready += 1
            self.receiving.install()
            assert self.disk.sinks[-1].installed
        elif self.dice.random() < 0.3:
            self.receiving.drop()
        else:
            return
        self.is_open = self.takes = False
        self.hears()


@pytest.mark.parametrize("seed", range(12))
def test_what_comes_is_written_in_order_told_when_it_is_written_and_removed_if_it_is_not_installed(seed: int) -> None:
    walk = Walk(seed)
    walk.disk.fails = 0.03 * (seed % 3)
    for _ in range(2000):
        walk.step()
    assert walk.ready
    assert walk.gave_up
    assert bool(walk.failed) == bool(walk.disk.fails)
    walk.disk.fails = 0
    walk.receiving.stop()
    assert all(sink.gone for sink in walk.disk.sinks)
    assert not walk.disk.is_busy
    assert not walk.receiving.active
