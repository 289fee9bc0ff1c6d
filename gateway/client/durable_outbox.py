"""The durable outbox of a session: writes reach the disk before they reach the network.

Owns: when the file is written, and what may be acknowledged and reported before. The file itself:
:mod:`oncegate.gateway.client.outbox_file`. Restarting from it: :mod:`oncegate.gateway.client.recovery`.

| event | on disk before |
|---|---|
| a write travels for the first time | its entry |
| a request acknowledges a number | that number's entry is dropped, or marked as doubted |
| a caller is told that a journalled write was not applied | its entry is dropped: nothing can send it any more |
| a caller is told a result, or that the outcome is unknown | nothing: a resend finds the same result |
| a number is acknowledged whose fate was learned, and nobody told | the fate, in place of its entry |
| a write that a lost session did not apply travels in the next one | its entry there, in place of the one before |

So an entry that a restart finds has no result yet, or its result was told and is still remembered by the cluster.
One thread writes everything, in the order of the calls. Entries of a batch share one transaction, and entries to be
dropped are dropped in the next one.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from oncegate.gateway.client.batch import Pending, Promise
from oncegate.gateway.client.failures import OperationFailed, OutcomeUnknown
from oncegate.gateway.client.outbox_file import (
    BYTES_MAX,
    ENTRIES_MAX,
    Head,
    NewEntry,
    OutboxDamaged,
    OutboxEntry,
    OutboxFile,
)
from oncegate.gateway.client.results import Resolution
from oncegate.rifl.errors import Code, Outcome
from oncegate.rifl.ids import ClientId, RequestId
from oncegate.rifl.request_tracker import RequestTracker

LOG = logging.getLogger("oncegate.client")
T = TypeVar("T")

IDLE_FLUSH_S: Final = 0.1
"""How long settled entries may stay in the file of an idle session: a restart would only ask for them again."""

_ENCODE: Final = msgspec.msgpack.Encoder().encode


class DurableOutbox:
    """One session's outbox, open until :meth:`close`.

    Attributes:
        path: the file.
        entries: what the file held when it was opened, or at the last :meth:`reload`.
        position: what came with the newest write taken in, or None.
        first_incomplete: what requests may acknowledge: everything below it is settled on disk.
        broken: why nothing can be written any more, or None.
    """

    def __init__(self, file: OutboxFile, pool: ThreadPoolExecutor) -> None:
        self.path = file.path
        self.entries: list[OutboxEntry] = file.loaded
        self.position: Any = file.head.position
        self.first_incomplete = 1
        self.broken: OperationFailed | None = None
        self._file = file
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._tracker: RequestTracker | None = None
        self._client_id = file.head.client_id
        self._count = len(file)
        self._bytes = file.bytes
        self._dropped: list[tuple[int, int]] = []
        self._doubted: list[tuple[int, int]] = []
        self._learned: list[tuple[RequestId, Resolution]] = []
        self._taken_back: dict[tuple[int, int], KeptPromise] = {}
        self._flush_timer: asyncio.TimerHandle | None = None
        self._closed: asyncio.Future[None] | None = None

    @classmethod
    async def open(cls, path: str | Path) -> DurableOutbox:
        """Open the file in a thread of its own; raises as :class:`OutboxFile`."""
        pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="oncegate-outbox")
        try:
            file = await asyncio.get_running_loop().run_in_executor(pool, OutboxFile, path)
        except BaseException:
            pool.shutdown(wait=False)
            raise
        return cls(file, pool)

    @property
    def head(self) -> Head:
        """The session of these writes, as on disk."""
        return self._file.head

    @property
    def empty(self) -> bool:
        """Whether everything is settled."""
        return self._file.unsettled == 0

    def begin(self, client_id: ClientId, tracker: RequestTracker) -> None:
        """Begin to store the writes of a session; ``tracker`` knows what may be acknowledged."""
        self._client_id = client_id
        self._tracker = tracker
        self.first_incomplete = tracker.first_incomplete

    async def rename(self, *, nonce: str = "", client_id: int = 0, lease_ms: int = 0, window: int = 0) -> None:
        """Store the new owner of these writes; returns when it is on disk."""
        owner = {"nonce": nonce, "client_id": client_id, "lease_ms": lease_ms, "window": window}
        await self._change({**owner, "position": self.position})

    async def belong(self, cluster: str) -> None:
        """Store the identity of the cluster that these writes are for; returns when it is on disk."""
        await self._change({"cluster": cluster})

    async def add(self, pendings: Sequence[Pending]) -> None:
        """Take writes in; returns when they are on disk and may travel.

        Of those taken back, the entry under the old number goes in the same transaction; the position stays.

        Raises:
            OperationFailed: QUOTA, outcome not_applied, if the outbox is full; INTERNAL if it cannot be written.
        """
        if self.broken is not None:
            raise self.broken
        added, new, size = [], [], 0
        position = self.position
        for pending in pendings:
            entry = NewEntry(pending.operation.sequence, _ENCODE(pending.operation))
            added.append(entry)
            if isinstance(pending.promise, KeptPromise):
                continue
            new.append(pending)
            size += len(entry.body)
            if pending.position is not None:
                position = pending.position
        if self._count + len(new) > ENTRIES_MAX or self._bytes + size > BYTES_MAX:
            raise OperationFailed(Code.QUOTA, f"outbox {self.path} is full", outcome=Outcome.NOT_APPLIED)
        for pending in pendings:
            self._hold(pending)
        self.position = position
        await self._commit(added)

    def _hold(self, pending: Pending) -> None:
        name = (self._client_id, pending.operation.sequence)
        promise = pending.promise
        if not isinstance(promise, KeptPromise):
            pending.promise = KeptPromise(promise, self, name)
            return
        self._taken_back.pop(promise.entry, None)
        self._dropped.append(promise.entry)
        promise.entry = name

    def settled(self, numbers: Iterable[int]) -> None:
        """Note that these writes of the session have their results; their entries go with the next transaction."""
        self._dropped.extend([(self._client_id, number) for number in numbers])
        self._flush_soon()

    def doubted(self, numbers: Iterable[int]) -> None:
        """Note that the callers of these writes were told that the outcome is unknown; the entries stay."""
        self._doubted.extend([(self._client_id, number) for number in numbers])
        self._flush_soon()

    def learned(self, request: RequestId, fate: Resolution) -> None:
        """Note the fate of a write that its caller has not been told; it takes the place of the entry."""
        self._learned.append((request, fate))
        self._flush_soon()

    def drop(self, request: RequestId) -> None:
        """Note that nobody needs the entry, or the fate, of a write any more; it goes with the next transaction."""
        self._dropped.append((request.client_id, request.sequence))
        self._flush_soon()

    def take_back(self, promise: KeptPromise) -> None:
        """Keep the entry of a write that its session has surely not applied, until :meth:`add` under its next number.

        Killed before that, the process has left it for the next one: the position has passed it. If nobody waits for
        the write any more, the entry goes with the next transaction.
        """
        self._taken_back[promise.entry] = promise

    def drop_then(self, entry: tuple[int, int], tell: Callable[[OperationFailed | None], None]) -> None:
        """Drop an entry and call ``tell`` when that is on disk, or with the reason why it could not be written."""
        self._taken_back.pop(entry, None)
        self._dropped.append(entry)
        task = asyncio.ensure_future(self._commit([]))

        def told(done: asyncio.Future[None]) -> None:
            if done.cancelled():  # with all tasks of the process: it may not have reached the disk
                tell(OutcomeUnknown(Code.INTERNAL, f"outbox {self.path} was left before it was written"))
                return
            failure = done.exception()
            tell(failure if isinstance(failure, OperationFailed) else None)

        task.add_done_callback(told)

    async def forget(self, entries: Iterable[OutboxEntry]) -> None:
        """Drop entries of any session; returns when that is on disk."""
        self._dropped.extend([(entry.client_id, entry.sequence) for entry in entries])
        await self._commit([])

    async def mark(self, entries: Iterable[OutboxEntry]) -> None:
        """Mark entries of the current session as doubted; returns when that is on disk."""
        self._doubted.extend([(entry.client_id, entry.sequence) for entry in entries])
        await self._commit([])

    async def flush(self) -> None:
        """Write what is waiting; returns when everything asked for so far is on disk."""
        if self.broken is None:
            await self._commit([])

    async def reload(self) -> None:
        """Write what is waiting and read again: ``entries`` is then what has no result and was not taken back."""
        await self.flush()
        own = set(self._taken_back)  # also what is told, and dropped, while the file is read
        entries = await self._in_thread(self._file.reload)
        self.entries = [
            entry for entry in entries if entry.fate is None and (entry.client_id, entry.sequence) not in own
        ]  # the session knows the fates that it has learned

    async def entry(self, sequence: int) -> OutboxEntry | None:
        """Return the entry of that number of the current session, or None if there is none."""
        await self.flush()
        client_id = self._client_id
        return await self._in_thread(lambda: self._file.entry(client_id, sequence))

    def forked(self) -> None:
        """Let go of the lock in a child process; the parent keeps it."""
        self._file.forked()

    async def close(self) -> None:
        """Write what is waiting, close the file and release it; idempotent."""
        if self._closed is not None:
            await asyncio.shield(self._closed)
            return
        self._closed = self._loop.create_future()
        try:
            await self._close()
        finally:
            self._closed.set_result(None)

    async def _close(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        pool = self._pool
        try:
            await self.flush()
        except OperationFailed:
            LOG.warning("outbox not flushed at close: path=%s", self.path)
        finally:
            try:
                released = self._loop.run_in_executor(None, self._release, pool)
            except RuntimeError:  # as in _in_thread
                self._file.close()
            else:
                await asyncio.shield(released)

    def _release(self, pool: ThreadPoolExecutor) -> None:
        pool.submit(self._file.close)
        pool.shutdown(wait=True)

    async def _commit(self, added: list[NewEntry]) -> None:
        for entry in [entry for entry, promise in self._taken_back.items() if promise.done()]:
            del self._taken_back[entry]
            self._dropped.append(entry)
        dropped, self._dropped = self._dropped, []
        doubted, self._doubted = self._doubted, []
        learned, self._learned = self._learned, []
        tracker = self._tracker
        covered = 0 if tracker is None else tracker.first_incomplete
        await self._change({"position": self.position}, added, dropped, doubted, learned)
        if tracker is self._tracker:
            self.first_incomplete = max(self.first_incomplete, covered)

    async def _change(
        self,
        fields: Mapping[str, Any],
        added: Sequence[NewEntry] = (),
        dropped: Sequence[tuple[int, int]] = (),
        doubted: Sequence[tuple[int, int]] = (),
        learned: Sequence[tuple[RequestId, Resolution]] = (),
    ) -> None:
        """Write, with fields of the head changed in the thread: what waits there may change others of them before."""
        now_ms = int(time.time() * 1000)

        def write() -> None:
            head = msgspec.structs.replace(self._file.head, **fields)
            self._file.write(added, dropped, doubted, learned, head=head, now_ms=now_ms)

        await self._in_thread(write)
        self._count, self._bytes = len(self._file), self._file.bytes

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self.broken is not None:
            raise self.broken
        try:
            try:
                running = self._loop.run_in_executor(self._pool, work)
            except RuntimeError:  # the interpreter ends: threads take nothing any more, and nobody else waits
                return work()
            return await asyncio.shield(running)
        except OutboxDamaged as damaged:
            # What is there was not read whole: a head that is written from what was would not match its entries.
            self.broken = damaged
            raise
        except (sqlite3.Error, OSError) as fault:
            # After a failed flush nobody knows what is on disk: this process writes no more, and only a restart reads
            # the file.
            self.broken = OutcomeUnknown(Code.INTERNAL, f"outbox {self.path} cannot be written: {fault}")
            raise self.broken from fault

    def _flush_soon(self) -> None:
        if self._flush_timer is None:
            self._flush_timer = self._loop.call_later(IDLE_FLUSH_S, self._flush_now)

    def _flush_now(self) -> None:
        self._flush_timer = None
        if (self._dropped or self._doubted or self._learned) and self.broken is None:
            asyncio.ensure_future(self._commit([])).add_done_callback(_noted)


def _noted(done: asyncio.Future[None]) -> None:
    if not done.cancelled() and done.exception() is not None:
        LOG.warning("outbox not written: %s", done.exception())


class KeptPromise:
    """The promise of a write in the outbox: "not applied" is only told once nothing can send it any more.

    Attributes:
        entry: client id and number that the write has in the outbox.
    """

    __slots__ = ("_inner", "_outbox", "_waiting", "entry", "set_result")

    def __init__(self, inner: Promise, outbox: DurableOutbox, entry: tuple[int, int]) -> None:
        self.entry = entry
        self._inner = inner
        self._outbox = outbox
        self._waiting = False
        self.set_result = inner.set_result

    def done(self) -> bool:
        """Whether nobody waits any more."""
        return self._waiting or self._inner.done()

    def set_exception(self, failure: BaseException, /) -> None:
        """Give the failure, if it says "not applied" after the entry is gone."""
        if not isinstance(failure, OperationFailed) or failure.outcome is not Outcome.NOT_APPLIED:
            self._inner.set_exception(failure)
            return
        self._waiting = True

        def tell(unwritten: OperationFailed | None) -> None:
            if not self._inner.done():
                told = failure
                if unwritten is not None:
                    told = OperationFailed(
                        unwritten.code, unwritten.detail, request_id=failure.request_id, outcome=Outcome.UNKNOWN
                    )
                self._inner.set_exception(told)

        self._outbox.drop_then(self.entry, tell)
