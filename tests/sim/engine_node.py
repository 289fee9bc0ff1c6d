"""A simulated process that runs the real engine, journal, ballot and identity.

Stands where :class:`consensus.replica.Replica` stands: it feeds the engine, ticks it, and forwards reads of a follower
to the leader. Read next: :mod:`tests.sim.node`, :mod:`tests.sim.machine`.
"""

from __future__ import annotations

import random
import zlib
from itertools import count

import consensus.identity
import consensus.wal
from consensus.configuration import Member
from consensus.configuration import encode as encode_configuration
from consensus.engine import Engine
from consensus.errors import ConsensusError, NotLeader, SafetyViolation, StorageError
from consensus.follower_reads import FollowerReads
from consensus.identity import open_identity
from consensus.library import LibraryLog
from consensus.messages import (
    Append,
    ReadProbe,
    ReadProbeAck,
    ReadReply,
    ReadRequest,
    VoteReply,
    VoteRequest,
    decode,
    encode,
)
from consensus.ports import Role
from tests.consensus.fake_disk import InlineWorker
from tests.sim.node import SimNode
from tests.sim.observe import Violation
from tests.sim.saved_machine import SavedMachine


class ObservedLog(LibraryLog):
    """The journal, with somebody watching the writes."""

    def __init__(self, node, ballot, **bounds):
        self._node = self._see = None
        super().__init__(node.disk, InlineWorker(), ballot, **bounds)
        self._node, self._see = node.name, node.world.see
        self._node_counts = node.world.counts

    def append(self, command, index, term):
        super().append(command, index, term)
        self._see.appended(self._node, index, term, command)

    def truncate_from(self, index):
        removes = index <= self.last_index
        super().truncate_from(index)
        if removes:
            self._see.truncated(self._node, index)

    def compact(self, index, **options):
        before = self.base.index
        super().compact(index, **options)
        if self.base.index > before:
            self._node_counts["compactions"] += 1

    def reset_to(self, point):
        if self.term_at(point.index) != point.term:
            # The state is on disk already, and goes before the log from now on, whatever becomes of this call.
            self._see.installed(self._node, point.index + 1, point.configuration)
        super().reset_to(point)

    def flush(self):
        if self._batch:
            super().flush()
            self._see.flushed(self._node)


class Machine:
    """The replicated state: how much was applied, and a digest of it all."""

    def __init__(self, node):
        self._name, self._see = node.name, node.world.see
        self.commands = {}
        self.digest = 0
        self.last = 0

    def apply(self, index, term, command):
        self._see.applied(self._name, index, term, command)
        self.commands[index] = command
        self.digest = zlib.crc32(command, self.digest)
        self.last = index
        if not index & 15:
            self._see.state(self._name, index, self.digest)
        return index


class SeededSecrets:
    """Stands in for ``secrets`` and ``uuid`` where the disk formats ask for randomness."""

    def __init__(self, rng):
        self._rng = rng

    def randbits(self, bits):
        return self._rng.getrandbits(bits)

    def uuid4(self):
        return type("Seeded", (), {"hex": f"{self._rng.getrandbits(128):032x}"})


