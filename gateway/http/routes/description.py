"""``GET /openapi.json``: what is served here, for machines."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

from aiohttp import web

from oncegate.gateway import wire
from oncegate.gateway.http import openapi, routing
from oncegate.gateway.http.routing import Raw, Route

_DOCUMENT: Final = web.AppKey("openapi", bytes)


async def describe(request: web.Request) -> web.StreamResponse:
    """``GET /openapi.json``: this API as OpenAPI 3.1."""
    return web.Response(body=request.app[_DOCUMENT], content_type=wire.JSON)


def set_up(app: web.Application, routes: tuple[Route, ...]) -> None:
    """Write the description of ``routes`` once."""
    app[_DOCUMENT] = openapi.document(routes, version("oncegate"))


ROUTES: Final = [routing.get("/openapi.json", describe, None, {200: Raw((wire.JSON,), "an OpenAPI 3.1 document")})]
