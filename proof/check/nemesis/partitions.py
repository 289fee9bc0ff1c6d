"""Cuts between the nodes; clients reach all of them. Bytes are held back and come late, or are lost."""

from __future__ import annotations

import abc
import itertools

from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.links import Ends, How
from oncegate.proof.check.nemesis.fault import (
    LEADER,
    Fault,
    FaultChoice,
    PlanView,
    Random,
    fault,
    in_any_order,
    with_leader,
)


class _Partition(Fault):
    group = "partitions"
    excludes = "cuts"
    seconds = (0.5, 4.0)

    @property
    def how(self) -> How:
        """Whether bytes are held or lost."""
        return "lose" if self.argument("how") == "lose" else "hold"

    @abc.abstractmethod
    def ways(self, nodes: list[str]) -> list[Ends]:
        """The directions that are cut."""

    def inject(self, cluster: CheckCluster) -> str:
        ways = self.ways(cluster.links.names)
        cluster.links.cut(ways, how=self.how)
        return f"bytes are {'lost' if self.how == 'lose' else 'held'}: " + " ".join(f"{a}->{b}" for a, b in ways)

    def heal(self, cluster: CheckCluster) -> str | None:
        cluster.links.join()
        return None


def _how(random: Random) -> dict[str, str]:
    return {"how": random.choice(["hold", "lose"])}


@fault
class PartitionHalves(_Partition):
    """A minority and the rest do not hear each other."""

    name = "partition_halves"

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """Any minority."""
        return FaultChoice(tuple(random.sample(view.nodes, view.minority)), _how(random)) if view.minority else None

    def ways(self, nodes: list[str]) -> list[Ends]:
        return [(a, b) for a, b in itertools.permutations(nodes, 2) if (a in self.targets) != (b in self.targets)]


@fault
class PartitionLeader(PartitionHalves):
    """The leader is alone, and its clients do not know it yet."""

    name = "partition_leader"
    weight = 2.0
    seconds = (1.5, 4.0)

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """Who leads then."""
        return FaultChoice((LEADER,), _how(random))


@fault
class PartitionOneWay(_Partition):
    """A node hears and is not heard, or is heard and does not hear."""

    name = "partition_one_way"

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """The leader or any node, deaf or mute."""
        chosen = with_leader(random, view.nodes)
        return FaultChoice(chosen.targets, {**_how(random), "deaf": random.random() < 0.5})

    def ways(self, nodes: list[str]) -> list[Ends]:
        ways = itertools.permutations(nodes, 2)
        return [(a, b) for a, b in ways if (b if self.argument("deaf") else a) in self.targets]


class _Shape(_Partition):
    """Who reaches whom depends on the order of the targets."""

    nodes_min = 3

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """The nodes in any order."""
        return FaultChoice(in_any_order(random, view), _how(random)) if len(view.nodes) >= cls.nodes_min else None


@fault
class PartitionRing(_Shape):
    """Each node is heard only by the next one in a ring: nobody can be answered by whom it spoke to."""

    name = "partition_ring"
    weight = 0.5

    def ways(self, nodes: list[str]) -> list[Ends]:
        ring = self.targets
        heard = {(ring[i], ring[(i + 1) % len(ring)]) for i in range(len(ring))}
        return [ends for ends in itertools.permutations(ring, 2) if ends not in heard]


@fault
class PartitionMajorityRing(_Shape):
    """Each node reaches a majority, no two the same one; of three nodes, two do not reach each other."""

    name = "partition_majority_ring"

    def ways(self, nodes: list[str]) -> list[Ends]:
        ring = self.targets
        count = len(ring)
        if count == 3:
            return [(ring[0], ring[1]), (ring[1], ring[0])]
        reach = (count // 2 + 1) // 2

        def apart(a: int, b: int) -> int:
            return min((a - b) % count, (b - a) % count)

        return [(ring[a], ring[b]) for a, b in itertools.permutations(range(count), 2) if apart(a, b) > reach]


class Topology(_Shape):
    """Links between some pairs of nodes, both ways."""

    # Three nodes of which two do not reach each other are a majority ring.
    nodes_min = 4

    @abc.abstractmethod
    def linked(self, a: int, b: int) -> bool:
        """Whether the targets at these places, ``a`` before ``b``, reach each other."""

    def ways(self, nodes: list[str]) -> list[Ends]:
        places = {node: place for place, node in enumerate(self.targets)}
        ways = itertools.permutations(self.targets, 2)
        return [(a, b) for a, b in ways if not self.linked(*sorted((places[a], places[b])))]


@fault
class PartitionStar(Topology):
    """One node reaches all; the others reach only it: nobody else can win an election, and all ask for votes."""

    name = "partition_star"

    def linked(self, a: int, b: int) -> bool:
        return a == 0


@fault
class PartitionBridge(Topology):
    """Two halves do not reach each other, but both reach one node between them."""

    name = "partition_bridge"

    def linked(self, a: int, b: int) -> bool:
        return a == 0 or (a <= len(self.targets) // 2) == (b <= len(self.targets) // 2)


@fault
class PartitionChain(Topology):
    """Each node reaches the one before it and the one behind it."""

    name = "partition_chain"

    def linked(self, a: int, b: int) -> bool:
        return b - a == 1
