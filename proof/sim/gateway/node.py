"""A simulated process of the gateway: the real replica, node, proposer and reads, on a loop of simulated time.

What is not real: sockets, threads, the files of batches and RocksDB. The engine ticks as in
:mod:`oncegate.proof.sim.engine.engine_node`; all that is asynchronous above it is production code. Read next:
:mod:`oncegate.proof.sim.gateway.loop`, :mod:`oncegate.gateway.node.node`.
"""

from __future__ import annotations

import asyncio

from oncegate.consensus.messages import decode, encode
from oncegate.consensus.net.calls import Calls
from oncegate.consensus.replica.inbound import Inbound
from oncegate.consensus.replica.replica import Replica
from oncegate.consensus.replica.ticker import fail, resolve
from oncegate.flows.errors import NotFoundError
from oncegate.flows.segment import build
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.ordering import ClusterClock
from oncegate.gateway.node.change_history import ChangeHistory
from oncegate.gateway.node.commit_stall import CommitStall
from oncegate.gateway.node.consumer_watch import ConsumerWatch
from oncegate.gateway.node.event_clocks import EventClocks
from oncegate.gateway.node.levels import Founding
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.proposer import Leadership, Proposer
from oncegate.gateway.node.reads import Reads
from oncegate.gateway.node.row_turns import RowTurns
from oncegate.gateway.node.watching import WatchersMax, Watching
from oncegate.proof.sim.engine.engine_node import EngineNode
from oncegate.proof.sim.gateway.loop import SimLoop
from oncegate.proof.sim.gateway.state import GatewayState, ReplayedState

CALL_BYTES_MAX = 1 << 20


class SimTicker:
    """Stands where :class:`oncegate.consensus.replica.ticker.Ticker` stands: the simulated node ticks the engine."""

    def __init__(self, node):
        self._node = node

    def soon(self):
        self._node.wake(0.0001)

    def tick(self):
        self._node.wake(0.00005)


class SimReplica(Replica):
    """The replica without a directory, a transport and threads of its own."""

    def __init__(self, node, gateway):
        super().__init__(node.world.plan.config(node.name), gateway.state, on_call=gateway._serve_call)
        self._node = node
        self._loop = node.loop
        self._ticker = SimTicker(node)
        self._follower_reads._send = node._send
        self._read_points._wake = self._ticker.soon
        self._calls = Calls(node.send_call, gateway._serve_call, CALL_BYTES_MAX, gateway._serve_at_once)

    def begin(self, engine):
        """The engine is there: hear the network."""
        self._engine = engine
        self._inbound = Inbound(
            engine, self._calls, self._follower_reads, self._read_points, self._ticker, self._node._send
        )

    def propose(self, command):
        future = super().propose(command)
        self._node.world.answers.proposed(self._node.name, future)
        return future

    def ticked(self):
        """What :meth:`oncegate.consensus.replica.ticker.Ticker.tick` does behind a tick."""
        engine = self._engine
        if self._applied_waiters.next_index <= engine.applier.applied_index:
            self._applied_waiters.applied(engine.applier.applied_index)
        if self._follower_reads.waiting:
            self._follower_reads.ask(engine.leader_id)


class NodeClusterClock(ClusterClock):
    """Reads the simulated machine's monotonic clock, whatever reading comes in from the real one."""

    def __init__(self, node):
        super().__init__(silence_ms_max=2 * node.world.plan.settings["heartbeat_ms"])
        self._node = node

    def lead_from(self, applied_ms, monotonic_s):
        super().lead_from(applied_ms, self._node.clock.read())

    def stamp_ms(self, monotonic_s):
        return super().stamp_ms(self._node.clock.read())


class Batches:
    """Stands where the publisher and its files stand: what was sealed goes to who watches the flows."""

    overloaded = False

    def __init__(self, node):
        self._node = node

    def has(self, flow, number):
        return False

    def submit(self, batch):
        self._node.world.sealed(self._node.name, batch)

    def drop_through(self, flow, number):
        pass

    def get(self, flow, number):
        """The payload of a batch: a node that lacks it gets it from another."""
        if number < self._node.gateway.machine.flows.get(flow).batches.first:
            raise NotFoundError("dropped")
        batch = self._node.world.batches[flow, number]
        return build(batch.chunks, flow, batch.table, number)


class SimReads(Reads):
    """Looks into batches after a while, as threads do."""

    def __init__(self, node, gateway):
        super().__init__(gateway.replica, gateway.machine, gateway.publisher, None, node.world.stored)
        self._rng = node.world.stream(f"{node.name} reads")

    async def _anyhow(self, flow, number, look):
        await asyncio.sleep(0.005 * self._rng.random())
        return look()


