"""Sends the writes of one session to the cluster, many in one request.

Owns: the requests under way, and the end of each write. Its parts: :mod:`oncegate.gateway.client.send_queue` (what
travels together), :mod:`oncegate.gateway.client.verdicts` (what an answer means) and
:mod:`oncegate.gateway.client.doubts` (what nobody knows yet, or has been told), all pure;
:mod:`oncegate.gateway.client.learning` (asks about doubts),
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
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncegate.gateway.client.batch import GONE, Batch, OperationsBatch, Pending, PendingRows
from oncegate.gateway.client.batch_call import BatchCall, OperationsCall, RangeCall, ended
from oncegate.gateway.client.call_order import CallOrder
from oncegate.gateway.client.courier import at_deadline
from oncegate.gateway.client.doubts import Doubts, Question
from oncegate.gateway.client.durable_outbox import DurableOutbox, KeptPromise
from oncegate.gateway.client.failures import OperationFailed, Resolver
from oncegate.gateway.client.fates import Fates
from oncegate.gateway.client.learning import ASK_S, Learner
from oncegate.gateway.client.places import Places
from oncegate.gateway.client.results import Resolution, RowsPart, WriteResult
from oncegate.gateway.client.routing import AttemptFailed
from oncegate.gateway.client.send_queue import SendQueue
from oncegate.gateway.client.verdicts import (
    JUDGED,
    SESSION_OVER,
    Numbers,
    doubtful,
    fail_batch,
    fate_of,
    judged_at_deadline,
    late,
    not_applied,
    refused,
)
from oncegate.gateway.sweep import Sweep
from oncegate.gateway.wire import MSGPACK
from oncegate.rifl.errors import Code, OncegateError, Outcome
from oncegate.rifl.ids import ClientId, Epoch, RequestId, SequenceNumber, format_client_id
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
        renews: whether ``ended`` opens the session anew when it has expired: see :meth:`lose` and :meth:`go_on`.
        in_order: whether all effects come in the order of the calls (:mod:`oncegate.gateway.client.call_order`).

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
        *,
        renews: bool = False,
        in_order: bool = False,
    ) -> None:
        self.client_id = client_id
        self.client_id_text = format_client_id(client_id)
        self.epoch = epoch
        self.tracker = RequestTracker(window=window) if tracker is None else tracker
        self.resolver = resolver
        self.keeps = outbox is not None
        self.renews = renews
        self.lease = lease
        self.highest_commit = 0
        self.headers: Mapping[str, str] = {**connection.headers, "Content-Type": MSGPACK, "Accept": MSGPACK}
        self._courier = connection.courier
        self.kinds = connection.kinds
        self._tuning = connection.tuning
        self._loop = asyncio.get_running_loop()
        self._ended = ended
        self._tracing = connection.tracing
        self._outbox = outbox
        self._queue = SendQueue(self.tracker, self._tuning, in_order=self.keeps or in_order)
        self._waiting = self._queue.waiting
        self._in_flight_max = 1 if in_order else self._tuning.in_flight_max
        self.in_order = CallOrder() if in_order else None
        self._pipeline_min = max(1, self._tuning.pipeline_min)
        self._runners = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._travelling: list[AnyCall] = []
        self._delayed: set[BatchCall[Any]] = set()
        self._between: asyncio.Future[None] | None = None
        """Done when the session is open again; None while it is."""
        self._unsent: list[tuple[int, Pending]] = []
        """Writes that the lost session refused for certain, under the numbers that they had there."""
        self._sweep = Sweep(self._loop, self._expire)
        self.places = Places(self._loop, window, self._sweep.arm)
        self.doubts = Doubts(client_id, epoch, self.tracker, Fates())
        self._settle = connection.settle
        self._learner = Learner(self.doubts, self._ask, self._need_fates, self._learned)

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
            # Once for as many, lest each write that waits for a row under way looks again for what may leave.
            and (len(waiting) % self._pipeline_min == 0 or type(pending) is PendingRows or self._delayed)
        ):
            self._start_runner()

    async def enqueue_all(self, pendings: deque[Pending | PendingRows], deadline: float, *, wait: bool) -> None:
        """Take writes one after another as places come free; ``pendings`` then holds the writes not taken.

        Raises:
            OperationFailed: as :meth:`Places.take`; ``wait`` applies to the first write only. SESSION_EXPIRED, also if
                the session was opened anew meanwhile: one call has one session.
        """
        client_id = self.client_id
        while pendings:
            await self.places.take(deadline, wait=wait)
            if self._between is not None or self.client_id != client_id:
                self.places.free(1)
                raise OperationFailed(Code.SESSION_EXPIRED, "the session was lost", outcome=Outcome.NOT_APPLIED)
            self.enqueue(pendings[0])
            pendings.popleft()
            wait = True

    async def abort(self, reason: OperationFailed) -> None:
        """Fail all pending writes and end all requests; returns when none of the sender's tasks runs any more."""
        self.end(reason)
        self._sweep.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()  # before anything is waited for: who waits may be cancelled too
        await self._learner.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    def end(self, reason: OperationFailed) -> None:
        """Take no further writes and fail those that have not travelled; they are surely not applied."""
        before, self.places.over = self.places.over, self.places.over or reason
        self._put_back()
        unsent = self._queue.refuse(reason)
        self.places.refuse_waiting(reason)
        self.places.free(unsent)
        self._wake()
        if before is None:
            self._ended(reason)

    # A session that is opened anew

    def lose(self, reason: OperationFailed) -> None:
        """Note that the session has ended by itself: for good, or until :meth:`go_on`. Until then nothing leaves."""
        if self._between is not None:
            return
        if not self.renews or reason.code is not Code.SESSION_EXPIRED or self.places.over is not None:
            self.end(reason)
            return
        self._between = self._loop.create_future()
        self.places.free(self._queue.refuse_rows(reason))
        self._ended(reason)

    @property
    def is_open(self) -> bool:
        """Whether the session is open, as far as is known."""
        return self._between is None and self.places.over is None

    async def ready(self, deadline: float) -> None:
        """Return when the session is open, or has ended for good; raises DeadlineExceeded."""
        if self._between is not None:
            try:
                async with asyncio.timeout_at(deadline):
                    await asyncio.shield(self._between)
            except TimeoutError as out_of_time:
                raise late("the session was lost, and is not open again") from out_of_time

    async def idle(self) -> None:
        """Return when no request is under way: each ends by itself, for the session has ended."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._put_back()

    def go_on(self, client_id: ClientId, epoch: Epoch, tracker: RequestTracker) -> None:
        """Send what waits in a new session; nothing may be under way."""
        self.client_id = client_id
        self.client_id_text = format_client_id(client_id)
        self.epoch = epoch
        self.tracker = self._queue.tracker = tracker
        self.doubts.go_on(client_id, epoch, tracker)
        self._put_back()
        self._wake()
        if self._waiting:
            self._start_runner()

    def again(self, pendings: Sequence[Pending]) -> int:
        """Take back writes that the lost session surely did not apply; returns how many: they keep their places."""
        for pending in pendings:
            number, pending.operation.sequence = pending.operation.sequence, 0
            self._unsent.append((number, pending))
            if self._outbox is not None and isinstance(pending.promise, KeptPromise):
                self._outbox.take_back(pending.promise)
        return len(pendings)

    def _put_back(self) -> None:
        """Put what was taken back in front of the queue, in the order of the calls."""
        unsent, self._unsent = sorted(self._unsent, key=itemgetter(0)), []
        self._waiting.extendleft([pending for _, pending in reversed(unsent)])

    def _wake(self) -> None:
        between, self._between = self._between, None
        if between is not None and not between.done():
            between.set_result(None)

    # Requests

    def _start_runner(self) -> None:
        if self._between is not None:
            return
        self._runners += 1
        task = self._loop.create_task(self._run())
        self._tasks.add(task)
        task.add_done_callback(self._runner_ended)

    def _start_others(self) -> None:
        """Let what still waits travel too, beside what has just been taken."""
        for _ in range(min(self._in_flight_max - self._runners, len(self._waiting) // self._pipeline_min)):
            self._start_runner()

    def _runner_ended(self, task: asyncio.Task[Any]) -> None:
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
                if self._between is not None or not self._waiting:
                    return
                busy = [call.rows() for call in self._travelling if not call.settled or call.later]
                batch, dropped = self._queue.take(busy, self._in_flight_max - len(busy))
                if dropped:
                    self.places.free(dropped)
                if batch is None:
                    self._learner.wake()  # what is in doubt may take the room
                    return
                if len(self._waiting) >= self._pipeline_min:
                    self._start_others()
                if not await self._deliver(batch):
                    # Callers who were woken by the verdicts run before this goes on: their next writes travel together.
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
            batch = OperationsBatch(part, [pending.operation.sequence for pending in part])
            task: asyncio.Task[Any] = self._loop.create_task(self._deliver(batch, again=True))
            self._tasks.add(task)
            task.add_done_callback(self._runner_ended)
            await asyncio.shield(task)  # whoever waits may go; what travels stays accounted for

    async def _deliver(self, batch: Batch, *, again: bool = False) -> bool:
        """Send a batch until each of its writes is settled; its parts are sent in order, one after another.

        Returns:
            Whether the callers that its last verdicts woke have run by now.
        """
        calls = deque([self._call(batch)])
        calls[0].ambiguous = calls[0].kept = calls[0].resent = again
        self._travelling.append(calls[0])
        try:
            while calls:
                call = calls[0]
                remaining = await self._exchange(call)
                calls.popleft()
                self._travelling.remove(call)
                if remaining:
                    followers = [self._call(part) for part in remaining]
                    for follower in followers:
                        follower.ambiguous = call.ambiguous  # a doubt stays with the writes, however they travel
                        follower.kept, follower.resent = call.kept, call.resent
                    calls.extendleft(reversed(followers))
                    self._travelling.extend(followers)
            return call.settled and call.at_once
        finally:
            for call in calls:  # the session was aborted, or this is a bug; either way callers must not wait for ever
                self._travelling.remove(call)
                reason = self.places.over or OperationFailed(Code.INTERNAL, "the sender failed; see the log")
                failure = doubtful(reason) if call.doubtful else not_applied(reason)
                for part in call.left():
                    self._fail(part, failure)

    async def _keep(self, outbox: DurableOutbox, call: AnyCall) -> bool:
        """Put a batch into the outbox; False if it was refused there and must not travel."""
        try:
            await outbox.add(call.batch.pendings or [])
        except OperationFailed as failure:
            if failure is outbox.broken:
                self.end(not_applied(failure))
            self._fail(call.batch, failure)
            return False
        return True

    async def _exchange(self, call: AnyCall) -> Sequence[Batch]:
        """Make one call to its end and return the rest of its batch, to be sent again."""
        try:
            call.encode()
        except (TypeError, ValueError, OverflowError, RuntimeError, msgspec.MsgspecError) as fault:
            # Arguments are checked at the call, so this is a bug; it must not be one for the writes beside.
            if len(call.batch) > 1:
                return call.batch.halves()
            LOG.exception("a write cannot be encoded")
            outcome = Outcome.UNKNOWN if call.ambiguous else Outcome.NOT_APPLIED
            self._fail(call.batch, OperationFailed(Code.INTERNAL, f"it cannot be encoded: {fault!a}", outcome=outcome))
            return call.later
        if len(call.body or b"") > self._tuning.batch_bytes_max and len(call.batch) > 1:
            return call.batch.halves()
        if self._outbox is not None and not call.kept:
            if not await self._keep(self._outbox, call):
                return call.later
            call.kept = True
            call.encode()  # what it acknowledges may have grown
        if self.in_order is not None:
            await self._know_all()
        try:
            if self._tracing is None:
                await self._courier.exchange(call)
            else:
                with self._tracing.request(call):
                    await self._courier.exchange(call)
        except AttemptFailed as last:
            self._fail(call.batch, self._out_of_time(call, last))
        except OncegateError as refusal:
            if refusal.code in _CUTTABLE and len(call.batch) > 1:
                return (*call.batch.halves(), *call.later)
            failure = refused(refusal, ambiguous=call.ambiguous)
            self._fail(call.batch, failure)
            if failure.code in SESSION_OVER:
                self.lose(failure)
        finally:
            self._delayed.discard(call)
        return call.later

    def _out_of_time(self, call: AnyCall, last: AttemptFailed) -> OperationFailed:
        """Return the error of a batch whose deadline has passed.

        What an outbox keeps is sent again by a restart, unless each attempt was refused for what it asks: then its
        caller is told so, and it leaves the outbox.
        """
        if self.keeps and (last.code in JUDGED or call.judged is not None):
            return judged_at_deadline(call.judged or last.code, last.detail, ambiguous=call.ambiguous)
        return at_deadline(last, ambiguous=call.ambiguous or self.keeps)

    def delayed(self, call: BatchCall[Any]) -> None:
        """Let writes on other rows pass a batch whose attempts fail, within the bound on requests under way."""
        self._delayed.add(call)
        if self._waiting and self._runners < self._in_flight_max:
            self._start_runner()

    # Doubts

    def tell(self, request: RequestId) -> Resolution | None:
        """Return a fate that is known here, and note that the application is told; None if it is not known."""
        fate = self.doubts.told(request)
        if fate is not None:
            self._after_telling(request, fate)
        return fate

    def resolved(self, request: RequestId, fate: Resolution) -> Resolution:
        """Note a fate that the application has asked for, and is told; a write that is being sent ends by itself.

        One of a session before this one is none of this one's: the same number is another write's here.
        """
        self.doubts.learned(request, fate, told=True)
        self._after_telling(request, fate)
        return self.doubts.fates.find(request) or fate

    def saw(self, commit: int) -> None:
        """Have the session's reads reflect the state at a commit number, of which the application is told something."""
        if commit > self.highest_commit:
            self.highest_commit = commit

    def missed(self, result: WriteResult) -> None:
        """Keep a result whose caller did not take it, although its number counts as received."""
        state: Any = "applied" if result.applied else "refused"
        self.doubts.fates.keep(result.request_id, Resolution(state, result))
        self._learned()

    def missed_rows(self, client_id: ClientId, parts: Sequence[RowsPart]) -> None:
        """Keep what became of rows whose caller has gone before all of them had a result."""
        for part in parts:
            self.doubts.fates.keep_rows(client_id, part.first, part.last, part.commit)
        self._learned()

    def forget(self, request: RequestId) -> None:
        """Note that nobody will ask for a fate: it is not kept."""
        self.tell(request)
        self.doubts.forget(request)
        self._learned()

    def give_up(self, request: RequestId) -> None:
        """Note that nobody can know a fate any more, and that the application has been told so."""
        self.doubts.lose(request)
        if request.client_id == self.client_id:
            self.tracker.settle(request.sequence)

    def _after_telling(self, request: RequestId, fate: Resolution) -> None:
        if fate.result is not None:
            self.saw(fate.result.commit)
        if self._outbox is not None:
            self._outbox.drop(request)
        self._learned()

    def owner(self, request: RequestId, epoch: Epoch) -> dict[str, int]:
        """Return what the owner sends with a question: its epoch, and an ack that makes room for a seal."""
        if request.client_id != self.client_id:
            return {"epoch": epoch}
        self.doubts.reach(request.sequence)
        return {"epoch": epoch, "first_incomplete": min(self.first_incomplete, request.sequence)}

    def _need_fates(self) -> bool:
        """Tell whether to ask now; with an outbox only if the window needs the places: a restart sends them again."""
        doubts = len(self.doubts)
        if not doubts or self._outbox is None:
            return doubts > 0
        return 2 * doubts >= self.tracker.window or not self.tracker.room_for_singles

    async def learn(self, timeout_s: float) -> None:
        """Wait for what is in doubt to be known, for so long; not with an outbox, whose session lives on."""
        if self._outbox is None:
            await self._learner.idle(timeout_s)

    async def _know_all(self) -> None:
        """Return when no write in doubt of this session can take effect any more, or the session has ended."""
        while self.is_open and self.doubts.of_this_session:
            self._learner.wake()
            await self._learner.asked()

    def _learned(self) -> None:
        """Send what waited for room; hold further writes while too many fates are kept."""
        fates = self.doubts.fates
        self.places.hold(f"{len(fates)} fates are kept that nobody has asked for" if fates.is_full else "")
        if self._waiting and self._runners < self._in_flight_max:
            self._start_runner()

    async def _ask(self, question: Question) -> None:
        request = question.request
        if self._outbox is not None and request.client_id == self.client_id and self.is_open:
            await self._send_doubted(self._outbox, request)
            if not self.doubts.is_unknown(request):
                return
        fate = await self._settle(request, self.owner(request, question.epoch), ASK_S)
        if self._outbox is not None:
            self._keep_fate(self._outbox, request, fate)
        self.doubts.learned(request, fate)

    def _keep_fate(self, outbox: DurableOutbox, request: RequestId, fate: Resolution) -> None:
        """Have a fate on disk before its number may be acknowledged, unless the application knows it already."""
        if self.doubts.wants(request):
            outbox.learned(request, fate)
        else:
            outbox.drop(request)

    async def _send_doubted(self, outbox: DurableOutbox, request: RequestId) -> None:
        """Send a write of the outbox again: that is what it is there for. Its result is kept, as a late one is."""
        entry = await outbox.entry(request.sequence)
        own = self.is_open and request.client_id == self.client_id  # it may have been lost while the entry was read
        if entry is not None and own and self.doubts.reopen(request.sequence):
            await self.resend([Pending(entry.operation, None, GONE, self._loop.time() + ASK_S)])

    def _call(self, batch: Batch) -> AnyCall:
        return OperationsCall(self, batch) if isinstance(batch, OperationsBatch) else RangeCall(self, batch)

    # Verdicts

    def account(self, numbers: Numbers, settled: int) -> None:
        """Tell the tracker what became of numbers, and free the places of ``settled`` writes."""
        if self._outbox is not None:  # first, because what the tracker then acknowledges must be on its way to the disk
            self._outbox.settled(numbers.completed)
            self._outbox.settled(numbers.released)
            known = {number for number, _ in numbers.late}
            self._outbox.settled(number for number in numbers.unclaimed if number not in known)
            for number, fate in numbers.late:
                self._keep_fate(self._outbox, self._id(number), fate)
            self._outbox.doubted(numbers.abandoned)
        if numbers.completed:
            self.tracker.complete(numbers.completed)
        if numbers.unclaimed or numbers.late or numbers.late_rows:
            self.doubts.heard(numbers.unclaimed, numbers.late, numbers.late_rows)
            self._learned()
        if numbers.released:
            self.doubts.release(numbers.released)
        if numbers.abandoned:
            self.doubts.gave_up(numbers.abandoned)
            self._learner.wake()
        self.places.free(settled)

    def _id(self, number: int) -> RequestId:
        return RequestId(self.client_id, SequenceNumber(number))

    def _fail(self, batch: Batch, failure: OperationFailed) -> None:
        """Fail the rest of a batch and file its numbers."""
        numbers = Numbers()
        fate = fate_of(failure)
        if isinstance(batch, OperationsBatch):
            for pending, number in zip(batch.pendings, batch.sequences, strict=True):
                numbers.file(number, fate, waits=pending.waits)
            ends = len(batch)
        else:
            batch.place.note(len(batch), fate, waits=batch.waits)
            whole = batch.place.fate()
            if whole is not None:
                numbers.file(batch.place.first, whole)
            ends = ended(batch, len(batch))
        again = self.again(fail_batch(batch, failure, self.client_id, self.resolver, renews=self.renews))
        self.account(numbers, ends - again)

    # Deadlines

    def _expire(self, now: float) -> float:
        """Fail every write whose deadline has passed and return the next deadline."""
        self._put_back()
        expired, following = self._queue.expire(now)
        for call in self._travelling:
            following = min(following, call.expire(now))
        following = min(following, self.places.expire(now))
        self.places.free(expired)
        return following
