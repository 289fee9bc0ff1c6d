"""``/v1/tables``: declare, describe, read rows."""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import web

from oncegate.gateway import wire
from oncegate.gateway.answers import Answer, table_state
from oncegate.gateway.http import request_bodies
from oncegate.gateway.http.identity import Scope
from oncegate.gateway.http.negotiation import (
    NODE,
    body,
    is_current,
    local,
    number,
    path_name,
    reach,
    respond,
    standing,
    submitted,
)
from oncegate.gateway.http.routes.flows import declaration_text
from oncegate.gateway.http.routing import IF_NONE_MATCH, LEVEL, PROPOSED, READ, Parameter, Routes
from oncegate.gateway.live_check.recorder import WindowRecorder
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.tables import QUOTA_BYTES_DEFAULT, QUOTA_BYTES_MAX, Table
from oncegate.gateway.node.node import Node
from oncegate.rifl.errors import Code, OncegateError

PAGE_MAX: Final = 1_000
PAGE_BYTES_MAX: Final = 4 * 2**20
"""Values of a page; a single row may exceed it."""

_LIMIT: Final = Parameter("limit", {"type": "integer", "minimum": 1, "default": 100}, f"at most {PAGE_MAX} come")
_PREFIX: Final = Parameter("prefix", {"type": "string"}, "keys that begin with it")
_AFTER: Final = Parameter("after", {"type": "string"}, "keys greater than it: the next of the page before")
_ERRORS: Final = (Code.NOT_FOUND, *READ)
_TABLE: Final = "/v1/tables/{table}"
ROUTES: Final = Routes("tables")


@ROUTES.add(
    "PUT", _TABLE, Scope.ADMIN, {200: wire.TableState}, body=wire.DeclareTable, errors=(Code.CONFLICT, *PROPOSED)
)
async def declare(request: web.Request) -> web.StreamResponse:
    """``PUT /v1/tables/{table}``."""
    name = path_name(request, "table")
    declaration = await body(request, wire.DeclareTable)
    quota = QUOTA_BYTES_DEFAULT if declaration.quota_bytes is None else declaration.quota_bytes
    if not 1024 <= quota <= QUOTA_BYTES_MAX:
        raise request_bodies.bad(f"quota_bytes must be in 1024..{QUOTA_BYTES_MAX}")
    flow = b"" if declaration.flow is None else _own_flow(name, declaration)
    return await submitted(request, c.DeclareTable(name, declaration.kind, quota, flow), 128 + len(flow))


def _own_flow(name: str, declaration: wire.DeclareTable) -> bytes:
    """Return the declaration of a stream table's own flow; raises BAD_REQUEST for an invalid one."""
    if declaration.kind != "stream":
        raise request_bodies.bad("only a stream table has its own flow; declare flows of other tables separately")
    return declaration_text({"name": name, "source": name, **msgspec.to_builtins(declaration.flow)})


@ROUTES.add("GET", _TABLE, Scope.READ, {200: wire.TableState}, parameters=LEVEL, errors=_ERRORS)
async def describe(request: web.Request) -> web.StreamResponse:
    """``GET /v1/tables/{table}``."""
    return local(request, table_state(await _declared(request)))


@ROUTES.add(
    "GET",
    _TABLE + "/rows/{key:(?s:.+)}",
    Scope.READ,
    {200: wire.RowState, 304: None},
    parameters=(IF_NONE_MATCH, *LEVEL),
    errors=(Code.PAYLOAD_TOO_LARGE, *_ERRORS),
)
async def row(request: web.Request) -> web.StreamResponse:
    """``GET /v1/tables/{table}/rows/{key}``."""
    table = path_name(request, "table")
    key = request_bodies.check_key(request.match_info["key"])
    node = request.app[NODE]
    watching = _watching(node, table, key)
    linearizable = request.query.get("consistency", "linearizable") == "linearizable"
    floor = 0 if watching is None else watching.read_floor(linearizable=linearizable)
    await reach(request)
    # Read before the look-up, which may wait: the answer reflects at least this commit and promises no more.
    commit = int(node.machine.commit)
    try:
        found = await node.reads.row(table, key)
    except OncegateError:
        if watching is not None and _is_resident(node, table):
            watching.read(table, key, commit, floor, 0, None)
        raise
    if watching is not None and _is_resident(node, table):
        watching.read(table, key, commit, floor, found.version, found.value)
    # A store may be ahead of this node: its reader must not read older rows elsewhere.
    commit = max(commit, found.version)
    etag = str(found.version)
    if is_current(request, etag):
        headers = {"ETag": f'"{etag}"', wire.H_COMMIT: str(commit), **standing(request)}
        return web.Response(status=304, headers=headers)
    state = wire.RowState(key, msgspec.json.decode(found.value), found.version, commit)
    return respond(request, Answer(state, commit), etag=etag)


@ROUTES.add(
    "GET",
    _TABLE + "/rows",
    Scope.READ,
    {200: wire.RowPage},
    parameters=(_PREFIX, _AFTER, _LIMIT, *LEVEL),
    errors=_ERRORS,
)
async def page(request: web.Request) -> web.StreamResponse:
    """``GET /v1/tables/{table}/rows?prefix=&after=&limit=``: rows of a resident table in key order."""
    query = request.query
    limit = min(number(query.get("limit", "100"), "limit"), PAGE_MAX)
    table = await _declared(request)
    if table.kind != "resident":
        raise request_bodies.bad("rows of a stream table are read by key, or in order from its flow")
    commit = request.app[NODE].machine.commit
    rows = table.rows.page(query.get("prefix", ""), query.get("after", ""), limit + 1)
    states: list[wire.RowState] = []
    size = 0
    for key, row in rows[:limit]:
        size += len(row.value)
        if states and size > PAGE_BYTES_MAX:
            break
        states.append(wire.RowState(key, msgspec.json.decode(row.value), row.version, commit))
    return local(request, wire.RowPage(states, states[-1].key if len(states) < len(rows) else None, commit))


async def _declared(request: web.Request) -> Table:
    """Return the table of the path once the local state is as new as asked for; raises NOT_FOUND."""
    name = path_name(request, "table")
    await reach(request)
    table = request.app[NODE].machine.tables.get(name)
    if table is None:
        raise OncegateError(Code.NOT_FOUND, "no such table")
    return table


def _watching(node: Node, table: str, key: str) -> WindowRecorder | None:
    """Return the recorder of reads of this row, None if the row is not sampled."""
    live = node.live_check
    return live.recorder if live is not None and live.recorder.has(table, key) else None


def _is_resident(node: Node, table: str) -> bool:
    """Whether the table is resident: only then does a row's read have one commit number at which it was read."""
    declared = node.machine.tables.get(table)
    return declared is not None and declared.kind == "resident"