class EngineNode(SimNode):
    """The hardened library."""

    engine_type = Engine
    log_type = ObservedLog

    def __init__(self, world, name, rng):
        super().__init__(world, name, rng)
        self.engine = self.machine = self.reads = None
        self._tokens = count(1)
        self._waiting = []
        self._changes = set()
        self._configured = None

    # -- life -------------------------------------------------------------------------------------------

    def boot(self):
        world, plan = self.world, self.world.plan
        consensus.wal.secrets = consensus.identity.uuid = SeededSecrets(self.rng)
        self._waiting, self._changes, self._configured = [], set(), None
        config = plan.config(self.name)
        try:
            self.disk.lock()
            _, ballot = open_identity(self.disk, cluster_id="sim", node_id=self.name)
            log = self.log_type(
                self,
                ballot,
                segment_bytes=plan.settings["journal_segment_bytes"],
                memory_bytes_max=plan.settings["log_memory_bytes_max"],
            )
            machine = Machine(self) if plan.save_every is None else SavedMachine(self)
        except StorageError as error:
            self._refuses(error)
            return
        base, entries = log.base, []
        while base.index + len(entries) < log.last_index:
            entries += log.entries(base.index + len(entries) + 1, log.last_index, bytes_max=1 << 30)
        first = base.configuration if base.index else encode_configuration(config.initial_configuration)
        world.see.started(self.name, entries, ballot.term, base.index, first)
        self.machine = machine
        self.reads = FollowerReads(self._send, lambda read, error: None)
        try:
            self.engine = self.engine_type(
                config,
                machine,
                log,
                clock=self.clock.read,
                rng=random.Random(self.rng.random()),
                send=self._send,
                on_result=self._result,
                on_failure=self._failure,
                on_role=self._role,
                on_peers=self._peers_changed,
            )
        except StorageError as error:
            self._refuses(error)

    def _refuses(self, error):
        """A node that does not trust its disk is out for good: its directory is not wiped."""
        self.dead = str(error)
        self.world.counts["refusals"] += 1
        self.alive = False
        if not self.world.damaged(self.name):
            raise Violation("start", f"{self.name} refuses an undamaged disk: {error}")

    def forget(self):
        self.engine = self.machine = self.reads = None
        self._waiting = []
        self._changes = set()

    def shut_down(self):
        self.engine.stop()
        self.world.answers.shut_down(self.name)
        self.engine.log.close()

    def run_tick(self):
        engine = self.engine
        try:
            more = engine.tick()
        except (SafetyViolation, ConsensusError) as error:
            raise Violation("halt", f"{self.name}: {type(error).__name__}: {error}") from error
        self.world.see.ticked(self.name, engine.term, engine.commit_index)
        self._check_members()
        if engine.role is Role.LEADER:
            self.world.see.leads(self.name, engine.term)
        applied = engine.applied_index
        while self._waiting and self._waiting[0][0] <= applied:
            point, read = self._waiting.pop(0)
            self.world.read_done(read, point, applied)
        self.reads.ask(engine.leader_id)
        if more:
            return 0.0
        return self.clock.when(engine.deadline())

    # -- the state on disk ------------------------------------------------------------------------------

    def save_soon(self):
        """A save has begun: another thread writes it, some time from now."""
        self.world.scheduler.after(self.rng.choice((0.0, 0.01, 0.1)), self.handle, self._save, self.life)

    def _save(self, life):
        if life != self.life:
            return
        self.busy = True
        try:
            self._guarded(self.machine.work)
        finally:
            self.busy = False
        if self.alive:
            if self.machine.saving:
                self.world.scheduler.after(0.1, self.handle, self._save, life)
            self._drain()
            self.wake(0.0)

    # -- members ----------------------------------------------------------------------------------------

    def accepts(self, peer):
        """Whether this node would be connected with that one."""
        engine = self.engine
        return engine is not None and (engine.hears_anyone or peer in engine.wanted_peers())

    def dials(self, peer):
        """Whether this node knows that one as somebody to be connected with."""
        return self.engine is not None and peer in self.engine.wanted_peers()

    def _peers_changed(self):
        self.world.scheduler.after(0.0, self._leave_strangers, self.life)

    def _leave_strangers(self, life):
        if life == self.life and self.alive:
            for peer in self.world.nodes:
                if peer != self.name and not self.accepts(peer):
                    self.world.network.cut(self.name, peer)

    def _check_members(self):
        engine = self.engine
        membership = engine.membership
        if engine.role is not Role.FOLLOWER and self.name not in membership.voters:
            raise Violation("members", f"{self.name} is {engine.role.value} and does not vote")
        index, known = membership.current_index, (membership.version, membership.current_index)
        if known != self._configured and index <= engine.commit_index and membership.current.members:
            self._configured = known
            self.world.see.configured(self.name, index, membership.at(index))

    @property
    def change_pending(self):
        """A change of the members is under way here."""
        return self.engine is not None and self.engine.change_pending

    @property
    def changes_wait(self):
        """Somebody waits for a change of the members."""
        return bool(self._changes)

    def change_members(self, what, which):
        """Add a machine that was never a member, or remove one; ``which`` in 0..1 chooses."""
        self.handle(self._change_members, what, which)

    def _change_members(self, what, which):
        engine, world = self.engine, self.world
        if engine.role is not Role.LEADER:
            return
        token = ("admin", "added" if what == "add" else "removed", next(self._tokens))
        try:
            if what == "add":
                name = world.next_joiner(which)
                if name is None:
                    return
                engine.add_member(name, Member("127.0.0.1", 1), token)
            else:
                name = world.may_remove(engine.membership.current, which)
                if name == self.name:
                    self._transfer(None, 1.0)
                    return
                if name is None:
                    return
                engine.remove_member(name, token)
        except ConsensusError:
            world.counts["changes refused"] += 1
            return
        world.answers.proposed(self.name, token)
        self._changes.add(token)
        world.scheduler.after(3.0, self.handle, self._give_up, token, self.life)
        self.wake(0.0)

    def _give_up(self, token, life):
        if life == self.life and token in self._changes:
            self.engine.forget_change(token)
            self._failure(token, None)

    def transfer(self, target, timeout_s=1.0):
        """Hand leadership over; ``target`` is a node's name, or None for the most up-to-date voter."""
        self.handle(self._transfer, target, timeout_s)

    def _transfer(self, target, timeout_s):
        token = ("admin", "transfers", next(self._tokens))
        try:
            self.engine.transfer(target, token, timeout_s)
        except ConsensusError:
            self.world.counts["transfers refused"] += 1
            return
        self.world.answers.proposed(self.name, token)
        self.wake(0.0)

    # -- network ----------------------------------------------------------------------------------------

    def connected(self, peer, epoch):
        self.handle(self._connected, peer, epoch)

    def _connected(self, peer, epoch):
        self.engine.peer_up(peer, epoch)
        self.wake(0.0001)

    def disconnected(self, peer):
        self.handle(self._disconnected, peer)

    def _disconnected(self, peer):
        self.engine.peer_down(peer)
        self.reads.lost(NotLeader(None), unless_leader=self.engine.leader_id)
        self.wake(0.0001)

    def arrived(self, peer, epoch, message):
        self.handle(self._received, peer, epoch, message)

    def _received(self, peer, epoch, body):
        engine = self.engine
        message = decode(body)
        match message:
            case ReadProbe():
                engine.receive_probe(peer, message)
            case ReadProbeAck():
                engine.receive_probe_ack(peer, message)
            case ReadRequest(number):
                self._serve_read(peer, number)
            case ReadReply():
                for read in self.reads.answered(peer, message):
                    self._read_point(read, message.index)
                self.reads.ask(engine.leader_id)
            case _:
                engine.receive(peer, epoch, message)
                self.wake(0.00005)

    def _send(self, peer, message):
        match message:
            case Append():
                self.world.see.leads(self.name, message.term)
            case VoteRequest():
                self.world.see.votes(self.name, self.name, message.term)
            case VoteReply():
                self.world.see.votes(self.name, peer, message.term)
        self.world.network.send(self.name, peer, encode(message))

    # -- clients ----------------------------------------------------------------------------------------

    @property
    def leads(self):
        return self.engine is not None and self.engine.role is Role.LEADER

    @property
    def term(self):
        return self.engine.term

    @property
    def applied_index(self):
        return self.engine.applied_index if self.engine is not None else 0

    @property
    def commands(self):
        return self.machine.commands

    def propose(self, command, done):
        """A client's command; ``done`` gets the index it was applied at, or None."""
        self.handle(self._propose, command, done)

    def _propose(self, command, done):
        token = (next(self._tokens), command, done)
        try:
            self.engine.propose(command, token)
        except ConsensusError:
            done(None)
            return
        self.world.answers.proposed(self.name, token[0])
        self.wake(0.0002)

    def read(self, read):
        """A client's read, of this node's state."""
        self.handle(self._read, read)

    def _read(self, read):
        try:
            self.engine.read(("read", read))
        except NotLeader:
            self.reads.add(read)
            self.reads.ask(self.engine.leader_id)
        except ConsensusError:
            self.world.read_failed(read)
        self.wake(0.0002)

    def _serve_read(self, peer, number):
        try:
            self.engine.read(("peer", peer, number))
        except ConsensusError:
            self._send(peer, ReadReply(number, None))
        self.wake(0.0001)

    def _read_point(self, read, point):
        if point is None:
            self.world.read_failed(read)
            return
        self._waiting.append((point, read))
        self._waiting.sort(key=lambda waiting: waiting[0])
        self.wake(0.0)

    def _result(self, token, result):
        match token:
            case ("read", read):
                self._read_point(read, result)
            case ("peer", peer, number):
                self._send(peer, ReadReply(number, result))
                self.engine.show_commit(peer)
            case ("admin", what, _):
                self._changes.discard(token)
                self.world.answers.answered(self.name, token)
                self.world.counts[what] += 1
            case (number, command, done):
                self.world.answers.answered(self.name, number)
                self.world.acknowledged(command, result)
                done(result)

    def _failure(self, token, error):
        match token:
            case ("read", read):
                self.world.read_failed(read)
            case ("peer", peer, number):
                self._send(peer, ReadReply(number, None))
            case ("admin", what, _):
                self._changes.discard(token)
                self.world.answers.answered(self.name, token)
                self.world.counts[f"{what} in vain"] += 1
            case (number, _, done):
                self.world.answers.answered(self.name, number)
                done(None)

    def _role(self, change):
        if change.role is Role.LEADER and change.ready:
            self.world.counts["elections"] += 1
