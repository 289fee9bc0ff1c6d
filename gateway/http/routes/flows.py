"""``/v1/flows``: declare, describe, alter, delete, read batches, watch, and place, move and remove consumers."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

import msgspec
from aiohttp import web

from oncegate.flows.errors import FlowError
from oncegate.flows.flow import FlowDeclaration
from oncegate.flows.segment import to_json_lines
from oncegate.gateway import wire
from oncegate.gateway.http import event_streams, request_bodies, request_headers
from oncegate.gateway.http.admission.gate import is_still_known
from oncegate.gateway.http.admission.tables import check_tables
from oncegate.gateway.http.event_streams import EventStream, EventStreams
from oncegate.gateway.http.identity import Scope
from oncegate.gateway.http.negotiation import (
    IDENTITY,
    NODE,
    USAGE,
    body,
    forced,
    headers_of,
    is_current,
    local,
    number,
    parsed,
    path_name,
    reach,
    submitted,
    tenant_of,
)
from oncegate.gateway.http.routing import (
    EVENT_STREAM,
    FORCE,
    IF_NONE_MATCH,
    JSON_LINES,
    LEVEL,
    PROPOSED,
    READ,
    Parameter,
    Raw,
    Routes,
)
from oncegate.gateway.http.unknown_names import meant
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.flow_commands import Start
from oncegate.gateway.machine.flow_state import declaration_of
from oncegate.gateway.machine.tenant_share import share
from oncegate.rifl.errors import Code, OncegateError

WATCHERS_MAX: Final = 1_000
TOLD_MAX: Final = 256
"""Batches that a watcher is told of in a turn."""
KEEP_ALIVE_S: Final = 10.0
_watchers: Final = web.AppKey("watchers", EventStreams)
_AFTER: Final = Parameter("after", {"type": "integer", "minimum": 0}, "batches above this one; default: new ones")
_LAST_EVENT: Final = Parameter("Last-Event-ID", {"type": "integer", "minimum": 0}, "as after, and wins", "header")
LETTERS_DEFAULT: Final = 50
LETTERS_MAX: Final = 1_000
_LETTERS: Final = Parameter(
    "limit",
    {"type": "integer", "minimum": 1, "default": LETTERS_DEFAULT},
    f"at most so many letters, the newest first, and never more than {LETTERS_MAX:,}",
)
_BATCH: Final = Raw((wire.ARROW, JSON_LINES), "the batch's items, an Arrow IPC stream or JSON lines")
_EVENTS: Final = Raw((EVENT_STREAM,), "an event `sealed` with {batch} per sealed batch")
_FLOW: Final = "/v1/flows/{flow}"
_CONSUMER: Final = _FLOW + "/consumers/{name}"
_READ: Final = (Code.NOT_FOUND, *READ)
_MOVED: Final = (Code.FENCED, *PROPOSED)
_CHANGED: Final = (Code.CONFLICT, *PROPOSED)
_VERSION: Final = Parameter(
    "version", {"type": "integer", "minimum": 1}, "the flow's version that the caller has seen", required=True
)
ROUTES: Final = Routes("flows")


def declaration_text(fields: dict[str, Any]) -> bytes:
    """Return a flow's declaration as the log carries it.

    Raises:
        OncegateError: BAD_REQUEST, PAYLOAD_TOO_LARGE; checked here, so that an invalid declaration costs no log entry.
    """
    known = FlowDeclaration.__struct_fields__
    unknown = min(fields.keys() - {*known}, default=None)
    if unknown is not None:
        raise request_bodies.bad(f"unknown field {unknown}: {meant(unknown, known)}")
    try:
        declaration = msgspec.convert(fields, FlowDeclaration)
    except (FlowError, msgspec.ValidationError) as fault:
        raise request_bodies.bad(str(fault)) from None
    text = msgspec.json.encode(declaration)
    if len(text) > 16 * 1024:
        raise OncegateError(Code.PAYLOAD_TOO_LARGE, "the declaration is over 16 KiB")
    for target in declaration.targets:
        request_bodies.check_name(target, "target")
    return text


@ROUTES.add(
    "PUT",
    _FLOW,
    Scope.FLOWS,
    {200: wire.FlowState},
    body=FlowDeclaration,
    errors=(Code.CONFLICT, *PROPOSED),
    act="flow.declare",
)
async def declare(request: web.Request) -> web.StreamResponse:
    """``PUT /v1/flows/{flow}``."""
    name = path_name(request, "flow")
    fields = await body(request, dict[str, Any])
    if fields.setdefault("name", name) != name:
        raise request_bodies.bad("name differs from the path")
    text = declaration_text(fields)
    flow = declaration_of(text)
    check_tables(request[IDENTITY], Scope.FLOWS, (name, flow.source, *flow.targets))
    return await submitted(request, c.DeclareFlow(text), len(text))


@ROUTES.add("PATCH", _FLOW, Scope.FLOWS, {200: wire.FlowState}, body=wire.AlterFlow, errors=_CHANGED, act="flow.alter")
async def alter(request: web.Request) -> web.StreamResponse:
    """``PATCH /v1/flows/{flow}``: change retention, required consumers and bounds, of the version that was seen."""
    name = path_name(request, "flow")
    sent = await body(request, wire.AlterFlow)
    version = request_bodies.check_number(sent.version, "version")
    fields = msgspec.to_builtins(sent)
    del fields["version"]
    declaration_text({"name": name, "source": name, **fields})
    text = msgspec.json.encode(fields)
    return await submitted(request, c.AlterFlow(name, version, text), len(text))


@ROUTES.add(
    "DELETE",
    _FLOW,
    Scope.FLOWS,
    {200: wire.FlowDeleted},
    parameters=(_VERSION, FORCE),
    errors=_CHANGED,
    act="flow.delete",
)
async def delete(request: web.Request) -> web.StreamResponse:
    """``DELETE /v1/flows/{flow}``: with its batches; not the own flow of a stream table."""
    command = c.DeleteFlow(path_name(request, "flow"), _version(request), forced(request))
    return await submitted(request, command, 128)


def _version(request: web.Request) -> int:
    return number(request.query.get("version", ""), "version")


@ROUTES.add("GET", _FLOW, Scope.READ, {200: wire.FlowState}, parameters=LEVEL, errors=_READ)
async def describe(request: web.Request) -> web.StreamResponse:
    """``GET /v1/flows/{flow}``."""
    name = path_name(request, "flow")
    await reach(request)
    return local(request, request.app[NODE].consumers.state(name))


@ROUTES.add("GET", "/v1/flows", Scope.READ, {200: wire.FlowList}, parameters=LEVEL, errors=READ)
async def list_all(request: web.Request) -> web.StreamResponse:
    """``GET /v1/flows``."""
    node = request.app[NODE]
    await reach(request)
    names = filter(partial(request[IDENTITY].may, Scope.READ), node.machine.flows.names())
    return local(request, wire.FlowList([node.consumers.state(name) for name in names]))


@ROUTES.add(
    "GET",
    _FLOW + "/batches/{n}",
    Scope.READ,
    {200: _BATCH, 304: None},
    parameters=(IF_NONE_MATCH,),
    errors=(Code.RETENTION_EXCEEDED, *_READ),
)
async def batch(request: web.Request) -> web.StreamResponse:
    """``GET /v1/flows/{flow}/batches/{n}``: immutable, so the ETag is its checksum."""
    name = path_name(request, "flow")
    n = number(request.match_info["n"], "batch")
    node = request.app[NODE]
    payload, checksum = await node.reads.batch(name, n)
    headers = {
        wire.H_COMMIT: str(node.machine.commit),
        "ETag": f'"{checksum}"',
        "Cache-Control": "public, max-age=31536000, immutable",
    }
    if is_current(headers_of(request), checksum):
        return web.Response(status=304, headers=headers)
    accept = request.headers.get("Accept", "")
    if JSON_LINES in accept or wire.JSON in accept:
        lines = await asyncio.to_thread(lambda: b"".join(to_json_lines(payload)))
        return web.Response(body=lines, headers=headers, content_type=JSON_LINES)
    return web.Response(body=payload, headers=headers, content_type=wire.ARROW)


@ROUTES.add(
    "GET", _FLOW + "/watch", Scope.READ, {200: _EVENTS}, parameters=(_AFTER, _LAST_EVENT), errors=_READ, head=False
)
async def watch(request: web.Request) -> web.StreamResponse:
    """``GET /v1/flows/{flow}/watch``: an event per sealed batch, from ``?after=`` (default: the newest) on.

    A watcher keeps one number, so a slow one costs nothing: it is told every batch when it reads again. It ends when
    its token does, after ``KEEP_ALIVE_S`` at most. Those of a flow have their turns in slices
    (:mod:`oncegate.gateway.node.turns`).
    """
    name = path_name(request, "flow")
    node = request.app[NODE]
    watchers, tenant = request.app[_watchers], tenant_of(request)
    own = sum(tenant_of(one.request) == tenant for one in watchers.values())
    if own >= share(tenant, WATCHERS_MAX, len(watchers), own):
        raise OncegateError(Code.OVERLOADED, "too many watchers", retry_after_ms=1000)
    await node.reads.reach("stale", 0)
    flows = node.machine.flows
    batches = flows.get(name).batches
    last_event = request.headers.get("Last-Event-ID", request.query.get("after"))
    told = batches.last if last_event is None else number(last_event, "after", least=0)
    response = web.StreamResponse(
        headers={
            wire.H_COMMIT: str(node.machine.commit),
            "Content-Type": EVENT_STREAM,
            "Cache-Control": "no-store",
        }
    )
    await response.prepare(request)
    task = asyncio.current_task()
    assert task is not None
    watchers[task] = EventStream(request, task.cancel)
    try:
        # Found anew each time: a snapshot replaces all flows. It ends with the flow, and with a state that is damaged.
        while (
            not node.damaged
            and (flow := node.machine.flows.find(name)) is not None
            and is_still_known(request, Scope.READ, name)
        ):
            batches = flow.batches
            news = range(max(told + 1, batches.first), batches.last + 1)[:TOLD_MAX]
            if news:
                told = news[-1]
                await response.write(b"".join(map(_sealed, news)))
                await request.writer.drain()
            try:
                # Not wait_for: it would begin to wait one turn of the loop later and could miss a seal in between.
                async with asyncio.timeout(KEEP_ALIVE_S):
                    await node.reads.next_seal(name, told)
            except TimeoutError:
                await response.write(b": alive\n\n")
        return response
    except ConnectionError:
        return response
    finally:
        watchers.pop(task, None)


def _sealed(number: int) -> bytes:
    return b"id: %d\nevent: sealed\ndata: %s\n\n" % (number, msgspec.json.encode(wire.Sealed(number)))


@ROUTES.add("GET", _FLOW + "/dead-letters", Scope.READ, {200: wire.DeadLetters}, parameters=(_LETTERS,), errors=_READ)
async def dead_letters(request: web.Request) -> web.StreamResponse:
    """``GET /v1/flows/{flow}/dead-letters``: the newest items that became no row, of jobs that use the node's store."""
    name, node = path_name(request, "flow"), request.app[NODE]
    limit = min(number(request.query.get("limit", str(LETTERS_DEFAULT)), "limit"), LETTERS_MAX)
    await node.reads.reach("stale", 0)
    node.machine.flows.get(name)
    if node.stream_store is None:
        return local(request, wire.DeadLetters(store=False, letters=[], found=0, whole=True))
    newest = await node.stream_store.dead_letters(name, limit)
    letters = [
        wire.DeadLetter(one["job"], one["batch"], one["commit"], one["item_key"], one["error"], one["time_ms"])
        for one in newest.letters
    ]
    return local(request, wire.DeadLetters(store=True, letters=letters, found=newest.found, whole=newest.whole))


