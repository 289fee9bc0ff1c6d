"""A simulated cluster that follows a script: who times out, what is delivered and who dies is said, not drawn.

Nodes, clients, history and verdict are those of the seeded runs. What differs: a node's election time-out passes only
when the script says so, a client sends to one node, no request is lost. When the script is over, the cluster is healed
and has to agree as after any other run. Read next: :mod:`oncegate.proof.sim.engine.stage`,
:mod:`oncegate.proof.sim.gateway.scripts`, :mod:`oncegate.proof.sim.gateway.world`.
"""

from __future__ import annotations

from oncegate.consensus.messages import decode
from oncegate.gateway.machine.commands import OpKind
from oncegate.proof.sim.engine.stage import WITHIN_S, Stage, StuckError
from oncegate.proof.sim.gateway.caller import Ended
from oncegate.proof.sim.gateway.node import GatewayNode
from oncegate.proof.sim.gateway.processes import Process, read
from oncegate.proof.sim.gateway.session import Session
from oncegate.proof.sim.gateway.workloads import Habits, op, text
from oncegate.proof.sim.gateway.world import GatewayWorld

TIMER_HELD_S = 1.0
RETRY_S = 0.2
"""How long a candidate waits for votes before it asks again."""
_PATIENT = Habits(window=64, lease_ms=600_000, patience_s=(3600.0,), copies_share=0.0)


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
    rests_s = None
    """Seconds until the next attempt, if they are not drawn."""

    def nodes(self):
        return [self.at]

    def pause_s(self):
        return super().pause_s() if self.rests_s is None else self.rests_s


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
        """Begin to write; return what is under way."""
        assert self.idle
        self.idle = False
        work = op(OpKind.PUT, key, text(value))
        self.world.history.note(self.process, "invoke", "write", key, value)
        return self.session.request(work, lambda ended: self._ended("write", key, value, ended))

    def write_once(self, key, value, *, within_s):
        """Begin to write, and ask once only: a refusal that comes within the time says what became of the write."""
        self.session.rests_s = within_s
        self.write(key, value).deadline = self.world.now

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

    def settle(self):
        stage = GatewayStage(self)
        self.script.play(stage)
        stage.end()
        super().settle()


class GatewayStage(Stage):
    """What a script can do; each step happens at once, but for those that wait."""

    # -- nodes ------------------------------------------------------------------------------------------

    def begin(self, leader, *, clients=()):
        """Elect the first leader, declare the tables, and open a client's session for each node that is named."""
        self.elect(leader)
        self.until(lambda: self.world.began)
        actors = self.world.actors
        for at in clients:
            actors.append(Actor(self.world, at))
        self.until(lambda: all(actor.ready for actor in actors))
        # What a new cluster orders by itself must not come between the entries of a script.
        self.until(lambda: self.node(leader).gateway.machine.identity)
        self.same_logs()
        return actors

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
            self.until(lambda: node.leads and node.engine.leading.ready)

    # -- links ------------------------------------------------------------------------------------------

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

    # -- clients ----------------------------------------------------------------------------------------

    def read(self, key, at):
        """Read at a node, linearizable, and wait for the answer or the refusal; nothing is said of which it was."""
        reading = self.begin_read(key, at)
        self.until(lambda: reading)

    def begin_read(self, key, at):
        """Begin to read; return a list that is empty until the read has ended."""
        world, ended = self.world, []
        read(world, world.history.new_process(), world.workload.read_f, key, at, lambda ok, value: ended.append(ok))
        return ended

    # -- the end ----------------------------------------------------------------------------------------

    def end(self):
        """Everything works again, and goes by itself."""
        for pair in list(self.world.stalls):
            self.flow(*pair)
        super().end()
        self.world.holds_timers = False
