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
import json
from types import TracebackType
from typing import ClassVar, Final, Self

import numpy as np

from bench.dataflows.jetstream import JetStream
from bench.dataflows.tweets import Tweets
from bench.dataflows.writers import THREADS, Together, Writers
from oncegate import Client
from oncegate.spark_sink.rows import Contacts

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


class Synchronous(DataFlow):
    """All rows are written before the answer."""

    name, title = "synchronous", "synchronous"

    def __init__(self, store: str, known: Contacts) -> None:
        self._writers, self._known = Writers(store, known), known
        self._tweets = Together(self._writers.write_tweets, THREADS // 2)
        self._copies = Together(self._writers.write_copies, THREADS // 2)

    async def post(self, number: int, value: str) -> None:
        """Write the tweet and all copies, at the same time."""
        author = np.array([json.loads(value)["author"]], dtype=np.int64)
        rows = int(self._known.ranges_of(author)[1][0])
        await asyncio.gather(self._tweets.post(number, value, 1), self._copies.post(number, value, rows))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._writers.close)


class ExternalQueue(DataFlow):
    """The tweet goes to the store, and the post to a queue, at the same time; a worker drains the queue."""

    name, title = "queue", "external queue"

    def __init__(self, store: str, known: Contacts, url: str) -> None:
        self._tweets, self._queue, self._url = Tweets(store, known), JetStream(), url

    async def post(self, number: int, value: str) -> None:
        """Write the tweet and queue the post."""
        await asyncio.gather(
            self._tweets.post(number, value),
            self._queue.publish(f"{number} {value}".encode(), str(number)),
        )

    async def __aenter__(self) -> Self:
        await self._queue.connect(self._url)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._queue.__aexit__(kind, error, trace)
        await asyncio.to_thread(self._tweets.close)


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
