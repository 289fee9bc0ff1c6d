"""Restarting from an outbox: the same session, the same ids, and no write twice.

Owns: the table below. The file: :mod:`oncegate.gateway.client.durable_outbox`. Sending:
:mod:`oncegate.gateway.client.sender`.

A restart first takes the session over, which raises its epoch: another process that still uses the session is fenced
from then on, so that no late copy of an entry can be applied.

| entry | then |
|---|---|
| its fate was learned, and nobody told | what it is: a result, or "not applied" |
| the session lives, the number is open | sent again under its id; the result, new or replayed, is in ``recovered`` |
| as above, and refused, for good or each time | resolved: ``recovered`` says "not applied" once the id is sealed |
| as above, and this process may not resolve | stays in the outbox, in doubt |
| the session lives, the number is acknowledged | its result had been received: dropped |
| the same, but its caller had been told "unknown" | unknown |
| the session has expired, its record can still be read | its result is in ``recovered`` |
| the session has expired otherwise | unknown; never sent under another id |

Unknown entries are handed to ``on_unknown`` and then dropped; without it, entering raises :class:`OutboxUnresolved`
and nothing is sent.

Every cluster counts its client ids from 1: in another one, the outbox's is somebody else's session. So an outbox keeps
the identity of its cluster, and is refused with CONFLICT by any other, before anything is taken over.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from oncegate.gateway.client.courier import JsonCall
from oncegate.gateway.client.durable_outbox import DurableOutbox
from oncegate.gateway.client.failures import NeverKnown, NotKnownYet, OperationFailed, OutcomeUnknown
from oncegate.gateway.client.fates import SEALED
from oncegate.gateway.client.outbox_file import OutboxEntry
from oncegate.gateway.client.paths import CLUSTER, session_path
from oncegate.gateway.client.results import Resolution, WriteResult
from oncegate.gateway.client.sender import Sender
from oncegate.gateway.client.writes import Writes
from oncegate.gateway.wire import SessionTaken, TakeOver
from oncegate.rifl.errors import Code, Outcome
from oncegate.rifl.ids import format_client_id

if TYPE_CHECKING:
    from oncegate.gateway.client.connection import Connection

LOG = logging.getLogger("oncegate.client")
OnUnknown = Callable[[OutboxEntry], Awaitable[None] | None]

_GONE: Final = frozenset((Code.SESSION_EXPIRED, Code.NOT_FOUND))
_UNSETTLED: Final = frozenset((Code.TIMEOUT, Code.FENCED))
"""Failures of a resend that no question about its id would make clearer now."""


class Recovered(msgspec.Struct, frozen=True):
    """One write of an earlier process that is settled now: it has a result, or an error with outcome not_applied."""

    entry: OutboxEntry
    result: WriteResult | None = None
    failure: OperationFailed | None = None

    @property
    def fate(self) -> Resolution:
        """What a question about it is answered with."""
        result = self.result
        return SEALED if result is None else Resolution("applied" if result.applied else "refused", result)


class OutboxUnresolved(OutcomeUnknown):
    """An outbox holds writes whose outcome nobody can know any more, and there is no ``on_unknown`` to receive them.

    Attributes:
        entries: those writes; they stay in the outbox until ``on_unknown`` or ``oncegate outbox drain`` takes them.
    """

    def __init__(self, path: str, entries: Sequence[OutboxEntry]) -> None:
        super().__init__(
            Code.SESSION_EXPIRED,
            f"outbox {path} holds {len(entries)} writes whose outcome cannot be known any more",
            request_id=entries[0].request_id,
            outcome=Outcome.UNKNOWN,
        )
        self.path = path
        self.entries = list(entries)

    def __reduce__(self) -> tuple[object, ...]:
        return (OutboxUnresolved, (self.path, self.entries))


class Resumed(msgspec.Struct):
    """The session of an outbox, taken over.

    Attributes:
        taken: the server's answer to a request sent at ``sent_at``, or None if no session is left to continue.
        commit: commit number that the answer reflects: everything the earlier process has written is below it.
        again: entries to be sent again.
        recovered: what is settled without sending.
    """

    taken: SessionTaken | None = None
    sent_at: float = 0.0
    commit: int = 0
    again: list[OutboxEntry] = msgspec.field(default_factory=list)
    recovered: list[Recovered] = msgspec.field(default_factory=list)


class _Cluster(msgspec.Struct):
    """What ``GET /v1/cluster`` says of whose log this is; ``origin`` is the cluster that it was restored from."""

    identity: str = ""
    origin: str = ""


async def resume(connection: Connection, outbox: DurableOutbox, on_unknown: OnUnknown | None) -> Resumed:
    """Take over the outbox's session, and settle the entries that cannot be sent again.

    Raises:
        OutboxUnresolved: some are unknown and ``on_unknown`` is None; nothing changed.
        OperationFailed: the cluster could not be asked; nothing is lost, entering may be tried again. CONFLICT: it is
            another cluster than the outbox's; nothing changed.
    """
    found = Resumed()
    cluster = await _own_cluster(connection, outbox)
    owner = outbox.head.client_id
    if owner:
        await _take_over(connection, owner, found)
    unknown: list[OutboxEntry] = []
    dropped: list[OutboxEntry] = []
    taken = found.taken
    for entry in outbox.entries:
        if entry.fate is not None:
            found.recovered.append(_learned(entry, entry.fate))
            dropped.append(entry)
        elif taken is None or entry.client_id != owner:
            result = await _remembered(connection, entry)
            if result is None:
                unknown.append(entry)
            else:
                found.recovered.append(Recovered(entry, result))
                dropped.append(entry)
        elif entry.sequence >= taken.first_incomplete:
            found.again.append(entry)
        elif entry.doubted:
            unknown.append(entry)
        else:
            dropped.append(entry)
    if unknown and on_unknown is None:
        raise OutboxUnresolved(outbox.path, unknown)
    await outbox.forget(dropped)
    await hand_over(outbox, unknown, on_unknown)
    await outbox.belong(cluster)
    return found


async def _own_cluster(connection: Connection, outbox: DurableOutbox) -> str:
    """Return the identity of the outbox's cluster, if it is known by now; raises CONFLICT at another cluster."""
    own = outbox.head.cluster
    try:
        here = await connection.ask(CLUSTER, _Cluster)
    except OperationFailed as failure:
        if failure.code is not Code.FORBIDDEN:  # a token that may only write cannot ask
            raise
        return own
    # One that was restored from the outbox's has none of its sessions, and gives out none of its client ids.
    if own and here.identity and own not in (here.identity, here.origin):
        raise OperationFailed(
            Code.CONFLICT,
            f"outbox {outbox.path} is of cluster {own}, and this is {here.identity}: its position and its writes mean"
            " nothing here; `oncegate outbox ls` shows what it holds, a new file begins anew",
            outcome=Outcome.NOT_APPLIED,
        )
    return here.identity or own


