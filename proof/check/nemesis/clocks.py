"""Wall clocks that jump and run at another speed; the monotonic clock is the machine's."""

from __future__ import annotations

from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.equipment import Equipment
from oncegate.proof.check.nemesis.fault import Fault, FaultChoice, PlanView, Random, fault, with_leader
from oncegate.proof.check.wall_clock import DAY_S


class _Clock(Fault):
    group = "clocks"
    needs = frozenset({Equipment.CLOCK})
    excludes = "clock"
    seconds = (0.5, 4.0)

    def inject(self, cluster: CheckCluster) -> str:
        offset_s, rate = float(self.argument("offset_s", 0.0)), float(self.argument("rate", 1.0))
        for node_id in self.targets:
            cluster.clocks[node_id].step(offset_s, rate=rate)
        return f"{offset_s:+g} s" + (f", {rate:g} times as fast" if rate != 1.0 else "")

    def heal(self, cluster: CheckCluster) -> str | None:
        for node_id in self.targets:
            cluster.clocks[node_id].step(0)
        return None


@fault
class ClockStep(_Clock):
    """The clock of a node jumps, forth or back, by up to a day."""

    name = "clock_step"

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """By a power of ten of milliseconds, at most a day."""
        size = min(10 ** random.uniform(-1, 5), DAY_S)
        return FaultChoice(
            with_leader(random, view.nodes).targets, {"offset_s": round(random.choice((-1, 1)) * size, 3)}
        )


@fault
class ClockDrift(_Clock):
    """The clock of a node runs too fast or too slow."""

    name = "clock_drift"

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """Between half and four times as fast."""
        return FaultChoice(with_leader(random, view.nodes).targets, {"rate": round(2 ** random.uniform(-1, 2), 3)})
