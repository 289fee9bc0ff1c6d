"""What a node does while it leads: commands, appends, the commit index, reads, changes of members, transfers.

Owns a leader's volatile state (Raft figure 2), each part in its class: they begin and end with a term, and here is the
order in which they do. Takes time as a value; messages leave through a function.
Read next: :mod:`oncegate.consensus.core.replication`, :mod:`oncegate.consensus.core.reconfiguration`,
:mod:`oncegate.consensus.core.leader_reads`, :mod:`oncegate.consensus.core.transfer`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from oncegate.consensus.config import COMMAND_BYTES_MIN, ReplicaConfig
from oncegate.consensus.configuration import MAGIC, RaftMember
from oncegate.consensus.core.applying import Applier
from oncegate.consensus.core.leader_reads import LeaderReads
from oncegate.consensus.core.library import Raft
from oncegate.consensus.core.peers import Peers
from oncegate.consensus.core.reconfiguration import Reconfiguration
from oncegate.consensus.core.repairs import ack_counts
from oncegate.consensus.core.replication import Replication
from oncegate.consensus.core.transfer import Transfers, most_up_to_date
from oncegate.consensus.counters import Counters
from oncegate.consensus.errors import (
    ChangeRefused,
    CommandRefused,
    CommandReserved,
    ConsensusError,
    LeadershipLost,
    NotLeader,
    NotReady,
    Overloaded,
    TransferFailed,
    Transferring,
)
from oncegate.consensus.log.library_log import LibraryLog
from oncegate.consensus.log.segment import RECORD_HEADER_BYTES
from oncegate.consensus.log.wal import Journal
from oncegate.consensus.messages import Ack, Message, TimeoutNow

Token = TypeVar("Token")


class Leading(Generic[Token]):
    """One node's terms as a leader; between them its parts are empty, and refuse."""

    def __init__(
        self,
        config: ReplicaConfig,
        log: LibraryLog,
        raft: Raft,
        peers: Peers,
        applier: Applier,
        counters: Counters,
        send: Callable[[str, Message], None],
        on_result: Callable[[Token, object], None],
        on_failure: Callable[[Token, ConsensusError], None],
        on_peers: Callable[[], None],
    ) -> None:
        self._node_id = config.node_id
        self._log = log
        self._raft = raft
        self._peers = peers
        self._applier = applier
        self._counters = counters
        self._send = send
        self._on_peers = on_peers
        self._quorum_until = float("-inf")
        self._commit_may_move = False
        self.replication = Replication(config, log, raft, send, counters)
        self.proposals = Proposals(config, on_result, on_failure)
        self.reads: LeaderReads[Token] = LeaderReads(
            raft, peers, config.heartbeat_ms / 1000, send, on_result, on_failure
        )
        self.changes: Reconfiguration[Token] = Reconfiguration(
            log.membership, config.election_ms_min / 1000, on_result, on_failure
        )
        self.transfers: Transfers[Token] = Transfers(on_result, on_failure)

    # -- a term ----------------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """An election is won."""
        self.replication.begin(now)
        self._quorum_until = float("-inf")

    def end(self) -> None:
        """Another term, another role: everybody who waits is answered."""
        leaving = bool(self.replication.leaving)
        self.replication.end()
        if leaving:
            self._on_peers()
        self.changes.end()
        self.abandon()

    def abandon(self) -> None:
        """Give up what waits to be applied or read; what is appended may be committed by somebody else."""
        self.proposals.abandon_appended()
        self.reads.end()

    def configuration_changed(self, now: float) -> None:
        """Another configuration is in force."""
        self.reads.configuration_changed()
        self.replication.members_changed(now)
        self._quorum_until = float("-inf")
        # Fewer voters may be enough for what is acknowledged already.
        self._commit_may_move = True

    @property
    def ready(self) -> bool:
        """This node leads and has applied the no-op of its term (Raft §8)."""
        if not self._raft.leads():
            return False
        no_op = self._raft.no_op_index()
        return not self._applier.damaged and no_op is not None and self._applier.applied_index >= no_op

    @property
    def busy(self) -> bool:
        """A change of members or a transfer is under way: :meth:`manage` has something to do."""
        return (
            self.transfers.target is not None or self.changes.busy(self._peers.epochs) or bool(self.replication.leaving)
        )

    # -- what is asked ---------------------------------------------------------------------------------

    def propose(self, command: bytes, token: Token) -> None:
        """Queue a command for the next tick; its result or failure comes with ``token``.

        Raises:
            NotLeader, Transferring, Overloaded, CommandRefused, CommandReserved: nothing was queued.
        """
        self._must_lead()
        log = self._log
        self.proposals.add(command, token, log.bytes_used, log.room_bytes if log.disk_full else None)

    def read(self, token: Token) -> None:
        """Ask for a read point; the next tick starts a round unless one is open.

        Raises:
            NotLeader: ask the leader.
            NotReady: the leader does not know yet what is committed.
        """
        if not self._raft.leads():
            raise self._not_leader()
        if not self.ready:
            raise NotReady("the leader has not committed an entry of its term yet")
        self.reads.add(token)

    def add_member(self, node_id: str, member: RaftMember, token: Token) -> None:
        """See :meth:`oncegate.consensus.core.engine.Engine.add_member`."""
        self._must_lead()
        self.changes.add(node_id, member, token, ready=self.ready, commit_index=self._raft.commit_index())

    def remove_member(self, node_id: str, token: Token, now: float) -> None:
        """See :meth:`oncegate.consensus.core.engine.Engine.remove_member`."""
        self._must_lead()
        if node_id == self._node_id:
            raise ChangeRefused("a leader does not remove itself: leadership goes first")
        voters = self._log.membership.voters
        if node_id in voters and not self.replication.has_quorum(voters - {node_id}, now):
            raise ChangeRefused(f"without {node_id} the voters that answer would be no majority")
        self.changes.remove(node_id, token, ready=self.ready, commit_index=self._raft.commit_index())

    def transfer(self, target: str | None, token: Token, deadline: float) -> None:
        """See :meth:`oncegate.consensus.core.engine.Engine.transfer`."""
        if not self._raft.leads():
            raise self._not_leader()
        if target is None:
            candidates = self._peers.connected_voters()
            target = self.transfers.target or most_up_to_date(self.replication.matches(), candidates)
        if target not in self._peers.voters:
            raise ChangeRefused(f"{target} is no other voter")
        if target not in self._peers.epochs:
            raise TransferFailed(f"{target} is not connected")
        self.transfers.begin(target, token, deadline)
        self._counters.transfers_started += 1

    def peer_down(self, peer_id: str) -> None:
        """The connection to a peer is lost."""
        if self.transfers.target == peer_id and self._raft.leads():
            self._counters.transfers_failed += 1
            self.transfers.stop(TransferFailed(f"the connection to {peer_id} closed"))

    # -- the tick --------------------------------------------------------------------------------------

    def acknowledged(self, peer_id: str, ack: Ack, now: float) -> None:
        """Take a follower's answer; one of another term or another connection says nothing of this one's log."""
        if not self._raft.leads():
            return
        if not ack_counts(ack, term=self._raft.term(), epoch=self._peers.epochs.get(peer_id)):
            return
        if self.replication.acknowledged(peer_id, ack, now):
            self._commit_may_move = True

    def lost_quorum(self, now: float) -> bool:
        """No majority has answered for an election time-out: this node may not be the leader any more."""
        if now < self._quorum_until:
            return False
        self._quorum_until = self.replication.quorum_until(self._log.membership.voters)
        return self._quorum_until <= now

    def advance_commit(self) -> None:
        """Apply the commit rule to what has been acknowledged and flushed."""
        self._commit_may_move = False
        self._raft.advance_commit()

    def append(self) -> bool:
        """Move the commit index, then append what waits; returns whether a configuration came into force by that."""
        if self._commit_may_move:
            self.advance_commit()
        term = self._raft.term()
        self.proposals.append_to(self._log, term)
        wanted = self.changes.wanted
        return wanted is not None and self.changes.append_to(self._log, term, *wanted)

    def manage(self, now: float) -> bool:
        """Go on with a transfer and with changes of members; returns whether there is more to do at once."""
        more = False
        transfers = self.transfers
        if transfers.target is not None:
            if transfers.expire(now):
                self._counters.transfers_failed += 1
            elif self._raft.leads():
                matched = self.replication.match_index(transfers.target)
                # Who cannot apply any more has no results to wait for: their outcome is unknown here.
                applied = self._log.last_index if self._applier.damaged else self._applier.applied_index
                if transfers.tell(applied_index=applied, matched_index=matched, last_index=self._log.last_index):
                    self._send(transfers.target, TimeoutNow(self._raft.term()))
        if self._raft.leads() and self.changes.busy(self._peers.epochs):
            commit_index = self._raft.commit_index()
            self.changes.settle(commit_index)
            if transfers.target is None:
                more = self.changes.promote(self._caught_up, now, ready=self.ready, commit_index=commit_index)
        if self.replication.leaving and self.replication.dismiss(self._peers.epochs, now):
            self._on_peers()
        return more

    def _caught_up(self, peer_id: str) -> bool:
        return peer_id in self._peers.epochs and self.replication.caught_up(peer_id)

    def _not_leader(self) -> NotLeader:
        return NotLeader(self._peers.within_reach(self._raft.leader()))

    def _must_lead(self) -> None:
        if not self._raft.leads():
            raise self._not_leader()
        if self.transfers.target is not None:
            raise Transferring(f"leadership is being handed to {self.transfers.target}")


