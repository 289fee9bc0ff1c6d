"""``/v1/explain``: the timeline of a key or a request."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from oncegate.gateway.explain.search import OfKey, OfRequest, Wanted
from oncegate.gateway.explain.timeline import Explained
from oncegate.gateway.http import request_bodies, routing
from oncegate.gateway.http.identity import Scope, tenant_of
from oncegate.gateway.http.negotiation import NODE, local, number, typed
from oncegate.gateway.http.routing import READ, Parameter
from oncegate.rifl.errors import Code


@typed
async def explain(request: web.Request) -> web.StreamResponse:
    """``GET /v1/explain?table=&key=`` or ``?request=client_id/sequence``, after everything acknowledged before it."""
    query = request.query
    wanted: Wanted
    if "request" in query and not {"table", "key"} & query.keys():
        client_id, _, sequence = query["request"].partition("/")
        wanted = OfRequest(request_bodies.check_client_id(client_id), number(sequence, "sequence"), tenant_of(request))
    elif {"table", "key"} <= query.keys() and "request" not in query:
        wanted = OfKey(request_bodies.check_name(query["table"], "table"), request_bodies.check_key(query["key"]))
    else:
        raise request_bodies.bad("name a request, or a table and a key")
    node = request.app[NODE]
    await node.reads.reach("linearizable", 0)
    return local(request, await node.explainer.explain(wanted))


_TEXT: Final = {"type": "string"}
ROUTES: Final = [
    routing.get(
        "/v1/explain",
        explain,
        Scope.READ,
        {200: Explained},
        parameters=(
            Parameter("request", _TEXT, "client_id/sequence"),
            Parameter("table", _TEXT, "the table, with key"),
            Parameter("key", _TEXT, "the row's key, with table"),
        ),
        errors=(Code.NOT_FOUND, *READ),
    )
]
