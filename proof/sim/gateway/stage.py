"""A simulated cluster that follows a script: who times out, what is delivered and who dies is said, not drawn.

Nodes, clients, history and verdict are those of the seeded runs. What differs: a node's election time-out passes only
when the script says so, a client sends to one node, no request is lost. When the script is over, the cluster is healed
and has to agree as after any other run. Read next: :mod:`oncegate.proof.sim.gateway.scripts`,
:mod:`oncegate.proof.sim.gateway.world`.
"""

from __future__ import annotations

from itertools import combinations, permutations
from pathlib import Path

from oncegate.consensus.configuration import RaftMember
from oncegate.consensus.errors import ConsensusError
from oncegate.consensus.messages import decode
from oncegate.gateway.machine.commands import OpKind
from oncegate.proof.sim.gateway.caller import Ended
from oncegate.proof.sim.gateway.node import GatewayNode
from oncegate.proof.sim.gateway.processes import Process, read
from oncegate.proof.sim.gateway.session import Session
from oncegate.proof.sim.gateway.workloads import Habits, op, text
from oncegate.proof.sim.gateway.world import GatewayWorld

TIMER_HELD_S = 1.0
RETRY_S = 0.2
"""How long a candidate waits for votes before it asks again."""
STEP_S = 0.001
WITHIN_S = 10.0
_PATIENT = Habits(window=64, lease_ms=600_000, patience_s=(3600.0,), copies_share=0.0)


class StuckError(Exception):
    """What a script waits for does not come; the scenario has not taken place."""


class ScriptedNode(GatewayNode):
    """A node whose election timer and incoming messages obey the script."""

    times_out = False

    def run_tick(self):
        if self.world.holds_timers:
            election, now = self.engine._election, self.clock.read()
            election.deadline = now if self.times_out else max(election.deadline, now + TIMER_HELD_S)
            self.times_out = False
        return super().run_tick()

    def arrived(self, peer, epoch, message):
        stall = self.world.stalls.get((peer, self.name))
        if stall is None or not stall.takes(decode(message)):
            super().arrived(peer, epoch, message)
        else:
            stall.held.append((epoch, message))

    def disconnected(self, peer):
        # What waited in the sockets is gone with the connection.
        if (peer, self.name) in self.world.stalls:
            self.world.stalls[peer, self.name].held.clear()
        super().disconnected(peer)

    def forget(self):
        self.times_out = False
        for (_, target), stall in self.world.stalls.items():
            if target == self.name:
                stall.held.clear()
        super().forget()

    def administer(self, what, ask):
        """Call the engine as an administrator; ``ask`` gets the engine and a token."""
        self.handle(self._administer, what, ask)

    def _administer(self, what, ask):
        token = ("admin", what, next(self._tokens))
        try:
            ask(self.engine, token)
        except ConsensusError:
            self.world.counts["changes refused"] += 1
            return
        self.world.answers.proposed(self.name, token)
        self._changes.add(token)
        self.wake(0.0)


class Stall:
    """One direction of a link that stands still from a message on, as a TCP connection does: in order."""

    def __init__(self, begins):
        self._begins = begins
        self.held = []

    def takes(self, message):
        return bool(self.held) or self._begins(message)


class PinnedSession(Session):
    """Sends everything to one node, at once, and goes on until there is a verdict."""

    at = None

    def nodes(self):
        return [self.at]


class Actor(Process):
    """A client that does what it is told, at one node."""

    def __init__(self, world, at):
        rng = world.stream(f"actor {len(world.actors)}")
        super().__init__(world, None, rng)
        self.session = PinnedSession(world, rng, _PATIENT)
        self.session.at = at
        self.session.begin(lambda session: None)

    @property
    def ready(self):
        return self.session.state == "open"

    def write(self, key, value):
        """Begin to write."""
        assert self.idle
        self.idle = False
        work = op(OpKind.PUT, key, text(value))
        self.world.history.note(self.process, "invoke", "write", key, value)
        self.session.request(work, lambda ended: self._ended("write", key, value, ended))

    def die(self):
        """The client's process ends; nobody hears of its writes."""
        self.session.state = "gone"
        for pending in list(self.session.pending.values()):
            pending.end(Ended("info", error="CRASHED"))

    def _done(self):
        self.idle = True


class ScriptedWorld(GatewayWorld):
    """The cluster of a script."""

    def __init__(self, plan, *, script, **options):
        self.script = script
        self.holds_timers = True
        self.stalls = {}
        """By (source, target)."""
        self.actors = []
        self.began = False
        super().__init__(plan, **options)

    def new_clients(self):
        clients = super().new_clients()
        self.wire.lost_share = self.wire.late_share = 0.0
        return clients

    def new_owners(self, rng):
        return self.actors

    def start_workload(self):
        super().start_workload()
        self.began = True

    def _settle(self):
        stage = Stage(self)
        self.script.play(stage)
        stage.end()
        super()._settle()


