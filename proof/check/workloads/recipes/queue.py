"""A queue: some put and all take, and each item is completed once, or set aside once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count, pairwise
from typing import Any, Final

from oncegate.gateway.client import Client, Session, Transaction, WriteResult
from oncegate.gateway.client.recipes import Claim, Queue
from oncegate.proof.check.checks import Findings, acknowledged, by_key, exactly_once, is_final, no_lost_item
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
QUEUES: Final = ("q", "qq")
"""Items are put into the first; some are handed over to the second, where they are completed."""
ATTEMPTS_MAX: Final = 3
POISON: Final = 5
"""Every so many an item cannot be processed: whoever claims it gives it back."""
DELAYS_MS: Final = (None, None, 50, 500)
_PLACES: Final = ("ready", "later", "taken")


class QueueWorkload(RecipeWorkload):
    """Some put and all take; a completion appends to a list in the same transaction."""

    name = "queue"
    proves = (
        "each item is completed or set aside exactly once, also when it is put twice under one key, comes with a "
        "delay, is handed over, or consumers end with a claim or complete behind their time"
    )
    letters = "qd"
    table = "worked"
    keys = DONE
    seen = staticmethod(items)

    def __init__(self) -> None:
        self._items, self._tries = count(1), count(1)
        self._old: list[tuple[str, Claim]] = []
        self._keyed: list[int] = []

    async def work(self, worker: Worker, client: Client, session: Session) -> bool:
        random, dice = worker.random, worker.random.random()
        if dice < 0.4:
            await self._put(worker, client, session)
            return True
        if dice < 0.5 and self._old:
            await self._complete(worker, client, session, *random.choice(self._old))
            return True
        name = random.choice(QUEUES)
        claims = await self._claim(worker, client, session, name, random.choice(PATIENCE_S))
        for claim in claims:
            self._old = [*self._old[1 - OLD_MAX :], (name, claim)]
            if random.random() < 0.8:
                await self._complete(worker, client, session, name, claim)
        if claims and random.random() < KEEPS:
            return False
        for claim in claims:
            await claim.release(delay_ms=random.choice(DELAYS_MS))
        return True

    async def _put(self, worker: Worker, client: Client, session: Session) -> None:
        """Put an item, or one that was put under a key before: then nothing happens."""
        random, queue = worker.random, _queue(client, session, QUEUES[0])
        if self._keyed and random.random() < 0.3:
            item, key = (item := random.choice(self._keyed)), f"item-{item}"
        else:
            item, key = next(self._items), None
            if random.random() < 0.4:
                key = f"item-{item}"
                self._keyed.append(item)
        # The same key has to bring the same content: the delay follows from the item.
        delay_ms = DELAYS_MS[item % len(DELAYS_MS)]
        await tried(worker, "put", "q", item, queue.put(item, idempotency_key=key, delay_ms=delay_ms), int)

    async def _claim(
        self, worker: Worker, client: Client, session: Session, name: str, patience_s: float
    ) -> list[Claim]:
        def told(claims: list[Claim]) -> Any:
            return [[claim.number, claim.token, claim.attempts] for claim in claims]

        claiming = _queue(client, session, name).claim_many(worker.random.choice((1, 1, 3)))
        return await tried(worker, "claim", name, None, claiming, told, patience_s) or []

    async def _complete(self, worker: Worker, client: Client, session: Session, name: str, claim: Claim) -> None:
        """Complete an item, or hand it over to the other queue, through whatever session is at hand."""
        item = claim.item
        assert isinstance(item, int)
        if not item % POISON:
            return
        if name == QUEUES[0] and worker.random.random() < 0.3:
            handing = _queue(client, session, QUEUES[1]).putting(item, claim.completing())

            def told(result: WriteResult) -> Any:
                return result.commit if result.applied else {"refused": result.code}

            await tried(worker, "hand-over", name, item, session.transact(handing), told)
            return
        key, mark = DONE[item % len(DONE)], f"{item}.{next(self._tries)}"
        completing = claim.completing(Transaction().append(self.table, key, mark))
        await transacted(worker, session, "append", key, mark, completing)

    async def end(self, worker: Worker, client: Client, session: Session) -> None:
        for name in QUEUES:
            given = Counter[int]()
            while await _left(client, name) and max(given.values(), default=0) <= 2 * ATTEMPTS_MAX:
                for claim in await self._claim(worker, client, session, name, 1.0):
                    given[claim.number] += 1
                    if given[claim.number] > ATTEMPTS_MAX:  # it would come for ever: that is told, and it goes
                        await claim.complete()
                    await self._complete(worker, client, session, name, claim)
                    await claim.release()
        for name in QUEUES:

            async def dead(queue: Queue) -> list[Any]:
                return [[letter.item, letter.attempts] async for letter in queue.dead()]

            await tried(worker, "dead", name, None, dead(_queue(client, session, name)), list)

    def judge(self, found: Sequence[Operation]) -> list[Result]:
        return [_completed(found), _attempted(found), no_lost_item(found), exactly_once(found)]


def _queue(client: Client, session: Session, name: str) -> Queue:
    return Queue(client, session, name, attempts_max=ATTEMPTS_MAX)


async def _left(client: Client, name: str) -> bool:
    for place in _PLACES:
        async for _ in client.rows(RECIPES, prefix=f"queue/{name}/{place}/", page_rows=1):
            return True
    return False


def _completed(found: Sequence[Operation]) -> Result:
    """Check that each item that was put is completed once or set aside once, by lists and dead letters in the end."""
    findings = Findings("each item is completed or set aside exactly once")
    reads = [op for op in found if op.f == "read" and op.status == "ok" and is_final(op)]
    letters = [op for op in found if op.f == "dead" and op.status == "ok"]
    puts = {op.argument: op for op in found if op.f == "put" and acknowledged(op)}
    dead = Counter(item for op in letters for item, _ in op.result)
    for op in letters:
        for item, attempts in op.result:
            if attempts < ATTEMPTS_MAX:
                findings.violated("q", f"item {item} was set aside after {attempts} attempts", [op])
    for node in {read.node for read in reads}:
        ends = Counter(dead)
        for read in reads:
            if read.node == node:
                ends.update(int(done.partition(".")[0]) for done in read.result or ())
        for item, times in ends.items():
            if times > 1:
                findings.violated("q", f"item {item} was completed or set aside {times} times, told at {node}", reads)
        for item, put in puts.items():
            findings.saw("q")
            if not ends[item]:
                findings.violated("q", f"item {item} was put and is nowhere, told at {node}", [put])
            if not item % POISON and not dead[item]:
                findings.violated("q", f"item {item} cannot be processed and was not set aside", [put])
    if puts and not (reads and len(letters) == len(QUEUES)):
        findings.undecided("there is no final read")
    return findings.result()


def _attempted(found: Sequence[Operation]) -> Result:
    """Check that nobody gets an item more often than it may be claimed, and each time with a greater count."""
    findings = Findings("attempts are counted")
    for name, ops in by_key(found, lambda op: op.f == "claim" and op.status == "ok").items():
        seen: dict[int, list[tuple[int, int, Operation]]] = {}
        for op in ops:
            findings.saw(name)
            for number, token, attempts in op.result:
                seen.setdefault(number, []).append((token, attempts, op))
        for number, claims in seen.items():
            ordered = sorted(claims, key=lambda claim: claim[0])
            for (_, before, one), (_, after, other) in pairwise(ordered):
                if after <= before:
                    findings.violated(name, f"attempt {after} of {number} came after attempt {before}", [one, other])
            if ordered[-1][1] > ATTEMPTS_MAX:
                findings.violated(name, f"{number} was claimed {ordered[-1][1]} times", [ordered[-1][2]])
    return findings.result()
