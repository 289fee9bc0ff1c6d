"""``/v1/operations``, ranges and requests: the exactly-once path over HTTP."""

from __future__ import annotations

import time
from typing import Final

import msgspec
from aiohttp import web

from gateway import commands as c
from gateway import edge, edge_range, plain, routing, wire
from gateway.admission.gate import charge
from gateway.answers import Answer, request_state
from gateway.exchange import NODE, headers_of, local, number, path_name, raw_body, respond, typed
from gateway.explain.attempts import ANSWERED, Attempt
from gateway.identity import Scope, check_owner, tenant_of
from gateway.routing import JSON_LINES, PROPOSED, READ, Parameter, Raw
from rifl.completion import FINGERPRINT_BYTES
from rifl.errors import Code, OncegateError
from rifl.ids import ID_MAX


@typed
async def operate(request: web.Request) -> web.StreamResponse:
    """``POST /v1/operations``."""
    body = await raw_body(request)
    decoded = edge.decode(body, request.content_type, wire.OperationsRequest)
    command = edge.operations(decoded, tenant_of(request), plain.traceparent(headers_of(request)))
    check_owner(request, request.app[NODE].machine, command.client_id)
    charge(request, len(command.ops))
    sequences = [op.sequence for op in command.ops]
    return respond(request, await _noted(request, command, len(body), min(sequences), max(sequences)))


@typed
async def put_range(request: web.Request) -> web.StreamResponse:
    """``POST /v1/tables/{table}/ranges``."""
    table = path_name(request, "table")
    client_id = edge.check_client_id(_header(request, wire.H_CLIENT))
    epoch = number(_header(request, wire.H_EPOCH), wire.H_EPOCH)
    first = number(_header(request, wire.H_FIRST_SEQUENCE), wire.H_FIRST_SEQUENCE)
    first_incomplete = _first_incomplete(_header(request, wire.H_FIRST_INCOMPLETE))
    node = request.app[NODE]
    check_owner(request, node.machine, client_id)
    body = await raw_body(request)
    command = edge_range.range_command(table, client_id, epoch, first_incomplete, first, body, request.content_type)
    trace = plain.traceparent(headers_of(request))
    command = msgspec.structs.replace(command, tenant=tenant_of(request), traceparent=trace)
    count = len(command.fingerprints) // FINGERPRINT_BYTES
    charge(request, count)
    size = len(command.body) + len(command.fingerprints)
    return respond(request, await _noted(request, command, size, first, first + count - 1))


@typed
async def request_of(request: web.Request) -> web.StreamResponse:
    """``GET /v1/requests/{client_id}/{sequence}``."""
    client_id = edge.check_client_id(request.match_info["client_id"])
    sequence = number(request.match_info["sequence"], "sequence")
    node = request.app[NODE]
    await node.reads.reach("linearizable", 0)
    check_owner(request, node.machine, client_id)
    return local(request, request_state(node.machine, client_id, sequence, tenant_of(request)))


async def _noted(request: web.Request, command: c.Operate | c.Range, size: int, first: int, last: int) -> Answer:
    """Submit a command, and note for :mod:`gateway.explain` how the attempt ended."""
    node = request.app[NODE]
    came = time.time()
    ended = ANSWERED
    try:
        return await node.submit(command, size)
    except OncegateError as refusal:
        ended = refusal.code.value
        raise
    finally:
        took_ms = int((time.time() - came) * 1000)
        node.explainer.attempts.note(Attempt(int(came * 1000), took_ms, command.client_id, first, last, ended))


@typed
async def resolve(request: web.Request) -> web.StreamResponse:
    """``POST /v1/requests/{client_id}/{sequence}/resolve``."""
    client_id = edge.check_client_id(request.match_info["client_id"])
    sequence = number(request.match_info["sequence"], "sequence")
    sent = await raw_body(request)
    body = edge.decode(sent, request.content_type, wire.ResolveRequest) if sent else wire.ResolveRequest()
    check_owner(request, request.app[NODE].machine, client_id)
    command = edge.resolve(client_id, sequence, body, tenant_of(request))
    return respond(request, await request.app[NODE].submit(command, 64))


def _header(request: web.Request, name: str) -> str:
    text = request.headers.get(name)
    if text is None:
        raise OncegateError(Code.BAD_REQUEST, f"header {name} is missing")
    return text


def _first_incomplete(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 20 and int(text) > ID_MAX:
        return edge.check_first_incomplete(int(text))
    return number(text, wire.H_FIRST_INCOMPLETE)


_NUMBER: Final = {"type": "integer", "minimum": 1, "maximum": ID_MAX}
_RANGE_HEADERS: Final = (
    Parameter(wire.H_CLIENT, {"type": "string", "pattern": "^[0-9a-f]{16}$"}, "the session", "header", True),
    Parameter(wire.H_EPOCH, _NUMBER, "the session's epoch", "header", True),
    Parameter(wire.H_FIRST_SEQUENCE, _NUMBER, "sequence number of the first row", "header", True),
    Parameter(wire.H_FIRST_INCOMPLETE, _NUMBER, "everything below is acknowledged", "header", True),
)
_RANGE: Final = Raw(
    (wire.ARROW, wire.MSGPACK, JSON_LINES, wire.JSON),
    "an Arrow IPC stream with the string columns key and value (JSON text), msgpack {keys, values}, or JSON lines",
)

ROUTES: Final = [
    routing.post(
        "/v1/operations",
        operate,
        Scope.WRITE,
        {200: wire.OperationsResponse},
        body=wire.OperationsRequest,
        errors=(Code.BAD_ACK, *PROPOSED),
    ),
    routing.post(
        "/v1/tables/{table}/ranges",
        put_range,
        Scope.WRITE,
        {200: wire.RangeResponse},
        body=_RANGE,
        parameters=_RANGE_HEADERS,
        errors=(Code.BAD_ACK, *PROPOSED),
    ),
    routing.get("/v1/requests/{client_id}/{sequence}", request_of, Scope.READ, {200: wire.RequestState}, errors=READ),
    routing.post(
        "/v1/requests/{client_id}/{sequence}/resolve",
        resolve,
        Scope.WRITE,
        {200: wire.RequestState},
        body=wire.ResolveRequest,
        body_required=False,
        errors=(Code.BAD_ACK, Code.FENCED, Code.WINDOW_FULL, *PROPOSED),
    ),
]
