"""Claims on idempotency keys: which service may run a request, the answer to a retry, and the state after a service
died.

A key is claimed by an exactly-once conditional write before the handler runs, and its response is recorded by another,
on the condition that the claim still stands. The claim names the service's session: a claim counts as long as that
session lives, and the gateway decides this in cluster time, so no clocks are compared. What a caller gets:

| the key is | answer |
|---|---|
| new | the handler runs |
| claimed by a service that lives | 409, Retry-After |
| done | the recorded response, ``Idempotent-Replayed: true`` |
| of another request | 422 |
| claimed by a service that died or failed before recording | 500 ``OUTCOME_UNKNOWN``, as long as it is remembered |
| the same, with ``Policy.rerun`` | the handler runs again under the same :attr:`Ticket.id` |

**What is promised.** While a key is remembered, at most one run begins under it, unless ``rerun`` says otherwise. A
response is sent only after it was recorded, or after recording it has failed for ``record_timeout_s``. **What is
not.** The handler's own effects are not part of the claim's transaction: a service killed between claim and
record may have done all, some or nothing. The gate never guesses: without ``rerun`` it reports the outcome as unknown.
With it, effects must be idempotent under the ticket's id, such as a unique column or :meth:`Ticket.put_once`. Without
the gateway no request with a key runs (503).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import msgspec

from oncegate.gateway.client import Client, Code, Json, OncegateError, OperationFailed, Outcome, Session, WriteResult
from oncegate.gateway.middleware import records
from oncegate.gateway.middleware.records import IdempotencyRecord, Incoming, Kept, Policy, read_key
from oncegate.rifl.ids import format_client_id, parse_client_id

SWEEP_S: Final = 60.0
SWEEP_PAGE: Final = 200
NEVER_RAN_MAX: Final = 10_000
"""Claims in doubt that are remembered as never having run; one that is forgotten is reported as unknown."""
_CLAIM_TRIES: Final = 5
_OVER: Final = (Code.SESSION_EXPIRED, Code.FENCED)
log = logging.getLogger("oncegate.middleware")


class Ticket:
    """The permission to run one request, handed to the handler.

    Attributes:
        id: 64 hex digits, the same whenever this request is run again: the name for the handler's own effects.
        attempt: 1, and more where ``Policy.rerun`` lets a request run again.
        may_rerun: whether it does.
    """

    def __init__(self, gate: Gate, row: str, claim: IdempotencyRecord, version: int, *, may_rerun: bool) -> None:
        self.id = hashlib.sha256(row.encode()).hexdigest()
        self.attempt = claim.attempt
        self.may_rerun = may_rerun
        self.row = row
        self.claim = claim
        self.version = version
        self._gate = gate

    async def put_once(self, table: str, value: Json) -> bool:
        """Write a row under this request's id, once however often the request runs; False if it was there."""
        return (await self._gate.session.insert(table, self.id, value)).applied