class Stage:
    """What a script can do; each step happens at once, but for those that wait."""

    def __init__(self, world):
        self.world = world
        self._blocked = []

    def node(self, name):
        return self.world.nodes[name]

    def engine(self, name):
        return self.world.nodes[name].engine

    # -- time -------------------------------------------------------------------------------------------

    def wait(self, seconds):
        """Let time pass: for what happens with a bug only, or without it only."""
        self.world.scheduler.run(self.world.now + seconds)

    def until(self, condition, within_s=WITHIN_S):
        """Let time pass until something is so; raises :class:`StuckError` if it never is."""
        if not self._comes(condition, within_s):
            code = condition.__code__
            raise StuckError(f"{Path(code.co_filename).name}:{code.co_firstlineno} waits for what does not come")

    def _comes(self, condition, within_s):
        world = self.world
        last = world.now + within_s
        while not condition():
            if world.now >= last:
                return False
            world.scheduler.run(world.now + STEP_S)
        return True

    # -- nodes ------------------------------------------------------------------------------------------

    def begin(self, leader, *, clients=()):
        """Elect the first leader, declare the tables, and open a client's session for each node that is named."""
        self.elect(leader)
        self.until(lambda: self.world.began)
        actors = self.world.actors
        for at in clients:
            actors.append(Actor(self.world, at))
        self.until(lambda: all(actor.ready for actor in actors))
        self.same_logs()
        return actors

    def same_logs(self):
        """Wait until all that live have one log, all of it committed."""

        def same():
            nodes = [node for node in self.world.nodes.values() if node.alive]
            return len({(node.engine.log.last_index, node.engine.commit_index) for node in nodes}) == 1

        self.until(same)

    def times_out(self, name):
        """A node's election time-out passes, once: it asks for pre-votes."""
        self._step("times out", name)
        node = self.node(name)
        node.times_out = True
        node.wake(0.0)

    def elect(self, name, *, ready=True):
        """Let a node time out until it leads a later term; ``ready``: and an entry of that is committed."""
        node = self.node(name)
        before = node.term
        # A pre-vote may be too early for a link, or teach the candidate a later term.
        for _ in range(int(WITHIN_S / RETRY_S)):
            self.times_out(name)
            if self._comes(lambda: node.leads and node.term > before, RETRY_S):
                break
        else:
            raise StuckError(f"nobody elects {name}")
        if ready:
            self.until(lambda: node.leads and node.engine.ready)

    def crash(self, *names, power=False):
        """Processes end; with ``power`` the machines lose what was not flushed."""
        for name in names:
            self._step("crashes", name)
            self.node(name).die(power=power, down_s=float("inf"))

    def start(self, *names):
        """Start processes that were ended."""
        for name in names:
            self._step("starts", name)
            self.node(name).start()

    def restart(self, *names):
        """End processes and start them again."""
        self.crash(*names)
        self.start(*names)

    # -- links ------------------------------------------------------------------------------------------

    def connect(self, *groups):
        """Only nodes that share a group reach each other; other connections break, and stay down."""
        self._step("connects", *groups)
        network, names = self.world.network, list(self.world.nodes)
        network.unblock(self._blocked)
        apart = [pair for pair in permutations(names, 2) if not any({*pair} <= {*group} for group in groups)]
        self._blocked = apart
        network.block(apart)
        for a, b in apart:
            if a < b:
                network.cut(a, b)
        self.until(lambda: all(self._settled(a, b) for a, b in combinations(names, 2)))

    def _settled(self, a, b):
        """Whether both ends know what has become of their link."""
        ends = [(self.node(a), b), (self.node(b), a)]
        if not all(node.alive for node, _ in ends):
            return True
        up = [peer in node.engine._peers.epochs for node, peer in ends]
        if (a, b) in self._blocked:
            return not any(up)
        return all(up) or not (self.node(a).accepts(b) and self.node(b).accepts(a))

    def linked(self, a, b):
        """Wait until two nodes that reach each other are connected."""
        self.until(lambda: b in self.engine(a)._peers.epochs and a in self.engine(b)._peers.epochs)

    def stall(self, source, target, begins):
        """Messages from ``source`` wait before ``target``, from the first one that ``begins`` is true of."""
        self._step("stalls", source, target)
        self.world.stalls[source, target] = Stall(begins)

    def stalled(self, source, target):
        """How many messages wait."""
        return len(self.world.stalls[source, target].held)

    def flow(self, source, target):
        """What was stalled arrives, all at the same moment, and the link is as before."""
        self._step("flows", source, target)
        stall = self.world.stalls.pop((source, target))
        for epoch, message in stall.held:
            self.node(target).arrived(source, epoch, message)

    # -- clients and administrators ---------------------------------------------------------------------

    def read(self, key, at):
        """Read at a node, linearizable, and wait for the answer or the refusal; nothing is said of which it was."""
        reading = self.begin_read(key, at)
        self.until(lambda: reading)

    def begin_read(self, key, at):
        """Begin to read; return a list that is empty until the read has ended."""
        world, ended = self.world, []
        read(world, world.history.new_process(), world.workload.read_f, key, at, lambda ok, value: ended.append(ok))
        return ended

    def add_member(self, name, at):
        """Ask a leader to add a machine of the plan's joiners, which is started."""
        self.start(name)
        self.node(at).administer(
            "added", lambda engine, token: engine.add_member(name, RaftMember("127.0.0.1", 1), token)
        )

    def remove_member(self, name, at):
        """Ask a leader to remove a member."""
        self.node(at).administer("removed", lambda engine, token: engine.remove_member(name, token))

    # -- the end ----------------------------------------------------------------------------------------

    def end(self):
        """Everything works again, and goes by itself."""
        self._step("ends")
        world = self.world
        world.network.unblock(self._blocked)
        self._blocked = []
        for pair in list(world.stalls):
            self.flow(*pair)
        for node in world.nodes.values():
            if node.life:
                node.start()
        world.holds_timers = False

    def _step(self, *what):
        self.world.note("step", *what)
        self.world.counts["steps of scripts"] += 1
