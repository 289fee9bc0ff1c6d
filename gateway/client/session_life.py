"""The life of a session: opened or taken up again, kept alive, lost, opened anew or closed.

Owns: the calls about the session itself, their order with its outbox and its sender, when a renewal is due, the report
of its loss, and the session that follows a lost one (``renew_lost``, decision 0040). Calls of the application:
:mod:`oncegate.gateway.client.session`. Restarting from an outbox: :mod:`oncegate.gateway.client.recovery`. Read next:
:mod:`oncegate.gateway.client.sender`, which lives from open to close.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from oncegate.gateway.client.arguments import bad
from oncegate.gateway.client.connection_turns import FIRST
from oncegate.gateway.client.courier import JsonCall, NothingCall
from oncegate.gateway.client.durable_outbox import DurableOutbox
from oncegate.gateway.client.failures import OperationFailed, OutcomeUnknown
from oncegate.gateway.client.outbox_file import OutboxEntry
from oncegate.gateway.client.paths import SESSIONS, session_path
from oncegate.gateway.client.recovery import Recovered, resend, resume
from oncegate.gateway.client.results import Resolution, WriteResult
from oncegate.gateway.client.sender import Sender
from oncegate.gateway.client.settings import SessionOptions
from oncegate.gateway.client.verdicts import SESSION_OVER
from oncegate.gateway.client.writes import Writes
from oncegate.gateway.wire import OpenSession, RenewSession, SessionOpened, SessionRenewed
from oncegate.rifl.errors import Code, OncegateError, Outcome
from oncegate.rifl.ids import Epoch, RequestId, format_client_id, parse_client_id
from oncegate.rifl.request_tracker import RequestTracker

if TYPE_CHECKING:
    from oncegate.gateway.client.connection import Connection

LOG = logging.getLogger("oncegate.client")

REOPEN_FIRST_S: Final = 0.1
REOPEN_CAP_S: Final = 5.0
"""Pauses between attempts to open a lost session anew; each is twice as long as the one before."""
CLOSE_TIMEOUT_S: Final = 2.0
"""How long leaving a session may take to tell the cluster; its lease ends by itself otherwise."""


class LeaseClock:
    """How long the session's memory is known to last, on this machine's monotonic clock.

    Every answer extends it, counted from when its request was **sent**: the server's promise cannot be older.
    """

    __slots__ = ("ends_at", "lease_s")

    def __init__(self, lease_ms: int, sent_at: float) -> None:
        self.lease_s = lease_ms / 1000
        self.ends_at = sent_at + self.lease_s

    def extend(self, sent_at: float, memory_ms: int) -> None:
        """Note an answer to a request sent at ``sent_at``; never shortens the lease."""
        ends_at = sent_at + memory_ms / 1000
        if ends_at > self.ends_at:
            self.ends_at = ends_at

    def renewal_due_at(self) -> float:
        """Return when half of the lease will be over; the other half is left for retries."""
        return self.ends_at - self.lease_s / 2


async def keep_lease(
    lease: LeaseClock,
    renew: Callable[[], Awaitable[None]],
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]],
) -> None:
    """Renew whenever half of the lease has passed without an operation that renewed it; runs until cancelled.

    ``renew`` extends the lease itself or raises what ends the loop.
    """
    while True:
        wait_s = lease.renewal_due_at() - clock()
        if wait_s > 0:
            await sleep(wait_s)
        else:
            before = lease.ends_at
            await renew()
            if lease.ends_at <= before:
                # Retry soon, but not in a busy loop: a lease of one second still has room for ten attempts.
                await sleep(lease.lease_s / 20)


class SessionLife:
    """One session from open to close; :meth:`open`, then :meth:`recover`, then :meth:`close`.

    Attributes:
        lost: set once the session has ended without being closed.
        recovered: writes of an earlier process that entering has settled.
        sender, writes, outbox: from :meth:`open` on; the last one if the session keeps one.
    """

    def __init__(self, connection: Connection, options: SessionOptions, nonce: str | None) -> None:
        self.lost = asyncio.Event()
        self._is_closed = False
        self.recovered: list[Recovered] = []
        self.sender: Sender
        self.writes: Writes
        self.outbox: DurableOutbox | None = None
        self._connection = connection
        self._options = options
        self._nonce = nonce or uuid.uuid4().hex
        self._loop: asyncio.AbstractEventLoop
        self._again: list[OutboxEntry] = []
        self._keeper: asyncio.Task[None] | None = None
        self._reopening: asyncio.Task[None] | None = None
        self._opened = False

    async def open(self) -> None:
        """Open the session, or take up the outbox's; writes may be enqueued from then on.

        Raises:
            OperationFailed: CONFLICT if it was entered before, or why it could not be opened.
            OutboxUnresolved: as :func:`oncegate.gateway.client.recovery.resume`.
        """
        if self._opened:
            raise OperationFailed(Code.CONFLICT, "a session is entered once", outcome=Outcome.NOT_APPLIED)
        connection, options = self._connection, self._options
        connection.check()
        self._opened = True
        self._loop = asyncio.get_running_loop()
        keeps, encode = options.outbox is not None, connection.encode
        self.writes = Writes(self._loop, connection.kinds, connection.timeout_s, keeps=keeps, encode=encode)
        if options.outbox is None:
            opened, sent_at = await self._ask_to_open()
            self._begin(opened, sent_at, None)
            return
        outbox = self.outbox = await DurableOutbox.open(options.outbox)
        try:
            await self._take_up(outbox)
        except BaseException:
            await outbox.close()
            raise

    async def recover(self) -> None:
        """Send again what an earlier process left in the outbox; if that fails the session is closed.

        Raises:
            OutboxUnresolved, OperationFailed: as :func:`oncegate.gateway.client.recovery.resend`.
        """
        if self.outbox is None:
            return
        self._remember(self.recovered)
        if not self._again:
            return
        again, self._again = self._again, []
        on_unknown = self._options.on_unknown
        try:
            sent = await resend(self._connection, self.sender, self.writes, self.outbox, again, on_unknown)
            self._remember(sent)
            self.recovered += sent
        except BaseException:
            await self.close(drain=False)
            raise

    def _remember(self, recovered: Sequence[Recovered]) -> None:
        """Answer questions about writes of an earlier process too."""
        for one in recovered:
            self.sender.doubts.fates.remember(one.entry.request_id, one.fate)
            if one.result is not None:
                self.sender.saw(one.result.commit)

    async def _ask_to_open(self) -> tuple[SessionOpened, float]:
        """Open a session; repeated calls open the same one. Returns also when the request was sent."""
        connection = self._connection
        body = OpenSession(self._nonce, self._options.lease_ms, self._options.window)
        call = JsonCall("POST", SESSIONS, SessionOpened, connection.headers, connection.deadline(), body=body)
        opened = await connection.perform(call)
        try:
            parse_client_id(opened.client_id)
        except ValueError as malformed:
            raise OperationFailed(Code.INTERNAL, "the server opened a session without a valid id") from malformed
        return opened, call.sent_at

    async def _take_up(self, outbox: DurableOutbox) -> None:
        """Take over the outbox's session, or open one, and settle what cannot be sent again."""
        found = await resume(self._connection, outbox, self._options.on_unknown)
        self.recovered += found.recovered
        if found.taken is None:
            self._nonce = outbox.head.nonce or self._nonce
            await outbox.rename(nonce=self._nonce)  # first: a crash during the open must not open a second session
            opened, sent_at = await self._ask_to_open()
            client_id = parse_client_id(opened.client_id)
            await outbox.rename(client_id=client_id, lease_ms=opened.lease_ms, window=opened.window)
            self._begin(opened, sent_at, RequestTracker(window=opened.window))
            return
        head = outbox.head
        opened = SessionOpened(format_client_id(head.client_id), found.taken.epoch, head.lease_ms, head.window)
        held = [entry.sequence for entry in found.again]
        tracker = RequestTracker.resumed(window=head.window, highest=found.taken.highest_sequence, held=held)
        self._begin(opened, found.sent_at, tracker)
        self.sender.saw(found.commit)
        self._again = found.again

    def _begin(self, opened: SessionOpened, sent_at: float, tracker: RequestTracker | None) -> None:
        connection, outbox = self._connection, self.outbox
        client_id, epoch = parse_client_id(opened.client_id), Epoch(opened.epoch)
        if outbox is not None and tracker is not None:
            outbox.begin(client_id, tracker)
        lease = LeaseClock(opened.lease_ms, sent_at)
        if self._reopening is not None:
            if self._keeper is not None:
                self._keeper.cancel()
                self._keeper = self._keep(lease)
            self.sender.lease = lease
            self.sender.go_on(client_id, epoch, tracker or RequestTracker(window=opened.window))
            return
        self.sender = Sender(
            client_id,
            epoch,
            opened.window,
            connection,
            lease,
            self.settle,
            self._ended,
            outbox,
            tracker,
            renews=self._options.renew_lost,
            in_order=self._options.in_order,
        )
        self._keeper = self._keep(lease)
        connection.adopt(self)

    def _keep(self, lease: LeaseClock) -> asyncio.Task[None]:
        return asyncio.create_task(keep_lease(lease, self._renew, self._loop.time, asyncio.sleep))

    async def _renew(self) -> None:
        connection, sender = self._connection, self.sender
        path = f"{session_path(sender.client_id_text)}/renew"
        deadline = self._loop.time() + self._options.lease_ms / 1000
        call = JsonCall("POST", path, SessionRenewed, connection.headers, deadline, body=RenewSession(sender.epoch))
        call.began = FIRST
        try:
            renewed = await connection.perform(call)
        except OncegateError as failure:
            LOG.warning("lease not renewed: client_id=%s %s", sender.client_id_text, failure)
            if failure.code in SESSION_OVER:
                sender.lose(OperationFailed(failure.code, failure.detail))
                await asyncio.Event().wait()  # there is nothing to renew; closing the session ends this wait
            return
        sender.lease.extend(call.sent_at, renewed.lease_ms_left)

    def _ended(self, reason: OperationFailed) -> None:
        """Report that the session has ended by itself, and open it anew if it has expired and is to be."""
        if self._keeper is None or self.lost.is_set():
            return
        LOG.warning("session lost: client_id=%s %s", self.sender.client_id_text, reason)
        if self.sender.places.over is not None:
            self.lost.set()
        else:
            self._reopening = asyncio.create_task(self._open_anew())
        if self._options.on_lost is not None:
            try:
                self._options.on_lost(reason)
            except Exception:
                LOG.exception("on_lost failed")  # whose writes wait must not pay for it

    async def _open_anew(self) -> None:
        """Open the next session when nothing of the lost one is under way; until that succeeds, writes wait."""
        pause_s = REOPEN_FIRST_S
        self._nonce = uuid.uuid4().hex
        try:
            await self.sender.idle()
            while True:
                try:
                    await self._open_once()
                    break
                except OperationFailed as failure:
                    LOG.warning("session not open again: %s", failure)
                    if failure.code is Code.CONFLICT or (self.outbox is not None and self.outbox.broken is not None):
                        raise  # another cluster than the outbox's, or nothing can be stored: trying again is no use
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, REOPEN_CAP_S)
            LOG.warning("session opened anew: client_id=%s", self.sender.client_id_text)
            await self.recover()
        except Exception as fault:
            LOG.exception("session not opened anew")
            self.sender.end(OperationFailed(Code.INTERNAL, f"not opened anew: {fault!a}", outcome=Outcome.NOT_APPLIED))

    async def _open_once(self) -> None:
        outbox = self.outbox
        if outbox is None:
            opened, sent_at = await self._ask_to_open()
            self._begin(opened, sent_at, None)
            return
        await outbox.reload()
        await self._take_up(outbox)

    async def settle(self, request_id: RequestId, timeout_s: float | None) -> Resolution:
        """End the doubt about a write of this session; as :meth:`oncegate.gateway.client.OutcomeUnknown.resolve`."""
        sender = self.sender
        known = sender.tell(request_id)
        if known is not None:
            return known
        own = request_id.client_id == sender.client_id
        if own and not sender.tracker.has_given(request_id.sequence):  # sealed, it would be the end of a later write
            raise bad(f"no write of this session has the number {request_id.sequence}")
        # Lower numbers are acknowledged to make room: the server seals an id only inside its window.
        owner = sender.owner(request_id, sender.epoch) if own else {}
        try:
            fate = await self._connection.settle(request_id, owner, timeout_s)
        except OutcomeUnknown as unknown:
            unknown.resolver = self.settle
            known = sender.tell(request_id)  # its answer may have come meanwhile
            if known is None:
                raise
            return known
        return sender.resolved(request_id, fate)

    async def send_again(self, request_id: RequestId, timeout_s: float | None) -> WriteResult:
        """Send a doubted write of the outbox again; as :meth:`oncegate.gateway.client.Session.send_again`."""
        sender, outbox, number = self.sender, self.outbox, request_id.sequence
        deadline = self.writes.deadline(timeout_s)
        await sender.ready(deadline)
        known = sender.tell(request_id)
        if known is not None and known.result is not None:
            return known.result
        entry = None if outbox is None or request_id.client_id != sender.client_id else await outbox.entry(number)
        # The session may have been lost, and opened anew, while the entry was read.
        own = sender.is_open and request_id.client_id == sender.client_id
        if entry is None or not own or not sender.doubts.reopen(number):
            detail = f"no write {request_id} is in doubt in this session's outbox"
            raise OperationFailed(Code.NOT_FOUND, detail, request_id=request_id)
        pending = self.writes.again(entry.operation, deadline - self._loop.time())
        future: asyncio.Future[WriteResult] = pending.promise  # type: ignore[assignment]
        await sender.resend([pending])
        return await future

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, or is being closed; one that was never opened is not."""
        return self._is_closed

    async def close(self, *, drain: bool = True) -> None:
        """Close the session; idempotent. Without ``drain`` pending writes fail at once."""
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        self._is_closed = True
        self._connection.disown(self)
        closed = OperationFailed(Code.SESSION_EXPIRED, "the session was closed", outcome=Outcome.NOT_APPLIED)
        self.writes.close(closed)  # otherwise callers that go on writing would keep the drain from ending
        self.sender.renews = False
        told = False
        try:
            if drain:
                await self.sender.places.drain()
                await self.sender.learn(CLOSE_TIMEOUT_S)  # once it is closed nobody can tell
                told = True
        finally:
            tasks = [task for task in (keeper, self._reopening) if task is not None]
            for task in tasks:
                task.cancel()
            try:  # each step, although the one before is cut off: nobody comes back for what is left
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:
                is_open = self.sender.is_open
                try:
                    await self.sender.abort(closed)
                finally:
                    told = await self._close_outbox(told=told) and told
        if told and is_open:
            await self._say_goodbye()

    def forked(self, reason: OperationFailed) -> None:
        """Take no part any more: this process is a child of the one whose session it is."""
        self._keeper = None
        self.writes.close(reason)
        if self.outbox is not None:
            self.outbox.forked()

    async def _close_outbox(self, *, told: bool) -> bool:
        """Release the outbox; False if it holds writes, for which the session must go on living."""
        outbox = self.outbox
        if outbox is None:
            return True
        try:
            if outbox.broken is None:
                await outbox.flush()
                if told and outbox.empty:
                    await outbox.rename()
        except OperationFailed as failure:
            LOG.warning("outbox not written: %s", failure)
        finally:
            await outbox.close()
        return outbox.empty

    async def _say_goodbye(self) -> None:
        connection = self._connection
        path = f"{session_path(self.sender.client_id_text)}?epoch={self.sender.epoch}"
        deadline = self._loop.time() + min(CLOSE_TIMEOUT_S, connection.timeout_s)
        try:
            await connection.perform(NothingCall("DELETE", path, connection.headers, deadline))
        except OncegateError as failure:
            LOG.info("session not closed, its lease will end: client_id=%s %s", self.sender.client_id_text, failure)
