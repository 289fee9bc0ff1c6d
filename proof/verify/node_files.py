"""One stopped node's data directory, opened so that nothing in it can change, and the replay of its log in memory.

Owns: locks that readers share, the way to a machine as it was saved, what every applied entry must give (commit numbers
come without a gap), and the batches that it seals. RocksDB writes a log of its own wherever it opens a store, so it
gets a directory of links elsewhere. Read next: :mod:`oncegate.consensus.log.log_reader`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple, Self

import google_crc32c
import msgspec

from oncegate.consensus import configuration
from oncegate.consensus.core.library import NO_OP_BYTES
from oncegate.consensus.errors import Corrupt, DirectoryLocked
from oncegate.consensus.log.entries import Entry
from oncegate.consensus.log.log_reader import LogReader, ReadOnlyDirectory, read_hard_state
from oncegate.flows import segment
from oncegate.flows.chunks import SealedBatch
from oncegate.flows.errors import FlowError, SegmentCorrupt
from oncegate.flows.segment_store import SegmentStore
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.results import AppliedPart, Cascaded, Endings, Operated, Ranged
from oncegate.gateway.machine.state.directory import read_pointer
from oncegate.gateway.machine.state.errors import StateCorrupt, StateVersionUnknown, StoreFailed
from oncegate.gateway.machine.state.restore import Restored, restore
from oncegate.gateway.machine.state.restore import verify as verify_cells
from oncegate.gateway.machine.state.store import RocksStore, new_cache, snapshot_files
from oncegate.gateway.machine.transactions import Transacted
from oncegate.proof.verify.findings import Difference, Undecided
from oncegate.rifl.errors import InvariantViolation
from oncegate.rifl.rule import Applied

CACHE_BYTES: Final = 32 * 2**20


class SegmentFiles(SegmentStore):
    """The segment files of a stopped node; only what reads is used."""

    def __init__(self, directory: Path) -> None:
        # Not the store's own constructor: that one clears what a crash has left.
        self.directory = directory


class NodeFiles:
    """A data directory; a context that gives everything back.

    Attributes:
        node: id of the node.
        term: the latest term it has seen.
        log: its log.
        segments: its batches.

    Raises:
        Undecided: it is no data directory, is open in a node, or cannot be read.
        Difference: a file is not what was written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.node = str(path)
        self._stack = ExitStack()
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise

    def _open(self) -> None:
        path = self.path
        if not (path / "raft").is_dir():
            raise Undecided(f"{path} is no data directory: it has no raft/")
        try:
            raft = self._locked(path / "raft")
            self._state = self._locked(path / "state") if (path / "state").is_dir() else None
            identity, self.term, _ = read_hard_state(raft)
            self.cluster, self.node, self.uuid = identity.cluster_id, identity.node_id, identity.node_uuid
            self.first_members = identity.first_members
            self.log = LogReader(raft)
            self._stack.callback(self.log.close)
        except Corrupt as fault:
            what = f"offset {fault.offset}"
            raise Difference(self.node, fault.file, what, "what was written", fault.reason) from None
        except DirectoryLocked as fault:
            raise Undecided(f"{fault}: stop the node first") from None
        except OSError as fault:
            raise Undecided(f"{path} cannot be read: {fault}") from None
        self.segments = SegmentFiles(path / "segments")

    def _locked(self, path: Path) -> ReadOnlyDirectory:
        directory = ReadOnlyDirectory(path)
        self._stack.callback(directory.close)
        directory.lock()
        return directory

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def saved(self) -> Restored:
        """Return the machine as it was saved, every block of its store checked; an empty one if nothing was saved.

        Raises:
            Difference, Undecided: as above.
        """
        state, pointer = self.path / "state", None
        try:
            pointer = None if self._state is None else read_pointer(state, self._state)
            if pointer is None or not pointer.index:
                return Restored(Machine(), None, [], None)  # type: ignore[arg-type]
            store = self._linked(state / pointer.store)
            verify_cells(store)
            restored = restore(store)
        except StateCorrupt as fault:
            reason = fault.reason.replace(str(fault.path), str(state / pointer.store) if pointer else str(state))
            place = state / pointer.store if pointer else fault.path
            raise Difference(self.node, place, "the saved state", "what was written", reason) from None
        except (StateVersionUnknown, StoreFailed, OSError) as fault:
            raise Undecided(f"{state} cannot be read: {fault}") from None
        index = 0 if restored.point is None else restored.point.index
        if index < pointer.index:
            raise Difference(self.node, state / pointer.store, "saved index", f"at least {pointer.index}", index)
        return restored

    def _linked(self, directory: Path) -> RocksStore:
        links = Path(tempfile.mkdtemp(prefix="oncegate-verify-"))
        self._stack.callback(shutil.rmtree, links, ignore_errors=True)
        for file in snapshot_files(directory):
            (links / file.name).symlink_to(file.absolute())
        store = RocksStore(links, new_cache(CACHE_BYTES), create=False, read_only=True)
        self._stack.callback(store.close)
        return store

    def differs(self, place: str, what: str, expected: object, found: object) -> Difference:
        """Return the difference in a file or directory of the data directory, to be raised."""
        return Difference(self.node, self.path / place, what, expected, found)

    def batch(self, flow: str, number: int) -> bytes | None:
        """Return a batch's payload, None without its file; raises Difference for a damaged one."""
        if not self.segments.has(flow, number):
            return None
        try:
            return self.segments.get(flow, number)
        except SegmentCorrupt as fault:
            what = f"batch {number} of {flow}"
            raise Difference(self.node, fault.path, what, "what was written", fault.reason) from None
        except FlowError as fault:
            raise Undecided(str(fault)) from None


