"""A till of the ticket shop as a process that can be killed and stopped; what it tells goes to a file.

Tills are forked from a process that has imported the shop, so that a hundred of them cost seconds.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Final

from examples.applications.ticket_shop import Order, sell
from oncegate import Client
from oncegate.gateway.client.outbox_file import Head, OutboxFile
from oncegate.gateway.local.waiting import until

LEASE_MS: Final = 4_000

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.faults.harness.till"])


def _main(endpoints: list[str], orders: list[Order], outbox: Path) -> None:
    told = os.open(outbox.with_suffix(".told"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(told, sys.stdout.fileno())

    async def run() -> None:
        async with Client(endpoints) as client:
            await sell(client, orders, outbox, LEASE_MS)

    asyncio.run(run())


class Till:
    """A till with its outbox; at most one process of it runs."""

    def __init__(self, endpoints: list[str], orders: list[Order], outbox: Path) -> None:
        self.orders = orders
        self.outbox = outbox
        self._arguments = (endpoints, orders, outbox)
        self._process: ForkServerProcess

    def start(self) -> None:
        self._process = _CONTEXT.Process(target=_main, args=self._arguments, daemon=True)
        self._process.start()

    def signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def close(self) -> None:
        """Kill what runs: one that stands still would be waited for at the end of this process."""
        self._process.kill()

    async def ended(self) -> int:
        """Wait for the end and return the exit code; in this thread, since every start of a process looks at all."""
        await until(lambda: self._process.exitcode is not None, 60.0, "the till ends")
        assert self._process.exitcode is not None
        return self._process.exitcode

    def told(self) -> list[str]:
        return self.outbox.with_suffix(".told").read_text().splitlines()

    def look(self, *, owned: bool = True) -> tuple[Head, int]:
        """Return the head of the outbox, and how many entries it has; ``owned``: beside the process that has it."""
        if owned and not self.outbox.exists():
            return Head(), 0
        file = OutboxFile(self.outbox, read_only=owned)
        try:
            return file.head, len(file.loaded)
        finally:
            file.close()

    def done(self, *, owned: bool = True) -> int:
        """Return how many orders were taken in."""
        return self.look(owned=owned)[0].position or 0
