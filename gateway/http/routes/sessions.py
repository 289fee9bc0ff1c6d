"""``/v1/sessions``: open, renew, take over, describe, close."""

from __future__ import annotations

from typing import Final

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
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import ID_MAX
from oncegate.rifl.session import FULL

_SESSION: Final = "/v1/sessions/{client_id}"
_EPOCH: Final = Parameter("epoch", {"type": "integer", "minimum": 1, "maximum": ID_MAX}, "as opened", required=True)
_OWNED: Final = (Code.FENCED, Code.SESSION_EXPIRED, *PROPOSED)
ROUTES: Final = Routes("sessions")


@ROUTES.add(
    "POST",
    "/v1/sessions",
    Scope.WRITE,
    {200: wire.SessionOpened, 201: wire.SessionOpened},
    body=wire.OpenSession,
    errors=(Code.FENCED, *PROPOSED),
)
async def open_session(request: web.Request) -> web.StreamResponse:
    """``POST /v1/sessions``: 201 for a new session, 200 for the one this nonce opened before."""
    node, tenant = request.app[NODE], tenant_of(request)
    bounds = {"sessions_max": node.settings.sessions_max, "tenant_sessions_max": node.settings.tenant_sessions_max}
    command = request_bodies.open_session(await body(request, wire.OpenSession), tenant, **bounds)
    sessions = node.machine.sessions
    # The log decides. A request that it would refuse anyway costs no entry. A retry finds its session even at the
    # bound.
    if sessions.is_full(tenant, **bounds) and sessions.of_nonce(command.nonce, tenant) is None:
        raise OncegateError(Code.QUOTA, FULL)
    answer = await node.submit(command, 128)
    return respond(request, answer, status=201 if answer.created else 200)


@ROUTES.add("POST", _SESSION + "/renew", Scope.WRITE, {200: wire.SessionRenewed}, body=wire.RenewSession, errors=_OWNED)
async def renew(request: web.Request) -> web.StreamResponse:
    """``POST /v1/sessions/{client_id}/renew``."""
    client_id = client_of(request)
    epoch = request_bodies.check_number((await body(request, wire.RenewSession)).epoch, "epoch")
    check_owner(request, request.app[NODE].machine, client_id)
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
    check_owner(request, request.app[NODE].machine, client_id)
    return await submitted(request, c.TakeOver(client_id, nonce, tenant_of(request)), 128)


@ROUTES.add("GET", _SESSION, Scope.READ, {200: wire.SessionState}, errors=(Code.NOT_FOUND, Code.SESSION_EXPIRED, *READ))
async def describe(request: web.Request) -> web.StreamResponse:
    """``GET /v1/sessions/{client_id}``."""
    client_id = client_of(request)
    node = request.app[NODE]
    await node.reads.reach("linearizable", 0)
    check_owner(request, node.machine, client_id)
    session = node.machine.sessions.get(client_id)
    if session is None:
        known = client_id < node.machine.sessions.next_id
        raise OncegateError(Code.SESSION_EXPIRED if known else Code.NOT_FOUND, "no such session")
    node.machine.check_tenant(client_id, tenant_of(request))
    tracker = node.machine.trackers[client_id]
    state = wire.SessionState(
        epoch=session.epoch,
        lease_ms_left=session.left_ms(node.machine.time_ms),
        first_incomplete=tracker.first_incomplete,
        highest_sequence=tracker.highest,
        records=len(tracker.records) + len(tracker.ranges),
    )
    return local(request, state, memory_ms=state.lease_ms_left)


@ROUTES.add("DELETE", _SESSION, Scope.WRITE, {204: None}, parameters=(_EPOCH,), errors=_OWNED)
async def close(request: web.Request) -> web.StreamResponse:
    """``DELETE /v1/sessions/{client_id}?epoch=``."""
    client_id = client_of(request)
    epoch = number(request.query.get("epoch", ""), "epoch")
    check_owner(request, request.app[NODE].machine, client_id)
    answer = await request.app[NODE].submit(c.CloseSession(client_id, epoch, tenant_of(request)), 64)
    return web.Response(status=204, headers={wire.H_COMMIT: str(answer.commit)})
