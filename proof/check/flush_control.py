"""Flushes in our hands: how long one takes, and which writes a power loss would have lost.

Two sides. In the node's process (:mod:`oncegate.proof.check.node_process`) :func:`install` stands in front of the
system calls ``pwrite``, ``pwritev``, ``fdatasync`` and ``fsync`` of Python's ``os``: the journal, the ballot and sealed
batches go through them; RocksDB's own calls do not, and are neither slow nor lost. Outside, :class:`FlushControl` sets
the delay, and after a kill -9 takes back what had not been flushed: in whole sectors, each kept or lost as chance will,
which is what a disk without power leaves.

The record of unflushed writes is a file of ``W`` (write: what stood there before) and ``F`` (flush: all writes of that
file are safe), little-endian: kind (1 byte), path length u16, offset u64, length u32; path, old bytes. It is emptied
whenever nothing is unflushed, so it holds one batch a file at most.
"""

from __future__ import annotations

import mmap
import os
import random
import struct
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from oncegate.consensus.log.segment import SECTOR_BYTES

_DELAY: Final = struct.Struct("<I")
_RECORD: Final = struct.Struct("<cHQI")
_TEMPORARY: Final = ".tmp"
"""Files of this name are flushed before they are renamed; until then nobody misses them."""
DELAY_S_MAX: Final = 60.0


class _Write(NamedTuple):
    path: str
    offset: int
    length: int
    old: bytes


class Recorder:
    """The node's side; its methods run on any of the node's threads."""

    def __init__(self, delay: mmap.mmap, record_fd: int) -> None:
        self._delay = delay
        self._fd = record_fd
        self._lock = threading.Lock()
        self._unflushed: set[str] = set()
        self._pwrite, self._pwritev = os.pwrite, os.pwritev

    def wait(self) -> None:
        """Be as slow as we were told."""
        (delay_us,) = _DELAY.unpack_from(self._delay)
        if delay_us:
            time.sleep(delay_us / 1_000_000)

    def writing(self, fd: int, length: int, offset: int) -> None:
        """Note what a write is about to replace."""
        path = os.readlink(f"/proc/self/fd/{fd}")
        if path.endswith(_TEMPORARY):
            return
        size = os.fstat(fd).st_size
        old = os.pread(fd, length, offset) if offset < size else b""
        with self._lock:
            self._unflushed.add(path)
            name = os.fsencode(path)
            head = _RECORD.pack(b"W", len(name), offset, length)
            os.write(self._fd, b"".join((head, name, old.ljust(length, b"\0"))))

    def flushed(self, path: str) -> None:
        """Note that all writes of a file are safe."""
        with self._lock:
            if path not in self._unflushed:
                return
            self._unflushed.discard(path)
            if self._unflushed:
                name = os.fsencode(path)
                os.write(self._fd, _RECORD.pack(b"F", len(name), 0, 0) + name)
            else:
                os.ftruncate(self._fd, 0)

    def pwrite(self, fd: int, data: Any, offset: int, /) -> int:
        """As ``os.pwrite``."""
        self.writing(fd, memoryview(data).nbytes, offset)
        return self._pwrite(fd, data, offset)

    def pwritev(self, fd: int, buffers: Sequence[Any], offset: int, flags: int = 0, /) -> int:
        """As ``os.pwritev``."""
        self.writing(fd, sum(memoryview(one).nbytes for one in buffers), offset)
        return self._pwritev(fd, buffers, offset, flags)

    def flush(self, call: Callable[[int], None]) -> Callable[[int], None]:
        """Return ``fsync`` or ``fdatasync`` with its delay and its note."""

        def flush(fd: int, /) -> None:
            path = os.readlink(f"/proc/self/fd/{fd}")
            self.wait()
            call(fd)
            self.flushed(path)

        return flush


def install(control: Path) -> None:
    """Stand in front of this process's system calls; ``control`` was made by :class:`FlushControl`."""
    with control.open("r+b") as file:
        delay = mmap.mmap(file.fileno(), _DELAY.size)
    record = os.open(_record_of(control), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    recorder = Recorder(delay, record)
    os.pwrite, os.pwritev = recorder.pwrite, recorder.pwritev  # type: ignore[assignment]
    os.fdatasync, os.fsync = recorder.flush(os.fdatasync), recorder.flush(os.fsync)  # type: ignore[assignment]


class FlushControl:
    """The hand of one node's flushes; ``control`` is a file that the node's process maps."""

    def __init__(self, control: Path) -> None:
        self.control = control
        control.parent.mkdir(parents=True, exist_ok=True)
        control.write_bytes(bytes(_DELAY.size))
        with control.open("r+b") as file:
            self._delay = mmap.mmap(file.fileno(), _DELAY.size)

    @property
    def delay_s(self) -> float:
        """How long a flush takes longer than the disk itself."""
        return float(_DELAY.unpack_from(self._delay)[0]) / 1_000_000

    def slow(self, delay_s: float) -> None:
        """Let each flush take so much longer, at most a minute; from the next one on."""
        _DELAY.pack_into(self._delay, 0, int(1_000_000 * min(max(0.0, delay_s), DELAY_S_MAX)))

    def unflushed_bytes(self) -> int:
        """What a power loss now would endanger."""
        return sum(write.length for write in self._writes())

    def lose(self, rng: random.Random, outside: Callable[[str], Path], *, kept: float = 0.5) -> int:
        """Take back the sectors that were written and not flushed, each but for the share ``kept``.

        Only while the node is down. ``outside`` translates the node's paths into ours. Returns the bytes lost.
        """
        lost = 0
        fates: dict[tuple[str, int], bool] = {}
        for write in reversed(self._writes()):
            path = outside(write.path)
            if not path.exists():
                continue
            with path.open("r+b") as file:
                at = write.offset
                while at < write.offset + write.length:
                    sector = at // SECTOR_BYTES
                    end = min((sector + 1) * SECTOR_BYTES, write.offset + write.length)
                    if fates.setdefault((write.path, sector), rng.random() >= kept):
                        file.seek(at)
                        file.write(write.old[at - write.offset : end - write.offset])
                        lost += end - at
                    at = end
        _record_of(self.control).unlink(missing_ok=True)
        return lost

    def _writes(self) -> list[_Write]:
        """The writes without a flush behind them, oldest first; a record cut short was not followed by its write."""
        try:
            data = _record_of(self.control).read_bytes()
        except FileNotFoundError:
            return []
        found: list[_Write] = []
        at = 0
        while at + _RECORD.size <= len(data):
            kind, name_bytes, offset, length = _RECORD.unpack_from(data, at)
            at += _RECORD.size
            path = os.fsdecode(data[at : at + name_bytes])
            at += name_bytes
            if kind == b"F":
                found = [write for write in found if write.path != path]
                continue
            if at + length > len(data):
                break
            found.append(_Write(path, offset, length, data[at : at + length]))
            at += length
        return found

    def close(self) -> None:
        """Unmap."""
        self._delay.close()


def _record_of(control: Path) -> Path:
    return control.with_suffix(".unflushed")
