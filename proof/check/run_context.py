"""What a workload sees of a run: the nodes, the history, the seed, and how long to go on.

Owns: the steps that workloads share, each recorded as one operation with its honest outcome: a write by a request of
a :class:`~oncegate.proof.check.direct_session.DirectSession`, a read at a chosen node, and the same through the SDK. A
read without an answer changed nothing and is recorded as failed; a write without one is unknown.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar
from urllib.parse import quote

from oncegate.gateway.client import Client, OncegateError, Outcome, Tuning, WriteResult
from oncegate.gateway.client.paths import row_path, table_path
from oncegate.gateway.local.waiting import until
from oncegate.proof.check.direct_session import DirectSession, RequestVerdict, open_session
from oncegate.proof.check.node_requests import ATTEMPT_S, AttemptReply, Nodes
from oncegate.proof.check.plan import PROCESSES_MAX, RunPlan
from oncegate.proof.check.recorder import HistoryRecorder

T = TypeVar("T")

FINAL_S: Final = 60.0
"""How long a healed cluster may take to answer a final read."""

THINK_S: Final = 0.01
"""Mean pause of a worker between two operations: a few hundred a second, dense around each fault."""

SDK_S: Final = 3.0
ANSWERED_ABSENT: Final = frozenset({200, 404})


class NotRecovered(Exception):
    """A healed cluster did not answer in time: the run proves nothing about what it cannot read."""


class World:
    """One run as its workload sees it.

    Args:
        plan: what is run.
        nodes: connections to the nodes.
        recorder: takes the history.
        directory: scratch space of the run, removed unless the run is kept.
    """

    def __init__(self, plan: RunPlan, nodes: Nodes, recorder: HistoryRecorder, directory: Path) -> None:
        self.plan = plan
        self.nodes = nodes
        self.recorder = recorder
        self.directory = directory

    def random(self, purpose: object) -> Random:
        """Return the dice of one purpose; they fall the same way in every run of the seed."""
        return Random(f"{self.plan.seed}/{self.plan.workload}/{purpose}")

    def goes_on(self, until: float) -> bool:
        """Whether a worker may begin another operation; ``until`` is on the monotonic clock."""
        return time.monotonic() < until and not self.recorder.full

    async def think(self, random: Random, mean_s: float = THINK_S) -> None:
        """Pause between two operations."""
        await asyncio.sleep(min(10 * mean_s, random.expovariate(1 / mean_s)))

    # Sessions and declarations

    async def session(self, random: Random, until: float, *, lease_ms: int = 60_000) -> DirectSession | None:
        """Open a session; None once the run is over."""
        while self.goes_on(until):
            session = await open_session(self.nodes, random, lease_ms=lease_ms, open_s=until - time.monotonic())
            if session is not None:
                return session
        return None

    def sdk(self, process: int, tuning: Tuning | None = None) -> Client:
        """Return a client of the SDK, to be entered; odd workers take all nodes in turn rather than the leader."""
        endpoints = [self.nodes.endpoints()[node] for node in self.nodes.ids]
        turn = process % len(endpoints)
        return Client(
            endpoints[turn:] + endpoints[:turn],
            timeout_s=SDK_S,
            prefer_leader=process % 2 == 0,
            tuning=tuning or Tuning(attempt_timeout_s=ATTEMPT_S),
            tracing=False,
        )

    async def declare(self, table: str, kind: str = "resident") -> None:
        """Declare a table; raises NotRecovered."""
        await self.insist("PUT", table_path(table), {"kind": kind})

    async def insist(self, method: str, path: str, body: Any = None, *, node: str | None = None) -> AttemptReply:
        """Ask a healthy cluster until it answers 200 or 404; for idempotent calls before and after the run.

        Raises:
            NotRecovered: no answer within :data:`FINAL_S`.
        """
        turns = itertools.cycle([node] if node else self.nodes.ids)
        last = ""

        async def answered() -> AttemptReply | None:
            nonlocal last
            asked = next(turns)
            reply = await self.nodes.call(asked, method, path, body, timeout_s=5.0)
            last = f"{asked}: {reply.status} {reply.code}"
            return reply if reply.done or reply.status == 404 else None

        return await self.wait(answered, FINAL_S, f"{method} {path} is answered", state=lambda: last)

    async def wait(
        self,
        condition: Callable[[], Awaitable[T | None]],
        timeout_s: float,
        what: str,
        *,
        state: Callable[[], object] | None = None,
        every_s: float = 0.05,
    ) -> T:
        """Return the first true value of ``condition()`` at a healed cluster; see
        :mod:`oncegate.gateway.local.waiting`.

        Raises:
            NotRecovered: not in time.
        """
        try:
            return await until(condition, timeout_s, what, state=state, every_s=every_s)
        except TimeoutError as late:
            raise NotRecovered(str(late)) from None

    # Steps

    async def write(
        self,
        process: int,
        session: DirectSession,
        operation: Mapping[str, Any],
        f: str,
        value: Any,
        *,
        answer: Callable[[Mapping[str, Any]], Any] = lambda result: None,
        refused: Callable[[Mapping[str, Any]], Any] | None = None,
    ) -> RequestVerdict:
        """Perform a new request and record it.

        Args:
            process: the worker.
            session: whose next sequence number it takes; acknowledged with the next request.
            operation: as it travels, without its sequence number.
            f: as the history has it.
            value: the argument as the history has it.
            answer: makes the recorded result out of that of an applied operation.
            refused: the same for a failed condition; by default ``{"refused": code, "value"?}``.
        """
        sequence = session.take()
        recorded = self.recorder.begin(process, f, operation["key"], value, request=session.request(sequence))
        verdict = await session.perform(sequence, operation)
        session.acknowledge(sequence)
        if verdict.kind == "applied":
            recorded.ok(answer(verdict.result), verdict.node)
        elif verdict.kind == "refused":
            recorded.ok((refused or refusal)(verdict.result), verdict.node)
        else:
            recorded.no_result(verdict.code, verdict.node, failed=verdict.kind == "failed")
        return verdict

    async def read(
        self,
        process: int,
        table: str,
        key: str,
        random: Random,
        *,
        f: str = "read",
        answer: Callable[[Mapping[str, Any] | None], Any] = lambda row: row and row["value"],
        node: str | None = None,
        query: str = "",
    ) -> Any:
        """Read a row at one node, linearizable unless ``query`` says otherwise, and record it.

        Returns:
            The row, or None if it is absent or there was no answer.
        """
        asked = node or random.choice(self.nodes.ids)
        recorded = self.recorder.begin(process, f, key, node=asked)
        reply = await self.nodes.call(asked, "GET", row_path(table, key) + query)
        if reply.status not in ANSWERED_ABSENT:
            recorded.fail(reply.code)
            return None
        row = reply.body if reply.done else None
        recorded.ok(answer(row))
        return row

    async def final_reads(
        self,
        table: str,
        keys: list[str],
        *,
        f: str = "read",
        answer: Callable[[Mapping[str, Any] | None], Any] = lambda row: row and row["value"],
    ) -> None:
        """Read every key at every node of the healed cluster, recorded under numbers of their own.

        Raises:
            NotRecovered: a node does not answer.
        """
        reader = PROCESSES_MAX
        for key in keys:
            for node in self.nodes.ids:
                recorded = self.recorder.begin(reader, f, key, node=node)
                try:
                    reply = await self.insist("GET", row_path(table, key), node=node)
                except NotRecovered:
                    recorded.fail("not recovered")
                    raise
                recorded.ok(answer(reply.body if reply.done else None))

    async def through_sdk(
        self,
        process: int,
        call: Callable[[], Awaitable[WriteResult]],
        f: str,
        key: str,
        value: Any,
        *,
        answer: Callable[[WriteResult], Any] = lambda result: None,
    ) -> WriteResult | None:
        """Make one call of the SDK and record it; the SDK retries and routes by itself.

        Returns:
            The result, or None where there is none.
        """
        recorded = self.recorder.begin(process, f, key, value)
        try:
            result = await call()
        except OncegateError as failure:
            recorded.no_result(failure.code, failed=failure.outcome is Outcome.NOT_APPLIED)
            return None
        recorded.ok(answer(result))
        return result


def refusal(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a refused operation's result as histories have it."""
    told = {"refused": result.get("code", "CONDITION_FAILED")}
    return {**told, "value": result["value"]} if "value" in result else told


def batch_path(flow: str, number: int) -> str:
    """Return the path of a batch."""
    return f"/v1/flows/{quote(flow, safe='')}/batches/{number}"
