"""A disk in memory that forgets, at a kill, whatever was not flushed; passes the same contract tests as the real one.

A kill may also keep any part of what was not flushed, as real disks do: ``kill(rng)`` chooses byte ranges at random.
"""

from __future__ import annotations

import errno
import random
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import count

from oncegate.consensus.errors import DirectoryLocked
from oncegate.consensus.log.segment import RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, SEGMENT_SUFFIX, scan
from oncegate.consensus.log.storage import File

SECTOR = 512
BLOCK = 4096


class Killed(BaseException):
    """The machine lost power inside a system call; not an Exception, so nothing under test survives it."""


class _Inode:
    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.unsynced: list[tuple[int, int]] = []
        self.dropped: list[tuple[int, int]] = []
        """Written, and no longer dirty although no flush succeeded: later flushes do not write them."""


class _FakeFile:
    def __init__(self, disk: FakeDisk, inode: _Inode) -> None:
        self._disk, self._inode = disk, inode

    @property
    def _name(self) -> str:
        return self._disk.name_of(self._inode)

    def size(self) -> int:
        return len(self._inode.data)

    def read(self, size: int, offset: int) -> bytes:
        return bytes(self._inode.data[offset : offset + size])

    def write(self, buffers: Sequence[bytes], offset: int) -> None:
        self._disk.called("write", self._name)
        joined = b"".join(buffers)
        data = self._inode.data
        blocks = -(-len(data) // BLOCK)
        self._disk.need(-(-(offset + len(joined)) // BLOCK) * BLOCK - blocks * BLOCK)
        if len(data) < offset + len(joined):
            data.extend(bytes(offset + len(joined) - len(data)))
        data[offset : offset + len(joined)] = joined
        self._inode.unsynced.append((offset, offset + len(joined)))

    def truncate(self, size: int) -> None:
        self._disk.called("truncate", self._name)
        del self._inode.data[size:]

    def sync(self) -> None:
        inode = self._inode
        try:
            self._disk.called("sync", self._name)
        except OSError:
            # As Linux does: the error is told once, and the pages count as clean from then on.
            inode.dropped += inode.unsynced
            inode.unsynced.clear()
            raise
        del inode.durable[len(inode.data) :]
        inode.durable.extend(bytes(len(inode.data) - len(inode.durable)))
        for start, stop in inode.unsynced:
            inode.durable[start:stop] = inode.data[start:stop]
        inode.unsynced.clear()

    def write_blocks(self, blocks: memoryview, offset: int) -> None:
        if len(blocks) % BLOCK or offset % BLOCK:
            raise OSError(errno.EINVAL, "not whole blocks", self._name)
        self.write([bytes(blocks)], offset)

    def close(self) -> None:
        self._disk.called("close", self._name)


def _room(names: dict[str, _Inode]) -> int:
    # A file with two names takes its room once.
    inodes = {id(inode): inode for inode in names.values()}
    return sum(-(-len(inode.data) // BLOCK) * BLOCK for inode in inodes.values())


class FakeDisk:
    """One directory. ``trace`` lists the system calls; ``on_call`` may raise to inject a failure or a kill."""

    def __init__(self) -> None:
        self.capacity: int | None = None
        """Bytes of all files together; None for a disk without end."""
        self._inodes: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._locked = False
        self.trace: list[tuple[str, str]] = []
        self.on_call: Callable[[str, str], None] = lambda call, name: None

    def called(self, call: str, name: str) -> None:
        self.on_call(call, name)
        self.trace.append((call, name))

    def fail_from(self, number: int, error: BaseException, *, part: str = "") -> None:
        """System calls fail from the ``number``-th on (1 is the next), of those on files with ``part`` in the name."""
        calls = count(1)

        def fail(call: str, name: str) -> None:
            if part in name and next(calls) >= number:
                raise error

        self.on_call = fail

    def work_again(self) -> None:
        """System calls succeed."""
        self.on_call = lambda call, name: None

    @property
    def used(self) -> int:
        return _room(self._inodes)

    def fill(self, spared: str = "", spared_bytes: int = 0) -> None:
        """Somebody else takes all the space, but leaves ``spared_bytes`` when the file ``spared`` is missing."""
        durable = _room(self._durable_names)
        missing = spared_bytes if spared not in self._durable_names or spared not in self._inodes else 0
        self.capacity = max(self.used, durable) + missing

    def need(self, growth: int) -> None:
        if growth > 0 and self.capacity is not None and self.used + growth > self.capacity:
            raise OSError(self.full_errno, "the fake disk is full")

    full_errno = errno.ENOSPC

    def kill(self, rng: random.Random | None = None) -> None:
        """Lose power: unflushed names are gone, unflushed bytes are gone or, by sector, partly there."""
        self._inodes = dict(self._durable_names)
        for inode in self._inodes.values():
            after = bytearray(inode.durable)
            for start, stop in (*inode.unsynced, *inode.dropped) if rng else ():
                for sector in range(start - start % SECTOR, stop, SECTOR):
                    if rng.random() < 0.5:
                        low, high = max(start, sector), min(stop, sector + SECTOR)
                        after.extend(bytes(max(0, high - len(after))))
                        after[low:high] = inode.data[low:high]
            inode.data = after
            inode.durable = bytearray(after)
            inode.unsynced, inode.dropped = [], []
        self._locked = False

    def fork(self, rng: random.Random | None = None) -> FakeDisk:
        """A second disk that is what this one would be after a power loss now; see :meth:`kill`."""
        other = FakeDisk()
        copies = {}
        for name, inode in self._durable_names.items():
            copy = copies.setdefault(id(inode), _Inode())
            copy.data = bytearray(inode.data)
            copy.durable = bytearray(inode.durable)
            copy.unsynced, copy.dropped = list(inode.unsynced), list(inode.dropped)
            other._durable_names[name] = copy
        other.kill(rng)
        return other

    def name_of(self, inode: _Inode) -> str:
        return next((name for name, found in self._inodes.items() if found is inode), "(unlinked)")

    def bytes_of(self, name: str) -> bytearray:
        """The file's content, to be looked at or damaged."""
        return self._inodes[name].data

    def flushes(self, name_part: str = "") -> int:
        return sum(call == "sync" and name_part in name for call, name in self.trace)

    def label(self, name: str) -> str:
        return f"fake:/{name}"

    def lock(self) -> None:
        if self._locked:
            raise DirectoryLocked("open elsewhere")
        self._locked = True

    def close(self) -> None:
        self._locked = False

    def names(self) -> list[str]:
        return sorted(self._inodes)

    def open(self, name: str) -> File:
        if name not in self._inodes:
            raise FileNotFoundError(name)
        return _FakeFile(self, self._inodes[name])

    def create(self, name: str, size: int = 0) -> File:
        self.called("create", name)
        inode = self._inodes[name] = _Inode()
        self.need(-(-size // BLOCK) * BLOCK)
        inode.data.extend(bytes(size))
        return _FakeFile(self, inode)

    def rename(self, source: str, target: str) -> None:
        self.called("rename", f"{source} {target}")
        if source not in self._inodes:
            raise FileNotFoundError(source)
        self._inodes[target] = self._inodes.pop(source)

    def link(self, source: str, target: str) -> None:
        self.called("link", f"{source} {target}")
        if source not in self._inodes:
            raise FileNotFoundError(source)
        if target in self._inodes:
            raise FileExistsError(target)
        self._inodes[target] = self._inodes[source]

    def remove(self, name: str) -> None:
        self.called("remove", name)
        if name not in self._inodes:
            raise FileNotFoundError(name)
        del self._inodes[name]

    def sync_directory(self) -> None:
        self.called("sync_directory", "")
        self._durable_names = dict(self._inodes)


class SimDisk(FakeDisk):
    """A disk with the ways in which disks fail: flushes that fail, and bits that flip while the node is down."""

    def __init__(self) -> None:
        super().__init__()
        self.fail_syncs = 0
        """How many of the next flushes fail; what they should have made durable is then unknown."""

    def called(self, call: str, name: str) -> None:
        self.on_call(call, name)
        if call == "sync" and self.fail_syncs:
            self.fail_syncs -= 1
            raise OSError(errno.EIO, "flush failed", name)

    def release(self) -> None:
        """The process died, the machine did not: the page cache stays, also what a failed flush did not write."""
        self._locked = False

    def kill(self, rng: random.Random | None = None) -> None:
        super().kill(rng)
        self.fail_syncs = 0

    def flip(self, name: str, offset: int, bit: int) -> None:
        """Change one bit of what is on the platter."""
        inode = self._inodes[name]
        inode.data[offset] ^= 1 << bit
        if offset < len(inode.durable):
            inode.durable[offset] ^= 1 << bit

    def last_batch(self) -> tuple[str, int, int] | None:
        """File and bounds of the batch that was flushed last: no later record proves that it was."""
        for name in reversed(self.names()):
            if not name.endswith(SEGMENT_SUFFIX):
                continue
            data = bytes(self.bytes_of(name))
            _, _, base, _, seed = struct.unpack_from("<8sQQQI", data)
            records = list(scan(data, SEGMENT_HEADER_BYTES, seed))
            if records:
                last = records[-1]
                start = max(last.prior_end - base, SEGMENT_HEADER_BYTES)
                return name, start, last.offset + RECORD_HEADER_BYTES + len(last.payload)
        return None


class InlineWorker:
    """Runs a job where it is submitted."""

    def submit(self, job):
        future = Future()
        try:
            future.set_result(job())
        except (OSError, ValueError) as error:
            future.set_exception(error)
        return future
