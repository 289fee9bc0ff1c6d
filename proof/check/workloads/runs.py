"""Many plain puts of one SDK session at once, which the log has in columns and remembers in one record.

A put that is executed twice leaves the value that it had: so what is looked at are versions. Each is the commit number
of the write that made the row, and the caller of that write was told it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final

from oncegate.gateway.client import OncegateError, Session
from oncegate.gateway.client.paths import table_path
from oncegate.proof.check.checks import LOST, Findings, is_final
from oncegate.proof.check.workload import Worker, Workload, World
from oncegate.proof.check.workloads.rows import IMPATIENT
from oncegate.proof.lincheck import Event, Operation, Result, operations

OUTSTANDING: Final = 80
"""Puts under way at once: several runs."""
VERSIONS: Final = "each row has the version that the caller of its write was told, and no version is told twice"


class Runs(Workload):
    """Each worker puts the number of its turn into rows of its own, all at once, in an order of its own each time."""

    name = "runs"
    proves = "puts that travel together are each applied once and answered with their own commit number"
    table = "runs"

    def __init__(self) -> None:
        self._turns = count(1)

    async def run_process(self, worker: Worker) -> None:
        async def put_all(session: Session) -> None:
            turn, rows = next(self._turns), list(range(OUTSTANDING))
            worker.random.shuffle(rows)
            recorded = worker.begin("puts", f"p{worker.process}", turn)
            puts = (session.put(self.table, f"p{worker.process}.{row}", turn) for row in rows)
            # Numbers are given in this order; each put ends in its own way.
            ended = await asyncio.gather(*puts, return_exceptions=True)
            told = dict[str, int | None]()
            for row, one in zip(rows, ended, strict=True):
                if isinstance(one, BaseException) and not isinstance(one, OncegateError):
                    raise one
                told[str(row)] = None if isinstance(one, OncegateError) else one.commit
            recorded.ok(told)

        await worker.through_sdk(put_all, IMPATIENT)

    async def finish(self, world: World) -> None:
        for node in world.nodes.ids:
            rows, after = dict[str, list[int]](), ""
            while True:
                path = f"{table_path(self.table)}/rows?limit=1000&after={after}"
                page = (await world.insist("GET", path, node=node)).body
                rows |= {row["key"]: [row["value"], row["version"]] for row in page["rows"]}
                if (after := page["next"] or "") == "":
                    break
            world.note("scan", node, rows, node=node)

    def check(self, history: Sequence[Event]) -> list[Result]:
        found = operations(history)
        return [_as_told(found), _none_lost(found)]


def _turns(found: Sequence[Operation]) -> dict[str, list[Operation]]:
    """Return the turns of each worker, in its order."""
    turns: dict[str, list[Operation]] = {}
    for op in found:
        if op.f == "puts":
            turns.setdefault(op.key, []).append(op)
    return turns


def _told(op: Operation, row: str) -> int | None:
    """Return the commit number of a put, None if it may have happened or not."""
    result: dict[str, int | None] = op.result if op.status == "ok" else {}
    return result.get(row)


def _rows(found: Sequence[Operation], findings: Findings) -> Iterator[tuple[Operation, str, str, list[int] | None]]:
    """Yield the rows of all final scans: the scan, the worker, the row's number, and value and version."""
    scans = [op for op in found if op.f == "scan" and op.status == "ok" and is_final(op)]
    if not scans:
        findings.undecided("there is no final scan")
    for scan in scans:
        for worker in _turns(found):
            for row in map(str, range(OUTSTANDING)):
                findings.saw(worker)
                yield scan, worker, row, scan.result.get(f"{worker}.{row}")


def _as_told(found: Sequence[Operation]) -> Result:
    findings, turns = Findings(VERSIONS), _turns(found)
    by_commit: dict[int, tuple[str, Operation]] = {}
    for worker, ops in turns.items():
        for op in ops:
            for row, commit in (op.result if op.status == "ok" else {}).items():
                if commit is None:
                    continue
                what, before = by_commit.setdefault(commit, (f"{worker}.{row}", op))
                if (what, before) != (f"{worker}.{row}", op):
                    words = f"commit {commit} was told of {what} and of {worker}.{row}"
                    findings.violated(worker, words, [before, op])
    for scan, worker, row, seen in _rows(found, findings):
        written = next((op for op in turns[worker] if seen is not None and op.argument == seen[0]), None)
        told = None if written is None else _told(written, row)
        if written is not None and seen is not None and told not in (None, seen[1]):
            words = f"{worker}.{row} has version {seen[1]} at {scan.node}: the put of {seen[0]} was told {told}"
            findings.violated(worker, words, [written, scan])
    return findings.result()


def _none_lost(found: Sequence[Operation]) -> Result:
    findings, turns = Findings(LOST), _turns(found)
    for scan, worker, row, seen in _rows(found, findings):
        newest = next((op for op in reversed(turns[worker]) if _told(op, row) is not None), None)
        allowed = {op.argument for op in turns[worker] if _told(op, row) is None}
        if newest is not None:
            allowed.add(newest.argument)
        if (newest is not None and seen is None) or (seen is not None and seen[0] not in allowed):
            words = f"{worker}.{row} is {seen and seen[0]} at {scan.node} in the end"
            wanted = "" if newest is None else f": the put of {newest.argument} was acknowledged"
            findings.violated(worker, words + wanted, [scan] if newest is None else [newest, scan])
    return findings.result()
