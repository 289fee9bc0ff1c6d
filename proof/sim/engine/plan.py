"""What one seed means: configuration, workload and the list of faults, all drawn before anything runs.

A plan is data, so that a failing one can be shrunk: fewer faults, a shorter run. Read next:
:mod:`oncegate.proof.sim.engine.faults`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path

import oncegate.proof.sim.engine.scripts  # noqa: F401 - enters its faults
from oncegate.consensus.config import ReplicaConfig
from oncegate.proof.sim.engine.faults import DEFAULT_MIX, REGISTRY

COMMAND_BYTES_MAX = 512


@dataclass(frozen=True)
class Fault:
    """One action: ``number`` names it when a plan is shrunk, ``kind`` is a key of the registry."""

    number: int
    at: float
    kind: str
    args: tuple


@dataclass(frozen=True)
class Plan:
    """Everything that a run depends on."""

    seed: int
    names: tuple[str, ...]
    settings: dict
    """Of :class:`ReplicaConfig`."""
    seconds: float
    clients: int
    burst: int
    """Commands a client proposes at once, at most."""
    think_s: float
    latency_s: float
    late_s: float
    """How late a message of a broken connection may come."""
    flush_s: float
    read_share: float = 0.3
    sizes: tuple[int, ...] = (0, 0, 40, 100, 450)
    """Bytes of padding of a command."""
    settles: bool = True
    """In the end everybody must agree; without it, what was seen until then is all."""
    joiners: tuple[str, ...] = ()
    """Machines that are no members at first, and may be added."""
    save_every: int | None = None
    """The state machine keeps itself on disk, every so many entries; None for one that is replayed."""
    faults: tuple[Fault, ...] = field(default=())

    @property
    def machines(self) -> tuple[str, ...]:
        """Names of all there are."""
        return self.names + self.joiners

    def config(self, name: str) -> ReplicaConfig:
        """Settings of one node."""
        joining = name in self.joiners
        seeds = self.names + self.joiners if joining else self.names
        peers = {other: ("127.0.0.1", 1) for other in seeds if other != name}
        return ReplicaConfig(
            node_id=name,
            cluster_id="sim",
            listen=("127.0.0.1", 1),
            peers=peers,
            joining=joining,
            data_dir=Path("unused"),
            **self.settings,
        )

    def only(self, numbers, seconds: float | None = None) -> Plan:
        """The same run with some of its faults, and shorter."""
        kept = tuple(fault for fault in self.faults if fault.number in numbers)
        return replace(self, faults=kept, seconds=self.seconds if seconds is None else seconds)


def make_plan(
    seed: int,
    *,
    nodes: int | None = None,
    kinds=None,
    seconds: float | None = None,
    gap_s: float | None = None,
    durable: bool = False,
    **fixed,
) -> Plan:
    """Draw a plan.

    ``kinds`` maps kinds of faults to weights, ``gap_s`` lies between two on average, ``durable`` asks for a state on
    disk, which half of the plans have otherwise, ``fixed`` overrides fields.
    """
    rng = random.Random(f"{seed}/plan")
    count = nodes or rng.choice((3, 3, 3, 5))
    if nodes:
        rng.random()
    names = tuple(f"n{number}" for number in range(1, count + 1))
    heartbeat = rng.choice((30, 60, 100))
    shortest = heartbeat * rng.choice((3, 5))
    settings = {
        "heartbeat_ms": heartbeat,
        "election_ms_min": shortest,
        "election_ms_max": shortest * 2,
        "fast_election_ms_min": 5,
        "fast_election_ms_max": rng.choice((20, 80)),
        "commit_notice_ms": rng.choice((0, 2, 10)),
        "command_bytes_max": COMMAND_BYTES_MAX,
        "append_bytes_max": rng.choice((1, 200, 600, 4000)),
        "in_flight_bytes_max": rng.choice((300, 1500, 1 << 16)),
        "log_memory_bytes_max": rng.choice((512, 4096, 1 << 20)),
        "journal_segment_bytes": rng.choice((9216, 16384, 65536)),
        "apply_slice_ms": rng.choice((0, 20)),
    }
    run_s = rng.uniform(2.0, 5.0)
    plan = Plan(
        seed=seed,
        names=names,
        settings=settings,
        seconds=run_s if seconds is None else seconds,
        clients=rng.randint(1, 4),
        burst=rng.choice((1, 2, 8)),
        think_s=rng.choice((0.005, 0.03, 0.1)),
        latency_s=rng.choice((0.0002, 0.001, 0.005)),
        late_s=rng.choice((0.0, 0.05, 1.0)),
        flush_s=rng.choice((0.0002, 0.001, 0.004)),
    )
    mix = dict(DEFAULT_MIX if kinds is None else kinds)
    plan = _with_state(random.Random(f"{seed}/state"), plan, durable=durable)
    if "members" in mix:
        joiners = random.Random(f"{seed}/joiners").choice((0, 1, 2, 2))
        plan = replace(plan, joiners=tuple(f"n{count + 1 + number}" for number in range(joiners)))
    plan = replace(plan, **fixed)
    faults = []
    at = rng.uniform(0.3, 1.0)
    gap = rng.choice((0.1, 0.25, 0.6))
    if gap_s is not None:
        gap, at = gap_s, at + 2.0
    weights = list(mix.values())
    while mix and at < plan.seconds:
        kind = rng.choices(list(mix), weights)[0]
        faults.append(Fault(len(faults), round(at, 6), kind, REGISTRY[kind].draw(rng, plan.machines)))
        at += rng.expovariate(1 / gap)
    return replace(plan, faults=tuple(faults))


def _with_state(rng: random.Random, plan: Plan, *, durable: bool) -> Plan:
    """Half of the plans have a state on disk, and a log that is short enough to leave followers behind it."""
    if rng.random() < 0.5 and not durable:
        return plan
    settings = {
        **plan.settings,
        "journal_segment_bytes": rng.choice((9216, 9216, 16384)),
        "save_log_bytes_max": rng.choice((1000, 6000)),
        "log_kept_bytes": 0,
        "snapshot_chunk_bytes": rng.choice((1000, 10_000, 50_000)),
        "snapshot_bytes_per_s": rng.choice((0, 300_000)),
        "snapshot_idle_s": rng.choice((0.5, 2.0)),
    }
    return replace(plan, settings=settings, save_every=rng.choice((10, 40, 1000)))
