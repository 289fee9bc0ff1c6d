"""What an application does with a post, three ways; the answer comes when each says that the post is safe.

| | before the answer | after it |
|---|---|---|
| synchronous | tweet and all copies are in Cassandra | nothing |
| external queue | tweet is in Cassandra and post, in parallel, in a queue on a majority of disks | workers write |
| integrated | post is in the gateway's log, on a majority of disks | Spark writes tweet and copies |

Owns: the three, as seen by the load. Read next: :mod:`bench.dataflows.app`, :mod:`bench.dataflows.worker`.
"""

from __future__ import annotations

import abc
import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import ClassVar, Final, Self

from bench.dataflows.jetstream import JetStream
from bench.dataflows.workload import TIMELINES, TWEETS, Posts, copies, tweets
from oncegate import Client
from oncegate.spark_sink.rows import Contacts
from oncegate.stores import open_store

THREADS: Final = 8
"""That write at once: one store each."""
TABLE: Final = "posts"
TIMEOUT_S: Final = 60.0


class DataFlow(abc.ABC):
    """Takes posts."""

    name: ClassVar[str]
    title: ClassVar[str]

    @abc.abstractmethod
    async def post(self, number: int, value: str) -> None:
        """Take a post; it is safe when this returns."""

    @abc.abstractmethod
    async def __aenter__(self) -> Self:
        """Connect."""

    @abc.abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect."""


class Writers:
    """Threads with a store each."""

    def __init__(self, url: str, known: Contacts, threads: int = THREADS) -> None:
        self._url, self._known, self._own = url, known, threading.local()
        self._pool, self._threads = ThreadPoolExecutor(threads, initializer=self._connect), threads

    async def write(self, numbers: list[int], values: list[str], *, with_tweets: bool, with_copies: bool) -> None:
        """Write what posts become; all of it is durable when this returns."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._pool, self._write, numbers, values, with_tweets, with_copies)

    def close(self) -> None:
        """Wait for what is under way, and disconnect."""
        all_there = threading.Barrier(self._threads)  # so that no thread closes for another
        for closing in [self._pool.submit(self._disconnect, all_there) for _ in range(self._threads)]:
            closing.result()
        self._pool.shutdown()

    def _connect(self) -> None:
        self._own.store = open_store(self._url)

    def _disconnect(self, all_there: threading.Barrier) -> None:
        all_there.wait()
        self._own.store.close()

    def _write(self, numbers: list[int], values: list[str], with_tweets: bool, with_copies: bool) -> None:
        posts, store = Posts.of(numbers, values), self._own.store
        if with_tweets:
            store.write(TWEETS, tweets(posts))
        for rows in copies(posts, self._known) if with_copies else ():
            store.write(TIMELINES, rows)


class Synchronous(DataFlow):
    """All rows are written before the answer."""

    name, title = "synchronous", "synchronous"

    def __init__(self, store: str, known: Contacts) -> None:
        self._writers = Writers(store, known)

    async def post(self, number: int, value: str) -> None:
        """Write the tweet and all copies."""
        await self._writers.write([number], [value], with_tweets=True, with_copies=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._writers.close)


class ExternalQueue(DataFlow):
    """The tweet goes to the store, and the post to a queue, at the same time; workers drain the queue."""

    name, title = "queue", "external queue"

    def __init__(self, store: str, known: Contacts, url: str) -> None:
        self._writers, self._queue, self._url = Writers(store, known), JetStream(), url

    async def post(self, number: int, value: str) -> None:
        """Write the tweet and queue the post."""
        await asyncio.gather(
            self._writers.write([number], [value], with_tweets=True, with_copies=False),
            self._queue.publish(f"{number} {value}".encode(), str(number)),
        )

    async def __aenter__(self) -> Self:
        await self._queue.connect(self._url)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._queue.__aexit__(kind, error, trace)
        await asyncio.to_thread(self._writers.close)


class Integrated(DataFlow):
    """The post is a row of a stream table of the gateway; its flow is the queue."""

    name, title = "integrated", "integrated (oncegate)"

    def __init__(self, endpoints: str) -> None:
        self._client = Client(endpoints.split(","), timeout_s=TIMEOUT_S)

    async def post(self, number: int, value: str) -> None:
        """Write the post."""
        await self._session.put(TABLE, str(number), value)

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        await self._client.table(TABLE)
        self._session = await self._client.session(window=4_096).__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.__aexit__(kind, error, trace)
        await self._client.__aexit__(kind, error, trace)


NAMES: Final = (Synchronous.name, ExternalQueue.name, Integrated.name)
TITLES: Final = {one.name: one.title for one in (Synchronous, ExternalQueue, Integrated)}
