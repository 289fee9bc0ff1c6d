"""The gate in front of an aiohttp application.

``app = web.Application(middlewares=[for_aiohttp(gate)])``, the gate entered for as long as the application runs, for
instance in ``app.cleanup_ctx``. Handlers find their :class:`Ticket` in ``request[TICKET]``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from oncegate.gateway.middleware import records
from oncegate.gateway.middleware.gate import Gate, Ticket
from oncegate.gateway.middleware.records import Incoming, Kept

TICKET: Final = web.RequestKey("oncegate.ticket", Ticket)
"""Where a handler finds its ticket; a request without a key has none."""
Middleware = Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]


def for_aiohttp(gate: Gate) -> Middleware:
    """Return a middleware that carries out each request with a key once."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not gate.concerns(request.method):
            return await handler(request)
        incoming = await _incoming(request, gate.policy.body_bytes_max)
        if isinstance(incoming, Kept):
            return _response(incoming)
        admitted = await gate.admit(incoming)
        if admitted is None:
            return await handler(request)
        if isinstance(admitted, Kept):
            return _response(admitted)
        request[TICKET] = admitted
        # A caller that hangs up may cancel the handler, but not the recording of its outcome.
        return await _run(gate, admitted, request, handler)

    return middleware


async def _run(gate: Gate, ticket: Ticket, request: web.Request, handler: Handler) -> web.StreamResponse:
    settled = False
    try:
        try:
            response: web.StreamResponse = await handler(request)
        except web.HTTPException as raised:  # a response that aiohttp lets handlers raise
            response = raised
        settled = True
        await asyncio.shield(gate.settle(ticket, _kept(response)))
    except BaseException:
        if not settled:
            await asyncio.shield(gate.give_up(ticket))
        raise
    name, value = gate.kept_header
    if not response.prepared:
        response.headers[name] = value
    if isinstance(response, web.HTTPException):
        raise response
    return response


async def _incoming(request: web.Request, bytes_max: int) -> Incoming | Kept:
    keys = tuple(request.headers.getall("Idempotency-Key", ()))
    if keys and (request.content_length or 0) > bytes_max:
        return records.body_too_large(bytes_max)
    # Without a key nothing is fingerprinted, and the handler may want to read the body as it comes.
    body = await request.read() if keys else b""
    if len(body) > bytes_max:
        return records.body_too_large(bytes_max)
    headers = {name.lower(): value for name, value in request.headers.items()}
    return Incoming(request.method.upper(), request.raw_path, headers, keys, body)


def _kept(response: web.StreamResponse) -> Kept:
    headers = [(str(name), value) for name, value in response.headers.items()]
    if not isinstance(response, web.Response) or response.prepared:
        return Kept(response.status, headers, None)
    body = response.body
    if body is None:
        return Kept(response.status, headers, b"")
    return Kept(response.status, headers, bytes(body) if isinstance(body, (bytes, bytearray)) else None)


def _response(kept: Kept) -> web.Response:
    response = web.Response(status=kept.status, body=kept.body)
    for name, value in kept.headers:
        if name.lower() == "content-type":
            response.headers[name] = value
        else:
            response.headers.add(name, value)
    return response
