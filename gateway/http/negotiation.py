"""An exchange over aiohttp: what a request says and who sends it, and the encoded answer or problem.

Owns: how aiohttp's requests are read and answered; the answers are made in :mod:`oncegate.gateway.http.exchange`.
Decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

from aiohttp import web
from multidict import CIMultiDictProxy

from oncegate.gateway.answers import Answer
from oncegate.gateway.http import exchange, request_bodies
from oncegate.gateway.http.admission.bodies import BodyBudget
from oncegate.gateway.http.admission.desk import Usage
from oncegate.gateway.http.admission.parsing import ParsingThread
from oncegate.gateway.http.exchange import Exchange, Headers, MakeOrdering, Reply
from oncegate.gateway.http.identity import Identity
from oncegate.gateway.machine import commands as c
from oncegate.gateway.node.node import Node
from oncegate.rifl.errors import Code, OncegateError

T = TypeVar("T")

NODE: Final = web.AppKey("node", Node)
BODIES: Final = web.AppKey("bodies", BodyBudget)
PARSING: Final = web.AppKey("parsing", ParsingThread)
RUNNING: Final = web.AppKey("running", set[str])
"""Idempotency keys whose first request this node has not answered yet."""
IDENTITY: Final = web.RequestKey("identity", Identity)
"""The sender; the gate has attached it before any handler runs."""
USAGE: Final = web.RequestKey("usage", Usage)
"""What the sender uses; attached by the gate too."""
BODY_BYTES_MAX: Final = web.RequestKey("body_bytes_max", int)
"""Bound of the request's body; attached by the gate too."""
HELD_BYTES: Final = web.RequestKey("held_bytes", int)
"""Set once a large body is held; the gate releases it."""
AGE_MS: Final = web.RequestKey("age_ms", int)
"""Set for a ``stale`` read: its answer, a problem too, says how old it may be."""
COMMIT: Final = web.RequestKey("commit", int)
"""Set where a problem reflects another state than that of now, as that of a read does: its commit number."""


def wants_msgpack(request: web.Request) -> bool:
    """Tell whether to answer in msgpack."""
    return exchange.wants_msgpack(request.headers.get("Accept"), request.content_type)


def exchange_of(request: web.Request) -> Exchange:
    """Return the exchange that an admitted request begins."""
    return Exchange(
        request.app[NODE],
        request[IDENTITY],
        request[USAGE],
        headers_of(request),
        request.content_type,
        wants_msgpack(request),
        request.app[RUNNING],
        request.query,
    )


async def ordered(request: web.Request, make: MakeOrdering) -> web.Response:
    """Read the request's body, order what it asks for, and respond; raises what the steps of the ordering raise."""
    begun = exchange_of(request)
    ordering = make(begun, request.match_info)
    await parsed(request, ordering.read)
    waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    try:
        ordering.order(waiting)
        answer = await waiting
    finally:
        if begun.age_ms is not None:
            request[AGE_MS] = begun.age_ms
        if begun.commit is not None:
            request[COMMIT] = begun.commit
    encoded: bytes | None = None
    if ordering.many_values and exchange.is_long(answer, packed=begun.packed):
        encoded = await _encoded(request, answer, packed=begun.packed)
    reply = ordering.reply(answer, encoded)
    assert isinstance(reply, Reply), "an exchange without a writer asks for no bytes"
    return response_of(reply)


async def _encoded(request: web.Request, answer: Answer, *, packed: bool) -> bytes:
    return await request.app[PARSING].run(tenant_of(request), lambda: exchange.encode(answer, packed=packed))


def response_of(reply: Reply) -> web.Response:
    """Return aiohttp's response of a reply."""
    return web.Response(body=reply.body, status=reply.status, headers=reply.headers)


async def body(request: web.Request, shape: type[T], default: T | None = None) -> T:
    """Read and decode the body of a request whose bound is small, ``default`` if it has none.

    Raises:
        OncegateError: as :func:`raw_body`.
    """
    sent = await raw_body(request)
    return request_bodies.decode(sent, request.content_type, shape) if sent or default is None else default


async def parsed(request: web.Request, read: Callable[[bytes], T]) -> T:
    """Read the request's body and translate it with ``read``: a large one off the event loop.

    Raises:
        OncegateError: as :func:`raw_body` and ``read``.
    """
    sent = await raw_body(request)
    if len(sent) <= request_bodies.INLINE_BYTES_MAX:
        return read(sent)
    tenant = tenant_of(request)
    request.app[BODIES].hold(tenant, len(sent))
    request[HELD_BYTES] = len(sent)
    return await request.app[PARSING].run(tenant, lambda: read(sent))


