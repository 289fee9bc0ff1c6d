"""Names that have one owner each: some are kept until they are given up, others go with their sessions."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Sequence
from itertools import count
from random import Random
from typing import Any

from oncegate.gateway.client import Client, Row, Session, Transaction
from oncegate.gateway.client.recipes import Registry
from oncegate.proof.check.checks import Findings, by_key
from oncegate.proof.check.workload import Worker
from oncegate.proof.check.workloads.recipes.contended import Contended, holds
from oncegate.proof.check.workloads.recipes.short_sessions import tried
from oncegate.proof.lincheck import Operation, Result

USERS = "users"


class TakenName:
    """A name that is had under a token."""

    def __init__(self, registry: Registry, name: str, token: int) -> None:
        self.token, self.registry, self._name = token, registry, name

    def guard(self, transaction: Transaction) -> Transaction:
        """Let a transaction happen only while the name is had under the token."""
        return self.registry.guard(transaction, self._name, self.token)


class RegistryWorkload(Contended):
    """Owners write under their names' tokens; what somebody else left behind is found and given up."""

    name = "registry"
    proves = "a name has one owner, who keeps it until it is given up, or until the session ends that it is bound to"
    letters = "n"
    names = ("n0", "n1", "n2")
    rule = "one owner at a time"

    def __init__(self) -> None:
        super().__init__()
        self._owners = count(1)

    def ask(
        self, client: Client, session: Session, name: str, random: Random
    ) -> tuple[Any, Awaitable[TakenName | None]]:
        owner, bound, again = f"o{next(self._owners)}", random.random() < 0.5, random.random() < 0.3
        registry = Registry(client, session, USERS)

        async def take() -> TakenName | None:
            token = await registry.take(name, owner, bound=bound)
            if token is not None and again:  # as who has missed the answer does
                token = await registry.take(name, owner, bound=bound)
            return None if token is None else TakenName(registry, name, token)

        return {"owner": owner, "bound": bound}, take()

    async def release(self, worker: Worker, name: str, hold: TakenName) -> None:
        await _give_up(worker, hold.registry, name, hold.token)

    async def work(self, worker: Worker, client: Client, session: Session) -> bool:
        if worker.random.random() < 0.8:
            return await super().work(worker, client, session)
        gives_up = worker.random.random() < 0.3
        await _find(worker, Registry(client, session, USERS), worker.random.choice(self.names), gives_up=gives_up)
        return True

    async def refused(self, worker: Worker, client: Client, session: Session, name: str) -> None:
        await _find(worker, Registry(client, session, USERS), name, gives_up=True)
        await worker.think()

    def judge(self, found: Sequence[Operation]) -> list[Result]:
        return [*super().judge(found), _kept(found)]


async def _find(worker: Worker, registry: Registry, name: str, *, gives_up: bool) -> None:
    """See who has a name, and give it up in its owner's place if it is not bound."""

    def told(row: Row | None) -> Any:
        return row and [row.version, row.value]

    row = await tried(worker, "find", name, None, registry.find(name), told)
    if row is not None and gives_up and not row.owner:
        await _give_up(worker, registry, name, row.version)


async def _give_up(worker: Worker, registry: Registry, name: str, token: int) -> None:
    await tried(worker, "give-up", name, token, registry.give_up(name, token), bool)


def _kept(found: Sequence[Operation]) -> Result:
    """Check that a name which is not bound is its owner's until somebody begins to give it up, and nobody else's."""
    findings = Findings("a name is its owner's until it is given up")
    given_up = {op.argument: op.invoked for op in reversed(found) if op.f == "give-up"}
    finds = by_key(found, lambda op: op.f == "find" and op.status == "ok")
    had = by_key(holds(found), lambda op: True)
    for key, ops in had.items():
        findings.saw(key, len(ops))
        for hold in ops:
            has = [hold.result, hold.argument["owner"]]
            until = 0 if hold.argument["bound"] else given_up.get(hold.result, math.inf)
            for op in finds.get(key, ()):
                kept = (hold.returned or 0) < op.invoked and (op.returned or 0) < until
                if op.result != has and (kept or (op.result and op.result[0] == has[0])):
                    findings.violated(key, f"{has[1]} has it under {has[0]}, but {op.result} is told", [hold, op])
            for op in ops:
                if op.result > hold.result and (op.returned or 0) < until:
                    findings.violated(key, f"{op.argument['owner']} has it, but {has[1]} has had it", [hold, op])
    return findings.result()
