"""One HTTP exchange: what a request says and who sends it, and the encoded answer or problem.

Owns: content negotiation, the headers that every answer carries, the form of ``application/problem+json``, and the
check of a session's owner. Knows aiohttp, decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from oncegate.gateway import wire
from oncegate.gateway.answers import Answer
from oncegate.gateway.http import request_bodies
from oncegate.gateway.http.admission.bodies import BodyBudget
from oncegate.gateway.http.identity import Identity
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.node.node import Node
from oncegate.rifl.errors import Code, OncegateError

T = TypeVar("T")

NODE: Final = web.AppKey("node", Node)
BODIES: Final = web.AppKey("bodies", BodyBudget)
IDENTITY: Final = web.RequestKey("identity", Identity)
"""The sender; the gate has attached it before any handler runs."""
AGE_MS: Final = web.RequestKey("age_ms", int)
"""Set for a ``stale`` read: its answer, a problem too, says how old it may be."""
RETRY_AFTER_MS: Final = 1_000
"""Suggested with a 429 or 503 that suggests nothing by itself."""
_json = msgspec.json.Encoder()
_msgpack = msgspec.msgpack.Encoder()


def wants_msgpack(request: web.Request) -> bool:
    """Tell whether to answer in msgpack: as ``Accept`` says, else if the request was msgpack."""
    accept = request.headers.get("Accept")
    if accept is None or accept == "*/*":
        return request.content_type == wire.MSGPACK
    return wire.MSGPACK in accept


async def body(request: web.Request, shape: type[T], default: T | None = None) -> T:
    """Read and decode the request's body, ``default`` if it has none; raises BAD_REQUEST or PAYLOAD_TOO_LARGE."""
    sent = await raw_body(request)
    return request_bodies.decode(sent, request.content_type, shape) if sent or default is None else default


async def raw_body(request: web.Request) -> bytes:
    """Read the request's body.

    Raises:
        OncegateError: PAYLOAD_TOO_LARGE at the configured bound, at once where the headers say so already;
            BAD_REQUEST when it cannot be decoded or its sender has gone; TIMEOUT or OVERLOADED as
            :class:`oncegate.gateway.http.admission.bodies.BodyBudget` says. Nothing was proposed in any case.
    """
    if (request.content_length or 0) > request.client_max_size:
        raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"the body is over {request.client_max_size} bytes")
    try:
        if request.content.is_eof():  # the whole body came with the headers: the hot path
            return await request.read()
        return await request.app[BODIES].receive(request.content)
    except web.HTTPRequestEntityTooLarge as fault:
        raise OncegateError(Code.PAYLOAD_TOO_LARGE, fault.text or "") from None
    except web.RequestPayloadError as fault:
        raise request_bodies.bad(f"the body cannot be read: {fault}") from None
    except ConnectionError:
        raise request_bodies.bad("the connection was lost before the body had arrived") from None


def respond(request: web.Request, answer: Answer, *, status: int = 200, etag: str | None = None) -> web.Response:
    """Make the response of a finished answer."""
    headers = {wire.H_COMMIT: str(answer.commit), **standing(request)}
    if answer.memory_ms is not None:
        headers[wire.H_MEMORY_MS] = str(answer.memory_ms)
    if etag is not None:
        headers["ETag"] = f'"{etag}"'
    if wants_msgpack(request):
        return web.Response(
            body=_msgpack.encode(answer.body), status=status, headers=headers, content_type=wire.MSGPACK
        )
    return web.Response(body=_json.encode(answer.body), status=status, headers=headers, content_type=wire.JSON)


async def submitted(request: web.Request, command: c.Command, size: int) -> web.Response:
    """Order a command of roughly ``size`` bytes and respond with its answer; raises what the node refuses."""
    return respond(request, await request.app[NODE].submit(command, size))


def local(request: web.Request, found: Any, *, memory_ms: int | None = None) -> web.Response:
    """Respond with a value read from the local state."""
    return respond(request, Answer(found, request.app[NODE].machine.commit, memory_ms=memory_ms))


