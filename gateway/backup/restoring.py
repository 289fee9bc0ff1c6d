"""A new cluster of one node, from a backup or from what a lost cluster has left.

Owns: the order in which a data directory is made, and that it is there whole or not at all. Must not know where backups
lie or how an operator is asked. Blocking. Read next: :mod:`oncegate.gateway.backup.fence`.

1. Everything is written beside the data directory, under a name that no node opens.
2. The saved state is installed as a snapshot from a leader is: every block is read, and the machine is read from it.
3. The log of a lost cluster's survivor is applied behind it (:mod:`oncegate.gateway.backup.survivor`).
4. Batches that the state retains are written, each compared with what the state says of it.
5. The machine is fenced from the old cluster and saved, with the new node as the only member.
6. The log is begun behind that state, and the directory gets its name.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from oncegate.consensus.configuration import Configuration, RaftMember, encode
from oncegate.consensus.log.seed import begin_behind
from oncegate.consensus.log.storage import DirectoryStorage
from oncegate.consensus.ports import SavedPoint, SnapshotFile, SnapshotManifest
from oncegate.flows import segment
from oncegate.flows.directories import flush_directory, make_directory
from oncegate.flows.errors import FlowError
from oncegate.flows.segment_store import HEADER_BYTES, SegmentStore, decode_header
from oncegate.gateway.backup.fence import BLOCKS_DRAWN, Fenced, fence
from oncegate.gateway.backup.manifest import SEGMENTS, STATE, BackupFile, Manifest, damaged
from oncegate.gateway.backup.shelf import Shelf
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.state import MachineState
from oncegate.gateway.machine.state.errors import StateCorrupt
from oncegate.gateway.node.settings import MemberAddress
from oncegate.stores.errors import StoreCode, StoreError

_PIECE_BYTES: Final = 2**20
_SAVE_TIMEOUT_S: Final = 3600.0
_SUFFIX: Final = ".restoring"


class NewCluster(NamedTuple):
    """Name and only member of the cluster that is to be."""

    name: str
    node: MemberAddress


class Missing(NamedTuple):
    """A batch that the state retains and of which there is no file."""

    flow: str
    number: int


class Restored(NamedTuple):
    """What a new cluster begins with."""

    identity: str
    commit: int
    fenced: Fenced
    missing: list[Missing]


class Origin(Protocol):
    """Where a new cluster's state comes from."""

    cluster: str
    """Configured name of the old cluster."""

    def load(self, state: MachineState) -> SavedPoint:
        """Bring the machine to the last entry there is, and return that entry; its configuration means nothing."""

    def batch(self, flow: str, number: int) -> bytes | None:
        """Return a batch's payload, checked; None where it is missing."""

    def age_ms(self, now_ms: int) -> int:
        """Return for how long, by the wall clock, the old cluster may have run on; ``now_ms`` is that clock."""


class BackupOrigin:
    """A backup on a shelf; ``read`` is called with the bytes of each file that has been read."""

    def __init__(self, shelf: Shelf, manifest: Manifest, read: Callable[[int], None] = lambda _: None) -> None:
        self.cluster = manifest.cluster
        self._shelf = shelf
        self._manifest = manifest
        self._told_read = read
        self._files = {file.path: file for file in manifest.files}

    def load(self, state: MachineState) -> SavedPoint:
        """Install the backup's state; raises BAD_BACKUP."""
        files = self._manifest.of(STATE)
        told = [SnapshotFile(file.path.partition("/")[2], file.size_bytes) for file in files]
        try:
            install(state, self._manifest.point, told, lambda at: self._read(files[at]))
        except StateCorrupt as fault:
            raise damaged(self._shelf.url, fault.reason) from None
        return self._manifest.point

    def batch(self, flow: str, number: int) -> bytes | None:
        """Return a batch's payload; raises BAD_BACKUP for a damaged or missing one: a backup holds all of them."""
        path = f"{SEGMENTS}/{flow}/{number:016d}.segment"
        if path not in self._files:
            raise damaged(self._shelf.url, f"it lacks {path}")
        data = self._read(self._files[path])
        try:
            header = decode_header(Path(path), data)
        except FlowError as fault:
            raise damaged(self._shelf.url, str(fault)) from None
        if (header.flow, header.number) != (flow, number):
            raise damaged(self._shelf.url, f"{path} holds batch {header.number} of {header.flow}")
        return data[HEADER_BYTES:]

    def age_ms(self, now_ms: int) -> int:
        """Return how long ago the backup was made."""
        return now_ms - self._manifest.made_ms

    def _read(self, file: BackupFile) -> bytes:
        data = self._shelf.read(file)
        self._told_read(len(data))
        return data