@ROUTES.add(
    "POST",
    _CONSUMER + "/attach",
    Scope.FLOWS,
    {200: wire.ConsumerAttached},
    body=wire.AttachConsumer,
    errors=_MOVED,
    act="consumer.attach",
)
async def attach(request: web.Request) -> web.StreamResponse:
    """``POST /v1/flows/{flow}/consumers/{name}/attach``."""
    flow, consumer = path_name(request, "flow"), path_name(request, "name")
    nonce = request_bodies.check_nonce((await body(request, wire.AttachConsumer)).nonce)
    return await submitted(request, c.Attach(flow, consumer, nonce), 192)


@ROUTES.add(
    "POST",
    _CONSUMER + "/start",
    Scope.FLOWS,
    {200: wire.ConsumerAttached},
    body=wire.StartConsumer,
    errors=(Code.RETENTION_EXCEEDED, *_CHANGED),
    act="consumer.start",
)
async def start(request: web.Request) -> web.StreamResponse:
    """``POST /v1/flows/{flow}/consumers/{name}/start``: place the cursor, and fence whoever has attached before."""
    flow, consumer = path_name(request, "flow"), path_name(request, "name")
    sent = await body(request, wire.StartConsumer)
    nonce = request_bodies.check_nonce(sent.nonce)
    return await submitted(request, c.StartConsumer(flow, consumer, nonce, *_start(sent)), 192)


