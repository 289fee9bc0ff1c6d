"""``/v1/operations``, ranges and requests: the exactly-once path over HTTP."""

from __future__ import annotations

import time
from typing import Final

import msgspec
from aiohttp import web

from gateway import commands as c
from gateway import edge, edge_range, plain, wire
from gateway.answers import Answer, request_state
from gateway.exchange import NODE, headers_of, local, number, path_name, raw_body, respond, tenant_of, typed
from gateway.explain.attempts import ANSWERED, Attempt
from rifl.completion import FINGERPRINT_BYTES
from rifl.errors import Code, OncegateError
from rifl.ids import ID_MAX


@typed
async def operate(request: web.Request) -> web.StreamResponse:
    """``POST /v1/operations``."""
    body = await raw_body(request)
    decoded = edge.decode(body, request.content_type, wire.OperationsRequest)
    command = edge.operations(decoded, tenant_of(request), plain.traceparent(headers_of(request)))
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
    body = await raw_body(request)
    command = edge_range.range_command(table, client_id, epoch, first_incomplete, first, body, request.content_type)
    trace = plain.traceparent(headers_of(request))
    command = msgspec.structs.replace(command, tenant=tenant_of(request), traceparent=trace)
    size = len(command.body) + len(command.fingerprints)
    last = first + len(command.fingerprints) // FINGERPRINT_BYTES - 1
    return respond(request, await _noted(request, command, size, first, last))


@typed
async def request_of(request: web.Request) -> web.StreamResponse:
    """``GET /v1/requests/{client_id}/{sequence}``."""
    client_id = edge.check_client_id(request.match_info["client_id"])
    sequence = number(request.match_info["sequence"], "sequence")
    node = request.app[NODE]
    await node.reads.reach("linearizable", 0)
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


ROUTES: Final = [
    web.post("/v1/operations", operate),
    web.post("/v1/tables/{table}/ranges", put_range),
    web.get("/v1/requests/{client_id}/{sequence}", request_of),
    web.post("/v1/requests/{client_id}/{sequence}/resolve", resolve),
]