class Proposals(Generic[Token]):
    """The commands of one leader: waiting to be appended, then waiting to be applied; pure bookkeeping with bounds.

    Every token that goes in comes out once: with a result, or with an error that says whether the command may still be
    applied.
    """

    def __init__(
        self,
        config: ReplicaConfig,
        on_result: Callable[[Token, object], None],
        on_failure: Callable[[Token, ConsensusError], None],
    ) -> None:
        self._config = config
        self._reserve_bytes = config.reserve_bytes
        self._on_result = on_result
        self._on_failure = on_failure
        self.queued: list[tuple[bytes, Token]] = []
        """Commands that wait to be appended."""
        self._queued_bytes = 0
        self._appended: dict[int, tuple[Token, int]] = {}
        self._appended_bytes = 0

    @property
    def load(self) -> tuple[int, int, int, int]:
        """Commands and bytes that wait to be appended, then those appended and not applied."""
        return len(self.queued), self._queued_bytes, len(self._appended), self._appended_bytes

    def add(self, command: bytes, token: Token, journal_bytes: int, room_bytes: int | None = None) -> None:
        """Queue a command; ``room_bytes`` is what the log has room for, None while the disk is not full.

        Raises:
            CommandRefused, CommandReserved, Overloaded: nothing was queued.
            TypeError: the command is not ``bytes``.
        """
        if type(command) is not bytes:
            # What cannot be written would be found out only inside a tick, which ends the process.
            raise TypeError(f"a command is bytes, not {type(command).__name__}")
        size = len(command)
        config = self._config
        if not COMMAND_BYTES_MIN <= size <= config.command_bytes_max:
            raise CommandRefused(size, COMMAND_BYTES_MIN, config.command_bytes_max)
        if not command[0] and command.startswith(MAGIC):
            raise CommandReserved("a command does not begin like a configuration entry")
        if self._queued_bytes + self._appended_bytes + size > config.uncommitted_bytes_max:
            raise Overloaded("uncommitted_bytes_max", config.uncommitted_bytes_max)
        # One segment is always being prepared, and counts.
        if journal_bytes + self._queued_bytes + size + config.journal_segment_bytes > config.journal_bytes_max:
            raise Overloaded("journal_bytes_max", config.journal_bytes_max)
        if room_bytes is not None:
            queued_bytes = self._queued_bytes + size + (len(self.queued) + 1) * RECORD_HEADER_BYTES
            if queued_bytes + self._reserve_bytes > room_bytes:
                raise Overloaded("journal_room_bytes", room_bytes)
        self._queued_bytes += size
        self.queued.append((command, token))

    def append_to(self, journal: Journal, term: int) -> None:
        """Append everything queued; not flushed yet. What a full disk has no room for fails as ``Overloaded``."""
        if not self.queued:
            return
        queued, self.queued = self.queued, []
        reserve_bytes = self._reserve_bytes
        for number, (command, token) in enumerate(queued):
            if not journal.has_room(RECORD_HEADER_BYTES + len(command), reserve_bytes=reserve_bytes):
                self._refuse(queued[number:], journal.room_bytes)
                break
            index = journal.last_index + 1
            journal.append(command, index, term)
            self._appended[index] = (token, len(command))
        self._appended_bytes += self._queued_bytes
        self._queued_bytes = 0

    def _refuse(self, queued: list[tuple[bytes, Token]], room_bytes: int) -> None:
        for command, token in queued:
            self._queued_bytes -= len(command)
            self._on_failure(token, Overloaded("journal_room_bytes", room_bytes))

    def applied(self, index: int, result: object) -> None:
        """An entry was applied; most of a follower's have nobody waiting."""
        waiting = self._appended.pop(index, None)
        if waiting is not None:
            self._appended_bytes -= waiting[1]
            self._on_result(waiting[0], result)

    def refuse_queued(self, leader_id: str | None) -> None:
        """What was not appended never will be."""
        queued, self.queued = self.queued, []
        self._queued_bytes = 0
        for _, token in queued:
            self._on_failure(token, NotLeader(leader_id))

    def abandon_appended(self) -> None:
        """What was appended may be committed by somebody else, or not."""
        appended, self._appended = self._appended, {}
        self._appended_bytes = 0
        for token, _ in appended.values():
            self._on_failure(token, LeadershipLost("leadership was lost before the entry was applied"))
