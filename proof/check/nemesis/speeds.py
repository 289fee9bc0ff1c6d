"""Links that are slow, thin, lossy, or break again and again."""

from __future__ import annotations

from typing import Any

from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.nemesis.fault import Fault, FaultChoice, PlanView, Random, fault


class _Speed(Fault):
    group = "links"
    excludes = "speed"
    seconds = (0.5, 4.0)

    def inject(self, cluster: CheckCluster) -> str:
        how: dict[str, Any] = self.action.arguments
        cluster.links.slow(**how, node=self.targets[0] if self.targets else None)
        return ", ".join(f"{name} {value:g}" for name, value in sorted(how.items()))

    def heal(self, cluster: CheckCluster) -> str | None:
        cluster.links.calm()
        return None


def _where(random: Random, view: PlanView) -> tuple[str, ...]:
    """All links, or those of one node."""
    return () if random.random() < 0.5 else (random.choice(view.nodes),)


@fault
class SlowLinks(_Speed):
    """Each read is passed on later, by a delay and a jitter, in order."""

    name = "slow_links"

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """Up to a third of an election time-out."""
        how = {"delay_s": round(random.uniform(0.001, 0.1), 4), "jitter_s": round(random.uniform(0, 0.1), 4)}
        return FaultChoice(_where(random, view), how)


@fault
class LossyLinks(_Speed):
    """A share of the reads is lost; TCP cannot go on then, so the connection is reset."""

    name = "lossy_links"

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """One read in a hundred to one in five."""
        return FaultChoice(_where(random, view), {"loss": round(random.uniform(0.01, 0.2), 3)})


@fault
class ThinLinks(_Speed):
    """No more than so many bytes a second pass."""

    name = "thin_links"

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """From 64 KiB to 4 MiB a second."""
        return FaultChoice(_where(random, view), {"bytes_per_s": float(64 * 1024 * 2 ** random.randrange(7))})


@fault
class ResetLinks(_Speed):
    """One connection after the other is reset, at random moments."""

    name = "reset_links"

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """Every twentieth to half of a second."""
        return FaultChoice((), {"every_s": round(random.uniform(0.05, 0.5), 3)})

    def inject(self, cluster: CheckCluster) -> str:
        cluster.links.storm(every_s=float(self.argument("every_s")))
        return f"a connection is reset every {self.argument('every_s'):g} s"
