"""``/v1/flows``: declare, describe, alter, delete, read batches, watch, and place, move and remove consumers."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from aiohttp import web

from oncegate.flows.errors import FlowError
from oncegate.flows.flow import FlowDeclaration
from oncegate.flows.segment import to_json_lines
from oncegate.gateway import wire
from oncegate.gateway.answers import Answer
from oncegate.gateway.http import event_streams, request_bodies
from oncegate.gateway.http.admission.desk import check_tables
from oncegate.gateway.http.admission.gate import is_still_known
from oncegate.gateway.http.control_routes import Routes
from oncegate.gateway.http.event_streams import EventStream, EventStreams
from oncegate.gateway.http.exchange import is_current, traceparent
from oncegate.gateway.http.identity import Identity, Scope
from oncegate.gateway.http.negotiation import NODE, USAGE, headers_of, parsed, tenant_of
from oncegate.gateway.http.routing import EVENT_STREAM, IF_NONE_MATCH, JSON_LINES, PROPOSED, READ, Force, Parameter, Raw
from oncegate.gateway.http.unknown_names import meant
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.flow_commands import Start
from oncegate.gateway.machine.flow_state import declaration_of
from oncegate.gateway.machine.tenant_share import share
from oncegate.gateway.node.node import Node
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
_Letters = Annotated[
    int,
    Parameter(
        "limit",
        {"type": "integer", "minimum": 1, "default": LETTERS_DEFAULT},
        f"at most so many letters, the newest first, and never more than {LETTERS_MAX:,}",
        most=LETTERS_MAX,
    ),
]
_BATCH: Final = Raw((wire.ARROW, JSON_LINES), "the batch's items, an Arrow IPC stream or JSON lines")
_EVENTS: Final = Raw((EVENT_STREAM,), "an event `sealed` with {batch} per sealed batch")
_FLOW: Final = "/v1/flows/{flow}"
_CONSUMER: Final = _FLOW + "/consumers/{name}"
_READ: Final = (Code.NOT_FOUND, *READ)
_Version = Annotated[
    int,
    Parameter(
        "version", {"type": "integer", "minimum": 1}, "the flow's version that the caller has seen", required=True
    ),
]
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


@ROUTES.command("PUT", _FLOW, Scope.FLOWS, wire.FlowState, Code.CONFLICT, body=FlowDeclaration, act="flow.declare")
def declare(flow: str, identity: Identity, sent: dict[str, Any]) -> c.DeclareFlow:
    """``PUT /v1/flows/{flow}``."""
    if sent.setdefault("name", flow) != flow:
        raise request_bodies.bad("name differs from the path")
    text = declaration_text(sent)
    declared = declaration_of(text)
    check_tables(identity, Scope.FLOWS, (flow, declared.source, *declared.targets))
    return c.DeclareFlow(text)


@ROUTES.command("PATCH", _FLOW, Scope.FLOWS, wire.FlowState, Code.CONFLICT, act="flow.alter")
def alter(flow: str, sent: wire.AlterFlow) -> c.AlterFlow:
    """``PATCH /v1/flows/{flow}``: change retention, required consumers and bounds, of the version that was seen."""
    version = request_bodies.check_number(sent.version, "version")
    fields = msgspec.to_builtins(sent)
    del fields["version"]
    declaration_text({"name": flow, "source": flow, **fields})
    return c.AlterFlow(flow, version, msgspec.json.encode(fields))


@ROUTES.command("DELETE", _FLOW, Scope.FLOWS, wire.FlowDeleted, Code.CONFLICT, act="flow.delete")
def delete(flow: str, version: _Version, force: Force) -> c.DeleteFlow:
    """``DELETE /v1/flows/{flow}``: with its batches; not the own flow of a stream table."""
    return c.DeleteFlow(flow, version, force)


@ROUTES.told("GET", _FLOW, Scope.READ, Code.NOT_FOUND, reflects="asked")
def describe(flow: str, node: Node) -> wire.FlowState:
    """``GET /v1/flows/{flow}``."""
    return node.consumers.state(flow)


@ROUTES.told("GET", "/v1/flows", Scope.READ, reflects="asked")
def list_all(node: Node, identity: Identity) -> wire.FlowList:
    """``GET /v1/flows``."""
    names = filter(partial(identity.may, Scope.READ), node.machine.flows.names())
    return wire.FlowList([node.consumers.state(name) for name in names])


@ROUTES.told(
    "GET",
    _FLOW + "/batches/{n}",
    Scope.READ,
    Code.RETENTION_EXCEEDED,
    *_READ,
    answer={200: _BATCH, 304: None},
    parameters=(IF_NONE_MATCH,),
)
async def batch(request: web.Request, flow: str, n: int, node: Node) -> web.Response:
    """``GET /v1/flows/{flow}/batches/{n}``: immutable, so the ETag is its checksum."""
    payload, checksum = await node.reads.batch(flow, n)
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


@ROUTES.add("GET", _FLOW + "/watch", Scope.READ, _EVENTS, parameters=(_AFTER, _LAST_EVENT), errors=_READ, head=False)
async def watch(request: web.Request) -> web.StreamResponse:
    """``GET /v1/flows/{flow}/watch``: an event per sealed batch, from ``?after=`` (default: the newest) on.

    A watcher keeps one number, so a slow one costs nothing: it is told every batch when it reads again. It ends when
    its token does, after ``KEEP_ALIVE_S`` at most. Those of a flow have their turns in slices
    (:mod:`oncegate.gateway.node.turns`).
    """
    flow, node = request_bodies.check_name(request.match_info["flow"], "flow"), request.app[NODE]
    watchers, tenant = request.app[_watchers], tenant_of(request)
    own = sum(tenant_of(one.request) == tenant for one in watchers.values())
    if own >= share(tenant, WATCHERS_MAX, len(watchers), own):
        raise OncegateError(Code.OVERLOADED, "too many watchers", retry_after_ms=1000)
    await node.reads.reach("stale", 0)
    batches = node.machine.flows.get(flow).batches
    last_event = request.headers.get("Last-Event-ID", request.query.get("after"))
    told = batches.last if last_event is None else request_bodies.number(last_event, "after", least=0)
    response = event_streams.response(node.machine.commit, {})
    await response.prepare(request)
    task = asyncio.current_task()
    assert task is not None
    watchers[task] = EventStream(request, task.cancel)
    try:
        # Found anew each time: a snapshot replaces all flows. It ends with the flow, and with a state that is damaged.
        while (
            not node.damaged
            and (found := node.machine.flows.find(flow)) is not None
            and is_still_known(request, Scope.READ, flow)
        ):
            batches = found.batches
            news = range(max(told + 1, batches.first), batches.last + 1)[:TOLD_MAX]
            if news:
                told = news[-1]
                await response.write(b"".join(map(_sealed, news)))
                await request.writer.drain()
            try:
                # Not wait_for: it would begin to wait one turn of the loop later and could miss a seal in between.
                async with asyncio.timeout(KEEP_ALIVE_S):
                    await node.reads.next_seal(flow, told)
            except TimeoutError:
                await response.write(b": alive\n\n")
        return response
    except ConnectionError:
        return response
    finally:
        watchers.pop(task, None)


def _sealed(number: int) -> bytes:
    return b"id: %d\nevent: sealed\ndata: %s\n\n" % (number, msgspec.json.encode(wire.Sealed(number)))


@ROUTES.told("GET", _FLOW + "/dead-letters", Scope.READ, Code.NOT_FOUND, reflects="stale")
async def dead_letters(flow: str, limit: _Letters, node: Node) -> wire.DeadLetters:
    """``GET /v1/flows/{flow}/dead-letters``: the newest items that became no row, of jobs that use the node's store."""
    node.machine.flows.get(flow)
    if node.stream_store is None:
        return wire.DeadLetters(store=False, letters=[], found=0, whole=True)
    newest = await node.stream_store.dead_letters(flow, limit)
    letters = [
        wire.DeadLetter(one["job"], one["batch"], one["commit"], one["item_key"], one["error"], one["time_ms"])
        for one in newest.letters
    ]
    return wire.DeadLetters(store=True, letters=letters, found=newest.found, whole=newest.whole)


