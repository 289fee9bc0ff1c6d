"""Raft for opaque bytes: PySyncObj, hardened. Start at :mod:`consensus.replica`."""

from consensus.config import ReplicaConfig, TlsConfig
from consensus.errors import (
    CallFailed,
    CommandRefused,
    ConsensusError,
    Corrupt,
    DirectoryLocked,
    IdentityMismatch,
    NoLeader,
    NotLeader,
    NotReady,
    OutcomeUnknown,
    Overloaded,
    PeerUnavailable,
    StateMissing,
    Stopped,
    StorageError,
    Timeout,
)
from consensus.ports import PeerStatus, ReplicaStatus, Role, RoleChange, StateMachine
from consensus.replica import Replica

__all__ = [
    "CallFailed",
    "CommandRefused",
    "ConsensusError",
    "Corrupt",
    "DirectoryLocked",
    "IdentityMismatch",
    "NoLeader",
    "NotLeader",
    "NotReady",
    "OutcomeUnknown",
    "Overloaded",
    "PeerStatus",
    "PeerUnavailable",
    "Replica",
    "ReplicaConfig",
    "ReplicaStatus",
    "Role",
    "RoleChange",
    "StateMachine",
    "StateMissing",
    "Stopped",
    "StorageError",
    "Timeout",
    "TlsConfig",
]
