"""Faults of processes: killed, frozen, stopped in order; nodes, and what runs beside them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable
from functools import partial
from typing import Final

from oncegate.gateway.local.blocking_http import RequestRefused, Unreachable, send_json
from oncegate.gateway.local.waiting import wait_for
from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.equipment import Equipment
from oncegate.proof.check.nemesis.fault import (
    Fault,
    Injection,
    PlanView,
    Random,
    Whom,
    a_minority,
    all_nodes,
    fault,
    leader_or_any,
    shuffled,
    start_again,
    the_leader,
)

READY_S: Final = 30.0
TRANSFER_S: Final = 12.0


def _kill(one: Injection, cluster: CheckCluster) -> str:
    cluster.kill(*one.targets)
    return "killed"


def _freeze(one: Injection, cluster: CheckCluster) -> str:
    cluster.freeze(*one.targets)
    return "stands still"


def _thaw(one: Injection, cluster: CheckCluster) -> None:
    cluster.thaw(*one.targets)


def _stop(one: Injection, cluster: CheckCluster) -> str:
    orderly = [cluster.stop(node_id) for node_id in one.targets]
    return "stopped in order" if all(orderly) else "had to be killed"


def _restart(one: Injection, cluster: CheckCluster) -> str:
    return f"restarted one after the other{_restarted(cluster, one.targets, earlier=False)}"


def _go_back(one: Injection, cluster: CheckCluster) -> str:
    if cluster.earlier_build is None:
        return "left out: the earlier build is not there"
    return f"run the build before{_restarted(cluster, one.targets, earlier=True)}"


def _upgrade(one: Injection, cluster: CheckCluster) -> str:
    return f"run this build{_restarted(cluster, one.targets, earlier=False)}"


def _restarted(cluster: CheckCluster, node_ids: Iterable[str], *, earlier: bool) -> str:
    """Restart nodes with one of the two builds, one after the other; returns who was not ready in time."""
    late = []
    for node_id in node_ids:
        cluster.stop(node_id)
        (cluster.run_earlier.add if earlier else cluster.run_earlier.discard)(node_id)
        cluster.start(node_id)
        try:
            wait_for(functools.partial(cluster.is_ready, node_id), READY_S, node_id)
        except TimeoutError:
            late.append(node_id)  # another fault keeps it; the next one goes on
    return f"; {', '.join(late)} not ready in time" if late else ""


def _hand_over(one: Injection, cluster: CheckCluster) -> str:
    (leader,) = one.targets
    to = str(one.argument("to"))
    if to == leader:
        to = next((node_id for node_id in cluster.meant if node_id != leader), leader)
    with contextlib.suppress(RequestRefused, Unreachable):
        send_json("POST", f"{cluster.asked()}/v1/cluster/leader", {"to": to}, TRANSFER_S)
    return f"{leader} led; {cluster.leader_now()} leads"


def _kill_beside(one: Injection, cluster: CheckCluster) -> str:
    """Kill a process beside the nodes, which the workload registers with :meth:`CheckCluster.register`."""
    target = cluster.targets.get(one.fault.process)
    if target is None:
        return f"left out: the workload has no {one.fault.process}"
    target.kill()
    return "killed"


def _start_beside(one: Injection, cluster: CheckCluster) -> None:
    if target := cluster.targets.get(one.fault.process):
        target.start()


def _a_majority(random: Random, view: PlanView) -> tuple[str, ...]:
    return tuple(random.sample(view.nodes, view.minority + 1))


def _some(random: Random, view: PlanView) -> tuple[str, ...]:
    return tuple(random.sample(view.nodes, random.randint(1, len(view.nodes))))


def _beside(process: str) -> Whom:
    return lambda random, view: (process,)


# kill -9: the process ends between two instructions; what it wrote stays in the page cache. It is started again.
_killed = partial(Fault, group="kills", strike=_kill, heal=start_again, seconds=(0.2, 3.0))
fault(_killed("kill_one"))
fault(_killed("kill_leader", whom=the_leader, weight=2.0))
# As many nodes as can be missed.
fault(_killed("kill_minority", whom=a_minority))
# One node more than can be missed: nothing is written until it is back.
fault(_killed("kill_majority", whom=_a_majority))
# As when a machine room goes dark.
fault(_killed("kill_all", whom=all_nodes))

# SIGSTOP and SIGCONT: a process that stands still keeps its sockets and its belief of who leads.
_frozen = partial(Fault, group="freezes", strike=_freeze, heal=_thaw, seconds=(0.3, 4.0))
fault(_frozen("freeze_one"))
# Longer than an election: the leader wakes up believing that it leads.
fault(_frozen("freeze_leader", whom=the_leader, seconds=(1.5, 4.0), weight=2.0))
# To each of them the others are silent when it wakes up.
fault(_frozen("freeze_all", whom=all_nodes, weight=0.5))

_restarts = partial(Fault, group="restarts")
# SIGTERM: a node ends in order, a leader hands over first; it is started again.
fault(_restarts("stop_one", strike=_stop, heal=start_again, whom=leader_or_any, seconds=(0.3, 3.0)))
# One node after the other is stopped in order and started again, the next one when it is ready.
fault(
    _restarts(
        "rolling_restart",
        strike=_restart,
        heal=start_again,
        whom=shuffled,
        excludes="members",
        seconds=(3.0, 8.0),
        weight=0.7,
    )
)
# The leader hands leadership to another node; to the next one should that node lead already.
fault(
    _restarts(
        "transfer_leader",
        strike=_hand_over,
        whom=the_leader,
        how=lambda random, view: {"to": random.choice(view.nodes)},
        seconds=(0.1, 0.5),
    )
)
# Some nodes run the build before for a while, one after the other: a rolling upgrade that was taken back.
fault(
    Fault(
        "earlier_build",
        group="versions",
        strike=_go_back,
        heal=_upgrade,
        whom=_some,
        needs=frozenset({Equipment.EARLIER_BUILD}),
        excludes="members",
        # It knows no peer TLS, no scopes with prefixes and no proof of frames, and a full disk ends it.
        never_with=frozenset({"expired_certificate", "flooding_tenant", "forged_links", "full_disk"}),
        seconds=(3.0, 8.0),
    )
)
# The Spark job that reads the flow, and the store that it writes to, are killed, and started again.
for _name in ("spark", "cassandra"):
    fault(
        Fault(
            f"kill_{_name}",
            group="jobs",
            strike=_kill_beside,
            heal=_start_beside,
            whom=_beside(_name),
            process=_name,
            seconds=(0.5, 4.0),
        )
    )
