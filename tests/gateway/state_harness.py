"""Stands where consensus stands: applies a log to a state, saves it, ships it, and takes its files away at any step."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from oncegate.consensus.errors import StorageError
from oncegate.consensus.ports import SavedPoint
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.state import MachineState, durable, state_digest
from oncegate.gateway.machine.state.directory import StateDirectory
from oncegate.gateway.machine.state.snapshot import SnapshotStoreSink, StoreSnapshot
from oncegate.gateway.machine.state.store import RocksStore
from tests.gateway.logs import RandomLog
from tests.gateway.machine_log import MachineLog

PIECE_BYTES = 4096


def point(index: int) -> SavedPoint:
    return SavedPoint(index, 1 + index // 100, b"configuration %d" % index)


def puts(table: str, first: int, count: int, *, value: bytes = b"1", trace: str = "") -> c.Operate:
    """Return that many puts of session 1, each under its own key."""
    kind = int(c.OpKind.PUT)
    ops = [c.Op(n, kind, table, f"k{n}", n, value) for n in range(first, first + count)]
    return c.Operate(1, 1, first, ops, traceparent=trace)


class Fed(MachineLog):
    """A durable state, and the entries that it has applied."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path = path
        self.state = MachineState(path, **options)
        super().__init__(machine=self.state.machine)
        self.at = 0 if self.state.saved is None else self.state.saved.index

    def begin_save(self) -> None:
        self.state.begin_save(point(self.at))

    def save(self) -> None:
        self.begin_save()
        self.wait_saved()

    def wait_saved(self) -> None:
        assert self.state.wait_saved(20), self.state.broken
        assert self.state.broken is None

    def close(self) -> None:
        self.state.close()

    def reopened(self) -> Fed:
        """Close it and open it again: what was saved last must be what it was."""
        expected = state_digest(self.machine)
        self.close()
        again = Fed(self.path)
        assert state_digest(again.machine) == expected
        return again

    def after(self, what: str, other: Path) -> Fed:
        """Save, and return what goes on from there: this state, opened again, or a snapshot of it in ``other``."""
        self.save()
        if what == "save":
            return self
        if what == "restart":
            return self.reopened()
        shipped = Fed(other)
        ship(self.state, shipped.state).install()
        shipped.at = self.at
        self.close()
        return shipped


class Member(Fed):
    """A state that follows a log."""

    def __init__(self, path: Path, log: RandomLog, **options: Any) -> None:
        super().__init__(path, **options)
        self.log = log

    def apply_to(self, index: int) -> None:
        while self.at < index:
            self.at += 1
            apply(self.machine, self.at, 1, self.log.at(self.at))
            self.machine.flows.take_sealed()
            self.machine.flows.take_dropped()

    def apply(self, count: int) -> None:
        self.apply_to(self.at + count)

    def wrong(self) -> str | None:
        """Say what does not equal a machine that applied the whole log in memory; None is good."""
        return None if state_digest(self.machine) == digest_at(self.log, self.at) else f"state at {self.at} differs"


def digest_at(log: RandomLog, index: int) -> str:
    """Digest of a machine that has applied ``index`` entries in memory."""
    if index not in log.digests:
        log.digests[index] = state_digest(log.applied(index))
    return log.digests[index]


def wrong_after_crash(image: Path, log: RandomLog, last: int) -> str | None:
    """Open the files that a crash left, replay the rest of the log; say what is wrong."""
    try:
        member = Member(image, log)
    except StorageError as refused:
        return f"after a crash: {refused}"
    try:
        saved = member.at
        if (found := member.wrong()) is not None:
            return f"after a crash: {found}, saved index {saved}"
        member.apply_to(last)
        return member.wrong()
    finally:
        member.close()


def save_until_killed(seed: int, path: Path, last: int, says: Connection) -> None:
    """Apply a log up to ``last`` and save it all the time; say each index that a new process must find again."""
    member, rng = Member(path, RandomLog(seed)), random.Random(seed)
    says.send(member.at)
    while member.at < last:
        member.apply(rng.randint(1, 30))
        if not member.state.saving:
            if member.state.saved is not None:
                says.send(member.state.saved.index)
            member.begin_save()
    member.wait_saved()


def received(source: StoreSnapshot, target: MachineState) -> SnapshotStoreSink:
    """Copy an open snapshot piece by piece; the sink is finished, not installed."""
    sink = target.open_sink(source.manifest)
    for number, file in enumerate(source.manifest.files):
        for offset in range(0, file.size, PIECE_BYTES):
            sink.write(number, offset, source.read(number, offset, min(PIECE_BYTES, file.size - offset)))
    sink.finish()
    return sink


def ship(source: MachineState, target: MachineState) -> SnapshotStoreSink:
    """Open a snapshot and copy it; the sink is finished, not installed."""
    with closing(source.open_snapshot()) as snapshot:
        return received(snapshot, target)


def copy_files(source: Path, target: Path) -> None:
    """Copy a directory in use; begun anew when a file vanishes, as files that the store does not need any more do."""
    while True:
        try:
            shutil.copytree(source, target)
        except (shutil.Error, FileNotFoundError):
            shutil.rmtree(target)
        else:
            return


@contextmanager
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Hold every save before it writes its first cell, until the event is set."""
    gate = threading.Event()
    write = durable.MachineState._write

    def gated(state: MachineState, save: Any) -> Path:
        assert gate.wait(20)
        return write(state, save)

    with monkeypatch.context() as patch:
        patch.setattr(durable.MachineState, "_write", gated)
        try:
            yield gate
        finally:
            gate.set()


def crash_images(patch: pytest.MonkeyPatch, source: Path, target: Path) -> list[Path]:
    """From now on copy all files before and after each step of a save that touches them; returns the growing list.

    Merges in the background would change files under the copy: the caller keeps them from starting.
    """
    images: list[Path] = []

    def around(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def stepped(*arguments: Any) -> Any:
            take()
            result = original(*arguments)
            take()
            return result

        patch.setattr(owner, name, stepped)

    def take() -> None:
        images.append(target / f"image-{len(images)}")
        copy_files(source, images[-1])

    around(RocksStore, "writer")
    around(RocksStore, "ingest")
    around(StateDirectory, "advance")
    return images
