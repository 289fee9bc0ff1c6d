"""Every request that aiohttp serves is seen here once, from before it is admitted to after its answer.

Owns: how such a request is counted, timed and, if it is an administrative act, written down; its id in the log.
:mod:`oncegate.gateway.http.hot.request` counts the hot ones. One that the hot path leaves to aiohttp is seen here only.
"""

from __future__ import annotations

import asyncio
import contextlib
from time import monotonic
from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from oncegate.gateway import wire
from oncegate.gateway.http.admission.desk import Desk
from oncegate.gateway.http.admission.gate import TOKENS
from oncegate.gateway.http.exchange import traceparent
from oncegate.gateway.http.identity import ANONYMOUS, Identity
from oncegate.gateway.http.negotiation import IDENTITY, headers_of
from oncegate.gateway.http.routing import Handler, Route
from oncegate.gateway.observability import audit, logs
from oncegate.gateway.observability.access import AccessLog
from oncegate.gateway.observability.audit import Act, AuditLog, Who
from oncegate.gateway.observability.request_times import GONE, UNROUTED, RequestTimes
from oncegate.rifl.errors import OncegateError, Outcome

if TYPE_CHECKING:
    from oncegate.gateway.observability.spans import Spans

REQUESTS: Final = web.AppKey("requests", RequestTimes)
AUDIT: Final = web.AppKey("audit", AuditLog)
"""Not there: nothing is written down."""
ACCESS: Final = web.AppKey("access", AccessLog)
"""Not there: it is off."""
SPANS: Final[web.AppKey[Spans]] = web.AppKey("spans")
"""Not there: it makes none."""


def observing(desk: Desk) -> Middleware:
    """Return the outermost middleware, which sees every request and changes none."""

    @web.middleware
    async def observed(request: web.Request, handler: Handler) -> web.StreamResponse:
        began_s, status = monotonic(), GONE
        logs.REQUEST.set(logs.request_id(request.headers.get))  # of the task that serves this connection
        route = desk.route_of(request.match_info.handler)
        response: web.StreamResponse | None = None
        try:
            response = await handler(request)
            status = response.status
        except web.HTTPException as fault:
            status = fault.status
            raise
        finally:
            lasted_s = monotonic() - began_s
            request.app[REQUESTS].observe(None if route is None else route.handler, status, lasted_s)
            if ACCESS in request.app:
                _note(request, route, status, lasted_s)
            if SPANS in request.app and route is not None:
                commit = "" if response is None else response.headers.get(wire.H_COMMIT, "")
                told = (route.method, route.path), status, lasted_s, commit
                request.app[SPANS].request(traceparent(headers_of(request)), *told)
            if route is not None and route.act and AUDIT in request.app:
                await asyncio.shield(_write_down(request, route, status, response))
            logs.REQUEST.set("")
        return response

    return observed


def _note(request: web.Request, route: Route | None, status: int, lasted_s: float) -> None:
    sender: Identity | None = request.get(IDENTITY)
    who = ("", "") if sender is None else (sender.name, sender.tenant)
    served_by = UNROUTED if route is None else (route.method, route.path)
    address, request_id = request.remote or "", logs.REQUEST.get()
    request.app[ACCESS].add(served_by, status, lasted_s, who=who, address=address, request=request_id)


async def _write_down(request: web.Request, route: Route, status: int, response: web.StreamResponse | None) -> None:
    identity = _sender(request)
    if identity is None:
        return  # nobody: whoever has no token could fill the disk
    outcome, code = Outcome.UNKNOWN.value, ""
    if response is not None:
        outcome, code = (audit.DONE, "") if status < 400 else _refusal(response)
    body = None
    if request.content.is_eof() and request.get(IDENTITY) is not None:
        body = audit.asked(await request.read(), packed=request.content_type == wire.MSGPACK)
    who = Who(identity.name, identity.tenant, request.remote or "")
    told = Act(route.act, outcome, who, dict(request.match_info), body, code, status, logs.REQUEST.get())
    await request.app[AUDIT].record(told)


def _sender(request: web.Request) -> Identity | None:
    """Return who asked, also of a request that was refused before it was admitted; None: nobody that is known."""
    admitted: Identity | None = request.get(IDENTITY)
    if admitted is not None:
        return admitted
    tokens = request.app.get(TOKENS)
    if tokens is None:
        return ANONYMOUS
    try:
        return tokens.identify(request.headers.get(hdrs.AUTHORIZATION))
    except OncegateError:
        return None


def _refusal(response: web.StreamResponse) -> tuple[str, str]:
    """Return outcome and code of a problem."""
    with contextlib.suppress(msgspec.MsgspecError):
        if isinstance(response, web.Response) and isinstance(response.body, bytes):
            shown = msgspec.json.decode(response.body, type=wire.Problem)
            return shown.outcome, shown.code
    return Outcome.UNKNOWN.value, ""
