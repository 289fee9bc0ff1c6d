"""``/v1/tables``: declare, describe, list and drop tables, read rows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from heapq import nsmallest
from typing import Annotated, Final

import msgspec
from aiohttp import web

from oncegate.gateway import wire
from oncegate.gateway.answers import Answer, row_state, table_state
from oncegate.gateway.http import page_tokens, request_bodies
from oncegate.gateway.http.admission.desk import check_tables
from oncegate.gateway.http.control_routes import Routes
from oncegate.gateway.http.exchange import Exchange, Reply, is_current, reached, standing
from oncegate.gateway.http.identity import Identity, Scope
from oncegate.gateway.http.negotiation import (
    IDENTITY,
    NODE,
    ordered,
    parsed,
    problem,
    reach,
    respond_with_values,
)
from oncegate.gateway.http.routes.flows import declaration_text
from oncegate.gateway.http.routing import IF_NONE_MATCH, LEVEL, READ, Force, Parameter, limit
from oncegate.gateway.live_check.recorder import WindowRecorder
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.rows import prefix_end
from oncegate.gateway.machine.tables import QUOTA_BYTES_DEFAULT, QUOTA_BYTES_MAX
from oncegate.gateway.node import scans
from oncegate.gateway.node.attempts import Waiter
from oncegate.gateway.node.change_history import HistoryExceeded
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.reads import no_table
from oncegate.gateway.node.scans import KeyRange
from oncegate.rifl.errors import Code, OncegateError

PAGE_MAX: Final = 1_000
PAGE_BYTES_MAX: Final = 4 * 2**20
"""Values of a page; a single row may exceed it."""
READ_MAX: Final = 256
READ_BYTES_MAX: Final = 2**18
"""Rows of a request to read several, and the bytes of their names."""

_Limit = Annotated[int, limit(PAGE_MAX)]
_NamedAfter = Annotated[
    str, Parameter("after", {"type": "string"}, "names greater than it: the next of the page before")
]
_NamePrefix = Annotated[str, Parameter("prefix", {"type": "string"}, "names that begin with it")]
_Kind = Annotated[
    str | None, Parameter("kind", {"type": "string", "enum": ["resident", "stream"]}, "tables of this kind")
]
_Incarnation = Annotated[
    int,
    Parameter(
        "incarnation", {"type": "integer", "minimum": 1}, "of the table, as the caller has seen it", required=True
    ),
]
_KEY: Final = {"type": "string"}
_RANGE: Final = (
    Parameter("prefix", _KEY, "keys that begin with it"),
    Parameter("from", _KEY, "this key and greater ones"),
    Parameter("to", _KEY, "keys smaller than it"),
    Parameter("after", _KEY, "keys behind it: `next` of the page before, for the rows as they are now"),
    Parameter("reverse", {"type": "boolean", "default": False}, "against key order"),
)
_COMMIT: Final = Parameter("commit", {"type": "integer", "minimum": 0}, "rows as they were at this commit number")
_PAGE: Final = Parameter("page", {"type": "string"}, "`page` of the page before, for the same rows at the same commit")
_ERRORS: Final = (Code.NOT_FOUND, *READ)
_TABLE: Final = "/v1/tables/{table}"
ROUTES: Final = Routes("tables")


@ROUTES.command("PUT", _TABLE, Scope.ADMIN, wire.TableState, Code.CONFLICT, act="table.declare")
def declare(table: str, sent: wire.DeclareTable) -> c.DeclareTable:
    """``PUT /v1/tables/{table}``."""
    quota = QUOTA_BYTES_DEFAULT if sent.quota_bytes is None else sent.quota_bytes
    if not 1024 <= quota <= QUOTA_BYTES_MAX:
        raise request_bodies.bad(f"quota_bytes must be in 1024..{QUOTA_BYTES_MAX}")
    return c.DeclareTable(table, sent.kind, quota, b"" if sent.flow is None else _own_flow(table, sent))


def _own_flow(name: str, declaration: wire.DeclareTable) -> bytes:
    """Return the declaration of a stream table's own flow; raises BAD_REQUEST."""
    if declaration.kind != "stream":
        raise request_bodies.bad("only a stream table has its own flow; declare flows of other tables separately")
    return declaration_text({"name": name, "source": name, **msgspec.to_builtins(declaration.flow)})


