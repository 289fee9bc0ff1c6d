"""Rows that end: holds for a time, rows bound to short sessions, and sessions that are closed or left to expire."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import Any, Final

from oncegate.gateway import wire
from oncegate.gateway.client.paths import row_path
from oncegate.proof.check.checks import Findings
from oncegate.proof.check.workload import Worker, Workload, World
from oncegate.proof.lincheck import Event, Operation, Result, operations
from oncegate.rifl.errors import Code
from oncegate.rifl.ids import LEASE_MS_MIN

LATE_MS: Final = 1_000
"""How late a row may end, and…"""
REAPED_MS: Final = 2_000
"""… how long after its session's lease a bound one may, both in cluster time: docs/SEMANTICS.md."""


class Leases(Workload):
    """Puts a row where there is none, with a time to live, bound to its session or both; nobody deletes one.

    A row that is gone, or another one in its place, has therefore ended. Reads carry cluster time and the row's end, so
    no clock of a machine takes part in the judgement.
    """

    name = "leases"
    proves = "rows end neither early nor late, and none is seen bound to a session that is gone"
    table = "leases"
    keys = ("h0", "h1", "h2", "h3")
    lease_ms = LEASE_MS_MIN

    def __init__(self) -> None:
        self._values = count(1)

    async def step(self, worker: Worker) -> None:
        dice = worker.random.random()
        if dice < 0.4:
            await self._hold(worker)
        elif dice < 0.9:
            await look(worker, self.table, worker.random.choice(self.keys))
        elif dice < 0.95:
            await worker.close_session()
        else:
            await asyncio.sleep(worker.random.uniform(0.5, 1.5) * self.lease_ms / 1000)

    async def _hold(self, worker: Worker) -> None:
        random, key, value = worker.random, worker.random.choice(self.keys), next(self._values)
        bound = random.random() < 0.5
        ttl_ms = random.choice((0, 200, 800) if bound else (100, 400, 1_500))
        end = {"bound": True} if bound else {}
        operation = {"op": "put", "table": self.table, "key": key, "value": value, "if": {"absent": True}, **end}
        if ttl_ms:
            operation["ttl_ms"] = ttl_ms
        hold = {"value": value, "ttl_ms": ttl_ms, "bound": bound, "session": worker.session.client_id}
        await worker.write(operation, "hold", hold, answer=lambda result: {"commit": result["commit"]})

    async def finish(self, world: World) -> None:
        """Wait until the cluster's time is past all ends; then no row is left."""

        async def past() -> bool | None:
            told = [(await world.insist("GET", row_path(self.table, key))).status for key in self.keys]
            return told == [404] * len(told) or None

        await world.wait(past, 30.0, "all rows have ended")

    def check(self, history: Sequence[Event]) -> list[Result]:
        found = operations(history)
        return [never_late(found), never_early(found), with_their_sessions(found, history)]


async def look(worker: Worker, table: str, key: str, name: str | None = None) -> None:
    """Read a row at one node, and record it (as ``name``) with its end and the cluster time of the read."""
    node = worker.node()
    recorded = worker.begin("look", name or key, node=node)
    reply = await worker.world.nodes.call(node, "GET", row_path(table, key))
    if reply.status not in (200, 404):
        recorded.fail(reply.code)
        return
    seen = {"at_ms": int(reply.headers[wire.H_TIME_MS]), "commit": int(reply.headers[wire.H_COMMIT])}
    if reply.done:
        seen |= {name: reply.body[name] for name in ("value", "version", "ends_ms", "owner") if name in reply.body}
    recorded.ok(seen)


def never_late(found: Sequence[Operation]) -> Result:
    """Check that no read shows a row long after its end, in cluster time."""
    findings = Findings("no row is there more than a second after its end")
    for op in _looks(found):
        findings.saw(op.key)
        ends_ms = op.result.get("ends_ms")
        if ends_ms is not None and op.result["at_ms"] > ends_ms + LATE_MS:
            findings.violated(op.key, f"was to end at {ends_ms}, and is there at {op.result['at_ms']}", [op])
    return findings.result()


def never_early(found: Sequence[Operation]) -> Result:
    """Check that no row with a time alone was gone at a cluster time before the end that a read of it told."""
    findings = Findings("no row ends early")
    bound = {op.argument["value"] for op in found if op.f == "hold" and op.argument["bound"]}
    ends: dict[Any, dict[int, Operation]] = {}
    for op in _looks(found):
        findings.saw(op.key)
        if "ends_ms" in op.result and op.result["value"] not in bound:
            ends.setdefault(op.key, {})[op.result["version"]] = op
    for op in _looks(found):
        for version, seen in ends.get(op.key, {}).items():
            gone = op.result.get("version") != version and op.result["commit"] > version
            if gone and op.result["at_ms"] < seen.result["ends_ms"]:
                words = f"version {version} was to end at {seen.result['ends_ms']}, and is gone at {op.result['at_ms']}"
                findings.violated(op.key, words, [seen, op])
    return findings.result()


def with_their_sessions(found: Sequence[Operation], history: Sequence[Event]) -> Result:
    """Check that no read shows a row whose session was closed before, or had expired some time before."""
    findings = Findings("no row is seen bound to a session that is gone")
    closed = {op.key: op for op in found if op.f == "close" and op.status == "ok"}
    expired: dict[str, int] = {}
    for event in history:
        if event.f == "hold" and event.error == Code.SESSION_EXPIRED and event.request is not None:
            expired.setdefault(event.request.partition("/")[0], event.time)
    gone_ms: dict[str, int] = {}
    for op in sorted(_looks(found), key=lambda op: op.result["at_ms"]):
        for session, told in expired.items():
            if op.invoked > told:
                gone_ms.setdefault(session, op.result["at_ms"])
    for op in _looks(found):
        owner = op.result.get("owner")
        if owner is None:
            continue
        findings.saw(op.key)
        if owner in closed and op.invoked > (closed[owner].returned or 0):
            findings.violated(op.key, f"is bound to {owner}, which was closed before", [closed[owner], op])
        if owner in gone_ms and op.result["at_ms"] > gone_ms[owner] + REAPED_MS:
            findings.violated(op.key, f"is bound to {owner}, whose lease was over at {gone_ms[owner]}", [op])
    return findings.result()


def _looks(found: Sequence[Operation]) -> list[Operation]:
    return [op for op in found if op.f == "look" and op.status == "ok"]
