"""Counters that are raised through the SDK, which retries by itself: across nodes, leaders and lost answers.

Judged by the counter model: each answer is the sum so far, so an increment that is applied twice or not at all shows
at the next answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

from oncegate.gateway.client import Session, Tuning
from oncegate.proof.check.checks import Findings, by_key, linearizable
from oncegate.proof.check.durability import acknowledged, final_reads
from oncegate.proof.check.run_context import World
from oncegate.proof.check.soak import LOST
from oncegate.proof.check.workload import through_sessions
from oncegate.proof.lincheck import Event, Operation, Result, operations

TABLE: Final = "counters"
KEYS: Final = ("n0", "n1", "n2")
IMPATIENT: Final = Tuning(attempt_timeout_s=0.25)
"""Attempts are given up early, so that retries meet originals that are still under way."""


def number(row: Mapping[str, Any] | None) -> int:
    """Return a read sum; an absent row is 0."""
    return row["value"] if row else 0


class CounterWorkload:
    """Increments and reads; half of the workers lead, half are sent to all nodes in turn."""

    name: ClassVar[str] = "counter"
    proves: ClassVar[str] = "the SDK's retries apply each increment exactly once"

    async def set_up(self, world: World) -> None:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        await world.declare(TABLE)

    async def run_process(self, world: World, process: int, random: Random, until: float) -> None:
        """See :class:`~oncegate.proof.check.workload.Workload`."""

        async def step(session: Session) -> None:
            key = random.choice(KEYS)
            if random.random() < 0.25:
                await world.read(process, TABLE, key, random, answer=number)
                return
            by = random.choice((1, 1, 2, -1))
            await world.through_sdk(
                process,
                lambda: session.increment(TABLE, key, by),
                "increment",
                key,
                by,
                answer=lambda result: result.value,
            )

        await through_sessions(world, process, random, until, step, IMPATIENT)

    async def finish(self, world: World) -> None:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        await world.final_reads(TABLE, list(KEYS), answer=number)

    def check(self, folder: Path, history: Sequence[Event]) -> list[Result]:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        found = operations(history)
        return [linearizable(found, "counter", ("read", "increment")), _sums(found)]


def _sums(found: Sequence[Operation]) -> Result:
    """Check the final sum: what was acknowledged, and of the unknown increments any."""
    findings = Findings(LOST)
    reads = final_reads(found, "read")
    for key, ops in by_key(found, lambda op: op.f == "increment").items():
        findings.saw(key, len(ops))
        sure = sum(op.argument for op in ops if acknowledged(op))
        doubts = [op.argument for op in ops if op.status == "unknown"]
        low, high = (sure + sum(filter(sign, doubts)) for sign in (lambda by: by < 0, lambda by: by > 0))
        for seen in reads.get(key, ()):
            if not low <= seen.result <= high:
                words = (
                    f"{key} is {seen.result} at {seen.node} in the end, outside {low}..{high} of what was acknowledged"
                )
                findings.violated(key, words, [seen])
        if key not in reads:
            findings.undecided(f"{key} has no final read")
    return findings.result()
