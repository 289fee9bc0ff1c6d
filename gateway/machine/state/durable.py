"""The machine with its state on disk: what consensus calls a :class:`oncegate.consensus.ports.DurableState`.

Owns: that nothing is applied to a state that is not sound, when a save is due, the worker that writes it, retries,
sending and receiving snapshots. A save is frozen on the event loop (:mod:`oncegate.gateway.machine.state.frozen`),
written by the worker to one sorted file and added to the store in one atomic step; a crash at any moment leaves the
save before. Read next:
:mod:`oncegate.gateway.machine.state.directory`, :mod:`oncegate.gateway.machine.state.snapshot`.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Final, Protocol

from oncegate.consensus.errors import NotReady, SafetyViolation, StorageError
from oncegate.consensus.ports import SavedPoint, SnapshotManifest
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.state.errors import StateCorrupt
from oncegate.gateway.machine.state.flow_images import FlowMarks
from oncegate.gateway.machine.state.frozen import Frozen, Retired, freeze
from oncegate.gateway.machine.state.opening import open_state
from oncegate.gateway.machine.state.pacer import Pacer
from oncegate.gateway.machine.state.restore import Restored
from oncegate.gateway.machine.state.rows import DirtyTally
from oncegate.gateway.machine.state.snapshot import SnapshotStoreSink, StoreSnapshot
from oncegate.gateway.machine.state.store import CACHE_BYTES_DEFAULT, RocksStore, new_cache

SAVE_ROWS: Final = 300_000
SAVE_BYTES: Final = 100 * 2**20
"""New rows, and the memory they take, from which on a save is due. With values above some hundred bytes the log asks
earlier (:mod:`oncegate.consensus.core.applying`)."""
FRESH_BYTES_MAX: Final = 512 * 2**20
"""Memory of rows and images that are not durable; above it nothing new should be proposed."""
RETRY_S: Final = 1.0
ROOM_TO_REOPEN_BYTES: Final = 16 * 2**20
_DISCARDED_AT_ONCE: Final = 256
AfterEntry = Callable[[int, int, list[Any]], None]
"""Told of each applied entry: its index, the machine's commit number before it, and the results of its commands."""
log = logging.getLogger(__name__)


class Barrier(Protocol):
    """What must be durable before a save counts: the batches sealed before its freeze."""

    def mark(self) -> int:
        """Return a mark of the batches sealed until now."""

    def wait_done(self, mark: int, timeout_s: float) -> bool:
        """Wait until everything before ``mark`` is durable; False if it is not yet."""


@dataclass(slots=True)
class SaveStats:
    """What the saves of this process took; counters only grow."""

    saves: int = 0
    failures: int = 0
    seconds: float = 0.0
    last_seconds: float = 0.0
    cells: int = 0


@dataclass(slots=True, eq=False)
class _Save:
    """A save under way. ``abandoned`` is set when a snapshot has replaced what it would save."""

    frozen: Frozen
    mark: int
    bytes: int
    began_s: float
    file: Path | None = None
    ingested: bool = False
    abandoned: bool = False
    cells: int = field(default=0)


class _AbandonedError(Exception):
    """A snapshot has replaced the state that this save would write."""


