"""``/v1/sessions``: open, renew, take over, describe, close."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from gateway import commands as c
from gateway import edge, wire
from gateway.exchange import NODE, body, local, number, respond, tenant_of, typed
from rifl.errors import Code, OncegateError


@typed
async def open_session(request: web.Request) -> web.StreamResponse:
    """``POST /v1/sessions``: 201 for a new session, 200 for the one this nonce opened before."""
    node = request.app[NODE]
    opening = await body(request, wire.OpenSession)
    command = edge.open_session(opening, tenant_of(request), node.settings.sessions_max)
    answer = await node.submit(command, 128)
    return respond(request, answer, status=201 if answer.created else 200)


@typed
async def renew(request: web.Request) -> web.StreamResponse:
    """``POST /v1/sessions/{client_id}/renew``."""
    client_id = edge.check_client_id(request.match_info["client_id"])
    epoch = edge.check_number((await body(request, wire.RenewSession)).epoch, "epoch")
    return respond(request, await request.app[NODE].submit(c.RenewSession(client_id, epoch, tenant_of(request)), 64))


@typed
async def take_over(request: web.Request) -> web.StreamResponse:
    """``POST /v1/sessions/{client_id}/take-over``."""
    client_id = edge.check_client_id(request.match_info["client_id"])
    nonce = edge.check_nonce((await body(request, wire.TakeOver)).nonce)
    return respond(request, await request.app[NODE].submit(c.TakeOver(client_id, nonce, tenant_of(request)), 128))


@typed
async def describe(request: web.Request) -> web.StreamResponse:
    """``GET /v1/sessions/{client_id}``."""
    client_id = edge.check_client_id(request.match_info["client_id"])
    node = request.app[NODE]
    await node.reads.reach("linearizable", 0)
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


@typed
async def close(request: web.Request) -> web.StreamResponse:
    """``DELETE /v1/sessions/{client_id}?epoch=``."""
    client_id = edge.check_client_id(request.match_info["client_id"])
    epoch = number(request.query.get("epoch", ""), "epoch")
    answer = await request.app[NODE].submit(c.CloseSession(client_id, epoch, tenant_of(request)), 64)
    return web.Response(status=204, headers={wire.H_COMMIT: str(answer.commit)})


ROUTES: Final = [
    web.post("/v1/sessions", open_session),
    web.get("/v1/sessions/{client_id}", describe),
    web.delete("/v1/sessions/{client_id}", close),
    web.post("/v1/sessions/{client_id}/renew", renew),
    web.post("/v1/sessions/{client_id}/take-over", take_over),
]
