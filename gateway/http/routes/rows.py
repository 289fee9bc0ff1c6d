"""Changes of single rows for callers without the SDK: ``PUT``, ``DELETE``, ``increment``, ``append``.

Owns: the way from headers and body to one command, and from its verdict to a status. The identity of a request is
read in :mod:`oncegate.gateway.http.request_headers`, remembered in :mod:`oncegate.rifl.key_table` or the caller's
session.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web

from oncegate.gateway import wire
from oncegate.gateway.answer_values import JSON
from oncegate.gateway.answers import Answer
from oncegate.gateway.http import request_bodies
from oncegate.gateway.http import request_headers as plain
from oncegate.gateway.http.control_routes import Routes
from oncegate.gateway.http.exchange import Exchange, Reply, check_owner, traceparent
from oncegate.gateway.http.exchange import refused as problem_of
from oncegate.gateway.http.identity import Scope
from oncegate.gateway.http.negotiation import ordered
from oncegate.gateway.http.request_bodies import VALUE_SENT_BYTES_MAX
from oncegate.gateway.http.routing import OBJECTS, PROPOSED, Parameter, Raw
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.node.attempts import Waiter
from oncegate.rifl.errors import Code, OncegateError, Outcome
from oncegate.rifl.ids import format_client_id
from oncegate.rifl.key_table import KEYS_CLIENT


class Increment(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /v1/tables/{table}/rows/{key}/increment``; may be left out."""

    by: int = 1
    floor: int | msgspec.UnsetType = msgspec.UNSET
    ceiling: int | msgspec.UnsetType = msgspec.UNSET


