"""Sends the writes of one session to the cluster, many in one request.

Owns: the requests under way, and the end of each write. Its parts: :mod:`oncegate.gateway.client.send_queue` (what
travels together) and :mod:`oncegate.gateway.client.verdicts` (what an answer means), both pure;
:mod:`oncegate.gateway.client.places` (the bound on outstanding writes, and callers who wait too long) and
:mod:`oncegate.gateway.client.durable_outbox` (writes on disk, if the session keeps them there). Must not know HTTP:
that is :mod:`oncegate.gateway.client.courier`.

A write that succeeds costs one future, no task and no timer of its own. A *runner* task takes batch after batch; it
starts with the first write and ends when no write may leave.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from oncegate.gateway.client.batch import Batch, OperationsBatch, Pending, PendingRows
from oncegate.gateway.client.batch_call import BatchCall, OperationsCall, RangeCall, ended
from oncegate.gateway.client.courier import at_deadline
from oncegate.gateway.client.durable_outbox import DurableOutbox
from oncegate.gateway.client.failures import OperationFailed, Resolver
from oncegate.gateway.client.places import Places, Sweep
from oncegate.gateway.client.routing import AttemptFailed
from oncegate.gateway.client.send_queue import SendQueue
from oncegate.gateway.client.verdicts import (
    SESSION_OVER,
    Numbers,
    doubtful,
    fail_rows,
    fail_write,
    fate_of,
    not_applied,
    refused,
)
from oncegate.gateway.wire import MSGPACK
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import ClientId, Epoch, format_client_id
from oncegate.rifl.request_tracker import RequestTracker

if TYPE_CHECKING:
    from oncegate.gateway.client.connection import Connection
    from oncegate.gateway.client.session_life import LeaseClock

AnyCall = OperationsCall | RangeCall
LOG = logging.getLogger("oncegate.client")

_CUTTABLE: Final = frozenset(
    (Code.BAD_REQUEST, Code.FORBIDDEN, Code.NOT_FOUND, Code.PAYLOAD_TOO_LARGE, Code.PAYLOAD_MISMATCH)
)
"""Refusals of a whole request that one of its writes may have caused: the others must not share its fate."""


class Sender:
    """Sends the writes of one session.

    Args:
        client_id, epoch, window: the session's.
        connection: makes the calls, and says what each carries.
        lease: extended by every answer.
        resolver: settles doubts about its writes.
        ended: called with the reason when the session takes no further writes.
        outbox: keeps writes on disk before they travel, or None.
        tracker: gives out the numbers; a new one by default.

    Attributes:
        places: each write that is enqueued has one; it is freed when the write ends.
        highest_commit: highest commit number that an answer has told.
    """

    def __init__(
        self,
        client_id: ClientId,
        epoch: Epoch,
        window: int,
        connection: Connection,
        lease: LeaseClock,
        resolver: Resolver,
        ended: Callable[[OperationFailed], None],
        outbox: DurableOutbox | None = None,
        tracker: RequestTracker | None = None,
    ) -> None:
        self.client_id = client_id
        self.client_id_text = format_client_id(client_id)
        self.epoch = epoch
        self.tracker = RequestTracker(window=window) if tracker is None else tracker
        self.resolver = resolver
        self.keeps = outbox is not None
        self.lease = lease
        self.highest_commit = 0
        self.headers: Mapping[str, str] = {**connection.headers, "Content-Type": MSGPACK, "Accept": MSGPACK}
        self._courier = connection.courier
        self._tuning = connection.tuning
        self._loop = asyncio.get_running_loop()
        self._ended = ended
        self._tracing = connection.tracing
        self._outbox = outbox
        self._queue = SendQueue(self.tracker, self._tuning, in_order=self.keeps)
        self._waiting = self._queue.waiting
        self._in_flight_max = self._tuning.in_flight_max
        self._pipeline_min = self._tuning.pipeline_min
        self._runners = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._travelling: list[AnyCall] = []
        self._delayed: set[BatchCall[Any]] = set()
        self._sweep = Sweep(self._loop, self._expire)
        self.places = Places(self._loop, window, self._sweep.arm)

    @property
    def first_incomplete(self) -> int:
        """First incomplete for a request that leaves now; with an outbox, only entries settled on disk count."""
        return self.tracker.first_incomplete if self._outbox is None else self._outbox.first_incomplete

    def enqueue(self, pending: Pending | PendingRows) -> None:
        """Take a write that has a place, and send it in this turn of the loop if possible."""
        over = self.places.over
        if over is not None:
            self.places.free(1)
            raise not_applied(over)
        waiting = self._waiting
        waiting.append(pending)
        if pending.deadline < self._sweep.at:
            self._sweep.arm(pending.deadline)
        runners = self._runners
        if runners == 0 or (
            runners < self._in_flight_max
            and (len(waiting) >= self._pipeline_min or type(pending) is PendingRows or self._delayed)
        ):
            self._start_runner()

    async def enqueue_all(self, pendings: deque[Pending | PendingRows], deadline: float, *, wait: bool) -> None:
        """Take writes one after another as places come free; ``pendings`` then holds the writes not taken.

        Raises:
            OperationFailed: as :meth:`Places.take`; ``wait`` applies to the first write only.
        """
        while pendings:
            await self.places.take(deadline, wait=wait)
            self.enqueue(pendings[0])
            pendings.popleft()
            wait = True

    async def abort(self, reason: OperationFailed) -> None:
        """Fail all pending writes and end all requests; returns when none of the sender's tasks runs any more."""
        self.end(reason)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._sweep.cancel()

    def end(self, reason: OperationFailed) -> None:
        """Take no further writes and fail those that have not travelled; they are surely not applied."""
        if self.places.over is None:
            self.places.over = reason
            self._ended(reason)
        unsent = self._queue.refuse(reason)
        self.places.refuse_waiting(reason)
        self.places.free(unsent)

    # Requests

    def _start_runner(self) -> None:
        self._runners += 1
        task = self._loop.create_task(self._run())
        self._tasks.add(task)
        task.add_done_callback(self._runner_ended)

    def _runner_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            # A bug of the SDK: its callers must hear of it rather than wait for ever.
            LOG.error("sender failed", exc_info=task.exception())
            self.end(OperationFailed(Code.INTERNAL, "the sender failed; see the log"))

    async def _run(self) -> None:
        try:
            if self._tuning.linger_s > 0:
                await asyncio.sleep(self._tuning.linger_s)
            while True:
                busy = [call.rows() for call in self._travelling] if self._travelling else ()
                batch, dropped = self._queue.take(busy)
                if dropped:
                    self.places.free(dropped)
                if batch is None:
                    return
                await self._deliver(batch)
                # Callers who were woken by the verdicts run before this continues: their next writes travel together.
                await asyncio.sleep(0)
        finally:
            self._runners -= 1

    async def resend(self, pendings: list[Pending]) -> None:
        """Send writes of an earlier process under their numbers; returns when each has a result or an error.

        They are in the outbox and open in the tracker; earlier attempts of them may have been applied.
        """
        size = self._tuning.batch_operations_max
        self._sweep.arm(min(pending.deadline for pending in pendings))
        for at in range(0, len(pendings), size):
            part = pendings[at : at + size]
            self.places.outstanding += len(part)
            await self._deliver(OperationsBatch(part, [pending.operation.sequence for pending in part]), again=True)

    async def _deliver(self, batch: Batch, *, again: bool = False) -> None:
        """Send a batch until each of its writes is settled; its parts are sent in order, one after another."""
        calls = deque([self._call(batch)])
        calls[0].ambiguous = again
        self._travelling.append(calls[0])
        try:
            if self._outbox is not None and not again and not await self._keep(self._outbox, calls[0]):
                self._travelling.remove(calls.popleft())
            while calls:
                call = calls[0]
                remaining = await self._exchange(call)
                calls.popleft()
                self._travelling.remove(call)
                if remaining:
                    followers = [self._call(part) for part in remaining]
                    for follower in followers:
                        follower.ambiguous = call.ambiguous  # a doubt stays with the writes, however they travel
                    calls.extendleft(reversed(followers))
                    self._travelling.extend(followers)
        finally:
            for call in calls:  # the session was aborted, or this is a bug; either way callers must not wait for ever
                self._travelling.remove(call)
                reason = self.places.over or OperationFailed(Code.INTERNAL, "the sender failed; see the log")
                failure = doubtful(reason) if call.doubtful else not_applied(reason)
                for part in (call.batch, *call.later):
                    self._fail(part, failure)

    async def _keep(self, outbox: DurableOutbox, call: AnyCall) -> bool:
        """Put a batch into the outbox; False if it was refused there and must not travel."""
        try:
            await outbox.add(call.batch.pendings or ())
        except OperationFailed as failure:
            if failure is outbox.broken:
                self.end(not_applied(failure))
            self._fail(call.batch, failure)
            return False
        return True

    async def _exchange(self, call: AnyCall) -> Sequence[Batch]:
        """Make one call to its end and return the rest of its batch, to be sent again."""
        call.encode()
        if len(call.body or b"") > self._tuning.batch_bytes_max and len(call.batch) > 1:
            return call.batch.halves()
        try:
            if self._tracing is None:
                await self._courier.exchange(call)
            else:
                with self._tracing.request(call):
                    await self._courier.exchange(call)
        except AttemptFailed as last:
            self._fail(call.batch, at_deadline(last, ambiguous=call.ambiguous or self.keeps))
        except OncegateError as refusal:
            if refusal.code in _CUTTABLE and len(call.batch) > 1:
                return (*call.batch.halves(), *call.later)
            failure = refused(refusal, ambiguous=call.ambiguous)
            self._fail(call.batch, failure)
            if failure.code in SESSION_OVER:
                self.end(failure)
        finally:
            self._delayed.discard(call)
        return call.later

    def delayed(self, call: BatchCall[Any]) -> None:
        """Let writes on other rows pass a batch whose attempts fail, within the bound on requests under way."""
        self._delayed.add(call)
        if self._waiting and self._runners < self._in_flight_max:
            self._start_runner()

    def forget(self, sequence: int) -> None:
        """Note that a doubt about a number has ended; a write that is still being sent ends by itself."""
        if self.tracker.settle(sequence) and self._outbox is not None:
            self._outbox.settled([sequence])

    def _call(self, batch: Batch) -> AnyCall:
        return OperationsCall(self, batch) if isinstance(batch, OperationsBatch) else RangeCall(self, batch)

    # Verdicts

    def account(self, numbers: Numbers, settled: int) -> None:
        """Tell the tracker what became of numbers, and free the places of ``settled`` writes."""
        if self._outbox is not None:  # first, because what the tracker then acknowledges must be on its way to the disk
            self._outbox.settled(numbers.completed)
            self._outbox.settled(numbers.released)
            self._outbox.doubted(numbers.abandoned)
        if numbers.completed:
            self.tracker.complete(numbers.completed)
        if numbers.abandoned:
            self.tracker.abandon(numbers.abandoned)
        if numbers.released:
            self.tracker.release(numbers.released)
        self.places.free(settled)

    def _fail(self, batch: Batch, failure: OperationFailed) -> None:
        """Fail the rest of a batch and file its numbers."""
        numbers = Numbers()
        fate = fate_of(failure)
        if isinstance(batch, OperationsBatch):
            for pending in batch.pendings:
                numbers.file(pending.operation.sequence, fate)
                fail_write(pending, failure, self.client_id, self.resolver)
            self.account(numbers, len(batch))
            return
        fail_rows(batch, failure, self.client_id, self.resolver)
        batch.place.note(len(batch), fate)
        whole = batch.place.fate()
        if whole is not None:
            numbers.file(batch.place.first, whole)
        self.account(numbers, ended(batch, len(batch)))

    # Deadlines

    def _expire(self, now: float) -> float:
        """Fail every write whose deadline has passed and return the next deadline."""
        expired, following = self._queue.expire(now)
        for call in self._travelling:
            following = min(following, call.expire(now))
        following = min(following, self.places.expire(now))
        self.places.free(expired)
        return following