async def _take_over(connection: Connection, owner: int, found: Resumed) -> None:
    path = f"{session_path(format_client_id(owner))}/take-over"
    body = TakeOver(uuid.uuid4().hex)
    call = JsonCall("POST", path, SessionTaken, connection.headers, connection.deadline(), body=body)
    try:
        found.taken = await connection.perform(call)
        found.sent_at, found.commit = call.sent_at, call.commit
    except OperationFailed as failure:
        if failure.code not in _GONE:
            raise
        LOG.warning("the outbox's session has ended: client_id=%s %s", format_client_id(owner), failure)


async def _remembered(connection: Connection, entry: OutboxEntry) -> WriteResult | None:
    """Return the result of an entry whose session has ended, if its record is still there."""
    try:
        return (await connection.request(entry.client_id, entry.sequence)).result
    except OperationFailed as failure:
        if failure.code not in _GONE:
            raise
        return None


async def resend(
    connection: Connection,
    sender: Sender,
    writes: Writes,
    outbox: DurableOutbox,
    entries: list[OutboxEntry],
    on_unknown: OnUnknown | None,
) -> list[Recovered]:
    """Send entries again under their ids and return their results and errors.

    Raises:
        OutboxUnresolved: some are unknown and ``on_unknown`` is None.
        OperationFailed: no verdict in time; the entries stay, entering may be tried again.
    """
    pendings = [writes.again(entry.operation) for entry in entries]
    futures = [pending.promise for pending in pendings]
    await sender.resend(pendings)
    ends = await asyncio.gather(*futures, return_exceptions=True)  # type: ignore[call-overload]
    recovered: list[Recovered] = []
    unknown: list[OutboxEntry] = []
    for entry, end in zip(entries, ends, strict=True):
        if isinstance(end, WriteResult):
            recovered.append(Recovered(entry, end))
        elif not isinstance(end, OperationFailed) or end.code in _UNSETTLED or end.retry_after_ms is not None:
            raise end
        else:
            try:
                settled = await _resolved(connection, sender, entry, end)
            except NotKnownYet as later:  # it stays, and keeps nobody from work on other tables
                LOG.warning("left in the outbox: request=%s %s", entry.request_id, later)
                continue
            if settled is None:
                unknown.append(entry)
            else:
                recovered.append(settled)
    if unknown and on_unknown is None:
        await outbox.mark(unknown)
        raise OutboxUnresolved(outbox.path, unknown)
    await hand_over(outbox, unknown, on_unknown)
    for entry in unknown:
        sender.give_up(entry.request_id)
    LOG.info("outbox sent again: path=%s writes=%d unknown=%d", outbox.path, len(entries), len(unknown))
    return recovered


async def _resolved(
    connection: Connection, sender: Sender, entry: OutboxEntry, failure: OperationFailed
) -> Recovered | None:
    """Settle an entry that was refused for good; None where the cluster cannot tell."""
    if failure.code is Code.PAYLOAD_MISMATCH:  # the number's fate is that of another write
        return None
    try:
        fate = await connection.settle(entry.request_id, {}, None)
    except NeverKnown as refusal:
        LOG.warning("outcome unknown: request=%s %s", entry.request_id, refusal)
        return None
    return _learned(entry, sender.resolved(entry.request_id, fate), failure)


def _learned(entry: OutboxEntry, fate: Resolution, why: OperationFailed | None = None) -> Recovered:
    """Return what is recovered of an entry with this fate; ``why``: what refused it, if that is known."""
    if fate.result is not None:
        return Recovered(entry, fate.result)
    code, detail = (Code.STALE, "it was never applied, and never will be") if why is None else (why.code, why.detail)
    return Recovered(
        entry, failure=OperationFailed(code, detail, request_id=entry.request_id, outcome=Outcome.NOT_APPLIED)
    )


async def hand_over(outbox: DurableOutbox, unknown: Sequence[OutboxEntry], on_unknown: OnUnknown | None) -> None:
    """Hand unknown entries to the application, one after another; each leaves the outbox when that has returned."""
    for entry in unknown:
        if on_unknown is None:
            raise OutboxUnresolved(outbox.path, unknown)
        done = on_unknown(entry)
        if inspect.isawaitable(done):
            await done
        await outbox.forget([entry])
