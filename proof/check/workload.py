"""What a workload is, and what it sees of a run: the nodes, the history, the seed, and how long to go on.

Owns: the class that the runner drives, and the steps that workloads share. Each step is recorded as one operation with
its honest outcome: a write by a request of a :class:`~oncegate.proof.check.direct_session.DirectSession`, and a read at
a chosen node. A read without an answer changed nothing and is recorded as failed; a write without one is unknown.
Read next: :mod:`oncegate.proof.check.workloads`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final, TypeVar

from oncegate.gateway.client import Client, OncegateError, Session, Tuning
from oncegate.gateway.client.paths import row_path, session_path, table_path
from oncegate.gateway.local.waiting import until
from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.direct_session import (
    ATTEMPT_S,
    AttemptReply,
    DirectSession,
    Nodes,
    RequestVerdict,
    open_session,
)
from oncegate.proof.check.plan import PROCESSES_MAX, RunPlan
from oncegate.proof.check.recorder import HistoryRecorder, OpenOperation
from oncegate.proof.check.tenants import token
from oncegate.proof.lincheck import Event, Result

T = TypeVar("T")
Seen = Callable[[Mapping[str, Any] | None], Any]
"""Makes a read's recorded result out of the row, None if it is absent."""

FINAL_S: Final = 60.0
"""How long a healed cluster may take to answer a final read."""
THINK_S: Final = 0.01
"""Mean pause of a worker between two operations: a few hundred a second, dense around each fault."""
SDK_S: Final = 3.0
LEASE_MS: Final = 60_000


class NotRecovered(Exception):
    """A healed cluster did not answer in time: the run proves nothing about what it cannot read."""


def value_of(row: Mapping[str, Any] | None) -> Any:
    """Return a row's value; None if it is absent."""
    return row and row["value"]


