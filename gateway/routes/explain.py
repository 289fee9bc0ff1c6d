"""``/v1/explain``: the timeline of a key or a request."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from gateway import edge
from gateway.exchange import NODE, local, number, typed
from gateway.explain.search import OfKey, OfRequest, Wanted


@typed
async def explain(request: web.Request) -> web.StreamResponse:
    """``GET /v1/explain?table=&key=`` or ``?request=client_id/sequence``, after everything acknowledged before it."""
    query = request.query
    wanted: Wanted
    if "request" in query and not {"table", "key"} & query.keys():
        client_id, _, sequence = query["request"].partition("/")
        wanted = OfRequest(edge.check_client_id(client_id), number(sequence, "sequence"))
    elif {"table", "key"} <= query.keys() and "request" not in query:
        wanted = OfKey(edge.check_name(query["table"], "table"), edge.check_key(query["key"]))
    else:
        raise edge.bad("ask for a request, or for a table and a key")
    node = request.app[NODE]
    await node.reads.reach("linearizable", 0)
    return local(request, await node.explainer.explain(wanted))


ROUTES: Final = [web.get("/v1/explain", explain)]
