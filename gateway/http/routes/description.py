"""``GET /openapi.json``: the served routes, for machines."""

from __future__ import annotations

from functools import cached_property
from importlib.metadata import version
from typing import Final

from aiohttp import web

from oncegate.gateway import wire
from oncegate.gateway.http import openapi, routing
from oncegate.gateway.http.routing import Raw, Route


class _Description:
    """The description of routes, written once, when it is first asked for."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        self._routes = routes

    @cached_property
    def text(self) -> bytes:
        return openapi.document(self._routes, version("oncegate"))


_DESCRIPTION: Final = web.AppKey("openapi", _Description)


async def describe(request: web.Request) -> web.StreamResponse:
    """``GET /openapi.json``: this API as OpenAPI 3.1."""
    return web.Response(body=request.app[_DESCRIPTION].text, content_type=wire.JSON)


def set_up(app: web.Application, routes: tuple[Route, ...]) -> None:
    """Prepare the description of ``routes``."""
    app[_DESCRIPTION] = _Description(routes)


ROUTES: Final = [routing.get("/openapi.json", describe, None, {200: Raw((wire.JSON,), "an OpenAPI 3.1 document")})]
