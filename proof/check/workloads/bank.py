"""Banks: transfers between accounts by conditions, serialised through the version of the bank's row.

Money is neither made nor lost if no transfer is applied twice, lost, or applied to a state that nobody had seen. The
version in each condition makes the transfers one chain: each applied one names the one before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

from oncegate.proof.check.checks import Findings, linearizable
from oncegate.proof.check.direct_session import DirectSession
from oncegate.proof.check.durability import acknowledged, no_lost_version
from oncegate.proof.check.run_context import World
from oncegate.proof.check.workload import SessionLoop
from oncegate.proof.check.workloads.rows import condition_failed, versioned, written
from oncegate.proof.lincheck import Event, Operation, Result, operations

TABLE: Final = "banks"
KEYS: Final = ("b0", "b1")
ACCOUNTS: Final = ("ann", "bob", "cid", "dan", "eve")
TOTAL: Final = 100 * len(ACCOUNTS)


class Bank(SessionLoop):
    """Reads a bank, moves money, writes it back if nobody was quicker."""

    name: ClassVar[str] = "bank"
    proves: ClassVar[str] = "money is neither made nor lost: conditional writes form one chain of versions"

    async def set_up(self, world: World) -> None:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        await world.declare(TABLE)

    async def step(self, world: World, process: int, session: DirectSession, random: Random) -> None:
        """Read, and usually transfer."""
        key = random.choice(KEYS)
        recorded_row = await world.read(process, TABLE, key, random, f="get", answer=versioned)
        if recorded_row is None:
            # Absent, or no answer; opening it is refused if it is there.
            opened = {"value": dict.fromkeys(ACCOUNTS, 100), "if": {"absent": True}}
            await self._put(world, process, session, key, opened)
        elif random.random() < 0.8:
            balances: dict[str, int] = dict(recorded_row["value"])
            payer, payee = random.sample(ACCOUNTS, 2)
            amount = random.randint(0, balances[payer])
            balances[payer] -= amount
            balances[payee] += amount
            argument = {"value": balances, "if": {"version": recorded_row["version"]}}
            await self._put(world, process, session, key, argument)

    async def _put(
        self, world: World, process: int, session: DirectSession, key: str, argument: dict[str, Any]
    ) -> None:
        operation = {"op": "put", "table": TABLE, "key": key, **argument}
        await world.write(process, session, operation, "put", argument, answer=written, refused=condition_failed)

    async def finish(self, world: World) -> None:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        await world.final_reads(TABLE, list(KEYS), f="get", answer=versioned)

    def check(self, folder: Path, history: Sequence[Event]) -> list[Result]:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        found = operations(history)
        return [linearizable(found, "row", ("get", "put")), no_lost_version(found, ("put",)), _money(found)]


def _money(found: Sequence[Operation]) -> Result:
    """Check every balance that was read, and that no two transfers followed the same one."""
    findings = Findings("money is neither made nor lost, and no two transfers follow the same state")
    after: dict[tuple[Any, int], Operation] = {}
    for op in found:
        findings.saw(op.key)
        if op.f == "get" and op.status == "ok" and op.result["version"]:
            balances = op.result["value"].values()
            if sum(balances) != TOTAL or min(balances) < 0:
                findings.violated(op.key, f"{op.key} holds {sum(balances)} of {TOTAL}: {op.result['value']}", [op])
        elif op.f == "put" and acknowledged(op):
            place = (op.key, op.argument["if"].get("version", 0))
            if place in after:
                findings.violated(op.key, f"two transfers followed version {place[1]}", [after[place], op])
            after[place] = op
    return findings.result()
