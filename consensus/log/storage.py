"""The disk as consensus sees it: one directory of flat files behind two small protocols.

Owns every system call on the data directory, and the memory from which whole blocks are written. Knows nothing of
journals or ballots. The in-memory disk of the tests, which drops what was not flushed, passes the same contract tests
as :class:`DirectoryStorage`. Read next: :mod:`oncegate.consensus.log.sealed_file`, :mod:`oncegate.consensus.log.wal`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from oncegate.consensus.errors import DirectoryLocked, StorageError

BLOCK_BYTES: Final = 4096
"""What file systems read and write at least, and most disks too; a multiple of a sector."""
MEMORY_BYTES: Final = 1024 * 1024
"""Of a batch, written in one call; a multiple of a block."""
_ZEROS: Final = bytes(BLOCK_BYTES)
_IOV_MAX = 1000
"""Linux takes 1024 buffers a call."""
_NOT_DIRECT: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOENT, errno.EACCES})
"""The file system has no way past the page cache, or wants larger blocks for it."""


class File(Protocol):
    """One open file; offsets are bytes from its start."""

    def size(self) -> int:
        """Length in bytes."""

    def read(self, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes from ``offset``; shorter only at the end of the file."""

    def write(self, buffers: Sequence[bytes], offset: int) -> None:
        """Write all buffers one after the other from ``offset``; durable only after :meth:`sync`.

        If the process is killed meanwhile, whole sectors are written or not, as if power had been lost.
        """

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes; durable only after :meth:`sync`."""

    def sync(self) -> None:
        """Make what was written durable, with the metadata needed to read it back."""

    def write_blocks(self, blocks: memoryview, offset: int) -> None:
        """Write as :meth:`write` does, but past the page cache where the file system can.

        ``blocks`` begins at a page of memory; its length and ``offset`` are multiples of :data:`BLOCK_BYTES`.
        """

    def close(self) -> None:
        """Release the file; does not flush."""


class Storage(Protocol):
    """One directory. A name created, renamed or removed is durable only after :meth:`sync_directory`."""

    def label(self, name: str) -> str:
        """What an operator calls this file: its path."""

    def lock(self) -> None:
        """Take the directory for this process; raises :class:`DirectoryLocked` if another has it."""

    def close(self) -> None:
        """Give the directory back."""

    def names(self) -> list[str]:
        """All file names, sorted."""

    def open(self, name: str) -> File:
        """Open an existing file for reading and writing."""

    def create(self, name: str, size: int = 0) -> File:
        """Create or empty a file and reserve ``size`` bytes for it; raises ``OSError`` when there is no room."""

    def rename(self, source: str, target: str) -> None:
        """Give ``source`` the name ``target``, replacing what had it."""

    def link(self, source: str, target: str) -> None:
        """Give the file ``source`` a second name, which nothing has; raises ``OSError`` where there are no links."""

    def remove(self, name: str) -> None:
        """Unlink a file."""

    def sync_directory(self) -> None:
        """Make all names durable."""


class _OsFile:
    __slots__ = ("_direct_fd", "_fd", "_path")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._direct_fd = -1

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, size: int, offset: int) -> bytes:
        parts = []
        while size > 0:
            part = os.pread(self._fd, size, offset)
            if not part:
                break
            parts.append(part)
            size -= len(part)
            offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, buffers: Sequence[bytes], offset: int) -> None:
        # One call: the kernel stops between pages at most, a kill between two calls would cut anywhere.
        joined = b"".join(buffers) if len(buffers) > _IOV_MAX else None
        expected = sum(map(len, buffers))
        done = os.pwritev(self._fd, buffers, offset) if joined is None else os.pwrite(self._fd, joined, offset)
        if done < expected:
            # A short write is legal; what is left goes out the plain way.
            rest = memoryview(b"".join(buffers) if joined is None else joined)
            while done < expected:
                done += os.pwrite(self._fd, rest[done:], offset + done)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def write_blocks(self, blocks: memoryview, offset: int) -> None:
        done = 0
        while done < len(blocks):
            try:
                if self._direct_fd < 0:
                    # Not by its name: a segment gets that once it is whole.
                    self._direct_fd = os.open(f"/proc/self/fd/{self._fd}", os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
                done += os.pwrite(self._direct_fd, blocks[done:], offset + done)
            except OSError as error:
                if error.errno not in _NOT_DIRECT or self._direct_fd == self._fd:
                    raise
                self._close_direct()
                self._direct_fd = self._fd

    def _close_direct(self) -> None:
        if self._direct_fd not in (-1, self._fd):
            os.close(self._direct_fd)

    def close(self) -> None:
        self._close_direct()
        os.close(self._fd)


def _make_durably(directory: Path) -> None:
    """Make a directory and its parents unless they are there, and flush its name, which a kill may have left unflushed.

    Without it a power loss takes the whole directory, ballot and all, and the node comes back as one that never voted.
    """
    if not directory.is_dir():
        _make_durably(directory.parent)
        directory.mkdir(exist_ok=True)
    # A parent that this process may not list was made by somebody else, and so was the directory.
    with contextlib.suppress(PermissionError):
        parent_fd = os.open(directory.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(parent_fd)
        finally:
            os.close(parent_fd)


class DirectoryStorage:
    """A real directory, created if missing, with files readable by their owner only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        _make_durably(path)
        self._directory_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def label(self, name: str) -> str:
        """Path of the file."""
        return str(self._path / name)

    def lock(self) -> None:
        """Lock the directory itself: no lock file that could be copied or left behind."""
        try:
            fcntl.flock(self._directory_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DirectoryLocked(f"{self._path} is open in another process") from error
        except OSError as error:
            raise StorageError(f"{self._path} cannot be locked: {error}") from error

    def close(self) -> None:
        """Unlock."""
        if self._directory_fd >= 0:
            os.close(self._directory_fd)
            self._directory_fd = -1

    def names(self) -> list[str]:
        """All file names, sorted."""
        return sorted(os.listdir(self._path))

    def open(self, name: str) -> File:
        """Open an existing file."""
        path = self._path / name
        return _OsFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def create(self, name: str, size: int = 0) -> File:
        """Create or empty a file; room is allocated now, so that a full disk shows here and not at a flush."""
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        path = self._path / name
        fd = os.open(path, flags, 0o600)
        try:
            if size:
                os.posix_fallocate(fd, 0, size)
        except OSError:
            os.close(fd)
            raise
        return _OsFile(fd)

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing."""
        os.rename(self._path / source, self._path / target)

    def link(self, source: str, target: str) -> None:
        """Link."""
        os.link(self._path / source, self._path / target)

    def remove(self, name: str) -> None:
        """Unlink."""
        os.unlink(self._path / name)

    def sync_directory(self) -> None:
        """Flush the directory."""
        os.fsync(self._directory_fd)


class BlockWriter:
    """Batches one behind the other, as whole blocks in memory of their own, so that they go past the page cache.

    Through the page cache a flush of 30 kB or more costs more processor time, takes memory from everything else, and
    dirties pieces that are larger than itself (docs/decisions/0051-past-the-page-cache.md). One thread at a time.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, MEMORY_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._view = memoryview(self._memory)
        self._file: File | None = None
        self._end = 0
        self._tail = b""
        """What the block in which :attr:`_end` lies holds before it."""

    def write(self, file: File, batch: Sequence[bytes], offset: int, size_bytes: int, file_bytes: int) -> None:
        """Write a batch of ``size_bytes`` to a file of ``file_bytes`` that is zero from ``offset`` on; not flushed yet.

        The block before ``offset`` is written again as it is, and the last one filled with zeros: neither changes a
        byte, so a batch that power loss cuts looks as it would without them.
        """
        end = offset + size_bytes
        if end + -end % BLOCK_BYTES > file_bytes:
            self._file = None
            file.write(batch, offset)
            return
        if file is not self._file or offset != self._end:
            self._file, self._tail = file, file.read(offset % BLOCK_BYTES, offset - offset % BLOCK_BYTES)
        if offset % BLOCK_BYTES + size_bytes <= MEMORY_BYTES:
            self._write(file, batch, offset)
        else:
            rest = memoryview(b"".join(batch))
            while rest:
                # Each ends where a block does: between two of them the file looks as between two sectors.
                size = min(len(rest), MEMORY_BYTES - offset % BLOCK_BYTES)
                self._write(file, [rest[:size]], offset)
                rest, offset = rest[size:], offset + size
        self._end = end

    def _write(self, file: File, batch: Sequence[bytes | memoryview], offset: int) -> None:
        memory, at = self._memory, offset % BLOCK_BYTES
        start = offset - at
        memory[:at] = self._tail
        for part in batch:
            stop = at + len(part)
            memory[at:stop] = part
            at = stop
        used = at % BLOCK_BYTES
        self._tail = memory[at - used : at]
        if used:
            stop = at + BLOCK_BYTES - used
            memory[at:stop] = _ZEROS[: stop - at]
            at = stop
        file.write_blocks(self._view[:at], start)
