"""A state machine that keeps what it applied on disk, one sealed file replaced whole."""

from __future__ import annotations

import google_crc32c
import msgspec

from oncegate.consensus.log.sealed_file import read_sealed, write_sealed
from oncegate.consensus.ports import SavedPoint, SnapshotFile, SnapshotManifest

STATE_FILE = "state"
_MAGIC = b"TESTSTAT"
_FILE_BYTES = 7000
"""A snapshot's content is cut into files of this size, the last of which may be empty."""


class State(msgspec.Struct, array_like=True):
    point: SavedPoint
    entries: list[tuple[int, bytes]]


class Source:
    def __init__(self, content, point):
        self.parts = [content[start : start + _FILE_BYTES] for start in range(0, len(content) + 1, _FILE_BYTES)]
        files = [SnapshotFile(f"part-{number}", len(part)) for number, part in enumerate(self.parts)]
        self.manifest = SnapshotManifest(point, files)
        self.closed = False

    def read(self, file, offset, size):
        assert not self.closed
        data = self.parts[file][offset : offset + size]
        assert len(data) == size
        return data

    def close(self):
        self.closed = True


class Sink:
    def __init__(self, machine, manifest):
        self.machine, self.manifest = machine, manifest
        machine.storage_clean()
        self.parts = dict.fromkeys(range(len(manifest.files)), b"")
        self.next_file = 0
        self.state = None
        self.file = machine.storage.create("incoming")
        self.written = 0

    def write(self, file, offset, data):
        assert data
        assert file >= self.next_file, "files come in order"
        assert offset == len(self.parts[file]), "bytes come in order"
        self.next_file = file
        self.parts[file] += data
        self.file.write([data], self.written)
        self.written += len(data)

    def finish(self):
        for number, part in enumerate(self.manifest.files):
            if len(self.parts[number]) != part.size:
                raise ValueError(f"{part.name} has {len(self.parts[number])} of {part.size} bytes")
        self.file.sync()
        content = self.file.read(self.written, 0)
        crc, content = content[:4], content[4:]
        if google_crc32c.value(content).to_bytes(4, "big") != crc:
            raise ValueError("the content is not what was saved")
        self.state = msgspec.msgpack.decode(content, type=self.machine.state_type)
        if self.state.point != self.manifest.point:
            raise ValueError("the content is of another point")
        self.file.close()

    def install(self):
        machine = self.machine
        assert not machine.saved or machine.saved.index < self.state.point.index, "an older snapshot replaces a newer"
        machine.store(self.state)
        machine.load(self.state)
        machine.writing = None
        machine.installs += 1
        machine.on_loaded(self.state)

    def abort(self):
        self.machine.storage_clean()


class DurableMachine:
    """Wants to be saved every ``every`` entries; a save is written by :meth:`work`, at once unless ``lazy``."""

    state_type = State
    damaged = wants_state = False

    def __init__(self, storage, *, every=20, lazy=False, on_loaded=None):
        self.storage, self.every, self.lazy = storage, every, lazy
        self.on_loaded = on_loaded or (lambda state: None)
        self.log = []
        self.point = self.writing = None
        self.since = 0
        self.installs = 0
        if STATE_FILE in storage.names():
            state = msgspec.msgpack.decode(read_sealed(storage, STATE_FILE, _MAGIC), type=self.state_type)
            self.load(state)
            self.on_loaded(state)

    def load(self, state):
        self.log = list(state.entries)
        self.point = state.point
        self.since = 0

    def apply(self, index, term, command):
        assert not self.log or index > self.log[-1][0], "applied again"
        self.log.append((index, command))
        self.since += 1
        return index

    @property
    def saved(self):
        return self.point

    @property
    def unsaved_share(self):
        return self.since / self.every

    @property
    def saving(self):
        return self.writing is not None

    def begin_save(self, point):
        assert self.writing is None
        assert not self.log or self.log[-1][0] <= point.index
        self.writing = State(point, list(self.log))
        self.since = 0
        if not self.lazy:
            self.work()

    def work(self):
        """Write what was frozen."""
        if self.writing is not None:
            state, self.writing = self.writing, None
            try:
                self.store(state)
            except OSError:
                self.writing = state
                return
            self.point = state.point

    def store(self, state):
        write_sealed(self.storage, STATE_FILE, _MAGIC, msgspec.msgpack.encode(state))

    def open_snapshot(self):
        payload = read_sealed(self.storage, STATE_FILE, _MAGIC)
        point = msgspec.msgpack.decode(payload, type=self.state_type).point
        return Source(google_crc32c.value(payload).to_bytes(4, "big") + payload, point)

    def open_sink(self, manifest):
        return Sink(self, manifest)

    def storage_clean(self):
        if "incoming" in self.storage.names():
            self.storage.remove("incoming")
