"""A queue: some put and all take, and each item is completed once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import Final

from oncegate.gateway.client import Client, Session, Transaction
from oncegate.gateway.client.recipes import Claim, Queue
from oncegate.proof.check.checks import Findings, acknowledged, exactly_once, is_final, no_lost_item
from oncegate.proof.check.workload import Worker
from oncegate.proof.check.workloads.lists import items
from oncegate.proof.check.workloads.recipes.short_sessions import (
    KEEPS,
    OLD_MAX,
    PATIENCE_S,
    RECIPES,
    RecipeWorkload,
    transacted,
    tried,
)
from oncegate.proof.lincheck import Operation, Result

DONE: Final = ("d0", "d1", "d2", "d3")


class QueueWorkload(RecipeWorkload):
    """Some put and all take; a completion appends to a list in the same transaction."""

    name = "queue"
    proves = "each item is completed exactly once, also when consumers end with a claim or complete behind their time"
    letters = "qd"
    table = "worked"
    keys = DONE
    seen = staticmethod(items)

    def __init__(self) -> None:
        self._items, self._attempts = count(1), count(1)
        self._old: list[Claim] = []

    async def work(self, worker: Worker, client: Client, session: Session) -> bool:
        random, queue = worker.random, Queue(client, session, "q")
        dice = random.random()
        if dice < 0.4:
            item = next(self._items)
            await tried(worker, "put", "q", item, queue.put(item), int)
        elif dice < 0.55 and self._old:
            await self._complete(worker, session, random.choice(self._old))
        else:
            try:
                async with asyncio.timeout(random.choice(PATIENCE_S)):
                    claim = await queue.claim()
            except TimeoutError:
                return True
            self._old = [*self._old[1 - OLD_MAX :], claim]
            if random.random() < 0.8:
                await self._complete(worker, session, claim)
            if random.random() < KEEPS:
                return False
            await claim.release()
        return True

    async def _complete(self, worker: Worker, session: Session, claim: Claim) -> None:
        """Complete an item, through whatever session is at hand."""
        item, key = f"{claim.item}.{next(self._attempts)}", DONE[claim.number % len(DONE)]
        completing = claim.completing(Transaction().append(self.table, key, item))
        await transacted(worker, session, "append", key, item, completing)

    async def end(self, worker: Worker, client: Client, session: Session) -> None:
        queue = Queue(client, session, "q")
        while [row async for row in client.rows(RECIPES, prefix="queue/q/item/", page_rows=1)]:
            await self._complete(worker, session, await queue.claim())

    def judge(self, found: Sequence[Operation]) -> list[Result]:
        return [_completed(found), no_lost_item(found), exactly_once(found)]


def _completed(found: Sequence[Operation]) -> Result:
    """Check that each item that was put is completed once, by the lists in the end."""
    findings = Findings("each item is completed exactly once")
    reads = [op for op in found if op.f == "read" and op.status == "ok" and is_final(op)]
    puts = {str(op.argument): op for op in found if op.f == "put"}
    seen: dict[tuple[str | None, str], Operation] = {}
    for read in reads:
        for done in read.result or ():
            item = done.partition(".")[0]
            if (read.node, item) in seen:
                findings.violated("q", f"item {item} was completed twice, told at {read.node}", [read])
            seen[read.node, item] = read
    for item, put in puts.items():
        findings.saw("q")
        for node in {read.node for read in reads}:
            if acknowledged(put) and (node, item) not in seen:
                findings.violated("q", f"item {item} was put and never completed, told at {node}", [put])
    if puts and not reads:
        findings.undecided("there is no final read")
    return findings.result()
