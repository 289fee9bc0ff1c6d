"""For each defect of the library as published: the workload and the faults in which it breaks a promise.

A family is narrow: with the one repair in front of the library the same seeds pass (test_stock.py). Why each breaks:

B1: an append removes what is behind it before it adds. After an acknowledgement the leader sends again from there, in
    pieces of ``appendEntriesBatchSizeBytes``; a crash between two pieces loses what had been acknowledged.
B2: a leader that compacted its log sends a snapshot to a node that comes back with entries nobody else has; the first
    chunk moves that node's commit index over them.
B3: an acknowledgement that a slow link held back is counted by its receiver's next term as a leader.
B4: a message of a connection that was replaced removes the end of the log, as in B1, and is not put right before the
    leader is gone.
R1: a leader that is cut off answers reads until it steps down, 30 s later.
D1: nothing is flushed, so that a power loss forgets what was acknowledged, and votes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oncegate.proof.sim.engine.checkers import CommitDurability, FlushedIsKept, all_checkers
from oncegate.proof.sim.engine.plan import Plan, make_plan
from oncegate.proof.sim.engine.run import Outcome, run_plan
from oncegate.proof.sim.engine.stock_node import stock
from oncegate.proof.sim.engine.world import LIVENESS_S


@dataclass(frozen=True)
class Family:
    """One defect's workload and faults."""

    defect: str
    kinds: Mapping[str, int]
    nodes: int = 3
    conf: Mapping[str, object] = field(default_factory=dict)
    fixed: Mapping[str, object] = field(default_factory=dict)
    without: tuple[type, ...] = ()
    """Checkers that ask for what the library does not know, such as a flush."""
    seconds: float = 12.0

    def plan(self, seed: int) -> Plan:
        """What a seed means in this family."""
        fixed = {
            "late_s": 0.0,
            "flush_s": 0.0,
            "latency_s": 0.002,
            "read_share": 0.0,
            "sizes": (0,),
            "settles": False,
            "closes_replaced": True,
            **self.fixed,
        }
        return make_plan(seed, nodes=self.nodes, kinds=self.kinds, seconds=self.seconds, **fixed)

    def run(self, seed: int, *repairs: str) -> Outcome:
        """One seed, with some repairs in front of the library."""
        checkers = [
            c for c in all_checkers(self.plan(seed).names, liveness_s=LIVENESS_S) if type(c) not in self.without
        ]
        return run_plan(self.plan(seed), node_type=stock(*repairs, **self.conf), checkers=checkers)


FAMILIES = {
    family.defect: family
    for family in (
        Family(
            "B1",
            {"script: leader dies": 1},
            conf={"appendEntriesBatchSizeBytes": 400},
            fixed={"burst": 40, "clients": 2, "think_s": 0.4, "latency_s": 0.06},
        ),
        Family(
            "B2",
            {"script: leader alone": 1},
            conf={"logCompactionBatchSize": 64},
            fixed={"burst": 1, "clients": 2, "gap_s": 6.0},
            seconds=16.0,
        ),
        Family(
            "B3",
            {"script: acks held back": 1},
            nodes=5,
            fixed={"burst": 40, "clients": 2, "think_s": 0.3, "gap_s": 8.0},
            seconds=24.0,
        ),
        Family(
            "B4",
            {"script: reconnect": 1},
            conf={"appendEntriesPeriod": 0.02},
            fixed={
                "burst": 1,
                "clients": 3,
                "think_s": 0.01,
                "latency_s": 0.04,
                "late_s": 0.3,
                "closes_replaced": False,
                "gap_s": 5.0,
            },
        ),
        Family(
            "R1",
            {"script: leader cut off": 1},
            fixed={"burst": 1, "clients": 3, "think_s": 0.03, "read_share": 0.3, "gap_s": 5.0},
        ),
        Family(
            "D1",
            {"script: power loss": 1},
            fixed={"burst": 2, "clients": 2, "think_s": 0.03},
            without=(CommitDurability, FlushedIsKept),
        ),
    )
}