@ROUTES.told("GET", _TABLE, Scope.READ, Code.NOT_FOUND, reflects="asked")
def describe(table: str, node: Node) -> wire.TableState:
    """``GET /v1/tables/{table}``."""
    declared = node.machine.tables.get(table)
    if declared is None:
        raise no_table(table)
    return table_state(declared)


@ROUTES.told("GET", "/v1/tables", Scope.READ, reflects="asked")
def list_all(
    node: Node, identity: Identity, *, after: _NamedAfter = "", limit: _Limit, prefix: _NamePrefix = "", kind: _Kind
) -> wire.TableList:
    """``GET /v1/tables``: those that the token may read, a page in the order of their names."""
    machine, may = node.machine, partial(identity.may, Scope.READ)
    wanted = (
        name
        for name, table in machine.tables.items()
        if name > after and name.startswith(prefix) and kind in (None, table.kind) and may(name)
    )
    names = nsmallest(limit + 1, wanted)
    states = [table_state(machine.tables[name]) for name in names[:limit]]
    return wire.TableList(states, states[-1].name if len(names) > limit else None, machine.commit)


@ROUTES.command("DELETE", _TABLE, Scope.ADMIN, wire.TableDropped, Code.CONFLICT, act="table.drop")
def drop(table: str, incarnation: _Incarnation, force: Force) -> c.DropTable:
    """``DELETE /v1/tables/{table}``: the incarnation that ``GET`` has told; not while flows derive from it or write it.

    Without ``force=true`` neither while it has rows, or consumers.
    """
    return c.DropTable(table, incarnation, force)


