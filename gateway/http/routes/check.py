"""``/v1/check``: the verdict of the check of live traffic."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from oncegate.gateway import wire
from oncegate.gateway.http import routing
from oncegate.gateway.http.identity import Scope
from oncegate.gateway.http.negotiation import NODE, local, typed
from oncegate.rifl.errors import Code, OncegateError


@typed
async def check(request: web.Request) -> web.StreamResponse:
    """``GET /v1/check``: this node's verdict, and one on the newest sampled operations of all members together."""
    live = request.app[NODE].live_check
    if live is None:
        raise OncegateError(Code.NOT_FOUND, "live_check_share is 0: nothing is sampled")
    return local(request, await live.report())


ROUTES: Final = [routing.get("/v1/check", check, Scope.READ, {200: wire.LiveCheck}, errors=(Code.NOT_FOUND,))]
