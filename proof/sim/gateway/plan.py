"""What one seed means for a cluster with clients: workload, habits of its clients, settings, faults.

Read next: :mod:`oncegate.proof.sim.engine.plan`, :mod:`oncegate.proof.sim.gateway.workloads`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from oncegate.proof.sim.engine.faults import DEFAULT_MIX
from oncegate.proof.sim.engine.plan import Plan, make_plan

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
    from oncegate.proof.sim.gateway.workloads import WORKLOADS

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
    plan = GatewayPlan(**fields, workload=workload)
    return replace(plan, settings=settings, save_every=save_every)
