"""``GET /v1/tables/{table}/watch``: changes of rows as server-sent events, from any commit number that is kept.

Owns: how a watch begins, goes on and ends. Who gets which change: :mod:`oncegate.gateway.node.watching`; the form of
``changes`` and ``progress``: :mod:`oncegate.gateway.node.change_events`. And ``GET /v1/tables/{table}/turns``, for
those who share what comes: :mod:`oncegate.gateway.node.row_turns`.

| event | id | data | when |
|---|---|---|---|
| `changes` | commit number to resume from | {commit, changes}: one, or all of a transition | a row changed |
| `progress` | the same | {commit} | at the start, when caught up, while nothing changes: nothing is left up to it |
| `end` | none | a problem | the watch cannot go on; `RETENTION_EXCEEDED` carries `first_commit` |

A connection that ends without `end` is opened again, at any node, with the newest id.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

from aiohttp import web

from oncegate.gateway import wire
from oncegate.gateway.http import event_streams, request_bodies
from oncegate.gateway.http.admission.gate import is_still_known, uncounted
from oncegate.gateway.http.control_routes import Routes
from oncegate.gateway.http.event_streams import EventStream, EventStreams
from oncegate.gateway.http.identity import Scope
from oncegate.gateway.http.negotiation import NODE, bare_problem, problem, standing
from oncegate.gateway.http.routing import EVENT_STREAM, READ, Parameter, Raw
from oncegate.gateway.node.change_events import progress
from oncegate.gateway.node.change_history import HistoryExceeded
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.row_turns import COUNT_MAX
from oncegate.gateway.node.scans import resident
from oncegate.gateway.node.watching import Watcher
from oncegate.rifl.errors import Code, OncegateError

KEEP_ALIVE_S: Final = 30.0
"""How long nothing may be sent, and how soon a token that has ended is noticed."""
ELSEWHERE_MS: Final = 50
SEND_BUFFER_BYTES: Final = 128 * 1024
"""What the kernel keeps of a watch that its client does not read: by itself it would take megabytes for each."""
_watches: Final = web.AppKey("watches", EventStreams)
_TEXT: Final = {"type": "string"}
_COMMIT: Final = {"type": "integer", "minimum": 0}
_PARAMETERS: Final = (
    Parameter("prefix", _TEXT, "rows whose keys begin with it"),
    Parameter("key", _TEXT, "this row alone"),
    Parameter(
        "from", _COMMIT, "changes above this commit number, inside a transition above its end; default: from now on"
    ),
    Parameter("Last-Event-ID", _COMMIT, "as from, and wins", "header"),
    Parameter(wire.H_ELSEWHERE, _TEXT, "the sender knows others: a leader may refuse, with `elsewhere`", "header"),
)
WAIT_MS_MAX: Final = 30_000
_TURNS: Final = (
    Parameter("prefix", _TEXT, "rows whose keys begin with it", required=True),
    Parameter("count", {"type": "integer", "minimum": 1, "maximum": COUNT_MAX}, "turns that are asked for; default 1"),
    Parameter("wait_ms", {"type": "integer", "minimum": 0, "maximum": WAIT_MS_MAX}, "how long to wait; default 0"),
)
_EVENTS: Final = Raw((EVENT_STREAM,), "events `changes`, `progress` and `end`")
ROUTES: Final = Routes("watch")


@ROUTES.told(
    "GET",
    "/v1/tables/{table}/watch",
    Scope.READ,
    *(Code.NOT_FOUND, Code.RETENTION_EXCEEDED, Code.OVERLOADED, *READ),
    answer=_EVENTS,
    parameters=_PARAMETERS,
    head=False,
)
async def watch(request: web.Request, table: str, node: Node, tenant: str) -> web.StreamResponse:
    """``GET /v1/tables/{table}/watch``: changes of a resident table's rows, in commit order, each once.

    Whoever resumes from the id of the newest event it has seen misses nothing and sees nothing twice, at any node whose
    history reaches back. A watch ends when its token does, after ``KEEP_ALIVE_S`` at most.
    """
    query = request.query
    key, prefix = query.get("key"), query.get("prefix", "")
    if key is not None and prefix:
        raise request_bodies.bad("give key or prefix, not both")
    if key is not None:
        request_bodies.check_key(key)
    try:
        _check_place(request)
    except Elsewhere as refusal:
        return problem(request, refusal, **_more(refusal))
    asked = request.headers.get("Last-Event-ID", query.get("from"))
    position = None if asked is None else request_bodies.number(asked, "from", least=0)
    await node.reads.reach("linearizable" if position is None else "session", position or 0)
    if table not in node.machine.tables:  # a node that is behind may not know it yet: declaring has no commit number
        await node.reads.reach("linearizable", 0)
    declared = resident(node.machine, table)
    history = node.watching.history
    text, exact = (prefix, False) if key is None else (key, True)
    at = history.last if position is None else position
    try:
        if at < declared.since:  # of a table of this name that was dropped
            raise HistoryExceeded(at, declared.since)
        watcher = node.watching.open(table, text, at, tenant, exact=exact)
    except HistoryExceeded as gone:
        return problem(request, gone, **_more(gone))
    response = event_streams.response(watcher.position, standing(request))
    task = asyncio.current_task()
    request.app[_watches][task] = EventStream(request, watcher.wake)
    try:
        with uncounted(request):
            await response.prepare(request)
            _bound_unread(request.transport)
            await response.write(progress(watcher.position))
            await _tell(request, response, watcher, declared.incarnation)
    except ConnectionError:
        pass
    finally:
        request.app[_watches].pop(task, None)
        node.watching.close(watcher)
    return response


@ROUTES.told(
    "GET",
    "/v1/tables/{table}/turns",
    Scope.READ,
    Code.NOT_FOUND,
    Code.NOT_LEADER,
    Code.OVERLOADED,
    *READ,
    parameters=_TURNS,
    head=False,
)
async def turns(
    request: web.Request, table: str, node: Node, tenant: str, prefix: str, count: int = 1, wait_ms: int = 0
) -> wire.TurnsGiven:
    """``GET /v1/tables/{table}/turns``: wait until rows come under a prefix; a row gives one turn, to one who waits.

    A turn is a hint to look, or to take: somebody else may be faster. Rows that are there give turns at once, and rows
    that lie for a second give them again. Only the leader gives turns.
    """
    request_bodies.check_key(prefix, "prefix")
    if count > COUNT_MAX or wait_ms > WAIT_MS_MAX:
        raise request_bodies.bad(f"count is at most {COUNT_MAX}, wait_ms at most {WAIT_MS_MAX}")
    node.row_turns.check_leads()
    resident(node.machine, table)
    with uncounted(request):
        return wire.TurnsGiven(await node.row_turns.wait(table, prefix, count, wait_ms / 1000, tenant))


async def _tell(request: web.Request, response: web.StreamResponse, watcher: Watcher, incarnation: int) -> None:
    """Write events of a table until the watch ends, or its client goes."""
    node, loop, table = request.app[NODE], asyncio.get_running_loop(), watcher.audience.table
    looks, begins = False, watcher.position < node.watching.history.last

    def look() -> None:
        nonlocal looks
        looks = True
        watcher.wake()

    # One timer for all turns until then: a watch that is told a thousand changes a second would else make as many.
    timer = loop.call_later(KEEP_ALIVE_S, look)
    try:
        while request.transport is not None:
            try:
                if looks:
                    if not is_still_known(request, Scope.READ, table):
                        raise OncegateError(Code.UNAUTHENTICATED, "the token has ended, or was taken out")
                    _check_place(request)
                node.check_sound()
                if resident(node.machine, table).incarnation != incarnation:
                    raise OncegateError(Code.NOT_FOUND, f"table {table} was dropped, and declared again")
                # Where others watch the same rows it may have nothing to look at, and is told that it has caught up.
                was_behind, begins = begins or watcher.is_behind, False
                told = watcher.take()
            except OncegateError as refusal:
                await response.write(_end(refusal))
                return
            if looks or (was_behind and not watcher.is_behind):
                told += progress(watcher.position)
            if looks:
                looks, timer = False, loop.call_later(KEEP_ALIVE_S, look)
            if told:
                await response.write(told)
                await request.writer.drain()  # nothing more is written for a client that does not read
            await watcher.wait()
    finally:
        timer.cancel()


class Elsewhere(OncegateError):
    """This node leads and orders the writes, another one can serve the watch, and its client knows others."""

    def __init__(self) -> None:
        detail = "this node leads, and another one keeps up with it: watch there"
        super().__init__(Code.OVERLOADED, detail, retry_after_ms=ELSEWHERE_MS)


def _check_place(request: web.Request) -> None:
    """Raise Elsewhere if the client of a watch had better ask a follower, and says that it can."""
    if wire.H_ELSEWHERE in request.headers and request.app[NODE].has_followers:
        raise Elsewhere


def _bound_unread(transport: asyncio.Transport | None) -> None:
    connection = None if transport is None else transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)


def _more(refusal: OncegateError) -> dict[str, Any]:
    match refusal:
        case HistoryExceeded():
            return {"first_commit": refusal.first}
        case Elsewhere():
            return {"elsewhere": True}
        case _:
            return {}


def _end(refusal: OncegateError) -> bytes:
    body = bare_problem(refusal, **_more(refusal)).body
    return b"event: end\ndata: %s\n\n" % body if isinstance(body, bytes) else b""


def set_up(app: web.Application) -> None:
    """Prepare the application for watches."""
    event_streams.keep(app, _watches)
    app.on_shutdown.append(_send_away)


async def _send_away(app: web.Application) -> None:
    app[NODE].row_turns.send_away()