def install(state: MachineState, point: SavedPoint, files: list[SnapshotFile], read: Callable[[int], bytes]) -> None:
    """Make saved files the state; every block of them is read. Raises StateCorrupt, StateVersionUnknown, OSError."""
    sink = state.open_sink(SnapshotManifest(point, files))
    try:
        for at in range(len(files)):
            for offset, piece in _pieces(read(at)):
                sink.write(at, offset, piece)
        sink.finish()
    except BaseException:
        sink.abort()
        raise
    sink.install()


def restore(origin: Origin, data_dir: Path, new: NewCluster) -> Restored:
    """Make ``data_dir`` the first node of a new cluster; it is there, whole and durable, when this returns.

    Raises:
        StoreError: BAD_OPTION, when the directory is there or the new cluster has the old one's name; BAD_BACKUP, when
            the origin is not whole; whatever the origin raises. Nothing is left then.
        OSError: the disk failed or is full.
    """
    if data_dir.exists() and any(data_dir.iterdir()):
        raise StoreError(StoreCode.BAD_OPTION, f"{data_dir} is not empty: a restore begins with a new directory")
    if data_dir.is_symlink() or data_dir.is_mount():
        # Said now: the whole directory gets its name by one rename, at the very end.
        raise StoreError(
            StoreCode.BAD_OPTION, f"{data_dir} is a mount point or a link: name a new directory inside of it"
        )
    if new.name == origin.cluster:
        raise StoreError(
            StoreCode.BAD_OPTION,
            f"the new cluster needs another name than {origin.cluster}: nodes of the old one that still run, or come "
            "back, would take it for theirs",
        )
    made = data_dir.absolute().with_name(f".{data_dir.name}{_SUFFIX}")
    shutil.rmtree(made, ignore_errors=True)
    make_directory(made.parent)
    made.mkdir(mode=0o700)
    try:
        restored = _restored(origin, made, new)
        if data_dir.exists():
            data_dir.rmdir()
        made.rename(data_dir.absolute())
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    flush_directory(data_dir.absolute().parent)
    return restored


def _restored(origin: Origin, made: Path, new: NewCluster) -> Restored:
    state = MachineState(made / "state")
    try:
        point = origin.load(state)
        missing = list(_batches(origin, state.machine, SegmentStore(made / "segments")))
        fenced = fence(
            state.machine,
            identity=secrets.token_hex(16),
            age_ms=origin.age_ms(time.time_ns() // 1_000_000),
            block=secrets.randbelow(BLOCKS_DRAWN),
        )
        node = new.node
        only = Configuration({node.node_id: RaftMember(node.host, node.peer_port, data=str(node.http_port))})
        point = SavedPoint(point.index, point.term, encode(only))
        state.begin_save(point)
        if not state.wait_saved(_SAVE_TIMEOUT_S) or state.broken is not None:
            raise OSError(f"{made}: the state could not be saved: {state.broken or 'the disk is full or too slow'}")
        restored = Restored(state.machine.identity, state.machine.commit, fenced, missing)
    finally:
        state.close()
    begin_behind(DirectoryStorage(made / "raft"), cluster_id=new.name, node_id=new.node.node_id, point=point)
    return restored


def _batches(origin: Origin, machine: Machine, store: SegmentStore) -> Iterator[Missing]:
    """Write the batches that the machine retains, and yield those that are missing."""
    for flow in machine.flows.all():
        name, batches = flow.declaration.name, flow.batches
        for number in range(batches.first, batches.last + 1):
            payload = origin.batch(name, number)
            if payload is None:
                yield Missing(name, number)
                continue
            found = segment.read_table(payload).num_rows
            if found != batches.get(number).items:
                raise damaged(f"batch {number} of {name}", f"it has {found} items, not {batches.get(number).items}")
            store.put(name, number, payload)


def _pieces(data: bytes) -> Iterator[tuple[int, bytes]]:
    for offset in range(0, len(data), _PIECE_BYTES):
        yield offset, data[offset : offset + _PIECE_BYTES]
