"""One seed: its plan (workload, habits of clients, settings, faults), its run and the verdict on it.

Read next: :mod:`oncegate.proof.sim.engine.plan`, :mod:`oncegate.proof.sim.gateway.world`,
:mod:`oncegate.proof.sim.gateway.__main__`.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from oncegate.proof.lincheck import MODELS, Limits, check, operations
from oncegate.proof.sim.engine.faults import DEFAULT_MIX
from oncegate.proof.sim.engine.plan import Plan, make_plan
from oncegate.proof.sim.engine.run import Outcome, stopped_by
from oncegate.proof.sim.gateway.node import GatewayNode
from oncegate.proof.sim.gateway.world import WORKLOADS, GatewayWorld

COMMAND_BYTES_MAX = 16_384
SAVES = {"log_kept_bytes": 0, "snapshot_idle_s": 1.0}


@dataclass(frozen=True)
class GatewayPlan(Plan):
    """A plan of :mod:`oncegate.proof.sim.engine`, and who writes what."""

    workload: str = "register"

    @property
    def clocks_keep_time(self):
        """No fault makes a clock jump or run faster, so that leases can be held against world time."""
        return not any(fault.kind == "clock" for fault in self.faults)


def gateway_plan(seed, workload, *, kinds=None, **fixed):
    """Draw a plan; ``kinds`` maps kinds of faults to weights, the workload's mix by default."""
    about = WORKLOADS[workload]
    rng = random.Random(f"{seed}/{workload}/gateway plan")
    mix = {**DEFAULT_MIX, **about.mix} if kinds is None else kinds
    mix = {kind: weight for kind, weight in mix.items() if weight}
    # Half of the runs leave clocks alone: only then can leases be held against the time of the world.
    if kinds is None and rng.random() < 0.5:
        mix.pop("clock", None)
    base = make_plan(seed, kinds=mix, **fixed)
    settings = {
        **base.settings,
        "command_bytes_max": COMMAND_BYTES_MAX,
        "append_bytes_max": rng.choice((1, 600, 4000, 1 << 16)),
        "in_flight_bytes_max": rng.choice((1500, 1 << 16)),
        "log_memory_bytes_max": rng.choice((4096, 1 << 20)),
        "journal_segment_bytes": rng.choice((32_768, 65_536)),
    }
    save_every = base.save_every
    if save_every is not None:
        save_every = rng.choice((10, 40))
        settings |= {
            **SAVES,
            "save_log_bytes_max": rng.choice((4000, 20_000)),
            "snapshot_chunk_bytes": rng.choice((1000, 10_000)),
            "snapshot_bytes_per_s": rng.choice((0, 1_000_000)),
        }
    fields = {name: getattr(base, name) for name in base.__dataclass_fields__}
    return GatewayPlan(**{**fields, "settings": settings, "save_every": save_every}, workload=workload)


def run_plan(plan, *, node_type=GatewayNode, trace=None, watches=False, world_type=GatewayWorld):
    """Run one plan to its end and judge it; an error of the code under test is a finding named "crash".

    With ``watches`` the rules of Raft are checked as well, which :mod:`oncegate.proof.sim.engine` does for the same
    engine.
    """
    world = world_type(plan, node_type=node_type, trace=trace, watches=watches)
    stopped = stopped_by(world)
    findings = judge(world, finished=not stopped) + stopped
    for node in world.nodes.values():
        node.alive = False
        node.forget()
    return Outcome(plan, world.counts, world.trace_hash, findings, round(world.now, 3), world.history.events)


STATES_MAX = 300_000


def judge(world, *, finished):
    """Return (check, text) of all that is wrong, the history first; a run that did not finish has no final state."""
    return _history(world) + (world.workload.check(world) if finished else []) + list(world.findings)


def _history(world):
    name = world.workload.model
    if not name:
        return []
    result = check(operations(world.history.events), MODELS[name], Limits(states_max=STATES_MAX))
    world.counts[f"histories {result.verdict}"] += 1
    world.counts["operations checked"] += result.operations
    if result.verdict != "invalid":
        return []
    failure = result.failures[0]
    return [("linearizability", f"{name} {failure.key}: {' '.join(failure.words)[:600]}")]


def plan_of(seed, workload=None):
    """The plan of a seed; without a workload, the seeds take turns."""
    names = list(WORKLOADS)
    return gateway_plan(seed, workload or names[seed % len(names)])


def run_seed(workload, seed):
    """Run a seed in another process; what travels back is small."""
    outcome = run_plan(plan_of(seed, workload))
    kinds = Counter(fault.kind for fault in outcome.plan.faults)
    return seed, outcome.plan.workload, outcome.counts, kinds, outcome.failed