def _start(sent: wire.StartConsumer) -> tuple[Start, int]:
    """Return where a consumer starts, and the number that belongs to it; raises BAD_REQUEST."""
    numbers: dict[Start, int | None] = {
        "batch": sent.batch,
        "time": sent.time_ms,
        "ago": sent.ago_ms,
        "event": sent.event_ms,
    }
    given = [(where, n) for where, n in numbers.items() if n is not None]
    if sent.start is not None:
        given.append((sent.start, 0))
    if len(given) != 1:
        raise request_bodies.bad("give one of start, batch, time_ms, ago_ms and event_ms")
    where, n = given[0]
    return where, n if n == 0 and where != "batch" else request_bodies.check_number(n, where)


@ROUTES.add(
    "DELETE",
    _CONSUMER,
    Scope.FLOWS,
    {200: wire.FlowState},
    parameters=(_VERSION,),
    errors=_CHANGED,
    act="consumer.remove",
)
async def remove(request: web.Request) -> web.StreamResponse:
    """``DELETE /v1/flows/{flow}/consumers/{name}``: forget it, required or not, and fence its job."""
    flow, consumer = path_name(request, "flow"), path_name(request, "name")
    return await submitted(request, c.RemoveConsumer(flow, consumer, _version(request)), 192)


@ROUTES.add(
    "POST",
    _CONSUMER + "/cursor",
    Scope.FLOWS,
    {200: wire.CursorMoved},
    body=wire.MoveCursor,
    errors=(Code.CONFLICT, Code.RETENTION_EXCEEDED, *_MOVED),
)
async def cursor(request: web.Request) -> web.StreamResponse:
    """``POST /v1/flows/{flow}/consumers/{name}/cursor``."""
    flow, consumer = path_name(request, "flow"), path_name(request, "name")
    move = await body(request, wire.MoveCursor)
    if move.batch != 0:
        request_bodies.check_number(move.batch, "batch")
    request_bodies.check_number(move.fence, "fence")
    return await submitted(request, c.MoveCursor(flow, consumer, move.batch, move.fence, move.replay), 192)


