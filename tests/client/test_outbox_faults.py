"""An outbox on a disk that fails once, at each of its steps, before the step is done or after.

What fails is told by name and as a doubt, nothing is written after it, and whoever opens the file then finds it free:
with what was there before the step, or after it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from oncegate import OperationFailed, OutcomeUnknown, RequestId, Resolution
from oncegate.gateway.client import outbox_file
from oncegate.gateway.client.batch import Pending
from oncegate.gateway.client.durable_outbox import DurableOutbox
from oncegate.gateway.client.outbox_file import Head, NewEntry, OutboxEntry, OutboxFile
from oncegate.gateway.wire import Operation
from oncegate.rifl.errors import Code, Outcome
from oncegate.rifl.ids import ClientId, SequenceNumber
from oncegate.rifl.request_tracker import RequestTracker
from tests.client.answers import fails
from tests.descriptors import descriptors

T = TypeVar("T")
OWNER = 7
Content = tuple[Head, list[OutboxEntry]]


class Disk:
    """Does what an outbox asks of it, but for one step, which fails: the ``at``-th from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.steps = self.at = 0
        self.after = False
        self.flushed: list[int] = []
        """The folders whose names are on disk, by inode."""
        self._folder = str(folder)
        self._connect, self._open, self._fsync = sqlite3.connect, os.open, os.fsync
        monkeypatch.setattr(sqlite3, "connect", self._connected)
        monkeypatch.setattr(os, "open", self._opened)
        monkeypatch.setattr(os, "fsync", self._synced)
        monkeypatch.setattr(outbox_file, "_BUSY_S", 0.05)

    def fail(self, at: int, *, after: bool) -> None:
        self.steps, self.at, self.after = 0, at, after

    def step(self, work: Callable[[], T], fault: Exception) -> T:
        self.steps += 1
        if self.steps != self.at:
            return work()
        if self.after:
            work()
        raise fault

    @property
    def has_failed(self) -> bool:
        return 0 < self.at <= self.steps

    def _connected(self, *given: Any, **how: Any) -> Any:
        return _Database(self, self._connect(*given, **how))

    def _opened(self, path: Any, *given: Any, **how: Any) -> int:
        if not str(path).startswith(self._folder):
            return self._open(path, *given, **how)
        if self.steps + 1 == self.at and self.after:  # an open that fails has opened nothing
            self.after = False
        return self.step(lambda: self._open(path, *given, **how), OSError(errno.ENOSPC, "no space left"))

    def _synced(self, fd: int) -> None:
        self.step(lambda: self.flushed.append(os.fstat(fd).st_ino), OSError(errno.EIO, "input/output error"))


class _Database:
    def __init__(self, disk: Disk, inner: sqlite3.Connection) -> None:
        self._disk, self._inner = disk, inner
        self._flushes = 2

    def execute(self, statement: str, *given: Any) -> Any:
        if statement == "BEGIN IMMEDIATE":
            assert self._inner.execute("PRAGMA synchronous").fetchone() == (self._flushes,), "a commit is not on disk"
            self._flushes = 0
            self._inner.execute("PRAGMA synchronous=OFF")  # looked at once: no power is lost here
        return self._do(lambda: self._inner.execute(statement, *given))

    def executemany(self, statement: str, *given: Any) -> Any:
        return self._do(lambda: self._inner.executemany(statement, *given))

    def _do(self, work: Callable[[], T]) -> T:
        return self._disk.step(work, sqlite3.OperationalError("disk I/O error"))

    def close(self) -> None:
        self._inner.close()


def content(path: Path) -> Content:
    """What the next process finds; raises if another still has the file."""
    file = OutboxFile(path)
    held = opened()
    try:
        with fails(Code.CONFLICT, Outcome.NOT_APPLIED):
            OutboxFile(path)
        assert opened() == held, "whoever asks for it leaves something open"
        return file.head, file.loaded
    finally:
        file.close()


def opened() -> set[str]:
    """The files that this process has open."""
    return {f"{number} {name}" for number, name in descriptors().items() if "outbox" in name}


def _filled(path: Path) -> None:
    file = OutboxFile(path)
    file.write(head=Head(client_id=OWNER, window=8, position=3))
    file.write([NewEntry(n, msgspec.msgpack.encode(Operation(n, "put", "rows", f"k{n}", n))) for n in (1, 2, 3)])
    file.write(learned=[(RequestId(ClientId(OWNER), SequenceNumber(2)), Resolution("sealed"))])
    file.close()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("new", [False, True])
def test_opening_that_fails_at_any_step_is_told_by_name_and_leaves_the_file_free_and_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new: bool, after: bool
) -> None:
    disk, failures, at = Disk(monkeypatch, tmp_path), [], 0  # the failures are kept: so are the frames they come from
    while True:
        at += 1
        folder = tmp_path / str(at)
        folder.mkdir()
        path = folder / "outbox"
        if not new:
            _filled(path)
        disk.flushed.clear()
        disk.fail(at, after=after)
        try:
            file = OutboxFile(path)
        except OperationFailed as failure:
            failures.append(failure)
        else:
            assert not disk.has_failed, "a fault was passed over"
            file.close()
            break
        assert str(path) in str(failures[-1])
        disk.fail(0, after=False)
        assert not opened()
        head, entries = content(path)
        assert ([entry.sequence for entry in entries], head.position) == (([], None) if new else ([1, 2, 3], 3))
        assert not new or folder.stat().st_ino in disk.flushed, "the name may not survive a power loss"
    assert len(failures) > 8