@ROUTES.command("POST", _CONSUMER + "/attach", Scope.FLOWS, wire.ConsumerAttached, Code.FENCED, act="consumer.attach")
def attach(flow: str, name: str, sent: wire.AttachConsumer) -> c.Attach:
    """``POST /v1/flows/{flow}/consumers/{name}/attach``."""
    return c.Attach(flow, name, request_bodies.check_nonce(sent.nonce))


@ROUTES.command(
    "POST",
    _CONSUMER + "/start",
    Scope.FLOWS,
    wire.ConsumerAttached,
    Code.CONFLICT,
    Code.RETENTION_EXCEEDED,
    act="consumer.start",
)
def start(flow: str, name: str, sent: wire.StartConsumer) -> c.StartConsumer:
    """``POST /v1/flows/{flow}/consumers/{name}/start``: place the cursor, and fence whoever has attached before."""
    return c.StartConsumer(flow, name, request_bodies.check_nonce(sent.nonce), *_start(sent))


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


@ROUTES.command("DELETE", _CONSUMER, Scope.FLOWS, wire.FlowState, Code.CONFLICT, act="consumer.remove")
def remove(flow: str, name: str, version: _Version) -> c.RemoveConsumer:
    """``DELETE /v1/flows/{flow}/consumers/{name}``: forget it, required or not, and fence its job."""
    return c.RemoveConsumer(flow, name, version)


@ROUTES.command(
    "POST", _CONSUMER + "/cursor", Scope.FLOWS, wire.CursorMoved, Code.CONFLICT, Code.FENCED, Code.RETENTION_EXCEEDED
)
def cursor(flow: str, name: str, sent: wire.MoveCursor) -> c.MoveCursor:
    """``POST /v1/flows/{flow}/consumers/{name}/cursor``."""
    if sent.batch != 0:
        request_bodies.check_number(sent.batch, "batch")
    request_bodies.check_number(sent.fence, "fence")
    return c.MoveCursor(flow, name, sent.batch, sent.fence, sent.replay)


@ROUTES.told(
    "POST",
    _CONSUMER + "/cascade",
    Scope.FLOWS,
    *(Code.FENCED, Code.PAYLOAD_MISMATCH, Code.RETENTION_EXCEEDED, *PROPOSED),
    answer=wire.CascadeWritten,
    body=wire.Cascade,
    body_bytes_max=None,
)
async def cascade(request: web.Request, flow: str, name: str, node: Node, identity: Identity) -> Answer:
    """``POST /v1/flows/{flow}/consumers/{name}/cascade``: write a part of what derives from a batch, exactly once.

    The token needs the scope ``write`` as well.
    """
    if Scope.WRITE not in identity.scopes:
        raise OncegateError(Code.FORBIDDEN, f"the token lacks the scope {Scope.WRITE}")
    kind, trace = request.content_type, traceparent(headers_of(request))
    size, command = await parsed(
        request, lambda sent: (len(sent), request_bodies.cascade_of(flow, name, sent, kind, trace))
    )
    check_tables(identity, Scope.WRITE, (op.table for op in command.ops))
    request[USAGE].charge(max(1, len(command.ops)))
    return await node.submit(command, size)


def set_up(app: web.Application) -> None:
    """Prepare the application for watchers."""
    event_streams.keep(app, _watchers)
