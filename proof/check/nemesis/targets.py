"""Kills of processes beside the nodes: the workload registers them with :meth:`CheckCluster.register`."""

from __future__ import annotations

from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.nemesis.fault import Fault, FaultChoice, PlanView, Random, fault


class _KillProcess(Fault):
    group = "jobs"
    seconds = (0.5, 4.0)

    @classmethod
    def pick(cls, random: Random, view: PlanView) -> FaultChoice | None:
        """The process itself."""
        return FaultChoice((cls.process,))

    def inject(self, cluster: CheckCluster) -> str:
        target = cluster.targets.get(self.process)
        if target is None:
            return f"left out: the workload has no {self.process}"
        target.kill()
        return "killed"

    def heal(self, cluster: CheckCluster) -> str | None:
        target = cluster.targets.get(self.process)
        if target is not None:
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
