"""What a node of a lost cluster knows: its saved state, and its log to the last entry.

Owns: reading the data directory of a stopped node without changing it, and the numbers that an operator decides by. A
quorum is lost, so nobody can say which of the last entries were committed; every one of them is kept, because any may
have been acknowledged. What only the lost nodes had is lost. Blocking. Read next:
:mod:`oncegate.consensus.log.log_reader`, :mod:`oncegate.gateway.backup.restoring`.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Self

from oncegate.consensus.configuration import is_configuration
from oncegate.consensus.core.library import NO_OP_BYTES
from oncegate.consensus.errors import ConsensusError, Corrupt, DirectoryLocked
from oncegate.consensus.log.log_reader import LogReader, ReadOnlyDirectory, read_hard_state
from oncegate.consensus.ports import SavedPoint, SnapshotFile
from oncegate.flows import segment
from oncegate.flows.errors import FlowError, NotFoundError
from oncegate.flows.segment_store import SegmentStore
from oncegate.gateway.backup.restoring import install
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.commands import AnyOperate, Cascade, Range, decode_entry, operations_of, writes_of
from oncegate.gateway.machine.state import MachineState
from oncegate.gateway.machine.state.directory import read_pointer
from oncegate.gateway.machine.state.restore import contents
from oncegate.gateway.machine.state.store import RocksStore, new_cache, snapshot_files
from oncegate.rifl.completion import FINGERPRINT_BYTES
from oncegate.stores.errors import StoreCode, StoreError

_CACHE_BYTES = 8 * 2**20


class Known(NamedTuple):
    """What a survivor's log tells.

    Attributes:
        node: id of the node.
        members: as its log has them.
        committed: the newest entry that it knows to be committed.
        last: the newest entry that it has, of ``term``.
        uncertain: operations in the entries between, which will count although nobody here knows they were committed.
    """

    node: str
    members: list[str]
    committed: int
    last: int
    term: int
    uncertain: int


class Segments(SegmentStore):
    """The batches of a stopped node, read only."""

    def __init__(self, directory: Path) -> None:
        # Not the store's own constructor: that one makes the directory and clears what a crash has left.
        self.directory = directory


class SurvivorOrigin:
    """The data directory of a stopped node (:class:`oncegate.gateway.backup.restoring.Origin`); a context.

    Raises:
        StoreError: BAD_OPTION, when it is no data directory, a node has it open, or it has never taken part;
            BAD_BACKUP, when a file is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stack = ExitStack()
        self._built: dict[tuple[str, int], bytes] = {}
        try:
            self._open()
        except DirectoryLocked as fault:
            self.close()
            raise StoreError(StoreCode.BAD_OPTION, f"{fault}: stop the node first") from None
        except Corrupt as fault:
            self.close()
            raise StoreError(StoreCode.BAD_BACKUP, str(fault)) from None
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        path = self._path
        if not (path / "raft").is_dir() or not (path / "state").is_dir():
            raise StoreError(StoreCode.BAD_OPTION, f"{path} is no data directory: it has no raft/ or no state/")
        raft, self._state = self._locked(path / "raft"), self._locked(path / "state")
        identity, _, _ = read_hard_state(raft)
        self.cluster, self.node = identity.cluster_id, identity.node_id
        self._log = LogReader(raft)
        self._stack.callback(self._log.close)
        self._stopped_ms = max(file.stat().st_mtime_ns for file in (path / "raft").iterdir()) // 1_000_000
        self._store = Segments(path / "segments")
        members = self._log.membership.current.members or dict.fromkeys(identity.first_members)
        pointer = read_pointer(path / "state", self._state)
        self._saved = None if pointer is None or not pointer.index else path / "state" / pointer.store
        self._point = SavedPoint(0, 0, b"") if self._saved is None else self._saved_point(self._saved)
        # A crash between the installation of a snapshot and the restart of the log leaves the state ahead of it.
        last = max(self._log.last_index, self._point.index)
        term = self._log.last_term if last == self._log.last_index else self._point.term
        committed = max(min(self._log.commit_index, last), self._point.index)
        first = max(committed + 1, self._log.first_index)
        uncertain = sum(_operations(command) for command, _, _ in self._log.read(first, self._log.last_index))
        self.known = Known(identity.node_id, sorted(members), committed, last, term, uncertain)
        if last < 2:
            raise StoreError(StoreCode.BAD_OPTION, f"{path} holds nothing: the node has never taken part")

    def _locked(self, path: Path) -> ReadOnlyDirectory:
        directory = ReadOnlyDirectory(path)
        self._stack.callback(directory.close)
        directory.lock()
        return directory

    def _saved_point(self, store_path: Path) -> SavedPoint:
        # RocksDB writes a log of its own wherever it opens a store: it gets links elsewhere.
        with TemporaryDirectory(prefix="oncegate-survivor-") as links:
            for file in snapshot_files(store_path):
                Path(links, file.name).symlink_to(file.absolute())
            try:
                store = RocksStore(Path(links), new_cache(_CACHE_BYTES), create=False, read_only=True)
                try:
                    return contents(store)[0].point
                finally:
                    store.close()
            except ConsensusError as fault:
                raise StoreError(StoreCode.BAD_BACKUP, f"{store_path}: {fault}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the directory back. Idempotent."""
        self._stack.close()

    def load(self, state: MachineState) -> SavedPoint:
        """Install the saved state and apply the whole log behind it."""
        if self._saved is not None:
            paths = snapshot_files(self._saved)
            told = [SnapshotFile(path.name, path.stat().st_size) for path in paths]
            try:
                install(state, self._point, told, lambda at: paths[at].read_bytes())
            except ConsensusError as fault:
                raise StoreError(StoreCode.BAD_BACKUP, f"{self._saved}: {fault}") from None
        machine, log = state.machine, self._log
        first = max(self._point.index + 1, log.first_index)
        if first > self._point.index + 1:  # also where the log has no entry yet behind its begin
            raise StoreError(
                StoreCode.BAD_BACKUP, f"{self._path}: entries {self._point.index + 1} to {first - 1} are missing"
            )
        for command, index, term in log.read(first, log.last_index):
            if _is_command(command):
                apply(machine, index, term, command)
                for batch in machine.flows.take_sealed():
                    if not self._store.has(batch.flow, batch.number):
                        payload = segment.build(batch.chunks, batch.flow, batch.table, batch.number)
                        self._built[batch.flow, batch.number] = payload
                for flow, number in machine.flows.take_dropped():
                    for gone in [place for place in self._built if place[0] == flow and place[1] <= number]:
                        del self._built[gone]
        return SavedPoint(self.known.last, self.known.term, b"")

    def batch(self, flow: str, number: int) -> bytes | None:
        """Return a batch's payload; None where the node had not fetched it yet; raises BAD_BACKUP for a damaged one."""
        built = self._built.get((flow, number))
        if built is not None:
            return built
        try:
            return self._store.get(flow, number)
        except NotFoundError:
            return None
        except FlowError as fault:
            raise StoreError(StoreCode.BAD_BACKUP, str(fault)) from None

    def age_ms(self, now_ms: int) -> int:
        """Return how long ago the node last wrote its log."""
        return now_ms - self._stopped_ms


def _is_command(entry: bytes) -> bool:
    """Tell a command of the machine from the log's own entries."""
    return len(entry) > NO_OP_BYTES and not is_configuration(entry)


def _operations(entry: bytes) -> int:
    """Return how many operations of clients an entry holds."""
    count = 0
    for command in decode_entry(entry).commands if _is_command(entry) else ():
        if isinstance(command, Range):
            count += len(command.fingerprints) // FINGERPRINT_BYTES
        elif isinstance(command, AnyOperate):
            count += len(writes_of(operations_of(command)))
        elif isinstance(command, Cascade):
            count += len(command.ops)
    return count
