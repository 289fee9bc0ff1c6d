"""The HTTP server of a node.

Owns: the application, its routes and its life. Limits of the transport (body size, idle connections) are here;
everything else is behind :mod:`gateway.exchange`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web

from gateway import edge_range
from gateway.config import Settings
from gateway.exchange import NODE, Handler, problem
from gateway.node import Node
from gateway.routes import cluster, events, explain, flows, members, operations, rows, sessions, tables
from rifl.errors import Code, OncegateError

KEEP_ALIVE_S: Final = 75.0
SHUTDOWN_S: Final = 5.0
GC_THRESHOLDS: Final = (20_000, 20, 50)
"""An entry of hundreds of operations makes thousands of objects that die young; the default looks at them each 700."""
log = logging.getLogger(__name__)


@web.middleware
async def _unrouted(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn aiohttp's own refusals (no route, no such method) into problems."""
    try:
        return await handler(request)
    except web.HTTPException as fault:
        code = {404: Code.NOT_FOUND, 413: Code.PAYLOAD_TOO_LARGE}.get(fault.status, Code.BAD_REQUEST)
        if fault.status < 400:
            raise
        return problem(request, OncegateError(code, fault.reason))


def application(node: Node) -> web.Application:
    """Return the HTTP application of ``node``."""
    app = web.Application(client_max_size=node.settings.body_bytes_max, middlewares=[_unrouted])
    app[NODE] = node
    for module in (operations, sessions, tables, rows, events, flows, cluster, members, explain):
        app.add_routes(module.ROUTES)
    flows.set_up(app)
    rows.set_up(app)
    return app


@contextlib.asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Node]:
    """Run a node with its HTTP server for as long as the context lasts."""
    edge_range.warm_up()
    node = Node(settings)
    runner = web.AppRunner(
        application(node), access_log=None, keepalive_timeout=KEEP_ALIVE_S, shutdown_timeout=SHUTDOWN_S
    )
    try:
        await node.start()
        await runner.setup()
        address = settings.address
        await web.TCPSite(runner, address.host, address.http_port, backlog=1024).start()
        log.info("node %s serves %s, data in %s", settings.node, address.http, settings.data_dir)
        yield node
    finally:
        await node.hand_over()
        await runner.cleanup()
        await node.stop()


async def serve(settings: Settings) -> None:
    """Run a node until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running(settings):
        # What lives now lives as long as the process: keep the collector from walking it again and again.
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        await stop.wait()
        log.info("node %s stops", settings.node)
