"""The workloads, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.check.workload import Workload
from gateway.check.workloads.append import Append
from gateway.check.workloads.bank import Bank
from gateway.check.workloads.compare_and_set import CompareAndSet
from gateway.check.workloads.counter import Counter
from gateway.check.workloads.dedup import Dedup
from gateway.check.workloads.flow import FlowExactness
from gateway.check.workloads.hand_over import HandOver
from gateway.check.workloads.lease import LeaseRaces
from gateway.check.workloads.register import Register
from gateway.check.workloads.resolve import ResolveRaces
from gateway.check.workloads.rows import Rows
from gateway.check.workloads.stored import StoredReads
from gateway.check.workloads.stream import StreamReads
from rifl.errors import Code, OncegateError

_ALL: Final[tuple[type[Workload], ...]] = (
    Register,
    CompareAndSet,
    Rows,
    Counter,
    Append,
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
