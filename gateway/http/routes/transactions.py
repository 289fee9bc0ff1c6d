"""``POST /v1/transactions``: several writes on several rows and tables under one request id, all or none.

Owns: the way from headers and body to one command, and from its verdict to a status, as
:mod:`oncegate.gateway.http.routes.rows` for a single row. The SDK sends transactions among its operations instead, so
that they keep their place in the order of its session.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
from aiohttp import web

from oncegate.gateway import wire
from oncegate.gateway.answers import Answer
from oncegate.gateway.http import request_bodies
from oncegate.gateway.http import request_headers as plain
from oncegate.gateway.http.admission.desk import check_tables
from oncegate.gateway.http.control_routes import Routes
from oncegate.gateway.http.exchange import check_owner, traceparent
from oncegate.gateway.http.identity import Identity, Scope
from oncegate.gateway.http.negotiation import (
    COMMIT,
    NODE,
    USAGE,
    attempted,
    exchange_of,
    headers_of,
    parsed,
    problem,
    respond_with_values,
    response_of,
)
from oncegate.gateway.http.routes import rows
from oncegate.gateway.machine import commands as c
from oncegate.gateway.node.node import Node
from oncegate.rifl.ids import format_client_id
from oncegate.rifl.key_table import KEYS_CLIENT


class TransactionRefused(rows.RefusalProblem):
    """None of it was applied: ``failed`` names the condition or write that refused it, ``version`` and ``value`` are
    those of its row. Recorded, and replayed like a result.
    """

    failed: str = ""


ROUTES: Final = Routes("transactions")


@ROUTES.told(
    "POST",
    "/v1/transactions",
    Scope.WRITE,
    *rows.ERRORS,
    answer=wire.TransactionApplied,
    body=wire.Transaction,
    body_bytes_max=None,
    parameters=rows.IDENTITY,
    refusals={status: TransactionRefused for status, _ in rows.REFUSALS.values()},
)
async def transact(request: web.Request, node: Node, identity: Identity, tenant: str) -> web.StreamResponse:
    """``POST /v1/transactions``."""
    headers, kind = headers_of(request), request.content_type
    who = plain.identity(headers)
    size, made = await parsed(request, lambda sent: (len(sent), request_bodies.transaction(sent, kind)))
    names = c.tables_of([made])
    check_tables(identity, Scope.WRITE, names)
    request[USAGE].charge(len(names))
    if isinstance(who, plain.Key):
        for at, write in enumerate(made.writes):
            if write.options is not None and write.options.bound:
                raise request_bodies.bad(
                    f"writes[{at}].bound: under an Idempotency-Key there is no session to end with"
                )
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        rows.under_key(exchange_of(request), who, made, size, traceparent(headers), waiting)
        return await _answered(request, KEYS_CLIENT, await waiting)
    check_owner(tenant, node.machine, who.client_id)
    op = msgspec.structs.replace(made, sequence=who.sequence)
    trace = traceparent(headers)
    command = c.Operate(who.client_id, who.epoch, who.first_incomplete, [op], tenant, trace)
    return await _answered(request, who.client_id, await attempted(node, command, size))


async def _answered(request: web.Request, client_id: int, answer: Answer) -> web.StreamResponse:
    result: wire.OperationResult = answer.body.results[0]
    request_id = f"{format_client_id(client_id)}/{result.sequence}"
    response: web.StreamResponse
    if result.status == "rejected":
        request[COMMIT] = answer.commit
        response = problem(request, rows.rejection(result, request.app[NODE].machine))
        response.headers[wire.H_MEMORY_MS] = str(answer.memory_ms)
    else:
        if result.status == "applied" and isinstance(result.commit, int):
            done = wire.TransactionApplied(request_id, result.commit, result.writes or [])
            response = await respond_with_values(request, answer._replace(body=done))
        else:
            failed = str(result.failed)
            shown = TransactionRefused(**rows.refusal_of(request_id, result), failed=failed)
            response = response_of(rows.refused(answer, shown))
        response.headers[wire.H_REQUEST] = request_id
        if result.replayed is True:
            response.headers[wire.H_REPLAYED] = "true"
    response.headers[wire.H_TIME_MS] = str(request.app[NODE].machine.time_ms)
    return response
