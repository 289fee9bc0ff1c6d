"""A simulated process that runs the real engine, journal, ballot and identity.

Stands where :class:`oncegate.consensus.replica.replica.Replica` stands: it feeds the engine, ticks it, and forwards
reads of a follower to the leader. Read next: :mod:`oncegate.proof.sim.engine.node`,
:mod:`oncegate.proof.sim.engine.observed`.
"""

from __future__ import annotations

import random

import oncegate.consensus.log.identity
import oncegate.consensus.log.wal
from oncegate.consensus.configuration import encode as encode_configuration
from oncegate.consensus.core.engine import Engine
from oncegate.consensus.errors import ConsensusError, FlushFailed, NotLeader, SafetyViolation, StorageError
from oncegate.consensus.log.identity import open_identity
from oncegate.consensus.messages import (
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
from oncegate.consensus.ports import Role
from oncegate.consensus.replica.ticker import FollowerReads
from oncegate.proof.sim.engine.administered import Administered
from oncegate.proof.sim.engine.observe import Violation
from oncegate.proof.sim.engine.observed import Machine, ObservedLog, SavedMachine


class SeededSecrets:
    """Stands in for ``secrets`` and ``uuid`` where the disk formats ask for randomness."""

    def __init__(self, rng):
        self._rng = rng

    def randbits(self, bits):
        return self._rng.getrandbits(bits)

    def uuid4(self):
        return type("Seeded", (), {"hex": f"{self._rng.getrandbits(128):032x}"})


class EngineNode(Administered):
    """The hardened library."""

    engine_type = Engine
    log_type = ObservedLog

    def __init__(self, world, name, rng):
        super().__init__(world, name, rng)
        self.engine = self.machine = self.reads = None
        self._waiting = []

    # -- life -------------------------------------------------------------------------------------------

    def boot(self):
        world, plan = self.world, self.world.plan
        oncegate.consensus.log.wal.secrets = oncegate.consensus.log.identity.uuid = SeededSecrets(self.rng)
        self._waiting = []
        self.begin_administration()
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
            machine = self.new_machine()
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

    def new_machine(self):
        """The replicated state of this life; what of it is on disk is read."""
        return Machine(self) if self.world.plan.save_every is None else SavedMachine(self)

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
        self.begin_administration()

    def shut_down(self):
        self.engine.stop()
        self.world.answers.shut_down(self.name)
        self.engine.log.close()

    def run_tick(self):
        engine = self.engine
        try:
            more = engine.tick()
        except FlushFailed:
            raise  # the disk's fault, not the engine's: the process ends
        except (SafetyViolation, ConsensusError) as error:
            raise Violation("halt", f"{self.name}: {type(error).__name__}: {error}") from error
        self.world.see.ticked(self.name, engine.raft.term(), engine.raft.commit_index())
        self._check_members()
        if engine.raft.role() is Role.LEADER:
            self.world.see.leads(self.name, engine.raft.term())
        applied = engine.applier.applied_index
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

    # -- network ----------------------------------------------------------------------------------------

    def _connected(self, peer, epoch):
        self.engine.peer_up(peer, epoch)
        self.reads.ask_again(peer)
        self.wake(0.0001)

    def _disconnected(self, peer):
        self.engine.peer_down(peer)
        self.reads.lost(NotLeader(None), unless_leader=self.engine.leader_id)
        self.wake(0.0001)

    def _received(self, peer, epoch, body):
        engine = self.engine
        message = decode(body)
        match message:
            case ReadProbe():
                engine.receive_probe(peer, message)
            case ReadProbeAck():
                engine.receive_probe_ack(peer, message)
            case ReadRequest(number):
                self._serve_read(peer, epoch, number)
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
        return self.engine is not None and self.engine.raft.role() is Role.LEADER

    @property
    def term(self):
        return self.engine.raft.term()

    @property
    def applied_index(self):
        return self.engine.applier.applied_index if self.engine is not None else 0

    @property
    def commands(self):
        return self.machine.commands

    def _propose(self, command, done):
        token = (next(self._tokens), command, done)
        try:
            self.engine.leading.propose(command, token)
        except ConsensusError:
            done(None)
            return
        self.world.answers.proposed(self.name, token[0])
        self.wake(0.0002)

    def _read(self, read):
        try:
            self.engine.leading.read(("read", read))
        except NotLeader:
            self.reads.add(read)
            self.reads.ask(self.engine.leader_id)
        except ConsensusError:
            self.world.read_failed(read)
        self.wake(0.0002)

    def _serve_read(self, peer, epoch, number):
        try:
            self.engine.leading.read(("peer", peer, epoch, number))
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
        self._ended(token, result)

    def _failure(self, token, error):
        self._ended(token, None)

    def _ended(self, token, result):
        """Somebody gets what he waited for, or None for a refusal."""
        world = self.world
        match token:
            case ("read", read):
                self._read_point(read, result)
            case ("peer", peer, epoch, number):
                if self.engine.peers.is_connected(peer, epoch):
                    self._send(peer, ReadReply(number, result))
                if result is not None:
                    self.engine.show_commit(peer)
            case ("admin", what, which):
                self._changes.discard(token)
                world.answers.answered(self.name, token)
                world.counts[what if result is not None else f"{what} in vain"] += 1
                if result is not None and what != "transfers":
                    self._changed(what, which[1], result)
            case (number, command, done):
                world.answers.answered(self.name, number)
                if result is not None:
                    world.acknowledged(command, result)
                done(result)

    def _role(self, change):
        if change.role is Role.LEADER and change.ready:
            self.world.counts["elections"] += 1
