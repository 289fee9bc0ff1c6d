"""The HTTP server of a node.

Owns: the application, its routes and its life, its TLS, and where a node may listen without.
:mod:`oncegate.gateway.http.admission.connections` bounds connections, :mod:`oncegate.gateway.http.admission.gate`
checks every request, and :mod:`oncegate.gateway.http.negotiation` decodes bodies and encodes answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

from aiohttp import web

from oncegate.consensus.config import is_loopback
from oncegate.gateway.http import range_bodies
from oncegate.gateway.http.admission import connections
from oncegate.gateway.http.admission.bodies import BodyBudget
from oncegate.gateway.http.admission.gate import Desk, gate
from oncegate.gateway.http.auth import Tokens
from oncegate.gateway.http.negotiation import BODIES, NODE, problem
from oncegate.gateway.http.routes import cluster, events, flows, operations, rows, sessions, tables
from oncegate.gateway.http.routing import Route
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.settings import Settings
from oncegate.rifl.errors import Code, OncegateError

SHUTDOWN_S: Final = 5.0
TOKENS_LOOK_S: Final = 1.0
GC_THRESHOLDS: Final = (20_000, 20, 50)
"""An entry of hundreds of operations makes thousands of objects that die young; the default looks at them each 700."""
_MODULES: Final = (operations, sessions, tables, rows, events, flows, cluster)
ROUTES: Final[tuple[Route, ...]] = tuple(route for module in _MODULES for route in module.ROUTES)
"""Everything that is served."""
MakeNode = Callable[[Settings], Node]
log = logging.getLogger(__name__)


async def _expected(request: web.Request) -> web.StreamResponse | None:
    """Answer ``Expect: 100-continue`` (RFC 9110 §10.1.1): a body that is too large is refused before it is sent."""
    if request.headers.get("Expect", "").lower() != "100-continue":
        return problem(request, OncegateError(Code.BAD_REQUEST, "only Expect: 100-continue is supported"))
    if (request.content_length or 0) > request.client_max_size:
        return problem(
            request, OncegateError(Code.PAYLOAD_TOO_LARGE, f"the body is over {request.client_max_size} bytes")
        )
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # the bytes sent so far are not the answer
    return None


def application(node: Node, tokens: Tokens | None = None, *, routes: tuple[Route, ...] = ROUTES) -> web.Application:
    """Return the HTTP application of ``node``; without ``tokens`` everybody may do everything."""
    settings = node.settings
    desk = Desk(
        routes,
        tokens=tokens,
        requests_max=settings.tenant_requests_max,
        operations_per_s=settings.tenant_operations_per_s,
    )
    app = web.Application(client_max_size=settings.body_bytes_max, middlewares=[gate(desk)])
    app[NODE] = node
    app[connections.CONNECTIONS] = connections.ConnectionCounts()
    app[BODIES] = BodyBudget(settings.body_bytes_max, settings.receiving_bytes_max, settings.body_ms_max)
    for route in routes:
        for method in ("GET", "HEAD") if route.method == "GET" and route.head else (route.method,):
            app.router.add_route(method, route.path, route.handler, expect_handler=_expected)
    flows.set_up(app)
    rows.set_up(app)
    cluster.set_up(app, routes)
    return app


@contextlib.asynccontextmanager
async def running(settings: Settings, make_node: MakeNode = Node) -> AsyncIterator[Node]:
    """Run a node with its HTTP server for as long as the context lasts.

    Raises:
        ValueError: certificate, key or tokens are unusable, or needed and missing.
    """
    check_exposure(settings)
    tokens = None if settings.tokens_file is None else Tokens(settings.tokens_file)
    context = server_context(settings)
    range_bodies.warm_up()
    node = make_node(settings)
    app = application(node, tokens)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
    patience = connections.Patience(
        connections.connections_allowed(settings.connections_max),
        settings.headers_ms_max,
        settings.idle_ms_max,
        settings.unsent_ms_max,
        settings.unsent_bytes_max,
    )
    try:
        await node.start()
        await runner.setup()
        address = settings.address
        await connections.GuardedSite(
            runner, address.host, address.http_port, patience, app[connections.CONNECTIONS], tls=context
        ).start()
        log.info("node %s serves %s, data in %s", settings.node, settings.http_of(address), settings.data_dir)
        with _reloading(settings, tokens, context):
            yield node
    finally:
        await node.hand_over()
        await runner.cleanup()
        await node.stop()


@contextlib.contextmanager
def _reloading(settings: Settings, tokens: Tokens | None, context: ssl.SSLContext | None) -> Iterator[None]:
    """Look after the tokens' file every second; read it and the certificate again on SIGHUP."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal timer
        if tokens is not None:
            tokens.refresh()
            timer = loop.call_later(TOKENS_LOOK_S, look)

    def reload() -> None:
        if tokens is not None:
            tokens.refresh(anyway=True)
        if context is not None:
            try:
                load(context, settings)
            except (OSError, ValueError) as fault:
                log.error("the certificate stays as it was: %s", fault)

    look()
    with contextlib.suppress(RuntimeError, ValueError):  # not the main thread: no signals there
        loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield
    finally:
        with contextlib.suppress(RuntimeError, ValueError):
            loop.remove_signal_handler(signal.SIGHUP)
        if timer is not None:
            timer.cancel()


async def serve(settings: Settings, make_node: MakeNode = Node) -> None:
    """Run a node until SIGTERM or SIGINT."""
    connections.raise_descriptor_limit(settings.connections_max)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running(settings, make_node):
        # Objects that exist now live as long as the process: keep the garbage collector from visiting them again and
        # again.
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        await stop.wait()
        log.info("node %s stops", settings.node)


def server_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context of the settings, None without certificate.

    Raises ValueError if certificate and key do not belong together or a file holds neither, OSError if one cannot be
    read.
    """
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load(context, settings)
    return context


def load(context: ssl.SSLContext, settings: Settings) -> None:
    """Load certificate and key; connections made from now on use them."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except ssl.SSLError as fault:
        raise ValueError(f"{settings.tls_certificate} and {settings.tls_key}: {fault.reason or fault}") from None


def check_exposure(settings: Settings) -> None:
    """Refuse to serve HTTP on an address that others can reach without tokens or without TLS.

    Raises:
        ValueError: the address is no loopback address, TLS or tokens are missing, and it is not allowed explicitly.
    """
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise ValueError("tls_certificate and tls_key go together")
    host = settings.address.host
    if settings.insecure_http or is_loopback(host):
        return
    missing = [
        name for name, path in (("tls_certificate", settings.tls_certificate), ("tokens_file", settings.tokens_file))
        if path is None
    ]  # fmt: skip
    if missing:
        raise ValueError(f"{host} is not a loopback address: {' and '.join(missing)} or insecure_http is required")
