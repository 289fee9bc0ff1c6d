"""What is on the disk is not what was written: a power loss, a torn tail, a flipped bit.

The first two lose only what nobody was promised, so they may befall all nodes at once. A flipped bit is another matter:
the node has to refuse to start and name the file, or to serve the truth; one that refuses is replaced as an operator
does it (docs/operations.md), by way of its removal.
"""

from __future__ import annotations

import contextlib
import random as random_module
from typing import Final

from oncegate.consensus.log.segment import SEGMENT_SUFFIX
from oncegate.gateway.local.waiting import wait_for
from oncegate.proof.check import damage, membership
from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.equipment import Equipment
from oncegate.proof.check.nemesis.fault import Down, Fault, FaultChoice, PlanView, Random, fault, one_of
from oncegate.proof.check.nemesis.members import RECOVERY_S

VERDICT_S: Final = 20.0
UNFLUSHED_S: Final = 2.0
_JOURNAL: Final = f"*{SEGMENT_SUFFIX}"
_FLIPS: Final = tuple(
    case.name
    for case in damage.ALL
    if case.verdict == "refuses" and "bit of" in case.name and not case.name.startswith("spare")
)
_OTHERWISE: Final = "ballot: bit of the payload"
"""When the journal has too few records for the flip that was planned."""
_BY_NAME: Final = {case.name: case for case in damage.ALL}


@fault
class PowerLoss(Down):
    """The power goes while flushes are slow: what was not flushed, in whatever file, is there or not, names too."""

    name = "power_loss"
    group = "power"
    needs = frozenset({Equipment.FLUSHES})
    excludes = "flushes"
    seconds = (0.3, 2.0)

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """One node, or all at once."""
        nodes = view.nodes if random.random() < 0.6 else (random.choice(view.nodes),)
        return FaultChoice(nodes, {"kept": random.choice([0.0, 0.5]), "seed": random.randrange(2**32)})

    def inject(self, cluster: CheckCluster) -> str:
        flushes = {node_id: cluster.flushes[node_id] for node_id in self.targets}
        for control in flushes.values():
            control.slow(0.5)
        # Without load nothing is unflushed, and nothing can be lost.
        with contextlib.suppress(TimeoutError):
            wait_for(lambda: any(one.unflushed_bytes(_JOURNAL) for one in flushes.values()), UNFLUSHED_S, "a write")
        rng = random_module.Random(self.argument("seed"))
        with cluster.lock:
            cluster.kill(*self.targets)
            lost = {}
            for node_id, control in flushes.items():
                lost[node_id] = control.lose(rng, kept=float(self.argument("kept")))
                control.slow(0)
        return "bytes lost: " + ", ".join(f"{node_id} {count}" for node_id, count in lost.items())


@fault
class TornTail(Down):
    """The last batch of the journal was cut by the power before its flush: a sector in its middle is there."""

    name = "torn_tail"
    group = "power"
    seconds = (0.3, 2.0)

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """One node, or all at once."""
        return FaultChoice(view.nodes) if random.random() < 0.3 else one_of(random, view.nodes)

    def inject(self, cluster: CheckCluster) -> str:
        torn = []
        with cluster.lock:
            cluster.kill(*self.targets)
            for node_id in self.targets:
                with contextlib.suppress(LookupError, OSError):
                    torn.append(f"{node_id} {_BY_NAME['tail: torn batch'].inflict(cluster.data(node_id) / 'raft')}")
        return "torn: " + ", ".join(torn)


@fault
class FlippedBit(Fault):
    """A bit of a file changes while the node is down: the node refuses by name, or serves the truth."""

    name = "flipped_bit"
    group = "damage"
    excludes = "members"
    persistent = True
    recovery_s = RECOVERY_S
    seconds = (1.0, 4.0)

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """Any file whose bits count."""
        chosen = one_of(random, view.damageable)
        return None if chosen is None else FaultChoice(chosen.targets, {"damage": random.choice(_FLIPS)})

    def inject(self, cluster: CheckCluster) -> str:
        (node_id,) = self.targets
        directory = cluster.data(node_id) / "raft"
        with cluster.lock:
            cluster.kill(node_id)
            name = str(self.argument("damage"))
            try:
                spoiled = _BY_NAME[name].inflict(directory)
            except LookupError:
                name = _OTHERWISE
                spoiled = _BY_NAME[name].inflict(directory)
            cluster.damaged[node_id] = spoiled if isinstance(spoiled, str) else spoiled[0]
            cluster.start(node_id)
        return f"{name}, in {cluster.damaged[node_id]}"

    def heal(self, cluster: CheckCluster) -> str | None:
        (node_id,) = self.targets
        return membership.settle_damage(cluster, node_id, VERDICT_S)
