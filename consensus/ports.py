"""What consensus asks of its caller, and what it tells it.

Owns the types that cross the boundary and nothing else. Read next: :mod:`oncegate.consensus.replica.replica`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import msgspec

from oncegate.consensus.configuration import Configuration
from oncegate.consensus.counters import Counters
from oncegate.consensus.histogram import Histogram


class Role(enum.Enum):
    """The three roles of Raft §5.1."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Caller(Protocol):
    """What :class:`oncegate.consensus.replica.replica.Replica` offers to those who ask other nodes."""

    async def call(self, node_id: str, payload: bytes, *, timeout_s: float) -> bytes:
        """Send one opaque call to a peer and return its answer."""


class StateMachine(Protocol):
    """The replicated state; called from the event loop's thread only, in log order, once an index per process."""

    def apply(self, index: int, term: int, command: bytes) -> object:
        """Apply one committed command and return its result.

        Total and deterministic. An exception is a bug and halts the node (``os._exit`` after a log line).
        After a restart the whole log is applied again, from its first command.

        Args:
            index: position in the log; rises, with gaps where the log holds entries of its own.
            term: term in which the entry was appended.
            command: exactly the bytes given to ``propose``.

        Returns:
            What ``propose`` answers on the node that proposed it.
        """


class SavedPoint(msgspec.Struct, array_like=True, frozen=True):
    """Where a saved state stands: it reflects every entry up to ``index``, and no later one.

    ``configuration`` is the encoded configuration in force at ``index``; opaque to the state, stored with it.
    """

    index: int
    term: int
    configuration: bytes


class SnapshotFile(msgspec.Struct, array_like=True, frozen=True):
    """One file of a snapshot; ``name`` is a flat name without directories."""

    name: str
    size: int


class SnapshotManifest(msgspec.Struct, array_like=True, frozen=True):
    """What a snapshot is made of."""

    point: SavedPoint
    files: list[SnapshotFile]


class SnapshotSource(Protocol):
    """An immutable copy of a saved state; later saves do not change it. Called from one worker thread at a time."""

    manifest: SnapshotManifest

    def read(self, file: int, offset: int, size: int) -> bytes:
        """Return exactly ``size`` bytes of a file, verified where the format allows it."""

    def close(self) -> None:
        """Give the copy's disk space back; idempotent."""


class SnapshotSink(Protocol):
    """A snapshot on its way in, written aside. Worker thread, but for :meth:`install`."""

    def write(self, file: int, offset: int, data: bytes) -> None:
        """Write the next bytes of a file; files and bytes come in order."""

    def finish(self) -> None:
        """Everything has come: flush, verify, make ready. Raises when the content is not whole."""

    def install(self) -> None:
        """Replace the state, on disk (atomic against a crash) and in memory. Event loop's thread, between applies."""

    def abort(self) -> None:
        """Remove what was written; idempotent."""


@runtime_checkable
class DurableState(StateMachine, Protocol):
    """A state machine that keeps its state on disk: a restart replays only what came after ``saved``.

    A machine without this is replayed from the whole log, which is then never compacted.
    """

    @property
    def saved(self) -> SavedPoint | None:
        """The newest durable point, None before the first. After construction: what the disk holds. Goes back only when
        a snapshot replaces a damaged state.
        """

    @property
    def unsaved_share(self) -> float:
        """What has changed since the last save, as a share of what makes the next one due: from 1 on it is due, and the
        first one of a node may come earlier (:func:`oncegate.consensus.core.applying.first_share`). Read after every
        slice of applied entries.
        """

    @property
    def saving(self) -> bool:
        """A save has begun and :attr:`saved` has not reached it yet."""

    @property
    def damaged(self) -> bool:
        """What is saved, or in memory, cannot be trusted: nothing is applied, saved or cut off the log until a snapshot
        was installed. The log itself is sound: the node keeps on flushing entries and voting.
        """

    @property
    def wants_state(self) -> bool:
        """A damaged state asks the leader for a snapshot, which may be older than what was applied here."""

    def begin_save(self, point: SavedPoint) -> None:
        """Start to make the present state durable as ``point``, whose index is the last one applied.

        Takes milliseconds: the state is frozen here and written by a worker, together with ``point`` and atomically. A
        failed write is tried again by the state itself. Not called while :attr:`saving`.
        """

    def open_snapshot(self) -> SnapshotSource:
        """Copy the newest saved state without stopping anything. Blocking; worker thread."""

    def open_sink(self, manifest: SnapshotManifest) -> SnapshotSink:
        """Begin to receive a snapshot; what an earlier one left behind is removed. Blocking; worker thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleChange:
    """Role, leader, term or readiness has changed, and why; delivered in order, from the event loop."""

    role: Role
    leader_id: str | None
    term: int
    ready: bool
    reason: str = ""
    """For people and logs, for instance "no quorum for 1.2 s"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatus:
    """What this node knows of one other member; indexes and lag are 0 unless this node leads."""

    connected: bool
    voter: bool
    """False for a learner."""
    next_index: int
    lag: int
    """Entries of the log that it is not known to have."""
    match_index: int
    in_flight_bytes: int
    silent_s: float
    """Seconds since it last answered this leader, or since the term began; 0 unless this node leads."""
    disk_full: bool
    """It refused the latest entries that this leader sent for want of room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """A snapshot of one node, for health pages and metrics; reading it costs microseconds."""

    node_id: str
    role: Role
    leader_id: str | None
    term: int
    commit_index: int
    applied_index: int
    last_index: int
    ready: bool
    """The node leads and has applied the no-op of its own term, so that it may decide and answer reads."""
    peers: Mapping[str, PeerStatus]
    configuration: Configuration
    """In force on this node, committed or not."""
    configuration_index: int
    change_pending: bool
    """A membership change waits, or is not known to be committed."""
    transfer_target: str | None
    """Whom this leader is handing its leadership to."""
    stalled_s: float
    """For how long this leader has had entries that do not commit, while its commit index has not moved; else 0."""
    queued_commands: int
    queued_bytes: int
    appended_commands: int
    """Appended by this leader and not applied yet."""
    appended_bytes: int
    counters: Counters
    """A copy."""
    journal_bytes: int
    disk_full: bool
    """There is no room for the next segment of the journal; what is left in the present one is all there is."""
    flushes: int
    flush_times: Histogram
    """The journal's own, which goes on counting."""
    flush_p50_ms: float
    flush_p99_ms: float
