"""Changes of single rows for callers without the SDK: ``PUT``, ``DELETE``, ``increment``, ``append``.

Owns: the way from headers and body to one command, and from its verdict to a status. The identity of a request is
read in :mod:`oncegate.gateway.http.request_headers`, remembered in :mod:`oncegate.rifl.key_table` or the caller's
session.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web

from oncegate.gateway import wire
from oncegate.gateway.answers import Answer
from oncegate.gateway.http import request_bodies
from oncegate.gateway.http import request_headers as plain
from oncegate.gateway.http.identity import Scope
from oncegate.gateway.http.negotiation import (
    NODE,
    body,
    check_owner,
    headers_of,
    path_name,
    problem,
    respond,
    tenant_of,
)
from oncegate.gateway.http.routing import OBJECTS, PROPOSED, Parameter, Raw, Routes
from oncegate.gateway.machine import commands as c
from oncegate.rifl.errors import Code, OncegateError, Outcome
from oncegate.rifl.ids import format_client_id
from oncegate.rifl.key_table import KEYS_CLIENT


class Increment(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /v1/tables/{table}/rows/{key}/increment``; may be left out."""

    by: int = 1


class Append(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /v1/tables/{table}/rows/{key}/append``."""

    item: Any


class RowChanged(msgspec.Struct, omit_defaults=True):
    """Answer to a change of one row without the SDK; a replay is the same bytes.

    ``request`` is the request id, also for a request with a key; ``value`` is the result of an increment.
    """

    request: str
    commit: int
    version: int
    value: Any = msgspec.UNSET


class RefusalProblem(wire.Problem):
    """A business refusal as a problem: recorded, replayed, and what the row was."""

    request: str = ""
    commit: int = 0
    version: int = 0
    value: Any = msgspec.UNSET


class _Refusal(NamedTuple):
    status: int
    title: str


REFUSALS: Final = {
    "CONDITION_FAILED": _Refusal(412, "The condition does not hold"),
    "NOT_AN_INTEGER": _Refusal(409, "The row holds no integer"),
    "OVERFLOW": _Refusal(409, "The sum does not fit 64 bits"),
    "NOT_A_LIST": _Refusal(409, "The row holds no list"),
    "LIST_FULL": _Refusal(409, "The list has no room"),
}
"""Business refusals: recorded, and replayed like a result. Their outcome is ``not_applied``."""
running: Final = web.AppKey("running", set[str])
"""Keys whose first request this node has not answered yet."""

_ANYTHING: Any = Any
_ROW: Final = "/v1/tables/{table}/rows/{key:(?s:.+)}"
_TEXT: Final = {"type": "string"}
_HEADERS: Final = (
    Parameter(wire.H_IDEMPOTENCY_KEY, _TEXT, "names the request; the gateway gives it an id", "header"),
    Parameter(wire.H_REQUEST, _TEXT, "client_id/sequence, for callers with a session", "header"),
    Parameter(wire.H_EPOCH, _TEXT, "the session's epoch, with a request id", "header"),
    Parameter(wire.H_FIRST_INCOMPLETE, _TEXT, "everything below is acknowledged, with a request id", "header"),
    Parameter("If-Match", _TEXT, "the row's version", "header"),
    Parameter("If-None-Match", _TEXT, "* for: only if there is no such row", "header"),
)
_CHANGE: Final[dict[str, Any]] = {
    "scope": Scope.WRITE,
    "answers": {200: RowChanged},
    "parameters": _HEADERS,
    "errors": (
        *(Code.BAD_ACK, Code.IN_PROGRESS, Code.FENCED, Code.STALE, Code.SESSION_EXPIRED, Code.PAYLOAD_MISMATCH),
        *(Code.WINDOW_FULL, *PROPOSED),
    ),
    "refusals": {status: RefusalProblem for status, _ in REFUSALS.values()},
}
ROUTES: Final = Routes("rows")


@ROUTES.add("PUT", _ROW, **_CHANGE, body=Raw(OBJECTS, "the value: any JSON"))
async def put(request: web.Request) -> web.StreamResponse:
    """``PUT /v1/tables/{table}/rows/{key}``: the body is the value."""
    value = await body(request, _ANYTHING)
    return await _change(request, wire.Operation(1, "put", *_row(request), value))


@ROUTES.add("DELETE", _ROW, **_CHANGE)
async def delete(request: web.Request) -> web.StreamResponse:
    """``DELETE /v1/tables/{table}/rows/{key}``."""
    return await _change(request, wire.Operation(1, "delete", *_row(request)))


@ROUTES.add("POST", _ROW + "/increment", **_CHANGE, body=Increment, body_required=False)
async def increment(request: web.Request) -> web.StreamResponse:
    """``POST /v1/tables/{table}/rows/{key}/increment``."""
    by = (await body(request, Increment, Increment())).by
    return await _change(request, wire.Operation(1, "increment", *_row(request), by=by))


@ROUTES.add("POST", _ROW + "/append", **_CHANGE, body=Append)
async def append(request: web.Request) -> web.StreamResponse:
    """``POST /v1/tables/{table}/rows/{key}/append``."""
    item = (await body(request, Append)).item
    return await _change(request, wire.Operation(1, "append", *_row(request), item=item))


async def _change(request: web.Request, operation: wire.Operation) -> web.StreamResponse:
    headers = headers_of(request)
    who = plain.identity(headers)
    op = plain.conditional(request_bodies.operation(operation, 0), headers)
    size = 256 + len(op.key) + len(op.value or b"")
    node, tenant, trace = request.app[NODE], tenant_of(request), plain.traceparent(headers)
    if isinstance(who, plain.RequestPlace):
        check_owner(request, node.machine, who.client_id)
        op = msgspec.structs.replace(op, sequence=who.sequence)
        command = c.Operate(who.client_id, who.epoch, who.first_incomplete, [op], tenant, trace)
        return _answered(request, operation.op, who.client_id, await node.attempt(command, size))
    busy, name = request.app[running], f"{tenant}\0{who.scoped}"
    if name in busy:
        raise OncegateError(Code.IN_PROGRESS, "the first request with this key is still running", retry_after_ms=50)
    keyed = c.Keyed(node.settings.idempotency_key_ms, [c.KeyedOp(who.scoped, who.named_ms, op)], tenant, trace)
    future = node.attempt(keyed, size + len(who.text))
    busy.add(name)
    # Not when this handler ends: the operation goes on when its caller hangs up.
    future.add_done_callback(lambda _: busy.discard(name))
    return _answered(request, operation.op, KEYS_CLIENT, await future)


def _answered(request: web.Request, op: str, client_id: int, answer: Answer) -> web.Response:
    result: wire.OperationResult = answer.body.results[0]
    if result.status == "rejected":
        response = problem(request, _rejection(result))
        response.headers[wire.H_MEMORY_MS] = str(answer.memory_ms)
    else:
        request_id = f"{format_client_id(client_id)}/{result.sequence}"
        if result.status == "applied":
            etag = None if op == "delete" else str(result.version)
            done = RowChanged(request_id, _known(result.commit), _known(result.version), result.value)
            response = respond(request, answer._replace(body=done), etag=etag)
        else:
            response = _refused(request, request_id, result, answer)
        response.headers[wire.H_REQUEST] = request_id
        if result.replayed is True:
            response.headers[wire.H_REPLAYED] = "true"
    response.headers[wire.H_TIME_MS] = str(request.app[NODE].machine.time_ms)
    return response


def _refused(request: web.Request, request_id: str, result: wire.OperationResult, answer: Answer) -> web.Response:
    code = str(result.code)
    refusal = REFUSALS[code]
    shown = RefusalProblem(
        type=f"urn:oncegate:error:{code}",
        title=refusal.title,
        status=refusal.status,
        code=code,
        outcome=Outcome.NOT_APPLIED.value,
        retryable=False,
        request=request_id,
        commit=_known(result.commit),
        version=_known(result.version),
        value=result.value,
    )
    headers = {wire.H_COMMIT: str(answer.commit), wire.H_MEMORY_MS: str(answer.memory_ms)}
    return web.Response(
        body=msgspec.json.encode(shown), status=refusal.status, headers=headers, content_type=wire.PROBLEM
    )


def _rejection(result: wire.OperationResult) -> OncegateError:
    return OncegateError(Code(str(result.code)), str(result.detail), outcome=Outcome(str(result.outcome)))


def _known(number: int | msgspec.UnsetType) -> int:
    return number if isinstance(number, int) else 0


def _row(request: web.Request) -> tuple[str, str]:
    return path_name(request, "table"), request_bodies.check_key(request.match_info["key"])


def set_up(app: web.Application) -> None:
    """Prepare the application for keys that are in use."""
    nobody: set[str] = set()
    app[running] = nobody
