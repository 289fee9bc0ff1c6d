"""``/v1/operations``, ranges and requests: the exactly-once path over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from aiohttp import web

from oncegate.gateway import wire
from oncegate.gateway.answers import Answer, request_state
from oncegate.gateway.http import range_bodies, request_bodies
from oncegate.gateway.http.admission.desk import check_tables
from oncegate.gateway.http.control_routes import Routes
from oncegate.gateway.http.exchange import Exchange, Reply, check_owner, traceparent
from oncegate.gateway.http.identity import Scope
from oncegate.gateway.http.negotiation import ordered
from oncegate.gateway.http.routing import JSON_LINES, PROPOSED, Parameter, Raw
from oncegate.gateway.machine import commands as c
from oncegate.gateway.node.attempts import Waiter
from oncegate.gateway.node.node import Node
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


class Operate:
    """Operations of a session, as the SDK sends them."""

    many_values = True

    def __init__(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        self._exchange = exchange
        self._command: c.Operate
        self._size = 0

    def read(self, sent: bytes) -> None:
        """Translate the body."""
        exchange, self._size = self._exchange, len(sent)
        trace = traceparent(exchange.headers)
        self._command = request_bodies.operate(sent, exchange.media, exchange.identity.tenant, trace)

    def read_at_once(self, sent: bytes) -> bool:  # noqa: D102
        return False

    def order(self, waiter: Waiter) -> None:
        """Order the operations, if they are of the sender's session and tables."""
        exchange, command = self._exchange, self._command
        check_owner(exchange.identity.tenant, exchange.node.machine, command.client_id)
        names = c.tables_of(command.ops)
        check_tables(exchange.identity, Scope.WRITE, names)
        exchange.usage.charge(len(names))
        exchange.node.attempt(command, self._size, waiter)

    def reply(self, answer: Answer, encoded: bytes | None) -> Reply | bytes:
        """Tell the results."""
        return self._exchange.reply(answer, encoded=encoded)


@ROUTES.add(
    "POST",
    "/v1/operations",
    Scope.WRITE,
    wire.OperationsResponse,
    body=wire.OperationsRequest,
    body_bytes_max=None,
    errors=_ERRORS,
    ordering=Operate,
)
async def operate(request: web.Request) -> web.StreamResponse:
    """``POST /v1/operations``."""
    return await ordered(request, Operate)


class PutRange:
    """Rows of a stream table under adjacent numbers of a session; their columns are the body."""

    many_values = False

    def __init__(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        self._exchange = exchange
        self._table = request_bodies.check_name(names["table"], "table")
        self._client_id = request_bodies.check_client_id(self._header(wire.H_CLIENT))
        self._epoch = request_bodies.number(self._header(wire.H_EPOCH), wire.H_EPOCH)
        self._first = request_bodies.number(self._header(wire.H_FIRST_SEQUENCE), wire.H_FIRST_SEQUENCE)
        acknowledged = request_bodies.digits(self._header(wire.H_FIRST_INCOMPLETE), wire.H_FIRST_INCOMPLETE)
        self._first_incomplete = request_bodies.check_first_incomplete(acknowledged)
        check_owner(exchange.identity.tenant, exchange.node.machine, self._client_id)
        self._command: c.Range

    def _header(self, name: str) -> str:
        values = self._exchange.headers(name)
        if not values:
            raise request_bodies.bad(f"header {name} is missing")
        return values[0]

    def read(self, sent: bytes) -> None:
        """Check the columns."""
        self._read(sent, range_bodies.ALL)

    def read_at_once(self, sent: bytes) -> bool:
        """Check the columns of a range in msgpack: they take a millisecond, unless many values have to be built."""
        if self._exchange.media != wire.MSGPACK or len(sent) > range_bodies.AT_ONCE_BYTES_MAX:
            return False
        try:
            self._read(sent, range_bodies.BUILT_AT_ONCE_BYTES_MAX)
        except range_bodies.TakesLongError:
            return False
        return True

    def _read(self, sent: bytes, built_bytes_max: int) -> None:
        exchange = self._exchange
        place = self._table, self._client_id, self._epoch, self._first_incomplete, self._first
        command = range_bodies.range_command(*place, sent, exchange.media, built_bytes_max)
        trace = traceparent(exchange.headers)
        self._command = msgspec.structs.replace(command, tenant=exchange.identity.tenant, traceparent=trace)

    def order(self, waiter: Waiter) -> None:
        """Order the range."""
        command = self._command
        self._exchange.usage.charge(len(command.fingerprints) // FINGERPRINT_BYTES)
        self._exchange.node.attempt(command, len(command.body) + len(command.fingerprints), waiter)

    def reply(self, answer: Answer, encoded: bytes | None) -> Reply | bytes:
        """Tell the results."""
        return self._exchange.reply(answer, encoded=encoded)


@ROUTES.add(
    "POST",
    "/v1/tables/{table}/ranges",
    Scope.WRITE,
    wire.RangeResponse,
    body=_RANGE,
    body_bytes_max=None,
    parameters=_RANGE_HEADERS,
    errors=_ERRORS,
    ordering=PutRange,
)
async def put_range(request: web.Request) -> web.StreamResponse:
    """``POST /v1/tables/{table}/ranges``."""
    return await ordered(request, PutRange)


@ROUTES.told("GET", _REQUEST, Scope.READ, reflects="linearizable")
def request_of(client_id: int, sequence: int, node: Node, tenant: str) -> wire.RequestState:
    """``GET /v1/requests/{client_id}/{sequence}``."""
    return request_state(node.machine, client_id, sequence, tenant)


@ROUTES.command(
    "POST",
    _REQUEST + "/resolve",
    Scope.WRITE,
    wire.RequestState,
    Code.BAD_ACK,
    Code.FENCED,
    Code.WINDOW_FULL,
    body_required=False,
)
def resolve(client_id: int, sequence: SequenceNumber, tenant: str, sent: wire.ResolveRequest) -> c.Resolve:
    """``POST /v1/requests/{client_id}/{sequence}/resolve``."""
    return request_bodies.resolve(client_id, sequence, sent, tenant)