def _is_command(entry: bytes) -> bool:
    """Tell a command of the machine from the log's own entries."""
    return len(entry) > NO_OP_BYTES and not configuration.is_configuration(entry)


class Built(NamedTuple):
    """A batch as the log gives it: length and CRC32C of its payload, and the entry that sealed it."""

    length_bytes: int
    crc: int
    entry: int


class Replay:
    """A machine of ``node``, as it was saved or empty, that stands at the entry ``index`` of the log."""

    def __init__(self, node: NodeFiles, machine: Machine, index: int) -> None:
        self.node, self.machine, self.index = node, machine, index
        self.built: dict[tuple[str, int], Built] = {}

    def run(self, entries: Iterable[Entry]) -> None:
        """Apply entries that follow; raises Difference for one that cannot be applied or that counts wrongly."""
        machine = self.machine
        for command, index, term in entries:
            if _is_command(command):
                before = int(machine.commit)
                try:
                    results = apply(machine, index, term, command)
                except msgspec.DecodeError as fault:
                    raise self._difference(index, "an entry of the machine", fault) from None
                except InvariantViolation as broken:
                    raise self._difference(index, "records that say of each operation: executed once", broken) from None
                except Exception as fault:  # noqa: BLE001 - apply is total: whatever comes out of it is a finding
                    raise self._difference(index, "an entry that can be applied", repr(fault)) from None
                for commit in _new_commits(results):
                    before += 1
                    if commit != before:
                        raise self._difference(index, f"commit number {before}", commit)
                if before != machine.commit:
                    raise self._difference(index, f"{machine.commit} as the newest commit number", before)
                for batch in machine.flows.take_sealed():
                    self._build(batch, index)
                machine.flows.take_dropped()
            self.index = index

    def _build(self, batch: SealedBatch, index: int) -> None:
        payload = segment.build(batch.chunks, batch.flow, batch.table, batch.number)
        self.built[batch.flow, batch.number] = Built(len(payload), google_crc32c.value(payload), index)

    def _difference(self, index: int, expected: object, found: object) -> Difference:
        return Difference(self.node.node, self.node.path / "raft", f"entry {index}", expected, found)


def _new_commits(results: Iterable[object]) -> Iterator[int]:
    """Yield the commit numbers that an entry gave out, in order."""
    for result in results:
        if isinstance(result, Operated):
            for verdict in result.verdicts:
                if isinstance(verdict, Applied):
                    first, done = verdict.record.commit, verdict.record.result
                    yield from range(first, first + (done.commits if isinstance(done, Transacted) else 1))
                elif isinstance(verdict, AppliedPart):
                    yield from range(verdict.commit, verdict.commit + verdict.last - verdict.first + 1)
        elif isinstance(result, Ranged):
            for part in result.parts:
                if isinstance(part, AppliedPart):
                    yield from range(part.commit, part.commit + part.last - part.first + 1)
        elif isinstance(result, Cascaded) and not result.replayed:
            yield from range(result.commit, result.commit + result.operations)
        elif isinstance(result, Endings):
            yield from (row.commit + at for row in result.rows for at in range(row.commits))
