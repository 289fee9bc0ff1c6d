"""Faults of processes: killed, frozen, stopped in order; nodes, and what runs beside them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable
from typing import Any, Final

from oncegate.gateway.local.blocking_http import RequestRefused, Unreachable, send_json
from oncegate.gateway.local.waiting import wait_for
from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.equipment import Equipment
from oncegate.proof.check.nemesis.fault import (
    Down,
    Fault,
    FaultChoice,
    PlanView,
    Random,
    a_minority,
    all_nodes,
    fault,
    leader_or_any,
    shuffled,
    the_leader,
)

READY_S: Final = 30.0
TRANSFER_S: Final = 12.0


class _Kill(Down):
    """kill -9: the process ends between two instructions; what it wrote stays in the page cache."""

    group = "kills"
    seconds = (0.2, 3.0)

    def inject(self, cluster: CheckCluster) -> str:
        cluster.kill(*self.targets)
        return "killed"


@fault
class KillOne(_Kill):
    """One node is killed, and started again."""

    name = "kill_one"


@fault
class KillLeader(_Kill):
    """The leader of that moment is killed, and started again."""

    name = "kill_leader"
    whom = the_leader
    weight = 2.0


@fault
class KillMinority(_Kill):
    """As many nodes as can be missed are killed at once."""

    name = "kill_minority"
    whom = a_minority


def _a_majority(random: Random, view: PlanView) -> tuple[str, ...]:
    return tuple(random.sample(view.nodes, view.minority + 1))


@fault
class KillMajority(_Kill):
    """One node more than can be missed is killed: nothing is written until it is back."""

    name = "kill_majority"
    whom = _a_majority


@fault
class KillAll(_Kill):
    """All nodes are killed at once, as when a machine room goes dark."""

    name = "kill_all"
    whom = all_nodes


class _Freeze(Fault):
    """SIGSTOP and SIGCONT: a process that stands still keeps its sockets and its belief of who leads."""

    group = "freezes"
    seconds = (0.3, 4.0)

    def inject(self, cluster: CheckCluster) -> str:
        cluster.freeze(*self.targets)
        return "stands still"

    def heal(self, cluster: CheckCluster) -> str | None:
        cluster.thaw(*self.targets)
        return None


@fault
class FreezeOne(_Freeze):
    """One node stands still, and goes on as if nothing had been."""

    name = "freeze_one"


@fault
class FreezeLeader(_Freeze):
    """The leader stands still for longer than an election, and wakes up believing that it leads."""

    name = "freeze_leader"
    whom = the_leader
    seconds = (1.5, 4.0)
    weight = 2.0


@fault
class FreezeAll(_Freeze):
    """All nodes stand still: to each of them the others are silent when it wakes up."""

    name = "freeze_all"
    whom = all_nodes
    weight = 0.5


@fault
class StopOne(Down):
    """SIGTERM: a node ends in order, a leader hands over first; it is started again."""

    name = "stop_one"
    group = "restarts"
    whom = leader_or_any
    seconds = (0.3, 3.0)

    def inject(self, cluster: CheckCluster) -> str:
        orderly = [cluster.stop(node_id) for node_id in self.targets]
        return "stopped in order" if all(orderly) else "had to be killed"


@fault
class RollingRestart(Down):
    """One node after the other is stopped in order and started again, the next one when it is ready."""

    name = "rolling_restart"
    group = "restarts"
    whom = shuffled
    excludes = "members"
    seconds = (3.0, 8.0)
    weight = 0.7

    def inject(self, cluster: CheckCluster) -> str:
        return f"restarted one after the other{_restarted(cluster, self.targets, earlier=False)}"


def _some(random: Random, view: PlanView) -> tuple[str, ...]:
    return tuple(random.sample(view.nodes, random.randint(1, len(view.nodes))))


@fault
class EarlierBuild(Fault):
    """Some nodes run the build before for a while, one after the other: a rolling upgrade that was taken back."""

    name = "earlier_build"
    group = "versions"
    whom = _some
    needs = frozenset({Equipment.EARLIER_BUILD})
    excludes = "members"
    # It knows no peer TLS, no scopes with prefixes and no proof of frames, and a full disk ends it.
    never_with = frozenset({"expired_certificate", "flooding_tenant", "forged_links", "full_disk"})
    seconds = (3.0, 8.0)

    def inject(self, cluster: CheckCluster) -> str:
        if cluster.earlier_build is None:
            return "left out: the earlier build is not there"
        return f"run the build before{_restarted(cluster, self.targets, earlier=True)}"

    def heal(self, cluster: CheckCluster) -> str | None:
        return f"run this build{_restarted(cluster, self.targets, earlier=False)}"


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


@fault
class TransferLeader(Fault):
    """The leader hands leadership to another node; to the next one should that node lead already."""

    name = "transfer_leader"
    group = "restarts"
    whom = the_leader
    seconds = (0.1, 0.5)

    @classmethod
    def how(cls, random: Random, view: PlanView) -> dict[str, Any]:
        return {"to": random.choice(view.nodes)}

    def inject(self, cluster: CheckCluster) -> str:
        (leader,) = self.targets
        to = str(self.argument("to"))
        if to == leader:
            to = next((node_id for node_id in cluster.meant if node_id != leader), leader)
        with contextlib.suppress(RequestRefused, Unreachable):
            send_json("POST", f"{cluster.asked()}/v1/cluster/leader", {"to": to}, TRANSFER_S)
        return f"{leader} led; {cluster.leader_now()} leads"


class _KillProcess(Fault):
    """Kills a process beside the nodes, which the workload registers with :meth:`CheckCluster.register`."""

    group = "jobs"
    seconds = (0.5, 4.0)

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        return FaultChoice((cls.process,))

    def inject(self, cluster: CheckCluster) -> str:
        target = cluster.targets.get(self.process)
        if target is None:
            return f"left out: the workload has no {self.process}"
        target.kill()
        return "killed"

    def heal(self, cluster: CheckCluster) -> str | None:
        if target := cluster.targets.get(self.process):
            target.start()
        return None


@fault
class KillSpark(_KillProcess):
    """The Spark job that reads the flow is killed, and started again."""

    name = "kill_spark"
    process = "spark"


@fault
class KillCassandra(_KillProcess):
    """The store that the job writes to is killed, and started again."""

    name = "kill_cassandra"
    process = "cassandra"
