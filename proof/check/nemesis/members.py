"""Members come and go while the cluster serves, as an operator does it."""

from __future__ import annotations

from typing import Final

from oncegate.proof.check import membership
from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.nemesis.fault import Fault, FaultChoice, PlanView, Random, fault, one_of

JOIN_S: Final = 30.0
RECOVERY_S: Final = 4.0
"""A node starts, receives the log and is promoted."""


class _Change(Fault):
    group = "members"
    excludes = "members"
    recovery_s = RECOVERY_S
    seconds = (1.0, 5.0)


def _stranger(view: PlanView) -> FaultChoice:
    """A node that is none yet."""
    return FaultChoice((f"n{len(view.nodes) + 1}",))


@fault
class MemberAdded(_Change):
    """A node joins, learns, is promoted to a voter when it has caught up, and is removed in the end."""

    name = "member_added"

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """The next free id."""
        return _stranger(view)

    def inject(self, cluster: CheckCluster) -> str:
        membership.join_member(cluster, self.targets[0], JOIN_S)
        return "joined as a learner, and votes"

    def heal(self, cluster: CheckCluster) -> str | None:
        membership.remove_member(cluster, self.targets[0], JOIN_S)
        return "removed"


@fault
class LearnerAdded(_Change):
    """A node is announced and stays away: a learner that never catches up must not count in any majority."""

    name = "learner_added"

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """The next free id."""
        return _stranger(view)

    def inject(self, cluster: CheckCluster) -> str:
        membership.announce_absent(cluster, self.targets[0], JOIN_S)
        return "announced, and not there"

    def heal(self, cluster: CheckCluster) -> str | None:
        membership.remove_member(cluster, self.targets[0], JOIN_S)
        return "removed"


@fault
class MemberRemoved(_Change):
    """A member, maybe the leader, is removed alive; in the end it joins again, with an empty directory."""

    name = "member_removed"
    persistent = True

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """One of those that may lose their data."""
        return one_of(random, view.damageable)

    def inject(self, cluster: CheckCluster) -> str:
        membership.remove_member(cluster, self.targets[0], JOIN_S)
        return "removed, its directory emptied"

    def heal(self, cluster: CheckCluster) -> str | None:
        membership.join_member(cluster, self.targets[0], JOIN_S)
        return "joined again, and votes"


@fault
class MemberReplaced(_Change):
    """A node dies with its disk; an operator removes the dead member and adds a new one in its place."""

    name = "member_replaced"
    persistent = True

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """One of those that may lose their data."""
        return one_of(random, view.damageable)

    def inject(self, cluster: CheckCluster) -> str:
        with cluster.lock:
            cluster.absent.add(self.targets[0])
            cluster.kill(self.targets[0])
            cluster.wipe(self.targets[0])
        return "killed, its directory emptied"

    def heal(self, cluster: CheckCluster) -> str | None:
        membership.remove_member(cluster, self.targets[0], JOIN_S)
        membership.join_member(cluster, self.targets[0], JOIN_S)
        return "replaced: removed, added, and votes"