class ReadRow:
    """A read of one row; there is no body."""

    many_values = True

    def __init__(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        self._table = request_bodies.check_name(names["table"], "table")
        self._key = request_bodies.check_key(names["key"])
        self._exchange = exchange
        self._version = 0

    def read(self, sent: bytes) -> None:
        """There is nothing in it."""

    def read_at_once(self, sent: bytes) -> bool:
        """There is nothing in it."""
        return True

    def order(self, waiter: Waiter) -> None:
        """Read the row at the level that the query asks for; it goes through no log."""
        asyncio.get_running_loop().create_task(self._found()).add_done_callback(partial(_hand_on, waiter))

    async def _found(self) -> Answer:
        exchange, table, key = self._exchange, self._table, self._key
        node = exchange.node
        watching = _watching(node, table, key)
        linearizable = exchange.query.get("consistency", "linearizable") == "linearizable"
        floor = 0 if watching is None else watching.read_floor(linearizable=linearizable)
        exchange.age_ms = await reached(node.reads, exchange.query)
        # Read before the look-up, which may wait: the answer reflects at least this commit and promises no more.
        commit = exchange.commit = int(node.machine.commit)
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
        self._version = found.version
        current = is_current(exchange.headers, str(found.version))
        return Answer(None if current else row_state(key, found, commit), commit)

    def reply(self, answer: Answer, encoded: bytes | None) -> Reply | bytes:
        """Tell the row, or that the caller holds it."""
        exchange, etag = self._exchange, str(self._version)
        if answer.body is not None:
            return exchange.reply(answer, etag=etag, encoded=encoded)
        headers = {"ETag": f'"{etag}"', wire.H_COMMIT: str(answer.commit), **standing(exchange.node, exchange.age_ms)}
        return Reply(304, headers, b"")


def _hand_on(waiter: Waiter, found: asyncio.Task[Answer]) -> None:
    fault = asyncio.CancelledError() if found.cancelled() else found.exception()
    if waiter.done():
        return  # its client has gone away
    if fault is None:
        waiter.set_result(found.result())
    else:
        waiter.set_exception(fault)


@ROUTES.add(
    "GET",
    _TABLE + "/rows/{key:(?s:.+)}",
    Scope.READ,
    {200: wire.RowState, 304: None},
    parameters=(IF_NONE_MATCH, *LEVEL),
    errors=(Code.PAYLOAD_TOO_LARGE, *_ERRORS),
    ordering=ReadRow,
)
async def row(request: web.Request) -> web.StreamResponse:
    """``GET /v1/tables/{table}/rows/{key}``."""
    return await ordered(request, ReadRow)


@ROUTES.told(
    "GET",
    _TABLE + "/rows",
    Scope.READ,
    Code.RETENTION_EXCEEDED,
    *_ERRORS,
    answer=wire.RowPage,
    parameters=(*_RANGE, limit(PAGE_MAX), _COMMIT, _PAGE, *LEVEL),
)
async def page(request: web.Request, table: str, node: Node, limit: int, commit: int | None) -> web.Response:
    """``GET /v1/tables/{table}/rows``: rows of a resident table in key order, a page at a time.

    A page is of one commit number; with ``page`` of the page before, so are all of them.
    """
    query = request.query
    if "page" in query:
        if given := [one.name for one in (*_RANGE, _COMMIT) if one.name in query]:
            raise request_bodies.bad(f"page says {', '.join(given)} already")
        commit, wanted = page_tokens.read(query["page"])
    else:
        wanted = _wanted(query)
    if commit is None:
        await reach(request)
    else:
        await node.reads.reach("session", commit)
    try:
        found = await scans.page(
            node.machine, node.watching.history, table, wanted, commit, limit, bytes_max=PAGE_BYTES_MAX
        )
    except HistoryExceeded as gone:
        return problem(request, gone, first_commit=gone.first)
    states: list[wire.RowState] = []
    size = 0
    for key, row in found.rows:
        states.append(row_state(key, row, found.commit, size))
        size += len(row.value)
    rest = found.rest
    follows = None if rest is None else page_tokens.write(found.commit, rest)
    last_key = states[-1].key if states and rest is not None else None
    answer = wire.RowPage(states, last_key, found.commit, follows)
    return await respond_with_values(request, Answer(answer, found.commit))


def _wanted(query: Mapping[str, str]) -> KeyRange:
    """Return the range of keys that a query names; raises BAD_REQUEST."""
    prefix, low, high, after = (query.get(one, "") for one in ("prefix", "from", "to", "after"))
    for name, text in (("prefix", prefix), ("from", low), ("to", high), ("after", after)):
        if text:
            request_bodies.check_key(text, name)
    reverse = query.get("reverse", "false")
    if reverse not in ("true", "false"):
        raise request_bodies.bad("reverse is true or false")
    ends = [end for end in (high, prefix_end(prefix)) if end]
    wanted = KeyRange(max(prefix, low), min(ends, default=None), reverse == "true")
    if not after:
        return wanted
    rest = wanted.after(after)
    if wanted.reverse:
        return wanted if wanted.high is not None and wanted.high <= after else rest
    return wanted if wanted.low > after else rest


@ROUTES.add(
    "POST",
    "/v1/rows",
    Scope.READ,
    wire.RowsRead,
    body=wire.ReadRows,
    body_bytes_max=READ_BYTES_MAX,
    parameters=LEVEL,
    errors=(Code.PAYLOAD_TOO_LARGE, *_ERRORS),
)
async def read(request: web.Request) -> web.StreamResponse:
    """``POST /v1/rows``: rows of resident tables, all at one commit number."""
    kind = request.content_type
    wanted = (await parsed(request, lambda sent: request_bodies.decode(sent, kind, wire.ReadRows))).rows
    if len(wanted) > READ_MAX:
        raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"more than {READ_MAX} rows at once")
    for at, one in enumerate(wanted):
        request_bodies.check_name(one.table, f"rows[{at}].table")
        request_bodies.check_key(one.key, f"rows[{at}].key")
    check_tables(request[IDENTITY], Scope.READ, (one.table for one in wanted))
    await reach(request)
    # Nothing waits from here on: all rows are of one moment.
    machine = request.app[NODE].machine
    commit = int(machine.commit)
    states: list[wire.RowState | None] = []
    size = 0
    for one in wanted:
        found = scans.resident(machine, one.table).rows.get(one.key)
        if found is None:
            states.append(None)
            continue
        states.append(row_state(one.key, found, commit, size))
        size += len(found.value)
        if size > PAGE_BYTES_MAX:
            raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"more than {PAGE_BYTES_MAX} bytes of values: read fewer rows")
    return await respond_with_values(request, Answer(wire.RowsRead(states, commit), commit))


def _watching(node: Node, table: str, key: str) -> WindowRecorder | None:
    """Return the recorder of reads of this row, None if the row is not sampled."""
    live = node.live_check
    return live.recorder if live is not None and live.recorder.has(table, key) else None


def _is_resident(node: Node, table: str) -> bool:
    """Whether the table is resident: only then does a row's read have one commit number at which it was read."""
    declared = node.machine.tables.get(table)
    return declared is not None and declared.kind == "resident"
