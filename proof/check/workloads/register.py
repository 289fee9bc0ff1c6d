"""Registers: rows that are put and read, blindly, at any node.

Judged by the register model, and by versions: a row that was read at the end is not older than any acknowledged
write to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import ClassVar, Final

from oncegate.proof.check.checks import linearizable
from oncegate.proof.check.direct_session import DirectSession
from oncegate.proof.check.durability import no_lost_write
from oncegate.proof.check.run_context import World
from oncegate.proof.check.workload import SessionLoop
from oncegate.proof.lincheck import Event, Result, operations

TABLE: Final = "registers"
KEYS: Final = ("r0", "r1", "r2", "r3")


class RegisterWorkload(SessionLoop):
    """Every write stores a value of its own, so each read names the write that it saw."""

    name: ClassVar[str] = "register"
    proves: ClassVar[str] = "reads and writes of a row are linearizable at every node; no acknowledged write is lost"

    def __init__(self) -> None:
        self._written = 0

    async def set_up(self, world: World) -> None:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        await world.declare(TABLE)

    async def step(self, world: World, process: int, session: DirectSession, random: Random) -> None:
        """Put or read one register."""
        key = random.choice(KEYS)
        if random.random() < 0.5:
            await world.read(process, TABLE, key, random)
            return
        self._written += 1
        value = self._written
        operation = {"op": "put", "table": TABLE, "key": key, "value": value}
        await world.write(process, session, operation, "write", value)

    async def finish(self, world: World) -> None:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        await world.final_reads(TABLE, list(KEYS))

    def check(self, folder: Path, history: Sequence[Event]) -> list[Result]:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        found = operations(history)
        return [linearizable(found, "register", ("read", "write")), no_lost_write(found, ("write",))]
