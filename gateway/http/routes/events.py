"""``POST /v1/tables/{table}/events``: CloudEvents into a table, each once.

Owns: the status of a request, from the verdicts on its events. :mod:`oncegate.gateway.http.cloudevents` reads the
events.
"""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import web

from oncegate.gateway import wire
from oncegate.gateway.answers import Answer
from oncegate.gateway.http import cloudevents
from oncegate.gateway.http.control_routes import Routes
from oncegate.gateway.http.exchange import traceparent
from oncegate.gateway.http.identity import Scope
from oncegate.gateway.http.negotiation import (
    NODE,
    USAGE,
    attempted,
    headers_of,
    parsed,
    problem,
    respond,
)
from oncegate.gateway.http.routes import rows
from oncegate.gateway.http.routing import ANYTHING, PROPOSED, Raw
from oncegate.gateway.machine import commands as c
from oncegate.gateway.node.node import Node
from oncegate.rifl.errors import Code, OncegateError, Outcome
from oncegate.rifl.ids import format_client_id
from oncegate.rifl.key_table import KEYS_CLIENT

_EVENTS: Final = Raw((ANYTHING,), "one CloudEvent, binary or structured, or a batch of them")
_ERRORS: Final = (Code.SESSION_EXPIRED, Code.PAYLOAD_MISMATCH, *PROPOSED)
ROUTES: Final = Routes("events")


class EventResult(wire.Verdict, omit_defaults=True):
    """Verdict on one CloudEvent: ``applied`` with the key of its row, or ``rejected``."""

    id: str
    source: str
    status: str
    key: str
    request: str | msgspec.UnsetType = msgspec.UNSET
    commit: int | msgspec.UnsetType = msgspec.UNSET


class EventsResponse(msgspec.Struct):
    """Answer of ``POST /v1/tables/{table}/events``: a verdict per event, in order."""

    results: list[EventResult]
    memory_ms: int


@ROUTES.told(
    "POST",
    "/v1/tables/{table}/events",
    Scope.WRITE,
    *_ERRORS,
    answer=EventsResponse,
    body=_EVENTS,
    body_bytes_max=None,
)
async def post(request: web.Request, table: str, node: Node, tenant: str) -> web.StreamResponse:
    """``POST /v1/tables/{table}/events`` in binary, structured and batched mode."""
    kind, headers = request.content_type, request.headers.items()
    size, events = await parsed(request, lambda sent: (len(sent), cloudevents.read(table, kind, headers, sent)))
    if not events:
        return respond(request, Answer(EventsResponse([], 0), node.machine.commit))
    trace = traceparent(headers_of(request))
    keyed = [event.keyed() for event in events]
    command = c.Keyed(node.settings.idempotency_key_ms, keyed, tenant, trace)
    request[USAGE].charge(len(events))
    answer = await attempted(node, command, 256 * len(events) + size)
    results = [_result(event, result) for event, result in zip(events, answer.body.results, strict=True)]
    rejected = [result for result in results if result.status == "rejected"]
    if rejected:
        response = _not_whole(request, results, rejected)
        response.headers[wire.H_MEMORY_MS] = str(answer.memory_ms)
        return response
    response = respond(request, answer._replace(body=EventsResponse(results, answer.body.memory_ms)))
    if not cloudevents.is_batch(request.content_type):
        response.headers[wire.H_REQUEST] = str(results[0].request)
        if results[0].replayed is True:
            response.headers[wire.H_REPLAYED] = "true"
    return response


def _result(event: cloudevents.CloudEvent, result: wire.OperationResult) -> EventResult:
    taken = result.status != "rejected"
    return EventResult(
        event.id,
        event.source,
        result.status,
        event.op.key,
        request=f"{format_client_id(KEYS_CLIENT)}/{result.sequence}" if taken else msgspec.UNSET,
        commit=result.commit,
        replayed=result.replayed,
        code=result.code,
        outcome=result.outcome,
        retryable=result.retryable,
        detail=result.detail,
    )


def _not_whole(request: web.Request, results: list[EventResult], rejected: list[EventResult]) -> web.Response:
    """Answer with an error unless all events were taken: a sender that reads only the status then sends all of them
    again.

    Events that were taken are then replays. A retryable rejection decides the status before a final one.
    """
    worst = next((result for result in rejected if result.retryable is True), rejected[0])
    outcomes = {str(result.outcome) if result.status == "rejected" else "applied" for result in results}
    outcome = Outcome(outcomes.pop()) if len(outcomes) == 1 else Outcome.UNKNOWN
    code, detail = Code(str(worst.code)), f"{len(rejected)} of {len(results)} events: {worst.detail}"
    wait_ms = rows.wait_for_keys_ms(code, request.app[NODE].machine)
    refusal = OncegateError(code, detail, outcome=outcome, retry_after_ms=wait_ms)
    return problem(request, refusal, results=results)
