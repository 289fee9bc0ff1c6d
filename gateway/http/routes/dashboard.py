"""``/dashboard``: the page for operators, its style and its script.

Open to everyone: they hold nothing of the cluster. What the page shows it asks as any client does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiohttp import hdrs, web

from oncegate.gateway.http.control_routes import Routes
from oncegate.gateway.http.dashboard import page as files
from oncegate.gateway.http.dashboard.page import HEADERS, Asset
from oncegate.gateway.http.exchange import is_current
from oncegate.gateway.http.negotiation import headers_of
from oncegate.gateway.http.routing import IF_NONE_MATCH, Raw

ROUTES: Final = Routes("dashboard")


def _sent(request: web.Request, made: Callable[[], Asset]) -> web.Response:
    asset = made()
    headers = {**HEADERS, hdrs.ETAG: f'"{asset.etag}"'}
    if is_current(headers_of(request), asset.etag):
        return web.Response(status=304, headers=headers)
    return web.Response(body=asset.body, content_type=asset.media, charset="utf-8", headers=headers)


_GIVEN: Final = {"parameters": (IF_NONE_MATCH,), "needs_state": False}


@ROUTES.add("GET", "/dashboard", None, {200: Raw(("text/html",), "the page"), 304: None}, **_GIVEN)
async def page(request: web.Request) -> web.StreamResponse:
    """``GET /dashboard``: cluster, flows, tables, sessions and histories in a browser."""
    return _sent(request, files.page)


@ROUTES.add("GET", "/dashboard/", None, {308: None}, needs_state=False)
async def slash(request: web.Request) -> web.StreamResponse:
    """``GET /dashboard/``: leads to the page, also below a path that a proxy puts before it."""
    return web.Response(status=308, headers={**HEADERS, hdrs.LOCATION: "../dashboard"})


@ROUTES.add("GET", "/dashboard/page.css", None, {200: Raw(("text/css",), "its style"), 304: None}, **_GIVEN)
async def style(request: web.Request) -> web.StreamResponse:
    """``GET /dashboard/page.css``: its style."""
    return _sent(request, files.style)


@ROUTES.add("GET", "/dashboard/page.js", None, {200: Raw(("text/javascript",), "its script"), 304: None}, **_GIVEN)
async def script(request: web.Request) -> web.StreamResponse:
    """``GET /dashboard/page.js``: its script."""
    return _sent(request, files.script)
