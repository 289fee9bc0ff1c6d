"""Threads that write posts into the store: lists of posts as they are given, or single posts that wait together.

Owns: who writes at once, and which posts share a call. An application of single posts would be bounded by the groups
that Cassandra's log is flushed in long before processors are busy, if each post had a call of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, Protocol

from bench.dataflows.workload import TIMELINES, TWEETS, Posts, copies, tweets
from oncegate.spark_sink.rows import Contacts
from oncegate.stores import open_store

THREADS: Final = 8
"""That write at once: one store each."""
ROWS_MAX: Final = 2_000
"""Of one call of posts that share it; a post with more has a call of its own."""
INTERVAL_MS: Final = 1_000
"""Between two looks at a queue that is empty, of workers and of the Spark job alike: what comes meanwhile is written
together. At 190 posts a second looking five times a second took 9.9 ms of processor time a post (integrated) and 8.6
(external queue), once a second 7.6 and 7.5.
"""


class Writers:
    """Threads with a store each."""

    def __init__(self, url: str, known: Contacts, threads: int = THREADS) -> None:
        self.threads = threads
        self._url, self._known, self._own = url, known, threading.local()
        self._pool = ThreadPoolExecutor(threads, initializer=self._connect)

    async def write_tweets(self, numbers: list[int], values: list[str]) -> None:
        """Write a row for each post; all of it is durable when this returns."""
        await asyncio.get_running_loop().run_in_executor(self._pool, self._tweets, numbers, values)

    async def write_copies(self, numbers: list[int], values: list[str]) -> None:
        """Write a row for each follower of each post's author; all of it is durable when this returns."""
        await asyncio.get_running_loop().run_in_executor(self._pool, self._copies, numbers, values)

    def close(self) -> None:
        """Wait for what is under way, and disconnect."""
        all_there = threading.Barrier(self.threads)  # so that no thread closes for another
        for closing in [self._pool.submit(self._disconnect, all_there) for _ in range(self.threads)]:
            closing.result()
        self._pool.shutdown()

    def _connect(self) -> None:
        self._own.store = open_store(self._url)

    def _disconnect(self, all_there: threading.Barrier) -> None:
        all_there.wait()
        self._own.store.close()

    def _tweets(self, numbers: list[int], values: list[str]) -> None:
        self._own.store.write(TWEETS, tweets(Posts.of(numbers, values)))

    def _copies(self, numbers: list[int], values: list[str]) -> None:
        for rows in copies(Posts.of(numbers, values), self._known):
            self._own.store.write(TIMELINES, rows)


class _Waiting(NamedTuple):
    """A post, the rows that it becomes, and who waits for them."""

    number: int
    value: str
    rows: int
    written: asyncio.Future[None]


class Write(Protocol):
    """Writes posts; all of it is durable when this returns."""

    async def __call__(self, numbers: list[int], values: list[str]) -> None:
        """Write."""


class Together:
    """Posts that wait for a turn share a call, at most `ROWS_MAX` rows; so many calls at once.

    Posts that come alone are written alone and at once. The number that waits is bounded by who awaits.
    """

    def __init__(self, write: Write, at_once: int) -> None:
        self._write, self._free = write, at_once
        self._waiting: deque[_Waiting] = deque()
        self._calls: set[asyncio.Task[None]] = set()

    async def post(self, number: int, value: str, rows: int) -> None:
        """Write a post that becomes so many rows.

        Raises:
            StoreError: the store's, of the call that it was in.
        """
        written = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(number, value, rows, written))
        if self._free:
            self._free -= 1
            call = asyncio.ensure_future(self._calls_in_turn())
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
        await written

    async def _calls_in_turn(self) -> None:
        try:
            while self._waiting:
                taken = self._take()
                try:
                    await self._write([one.number for one in taken], [one.value for one in taken])
                except Exception as fault:  # noqa: BLE001 - each who waits is told
                    for one in taken:
                        if not one.written.done():  # who waited may have been cancelled
                            one.written.set_exception(fault)
                else:
                    for one in taken:
                        if not one.written.done():
                            one.written.set_result(None)
        finally:
            self._free += 1

    def _take(self) -> list[_Waiting]:
        taken = [self._waiting.popleft()]
        rows = taken[0].rows
        while self._waiting and rows + self._waiting[0].rows <= ROWS_MAX:
            taken.append(self._waiting.popleft())
            rows += taken[-1].rows
        return taken
