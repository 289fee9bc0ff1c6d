"""What is held under a token: holders come and go, and old ones go on writing under their tokens.

What was held by one session is used again through others, as a process does that has slept. Who holds when is read off
commit numbers: a guarded write happens only while its holder's row is there, and a row that has gone does not come
back. So a holder that writes at two commit numbers has held at all numbers between them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Sequence
from itertools import count
from random import Random
from typing import Any, ClassVar, Final, Protocol

from oncegate.gateway.client import Client, Session, Transaction
from oncegate.proof.check.checks import Findings, acknowledged, by_key, no_lost_write, rising
from oncegate.proof.check.workload import FINAL_S, Worker
from oncegate.proof.check.workloads.recipes.short_sessions import (
    KEEPS,
    OLD_MAX,
    PATIENCE_S,
    RecipeWorkload,
    transacted,
    tried,
)
from oncegate.proof.lincheck import Operation, Result

ALONE: Final = "one holder at a time"


class Held(Protocol):
    """What a contender has got."""

    token: int

    def guard(self, transaction: Transaction) -> Transaction:
        """Let a transaction happen only while it is held."""
        ...


class Contended(RecipeWorkload):
    """Holders write under their token, and go on doing so when they hold no more."""

    table = "held"
    names: ClassVar[tuple[str, ...]]
    rule: ClassVar[str] = ALONE
    fences: ClassVar[bool] = False
    """Whether other systems may compare tokens too: there is one holder at a time, each with a greater token."""

    def __init__(self) -> None:
        kinds = ("guarded", "fenced") if self.fences else ("guarded",)
        self.keys = [f"{name}/{kind}" for name in self.names for kind in kinds]
        self._values = count(1)
        self._old: list[tuple[str, Held]] = []

    @abstractmethod
    def ask(self, client: Client, session: Session, name: str, random: Random) -> tuple[Any, Awaitable[Held | None]]:
        """Return what is asked for, as the history has it, and the asking; its result is None if it was refused."""

    @abstractmethod
    async def release(self, worker: Worker, name: str, hold: Any) -> None:
        """Give a hold back."""

    @staticmethod
    def may_hold(others: Sequence[Any], asked: Any) -> bool:
        """Say whether one may hold what it asked for beside what others asked for; by default nobody may."""
        return not others

    async def work(self, worker: Worker, client: Client, session: Session) -> bool:
        random, name = worker.random, worker.random.choice(self.names)
        if self._old and random.random() < 0.4:
            await self._write(worker, session, *random.choice(self._old))
            return True
        hold = await self._acquire(worker, client, session, name, random.choice(PATIENCE_S))
        if hold is None:
            return True
        for _ in range(random.randrange(4)):
            await self._write(worker, session, name, hold)
            await worker.think()
        if random.random() < KEEPS:
            return False
        await self.release(worker, name, hold)
        return True

    async def _acquire(
        self, worker: Worker, client: Client, session: Session, name: str, patience_s: float
    ) -> Held | None:
        def told(hold: Held | None) -> Any:
            return {"refused": "TAKEN"} if hold is None else hold.token

        asked, asking = self.ask(client, session, name, worker.random)
        hold = await tried(worker, "hold", name, asked, asking, told, patience_s)
        if hold is not None:
            self._old = [*self._old[1 - OLD_MAX :], (name, hold)]
        return hold

    async def _write(self, worker: Worker, session: Session, name: str, hold: Held) -> None:
        """Write under a token: where this cluster guards it, or as another system would that compares tokens."""
        fenced = self.fences and worker.random.random() < 0.5
        key, value = f"{name}/{'fenced' if fenced else 'guarded'}", [hold.token, next(self._values)]
        writes = Transaction().put(self.table, key, value)
        if fenced:
            fence = f"{name}/fence"
            writes.check(self.table, fence, at_most=hold.token).put(self.table, fence, hold.token)
        else:
            hold.guard(writes)
        await transacted(worker, session, "write", key, value, writes)

    async def end(self, worker: Worker, client: Client, session: Session) -> None:
        for name in self.names:
            while (hold := await self._acquire(worker, client, session, name, FINAL_S)) is None:
                await self.refused(worker, client, session, name)
            for _ in range(2):
                await self._write(worker, session, name, hold)
            await self.release(worker, name, hold)

    async def refused(self, worker: Worker, client: Client, session: Session, name: str) -> None:
        """Do something about a refusal in the end, before it is asked again."""
        await worker.think()

    def judge(self, found: Sequence[Operation]) -> list[Result]:
        fenced = [_fenced(found)] if self.fences else []
        return [_tokens(found), self._at_once(found), *fenced, no_lost_write(found, ["write"])]

    def _at_once(self, found: Sequence[Operation]) -> Result:
        """Check that those who hold at the same time may do so."""
        findings = Findings(self.rule)
        asked = {op.result: op.argument for op in holds(found)}
        for key, ops in by_key(_writes(found), lambda op: op.key.endswith("/guarded")).items():
            findings.saw(key, len(ops))
            writes: dict[int, list[Operation]] = {}
            for op in ops:
                writes.setdefault(op.argument[0], []).append(op)
            holding: list[int] = []
            for token, (first, *_) in writes.items():  # in the order of their first commit numbers
                holding = [other for other in holding if writes[other][-1].result > first.result]
                if not self.may_hold([asked.get(other) for other in holding], asked.get(token)):
                    shown = [op for other in holding for op in (writes[other][0], writes[other][-1])]
                    findings.violated(key, f"token {token} writes between writes of {holding}", [*shown, first])
                holding.append(token)
            # Also one that writes nothing holds: who was before it in line, and goes on writing, has held beside it.
            last = {token: max(its, key=lambda op: op.invoked) for token, its in writes.items()}
            for hold in holds(found):
                if hold.key != key.partition("/")[0]:
                    continue
                late = [t for t, op in last.items() if t < hold.result and op.invoked > (hold.returned or 0)]
                if not self.may_hold([asked.get(other) for other in late], hold.argument):
                    words = f"{late} write, although {hold.result} has it"
                    findings.violated(key, words, [hold, *(last[other] for other in late)])
        return findings.result()


def holds(found: Sequence[Operation]) -> list[Operation]:
    """Return the holds that were got; their results are tokens."""
    return [op for op in found if op.f == "hold" and acknowledged(op)]


def _writes(found: Sequence[Operation]) -> list[Operation]:
    """Return the acknowledged writes in commit order."""
    return sorted((op for op in found if op.f == "write" and acknowledged(op)), key=lambda op: int(op.result))


def _tokens(found: Sequence[Operation]) -> Result:
    """Check that no two holds have one token, and that whoever asked after another had got it has a greater one."""
    findings = Findings("tokens rise from holder to holder")
    rising(findings, holds(found), lambda op: (op.result, op.result))
    owners: dict[int, Operation] = {}
    for op in holds(found):
        if op.result in owners:
            findings.violated(op.key, f"two holders have token {op.result}", [owners[op.result], op])
        owners[op.result] = op
    return findings.result()


def _fenced(found: Sequence[Operation]) -> Result:
    """Check that in commit order the tokens of a row's writes never go back."""
    findings = Findings("no write of an earlier holder follows one of a later holder")
    last: dict[str, Operation] = {}
    for op in _writes(found):
        findings.saw(op.key)
        before = last.get(op.key)
        if before is not None and before.argument[0] > op.argument[0]:
            words = f"token {op.argument[0]} wrote at {op.result}, behind token {before.argument[0]}"
            findings.violated(op.key, words, [before, op])
        last[op.key] = op
    return findings.result()