class Script:
    """What a session does with its outbox, step by step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outbox: DurableOutbox
        self.callers: list[asyncio.Future[Any]] = []

    def pending(self, number: int, position: int | None = None) -> Pending:
        caller: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.callers.append(caller)
        return Pending(Operation(number, "put", "rows", f"k{number}", number), None, caller, 1e9, position)

    async def add(self, *numbers: int) -> None:
        await self.outbox.add([self.pending(number, number) for number in numbers])

    async def noted(self, note: Callable[[], None]) -> None:
        note()
        await self.outbox.forget([])

    async def refused(self, number: int) -> None:
        """Have a write refused; raises what its caller is told beyond that."""
        pending = self.pending(number)
        await self.outbox.add([pending])
        request = RequestId(ClientId(OWNER), SequenceNumber(number))
        pending.promise.set_exception(OperationFailed(Code.QUOTA, request_id=request, outcome=Outcome.NOT_APPLIED))
        with pytest.raises(OperationFailed) as told:
            await self.callers[-1]
        assert told.value.request_id == request
        if told.value.code is not Code.QUOTA:
            assert told.value.outcome is Outcome.UNKNOWN, "its entry may be there: the next process sends it"
            raise told.value

    def steps(self) -> list[Callable[[], Awaitable[object]]]:
        outbox, fate = self.outbox, Resolution("sealed")
        return [
            lambda: outbox.rename(nonce="n"),
            lambda: outbox.rename(client_id=OWNER, lease_ms=1_000, window=8),
            lambda: outbox.belong("c"),
            lambda: self.add(1, 2, 3),
            lambda: self.noted(lambda: outbox.settled([1])),
            lambda: self.add(4),
            lambda: self.noted(lambda: outbox.doubted([2, 3])),
            lambda: self.noted(lambda: outbox.learned(RequestId(ClientId(OWNER), SequenceNumber(2)), fate)),
            lambda: outbox.entry(4),
            lambda: self.refused(5),
            lambda: outbox.reload(),
            lambda: self.noted(lambda: outbox.drop(RequestId(ClientId(OWNER), SequenceNumber(3)))),
        ]


async def _run(script: Script, disk: Disk, at: int, *, after: bool) -> tuple[int, int]:
    """Go through a script; returns the first step that failed and how many steps of the disk there were."""
    script.outbox = await DurableOutbox.open(script.path)
    script.outbox.begin(ClientId(OWNER), RequestTracker(window=8))
    steps = script.steps()
    failed = len(steps)
    disk.fail(at, after=after)
    written = 0
    for index, step in enumerate(steps):
        (failure,) = await asyncio.gather(step(), return_exceptions=True)
        if not isinstance(failure, Exception):
            assert not disk.has_failed, "a fault was passed over"
            continue
        assert isinstance(failure, OperationFailed)
        assert (failure.code, failure.outcome) == (Code.INTERNAL, Outcome.UNKNOWN)
        assert str(script.path) in str(failure)
        if failed == len(steps):
            failed, written = index, disk.steps
            assert disk.has_failed
            assert isinstance(script.outbox.broken, OutcomeUnknown)
        assert disk.steps == written, "who knows what is on disk by now?"
    script.outbox.settled([4])  # written as it is closed
    await script.outbox.close()
    total = disk.steps
    disk.fail(0, after=False)
    assert not opened()
    return failed, total


@pytest.mark.parametrize("after", [False, True])
async def test_outbox_whose_disk_fails_at_any_step_writes_no_more_and_holds_the_state_before_or_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    whole, states = Script(tmp_path / "outbox"), list[Content]()
    disk = Disk(monkeypatch, tmp_path)
    monkeypatch.setattr("oncegate.gateway.client.durable_outbox.IDLE_FLUSH_S", 1e6)
    whole.outbox = await DurableOutbox.open(whole.path)
    whole.outbox.begin(ClientId(OWNER), RequestTracker(window=8))
    states.append(_read(whole.path))
    for step in whole.steps():
        await step()
        states.append(_read(whole.path))
    whole.outbox.settled([4])
    await whole.outbox.close()
    states.append(_read(whole.path))
    assert [one.sequence for one in states[-1][1]] == [2]
    _, total = await _run(Script(tmp_path / "counted.outbox"), disk, 0, after=False)
    assert total > 30
    for at in range(1, total + 1):
        path = tmp_path / f"{at}.outbox"
        failed, _ = await _run(Script(path), disk, at, after=after)
        assert failed < len(states) - 1
        found = _plain(content(path))
        assert found in (_plain(states[failed]), _plain(states[failed + 1]), *_between(states, failed))


def _read(path: Path) -> Content:
    file = OutboxFile(path, read_only=True)
    try:
        return file.head, file.loaded
    finally:
        file.close()


def _plain(found: Content) -> tuple[Head, list[tuple[object, ...]]]:
    """What was found, without the time at which it was written."""
    return found[0], [(one.request_id, one.operation.value, one.doubted, one.fate) for one in found[1]]


def _between(states: list[Content], failed: int) -> list[tuple[Head, list[tuple[object, ...]]]]:
    """A write that is refused has its entry for a while: the state after it came and before it went."""
    head, entries = _plain(states[failed])
    request = RequestId(ClientId(OWNER), SequenceNumber(5))
    return [(head, [*entries, (request, 5, False, None)])] if failed == 9 else []
