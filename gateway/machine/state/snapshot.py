"""A saved state on its way to another node: the reader here, the writer there.

Owns: the two ends, :class:`oncegate.consensus.ports.SnapshotSource` and ``SnapshotSink``, but for the switch itself
(:mod:`oncegate.gateway.machine.state.durable`). A snapshot is the files of a store, copied by hard links. Blocking;
worker threads.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

from rocksdict import Cache

from oncegate.consensus.ports import SavedPoint, SnapshotFile, SnapshotManifest
from oncegate.gateway.machine.state.errors import StateCorrupt
from oncegate.gateway.machine.state.pacer import Pacer
from oncegate.gateway.machine.state.restore import Restored, restore, verify
from oncegate.gateway.machine.state.store import RocksStore, snapshot_files

FILES_MAX: Final = 100_000
FLUSHED_BYTES: Final = 2**20
"""What comes in is flushed in pieces of this size: a whole file at once would hold up the journal's flushes."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)


class StoreSnapshot:
    """An immutable copy of a store (:class:`oncegate.consensus.ports.SnapshotSource`)."""

    def __init__(self, directory: Path, point: SavedPoint) -> None:
        self.directory = directory
        files = snapshot_files(directory)
        self.manifest = SnapshotManifest(point, [SnapshotFile(file.name, file.stat().st_size) for file in files])
        self._open: tuple[int, BinaryIO] | None = None

    def read(self, file: int, offset: int, size: int) -> bytes:
        """Return exactly ``size`` bytes; damage is found by the receiver, who reads every block.

        Raises:
            StateCorrupt: the file ends before.
        """
        if self._open is None or self._open[0] != file:
            self._leave()
            self._open = file, (self.directory / self.manifest.files[file].name).open("rb")
        handle = self._open[1]
        handle.seek(offset)
        data = handle.read(size)
        if len(data) != size:
            raise StateCorrupt(self.directory / self.manifest.files[file].name, f"it ends at {offset + len(data)}")
        return data

    def _leave(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def close(self) -> None:
        """Remove the copy; idempotent."""
        self._leave()
        shutil.rmtree(self.directory, ignore_errors=True)


class SnapshotStoreSink:
    """A store on its way in (:class:`oncegate.consensus.ports.SnapshotSink`)."""

    def __init__(
        self,
        directory: Path,
        manifest: SnapshotManifest,
        cache: Cache,
        install: Callable[[RocksStore, Restored], None],
    ) -> None:
        if len(manifest.files) > FILES_MAX or any(_NAME.fullmatch(file.name) is None for file in manifest.files):
            raise StateCorrupt(directory, "the manifest names files that no state has")
        if len({file.name for file in manifest.files}) != len(manifest.files):
            raise StateCorrupt(directory, "the manifest names a file twice")
        self._directory = directory
        self._manifest = manifest
        self._cache = cache
        self._install = install
        self._file = 0
        self._offset = 0
        self._unflushed = 0
        self._handle: BinaryIO | None = None
        self._ready: tuple[RocksStore, Restored] | None = None
        self._installed = False
        directory.mkdir()

    def write(self, file: int, offset: int, data: bytes) -> None:
        """Write the next bytes.

        Raises:
            StateCorrupt: they do not follow what came before.
            OSError: the disk refuses.
        """
        while file > self._file and self._complete():
            self._next()
        if (file, offset) != (self._file, self._offset) or offset + len(data) > self._size():
            raise StateCorrupt(self._directory, f"byte {offset} of file {file} does not follow what came before")
        if self._handle is None:
            self._handle = (self._directory / self._manifest.files[file].name).open("wb")
        self._handle.write(data)
        self._offset += len(data)
        self._unflushed += len(data)
        if self._unflushed >= FLUSHED_BYTES:
            self._handle.flush()
            os.fdatasync(self._handle.fileno())
            self._unflushed = 0

    def _size(self) -> int:
        return self._manifest.files[self._file].size if self._file < len(self._manifest.files) else 0

    def _complete(self) -> bool:
        return self._file < len(self._manifest.files) and self._offset == self._size()

    def _next(self) -> None:
        if self._handle is None:  # an empty file gets no write
            self._handle = (self._directory / self._manifest.files[self._file].name).open("wb")
        self._handle.flush()
        os.fsync(self._handle.fileno())
        self._handle.close()
        self._handle = None
        self._unflushed = 0
        self._file, self._offset = self._file + 1, 0

    def finish(self) -> None:
        """Flush, open, read every block, and read the machine from it.

        Raises:
            StateCorrupt: it is not whole, not readable, or not at the manifest's point.
            StateVersionUnknown: another format.
        """
        while self._complete():
            self._next()
        if self._file != len(self._manifest.files):
            raise StateCorrupt(self._directory, f"file {self._file} ends at {self._offset} of {self._size()} bytes")
        descriptor = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        store = RocksStore(self._directory, self._cache, create=False)
        try:
            pacer = Pacer()
            verify(store, pacer.rest)
            restored = restore(store, pacer.rest)
            if restored.point != self._manifest.point:
                raise StateCorrupt(self._directory, f"it stands at {restored.point}, not at {self._manifest.point}")
        except BaseException:
            store.close()
            raise
        self._ready = store, restored

    def install(self) -> None:
        """Replace the state; :meth:`finish` has been called. Event loop's thread, between applies."""
        if self._ready is None:
            raise StateCorrupt(self._directory, "it is installed before it is finished")
        self._install(*self._ready)
        self._ready, self._installed = None, True

    def abort(self) -> None:
        """Remove what was written, unless it was installed; idempotent."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None
        if self._ready is not None:
            self._ready[0].close()
            self._ready = None
        if not self._installed:
            shutil.rmtree(self._directory, ignore_errors=True)
