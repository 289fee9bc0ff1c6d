"""A simulated cluster that a script drives: it says who reaches whom, who dies, and what it waits for.

Nodes, clients and checkers are those of the seeded runs. Read next: :mod:`oncegate.proof.sim.engine.run`,
:mod:`oncegate.proof.sim.gateway.stage`.
"""

from __future__ import annotations

from itertools import combinations, permutations
from pathlib import Path

from oncegate.proof.sim.engine.faults import LEADER
from oncegate.proof.sim.engine.plan import Plan

STEP_S = 0.001
WITHIN_S = 10.0
DEFAULT_TIMES = {
    "heartbeat_ms": 100,
    "election_ms_min": 600,
    "election_ms_max": 1200,
    "fast_election_ms_min": 20,
    "fast_election_ms_max": 80,
}


def calm(seed, *, nodes=3, save_every=None, read_share=0.3, sizes=(0, 0, 100, 450), **settings):
    """A plan without faults, with the default time-outs and small bounds: all that happens is the script's doing."""
    return Plan(
        seed=seed,
        names=tuple(f"n{number}" for number in range(1, nodes + 1)),
        settings={
            **DEFAULT_TIMES,
            "command_bytes_max": 512,
            "append_bytes_max": 300,
            "in_flight_bytes_max": 1500,
            "journal_segment_bytes": 1 << 15,
            "log_memory_bytes_max": 1 << 12,
            **settings,
        },
        seconds=0.0,
        clients=3,
        burst=3,
        think_s=0.03,
        latency_s=0.004,
        late_s=0.05,
        flush_s=0.0005,
        read_share=read_share,
        sizes=sizes,
        save_every=save_every,
    )


class StuckError(Exception):
    """What a script waits for does not come; the scenario has not taken place."""


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

    def acknowledged(self, count, within_s=60.0):
        """Wait until clients were told of so many more of their commands."""
        counts = self.world.counts
        target = counts["acknowledged"] + count
        self.until(lambda: counts["acknowledged"] >= target, within_s)

    # -- nodes ------------------------------------------------------------------------------------------

    def leader(self):
        """Wait for a leader that is ready, and return its node."""
        self.until(lambda: self.leads_now() is not None)
        return self.leads_now()

    def leads_now(self):
        """The node that leads the newest term and is ready, or None."""
        node = self.world.node(LEADER)
        return node if node is not None and node.engine.leading.ready else None

    def others(self, *names):
        """All names but these."""
        return [name for name in self.world.nodes if name not in names]

    def same_logs(self):
        """Wait until all that live have one log, all of it committed."""

        def same():
            nodes = [node for node in self.world.nodes.values() if node.alive]
            return len({(node.engine.log.last_index, node.engine.raft.commit_index()) for node in nodes}) == 1

        self.until(same)

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

    def connect_all(self):
        """Everybody reaches everybody again."""
        self.connect(self.world.nodes)

    def _settled(self, a, b):
        """Whether both ends know what has become of their link."""
        ends = [(self.node(a), b), (self.node(b), a)]
        if not all(node.alive for node, _ in ends):
            return True
        up = [peer in node.engine.peers.epochs for node, peer in ends]
        if (a, b) in self._blocked:
            return not any(up)
        return all(up) or not (self.node(a).accepts(b) and self.node(b).accepts(a))

    def linked(self, a, b):
        """Wait until two nodes that reach each other are connected."""
        self.until(lambda: b in self.engine(a).peers.epochs and a in self.engine(b).peers.epochs)

    def parted(self, gone, *others):
        """Wait until others know that their connection to a node that has ended is closed."""
        self.until(lambda: all(gone not in self.engine(other).peers.epochs for other in others))

    # -- administrators ---------------------------------------------------------------------------------

    def add_member(self, name, at):
        """Ask a leader to add a machine of the plan's joiners, which is started."""
        self.start(name)
        self.node(at).add_member(name)

    def remove_member(self, name, at):
        """Ask a leader to remove a member."""
        self.node(at).remove_member(name)

    # -- the end ----------------------------------------------------------------------------------------

    def end(self):
        """Every link works again, and everybody runs."""
        self._step("ends")
        world = self.world
        world.network.unblock(self._blocked)
        self._blocked = []
        for node in world.nodes.values():
            if node.life:
                node.start()

    def _step(self, *what):
        self.world.note("step", *what)
        self.world.counts["steps of scripts"] += 1
