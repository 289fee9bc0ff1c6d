"""Disks without room, and disks that take their time."""

from __future__ import annotations

from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.equipment import Equipment
from oncegate.proof.check.nemesis.fault import Fault, FaultChoice, PlanView, Random, fault, one_or_all


@fault
class FullDisk(Fault):
    """Somebody else takes every byte that is left on a node's file system, or on all of them."""

    name = "full_disk"
    group = "disks"
    needs = frozenset({Equipment.DISK})
    excludes = "room"
    seconds = (1.0, 4.0)

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """One node, the leader, or all."""
        return one_or_all(random, view)

    def inject(self, cluster: CheckCluster) -> str:
        cluster.filled.update(self.targets)
        for node_id in self.targets:
            cluster.disks[node_id].fill()
        left = sum(cluster.disks[node_id].free_bytes for node_id in self.targets)
        return f"full: {left} bytes are left"

    def heal(self, cluster: CheckCluster) -> str | None:
        for node_id in self.targets:
            cluster.disks[node_id].give_back()
        return None


@fault
class SlowDisk(Fault):
    """Each flush takes longer, on one node or on all."""

    name = "slow_disk"
    group = "disks"
    needs = frozenset({Equipment.FLUSHES})
    excludes = "flushes"
    seconds = (0.5, 4.0)

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """From a millisecond to most of an election time-out."""
        chosen = one_or_all(random, view)
        return FaultChoice(chosen.targets, {"delay_s": round(10 ** random.uniform(-3, -0.3), 4)})

    def inject(self, cluster: CheckCluster) -> str:
        for node_id in self.targets:
            cluster.flushes[node_id].slow(float(self.argument("delay_s")))
        return f"each flush takes {self.argument('delay_s'):g} s longer"

    def heal(self, cluster: CheckCluster) -> str | None:
        for node_id in self.targets:
            cluster.flushes[node_id].slow(0)
        return None
