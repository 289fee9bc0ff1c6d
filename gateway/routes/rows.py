"""Changes of single rows for callers without the SDK: ``PUT``, ``DELETE``, ``increment``, ``append``.

Owns: the way from headers and body to one command, and from its verdict to a status. The identity of a request is
read in :mod:`gateway.plain`, remembered in :mod:`rifl.key_table` or the caller's session.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web

from gateway import commands as c
from gateway import edge, plain, wire
from gateway.answers import Answer
from gateway.exchange import NODE, body, headers_of, path_name, problem, raw_body, respond, tenant_of, typed
from rifl.errors import Code, OncegateError, Outcome
from rifl.ids import format_client_id
from rifl.key_table import KEYS_CLIENT


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


@typed
async def put(request: web.Request) -> web.StreamResponse:
    """``PUT /v1/tables/{table}/rows/{key}``: the body is the value."""
    sent = await raw_body(request)
    value = edge.decode(sent, request.content_type, _ANYTHING)
    return await _change(request, wire.Operation(1, "put", *_row(request), value))


@typed
async def delete(request: web.Request) -> web.StreamResponse:
    """``DELETE /v1/tables/{table}/rows/{key}``."""
    return await _change(request, wire.Operation(1, "delete", *_row(request)))


@typed
async def increment(request: web.Request) -> web.StreamResponse:
    """``POST /v1/tables/{table}/rows/{key}/increment``."""
    sent = await raw_body(request)
    by = edge.decode(sent, request.content_type, wire.Increment).by if sent else 1
    return await _change(request, wire.Operation(1, "increment", *_row(request), by=by))


@typed
async def append(request: web.Request) -> web.StreamResponse:
    """``POST /v1/tables/{table}/rows/{key}/append``."""
    item = (await body(request, wire.Append)).item
    return await _change(request, wire.Operation(1, "append", *_row(request), item=item))


async def _change(request: web.Request, operation: wire.Operation) -> web.StreamResponse:
    headers = headers_of(request)
    who = plain.identity(headers)
    op = plain.conditional(edge.operation(operation, 0), headers)
    size = 256 + len(op.key) + len(op.value or b"")
    node, tenant, trace = request.app[NODE], tenant_of(request), plain.traceparent(headers)
    if isinstance(who, plain.Place):
        op = msgspec.structs.replace(op, sequence=who.sequence)
        command = c.Operate(who.client_id, who.epoch, who.first_incomplete, [op], tenant, trace)
        return _answered(request, operation.op, who.client_id, await node.submit(command, size))
    busy, name = request.app[running], f"{tenant}\0{who.scoped}"
    if name in busy:
        raise OncegateError(Code.IN_PROGRESS, "the first request with this key is still running", retry_after_ms=50)
    keyed = c.Keyed(node.settings.idempotency_key_ms, [c.KeyedOp(who.scoped, who.named_ms, op)], tenant, trace)
    future = node.submit(keyed, size + len(who.text))
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
            done = wire.RowChanged(request_id, _known(result.commit), _known(result.version), result.value)
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
    shown = wire.RefusalProblem(
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
    return path_name(request, "table"), edge.check_key(request.match_info["key"])


def set_up(app: web.Application) -> None:
    """Prepare the application for keys that are in use."""
    nobody: set[str] = set()
    app[running] = nobody


_ANYTHING: Any = Any
_ROW: Final = "/v1/tables/{table}/rows/{key:(?s:.+)}"
ROUTES: Final = [
    web.put(_ROW, put),
    web.delete(_ROW, delete),
    web.post(_ROW + "/increment", increment),
    web.post(_ROW + "/append", append),
]
