"""What consensus asks of its caller, and what it tells it.

Owns the types that cross the boundary and nothing else. Read next: :mod:`consensus.replica`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


class Role(enum.Enum):
    """The three roles of Raft §5.1."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleChange:
    """Role, leader, term or readiness has changed; delivered in order, from the event loop."""

    role: Role
    leader_id: str | None
    term: int
    ready: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatus:
    """What this node knows of one other member; ``match_index`` is 0 unless this node leads."""

    connected: bool
    match_index: int
    in_flight_bytes: int


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
    journal_bytes: int
    flushes: int
    flush_p50_ms: float
    flush_p99_ms: float
