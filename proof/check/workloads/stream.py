"""Stream tables: rows are read back while the batches that hold them are being sealed.

Every worker reads its own key at any node with ``session`` consistency: it sees at least what it wrote. Shared keys
are read linearizably. Judged by the register model and by each worker's own order.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from oncegate.proof.check.checks import Findings, linearizable
from oncegate.proof.check.direct_session import DirectSession
from oncegate.proof.check.durability import no_lost_write
from oncegate.proof.check.plan import PROCESSES_MAX
from oncegate.proof.check.recorder import LANES
from oncegate.proof.check.run_context import World
from oncegate.proof.check.workload import SessionLoop
from oncegate.proof.lincheck import Event, Operation, Result, operations


class StreamReads(SessionLoop):
    """Writes to shared keys and to the worker's own, read back at once and later."""

    name: ClassVar[str] = "stream"
    proves: ClassVar[str] = (
        "rows of a stream table are read as written, by their writer at once, while batches are sealed"
    )

    table: ClassVar[str] = "streamed"
    shared: ClassVar[int] = 3
    """How many keys belong to everybody."""

    own: ClassVar[int] = 1
    """How many keys belong to each worker."""

    def __init__(self) -> None:
        self._written = 0
        self._commits: dict[int, int] = {}

    async def set_up(self, world: World) -> None:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        await world.declare(self.table, "stream")

    async def step(self, world: World, process: int, session: DirectSession, random: Random) -> None:
        """Write or read, a shared key or the worker's own."""
        own = random.random() < 0.5
        key = f"own{process}.{random.randrange(self.own)}" if own else f"h{random.randrange(self.shared)}"
        if random.random() < 0.5:
            value = self.next_value()
            operation = {"op": "put", "table": self.table, "key": key, "value": value}
            verdict = await world.write(process, session, operation, "write", value)
            if verdict.kind == "applied":
                self._commits[process] = max(self._commits.get(process, 0), int(verdict.result["commit"]))
        elif own:
            query = f"?consistency=session&min_commit={self._commits.get(process, 0)}"
            row = await world.read(process, self.table, key, random, f="read-own", query=query)
            if row is not None:
                self._commits[process] = max(self._commits.get(process, 0), int(row["commit"]))
        else:
            await world.read(process, self.table, key, random)

    def next_value(self) -> int:
        """Return a value that nobody has written, larger than all before."""
        self._written += 1
        return self._written

    async def finish(self, world: World) -> None:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        shared = [f"h{number}" for number in range(self.shared)]
        workers = range(world.plan.processes)
        await world.final_reads(self.table, [*shared, *(f"own{at}.{n}" for at in workers for n in range(self.own))])

    def check(self, folder: Path, history: Sequence[Event]) -> list[Result]:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        found = operations(history)
        return [
            linearizable(found, "register", ("read", "write")),
            no_lost_write(found, ("write",)),
            _own_writes(found),
        ]


def _own_writes(found: Sequence[Operation]) -> Result:
    """Check that no worker reads its own key older than it wrote or has read it."""
    findings = Findings("a writer reads its own writes at every node, and never goes back")
    seen: dict[Any, int] = {}
    for op in (op for op in found if str(op.key).startswith("own")):
        if op.status != "ok" or op.process % LANES >= PROCESSES_MAX:
            continue
        # Values of one key grow in the order of its worker's calls.
        value = op.argument if op.f == "write" else op.result or 0
        findings.saw(op.key)
        if value < seen.get(op.key, 0):
            words = f"{op.key} was read as {value} at {op.node} after {seen[op.key]} had been written or read"
            findings.violated(op.key, words, [op])
        seen[op.key] = max(seen.get(op.key, 0), value)
    return findings.result()
