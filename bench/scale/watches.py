"""Watches of rows in this process, and of a whole table in a process of their own.

``python -m bench.scale.watches ENDPOINT TABLE COUNT`` is that process: every third watch reads nothing once it has
begun; the others read, and count what they are told. It writes a line when all have begun, and another with the number
of events when its input ends. It has a processor's time of its own: beside the writers, in one event loop, it would be
measured with them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Final, Self
from urllib.parse import urlsplit

CONNECTING: Final = 50
"""Connections that are made at the same time."""
SILENT: Final = 3
"""The last one of so many reads nothing."""


class _Watch(asyncio.Protocol):
    """One watch; ``begun`` is done when it is told where it begins."""

    def __init__(self, *, reads: bool) -> None:
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.events = 0
        self.transport: asyncio.Transport | None = None
        self._reads = reads

    def data_received(self, data: bytes) -> None:
        self.events += data.count(b"event: changes")
        if not self.begun.done():
            if b"event: progress" in data:
                self.begun.set_result(None)
                if not self._reads and self.transport is not None:
                    self.transport.pause_reading()
            elif not data.startswith(b"HTTP/1.1 200"):
                self.begun.set_exception(ConnectionError(data[:200].decode(errors="replace")))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.begun.done():
            self.begun.set_exception(ConnectionError("the node has ended a watch"))


class Watches:
    """Watches of one table at one node, a connection each."""

    def __init__(self, endpoint: str, table: str) -> None:
        self._all: list[_Watch] = []
        self._parts, self._table = urlsplit(endpoint), table

    async def begin(self, queries: Sequence[str], *, silent: bool = False) -> None:
        """Begin a watch for each query string, and wait until each knows where it begins."""
        turns, loop = asyncio.Semaphore(CONNECTING), asyncio.get_running_loop()

        async def one(number: int, query: str) -> None:
            watch = _Watch(reads=not silent or number % SILENT != SILENT - 1)
            self._all.append(watch)
            async with turns:
                host, port = self._parts.hostname or "", self._parts.port or 0
                watch.transport, _ = await loop.create_connection(lambda: watch, host, port)
                asked = f"GET /v1/tables/{self._table}/watch{query} HTTP/1.1\r\nHost: {self._parts.netloc}\r\n\r\n"
                watch.transport.write(asked.encode())
                await watch.begun

        await asyncio.gather(*(one(number, query) for number, query in enumerate(queries)))

    async def close(self) -> int:
        """End all of them; returns how many events they were told."""
        for watch in self._all:
            if watch.transport is not None:
                watch.transport.abort()
        await asyncio.sleep(1.0)  # the node's side
        return sum(watch.events for watch in self._all)


def watch_flags(watches: int) -> tuple[str, ...]:
    """Return the flags of a node with room for so many watches of one table."""
    room = str(watches + 1000)
    return "--connections-max", str(2 * watches + 1000), "--watchers-max", room, "--watchers-table-max", room


class TableWatches:
    """The process with watches of a whole table, as who started it sees it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def open(cls, endpoint: str, table: str, count: int) -> Self:
        """Start it, and wait until all watches have begun; raises ConnectionError if they cannot."""
        pipe = asyncio.subprocess.PIPE
        words = (sys.executable, "-m", "bench.scale.watches", endpoint, table, str(count))
        process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe)
        if process.stdout is None or await process.stdout.readline() != b"begun\n":
            raise ConnectionError(f"{count} watches could not begin")
        return cls(process)

    async def close(self) -> int:
        """End it; returns how many events the watches were told."""
        told, _ = await self._process.communicate(b"")  # closes its standard input, which ends it
        return int(told or 0)


async def _main(endpoint: str, table: str, count: int) -> None:
    watches = Watches(endpoint, table)
    await watches.begin([""] * count, silent=True)
    print("begun", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(await watches.close(), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
