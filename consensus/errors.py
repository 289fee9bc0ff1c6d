"""The error tree of consensus.

Owns every error a caller of :class:`oncegate.consensus.replica.replica.Replica` can see. Each carries a stable
``code``, an ``outcome`` (may the command have been applied?) and whether a retry makes sense. In doubt the outcome
is ``unknown``. Start-up errors (:class:`StorageError` and below) mean "this node must not serve".
Read next: :mod:`oncegate.consensus.ports`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

Outcome = Literal["not_applied", "unknown"]


class ConsensusError(Exception):
    """Root of the tree; never raised itself."""

    code: ClassVar[str] = "CONSENSUS"
    outcome: Outcome = "unknown"
    retryable: bool = False


class NotLeader(ConsensusError):
    """The command was not appended: this node does not lead; ``leader_id`` names who is believed to."""

    code = "NOT_LEADER"
    outcome: Outcome = "not_applied"
    retryable = True

    def __init__(self, leader_id: str | None) -> None:
        super().__init__(f"not the leader; the leader is {leader_id or 'unknown'}")
        self.leader_id = leader_id


class NoLeader(ConsensusError):
    """No leader is known: an election is under way, or this node is cut off."""

    code = "NO_LEADER"
    outcome: Outcome = "not_applied"
    retryable = True


class NotReady(ConsensusError):
    """The leader has not yet committed an entry of its own term, so it cannot tell what is committed."""

    code = "NOT_READY"
    outcome: Outcome = "not_applied"
    retryable = True


class Overloaded(ConsensusError):
    """A bound is reached (journal bytes, bytes waiting for commit, frames in flight); nothing was appended."""

    code = "OVERLOADED"
    outcome: Outcome = "not_applied"
    retryable = True

    def __init__(self, bound: str, limit: int) -> None:
        super().__init__(f"{bound} has reached its bound of {limit}")
        self.bound = bound
        self.limit = limit


class CommandRefused(ConsensusError):
    """The command's size is outside the bounds; nothing was appended."""

    code = "COMMAND_REFUSED"
    outcome: Outcome = "not_applied"

    def __init__(self, size_bytes: int, size_bytes_min: int, size_bytes_max: int) -> None:
        super().__init__(f"a command has {size_bytes_min} to {size_bytes_max} bytes, not {size_bytes}")
        self.size_bytes = size_bytes
        self.size_bytes_min = size_bytes_min
        self.size_bytes_max = size_bytes_max


class CommandReserved(ConsensusError):
    """The command begins with the bytes that mark a configuration entry; nothing was appended."""

    code = "COMMAND_RESERVED"
    outcome: Outcome = "not_applied"


class Transferring(NotReady):
    """The leader is handing its leadership over; nothing was appended. The next leader is ready within milliseconds."""

    code = "TRANSFERRING"


class TransferFailed(ConsensusError):
    """Leadership did not go to the target; whoever leads now goes on."""

    code = "TRANSFER_FAILED"
    outcome: Outcome = "not_applied"
    retryable = True


class ChangePending(ConsensusError):
    """Another membership change is not committed yet; nothing was appended."""

    code = "CHANGE_PENDING"
    outcome: Outcome = "not_applied"
    retryable = True


class ChangeRefused(ConsensusError):
    """The membership change makes no sense, or would leave the cluster without a majority; nothing was appended."""

    code = "CHANGE_REFUSED"
    outcome: Outcome = "not_applied"


class LeadershipLost(ConsensusError):
    """The command was appended, then leadership was lost or the node stopped: it may still commit."""

    code = "LEADERSHIP_LOST"
    outcome: Outcome = "unknown"
    retryable = True


class Timeout(ConsensusError):
    """The deadline passed; for a read nothing happened, for a call the outcome is unknown."""

    code = "TIMEOUT"
    retryable = True

    def __init__(self, what: str, timeout_s: float, *, outcome: Outcome) -> None:
        super().__init__(f"{what} took longer than {timeout_s} s")
        self.outcome = outcome
        self.timeout_s = timeout_s


class PeerUnavailable(ConsensusError):
    """There is no connection to the peer (not applied), or it broke while the call was open (unknown)."""

    code = "PEER_UNAVAILABLE"
    retryable = True

    def __init__(self, node_id: str, reason: str, *, outcome: Outcome) -> None:
        super().__init__(f"peer {node_id}: {reason}")
        self.node_id = node_id
        self.outcome = outcome


class CallFailed(ConsensusError):
    """The peer's handler raised; what it did before is unknown."""

    code = "CALL_FAILED"
    outcome: Outcome = "unknown"

    def __init__(self, node_id: str, reason: str) -> None:
        super().__init__(f"peer {node_id} failed the call: {reason}")
        self.node_id = node_id


class Stopped(ConsensusError):
    """The replica is not running."""

    code = "STOPPED"
    outcome: Outcome = "not_applied"


class SafetyViolation(ConsensusError):
    """An invariant of Raft does not hold; the node halts rather than go on."""

    code = "SAFETY_VIOLATION"


class ProtocolError(ConsensusError):
    """A peer sent what the protocol does not allow; its connection is closed."""

    code = "PROTOCOL_ERROR"
    outcome: Outcome = "not_applied"


class StorageError(ConsensusError):
    """The data directory cannot be trusted or opened; the node refuses to start."""

    code = "STORAGE"
    outcome: Outcome = "not_applied"


class DirectoryLocked(StorageError):
    """Another process has the data directory open."""

    code = "DIRECTORY_LOCKED"


class IdentityMismatch(StorageError):
    """The data directory belongs to another node or another cluster."""

    code = "IDENTITY_MISMATCH"


class StateMissing(StorageError):
    """The log begins behind the saved state: entries in between are gone, and an older state must not be served."""

    code = "STATE_MISSING"


class FlushFailed(StorageError, OSError):
    """The disk refused a flush of the journal's ``file``: which of its last bytes are on the disk is unknown.

    Nothing of that batch was acknowledged. The process ends; flushing again in the same process would prove nothing.
    """

    code = "FLUSH_FAILED"
    outcome: Outcome = "unknown"

    def __init__(self, file: str, reason: OSError) -> None:
        super().__init__(
            f"{file} could not be flushed: {reason}. Check the disk (kernel log, SMART). A restart writes the batch "
            "again and goes on if the disk takes it; if not, replace the disk, remove the member and add it empty"
        )
        self.file = file


class Corrupt(StorageError):
    """Bytes that were flushed have changed; ``file`` and ``offset`` name where."""

    code = "CORRUPT"

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(f"{file} is corrupt at byte {offset}: {reason}")
        self.file = file
        self.offset = offset
        self.reason = reason