class Append(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /v1/tables/{table}/rows/{key}/append``."""

    item: Any


class _Append(msgspec.Struct, forbid_unknown_fields=True):
    item: msgspec.Raw


class RowChanged(msgspec.Struct, omit_defaults=True):
    """Answer to a change of one row without the SDK; a replay is the same bytes.

    ``request`` is the request id, also for a request with a key; ``value`` is the result of an increment.
    """

    request: str
    commit: int
    version: int
    value: Any = msgspec.UNSET


class RefusalProblem(wire.Problem):
    """A business refusal as a problem: recorded, replayed, and what the row was."""

    request: str = ""
    commit: int = 0
    version: int = 0
    value: Any = msgspec.UNSET
    encoding: str | msgspec.UnsetType = msgspec.UNSET


class Refusal(NamedTuple):
    """How a business refusal is told."""

    status: int
    title: str


REFUSALS: Final = {
    "CONDITION_FAILED": Refusal(412, "The condition does not hold"),
    "NOT_AN_INTEGER": Refusal(409, "The row holds no integer"),
    "OVERFLOW": Refusal(409, "The sum does not fit 64 bits"),
    "NOT_A_LIST": Refusal(409, "The row holds no list"),
    "LIST_FULL": Refusal(409, "The list has no room"),
}
"""Business refusals: recorded, and replayed like a result. Their outcome is ``not_applied``."""

_OF_KEYS: Final = format_client_id(KEYS_CLIENT)
_ROW: Final = "/v1/tables/{table}/rows/{key:(?s:.+)}"
_TEXT: Final = {"type": "string"}
IDENTITY: Final = (
    Parameter(wire.H_IDEMPOTENCY_KEY, _TEXT, "names the request; the gateway gives it an id", "header"),
    Parameter(wire.H_REQUEST, _TEXT, "client_id/sequence, for callers with a session", "header"),
    Parameter(wire.H_EPOCH, _TEXT, "the session's epoch, with a request id", "header"),
    Parameter(wire.H_FIRST_INCOMPLETE, _TEXT, "everything below is acknowledged, with a request id", "header"),
)
_HEADERS: Final = (
    *IDENTITY,
    Parameter("If-Match", _TEXT, "the row's version", "header"),
    Parameter("If-None-Match", _TEXT, "* for: only if there is no such row", "header"),
    Parameter(wire.H_TTL_MS, _TEXT, "the row ends after so much cluster time, in milliseconds", "header"),
)
ERRORS: Final = (
    *(Code.BAD_ACK, Code.IN_PROGRESS, Code.FENCED, Code.STALE, Code.SESSION_EXPIRED, Code.PAYLOAD_MISMATCH),
    *(Code.WINDOW_FULL, *PROPOSED),
)
_VALUE: Final = Raw((*OBJECTS, wire.BYTES), f"the value: any JSON, or bytes as {wire.BYTES}")
_CHANGE: Final[dict[str, Any]] = {
    "scope": Scope.WRITE,
    "answer": RowChanged,
    "parameters": _HEADERS,
    "errors": ERRORS,
    "refusals": {status: RefusalProblem for status, _ in REFUSALS.values()},
}
ROUTES: Final = Routes("rows")


class Change:
    """A change of one row: its identity and condition stand in the headers, one operation in the body."""

    many_values = False
    what: str

    def __init__(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        table = request_bodies.check_name(names["table"], "table")
        self._row = table, request_bodies.check_key(names["key"])
        self._exchange = exchange
        self._client_id = _OF_KEYS
        self._op: c.Op

    def asked(self, sent: bytes) -> wire.Operation:
        """Return the operation that a body asks for."""
        raise NotImplementedError

    def read(self, sent: bytes) -> None:
        """Translate the body."""
        self._op = request_bodies.operation(self.asked(sent), 0)

    def read_at_once(self, sent: bytes) -> bool:  # noqa: D102
        return False

    def order(self, waiter: Waiter) -> None:
        """Order the operation under the identity that its headers give it."""
        exchange = self._exchange
        headers = exchange.headers
        key = plain.key_alone(headers)
        if key is not None:
            op = self._op
            under_key(exchange, key, op, 256 + len(op.key) + len(op.value or b""), "", waiter)
            return
        node, tenant = exchange.node, exchange.identity.tenant
        who = plain.identity(headers)
        op = plain.lasting(plain.conditional(self._op, headers), headers)
        size = 256 + len(op.key) + len(op.value or b"")
        if isinstance(who, plain.Key):
            under_key(exchange, who, op, size, traceparent(headers), waiter)
            return
        check_owner(tenant, node.machine, who.client_id)
        self._client_id = format_client_id(who.client_id)
        op = msgspec.structs.replace(op, sequence=who.sequence)
        trace = traceparent(headers)
        node.attempt(c.Operate(who.client_id, who.epoch, who.first_incomplete, [op], tenant, trace), size, waiter)

    def reply(self, answer: Answer, _: bytes | None = None) -> Reply | bytes:
        """Tell what became of it."""
        node, result = self._exchange.node, answer.body.results[0]
        if result.status == "rejected":
            reply = problem_of(node, rejection(result, node.machine), commit=answer.commit)
            reply.headers[wire.H_MEMORY_MS] = str(answer.memory_ms)
            return reply
        request_id = f"{self._client_id}/{result.sequence}"
        more = {wire.H_REQUEST: request_id}
        if result.replayed is True:
            more[wire.H_REPLAYED] = "true"
        if result.status == "applied":
            etag = None if self.what == "delete" else str(result.version)
            return self._exchange.reply(_changed(request_id, result, answer), etag=etag, more=more)
        reply = refused(answer, RefusalProblem(**refusal_of(request_id, result)))
        reply.headers.update(more)
        reply.headers[wire.H_TIME_MS] = str(node.machine.time_ms)
        return reply


class Put(Change):
    """The body is the value."""

    what = "put"

    def asked(self, sent: bytes) -> wire.Operation:  # noqa: D102
        return wire.Operation(1, "put", *self._row, request_bodies.value(sent, self._exchange.media))


class Delete(Change):
    """There is no body."""

    what = "delete"

    def asked(self, sent: bytes) -> wire.Operation:  # noqa: D102
        return wire.Operation(1, "delete", *self._row)


class Increase(Change):
    """The body is an :class:`Increment`, if there is one."""

    what = "increment"

    def asked(self, sent: bytes) -> wire.Operation:  # noqa: D102
        by = request_bodies.decode(sent, self._exchange.media, Increment) if sent else Increment()
        return wire.Operation(1, "increment", *self._row, by=by.by, floor=by.floor, ceiling=by.ceiling)


class Extend(Change):
    """The body is an :class:`Append`."""

    what = "append"

    def asked(self, sent: bytes) -> wire.Operation:  # noqa: D102
        kind = self._exchange.media
        item = request_bodies.value(request_bodies.decode(sent, kind, _Append).item, kind, "item")
        return wire.Operation(1, "append", *self._row, item=item)


@ROUTES.add("PUT", _ROW, **_CHANGE, body=_VALUE, body_bytes_max=VALUE_SENT_BYTES_MAX, ordering=Put)
async def put(request: web.Request) -> web.StreamResponse:
    """``PUT /v1/tables/{table}/rows/{key}``: the body is the value."""
    return await ordered(request, Put)


@ROUTES.add("DELETE", _ROW, **_CHANGE, ordering=Delete)
async def delete(request: web.Request) -> web.StreamResponse:
    """``DELETE /v1/tables/{table}/rows/{key}``."""
    return await ordered(request, Delete)


@ROUTES.add("POST", _ROW + "/increment", **_CHANGE, body=Increment, body_required=False, ordering=Increase)
async def increment(request: web.Request) -> web.StreamResponse:
    """``POST /v1/tables/{table}/rows/{key}/increment``."""
    return await ordered(request, Increase)


@ROUTES.add("POST", _ROW + "/append", **_CHANGE, body=Append, body_bytes_max=VALUE_SENT_BYTES_MAX, ordering=Extend)
async def append(request: web.Request) -> web.StreamResponse:
    """``POST /v1/tables/{table}/rows/{key}/append``."""
    return await ordered(request, Extend)


def under_key(
    exchange: Exchange, key: plain.Key, op: c.Op | c.Transaction, size: int, trace: str, waiter: Waiter
) -> None:
    """Order an operation under an idempotency key; raises IN_PROGRESS while the first request with it runs here."""
    node, tenant = exchange.node, exchange.identity.tenant
    busy, name = exchange.running, f"{tenant}\0{key.scoped}"
    if name in busy:
        raise OncegateError(Code.IN_PROGRESS, "the first request with this key is still running", retry_after_ms=50)
    named = c.KeyedOp(key.scoped, key.named_ms, op)
    keyed = c.Keyed(node.settings.idempotency_key_ms, [named], tenant, trace)
    # Not when this request ends: the operation goes on when its caller hangs up.
    node.attempt(keyed, size + len(key.text), waiter, partial(busy.discard, name))
    busy.add(name)


def refusal_of(request_id: str, result: wire.OperationResult) -> dict[str, Any]:
    """Return the members of the problem that tells a business refusal."""
    code = str(result.code)
    refusal = REFUSALS[code]
    return {
        "type": f"urn:oncegate:error:{code}",
        "title": refusal.title,
        "status": refusal.status,
        "code": code,
        "outcome": Outcome.NOT_APPLIED.value,
        "retryable": False,
        "request": request_id,
        "commit": _known(result.commit),
        "version": _known(result.version),
        "value": result.value,
        "encoding": result.encoding,
    }


def refused(answer: Answer, shown: RefusalProblem) -> Reply:
    """Return the reply of a business refusal."""
    headers = {wire.H_COMMIT: str(answer.commit), wire.H_MEMORY_MS: str(answer.memory_ms)}
    return Reply(shown.status, {**headers, "Content-Type": wire.PROBLEM}, JSON.encode(shown))


def rejection(result: wire.OperationResult, machine: Machine) -> OncegateError:
    """Return the verdict as a refusal; where all keys are taken, it says when the next one is forgotten."""
    code, outcome = Code(str(result.code)), Outcome(str(result.outcome))
    return OncegateError(code, str(result.detail), outcome=outcome, retry_after_ms=wait_for_keys_ms(code, machine))


def wait_for_keys_ms(code: Code, machine: Machine) -> int | None:
    """Return when the next key is forgotten, if a verdict says that all are taken."""
    full = code is Code.QUOTA and machine.keys.is_full
    return max(1_000, machine.keys.room_in_ms(machine.time_ms)) if full else None


def _changed(request_id: str, result: wire.OperationResult, answer: Answer) -> Answer:
    done = RowChanged(request_id, _known(result.commit), _known(result.version), result.value)
    return Answer(done, answer.commit, memory_ms=answer.memory_ms)


def _known(number: int | msgspec.UnsetType) -> int:
    return number if isinstance(number, int) else 0
