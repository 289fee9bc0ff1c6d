"""The plan of a seed, and a job that runs one in another process. Read next:
:mod:`oncegate.proof.sim.gateway.__main__`.
"""

from __future__ import annotations

from collections import Counter

from oncegate.proof.sim.gateway.plan import gateway_plan
from oncegate.proof.sim.gateway.run import run_plan
from oncegate.proof.sim.gateway.workloads import WORKLOADS


def plan_of(seed, workload=None):
    """The plan of a seed; without a workload, the seeds take turns."""
    names = list(WORKLOADS)
    return gateway_plan(seed, workload or names[seed % len(names)])


class Job:
    """Runs a seed; what travels between processes is small."""

    def __init__(self, workload):
        self.workload = workload

    def __call__(self, seed):
        outcome = run_plan(plan_of(seed, self.workload))
        kinds = Counter(fault.kind for fault in outcome.plan.faults)
        return seed, outcome.plan.workload, outcome.counts, kinds, outcome.failed
