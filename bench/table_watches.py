"""Watches of a whole table, in a process of their own: ``python -m bench.table_watches ENDPOINT TABLE COUNT``.

Every third one reads nothing once it has begun; the others read, and count what they are told. The process writes a
line when all have begun, and another with the number of events when its input ends. It has a processor's time of its
own: beside the writers, in one event loop, it would be measured with them.
"""

from __future__ import annotations

import asyncio
import sys
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
        self._reads = reads
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.events += data.count(b"event: changes")
        if not self.begun.done():
            if b"event: progress" in data:
                self.begun.set_result(None)
                if not self._reads and isinstance(self._transport, asyncio.ReadTransport):
                    self._transport.pause_reading()
            elif not data.startswith(b"HTTP/1.1 200"):
                self.begun.set_exception(ConnectionError(data[:200].decode(errors="replace")))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.begun.done():
            self.begun.set_exception(ConnectionError("the node has ended a watch"))


async def _watch(endpoint: str, table: str, count: int) -> None:
    parts, turns, loop = urlsplit(endpoint), asyncio.Semaphore(CONNECTING), asyncio.get_running_loop()
    watches = [_Watch(reads=number % SILENT != SILENT - 1) for number in range(count)]

    async def begin(one: _Watch) -> None:
        async with turns:
            transport, _ = await loop.create_connection(lambda: one, parts.hostname or "", parts.port or 0)
            transport.write(f"GET /v1/tables/{table}/watch HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
            await one.begun

    await asyncio.gather(*(begin(one) for one in watches))
    print("begun", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(sum(one.events for one in watches), flush=True)


class TableWatches:
    """The process, as who started it sees it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def open(cls, endpoint: str, table: str, count: int) -> Self:
        """Start it, and wait until all watches have begun; raises ConnectionError if they cannot."""
        pipe = asyncio.subprocess.PIPE
        words = (sys.executable, "-m", "bench.table_watches", endpoint, table, str(count))
        process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe)
        if process.stdout is None or await process.stdout.readline() != b"begun\n":
            raise ConnectionError(f"{count} watches could not begin")
        return cls(process)

    async def close(self) -> int:
        """End it; returns how many events the watches were told."""
        told, _ = await self._process.communicate(b"")  # closes its standard input, which ends it
        return int(told or 0)


if __name__ == "__main__":
    asyncio.run(_watch(sys.argv[1], sys.argv[2], int(sys.argv[3])))