def refusal(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a refused operation's result as histories have it."""
    refused = {"refused": result.get("code", "CONDITION_FAILED")}
    return {**refused, "value": result["value"]} if "value" in result else refused


class World:
    """One run as its workload sees it; ``directory`` is scratch space, removed when the run ends."""

    def __init__(self, plan: RunPlan, nodes: Nodes, recorder: HistoryRecorder, directory: Path) -> None:
        self.plan, self.nodes, self.recorder, self.directory = plan, nodes, recorder, directory

    def random(self, purpose: object) -> Random:
        """Return the dice of one purpose; they fall the same way in every run of the seed."""
        return Random(f"{self.plan.seed}/{self.plan.workload}/{purpose}")

    def client(self, turn: int, tuning: Tuning | None = None) -> Client:
        """Return a client of the SDK that asks the nodes in turn, beginning with this one."""
        endpoints = [self.nodes.endpoints()[node] for node in self.nodes.ids]
        turn %= len(endpoints)
        tuning = tuning or Tuning(attempt_timeout_s=ATTEMPT_S)
        return Client(endpoints[turn:] + endpoints[:turn], timeout_s=SDK_S, tuning=tuning, tracing=False, token=token())

    async def declare(self, table: str, kind: str = "resident") -> None:
        """Declare a table; raises NotRecovered."""
        await self.insist("PUT", table_path(table), {"kind": kind})

    async def insist(self, method: str, path: str, body: Any = None, *, node: str | None = None) -> AttemptReply:
        """Ask a healthy cluster until it answers 200 or 404; for idempotent calls before and after the run.

        Raises NotRecovered without an answer within :data:`FINAL_S`.
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
        """Return the first true value of ``condition()`` (:func:`~oncegate.gateway.local.waiting.until`); raises
        NotRecovered when time is up.
        """
        try:
            return await until(condition, timeout_s, what, state=state, every_s=every_s)
        except TimeoutError as late:
            raise NotRecovered(str(late)) from None

    def note(self, f: str, key: Any, result: Any, *, node: str | None = None) -> None:
        """Record what was found after the run, under the number of the final reads."""
        self.recorder.begin(PROCESSES_MAX, f, key, node=node).ok(result)

    async def final_reads(self, table: str, keys: Sequence[str], *, f: str = "read", seen: Seen = value_of) -> None:
        """Read every key at every node of the healed cluster, recorded under one number; raises NotRecovered."""
        for key, node in itertools.product(keys, self.nodes.ids):
            recorded = self.recorder.begin(PROCESSES_MAX, f, key, node=node)
            try:
                reply = await self.insist("GET", row_path(table, key), node=node)
            except NotRecovered:
                recorded.fail("not recovered")
                raise
            recorded.ok(seen(reply.body if reply.done else None))


class Worker:
    """One process of a run: its dice, its session, and its recorded steps.

    Args:
        world: the run.
        process: its number.
        until: when it ends, on the monotonic clock.
        random: its dice; by default those of its number.
    """

    session: DirectSession
    """From :meth:`has_session` on."""

    def __init__(self, world: World, process: int, until: float, random: Random | None = None) -> None:
        self.world, self.process, self.until = world, process, until
        self.random = random or world.random(process)
        self._has_session = False

    def goes_on(self) -> bool:
        """Whether it may begin another operation."""
        return time.monotonic() < self.until and not self.world.recorder.full

    async def think(self, mean_s: float = THINK_S) -> None:
        """Pause between two operations."""
        await asyncio.sleep(min(10 * mean_s, self.random.expovariate(1 / mean_s)))

    async def has_session(self, lease_ms: int = LEASE_MS) -> bool:
        """Open a session if there is none or it is over; False once the run is over."""
        if self._has_session and not self.session.over:
            return True
        while self.goes_on():
            left = self.until - time.monotonic()
            session = await open_session(self.world.nodes, self.random, lease_ms=lease_ms, open_s=left)
            if session is not None:
                self.session, self._has_session = session, True
                return True
        return False

    async def close_session(self) -> None:
        """Close the session at one node, once, and record it; it is not used any more, whatever the answer is."""
        session = self.session
        recorded = self.begin("close", session.client_id)
        path = f"{session_path(session.client_id)}?epoch={session.epoch}"
        reply = await self.world.nodes.call(self.node(), "DELETE", path)
        session.over = True
        if reply.done:
            recorded.ok(None)
        else:
            recorded.info(reply.code)

    def node(self) -> str:
        """Choose a node."""
        return self.random.choice(self.world.nodes.ids)

    def begin(
        self, f: str, key: Any, value: Any = None, *, node: str | None = None, request: str | None = None
    ) -> OpenOperation:
        """Record an invocation, as :meth:`HistoryRecorder.begin` does."""
        return self.world.recorder.begin(self.process, f, key, value, node=node, request=request)

    async def write(
        self,
        operation: Mapping[str, Any],
        f: str,
        value: Any,
        *,
        key: str = "",
        answer: Callable[[Mapping[str, Any]], Any] = lambda result: None,
        refused: Callable[[Mapping[str, Any]], Any] = refusal,
    ) -> RequestVerdict:
        """Perform a new request of the session, acknowledge it, and record it.

        Args:
            operation: as it travels, without its sequence number.
            f: as the history has it.
            value: the argument as the history has it.
            key: likewise; by default the operation's.
            answer: makes the recorded result out of that of an applied operation.
            refused: the same for a failed condition.
        """
        session = self.session
        sequence = session.take()
        recorded = self.begin(f, key or operation["key"], value, request=session.request(sequence))
        verdict = await session.perform(sequence, operation)
        session.acknowledge(sequence)
        if verdict.answered:
            make = answer if verdict.kind == "applied" else refused
            recorded.ok(make(verdict.result), verdict.node)
        else:
            recorded.no_result(verdict.code, verdict.node, failed=verdict.kind == "failed")
        return verdict

    async def read(self, table: str, key: str, *, f: str = "read", seen: Seen = value_of, query: str = "") -> Any:
        """Read a row at one node, linearizable unless ``query`` says otherwise, and record it.

        Returns the row, or None if it is absent or there was no answer.
        """
        node = self.node()
        recorded = self.begin(f, key, node=node)
        reply = await self.world.nodes.call(node, "GET", row_path(table, key) + query)
        if reply.status not in (200, 404):
            recorded.fail(reply.code)
            return None
        row = reply.body if reply.done else None
        recorded.ok(seen(row))
        return row

    async def through_sdk(
        self, step: Callable[[Session], Awaitable[None]], tuning: Tuning | None = None, **options: bool
    ) -> None:
        """Do one step after another in a session of the SDK, and go on in a new one when it is lost.

        ``options`` are the session's.
        Even workers prefer the leader; odd ones take all nodes in turn.
        """
        nodes, turn = self.world.nodes, self.process % len(self.world.nodes.ids)
        endpoints = [nodes.endpoints()[node] for node in nodes.ids]
        async with Client(
            endpoints[turn:] + endpoints[:turn],
            timeout_s=SDK_S,
            prefer_leader=self.process % 2 == 0,
            tuning=tuning or Tuning(attempt_timeout_s=ATTEMPT_S),
            tracing=False,
            token=token(),
        ) as client:
            while self.goes_on():
                try:
                    nonce = f"{self.random.getrandbits(128):032x}"
                    async with client.session(nonce=nonce, **options) as session:  # type: ignore[arg-type]
                        while self.goes_on() and not session.lost.is_set():
                            await step(session)
                            await self.think()
                except OncegateError:
                    await self.think()  # no session now; nothing was begun


class Workload(ABC):
    """One kind of run. An instance belongs to one run; :meth:`check` needs nothing that is not in the history.

    By default a worker does one :meth:`step` after another in a direct session, and rows of one table are read.
    """

    name: ClassVar[str]
    proves: ClassVar[str]
    """One line for a person: what a valid run shows."""
    table: ClassVar[str]
    keys: Sequence[str] = ()
    """What is read in the end."""
    f: ClassVar[str] = "read"
    """Name of a read in the history."""
    seen: Seen = staticmethod(value_of)
    lease_ms: ClassVar[int] = LEASE_MS

    async def set_up(self, world: World) -> None:
        """Declare what is needed, before processes and faults begin."""
        await world.declare(self.table)

    async def run_process(self, worker: Worker) -> None:
        """Do one worker's part until its time is over."""
        while worker.goes_on() and await worker.has_session(self.lease_ms):
            await self.step(worker)
            await worker.think()

    async def step(self, worker: Worker) -> None:
        """Do one operation in the worker's session."""
        raise NotImplementedError

    async def read(self, worker: Worker, key: str, query: str = "") -> Any:
        """Read a row of the table, and record it."""
        return await worker.read(self.table, key, f=self.f, seen=self.seen, query=query)

    async def finish(self, world: World) -> None:
        """Read what is there in the end, when the cluster is healed; raises NotRecovered."""
        await world.final_reads(self.table, self.keys, f=self.f, seen=self.seen)

    @abstractmethod
    def check(self, history: Sequence[Event]) -> list[Result]:
        """Judge a history."""

    def restorable(self) -> Sequence[str]:
        """Return keys of rows that :meth:`check` judges by any read of them: what a backup holds is one."""
        return self.keys

    # A workload that runs more than the nodes: see :class:`oncegate.proof.check.workloads.stream.StoredReads`

    def processes(self, plan: RunPlan) -> Collection[str]:
        """Return the names of what it will register, so that faults on them can be planned."""
        return ()

    def lacks(self, plan: RunPlan) -> str:
        """Return why this machine cannot run it; empty: it can."""
        return ""

    def equip(self, cluster: CheckCluster, plan: RunPlan) -> None:  # noqa: B027
        """Add flags to the nodes and register processes, before any node starts; blocks while one of them starts.

        They are killed with the cluster, and their files are below its directory. Raises CheckError.
        """
