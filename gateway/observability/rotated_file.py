"""Lines in a file that never takes more than its bound: full, it is put aside, and the oldest one goes.

Owns: the files ``NAME``, ``NAME.1`` … ``NAME.<n>``, newest first, readable by their user alone. Any thread may write.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path


class RotatedFile:
    """Appends whole lines.

    Args:
        path: of the newest file; its directory is made when the first line comes.
        bytes_max: of one file; a longer line has one of its own.
        files: how many are kept, the newest included.
    """

    def __init__(self, path: Path, *, bytes_max: int, files: int) -> None:
        self.path = path
        self._bytes_max = bytes_max
        self._files = files
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._size = 0

    def write(self, lines: bytes, *, durable: bool) -> None:
        """Append lines, each with its end; ``durable``: they are flushed to the disk when this returns.

        Raises:
            OSError: the disk failed or is full; the next write tries again.
        """
        with self._lock:
            if self._descriptor is None:
                self._open()
            elif self._size and self._size + len(lines) > self._bytes_max:
                self._rotate()
            descriptor = self._descriptor
            assert descriptor is not None
            view = memoryview(lines)
            while view:
                written = os.write(descriptor, view)
                self._size += written
                view = view[written:]
            if durable:
                os.fdatasync(descriptor)

    def _open(self) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._descriptor).st_size
        if self._size and os.pread(self._descriptor, 1, self._size - 1) != b"\n":
            os.write(self._descriptor, b"\n")  # a power loss has torn the last line: the next one begins its own
            self._size += 1

    def _rotate(self) -> None:
        self._close()
        for number in range(self._files - 1, 0, -1):
            older = self.path if number == 1 else self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))
        if self._files == 1:
            self.path.unlink()
        self._open()

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def close(self) -> None:
        """Close the file; a later write opens it again."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
