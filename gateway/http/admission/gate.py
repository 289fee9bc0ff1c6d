"""The gate: every request that aiohttp serves passes it once, before its handler.

Owns: how the desk (:mod:`oncegate.gateway.http.admission.desk`) is asked, and the one place where errors of handlers
become problems. When the gate itself refuses, no byte of a body has been read and nothing was proposed.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from oncegate.gateway.http.admission.desk import Asked, Desk
from oncegate.gateway.http.auth import Tokens
from oncegate.gateway.http.exchange import complete, refusal_of
from oncegate.gateway.http.identity import Scope
from oncegate.gateway.http.negotiation import (
    BODIES,
    BODY_BYTES_MAX,
    HELD_BYTES,
    IDENTITY,
    NODE,
    USAGE,
    bare_problem,
    problem,
)
from oncegate.gateway.http.routing import Handler, Route
from oncegate.rifl.errors import Code, OncegateError

_STATUS_CODES: Final = {
    404: Code.NOT_FOUND,
    405: Code.METHOD_NOT_ALLOWED,
    413: Code.PAYLOAD_TOO_LARGE,
    415: Code.UNSUPPORTED_MEDIA_TYPE,
}
log = logging.getLogger(__name__)

TOKENS: Final = web.AppKey("tokens", Tokens)
"""Not there: everybody may do everything."""


def is_still_known(request: web.Request, scope: Scope, name: str | None) -> bool:
    """Tell whether a request that takes long would be admitted now: its token may have ended, or been taken out.

    Args:
        request: admitted before.
        scope: what its route needs.
        name: the table or flow that it is about; None: it is about none.
    """
    tokens = request.app.get(TOKENS)
    if tokens is None:
        return True
    try:
        identity = tokens.identify(request.headers.get(hdrs.AUTHORIZATION))
        return scope in identity.scopes if name is None else identity.may(scope, name)
    except OncegateError:
        return False


@contextlib.contextmanager
def uncounted(request: web.Request) -> Iterator[None]:
    """Let a request that lasts as long as its client wants, and has a bound of its own, take no place of its tenant."""
    usage = request[USAGE]
    usage.requests -= 1
    try:
        yield
    finally:
        usage.requests += 1


def gate(desk: Desk) -> Middleware:
    """Return the middleware that calls ``desk``; every error leaves as a problem, aiohttp's own refusals too."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        asked = _asked(request, desk.route_of(request.match_info.handler))
        try:
            desk.check_site(asked)
        except OncegateError as refusal:
            return bare_problem(refusal)  # tells a page of another site nothing about this node
        try:
            identity, route = desk.identify(asked), asked.route
            if identity is None or route is None:
                return await _unrouted(request, handler)
            request[IDENTITY] = identity
            request[USAGE] = usage = desk.admit(asked, route, identity)
        except OncegateError as refusal:
            response = problem(request, refusal)
            if refusal.code is Code.UNAUTHENTICATED:
                response.headers[hdrs.WWW_AUTHENTICATE] = "Bearer"
            elif refusal.code is Code.UNSUPPORTED_MEDIA_TYPE:
                response.headers[hdrs.ACCEPT_ENCODING] = "identity"
            elif refusal.code is Code.QUOTA and (refused := desk.usage_of(request[IDENTITY])) is not None:
                refused.describe(response.headers)
            return response
        request[BODY_BYTES_MAX] = desk.body_bytes_max(route)
        answer: web.StreamResponse
        try:
            if route.needs_state:
                request.app[NODE].check_sound()
            answer = await handler(request)
        except web.HTTPException:
            raise
        except Exception as fault:  # noqa: BLE001 - translated for who asked; a bug is logged
            answer = problem(request, refusal_of(fault))
        finally:
            usage.requests -= 1
            held = request.get(HELD_BYTES)
            if held is not None:
                request.app[BODIES].release(identity.tenant, held)
        if not answer.prepared:
            complete(answer.headers, usage, request.app[NODE])
        return answer

    return guarded


def _asked(request: web.Request, route: Route | None) -> Asked:
    query = [name for name, _ in request.query.items()] if request.query_string else ()
    headers, kind = request.headers, request.content_type
    return Asked(
        request.method, request.raw_path, route, request.match_info, query, headers.get, kind, request.can_read_body
    )


async def _unrouted(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn aiohttp's refusals (no route, no such method) into problems."""
    try:
        return await handler(request)
    except web.HTTPException as fault:
        if fault.status < 400:
            raise
        response = problem(request, OncegateError(_STATUS_CODES.get(fault.status, Code.BAD_REQUEST), fault.reason))
        allowed = fault.headers.get(hdrs.ALLOW)
        if allowed is not None:
            response.headers[hdrs.ALLOW] = allowed
        return response