class Unexplained:
    """Nobody asks for explanations here."""

    @property
    def verdicts(self):
        return self

    def applied(self, index, commit, results):
        pass


class SimGateway(Node):
    """The real node; only its parts are made otherwise."""

    def __init__(self, node):
        self._sim = node
        self._loop = node.loop
        plan = node.world.plan
        self.state = ReplayedState(node) if plan.save_every is None else GatewayState(node)
        self.machine = self.state.machine
        self.clock = NodeClusterClock(node)
        self.leadership = Leadership(node_id=node.name)
        self.store = self.publisher = Batches(node)
        self.watching = Watching(ChangeHistory(1_000, 2**20, self.machine.commit), WatchersMax(0, 0))
        self.row_turns = RowTurns(self.machine)
        self.explainer = Unexplained()
        self.live_check = None
        self.replica = SimReplica(node, self)
        self.founding = Founding(self.replica, self.machine, self._others, self._propose_level)
        self.proposer = Proposer(self.replica, self.machine, self.clock, self.leadership, self.founding.is_under_way)
        self.stall = CommitStall()
        self.reads = SimReads(node, self)
        self.consumers = ConsumerWatch(self.machine, self._now_ms)
        self.event_clocks = EventClocks(self.machine, self.publisher, self._propose_quietly)
        self._timer = None
        self._stopping = False
        self._housework = {}

    def _new_identity(self):
        return f"{self._sim.world.stream(f'{self._sim.name} identity').getrandbits(128):032x}"

    def work(self):
        """Write what was frozen for a save."""
        self.state.work()

    def _installed(self):
        self.reads.replaced()


class GatewayNode(EngineNode):
    """A member of the simulated cluster that serves clients."""

    gateway_type = SimGateway

    def __init__(self, world, name, rng):
        super().__init__(world, name, rng)
        self.loop = self.gateway = None

    # -- life -------------------------------------------------------------------------------------------

    def boot(self):
        self.loop = SimLoop(self)
        with self.loop:
            super().boot()
            if self.engine is not None:
                self.gateway.replica.begin(self.engine)
                self.gateway._housekeep()

    def new_machine(self):
        self.gateway = self.gateway_type(self)
        return self.gateway.state

    def forget(self):
        if self.loop is not None:
            self.loop.kill()
        self.loop = self.gateway = None
        super().forget()

    def run_tick(self):
        with self.loop:
            due = super().run_tick()
            self.gateway.replica.ticked()
            return due

    def _role(self, change):
        super()._role(change)
        if self.gateway is not None and self.gateway.replica._engine is not None:
            self.gateway.replica._role_changed(change)
            self.gateway._role(change)

    def _result(self, token, result):
        if not isinstance(token, asyncio.Future):
            super()._result(token, result)
            return
        # A read's token was never announced as a proposal, and ends in an index.
        if type(result) is not int:
            self.world.answers.answered(self.name, token)
            self.world.acknowledged_until(self.engine.applier.applied_index)
        resolve(token, result)

    def _failure(self, token, error):
        if not isinstance(token, asyncio.Future):
            super()._failure(token, error)
            return
        if token in self.world.answers.open.get(self.name, ()):
            self.world.answers.answered(self.name, token)
        fail(token, error)

    # -- network ----------------------------------------------------------------------------------------

    def _connected(self, peer, epoch):
        with self.loop:
            self.gateway.replica._inbound.peer_up(peer, epoch)

    def _disconnected(self, peer):
        with self.loop:
            self.gateway.replica._inbound.peer_down(peer)

    def _received(self, peer, epoch, body):
        with self.loop:
            self.gateway.replica._inbound.peer_said(peer, epoch, [decode(body)])

    def send_call(self, peer, message):
        """A call to another node, if there is a connection."""
        if self.engine is None or peer not in self.engine.peers.epochs:
            return False
        self.world.network.send(self.name, peer, encode(message))
        return True

    # -- clients ----------------------------------------------------------------------------------------

    def serve(self, command, reply):
        """A client's command; ``reply`` gets an Answer or an OncegateError, unless the process ends before."""
        with self.loop:
            try:
                future = self.gateway.submit(command, len(c.encode_commands([command])))
            except Exception as refusal:  # noqa: BLE001 - as the server answers them
                reply(refusal)
                return
        future.add_done_callback(lambda done: reply(done.exception() or done.result()))

    def serve_read(self, table, key, reply):
        """A client's linearizable read of a row; ``reply`` gets a StoredRow or an OncegateError."""
        with self.loop:
            task = self.loop.create_task(self._row(table, key))
        task.add_done_callback(lambda done: reply(done.exception() or done.result()))

    async def _row(self, table, key):
        await self.gateway.reads.reach("linearizable", 0)
        return await self.gateway.reads.row(table, key)
