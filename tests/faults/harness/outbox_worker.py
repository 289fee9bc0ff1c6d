"""A worker that dies by kill -9 again and again, and counts through its outbox.

Lives are forked from a process that has imported the SDK, so that two hundred of them cost seconds: the kill is that
of a real process all the same.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from multiprocessing.context import ForkServerProcess
from multiprocessing.synchronize import Event
from typing import Any, Final

from oncegate import Client

TABLE: Final = "rows"
CONCURRENCY: Final = 32

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.faults.harness.outbox_worker"])


def key_of(number: int) -> str:
    """Return the row that increment ``number`` raises, and no other one does."""
    return f"n{number:06d}"


async def work(endpoints: list[str], outbox: str, total: int, started: Event, *, hold: bool) -> None:
    """Raise the rows from where the outbox stands up to ``total``; with ``hold``, wait for the kill then."""
    async with Client(endpoints) as client, client.session(outbox=outbox) as session:
        started.set()
        position = session.position
        places = asyncio.Semaphore(CONCURRENCY)
        async with asyncio.TaskGroup() as group:
            for number in range(position if isinstance(position, int) else 0, total):
                await places.acquire()
                write = session.submit("increment", TABLE, key_of(number), position=number + 1)
                write.add_done_callback(lambda _: places.release())
                group.create_task(_result(write))
        if hold:
            await asyncio.Event().wait()


async def _result(write: asyncio.Future[Any]) -> None:
    await write


def _main(endpoints: list[str], outbox: str, total: int, started: Event, hold: bool) -> None:
    asyncio.run(work(endpoints, outbox, total, started, hold=hold))


class Life:
    """One process of the worker."""

    def __init__(self, endpoints: list[str], outbox: str, total: int, *, hold: bool) -> None:
        self.started = _CONTEXT.Event()
        self.process: ForkServerProcess = _CONTEXT.Process(
            target=_main, args=(endpoints, outbox, total, self.started, hold), daemon=True
        )
        self.process.start()

    def kill(self) -> int | None:
        """Send SIGKILL and return what the process ended with."""
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, signal.SIGKILL)
        return self.wait()

    def wait(self) -> int | None:
        """Wait for the end and return the exit code."""
        self.process.join(60.0)
        return self.process.exitcode