async def reach(request: web.Request) -> None:
    """Wait until the local state is as new as ``?consistency=`` and ``?min_commit=`` ask.

    Raises:
        OncegateError: as :meth:`oncegate.gateway.node.reads.Reads.reach`.
    """
    query, reads = request.query, request.app[NODE].reads
    consistency = query.get("consistency", "linearizable")
    await reads.reach(consistency, number(query.get("min_commit", "0"), "min_commit", least=0))
    if consistency == "stale" and (age_ms := reads.age_ms()) is not None:
        request[AGE_MS] = age_ms


def is_current(request: web.Request, etag: str) -> bool:
    """Tell whether ``If-None-Match`` names this ETag, so that the answer is 304 (RFC 9110 §13.1.2)."""
    return any(held.value in (etag, "*") for held in request.if_none_match or ())


def problem(request: web.Request, refusal: OncegateError, **members: Any) -> web.Response:
    """Make the ``application/problem+json`` response of a refusal, with extension members (RFC 9457 §3.2)."""
    node = request.app[NODE]
    response = bare_problem(refusal, **members)
    response.headers[wire.H_COMMIT] = str(node.machine.commit)
    response.headers.update(standing(request))
    return response


def standing(request: web.Request) -> dict[str, str]:
    """Return the headers about this node: who leads, and the age of the state that a ``stale`` read finds."""
    headers = {}
    leader = request.app[NODE].leader_http
    if leader is not None:
        headers[wire.H_LEADER] = leader
    age_ms = request.get(AGE_MS)
    if age_ms is not None:
        headers[wire.H_AGE_MS] = str(age_ms)
    return headers


def bare_problem(refusal: OncegateError, **members: Any) -> web.Response:
    """Make the response of a refusal that belongs to no request."""
    headers = {}
    retry_after_ms = refusal.retry_after_ms
    if retry_after_ms is None and refusal.status in (429, 503):
        retry_after_ms = RETRY_AFTER_MS
    if retry_after_ms is not None:
        headers["Retry-After"] = str(-(-retry_after_ms // 1000))
    shown = wire.Problem(
        type=f"urn:oncegate:error:{refusal.code.value}",
        title=refusal.title,
        status=refusal.status,
        code=refusal.code.value,
        outcome=refusal.outcome.value,
        retryable=refusal.retryable,
        detail=refusal.detail,
        retry_after_ms=retry_after_ms,
    )
    text = _json.encode({**msgspec.to_builtins(shown), **members} if members else shown)
    return web.Response(body=text, status=refusal.status, headers=headers, content_type=wire.PROBLEM)


def headers_of(request: web.Request) -> Callable[[str], list[str]]:
    """Return how to get all values of a header, none if it is not there."""
    return lambda name: request.headers.getall(name, [])


def tenant_of(request: web.BaseRequest) -> str:
    """Return the tenant of the request's sender."""
    return request[IDENTITY].tenant


def check_owner(request: web.BaseRequest, machine: Machine, client_id: int) -> None:
    """Refuse a session of another tenant, as far as this node knows it (SEMANTICS, case 3).

    This saves a log entry and guards reads of the local state. A node that is behind may not know the session yet; for
    everything that goes through the log, the apply rule decides.

    Raises:
        OncegateError: FORBIDDEN; it says no more about the session than that it belongs to another tenant.
    """
    session = machine.sessions.get(client_id)
    if session is not None and session.tenant != tenant_of(request):
        raise OncegateError(Code.FORBIDDEN, "the session belongs to another tenant")


def client_of(request: web.Request) -> int:
    """Return the client id of the path; raises BAD_REQUEST."""
    return request_bodies.check_client_id(request.match_info["client_id"])


def path_name(request: web.Request, part: str) -> str:
    """Return a table's, flow's or consumer's name from the path; raises BAD_REQUEST."""
    return request_bodies.check_name(request.match_info[part], part)


def number(text: str, what: str, *, least: int = 1) -> int:
    """Read a decimal number in ``least``..2^53-1; raises BAD_REQUEST."""
    value = request_bodies.digits(text, what)
    return value if value == least == 0 else request_bodies.check_number(value, what)