class Gate:
    """The keys of one service. Use as ``async with Gate(client) as gate`` for as long as the service runs.

    Args:
        client: entered by the caller, who also leaves it, later than the gate.
        policy: which requests have a key, whose it is, how long it is remembered.
        now_s: wall clock; only forgetting reads it.
    """

    def __init__(self, client: Client, policy: Policy | None = None, *, now_s: Callable[[], float] = time.time) -> None:
        self.policy = policy or Policy()
        self._client = client
        self._now_s = now_s
        self._session: Session | None = None
        self._opening = asyncio.Lock()
        self._running: set[str] = set()
        self._claims = 0
        self._never_ran: dict[tuple[str, str, int], None] = {}
        """Claims of ours that may have been made and were not run: row, owner and number."""
        self._sweeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        policy = self.policy
        await self._client.declare_table(policy.table, kind="resident", quota_bytes=policy.quota_bytes)
        await self._reopened(None)
        self._sweeper = asyncio.create_task(self._sweep_for_ever())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        async with self._opening:  # what is being opened now is closed too
            session, self._session = self._session, None
        if session is not None:
            await session.close()

    @property
    def session(self) -> Session:
        """The session that claims; handlers may write through it too."""
        if self._session is None:
            raise OperationFailed(Code.NOT_READY, "the gate is not open", outcome=Outcome.NOT_APPLIED)
        return self._session

    def concerns(self, method: str) -> bool:
        """Tell whether requests with this method take a key."""
        return method.upper() in self.policy.methods

    async def admit(self, request: Incoming) -> Ticket | Kept | None:
        """Decide about a request with one of the policy's methods.

        Returns:
            A ticket: run it, then :meth:`settle`. A response: send it. None: it has no key and needs none.
        """
        try:
            key = read_key(request.keys)
        except ValueError as malformed:
            return records.key_malformed(str(malformed))
        if key is None:
            return records.KEY_MISSING if self.policy.required else None
        row, session = records.row_key(self.policy.scope(request), key), self._session
        try:
            return await self._claim(row, request)
        except OncegateError as failure:
            if failure.code in _OVER:
                await self._renewed_quietly(session)
            log.warning("key not claimed: %s", failure)
            return records.UNAVAILABLE
        except msgspec.ValidationError:
            log.exception("row %s of %s is no record", row, self.policy.table)
            return records.OUTCOME_UNKNOWN

    async def settle(self, ticket: Ticket, response: Kept) -> None:
        """Record the response of a run, or free the key if its status passes. Failing is logged, not raised."""
        policy = self.policy
        if ticket.may_rerun and response.status in policy.broken:
            await self.give_up(ticket)
            return
        kept_body = response.body
        if kept_body is not None and len(kept_body) > policy.response_bytes_max:
            kept_body = None
        headers = [(name, value) for name, value in response.headers if name.lower() not in policy.left_out]
        if sum(len(name) + len(value) for name, value in headers) > policy.response_bytes_max:
            headers, kept_body = [], None
        done = records.with_response(ticket.claim, Kept(response.status, headers, kept_body), int(self._now_s()))
        session = self._session
        try:
            if response.status in policy.passing:
                await self._write(ticket.row, None, ticket.version)
            elif not (await self._write(ticket.row, done, ticket.version)).applied:
                log.warning("the claim on %s was taken over while it ran", ticket.row)
        except OncegateError as failure:
            # The run has happened; a retry is told that the outcome is unknown, which is never wrong.
            log.error("response under %s not recorded: %s", ticket.row, failure)
            if failure.code in _OVER:
                await self._renewed_quietly(session)
        finally:
            self._running.discard(ticket.row)

    async def give_up(self, ticket: Ticket) -> None:
        """Note that the handler broke off without a response: unknown, or free again if it may be run again."""
        if not ticket.may_rerun:
            await self.settle(ticket, records.OUTCOME_UNKNOWN)
            return
        try:
            await self._write(ticket.row, msgspec.structs.replace(ticket.claim, owner=""), ticket.version)
        except OncegateError as failure:
            log.warning("claim on %s not given back, it stands as long as this service lives: %s", ticket.row, failure)
        finally:
            self._running.discard(ticket.row)

    async def _claim(self, row: str, request: Incoming) -> Ticket | Kept:
        if row in self._running:
            # The record tells whether it is the same request; here it is enough that it is not done.
            known = await self._client.get(self.policy.table, row, timeout_s=self.policy.record_timeout_s)
            if known is None or records.read_record(known.value).fingerprint == request.fingerprint:
                return records.IN_PROGRESS
            return records.OTHER_PAYLOAD
        self._running.add(row)
        keep = False
        try:
            decided = await self._decide(row, request)
            keep = isinstance(decided, Ticket)
            return decided
        finally:
            if not keep:
                self._running.discard(row)

    async def _decide(self, row: str, request: Incoming) -> Ticket | Kept:
        attempt, version = 1, None
        for _ in range(_CLAIM_TRIES):
            owner = format_client_id(self.session.client_id)
            self._claims += 1
            claim = IdempotencyRecord(
                "claimed", request.fingerprint, owner, attempt, int(self._now_s()), claim=self._claims
            )
            try:
                written = await self._write(row, claim, version)
            except OperationFailed as failure:
                if failure.outcome is not Outcome.NOT_APPLIED:
                    self._note_never_ran(row, claim)
                raise
            if written.applied:
                may_rerun = self.policy.rerun(request)
                return Ticket(self, row, claim, written.version or written.commit, may_rerun=may_rerun)
            known = await self._client.get(self.policy.table, row, timeout_s=self.policy.record_timeout_s)
            if known is None:  # forgotten, or freed, since
                attempt, version = 1, None
                continue
            record = records.read_record(known.value)
            if record.fingerprint != request.fingerprint:
                return records.OTHER_PAYLOAD
            if record.state == "done":
                return self._replayed(record)
            attempt, version = record.attempt, known.version
            if (row, record.owner, record.claim) not in self._never_ran:
                if await self._lives(record.owner):
                    return records.IN_PROGRESS
                if not self.policy.rerun(request):
                    return records.OUTCOME_UNKNOWN
                attempt += 1
        return records.IN_PROGRESS

    def _replayed(self, record: IdempotencyRecord) -> Kept:
        response = record.response()
        if response.body is None:
            return records.response_not_kept(response.status)
        return Kept(response.status, [*response.headers, (records.H_REPLAYED, "true"), self.kept_header], response.body)

    @property
    def kept_header(self) -> tuple[str, str]:
        """The header that publishes how long a response is known."""
        return records.H_KEPT, str(self.policy.kept_s)

    async def _lives(self, owner: str) -> bool:
        """Tell whether a service lives and still runs the request: it may hold a claim that it failed to settle."""
        if self._session is not None and owner == format_client_id(self._session.client_id):
            return False  # ours, and it does not run here
        try:
            client_id = parse_client_id(owner)
        except ValueError:
            return False  # it was given back
        told = await self._client.request(client_id, 1, timeout_s=self.policy.record_timeout_s)
        return told.state != "expired"

    def _note_never_ran(self, row: str, claim: IdempotencyRecord) -> None:
        if len(self._never_ran) >= NEVER_RAN_MAX:
            self._never_ran.pop(next(iter(self._never_ran)))
        self._never_ran[row, claim.owner, claim.claim] = None

    async def _write(self, row: str, record: IdempotencyRecord | None, version: int | None) -> WriteResult:
        """Replace the row of this version, None for no row, by a record, None for its deletion."""
        session, table, timeout_s = self.session, self.policy.table, self.policy.record_timeout_s
        if record is None:
            return await session.delete(table, row, if_version=version, timeout_s=timeout_s)
        value = msgspec.to_builtins(record)
        if version is None:
            return await session.put(table, row, value, if_absent=True, timeout_s=timeout_s)
        return await session.put(table, row, value, if_version=version, timeout_s=timeout_s)

    async def _reopened(self, before: Session | None) -> None:
        """Open a session, unless another task has replaced ``before``; claims of the session before are then dead."""
        async with self._opening:
            if self._session is not before:
                return
            if before is not None:
                with contextlib.suppress(OncegateError):
                    await before.close(drain=False)
            session = self._client.session(lease_ms=self.policy.lease_ms)
            await session.__aenter__()
            self._session = session

    async def _renewed_quietly(self, before: Session | None) -> None:
        """Replace the session that a write began with: one that was opened meanwhile has claims that stand."""
        try:
            await self._reopened(before)
        except OncegateError as failure:
            log.warning("no session: %s", failure)

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await self.sweep()
            except OncegateError as failure:
                log.info("keys not swept: %s", failure)

    async def sweep(self) -> int:
        """Forget responses recorded longer than ``kept_s`` ago, and claims as old; returns how many.

        Every service of a table does so, on its own clock; the deletions are conditional, so they never meet a newer
        record.
        """
        policy, gone, after = self.policy, 0, None
        while True:
            page = await self._client.scan(policy.table, after=after, limit=SWEEP_PAGE)
            for row in page.rows:
                with contextlib.suppress(msgspec.ValidationError):
                    record = records.read_record(row.value)
                    if record.at_s + policy.kept_s < self._now_s() and row.key not in self._running:
                        if record.state == "claimed" and await self._lives(record.owner):
                            continue
                        gone += (await self._write(row.key, None, row.version)).applied
            if page.next is None:
                return gone
            after = page.next
