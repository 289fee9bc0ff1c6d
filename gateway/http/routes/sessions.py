"""``/v1/sessions``: open, renew, take over, describe, list, close."""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import web

from oncegate.gateway import wire
from oncegate.gateway.http import request_bodies
from oncegate.gateway.http.identity import Scope
from oncegate.gateway.http.negotiation import (
    NODE,
    body,
    check_owner,
    client_of,
    local,
    number,
    respond,
    submitted,
    tenant_of,
)
from oncegate.gateway.http.routing import PROPOSED, READ, Parameter, Routes
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.tenant_share import share
from oncegate.gateway.machine.transactions import Transacted
from oncegate.rifl.completion import SEALED_COMMIT, CompletionRecord, RangeRecord
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import ID_MAX, format_client_id
from oncegate.rifl.session import FULL, SessionRecord

_SESSION: Final = "/v1/sessions/{client_id}"
_EPOCH: Final = Parameter("epoch", {"type": "integer", "minimum": 1, "maximum": ID_MAX}, "as opened", required=True)
_OWNED: Final = (Code.FENCED, Code.SESSION_EXPIRED, *PROPOSED)
LISTED_MAX: Final = 1_000
"""Sessions, or runs of a session's requests, of a page."""
_LIMIT: Final = Parameter("limit", {"type": "integer", "minimum": 1, "default": 100}, f"at most {LISTED_MAX} come")
_AFTER: Final = Parameter("after", {"type": "string", "pattern": "^[0-9a-f]{16}$"}, "`next` of the page before")
_RECORDS_MIN: Final = Parameter(
    "records_min", {"type": "integer", "minimum": 0, "default": 0}, "sessions that keep at least so many records"
)
_AFTER_SEQUENCE: Final = Parameter(
    "after", {"type": "integer", "minimum": 0, "maximum": ID_MAX}, "`next` of the page before"
)
ROUTES: Final = Routes("sessions")


@ROUTES.add(
    "POST",
    "/v1/sessions",
    Scope.WRITE,
    {200: wire.SessionOpened, 201: wire.SessionOpened},
    body=wire.OpenSession,
    errors=(Code.FENCED, Code.SESSION_EXPIRED, *PROPOSED),
)
async def open_session(request: web.Request) -> web.StreamResponse:
    """``POST /v1/sessions``: 201 for a new session, 200 for the one this nonce opened before."""
    node, tenant = request.app[NODE], tenant_of(request)
    sent = await body(request, wire.OpenSession)
    sessions, most = node.machine.sessions, node.settings.sessions_max
    fair = share(tenant, most, len(sessions), sessions.of_tenant(tenant))
    bounds = {"sessions_max": most, "tenant_sessions_max": min(node.settings.tenant_sessions_max, fair)}
    command = request_bodies.open_session(sent, tenant, **bounds)
    # The log decides. A request that it would refuse anyway costs no entry. A retry finds its session even at the
    # bound.
    if sessions.is_full(tenant, **bounds) and sessions.of_nonce(command.nonce, tenant) is None:
        wait_ms = max(1_000, sessions.room_in_ms(node.machine.time_ms))
        raise OncegateError(Code.QUOTA, FULL, retry_after_ms=wait_ms)
    answer = await node.submit(command, 128)
    return respond(request, answer, status=201 if answer.created else 200)


@ROUTES.add("POST", _SESSION + "/renew", Scope.WRITE, {200: wire.SessionRenewed}, body=wire.RenewSession, errors=_OWNED)
async def renew(request: web.Request) -> web.StreamResponse:
    """``POST /v1/sessions/{client_id}/renew``."""
    client_id = client_of(request)
    epoch = request_bodies.check_number((await body(request, wire.RenewSession)).epoch, "epoch")
    check_owner(tenant_of(request), request.app[NODE].machine, client_id)
    return await submitted(request, c.RenewSession(client_id, epoch, tenant_of(request)), 64)


@ROUTES.add(
    "POST",
    _SESSION + "/take-over",
    Scope.WRITE,
    {200: wire.SessionTaken},
    body=wire.TakeOver,
    errors=(Code.CONFLICT, *_OWNED),
)
async def take_over(request: web.Request) -> web.StreamResponse:
    """``POST /v1/sessions/{client_id}/take-over``."""
    client_id = client_of(request)
    nonce = request_bodies.check_nonce((await body(request, wire.TakeOver)).nonce)
    check_owner(tenant_of(request), request.app[NODE].machine, client_id)
    return await submitted(request, c.TakeOver(client_id, nonce, tenant_of(request)), 128)