async def raw_body(request: web.Request) -> bytes:
    """Read the request's body.

    Raises:
        OncegateError: PAYLOAD_TOO_LARGE at the configured bound, at once where the headers say so already;
            BAD_REQUEST when it cannot be decoded or its sender has gone; TIMEOUT or OVERLOADED as
            :class:`oncegate.gateway.http.admission.bodies.BodyBudget` says, or OVERLOADED when all places of its tenant
            were taken while it arrived. Nothing was proposed in any case.
    """
    most = request[BODY_BYTES_MAX]
    if (request.content_length or 0) > most:
        raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"the body is over {most} bytes")
    try:
        if request.content.is_eof():  # the whole body came with the headers: the hot path
            sent = await request.read()
            if len(sent) > most:
                raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"the body is over {most} bytes")
            return sent
        with request[USAGE].receiving():
            return await request.app[BODIES].receive(request.content, tenant_of(request), most)
    except web.HTTPRequestEntityTooLarge as fault:
        raise OncegateError(Code.PAYLOAD_TOO_LARGE, fault.text or "") from None
    except web.RequestPayloadError as fault:
        raise request_bodies.bad(f"the body cannot be read: {fault}") from None
    except ConnectionError:
        raise request_bodies.bad("the connection was lost before the body had arrived") from None


def respond(
    request: web.Request, answer: Answer, *, status: int = 200, etag: str | None = None, encoded: bytes | None = None
) -> web.Response:
    """Make the response of a finished answer; ``encoded``: its body, if that is made already."""
    packed, age_ms = wants_msgpack(request), request.get(AGE_MS)
    return response_of(
        exchange.answered(
            request.app[NODE], answer, packed=packed, status=status, etag=etag, encoded=encoded, age_ms=age_ms
        )
    )


async def respond_with_values(request: web.Request, answer: Answer, *, etag: str | None = None) -> web.Response:
    """Respond as :func:`respond` with an answer that may carry many values of rows: built off the loop, if at all."""
    packed = wants_msgpack(request)
    encoded = await _encoded(request, answer, packed=packed) if exchange.is_long(answer, packed=packed) else None
    return respond(request, answer, etag=etag, encoded=encoded)


async def attempted(node: Node, command: c.AnyOperate | c.Range, size: int) -> Answer:
    """Order operations and wait for their answer; raises what the node refuses."""
    waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    node.attempt(command, size, waiting)
    return await waiting


def local(request: web.Request, found: Any, *, memory_ms: int | None = None) -> web.Response:
    """Respond with a value read from the local state."""
    return respond(request, Answer(found, request.app[NODE].machine.commit, memory_ms=memory_ms))


async def reach(request: web.Request) -> None:
    """Wait until the local state is as new as ``?consistency=`` and ``?min_commit=`` ask.

    Raises:
        OncegateError: as :meth:`oncegate.gateway.node.reads.Reads.reach`.
    """
    age_ms = await exchange.reached(request.app[NODE].reads, request.query)
    if age_ms is not None:
        request[AGE_MS] = age_ms


def problem(request: web.Request, refusal: OncegateError, **members: Any) -> web.Response:
    """Make the ``application/problem+json`` response of a refusal, with extension members (RFC 9457 §3.2)."""
    age_ms, commit = request.get(AGE_MS), request.get(COMMIT)
    return response_of(exchange.refused(request.app[NODE], refusal, age_ms, commit, **members))


def standing(request: web.Request) -> dict[str, str]:
    """Return the headers about this node, with the age of the state that a ``stale`` read finds."""
    return exchange.standing(request.app[NODE], request.get(AGE_MS))


def bare_problem(refusal: OncegateError, **members: Any) -> web.Response:
    """Make the response of a refusal that belongs to no request."""
    return response_of(exchange.bare_refusal(refusal, **members))


def headers_of(request: web.Request) -> Headers:
    """Return the request's headers."""
    return _Given(request.headers)


class _Given:
    __slots__ = ("_headers",)

    def __init__(self, headers: CIMultiDictProxy[str]) -> None:
        self._headers = headers

    def __call__(self, name: str, /) -> list[str]:
        return self._headers.getall(name, [])

    def have_none(self, names: frozenset[str], /) -> bool:
        return not any(name in self._headers for name in names)


def tenant_of(request: web.BaseRequest) -> str:
    """Return the tenant of the request's sender."""
    return request[IDENTITY].tenant