class MachineState:
    """A machine and its state on disk. Event loop's thread unless a method says otherwise.

    Args:
        path: directory of its own, made if it is not there.
        barrier: what a save waits for before it counts; None for nothing.
        cache_bytes: memory for blocks, filters and indexes of the store.
        save_rows, save_bytes: when :attr:`unsaved_share` becomes 1.
        fresh_bytes_max: when :attr:`overloaded` becomes true.
        retry_s: pause after a failed save.
        on_applied: called behind each entry.
        on_installed: called on the event loop's thread when a snapshot has replaced the machine's state.
        on_damaged: called once, from any thread, when damage is found after the start.
        stand_in: a damaged state is no error: an empty machine stands in for it, :attr:`damage` is set, and nothing may
            be applied to it until a snapshot has been installed.

    Raises:
        DirectoryLocked: the directory is open in another process.
        StateCorrupt: a file is not what was written; names it. Not with ``stand_in``.
        StateVersionUnknown: another build's format.
        StoreFailed, OSError: the disk cannot be read or is full.
    """

    def __init__(
        self,
        path: Path,
        *,
        barrier: Barrier | None = None,
        cache_bytes: int = CACHE_BYTES_DEFAULT,
        save_rows: int = SAVE_ROWS,
        save_bytes: int = SAVE_BYTES,
        fresh_bytes_max: int = FRESH_BYTES_MAX,
        retry_s: float = RETRY_S,
        on_applied: AfterEntry = lambda index, commit, results: None,
        on_installed: Callable[[], None] = lambda: None,
        on_damaged: Callable[[], None] = lambda: None,
        stand_in: bool = False,
    ) -> None:
        self._on_applied = on_applied
        self._on_installed = on_installed
        self._barrier = barrier
        self._save_rows = save_rows
        self._save_bytes = save_bytes
        self._fresh_bytes_max = fresh_bytes_max
        self._retry_s = retry_s
        self._cache = new_cache(cache_bytes)
        self._on_damaged = on_damaged
        self._directory, self._store, restored = open_state(path, self._cache, stand_in=stand_in)
        self._store.on_damage = self.found
        self.machine = restored.machine
        self.stats = SaveStats()
        self._broken: StorageError | None = None
        self.saved = restored.point
        """The newest durable point, None before the first."""
        self._marks: FlowMarks = restored.marks
        self._tally: DirtyTally = restored.tally
        self._sink: SnapshotStoreSink | None = None
        self._disk = threading.Lock()
        """Held while the store that counts changes: an ingest, a copy, a switch to another one."""
        self._changed = threading.Condition()
        self._save: _Save | None = None
        self._garbage: list[Retired | RocksStore | Path] = []
        self._asked = False
        self._closing = False
        self._pacer = Pacer()
        self._worker: threading.Thread | None = None

    def apply(self, index: int, term: int, command: bytes) -> list[Any]:
        """Apply a committed entry; returns the results of its commands.

        Raises:
            StorageError: the state on disk is damaged, or cannot be saved any more: nothing was applied to it.
            InvariantViolation: as :func:`oncegate.gateway.machine.apply.apply`.
        """
        if (broken := self.broken) is not None:
            raise broken
        commit = self.machine.commit
        results = apply(self.machine, index, term, command)
        self._on_applied(index, commit, results)
        return results

    @property
    def saving(self) -> bool:
        """A save has begun and is not durable yet."""
        return self._save is not None

    @property
    def damaged(self) -> bool:
        """There is :attr:`damage`."""
        return self._directory.damage is not None

    @property
    def damage(self) -> StateCorrupt | None:
        """What was found to be damaged: this state must not be served, applied to or saved; a snapshot replaces it."""
        return self._directory.damage

    @property
    def wants_state(self) -> bool:
        """A fresh copy of a damaged state was asked for."""
        return self._directory.wanted

    def want_state(self) -> None:
        """Ask for a fresh copy of a damaged state, also after a restart."""
        if self.damage is not None:
            self._mark(self.damage, wanted=True)

    @property
    def broken(self) -> StorageError | None:
        """Why this node must stop serving this state: damage, or a save that cannot succeed."""
        return self._directory.damage or self._broken

    @property
    def store_path(self) -> Path:
        """Directory of the store in use."""
        return self._store.path

    def found(self, damage: StateCorrupt) -> None:
        """A read, a save or a scrub has come upon damage; any thread."""
        with self._changed:
            if self.damage is not None:
                return
            self._mark(damage, wanted=False)
            self._changed.notify_all()
        self._on_damaged()

    def found_in_copy(self, damage: StateCorrupt, copy: Path, store_path: Path) -> None:
        """A reader of ``copy``, made while the state was in ``store_path``, has come upon damage; any thread."""
        if self.store_path == store_path:  # else a snapshot has replaced it meanwhile
            self.found(StateCorrupt(store_path, damage.reason.replace(str(copy), str(store_path))))

    def _mark(self, damage: StateCorrupt, *, wanted: bool) -> None:
        try:
            self._directory.mark_damaged(damage, wanted=wanted)
        except OSError as fault:
            log.error("a restart will not know that %s is damaged: %s", damage.file, fault)

    @property
    def unsaved_share(self) -> float:
        """What is new, as a share of what makes a save due; infinite if one was asked for."""
        tally = self._tally
        return inf if self._asked else max(tally.rows / self._save_rows, tally.bytes / self._save_bytes)

    @property
    def save_wanted(self) -> bool:
        """Enough rows are new, or a save was asked for."""
        return self.unsaved_share >= 1

    def ask_to_save(self) -> None:
        """Have the state saved soon, although few rows are new: :attr:`save_wanted` until a save begins."""
        self._asked = True

    def wait_saved_at(self, index: int, timeout_s: float) -> bool:
        """Wait until entry ``index`` is in the saved state; False after ``timeout_s``. Any thread but the worker.

        Raises:
            StorageError: the state cannot be saved any more.
        """

        def reached() -> bool:
            return self.broken is not None or (self.saved is not None and self.saved.index >= index)

        with self._changed:
            done = self._changed.wait_for(reached, timeout_s)
        if self.broken is not None:
            raise self.broken
        return done

    @property
    def fresh_bytes(self) -> int:
        """Memory of what is not durable yet: new rows, rows being saved, images of sessions."""
        save = self._save
        return self._tally.bytes + (0 if save is None else save.bytes + save.frozen.sessions.taken_bytes)

    @property
    def overloaded(self) -> bool:
        """Saves have fallen behind so far that nothing new should be proposed."""
        return self.fresh_bytes >= self._fresh_bytes_max

    @property
    def disk_bytes(self) -> int:
        """Size of the store."""
        return self._store.size_bytes

    def begin_save(self, point: SavedPoint) -> None:
        """Freeze the machine as ``point`` and have it saved; takes milliseconds.

        Raises:
            SafetyViolation: a save is under way, or a newer one is durable.
        """
        if self._save is not None or (self.saved is not None and point.index < self.saved.index):
            raise SafetyViolation(f"a save of index {point.index} begins while {self.saved} is or becomes durable")
        mark = 0 if self._barrier is None else self._barrier.mark()
        frozen, retired = freeze(self.machine, point, self._marks)
        save = _Save(frozen, mark, self._tally.bytes, time.perf_counter())
        self._tally.rows = self._tally.bytes = 0
        self._asked = False
        with self._changed:
            self._save = save
            self._garbage += retired
            self._wake()

    def _wake(self) -> None:
        """Tell the worker, which starts with its first save."""
        if self._worker is None:
            self._worker = threading.Thread(target=self._run, name="state-writer", daemon=True)
            self._worker.start()
        self._changed.notify_all()

    def wait_saved(self, timeout_s: float) -> bool:
        """Wait until no save is under way; any thread but the worker. False after ``timeout_s``."""
        with self._changed:
            return self._changed.wait_for(lambda: self._save is None or self.broken is not None, timeout_s)

    def open_snapshot(self) -> StoreSnapshot:
        """Copy the newest saved state by hard links; worker thread. Give it back with ``close``.

        Raises:
            NotReady: nothing has been saved, or it is damaged.
        """
        directory = self._directory.new_copy()
        with self._disk:
            if self.saved is None or self.damage is not None:
                raise NotReady("nothing has been saved" if self.damage is None else str(self.damage))
            self._store.copy_to(directory)
            point = self.saved
        return StoreSnapshot(directory, point)

    def open_sink(self, manifest: SnapshotManifest) -> SnapshotStoreSink:
        """Begin to receive a snapshot; remove the one before unless it was installed. Worker thread."""
        if self._sink is not None:
            self._sink.abort()
        self._sink = SnapshotStoreSink(self._directory.new_store(), manifest, self._cache, self._install)
        return self._sink

    def _install(self, store: RocksStore, restored: Restored) -> None:
        point = restored.point
        with self._disk:
            older = point is None or (self.saved is not None and point.index < self.saved.index)
            if point is None or (older and self.damage is None):
                raise SafetyViolation(f"a snapshot of {point} would replace {self.saved}")
            before = self._directory.pointer.store
            old_store, self._store = self._store, store
            old_store.on_damage = lambda damage: None
            self._directory.switch(store.path, point.index)
            store.on_damage = self.found
            old_trackers = self.machine.trackers
            with self._changed:
                if self._save is not None:
                    self._save.abandoned = True
                    self._save = None
                self.saved = point
                self._marks, self._tally = restored.marks, restored.tally
                self.machine.adopt(restored.machine)
                self._garbage += (old_trackers, old_store)
                if before and before != old_store.path.name:
                    # The damaged one, for which an empty one stood in.
                    self._garbage.append(self._directory.path / before)
                self._sink = None
                self._wake()
        self._on_installed()

    def close(self, timeout_s: float = 10.0) -> None:
        """Finish the save that is being written, unless it is blocked, and unlock the directory. Idempotent."""
        with self._changed:
            self._closing = True
            self._pacer.hurry = True
            self._changed.notify_all()
        if self._worker is not None:
            self._worker.join(timeout_s)
            if self._worker.is_alive():  # the worker may still read from the store; the process ends soon
                return
        if self._sink is not None:
            self._sink.abort()
        self._store.close()
        self._directory.close()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._save is not None or self._garbage or self._closing)
                    save = self._save
                    garbage = self._garbage.pop() if self._garbage and save is None else None
                if save is not None:
                    if not self._saved_or_abandoned(save):
                        return
                elif garbage is not None:
                    self._discard(garbage)
                elif self._closing:
                    return
        except Exception as fault:
            # The next apply finds this and halts the node, which would otherwise collect changes that are never saved.
            self._broken = fault if isinstance(fault, StorageError) else StorageError(f"saving failed: {fault!r}")
            log.critical("the state cannot be saved any more", exc_info=True)
            with self._changed:
                self._changed.notify_all()

    def _saved_or_abandoned(self, save: _Save) -> bool:
        """Try one save until it succeeds; False if the state was closed first."""
        while True:
            try:
                if self._attempt(save):
                    # RocksDB repeats what failed earlier, such as a merge, only after the store was opened again.
                    if self.stats.failures and self._store.refuses_writes:
                        self._recover()
                    return True
            except _AbandonedError:
                return True
            except StateCorrupt as damage:
                self.found(damage)  # nothing is saved any more until a snapshot takes the place of it all
            except (OSError, MemoryError) as fault:
                self.stats.failures += 1
                log.error("index %d could not be saved, will be tried again: %s", save.frozen.point.index, fault)
                self._recover()
            finally:
                if save.abandoned and save.file is not None:
                    save.file.unlink(missing_ok=True)
            with self._changed:
                pause_s = None if self.damage is not None else self._retry_s
                if self._changed.wait_for(lambda: self._closing or save.abandoned, pause_s):
                    return save.abandoned

    def _attempt(self, save: _Save) -> bool:
        """Do the rest of a save; False if it would have to wait for the barrier while the state is closing."""
        file = save.file if save.file is not None else self._write(save)
        while self._barrier is not None and not self._barrier.wait_done(save.mark, 0.1):
            with self._changed:
                if self._changed.wait_for(lambda: self._closing or save.abandoned, 0.05):
                    return False
        with self._disk:
            if save.abandoned:
                raise _AbandonedError
            point = save.frozen.point
            if not save.ingested:
                self._store.ingest(file)
                save.ingested = True
            # Only now may the log before this index be cut: from here on a store that lacks the index is refused.
            self._directory.advance(point.index)
            took = time.perf_counter() - save.began_s
            with self._changed:
                self.saved = point
                self._save = None
                stats = self.stats
                stats.saves, stats.cells = stats.saves + 1, stats.cells + save.cells
                stats.seconds, stats.last_seconds = stats.seconds + took, took
                self._changed.notify_all()
        return True

    def _write(self, save: _Save) -> Path:
        file = self._directory.new_save()
        try:
            writer = self._store.writer(file)
            put_all, rest = writer.put_all, self._pacer.rest
            for keys, values in save.frozen.columns():
                put_all(keys, values)
                if save.abandoned:
                    raise _AbandonedError
                # A busy event loop leaves the worker one slice in five milliseconds; longer slices keep it from
                # falling behind for ever.
                self._pacer.press(self._tally.bytes / self._save_bytes)
                rest()
            writer.finish()
        except BaseException:
            file.unlink(missing_ok=True)
            raise
        save.file, save.cells = file, writer.cells
        save.frozen.sessions.release()
        return file

    def _recover(self) -> None:
        """Reopen the store to end its error state, but only once the disk has room: reads need an open store."""
        with self._disk:
            try:
                if self._store.refuses_writes:
                    self._directory.check_room(ROOM_TO_REOPEN_BYTES)
                    self._store.reopen()
            except OSError as fault:
                log.error("the store was not opened again: %s", fault)

    def _discard(self, garbage: Retired | RocksStore | Path) -> None:
        if isinstance(garbage, RocksStore):
            garbage.close()
            garbage = garbage.path
        if isinstance(garbage, Path):
            shutil.rmtree(garbage, ignore_errors=True)
            return
        while garbage:
            for _ in range(min(_DISCARDED_AT_ONCE, len(garbage))):
                garbage.popitem()
            self._pacer.rest()
