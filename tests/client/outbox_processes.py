"""The processes of a model of outboxes: their connections, disks and calls, until they are killed."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

from oncegate import Client, OperationFailed, Outcome, OutcomeUnknown, Session
from oncegate.gateway.client.answer_head import AnswerHead
from oncegate.gateway.client.outbox_file import OutboxFile
from tests.client.test_session_model import Nodes, read


class Process:
    """One process: its connections, its disk and its tasks, until it is killed."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes, self.loop = nodes, nodes.loop
        self.is_dead = self.closed = self.is_over = False
        """``is_over``: another has a copy of its outbox, and may do what this one was refused."""
        self.disk = Disk(nodes)
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.client: Client
        self.session: Session

    # The pool of connections

    def host(self, endpoint: str) -> str:
        return endpoint

    def idle(self, _: str) -> Process:
        return self

    async def ask(self, request: bytes, due: float, finish: Callable[[AnswerHead, bytes], Any]) -> Any:
        try:
            return await self.nodes.ask(request, due, finish)
        except asyncio.CancelledError:
            if self.is_dead and self.nodes.dice.random() < 0.5:
                self.nodes.late.append(read(request))
            raise

    async def kill(self) -> None:
        """End it where it stands; nothing that it does from now on has an effect."""
        self.is_dead = True
        self.disk.stop()
        while tasks := list(self.tasks):  # those that end begin others, whose callbacks do
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for life in list(self.client._connection._sessions):
            self.client._connection.disown(life)
            if life.outbox is not None and life.outbox._flush_timer is not None:
                life.outbox._flush_timer.cancel()
            life.sender._sweep.cancel()
        await self.client._connection.close(drain=False)


class Disk(ThreadPoolExecutor):
    """The thread of an outbox: what it is to do is done one after another, each after a while, or never."""

    def __init__(self, nodes: Nodes) -> None:
        super().__init__(max_workers=1)
        self._nodes = nodes
        self._queue: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self.files: list[OutboxFile] = []
        self.breaks = ""

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._queue.append((future, lambda: work(*given, **named)))
        dice = self._nodes.dice
        self._nodes.loop.call_later(dice.choice((0.0, 0.001, 0.02, 0.3)), self._one)
        return future

    def _one(self) -> None:
        if not self._queue:
            return
        future, work = self._queue.popleft()
        try:
            if self.breaks == "before":
                raise OSError("the disk is full")
            made = work()
            if isinstance(made, OutboxFile):
                made._database.execute("PRAGMA synchronous=OFF")  # no power is lost here
                self.files.append(made)
            if self.breaks:
                raise OSError("the disk is gone")
        except (OSError, OperationFailed, sqlite3.Error) as fault:
            future.set_exception(fault)
        else:
            future.set_result(made)

    def stop(self) -> None:
        self._queue.clear()
        for file in self.files:
            file.close()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        while self._queue:
            self._one()


RUNNING: ContextVar[Process] = ContextVar("RUNNING")
"""The process whose code runs."""


def started(loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **named: Any) -> asyncio.Task[Any]:
    task = asyncio.Task(coro, loop=loop, **named)
    process = RUNNING.get(None)
    if process is not None:
        process.tasks[task] = None
        task.add_done_callback(process.tasks.pop)
    return task


class Write:
    """One call: what it writes, and what is known of it."""

    def __init__(self, number: int, row: str, future: asyncio.Future[Any], by: Process) -> None:
        self.number, self.row, self.by = number, row, by
        self.future: asyncio.Future[Any] | None = future
        self.commit = 0
        """Of the result that somebody was told."""
        self.never = self.doubted = self.cancelled = self.handed = self.asked = self.refused = False
        self.kept = True
        """Whether the line of outboxes has it, or may have it."""
        self.id: Any = None
        future.add_done_callback(self._told)

    @property
    def ended(self) -> bool:
        return bool(self.commit) or self.never or self.handed

    def _told(self, future: asyncio.Future[Any]) -> None:
        if self.by.is_dead:
            _ = future.cancelled() or future.exception()
        elif future.cancelled():
            self.cancelled = True
        elif (failure := future.exception()) is None:
            self.commit = future.result().commit
        elif not self.by.is_over or not self.kept:
            assert isinstance(failure, OperationFailed), repr(failure)
            self.never = failure.outcome is Outcome.NOT_APPLIED
            self.doubted = isinstance(failure, OutcomeUnknown)
            assert self.never != self.doubted, repr(failure)
            self.id = failure.request_id


class Many:
    """A ``put_many``: its rows are in the outbox one by one."""

    def __init__(self, keys: list[str], task: asyncio.Task[Any], by: Process) -> None:
        self.keys, self.by = keys, by
        self.applied: int | None = None
        """How many of them were, if that is certain."""
        task.add_done_callback(self._told)

    def _told(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or self.by.is_dead or self.by.is_over:
            return
        failure: Any = task.exception()
        if failure is None:
            self.applied = len(self.keys)
        elif failure.outcome is not Outcome.UNKNOWN:
            self.applied = getattr(failure, "applied", 0)
