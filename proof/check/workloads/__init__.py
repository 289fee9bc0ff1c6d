"""The workloads, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from oncegate.proof.check.workload import Workload
from oncegate.proof.check.workloads.append import AppendWorkload
from oncegate.proof.check.workloads.bank import Bank
from oncegate.proof.check.workloads.compare_and_set import CompareAndSet
from oncegate.proof.check.workloads.counter import CounterWorkload
from oncegate.proof.check.workloads.dedup import Dedup
from oncegate.proof.check.workloads.flow import FlowExactness
from oncegate.proof.check.workloads.hand_over import HandOver
from oncegate.proof.check.workloads.lease import LeaseRaces
from oncegate.proof.check.workloads.register import RegisterWorkload
from oncegate.proof.check.workloads.resolve import ResolveRaces
from oncegate.proof.check.workloads.rows import Rows
from oncegate.proof.check.workloads.stored import StoredReads
from oncegate.proof.check.workloads.stream import StreamReads
from oncegate.rifl.errors import Code, OncegateError

_ALL: Final[tuple[type[Workload], ...]] = (
    RegisterWorkload,
    CompareAndSet,
    Rows,
    CounterWorkload,
    AppendWorkload,
    Bank,
    HandOver,
    Dedup,
    ResolveRaces,
    LeaseRaces,
    FlowExactness,
    StreamReads,
    StoredReads,
)
WORKLOADS: Final[dict[str, Callable[[], Workload]]] = {workload.name: workload for workload in _ALL}


def workload_of(name: str) -> Workload:
    """Return a fresh workload; raises OncegateError (BAD_REQUEST) if there is none of that name."""
    found = WORKLOADS.get(name)
    if found is None:
        raise OncegateError(Code.BAD_REQUEST, f"no workload {name}; there are {', '.join(WORKLOADS)}")
    return found()


__all__ = ["WORKLOADS", "workload_of"]
