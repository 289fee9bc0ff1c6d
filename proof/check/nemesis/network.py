"""Faults of the network between the nodes; clients reach all nodes.

Partitions hold bytes back, which then come late, or lose them. Links are slow, thin or lossy, or break again and again.
A certificate that is over cuts its node off.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import itertools
from typing import Any, Final

from oncegate.gateway.local.waiting import wait_for
from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.equipment import Equipment
from oncegate.proof.check.links import Ends, How
from oncegate.proof.check.nemesis.fault import (
    Fault,
    FaultChoice,
    PlanView,
    Random,
    a_minority,
    any_node,
    fault,
    leader_or_any,
    shuffled,
    the_leader,
)

_LIFE_S: Final = 1.0
_TAKEN_S: Final = 4.0
_TAKEN: Final = "peers are proved with what"
"""A node says so when it has read its files again."""


class _Partition(Fault):
    group = "partitions"
    excludes = "cuts"
    seconds = (0.5, 4.0)

    @classmethod
    def how(cls, random: Random, view: PlanView) -> dict[str, Any]:
        return {"how": random.choice(["hold", "lose"])}

    @abc.abstractmethod
    def ways(self, nodes: list[str]) -> list[Ends]:
        """The directions that are cut."""

    def inject(self, cluster: CheckCluster) -> str:
        how: How = "lose" if self.argument("how") == "lose" else "hold"
        ways = self.ways(cluster.links.names)
        cluster.links.cut(ways, how=how)
        return f"bytes are {'lost' if how == 'lose' else 'held'}: " + " ".join(f"{a}->{b}" for a, b in ways)

    def heal(self, cluster: CheckCluster) -> str | None:
        cluster.links.join()
        return None


@fault
class PartitionHalves(_Partition):
    """A minority and the rest do not hear each other."""

    name = "partition_halves"
    whom = a_minority

    def ways(self, nodes: list[str]) -> list[Ends]:
        return [(a, b) for a, b in itertools.permutations(nodes, 2) if (a in self.targets) != (b in self.targets)]


@fault
class PartitionLeader(PartitionHalves):
    """The leader is alone, and its clients do not know it yet."""

    name = "partition_leader"
    whom = the_leader
    weight = 2.0
    seconds = (1.5, 4.0)


@fault
class PartitionOneWay(_Partition):
    """A node hears and is not heard, or is heard and does not hear."""

    name = "partition_one_way"
    whom = leader_or_any

    @classmethod
    def how(cls, random: Random, view: PlanView) -> dict[str, Any]:
        return {**super().how(random, view), "deaf": random.random() < 0.5}

    def ways(self, nodes: list[str]) -> list[Ends]:
        ways = itertools.permutations(nodes, 2)
        return [(a, b) for a, b in ways if (b if self.argument("deaf") else a) in self.targets]


class _Shape(_Partition):
    """Who reaches whom depends on the order of the targets."""

    whom = shuffled
    nodes_min = 3

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        return super().pick(random, view) if len(view.nodes) >= cls.nodes_min else None


@fault
class PartitionRing(_Shape):
    """Each node is heard only by the next one in a ring: no node hears the one that it can reach."""

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
    """One node reaches all; the others reach only it: no other can win an election, and all ask for votes."""

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


def _all_links_or_those_of_one(random: Random, view: PlanView) -> tuple[str, ...]:
    return () if random.random() < 0.5 else any_node(random, view)


class _Speed(Fault):
    group = "links"
    whom = _all_links_or_those_of_one
    excludes = "speed"
    seconds = (0.5, 4.0)

    def inject(self, cluster: CheckCluster) -> str:
        how: dict[str, Any] = self.action.arguments
        cluster.links.slow(**how, node=self.targets[0] if self.targets else None)
        return ", ".join(f"{name} {value:g}" for name, value in sorted(how.items()))

    def heal(self, cluster: CheckCluster) -> str | None:
        cluster.links.calm()
        return None


@fault
class SlowLinks(_Speed):
    """Each read is passed on later, by a delay and a jitter, in order: up to a third of an election time-out."""

    name = "slow_links"

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        how = {"delay_s": round(random.uniform(0.001, 0.1), 4), "jitter_s": round(random.uniform(0, 0.1), 4)}
        return FaultChoice(cls.whom(random, view) or (), how)


@fault
class LossyLinks(_Speed):
    """One read in a hundred to one in five is lost; TCP cannot go on then, so the connection is reset."""

    name = "lossy_links"

    @classmethod
    def how(cls, random: Random, view: PlanView) -> dict[str, Any]:
        return {"loss": round(random.uniform(0.01, 0.2), 3)}


@fault
class ForgedLinks(_Speed):
    """Somebody on the path changes, repeats or swaps one frame in a thousand to one in ten, with a right checksum."""

    name = "forged_links"
    weight = 0.5

    @classmethod
    def how(cls, random: Random, view: PlanView) -> dict[str, Any]:
        return {"forgery": round(random.uniform(0.001, 0.1), 4)}


@fault
class ThinLinks(_Speed):
    """No more than 64 KiB to 4 MiB a second pass."""

    name = "thin_links"

    @classmethod
    def how(cls, random: Random, view: PlanView) -> dict[str, Any]:
        return {"bytes_per_s": float(64 * 1024 * 2 ** random.randrange(7))}


@fault
class ResetLinks(_Speed):
    """One connection after the other is reset, at random moments: one each twentieth to half of a second."""

    name = "reset_links"

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        return FaultChoice((), {"every_s": round(random.uniform(0.05, 0.5), 3)})

    def inject(self, cluster: CheckCluster) -> str:
        cluster.links.storm(every_s=float(self.argument("every_s")))
        return f"a connection is reset every {self.argument('every_s'):g} s"


@fault
class ExpiredCertificate(Fault):
    """All nodes get new certificates in time, and one of them too late: nobody talks with it until it has one."""

    name = "expired_certificate"
    group = "certificates"
    whom = leader_or_any
    needs = frozenset({Equipment.PEER_TLS})
    excludes = "certificates"
    seconds = (1.0, 4.0)
    recovery_s = 2.0

    def inject(self, cluster: CheckCluster) -> str:
        if cluster.certificates is None:
            return "left out: the nodes do not speak TLS"
        (late,) = self.targets
        certificates, taken = cluster.certificates, cluster.log(late).count(_TAKEN)
        for node_id in cluster.meant:
            certificates.issue(node_id, seconds=_LIFE_S if node_id == late else None)
        over = functools.partial(certificates.is_over, late)
        with contextlib.suppress(TimeoutError):  # a node that another fault holds takes it later
            wait_for(lambda: over() and cluster.log(late).count(_TAKEN) > taken, _TAKEN_S, "the certificate is over")
        cluster.links.reset()  # a connection that is open stays: only the next one asks for the certificate
        return f"that of {late} is over"

    def heal(self, cluster: CheckCluster) -> str | None:
        if cluster.certificates is not None:
            cluster.certificates.issue(self.targets[0])
        return None
