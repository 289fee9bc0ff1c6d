"""Compare-and-set by value: who expects what is there replaces it, everybody else is refused and told what is there.

Judged by the compare-and-set model, and by values that may not be lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

from oncegate.proof.check.checks import linearizable
from oncegate.proof.check.direct_session import DirectSession
from oncegate.proof.check.durability import no_lost_write
from oncegate.proof.check.run_context import World
from oncegate.proof.check.workload import SessionLoop
from oncegate.proof.lincheck import Event, Operation, Result, operations

TABLE: Final = "swapped"
KEYS: Final = ("c0", "c1", "c2")


class CompareAndSet(SessionLoop):
    """Every value is written once, so that a comparison that holds names the one write before it."""

    name: ClassVar[str] = "compare-and-set"
    proves: ClassVar[str] = "conditions by value are evaluated and applied as one step, once"

    def __init__(self) -> None:
        self._written = 0
        self._seen: dict[str, Any] = dict.fromkeys(KEYS)

    async def set_up(self, world: World) -> None:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        await world.declare(TABLE)

    async def step(self, world: World, process: int, session: DirectSession, random: Random) -> None:
        """Read, write, or replace what was seen last by anybody."""
        key = random.choice(KEYS)
        dice = random.random()
        if dice < 0.3:
            row = await world.read(process, TABLE, key, random)
            if row is not None:
                self._seen[key] = row["value"]
            return
        self._written += 1
        new = self._written
        put = {"op": "put", "table": TABLE, "key": key, "value": new}
        if dice < 0.4:
            await world.write(process, session, put, "write", new)
            return
        old = self._seen[key]
        condition = {"absent": True} if old is None else {"value": old}
        verdict = await world.write(process, session, {**put, "if": condition}, "cas", [old, new])
        if verdict.kind == "applied":
            self._seen[key] = new
        elif verdict.kind == "refused":
            self._seen[key] = verdict.result.get("value")

    async def finish(self, world: World) -> None:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        await world.final_reads(TABLE, list(KEYS))

    def check(self, folder: Path, history: Sequence[Event]) -> list[Result]:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        found = operations(history)
        return [
            linearizable(found, "cas-register", ("read", "write", "cas")),
            no_lost_write(found, ("write", "cas"), stored=_stored),
        ]


def _stored(operation: Operation) -> Any:
    return operation.argument[1] if operation.f == "cas" else operation.argument