@ROUTES.add(
    "POST",
    _CONSUMER + "/cascade",
    Scope.FLOWS,
    {200: wire.CascadeWritten},
    body=wire.Cascade,
    body_bytes_max=None,
    errors=(Code.PAYLOAD_MISMATCH, Code.RETENTION_EXCEEDED, *_MOVED),
)
async def cascade(request: web.Request) -> web.StreamResponse:
    """``POST /v1/flows/{flow}/consumers/{name}/cascade``: write a part of what derives from a batch, exactly once.

    The token needs the scope ``write`` as well.
    """
    if Scope.WRITE not in request[IDENTITY].scopes:
        raise OncegateError(Code.FORBIDDEN, f"the token lacks the scope {Scope.WRITE}")
    flow, consumer = path_name(request, "flow"), path_name(request, "name")
    kind, trace = request.content_type, request_headers.traceparent(headers_of(request))
    size, command = await parsed(
        request, lambda sent: (len(sent), request_bodies.cascade_of(flow, consumer, sent, kind, trace))
    )
    check_tables(request[IDENTITY], Scope.WRITE, (op.table for op in command.ops))
    request[USAGE].charge(max(1, len(command.ops)))
    return await submitted(request, command, size)


def set_up(app: web.Application) -> None:
    """Prepare the application for watchers."""
    event_streams.keep(app, _watchers)
