"""kill -9: the process ends between two instructions; what it wrote stays in the page cache."""

from __future__ import annotations

from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.nemesis.fault import LEADER, Down, FaultChoice, PlanView, Random, fault, one_of


class _Kill(Down):
    group = "kills"
    seconds = (0.2, 3.0)

    def inject(self, cluster: CheckCluster) -> str:
        cluster.kill(*self.targets)
        return "killed"


@fault
class KillOne(_Kill):
    """One node is killed, and started again."""

    name = "kill_one"

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """Any node."""
        return one_of(random, view.nodes)


@fault
class KillLeader(_Kill):
    """The leader of that moment is killed, and started again."""

    name = "kill_leader"
    weight = 2.0

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """Who leads then."""
        return FaultChoice((LEADER,))


@fault
class KillMinority(_Kill):
    """As many nodes as can be missed are killed at once."""

    name = "kill_minority"

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """Any of them."""
        return FaultChoice(tuple(random.sample(view.nodes, view.minority))) if view.minority else None


@fault
class KillMajority(_Kill):
    """One node more than can be missed is killed: nothing is written until it is back."""

    name = "kill_majority"

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """Any of them."""
        return FaultChoice(tuple(random.sample(view.nodes, view.minority + 1)))


@fault
class KillAll(_Kill):
    """All nodes are killed at once, as when a machine room goes dark."""

    name = "kill_all"

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """All."""
        return FaultChoice(view.nodes)
