"""Calls of a session in order: their effects come in the order of the calls, whatever is killed, lost or late.

Each worker begins many calls at once, on rows that nobody else writes: puts, transactions on two rows, and several rows
of one call. Each carries the number of its call. A row's version is the commit number of the write that made it, so the
final rows say in which order the calls took effect, also those that nobody was told of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from itertools import count
from typing import Any, Final

from oncegate.gateway.client import OncegateError, Outcome, PartialFailure, Session, Transaction
from oncegate.gateway.client.paths import table_path
from oncegate.proof.check.checks import LOST, Findings, is_final
from oncegate.proof.check.workload import Worker, Workload, World
from oncegate.proof.check.workloads.rows import IMPATIENT
from oncegate.proof.lincheck import Event, Operation, Result, operations

CALLS: Final = 24
"""Calls under way at once."""
MANY: Final = 3
"""Rows of a call that writes several."""
TIMEOUTS_S: Final = (0.05, 0.5, 5.0)
IN_ORDER: Final = "the effects of a session's calls have ascending commit numbers, in the order of the calls"


class Order(Workload):
    """Each worker begins calls in a session in order, and goes on in another one when it is lost for good."""

    name = "order"
    proves = "all effects of a session in order come in the order of its calls, through retries, failover and renewals"
    table = "order"

    def __init__(self) -> None:
        self._sessions = count(1)
        self._numbers = count(1)

    async def run_process(self, worker: Worker) -> None:
        known: list[Session] = []
        named = 0

        async def call_all(session: Session) -> None:
            nonlocal named
            if not known or known[0] is not session:
                known[:] = [session]
                named = next(self._sessions)
            numbers = [next(self._numbers) for _ in range(CALLS)]
            recorded = worker.begin("calls", f"p{worker.process}", [named, numbers])
            ended = await asyncio.gather(
                *(self._call(worker, session, f"p{worker.process}.{number}", number) for number in numbers),
                return_exceptions=True,
            )
            told = dict[str, Any]()
            for number, one in zip(numbers, ended, strict=True):
                if isinstance(one, BaseException) and not isinstance(one, OncegateError):
                    raise one
                told[str(number)] = _told(one)
            recorded.ok(told)

        await worker.through_sdk(call_all, IMPATIENT, in_order=True, renew_lost=True)

    def _call(self, worker: Worker, session: Session, key: str, number: int) -> Awaitable[Any]:
        dice, timeout_s = worker.random.random(), worker.random.choice(TIMEOUTS_S)
        if dice < 0.7:
            return session.put(self.table, key, number, timeout_s=timeout_s)
        if dice < 0.85:
            both = Transaction().put(self.table, key, number).put(self.table, f"{key}.1", number)
            return session.transact(both, timeout_s=timeout_s)
        rows = [(f"{key}.{row}", number) for row in range(MANY)]
        return session.put_many(self.table, rows, timeout_s=timeout_s)

    async def finish(self, world: World) -> None:
        for node in world.nodes.ids:
            rows, query = list[list[int]](), "limit=1000"
            while query:
                page = (await world.insist("GET", f"{table_path(self.table)}/rows?{query}", node=node)).body
                rows += [[row["value"], row["version"]] for row in page["rows"]]
                query = "" if page["page"] is None else f"limit=1000&page={page['page']}"
            world.note("scan", node, rows, node=node)

    def check(self, history: Sequence[Event]) -> list[Result]:
        found = operations(history)
        return [_in_order(found), _as_told(found)]


def _told(end: Any) -> str:
    """Return what the caller of one call was told; of rows of which some were applied, nothing is certain."""
    if not isinstance(end, OncegateError):
        return "applied"
    return Outcome.UNKNOWN.value if isinstance(end, PartialFailure) else end.outcome.value


def _scans(found: Sequence[Operation], findings: Findings) -> list[tuple[Operation, dict[int, list[int]]]]:
    """Return the final scans, each with the versions of each call's rows."""
    scans = [op for op in found if op.f == "scan" and op.status == "ok" and is_final(op)]
    if not scans:
        findings.undecided("there is no final scan")
    made: list[tuple[Operation, dict[int, list[int]]]] = []
    for scan in scans:
        versions: dict[int, list[int]] = {}
        for number, version in scan.result:
            versions.setdefault(number, []).append(version)
        made.append((scan, versions))
    return made


def _in_order(found: Sequence[Operation]) -> Result:
    findings = Findings(IN_ORDER)
    sessions: dict[int, list[tuple[int, Operation]]] = {}
    for op in found:
        if op.f == "calls":
            findings.saw(op.key, CALLS)
            session, numbers = op.argument
            sessions.setdefault(session, []).extend((number, op) for number in numbers)
    for scan, versions in _scans(found, findings):
        for calls in sessions.values():
            newest, before = 0, calls[0]
            for number, op in calls:
                made = versions.get(number)
                if made is None:
                    continue
                if min(made) < newest:
                    words = f"call {number} took effect at {min(made)}, the earlier call {before[0]} at {newest}"
                    findings.violated(op.key, f"{words}, by the rows of {scan.node}", [before[1], op, scan])
                newest, before = max(made), (number, op)
    return findings.result()


def _as_told(found: Sequence[Operation]) -> Result:
    findings = Findings(LOST)
    for scan, versions in _scans(found, findings):
        for op in found:
            if op.f != "calls" or op.status != "ok":
                continue
            findings.saw(op.key)
            for number, told in op.result.items():
                there = int(number) in versions
                if told == "applied" and not there:
                    findings.violated(
                        op.key, f"call {number} was acknowledged and has no row at {scan.node}", [op, scan]
                    )
                elif told == Outcome.NOT_APPLIED.value and there:
                    words = f"call {number} was told not_applied and has a row at {scan.node}"
                    findings.violated(op.key, words, [op, scan])
    return findings.result()
