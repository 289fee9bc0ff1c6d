"""SIGSTOP and SIGCONT: a process that stands still keeps its sockets and its belief of who leads."""

from __future__ import annotations

from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.nemesis.fault import LEADER, Fault, FaultChoice, PlanView, Random, fault, one_of


class _Freeze(Fault):
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

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """Any node."""
        return one_of(random, view.nodes)


@fault
class FreezeLeader(_Freeze):
    """The leader stands still for longer than an election, and wakes up believing that it leads."""

    name = "freeze_leader"
    seconds = (1.5, 4.0)
    weight = 2.0

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """Who leads then."""
        return FaultChoice((LEADER,))


@fault
class FreezeAll(_Freeze):
    """All nodes stand still: to each of them the others are silent when it wakes up."""

    name = "freeze_all"
    weight = 0.5

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """All."""
        return FaultChoice(view.nodes)
