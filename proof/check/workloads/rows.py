"""Rows that are read and written at any node: registers, compare-and-set, versions, counters.

Each is judged by its model and by an invariant of its own. Every write stores a value of its own, so that each read
names the write that it saw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final

from oncegate.gateway.client import OncegateError, Outcome, Session, Tuning
from oncegate.proof.check.checks import (
    LOST,
    Findings,
    acknowledged,
    linearizable,
    no_lost_version,
    no_lost_write,
)
from oncegate.proof.check.workload import Worker, Workload
from oncegate.proof.lincheck import Event, Operation, Result, operations

IMPATIENT: Final = Tuning(attempt_timeout_s=0.25)
"""Attempts are given up early, so that retries meet originals that are still under way."""


def versioned(row: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a row, or a remembered read's result, as the row model has it: version 0 and no value if it is absent."""
    return {"version": row["version"], "value": row["value"]} if row and row.get("version") else {"version": 0}


def written(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return an applied write's result as the row model has it."""
    return {"version": result["version"]}


def condition_failed(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a refused write's result as the row model has it: what was there instead."""
    there = {name: result[name] for name in ("version", "value") if name in result}
    if not there.get("version"):
        there.pop("value", None)
    return {"refused": result["code"], **there}


def number(row: Mapping[str, Any] | None) -> int:
    """Return a counter that was read; an absent row is 0."""
    return row["value"] if row else 0


class RegisterWorkload(Workload):
    """Puts and reads, blindly."""

    name = "register"
    proves = "reads and writes of a row are linearizable at every node; no acknowledged write is lost"
    table = "registers"
    keys = ("r0", "r1", "r2", "r3")

    def __init__(self) -> None:
        self._values = count(1)

    async def step(self, worker: Worker) -> None:
        key = worker.random.choice(self.keys)
        if worker.random.random() < 0.5:
            await self.read(worker, key)
            return
        value = next(self._values)
        await worker.write({"op": "put", "table": self.table, "key": key, "value": value}, "write", value)

    def check(self, history: Sequence[Event]) -> list[Result]:
        found = operations(history)
        return [linearizable(found, "register", ("read", "write")), no_lost_write(found, ("write",))]


class CompareAndSet(Workload):
    """Replaces the value that any worker saw last; a comparison that holds names the one write before it."""

    name = "compare-and-set"
    proves = "conditions by value are evaluated and applied as one step, once"
    table = "swapped"
    keys = ("c0", "c1", "c2")

    def __init__(self) -> None:
        self._values = count(1)
        self._seen: dict[str, Any] = dict.fromkeys(self.keys)

    async def step(self, worker: Worker) -> None:
        key = worker.random.choice(self.keys)
        dice = worker.random.random()
        if dice < 0.3:
            row = await self.read(worker, key)
            if row is not None:
                self._seen[key] = row["value"]
            return
        new = next(self._values)
        put = {"op": "put", "table": self.table, "key": key, "value": new}
        if dice < 0.4:
            await worker.write(put, "write", new)
            return
        old = self._seen[key]
        condition = {"absent": True} if old is None else {"value": old}
        verdict = await worker.write({**put, "if": condition}, "cas", [old, new])
        if verdict.kind == "applied":
            self._seen[key] = new
        elif verdict.kind == "refused":
            self._seen[key] = verdict.result.get("value")

    def check(self, history: Sequence[Event]) -> list[Result]:
        found = operations(history)
        return [
            linearizable(found, "cas-register", ("read", "write", "cas")),
            no_lost_write(found, ("write", "cas"), lambda op: op.argument[1] if op.f == "cas" else op.argument),
        ]


class Rows(Workload):
    """Conditions name versions that a worker has seen, fresh or old; they order the writes of a row."""

    name = "rows"
    proves = "versions are unique, growing and true; conditions on them are exact; deleted is deleted"
    table = "versioned"
    keys = ("v0", "v1", "v2", "v3")
    f = "get"
    seen = staticmethod(versioned)

    def __init__(self) -> None:
        self._values = count(1)
        self._versions: dict[str, int] = dict.fromkeys(self.keys, 0)

    async def step(self, worker: Worker) -> None:
        key = worker.random.choice(self.keys)
        kinds = ("get", "get-op", "put", "put-if", "insert", "delete", "delete-if")
        kind = worker.random.choices(kinds, (6, 1, 2, 6, 2, 1, 1))[0]
        if kind == "get":
            row = await self.read(worker, key)
            self._versions[key] = self._versions[key] if row is None else row["version"]
            return
        f, _, conditional = kind.partition("-")
        argument: dict[str, Any] = {}
        if f in ("put", "insert"):
            argument["value"] = next(self._values)
        if f == "insert":
            argument["if"] = {"absent": True}
        elif conditional == "if":
            argument["if"] = {"version": self._versions[key]} if self._versions[key] else {"absent": True}
        operation = {"op": "put" if f == "insert" else f, "table": self.table, "key": key, **argument}
        answer = versioned if f == "get" else written
        verdict = await worker.write(operation, f, argument, answer=answer, refused=condition_failed)
        if verdict.answered:
            self._versions[key] = int(verdict.result.get("version") or 0) if f != "delete" else 0

    def check(self, history: Sequence[Event]) -> list[Result]:
        found, writes = operations(history), ("put", "insert", "delete")
        return [linearizable(found, "row", ("get", *writes)), no_lost_version(found, writes), _one_chain(found)]


def _one_chain(found: Sequence[Operation]) -> Result:
    """Check that a version was changed by one of those whose condition was that it is there."""
    findings = Findings("no two writes follow the same version")
    after: dict[tuple[Any, int], Operation] = {}
    for op in found:
        version = op.argument.get("if", {}).get("version", 0) if op.f in ("put", "delete") and acknowledged(op) else 0
        if version:
            findings.saw(op.key)
            before = after.setdefault((op.key, version), op)
            if before is not op:
                findings.violated(op.key, f"two writes followed version {version}", [before, op])
    return findings.result()


class CounterWorkload(Workload):
    """Raises counters through the SDK, which retries by itself: across nodes, leaders and lost answers.

    Each answer is the sum so far, so the next answer shows an increment that was applied twice or not at all.
    """

    name = "counter"
    proves = "the SDK's retries apply each increment exactly once"
    table = "counters"
    keys = ("n0", "n1", "n2")
    seen = staticmethod(number)

    async def run_process(self, worker: Worker) -> None:
        async def increment(session: Session) -> None:
            key = worker.random.choice(self.keys)
            if worker.random.random() < 0.25:
                await self.read(worker, key)
                return
            by = worker.random.choice((1, 1, 2, -1))
            recorded = worker.begin("increment", key, by)
            try:
                result = await session.increment(self.table, key, by)
            except OncegateError as failure:
                recorded.no_result(failure.code, failed=failure.outcome is Outcome.NOT_APPLIED)
            else:
                recorded.ok(result.value)

        await worker.through_sdk(increment, IMPATIENT)

    def check(self, history: Sequence[Event]) -> list[Result]:
        found = operations(history)
        return [linearizable(found, "counter", ("read", "increment")), _sums(found)]


def _sums(found: Sequence[Operation]) -> Result:
    """Check the final sum: what was acknowledged, and of the unknown increments any."""
    findings = Findings(LOST)
    for key, ops, reads in findings.with_final_reads(found, lambda op: op.f == "increment"):
        sure = sum(op.argument for op in ops if acknowledged(op))
        doubts = [op.argument for op in ops if op.status == "unknown"]
        low, high = sure + sum(by for by in doubts if by < 0), sure + sum(by for by in doubts if by > 0)
        for seen in reads:
            if not low <= seen.result <= high:
                words = f"{key} is {seen.result} at {seen.node} in the end, outside {low}..{high}"
                findings.violated(key, f"{words} of what was acknowledged", [seen])
    return findings.result()
