"""Scripts: classic scenarios of Raft that no seed reaches, each a function of a stage.

A new one is a function with :func:`script` on it, and, if it is to show a planted bug, named by that bug in
``oncegate/proof/mutants/bugs.toml``. Steps that happen with the bug only are given time (``wait``), all others are
waited for (``until``): so a script that does not reach its scenario fails. Read next:
:mod:`oncegate.proof.sim.gateway.stage`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from oncegate.consensus.messages import Ack, Append, PreVoteReply
from oncegate.proof.sim.gateway.run import COMMAND_BYTES_MAX, SAVES, GatewayPlan, run_plan
from oncegate.proof.sim.gateway.stage import ScriptedNode, ScriptedWorld

SETTINGS = {
    "heartbeat_ms": 50,
    "election_ms_min": 400,
    # A leader that is cut off goes on for so long.
    "election_ms_max": 5000,
    "command_bytes_max": COMMAND_BYTES_MAX,
    # One entry in each append.
    "append_bytes_max": 1,
    "log_memory_bytes_max": 1 << 20,
    "journal_segment_bytes": 65_536,
}

SCRIPTS = {}


@dataclass(frozen=True)
class Script:
    """One scenario.

    Attributes:
        name: unique.
        play: does it, on a :class:`oncegate.proof.sim.gateway.stage.GatewayStage`.
        nodes: members at the beginning, n1 and so on.
        joiners: machines that are no members at first.
        settings: of the nodes, other than those above.
        save_every: as in a plan.
    """

    name: str
    play: Callable
    nodes: int = 3
    joiners: tuple = ()
    settings: dict = field(default_factory=dict)
    save_every: int | None = None

    workload = "register"

    def plan(self, seed=0):
        """The plan of a run; delays, clocks and torn writes are drawn from the seed, steps are not."""
        return GatewayPlan(
            seed=seed,
            names=tuple(f"n{number}" for number in range(1, self.nodes + 1)),
            joiners=self.joiners,
            settings=SETTINGS | self.settings,
            save_every=self.save_every,
            workload=self.workload,
            seconds=0.0,
            clients=0,
            burst=1,
            think_s=0.01,
            latency_s=0.001,
            late_s=0.0,
            flush_s=0.0005,
        )

    def run(self, seed=0, *, node_type=ScriptedNode, **options):
        """Run it to the verdict."""

        def world_type(plan, **parts):
            return ScriptedWorld(plan, script=self, **parts)

        return run_plan(self.plan(seed), node_type=node_type, world_type=world_type, **options)


def script(name, **options):
    """Enter a scenario."""

    def enter(play):
        SCRIPTS[name] = Script(name, play, **options)
        return play

    return enter


def _is(kind):
    return lambda message: type(message) is kind


@script("figure 8", nodes=5)
def figure_8(stage):
    """Raft figure 8: an entry of the first term reaches a majority in the third one, and is replaced in the fourth.

    A client is not deceived by itself: a leader answers nobody before it has committed an entry of its own term.
    """
    (client,) = stage.begin("n1", clients=["n1"])
    stage.connect(("n1", "n2"), ("n3", "n4", "n5"))
    client.write("k0", 1)
    index = stage.engine("n1").log.last_index + 1
    stage.until(lambda: stage.engine("n2").log.flushed_index >= index)
    stage.crash("n1")
    # Another leader has its own entry there, which it gives to nobody.
    for other in ("n3", "n4"):
        stage.stall("n5", other, _is(Append))
    stage.elect("n5", ready=False)
    stage.until(lambda: stage.engine("n5").log.flushed_index >= index)
    stage.crash("n5")
    # What comes of a connection that is known to be closed is nothing; before that it would be taken.
    stage.parted("n5", "n3", "n4")
    stage.flow("n5", "n3")
    stage.flow("n5", "n4")
    # The first one is back. The old entry reaches n3, which is a majority; no entry of the new term follows.
    stage.connect(("n1", "n2", "n3"), ("n4",), ("n5",))
    stage.start("n1")
    stage.linked("n1", "n2")
    stage.linked("n1", "n3")
    stage.stall(
        "n1", "n3", lambda message: type(message) is Append and _fits_behind(stage.engine("n3"), message, index)
    )
    stage.elect("n1", ready=False)
    stage.until(lambda: stage.engine("n3").log.flushed_index >= index and stage.stalled("n1", "n3"))
    stage.wait(0.2)
    stage.crash("n1")
    stage.connect(("n3", "n4", "n5"), ("n2",), ("n1",))
    stage.start("n5")
    stage.elect("n5")


def _fits_behind(engine, append, index):
    """Whether an append brings an entry that the node would take behind ``index``."""
    return bool(append.entries) and append.prev_index == index <= engine.log.last_index


@script("two votes in a term", nodes=5)
def two_votes_in_a_term(stage):
    """n3 votes for n2, starts again, and is asked by n1 for its vote in the same term."""
    one, two = stage.begin("n5", clients=["n1", "n2"])
    stage.restart("n5")
    stage.connect(("n1", "n3", "n4"), ("n2", "n3", "n5"))
    # n1 is about to begin the next term: one pre-vote is missing, and it hears nothing of n2's election.
    stage.stall("n4", "n1", _is(PreVoteReply))
    term = stage.engine("n1").raft.term()
    stage.times_out("n1")
    stage.until(lambda: stage.stalled("n4", "n1") and stage.engine("n1")._election._granted == {"n3"})
    stage.stall("n2", "n3", _is(Append))
    stage.elect("n2", ready=False)
    stage.restart("n3")
    stage.linked("n1", "n3")
    assert stage.engine("n3").raft.term() == stage.engine("n2").raft.term() == term + 1
    assert stage.engine("n1").raft.term() == term
    stage.flow("n4", "n1")
    stage.until(lambda: stage.engine("n1").raft.term() == term + 1)
    stage.wait(0.2)
    # If both lead, each gets an entry of the same index and term acknowledged.
    one.write("k0", 1)
    stage.wait(0.5)
    stage.connect(("n2", "n3", "n5"), ("n1",), ("n4",))
    stage.flow("n2", "n3")
    two.write("k1", 2)
    stage.until(lambda: two.idle)
    stage.read("k0", "n2")


@script("read before the first commit")
def read_before_the_first_commit(stage):
    """A new leader is asked for a value that was acknowledged by the one before, which it has not committed yet."""
    (client,) = stage.begin("n1", clients=["n1"])
    index = stage.engine("n1").log.last_index + 1
    stage.stall("n1", "n3", lambda message: type(message) is Append and bool(message.entries))
    stage.stall("n1", "n2", lambda message: type(message) is Append and message.commit >= index)
    client.write("k0", 1)
    stage.until(lambda: client.idle)
    stage.crash("n1")
    stage.stall("n2", "n3", _is(Append))
    stage.elect("n2", ready=False)
    assert stage.engine("n2").raft.commit_index() < index <= stage.engine("n2").log.last_index
    reading = stage.begin_read("k0", "n2")
    # n3 confirms that n2 leads; that it has n2's entries comes later.
    stage.stall("n3", "n2", _is(Ack))
    stage.wait(0.1)
    stage.flow("n2", "n3")
    stage.until(lambda: reading)


@script("two majorities", nodes=4, joiners=("n5",))
def two_majorities(stage):
    """A leader's addition of n5 is not committed when the next leader removes n1: 1, 4, 5 of five, and 2, 3 of three.

    The flaw of single-server changes as first published, and its repair: a leader changes nothing before it has
    committed an entry of its own term (Raft thesis §4.1, and Ongaro's correction of 2015).
    """
    one, two = stage.begin("n1", clients=["n1", "n2"])
    stage.add_member("n5", "n1")
    stage.until(lambda: "n5" in stage.engine("n1").membership.learners)
    stage.linked("n1", "n5")
    stage.same_logs()
    stage.connect(("n1", "n5"), ("n2", "n3", "n4"))
    stage.until(lambda: stage.engine("n5") is not None and "n5" in stage.engine("n5").membership.voters)
    stage.stall("n2", "n4", _is(Append))
    stage.elect("n2", ready=False)
    stage.until(lambda: stage.engine("n3").log.last_term == stage.engine("n2").raft.term())
    stage.remove_member("n1", "n2")
    two.write("k0", 1)
    stage.wait(0.5)
    stage.connect(("n1", "n4", "n5"), ("n2", "n3"))
    stage.elect("n1")
    assert "n5" in stage.engine("n1").membership.voters
    stage.read("k0", "n1")
    one.write("k1", 2)
    stage.until(lambda: one.idle)


_SHORT_LOG = SAVES | {"save_log_bytes_max": 2000, "command_bytes_max": 4096, "journal_segment_bytes": 16_384}


@script("snapshot over other entries", settings=_SHORT_LOG, save_every=1)
def snapshot_over_other_entries(stage):
    """A leader that was cut off comes back with a log that no majority has, and gets a state that ends inside it."""
    *cut_off, two = stage.begin("n1", clients=["n1"] * 20 + ["n2"])
    stage.connect(("n1",), ("n2", "n3"))
    # Small commands would wait for the first entry, which never comes to its end; these do not, and share no entry.
    for value, client in enumerate(cut_off):
        client.write("k0", [10 + value] * 1000)
    stage.elect("n2")
    first = stage.engine("n2").log.last_index
    for value in range(15):
        two.write("k1", [10 + value] * 1000)
        stage.until(lambda: two.idle)
    stage.until(lambda: stage.engine("n2").log.base.index > first)
    stage.wait(1.0)
    assert stage.engine("n1").log.last_index > stage.engine("n2").log.base.index
    assert stage.engine("n1").log.last_term < stage.engine("n2").raft.term()
    before = stage.world.counts["snapshots installed"]
    stage.connect(("n1", "n2", "n3"))
    stage.until(lambda: stage.world.counts["snapshots installed"] > before)
    stage.wait(0.3)
    stage.read("k1", "n1")


@script("answer to a process that is gone", nodes=5)
def answer_to_a_process_that_is_gone(stage):
    """n2 asks the leader for one client, starts again, and asks for another one; then the first answer comes."""
    one, two = stage.begin("n1", clients=["n2", "n2"])
    # Each process of n2 asks once.
    stage.restart("n2")
    stage.linked("n1", "n2")
    index = stage.engine("n1").log.last_index + 1
    others = ("n3", "n4", "n5")
    for other in others:
        stage.stall(other, "n1", _is(Ack))
    one.write("k0", 1)
    stage.until(lambda: all(stage.engine(other).log.flushed_index >= index for other in others))
    one.die()
    stage.restart("n2")
    stage.linked("n1", "n2")
    # What the second one asks for gets no further than n2.
    for other in others:
        stage.stall("n1", other, lambda message: type(message) is Append and message.prev_index >= index)
    proposer = stage.node("n1").gateway.proposer
    before = proposer.inflight_commands
    two.write("k1", 2)
    # It shares the next entry, which leaves when the one under way has come to its end: with the answer to the first.
    stage.until(lambda: proposer.inflight_commands > before)
    stage.flow("n3", "n1")
    stage.flow("n4", "n1")
    stage.until(lambda: stage.engine("n1").applier.applied_index >= index)
    stage.until(lambda: stage.engine("n1").log.last_index > index)
    stage.wait(0.1)
    stage.crash("n1")
    stage.connect(others, ("n2",), ("n1",))
    stage.elect("n3")


@script("deposed with a write under way")
def deposed_with_a_write_under_way(stage):
    """A leader is deposed before it hears that a write is everywhere; its client asks once, and the write stands."""
    (client,) = stage.begin("n1", clients=["n1"])
    index = stage.engine("n1").log.last_index + 1
    others = ("n2", "n3")
    for other in others:
        stage.stall(other, "n1", _is(Ack))
    client.write_once("k0", 1, within_s=2.0)
    stage.until(lambda: all(stage.engine(other).log.flushed_index >= index for other in others))
    # What they have acknowledged never arrives, that another one leads does.
    stage.connect(others, ("n1",))
    stage.elect("n2")
    stage.connect(("n1", *others))
    for other in others:
        stage.flow(other, "n1")
    stage.until(lambda: client.idle)
    stage.read("k0", "n2")
