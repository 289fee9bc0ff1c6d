"""Single tweets, as an application writes them: cassandra-driver's prepared statement, without a thread or a batch.

Owns: one row of the table of tweets. A write that the driver refuses goes again through the store, which tries for
longer. Other stores have no such way and take the store's at once.
"""

from __future__ import annotations

import asyncio
import json
from typing import Final

from bench.dataflows.workload import TWEETS
from bench.dataflows.writers import THREADS, Together, Writers
from oncegate.spark_sink.rows import Contacts
from oncegate.stores.cassandra import statements
from oncegate.stores.cassandra.connection import Connection
from oncegate.stores.cassandra.options import CassandraOptions

_COLUMNS: Final = tuple(column.name for column in TWEETS.columns)


class Tweets:
    """Writes single tweets into a store."""

    def __init__(self, url: str, known: Contacts) -> None:
        self._writers = Writers(url, known)
        self._slow = Together(self._writers.write_tweets, THREADS)
        self._own: Connection | None = None
        if url.startswith("cassandra:"):
            options = CassandraOptions.parse(url)
            self._own = Connection(options)
            self._insert = self._own.prepare(statements.insert(options.keyspace, TWEETS, _COLUMNS))
            self._session = self._own.writer()

    async def post(self, number: int, value: str) -> None:
        """Write a tweet; it is durable when this returns.

        Raises:
            StoreError: the store's.
        """
        if self._own is None or not await self._at_once(number, value):
            await self._slow.post(number, value, 1)

    async def _at_once(self, number: int, value: str) -> bool:
        loop, told = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def tell(taken: bool) -> None:
            if not told.done():  # who waited may have been cancelled
                told.set_result(taken)

        post = json.loads(value)
        row = (number, post["author"], post["text"], number + 1)
        self._session.execute_async(self._insert, row).add_callbacks(
            lambda _: loop.call_soon_threadsafe(tell, True), lambda _: loop.call_soon_threadsafe(tell, False)
        )
        return bool(await told)

    def close(self) -> None:
        """Wait for what is under way, and disconnect."""
        self._writers.close()
        if self._own is not None:
            self._own.close()
