"""What one run is: workload, faults, seed, length. Pure.

Owns: names and bounds of a run's parameters, and how a list of runs is made from seeds. Must not know clusters,
files or time. Read next: :mod:`oncegate.proof.check.runner`, :mod:`oncegate.proof.check.soak`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from oncegate.rifl.errors import Code, OncegateError

SECONDS_DEFAULT: Final = 12.0
SECONDS_MAX: Final = 24 * 3600.0
NODES_DEFAULT: Final = 3
NODES_MAX: Final = 7
PROCESSES_DEFAULT: Final = 6
PROCESSES_MAX: Final = 48
STORES: Final = ("sqlite", "cassandra")
SEEDS_MAX: Final = 1_000_000
SEED_MAX: Final = 2**53 - 1
FAULTS_MAX: Final = 64


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of one run; the same plan chooses the same operations and the same faults.

    What it does not fix is when answers come: two runs of one plan differ as two races do.

    Attributes:
        workload: a name of :data:`oncegate.proof.check.workloads.WORKLOADS`.
        faults: names or groups of the nemesis; empty: none.
        seed: of every choice, 0..SEED_MAX.
        seconds: how long processes work, in (0, SECONDS_MAX]; healing and final reads come on top.
        nodes: of the cluster, 1..NODES_MAX.
        processes: how many work at once, 1..PROCESSES_MAX.
        store: one of :data:`STORES`: what a workload with a store runs.

    Raises OncegateError (BAD_REQUEST) if one is out of bounds.
    """

    workload: str
    faults: tuple[str, ...] = ()
    seed: int = 0
    seconds: float = SECONDS_DEFAULT
    nodes: int = NODES_DEFAULT
    processes: int = PROCESSES_DEFAULT
    store: str = STORES[0]

    def __post_init__(self) -> None:
        _within("seed", self.seed, 0, SEED_MAX)
        _within("nodes", self.nodes, 1, NODES_MAX)
        _within("processes", self.processes, 1, PROCESSES_MAX)
        _within("the number of faults", len(self.faults), 0, FAULTS_MAX)
        if not 0 < self.seconds <= SECONDS_MAX:
            raise OncegateError(Code.BAD_REQUEST, f"seconds is {self.seconds}, not in 0..{SECONDS_MAX:g}")
        if self.store not in STORES:
            raise OncegateError(Code.BAD_REQUEST, f"store is {self.store}, not one of {', '.join(STORES)}")

    @property
    def fault_names(self) -> str:
        """The faults as one word, as they are written on a command line."""
        return "+".join(self.faults) or "none"


def _within(what: str, number: int, low: int, high: int) -> None:
    if not low <= number <= high:
        raise OncegateError(Code.BAD_REQUEST, f"{what} is {number}, not in {low}..{high}")


def fault_names(text: str) -> tuple[str, ...]:
    """Return the names in ``kills+links`` or ``kills,links``; ``none`` and the empty text name none."""
    names = [name.strip() for name in text.replace("+", ",").split(",")]
    return tuple(dict.fromkeys(name for name in names if name and name != "none"))


def runs_of(template: RunPlan, workloads: Sequence[str], seeds: int) -> Iterator[RunPlan]:
    """Yield ``seeds`` runs in the order of a soak: seeds from the template's on, the workloads in turn.

    Taken in turn, a soak that ends early has still seen every workload.

    Args:
        template: everything but workload and seed.
        workloads: at least one.
        seeds: how many runs of each together, 1..SEEDS_MAX.

    Raises OncegateError (BAD_REQUEST) if a bound is exceeded or no workload is named.
    """
    _within("seeds", seeds, 1, SEEDS_MAX)
    if not workloads:
        raise OncegateError(Code.BAD_REQUEST, "no workload is named")
    for number in range(seeds):
        name = workloads[number % len(workloads)]
        yield msgspec.structs.replace(template, workload=name, seed=template.seed + number)
