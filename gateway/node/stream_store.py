"""Reads from the store that jobs write: rows of stream tables whose batches were dropped, and dead letters.

Owns: the threads that read, how many reads may wait, and for how long. Must not know when the store is asked
(:mod:`oncegate.gateway.node.reads`) or who writes it (:mod:`oncegate.spark_sink.jobs.stream_rows`). Changes nothing in
the store. Rows that this cluster adopted from another log are not answered: the gateway tells what its own log says.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar
from urllib.parse import parse_qs, urlsplit

from oncegate.flows.lookup import FoundWrite
from oncegate.rifl.errors import Code, OncegateError
from oncegate.stores.claimed import ClaimedStore, claimed_store
from oncegate.stores.dead_letters import Newest, newest_letters
from oncegate.stores.errors import LostRow, StoreCode, StoreError
from oncegate.stores.stream_rows import ROWS_CONSUMER, STREAM_ROWS
from oncegate.stores.tables import WRITE_TS

THREADS: Final = 2
"""Each with connections of its own."""
WAITING_MAX: Final = 1_000
RETRY_S: Final = 2
"""How long one read is tried again while the store does not answer, unless the URL says otherwise."""
TIMEOUT_S: Final = 5.0
log = logging.getLogger(__name__)
T = TypeVar("T")


class StreamStore:
    """Looks rows up in the store at ``url``, in threads of its own. Every method belongs to one event loop.

    ``identity`` returns the cluster's, or an empty text while it has none.
    """

    def __init__(self, url: str, identity: Callable[[], str]) -> None:
        self._identity = identity
        if "retry_s" not in parse_qs(urlsplit(url).query):
            url = f"{url}{'&' if urlsplit(url).query else '?'}retry_s={RETRY_S}"
        self._readers = [_Reader(url) for _ in range(THREADS)]
        self.reads = 0
        """Look-ups that the store has answered."""
        self.failures = 0
        """Look-ups that it has not."""

    async def find(self, table: str, key: str) -> FoundWrite | None:
        """Return the newest delivered write of a row; value None = deleted; None = never delivered.

        Raises:
            OncegateError: OVERLOADED, when ``WAITING_MAX`` reads wait; NOT_READY, when the store does not answer, or
                holds the rows of another cluster, or not this table's.
        """
        return await self._read(lambda reader, store: reader.find(store, table, key))

    async def dead_letters(self, flow: str, limit: int) -> Newest:
        """Return the newest dead letters of a flow that jobs wrote into this store; raises as :meth:`find`."""
        return await self._read(lambda _, store: newest_letters(store, flow, limit))

    async def _read(self, look: Callable[[_Reader, ClaimedStore], T]) -> T:
        identity = self._identity()
        if not identity:
            raise OncegateError(Code.NOT_READY, "the cluster has no identity yet", retry_after_ms=50)
        reader = min(self._readers, key=lambda one: one.waiting)
        if reader.waiting >= WAITING_MAX // THREADS:
            raise OncegateError(Code.OVERLOADED, "too many reads wait for the store", retry_after_ms=50)
        reading = asyncio.wrap_future(reader.submit(identity, partial(look, reader)))
        reading.add_done_callback(self._done)
        try:
            # Shielded: a read whose caller has gone keeps its place until its thread has ended it.
            return await asyncio.wait_for(asyncio.shield(reading), TIMEOUT_S)
        except Exception as fault:  # noqa: BLE001 - whatever a driver raises, the caller may try again
            foreign = isinstance(fault, StoreError) and fault.code is StoreCode.STORE_MISMATCH
            what = "is not this cluster's" if foreign else "does not answer"
            if isinstance(fault, LostRow):
                what = "has the row only as a lost write left it: write it again"
            log.warning("the store of delivered rows %s: %s", what, str(fault) or type(fault).__name__)
            raise OncegateError(Code.NOT_READY, f"the store of delivered rows {what}", retry_after_ms=500) from None

    async def close(self) -> None:
        """Wait for the reads under way and close the connections."""
        await asyncio.gather(*(asyncio.to_thread(reader.close) for reader in self._readers))

    def _done(self, reading: asyncio.Future[T]) -> None:
        if reading.cancelled() or reading.exception() is not None:
            self.failures += 1
        else:
            self.reads += 1


class _Reader:
    """One thread with its own store: stores are not shared, and SQLite connections belong to one thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stream-store")
        self._store: ClaimedStore | None = None
        self._delivered: set[str] = set()
        """Tables whose rows are known to go into the open store."""
        self._waiting = 0
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        """Reads that have not ended."""
        return self._waiting

    def submit(self, identity: str, look: Callable[[ClaimedStore], T]) -> Future[T]:
        """Begin to look something up."""
        with self._lock:
            self._waiting += 1
        try:
            reading = self._thread.submit(self._looked_up, identity, look)
        except RuntimeError:  # closed: the node ends
            self._ended(None)
            raise OncegateError(Code.NOT_READY, "the node is stopping") from None
        reading.add_done_callback(self._ended)
        return reading

    def close(self) -> None:
        """End the thread; it closes the store last."""
        with contextlib.suppress(RuntimeError):
            self._thread.submit(self._drop)
        self._thread.shutdown()

    def _ended(self, _: object) -> None:
        with self._lock:
            self._waiting -= 1

    def _drop(self) -> None:
        store, self._store = self._store, None
        self._delivered.clear()
        if store is not None:
            store.close()

    def _looked_up(self, identity: str, look: Callable[[ClaimedStore], T]) -> T:
        if self._store is None:
            self._store = claimed_store(self._url, identity)
        try:
            return look(self._store)
        except Exception:
            # Its connections may have failed: the next read opens new ones.
            self._drop()
            raise

    def find(self, store: ClaimedStore, table: str, key: str) -> FoundWrite | None:
        """Look a row up, in the thread of this reader; raises StoreError."""
        row = store.get(STREAM_ROWS, {"source": table, "key": key}, refuses_lost=True)
        if row is not None and row[WRITE_TS]:
            return FoundWrite(int(row[WRITE_TS]), str(row["value"]).encode() or None)
        self._check_delivered(store, table)
        return None

    def _check_delivered(self, store: ClaimedStore, table: str) -> None:
        """Refuse to call a row absent that may have gone into another store, or into this one before it was wiped."""
        if table in self._delivered:
            return
        if not store.began(table, ROWS_CONSUMER):
            raise StoreError(StoreCode.STORE_MISMATCH, f"no job has brought the rows of {table} into it")
        self._delivered.add(table)
