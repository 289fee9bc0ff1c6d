"""Faults of the network between the nodes; clients reach all nodes.

Partitions hold bytes back, which then come late, or lose them. Links are slow, thin or lossy, or break again and again.
A certificate that is over cuts its node off.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from oncegate.gateway.local.waiting import wait_for
from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.equipment import Equipment
from oncegate.proof.check.links import Ends, How
from oncegate.proof.check.nemesis.fault import (
    Fault,
    FaultChoice,
    Injection,
    PlanView,
    Random,
    a_minority,
    any_node,
    fault,
    leader_or_any,
    nobody,
    shuffled_of,
    the_leader,
)
from oncegate.proof.topologies import cut_for, topology

_LIFE_S: Final = 1.0
_TAKEN_S: Final = 4.0
_TAKEN: Final = "peers are proved with what"
"""A node says so when it has read its files again."""


Ways = Callable[[Injection, list[str]], list[Ends]]
"""Says which directions between the nodes are cut; a shape depends on the order of the targets."""


def _cut(ways: Ways) -> Callable[[Injection, CheckCluster], str]:
    def strike(one: Injection, cluster: CheckCluster) -> str:
        how: How = "lose" if one.argument("how") == "lose" else "hold"
        cut = ways(one, cluster.links.names)
        cluster.links.cut(cut, how=how)
        return f"bytes are {'lost' if how == 'lose' else 'held'}: " + " ".join(f"{a}->{b}" for a, b in cut)

    return strike


def _join(one: Injection, cluster: CheckCluster) -> None:
    cluster.links.join()


def _how(random: Random, view: PlanView) -> dict[str, Any]:
    return {"how": random.choice(["hold", "lose"])}


def _how_and_whether_deaf(random: Random, view: PlanView) -> dict[str, Any]:
    return {**_how(random, view), "deaf": random.random() < 0.5}


def apart(one: Injection, nodes: list[str]) -> list[Ends]:
    """The targets and the rest."""
    return [(a, b) for a, b in itertools.permutations(nodes, 2) if (a in one.targets) != (b in one.targets)]


def one_way(one: Injection, nodes: list[str]) -> list[Ends]:
    """What a target says, or hears if it is to be deaf."""
    return [ends for ends in itertools.permutations(nodes, 2) if ends[bool(one.argument("deaf"))] in one.targets]


def ring(one: Injection, nodes: list[str]) -> list[Ends]:
    """All but what each target says to the next one."""
    heard = set(itertools.pairwise((*one.targets, one.targets[0])))
    return [ends for ends in itertools.permutations(one.targets, 2) if ends not in heard]


def majority_ring(one: Injection, nodes: list[str]) -> list[Ends]:
    """What is too far apart in a ring for a majority around each target; of three, the first two."""
    targets, count = one.targets, len(one.targets)
    if count == 3:
        return [(targets[0], targets[1]), (targets[1], targets[0])]
    reach = (count // 2 + 1) // 2
    pairs = itertools.permutations(range(count), 2)
    return [(targets[a], targets[b]) for a, b in pairs if min((a - b) % count, (b - a) % count) > reach]


def shape(name: str) -> Ways:
    """All but the links of a topology."""
    return lambda one, nodes: cut_for(topology(name, one.targets), one.targets)


def _slow(one: Injection, cluster: CheckCluster) -> str:
    how: dict[str, Any] = one.action.arguments
    cluster.links.slow(**how, node=one.targets[0] if one.targets else None)
    return ", ".join(f"{name} {value:g}" for name, value in sorted(how.items()))


def _storm(one: Injection, cluster: CheckCluster) -> str:
    cluster.links.storm(every_s=float(one.argument("every_s")))
    return f"a connection is reset every {one.argument('every_s'):g} s"


def _calm(one: Injection, cluster: CheckCluster) -> None:
    cluster.links.calm()


def _all_links_or_those_of_one(random: Random, view: PlanView) -> tuple[str, ...]:
    return () if random.random() < 0.5 else any_node(random, view)


def _delays(random: Random, view: PlanView) -> FaultChoice:
    how = {"delay_s": round(random.uniform(0.001, 0.1), 4), "jitter_s": round(random.uniform(0, 0.1), 4)}
    return FaultChoice(_all_links_or_those_of_one(random, view), how)


def _let_one_end(one: Injection, cluster: CheckCluster) -> str:
    if cluster.certificates is None:
        return "left out: the nodes do not speak TLS"
    (late,) = one.targets
    certificates, taken = cluster.certificates, cluster.log(late).count(_TAKEN)
    for node_id in cluster.meant:
        certificates.issue(node_id, seconds=_LIFE_S if node_id == late else None)
    over = partial(certificates.is_over, late)
    with contextlib.suppress(TimeoutError):  # a node that another fault holds takes it later
        wait_for(lambda: over() and cluster.log(late).count(_TAKEN) > taken, _TAKEN_S, "the certificate is over")
    cluster.links.reset()  # a connection that is open stays: only the next one asks for the certificate
    return f"that of {late} is over"


def _issue(one: Injection, cluster: CheckCluster) -> None:
    if cluster.certificates is not None:
        cluster.certificates.issue(one.targets[0])


_partition = partial(Fault, group="partitions", heal=_join, how=_how, excludes="cuts", seconds=(0.5, 4.0))
# A minority and the rest do not hear each other.
fault(_partition("partition_halves", strike=_cut(apart), whom=a_minority))
# The leader is alone, and its clients do not know it yet.
fault(_partition("partition_leader", strike=_cut(apart), whom=the_leader, weight=2.0, seconds=(1.5, 4.0)))
# A node hears and is not heard, or is heard and does not hear.
fault(_partition("partition_one_way", strike=_cut(one_way), whom=leader_or_any, how=_how_and_whether_deaf))
# Each node is heard only by the next one in a ring: no node hears the one that it can reach.
fault(_partition("partition_ring", strike=_cut(ring), whom=shuffled_of(3), weight=0.5))
# Each node reaches a majority, no two the same one; of three nodes, two do not reach each other.
fault(_partition("partition_majority_ring", strike=_cut(majority_ring), whom=shuffled_of(3)))
# One node reaches all; the others reach only it: no other can win an election, and all ask for votes. Two halves do
# not reach each other, but both one node between them. Each node reaches its neighbours. Of three nodes all of these
# are a majority ring.
for _shape in ("star", "bridge", "chain"):
    fault(_partition(f"partition_{_shape}", strike=_cut(shape(_shape)), whom=shuffled_of(4)))

_speed = partial(
    Fault,
    group="links",
    strike=_slow,
    heal=_calm,
    whom=_all_links_or_those_of_one,
    excludes="speed",
    seconds=(0.5, 4.0),
)
# Each read is passed on later, by a delay and a jitter, in order: up to a third of an election time-out.
fault(_speed("slow_links", draw=_delays))
# One read in a hundred to one in five is lost; TCP cannot go on then, so the connection is reset.
fault(_speed("lossy_links", how=lambda random, view: {"loss": round(random.uniform(0.01, 0.2), 3)}))
# Somebody on the path changes, repeats or swaps one frame in a thousand to one in ten, with a right checksum.
fault(_speed("forged_links", weight=0.5, how=lambda random, view: {"forgery": round(random.uniform(0.001, 0.1), 4)}))
# No more than 64 KiB to 4 MiB a second pass.
fault(_speed("thin_links", how=lambda random, view: {"bytes_per_s": float(64 * 1024 * 2 ** random.randrange(7))}))
# One connection after the other is reset, at random moments: one each twentieth to half of a second.
fault(
    _speed(
        "reset_links",
        strike=_storm,
        whom=nobody,
        how=lambda random, view: {"every_s": round(random.uniform(0.05, 0.5), 3)},
    )
)
# All nodes get new certificates in time, and one of them too late: nobody talks with it until it has one.
fault(
    Fault(
        "expired_certificate",
        group="certificates",
        strike=_let_one_end,
        heal=_issue,
        whom=leader_or_any,
        needs=frozenset({Equipment.PEER_TLS}),
        excludes="certificates",
        seconds=(1.0, 4.0),
        recovery_s=2.0,
    )
)
