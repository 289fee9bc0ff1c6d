"""What operators do on purpose: stop in order, restart one after the other, hand leadership over."""

from __future__ import annotations

import contextlib
from typing import Final

from oncegate.gateway.local.blocking_http import RequestRefused, Unreachable, send_json
from oncegate.gateway.local.waiting import wait_for
from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.nemesis.fault import (
    LEADER,
    Down,
    Fault,
    FaultChoice,
    PlanView,
    Random,
    fault,
    in_any_order,
    with_leader,
)

READY_S: Final = 30.0
TRANSFER_S: Final = 12.0


@fault
class StopOne(Down):
    """SIGTERM: a node ends in order, a leader hands over first; it is started again."""

    name = "stop_one"
    group = "restarts"
    seconds = (0.3, 3.0)

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """The leader, or any."""
        return with_leader(random, view.nodes)

    def inject(self, cluster: CheckCluster) -> str:
        orderly = [cluster.stop(node_id) for node_id in self.targets]
        return "stopped in order" if all(orderly) else "had to be killed"


@fault
class RollingRestart(Down):
    """One node after the other is stopped in order and started again, the next one when it is ready."""

    name = "rolling_restart"
    group = "restarts"
    excludes = "members"
    seconds = (3.0, 8.0)
    weight = 0.7

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """All, in any order."""
        return FaultChoice(in_any_order(random, view))

    def inject(self, cluster: CheckCluster) -> str:
        late = []
        for node_id in self.targets:
            cluster.stop(node_id)
            cluster.start(node_id)
            try:
                wait_for(lambda node_id=node_id: cluster.is_ready(node_id), READY_S, node_id)  # type: ignore[misc]
            except TimeoutError:
                late.append(node_id)  # another fault keeps it; the next one goes on
        return "restarted one after the other" + (f"; {', '.join(late)} not ready in time" if late else "")


@fault
class TransferLeader(Fault):
    """Leadership is handed to another node."""

    name = "transfer_leader"
    group = "restarts"
    seconds = (0.1, 0.5)

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """From whoever leads to a node, or to the next one should it lead already."""
        return FaultChoice((LEADER,), {"to": random.choice(view.nodes)})

    def inject(self, cluster: CheckCluster) -> str:
        (leader,) = self.targets
        to = str(self.argument("to"))
        if to == leader:
            to = next((node_id for node_id in cluster.meant if node_id != leader), leader)
        with contextlib.suppress(RequestRefused, Unreachable):
            send_json("POST", f"{cluster.asked()}/v1/cluster/leader", {"to": to}, TRANSFER_S)
        return f"{leader} led; {cluster.leader_now()} leads"

    def heal(self, cluster: CheckCluster) -> str | None:
        return None
