"""``/v1/operations``, ranges and requests: the exactly-once path over HTTP."""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import web

from oncegate.gateway import wire
from oncegate.gateway.answers import request_state
from oncegate.gateway.http import range_bodies, request_bodies, request_headers
from oncegate.gateway.http.admission.gate import charge
from oncegate.gateway.http.identity import Scope
from oncegate.gateway.http.negotiation import (
    NODE,
    body,
    check_owner,
    client_of,
    headers_of,
    local,
    number,
    path_name,
    raw_body,
    respond,
    submitted,
    tenant_of,
)
from oncegate.gateway.http.routing import JSON_LINES, PROPOSED, READ, Parameter, Raw, Routes
from oncegate.rifl.completion import FINGERPRINT_BYTES
from oncegate.rifl.errors import Code
from oncegate.rifl.ids import ID_MAX, SequenceNumber

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
_ERRORS: Final = (Code.BAD_ACK, *PROPOSED)
_REQUEST: Final = "/v1/requests/{client_id}/{sequence}"
ROUTES: Final = Routes("operations")


@ROUTES.add(
    "POST", "/v1/operations", Scope.WRITE, {200: wire.OperationsResponse}, body=wire.OperationsRequest, errors=_ERRORS
)
async def operate(request: web.Request) -> web.StreamResponse:
    """``POST /v1/operations``."""
    sent = await raw_body(request)
    decoded = request_bodies.decode(sent, request.content_type, wire.OperationsRequest)
    command = request_bodies.operations(decoded, tenant_of(request), request_headers.traceparent(headers_of(request)))
    node = request.app[NODE]
    check_owner(request, node.machine, command.client_id)
    charge(request, len(command.ops))
    return respond(request, await node.attempt(command, len(sent)))


@ROUTES.add(
    "POST",
    "/v1/tables/{table}/ranges",
    Scope.WRITE,
    {200: wire.RangeResponse},
    body=_RANGE,
    parameters=_RANGE_HEADERS,
    errors=_ERRORS,
)
async def put_range(request: web.Request) -> web.StreamResponse:
    """``POST /v1/tables/{table}/ranges``."""
    table = path_name(request, "table")
    client_id = request_bodies.check_client_id(_header(request, wire.H_CLIENT))
    epoch = number(_header(request, wire.H_EPOCH), wire.H_EPOCH)
    first = number(_header(request, wire.H_FIRST_SEQUENCE), wire.H_FIRST_SEQUENCE)
    acknowledged = request_bodies.digits(_header(request, wire.H_FIRST_INCOMPLETE), wire.H_FIRST_INCOMPLETE)
    first_incomplete = request_bodies.check_first_incomplete(acknowledged)
    node = request.app[NODE]
    check_owner(request, node.machine, client_id)
    sent = await raw_body(request)
    command = range_bodies.range_command(table, client_id, epoch, first_incomplete, first, sent, request.content_type)
    trace = request_headers.traceparent(headers_of(request))
    command = msgspec.structs.replace(command, tenant=tenant_of(request), traceparent=trace)
    charge(request, len(command.fingerprints) // FINGERPRINT_BYTES)
    size = len(command.body) + len(command.fingerprints)
    return respond(request, await node.attempt(command, size))


@ROUTES.add("GET", _REQUEST, Scope.READ, {200: wire.RequestState}, errors=READ)
async def request_of(request: web.Request) -> web.StreamResponse:
    """``GET /v1/requests/{client_id}/{sequence}``."""
    client_id = client_of(request)
    sequence = number(request.match_info["sequence"], "sequence")
    node = request.app[NODE]
    await node.reads.reach("linearizable", 0)
    check_owner(request, node.machine, client_id)
    return local(request, request_state(node.machine, client_id, sequence, tenant_of(request)))


@ROUTES.add(
    "POST",
    _REQUEST + "/resolve",
    Scope.WRITE,
    {200: wire.RequestState},
    body=wire.ResolveRequest,
    body_required=False,
    errors=(Code.FENCED, Code.WINDOW_FULL, *_ERRORS),
)
async def resolve(request: web.Request) -> web.StreamResponse:
    """``POST /v1/requests/{client_id}/{sequence}/resolve``."""
    client_id = client_of(request)
    sequence = number(request.match_info["sequence"], "sequence")
    sent = await body(request, wire.ResolveRequest, wire.ResolveRequest())
    check_owner(request, request.app[NODE].machine, client_id)
    command = request_bodies.resolve(client_id, SequenceNumber(sequence), sent, tenant_of(request))
    return await submitted(request, command, 64)


def _header(request: web.Request, name: str) -> str:
    text = request.headers.get(name)
    if text is None:
        raise request_bodies.bad(f"header {name} is missing")
    return text
