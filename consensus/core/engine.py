"""One Raft node without sockets, timers or futures: messages and commands in, decisions out.

The owner (an event loop, or a simulation) calls :meth:`Engine.receive` and :meth:`Engine.propose` as things
arrive, then :meth:`Engine.tick` once. A tick does, in this order:

1. messages are handled; the commit index moves (all that is in the log has been flushed by earlier ticks)
2. waiting commands are appended, and appends leave for the followers at once
3. one write, one flush
4. acknowledgements and votes that waited for that flush leave
5. committed entries are applied, results handed out

Step 4 before 3 would acknowledge what a power loss forgets. Step 2 before 3 is safe (Raft thesis §10.2.1): the
leader counts itself only for what it has flushed. A node is built in layers: its parts
(:mod:`oncegate.consensus.core.node_state`), its roles (:mod:`oncegate.consensus.core.roles`), its messages
(:mod:`oncegate.consensus.core.message_handling`), and here what its owner calls. Read next: these three, then
:mod:`oncegate.consensus.core.library`.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from oncegate.consensus.configuration import Member
from oncegate.consensus.core.message_handling import MessageHandling
from oncegate.consensus.core.transfer import most_up_to_date
from oncegate.consensus.errors import ChangeRefused, NotLeader, NotReady, TransferFailed, Transferring
from oncegate.consensus.messages import ReadProbe, ReadProbeAck, TimeoutNow

Token = TypeVar("Token")


class Engine(MessageHandling[Token], Generic[Token]):
    """One node; ``Token`` is what the owner wants back with a command's or a read's result."""

    # -- connections -----------------------------------------------------------------------------------

    def peer_up(self, peer_id: str, epoch: int) -> None:
        """A connection to a peer is established; it replaces an earlier one."""
        self._epochs[peer_id] = epoch
        self._report.settled = False
        self._raft.set_connected(peer_id, connected=True)
        self._replication.reconnected(peer_id)
        if self._snapshots is not None:
            self._snapshots.reconnected(peer_id)

    def is_connected(self, peer_id: str, epoch: int) -> bool:
        """Whether the connection of this epoch is the one to the peer now."""
        return self._epochs.get(peer_id) == epoch

    def peer_down(self, peer_id: str) -> None:
        """The connection to a peer is lost."""
        self._epochs.pop(peer_id, None)
        self._report.settled = False
        self._raft.set_connected(peer_id, connected=False)
        if self._raft.leader() == peer_id:
            self._report.reason = f"the connection to the leader {peer_id} closed"
            self._election.leader_lost(self._clock())
        if self._transfers.target == peer_id and self._raft.leads():
            self.counters.transfers_failed += 1
            self._transfers.stop(TransferFailed(f"the connection to {peer_id} closed"))

    # -- what the owner wants --------------------------------------------------------------------------

    def propose(self, command: bytes, token: Token) -> None:
        """Queue a command for the next tick; its result or failure comes with ``token``.

        Raises:
            NotLeader, Transferring, Overloaded, CommandRefused, CommandReserved: nothing was queued.
        """
        self._must_lead()
        log = self.log
        self._proposals.add(command, token, log.bytes_used, log.room_bytes if log.disk_full else None)

    def read(self, token: Token) -> None:
        """Ask for a read point; the next tick starts a round unless one is open.

        Raises:
            NotLeader: ask the leader.
            NotReady: the leader does not know yet what is committed.
        """
        if not self._raft.leads():
            raise NotLeader(self.leader_id)
        if not self.ready:
            raise NotReady("the leader has not committed an entry of its term yet")
        self._rounds.add(token)

    def receive_probe(self, peer_id: str, probe: ReadProbe) -> None:
        """Confirm a leader's term; needs no flush, since terms are durable before they are used."""
        if probe.term == self._raft.term():
            self._send(peer_id, ReadProbeAck(probe.term, probe.number))

    def receive_probe_ack(self, peer_id: str, ack: ReadProbeAck) -> None:
        """Count a confirmation, and answer the reads it completes."""
        if self._raft.leads() and ack.term == self._raft.term():
            self._rounds.confirm(peer_id, ack.number)
            self._finish_reads()
            if self._rounds.wanted:
                self._start_reads()

    def show_commit(self, peer_id: str) -> None:
        """Let a follower know the commit index now: a read waits for it there."""
        if peer_id in self._epochs:
            self._replication.show_commit(peer_id, self._now)

    def add_member(self, node_id: str, member: Member, token: Token) -> None:
        """Make a node a member; ``token`` is answered when it is a voter. See :meth:`Reconfiguration.add`.

        Raises:
            NotLeader, Transferring, NotReady, ChangePending, Overloaded: nothing was done.
        """
        self._must_lead()
        self._attention = True
        self._changes.add(node_id, member, token, ready=self.ready, commit_index=self.commit_index)

    def remove_member(self, node_id: str, token: Token) -> None:
        """Make another node no member; ``token`` is answered when that is committed.

        Raises:
            NotLeader, Transferring, NotReady, ChangePending, Overloaded: nothing was done.
            ChangeRefused: the node leads, or the others that are left and answer are no majority.
        """
        self._must_lead()
        if node_id == self.config.node_id:
            raise ChangeRefused("a leader does not remove itself: leadership goes first")
        voters = self._membership.voters
        if node_id in voters and not self._replication.has_quorum(voters - {node_id}, self._clock()):
            raise ChangeRefused(f"without {node_id} the voters that answer would be no majority")
        self._attention = True
        self._changes.remove(node_id, token, ready=self.ready, commit_index=self.commit_index)

    def forget_change(self, token: Token) -> None:
        """Nobody waits for this change any more; what was appended goes on."""
        self._changes.forget(token)

    def transfer(self, target: str | None, token: Token, timeout_s: float) -> None:
        """Hand leadership to ``target``, or to the most up-to-date voter; ``token`` gets the id of who took it.

        Raises:
            NotLeader: nothing to hand over.
            ChangeRefused: the target does not vote, or another transfer is under way.
            TransferFailed: no other voter is connected.
        """
        if not self._raft.leads():
            raise NotLeader(self.leader_id)
        if target is None:
            target = self._transfers.target or most_up_to_date(self._replication.matches(), self._connected_voters())
        if target not in self._peer_voters:
            raise ChangeRefused(f"{target} is no other voter")
        if target not in self._epochs:
            raise TransferFailed(f"{target} is not connected")
        self._attention = True
        self._transfers.begin(target, token, self._clock() + timeout_s)
        self.counters.transfers_started += 1

    def stop(self) -> None:
        """Answer everybody who waits; nothing may be called afterwards but closing the log."""
        self._flush_and_release()
        self._proposals.refuse_queued(self.leader_id)
        self._abandon()
        self._changes.end()
        if self._snapshots is not None:
            self._snapshots.stop()
        self._transfers.stop(TransferFailed("the node stops"))

    # -- the tick --------------------------------------------------------------------------------------

    def tick(self) -> bool:
        """Do all that is due; returns whether there is more to do at once.

        Raises:
            OSError, SafetyViolation: the node must end (its disk or its state cannot be trusted).
        """
        now = self._clock()
        slept = now - self._now - 2 * self._heartbeat_s
        self._now = now
        if slept > 0:
            # Answers to a leader that was off the processor may still wait in its sockets.
            self._replication.excuse(slept)
            self._freshness.woke(now, slept)
        if self._inbox:
            inbox, self._inbox = self._inbox, []
            self._tick_wanted = False
            for peer_id, epoch, message in inbox:
                if self.is_connected(peer_id, epoch):
                    self._handle(peer_id, epoch, message)
        more = False
        raft = self._raft
        leads = raft.leads()
        if leads:
            if now >= self._quorum_until:
                self._check_quorum(now)
                leads = raft.leads()
        elif now >= self._election.deadline:
            self._ask_for_votes(now)
            leads = raft.leads()
        if leads:
            if self._commit_may_move:
                self._advance_commit()
            self._proposals.append_to(self.log, raft.term())
            if self._changes.append_to(self.log, raft.term()):
                self._configuration_in_force()
            more = self._replication.replicate(self._epochs, now)
            if self._snapshots is not None:
                self._snapshots.lead(self._epochs, now)
            if self._rounds.wanted:
                self._start_reads()
            elif self._rounds.open and now - self._rounds.asked_at > self._heartbeat_s:
                self._probe(self._rounds.ask_again(now))
        elif self._proposals.queued:
            self._proposals.refuse_queued(self.leader_id)
        if self._snapshots is not None:
            self._snapshots.follow(now)
            if self._membership.version != self._membership_seen:
                self._configuration_in_force()
        self._flush_and_release()
        if not self._peer_voters and raft.leads():
            self._advance_commit()
            # Learners are told in time.
            more |= self.applied_index < self.commit_index and bool(self._epochs)
        more |= self._applier.apply_to(raft.commit_index(), self._proposals.applied)
        self._freshness.applied(self._applier.applied_index)
        if self._saving is not None:
            self._saving.applied(self._applier.applied_index)
        self.log.maintain(now)
        if self._attention:
            more |= self._manage(now)
        self._report_role()
        return more

    def _manage(self, now: float) -> bool:
        """Do what membership changes and transfers need until none is under way."""
        more = False
        if 0 < self._unsettled_index <= self.commit_index:
            self._know_members()
        transfers = self._transfers
        if transfers.target is not None:
            if transfers.expire(now):
                self.counters.transfers_failed += 1
            elif self._raft.leads():
                matched = self._replication.matches().get(transfers.target, 0)
                if transfers.tell(
                    applied_index=self.applied_index, matched_index=matched, last_index=self.log.last_index
                ):
                    self._send(transfers.target, TimeoutNow(self._raft.term()))
        if self._raft.leads() and self._changes.busy:
            self._changes.settle(self.commit_index)
            if transfers.target is None:
                more = self._changes.promote(self._caught_up, now, ready=self.ready, commit_index=self.commit_index)
        if self._replication.leaving and self._replication.dismiss(self._epochs, now):
            self._on_peers()
        self._attention = (
            transfers.target is not None
            or self._changes.busy
            or self._unsettled_index > 0
            or bool(self._replication.leaving)
        )
        return more

    def _caught_up(self, peer_id: str) -> bool:
        return peer_id in self._epochs and self._replication.caught_up(peer_id)

    def _must_lead(self) -> None:
        if not self._raft.leads():
            raise NotLeader(self.leader_id)
        if self._transfers.target is not None:
            raise Transferring(f"leadership is being handed to {self._transfers.target}")

    def _advance_commit(self) -> None:
        self._commit_may_move = False
        self._raft.advance_commit()

    def _flush_and_release(self) -> None:
        self.log.flush()
        if self._held:
            held, self._held = self._held, []
            for peer_id, message in held:
                self._send(peer_id, message)

    def _start_reads(self) -> None:
        self._probe(self._rounds.start(self._raft.commit_index(), self._now))
        self._finish_reads()

    def _probe(self, number: int) -> None:
        probe = ReadProbe(self._raft.term(), number)
        for peer_id in self._connected_voters():
            self._send(peer_id, probe)

    def _finish_reads(self) -> None:
        index, tokens = self._rounds.finish()
        for token in tokens:
            self._on_result(token, index)
