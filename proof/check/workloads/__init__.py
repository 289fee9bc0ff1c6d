"""The workloads, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from oncegate.proof.check.workload import Workload
from oncegate.proof.check.workloads.bank import Bank
from oncegate.proof.check.workloads.doubts import Doubts
from oncegate.proof.check.workloads.flow import FlowExactness
from oncegate.proof.check.workloads.leases import Leases
from oncegate.proof.check.workloads.lists import AppendWorkload, Dedup
from oncegate.proof.check.workloads.order import Order
from oncegate.proof.check.workloads.recipes import EACH, MixedRecipes
from oncegate.proof.check.workloads.rows import CompareAndSet, CounterWorkload, RegisterWorkload, Rows
from oncegate.proof.check.workloads.runs import Runs
from oncegate.proof.check.workloads.session_races import HandOver, LeaseRaces, ResolveRaces
from oncegate.proof.check.workloads.stream import StoredReads, StreamReads
from oncegate.proof.check.workloads.watch import WatchCompleteness
from oncegate.rifl.errors import Code, OncegateError

_ALL: Final[tuple[type[Workload], ...]] = (
    RegisterWorkload,
    CompareAndSet,
    Rows,
    CounterWorkload,
    Runs,
    Order,
    AppendWorkload,
    Bank,
    HandOver,
    Dedup,
    ResolveRaces,
    Doubts,
    LeaseRaces,
    Leases,
    FlowExactness,
    StreamReads,
    StoredReads,
    WatchCompleteness,
    *EACH,
    MixedRecipes,
)
WORKLOADS: Final[dict[str, Callable[[], Workload]]] = {workload.name: workload for workload in _ALL}


def workload_of(name: str) -> Workload:
    """Return a fresh workload; raises OncegateError (BAD_REQUEST) if there is none of that name."""
    found = WORKLOADS.get(name)
    if found is None:
        raise OncegateError(Code.BAD_REQUEST, f"no workload {name}; there are {', '.join(WORKLOADS)}")
    return found()


__all__ = ["WORKLOADS", "workload_of"]