@ROUTES.add("GET", _SESSION, Scope.READ, {200: wire.SessionState}, errors=(Code.NOT_FOUND, Code.SESSION_EXPIRED, *READ))
async def describe(request: web.Request) -> web.StreamResponse:
    """``GET /v1/sessions/{client_id}``."""
    state = _state(request.app[NODE].machine, await _found(request))
    return local(request, state, memory_ms=state.lease_ms_left)


async def _found(request: web.Request) -> SessionRecord:
    """Return the session of the path; raises FORBIDDEN, NOT_FOUND, SESSION_EXPIRED."""
    client_id = client_of(request)
    node = request.app[NODE]
    await node.reads.reach("linearizable", 0)
    check_owner(tenant_of(request), node.machine, client_id)
    session = node.machine.sessions.get(client_id)
    if session is None:
        known = client_id < node.machine.sessions.next_id
        raise OncegateError(Code.SESSION_EXPIRED if known else Code.NOT_FOUND, "no such session")
    return session


def _state(machine: Machine, session: SessionRecord) -> wire.SessionState:
    tracker = machine.trackers[session.client_id]
    return wire.SessionState(
        epoch=session.epoch,
        lease_ms_left=session.left_ms(machine.time_ms),
        first_incomplete=tracker.first_incomplete,
        highest_sequence=tracker.highest,
        records=_records(machine, session),
    )


def _records(machine: Machine, session: SessionRecord) -> int:
    tracker = machine.trackers[session.client_id]
    return tracker.records_count + len(tracker.ranges)


@ROUTES.add(
    "GET", "/v1/sessions", Scope.READ, {200: wire.SessionList}, parameters=(_AFTER, _LIMIT, _RECORDS_MIN), errors=READ
)
async def list_own(request: web.Request) -> web.StreamResponse:
    """``GET /v1/sessions``: the live sessions of the token's tenant, a page in the order of their ids."""
    after = request.query.get("after")
    first = 0 if after is None else request_bodies.check_client_id(after)
    limit = min(number(request.query.get("limit", "100"), "limit"), LISTED_MAX)
    least = number(request.query.get("records_min", "0"), "records_min", least=0)
    node = request.app[NODE]
    await node.reads.reach("linearizable", 0)
    machine = node.machine

    def keeps_enough(session: SessionRecord) -> bool:
        return not least or _records(machine, session) >= least

    found, following = machine.sessions.page(tenant_of(request), first, limit, keeps_enough)
    listed = [
        wire.SessionListed(
            **msgspec.structs.asdict(_state(machine, session)),
            client_id=format_client_id(session.client_id),
            window=session.window,
            lease_ms=session.lease_ms,
        )
        for session in found
    ]
    return local(request, wire.SessionList(listed, None if following is None else format_client_id(following)))


@ROUTES.add(
    "GET",
    _SESSION + "/requests",
    Scope.READ,
    {200: wire.OpenRequestList},
    parameters=(_AFTER_SEQUENCE, _LIMIT),
    errors=(Code.NOT_FOUND, Code.SESSION_EXPIRED, *READ),
)
async def open_requests(request: web.Request) -> web.StreamResponse:
    """``GET /v1/sessions/{client_id}/requests``: what is not acknowledged, recorded or never seen, a page."""
    after = number(request.query.get("after", "0"), "after", least=0)
    limit = min(number(request.query.get("limit", "100"), "limit"), LISTED_MAX)
    session = await _found(request)
    runs = request.app[NODE].machine.trackers[session.client_id].open_requests(after, limit + 1)
    listed = [_run(*run) for run in runs[:limit]]
    return local(request, wire.OpenRequestList(listed, listed[-1].last if len(runs) > limit else None))


def _run(first: int, last: int, record: CompletionRecord | RangeRecord | None) -> wire.OpenRequests:
    if record is None:
        return wire.OpenRequests(first, last, "never_seen")
    if record.commit == SEALED_COMMIT:
        return wire.OpenRequests(first, last, "sealed")
    commit = record.commit
    if isinstance(record, CompletionRecord) and isinstance(record.result, Transacted):
        commit = record.result.last_of(commit)
    return wire.OpenRequests(first, last, "executed", commit, record.traceparent or msgspec.UNSET)


@ROUTES.add("DELETE", _SESSION, Scope.WRITE, {204: None}, parameters=(_EPOCH,), errors=_OWNED)
async def close(request: web.Request) -> web.StreamResponse:
    """``DELETE /v1/sessions/{client_id}?epoch=``."""
    client_id = client_of(request)
    epoch = number(request.query.get("epoch", ""), "epoch")
    check_owner(tenant_of(request), request.app[NODE].machine, client_id)
    answer = await request.app[NODE].submit(c.CloseSession(client_id, epoch, tenant_of(request)), 64)
    return web.Response(status=204, headers={wire.H_COMMIT: str(answer.commit)})
