"""Rows with versions: put, insert, delete and get, with conditions on the version.

Judged by the row model: versions are commit numbers, so they order the writes of a row, and the search has next to
nothing to guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

from oncegate.proof.check.checks import linearizable
from oncegate.proof.check.direct_session import DirectSession
from oncegate.proof.check.durability import no_lost_version
from oncegate.proof.check.run_context import World
from oncegate.proof.check.workload import SessionLoop
from oncegate.proof.lincheck import Event, Result, operations

TABLE: Final = "versioned"
KEYS: Final = ("v0", "v1", "v2", "v3")


def versioned(row: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a read row as the row model has it: version 0 and no value if it is absent."""
    return {"version": 0} if row is None else {"version": row["version"], "value": row["value"]}


def written(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return an applied write's result as the row model has it."""
    return {"version": result["version"]}


def condition_failed(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a refused write's result as the row model has it: what was there instead."""
    told: dict[str, Any] = {"refused": result["code"]}
    if "version" in result:
        told["version"] = result["version"]
    if result.get("version") and "value" in result:
        told["value"] = result["value"]
    return told


class Rows(SessionLoop):
    """Conditions name versions that somebody has seen, fresh or old."""

    name: ClassVar[str] = "rows"
    proves: ClassVar[str] = "versions are unique, growing and true; conditions on them are exact; deleted is deleted"

    def __init__(self) -> None:
        self._written = 0
        self._seen: dict[str, int] = dict.fromkeys(KEYS, 0)

    async def set_up(self, world: World) -> None:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        await world.declare(TABLE)

    async def step(self, world: World, process: int, session: DirectSession, random: Random) -> None:
        """Do one operation on one row."""
        key = random.choice(KEYS)
        kind = random.choices(
            ("get", "get-op", "put", "put-if", "insert", "delete", "delete-if"), (6, 1, 2, 6, 2, 1, 1)
        )[0]
        if kind == "get":
            row = await world.read(process, TABLE, key, random, f="get", answer=versioned)
            self._seen[key] = self._seen[key] if row is None else row["version"]
            return
        operation: dict[str, Any] = {"op": kind.partition("-")[0], "table": TABLE, "key": key}
        argument: dict[str, Any] = {}
        if kind in ("put", "put-if", "insert"):
            self._written += 1
            operation["op"] = "put"
            operation["value"] = argument["value"] = self._written
        if kind == "insert":
            operation["if"] = argument["if"] = {"absent": True}
        elif kind.endswith("-if"):
            operation["if"] = argument["if"] = {"version": self._seen[key]} if self._seen[key] else {"absent": True}
        f = kind.partition("-")[0]
        answer = versioned_result if f == "get" else written
        verdict = await world.write(process, session, operation, f, argument, answer=answer, refused=condition_failed)
        if verdict.answered:
            self._seen[key] = int(verdict.result.get("version") or 0) if f != "delete" else 0

    async def finish(self, world: World) -> None:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        await world.final_reads(TABLE, list(KEYS), f="get", answer=versioned)

    def check(self, folder: Path, history: Sequence[Event]) -> list[Result]:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        found = operations(history)
        return [
            linearizable(found, "row", ("get", "put", "insert", "delete")),
            no_lost_version(found, ("put", "insert", "delete")),
        ]


def versioned_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a remembered read's result as the row model has it."""
    return {"version": result["version"], "value": result["value"]} if result.get("version") else {"version": 0}
