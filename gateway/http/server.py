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
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from aiohttp import web

from oncegate.consensus.config import is_loopback
from oncegate.consensus.log.reserve import NO_SPACE_ERRNOS
from oncegate.gateway.http import range_bodies
from oncegate.gateway.http.admission import connections
from oncegate.gateway.http.admission.accept_faults import told_rarely
from oncegate.gateway.http.admission.bodies import BodyBudget
from oncegate.gateway.http.admission.desk import Desk
from oncegate.gateway.http.admission.gate import TOKENS, gate
from oncegate.gateway.http.admission.hosts import ANY, AllowedHosts
from oncegate.gateway.http.admission.parsing import ParsingThread
from oncegate.gateway.http.auth import Tokens, tokens_of
from oncegate.gateway.http.hot.connection import AiohttpSide, Connection
from oncegate.gateway.http.hot.request import Aside, HotRoutes
from oncegate.gateway.http.hot.shared import Shared
from oncegate.gateway.http.negotiation import BODIES, NODE, PARSING, RUNNING, problem
from oncegate.gateway.http.observing import ACCESS, AUDIT, REQUESTS, SPANS, observing
from oncegate.gateway.http.routes import (
    cluster,
    dashboard,
    debug,
    events,
    figures,
    flows,
    operations,
    rows,
    sessions,
    snapshots,
    tables,
    transactions,
    watch,
)
from oncegate.gateway.http.routing import Route
from oncegate.gateway.node.certificate_end import CertificateEnd
from oncegate.gateway.node.file_stamps import FilesTogether
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.settings import Settings
from oncegate.gateway.observability.access import AccessLog
from oncegate.gateway.observability.audit import DONE, Act, AuditLog
from oncegate.gateway.observability.request_times import RequestTimes
from oncegate.rifl.errors import Code, OncegateError
from oncegate.version import installing

if TYPE_CHECKING:
    from oncegate.gateway.observability.spans import Spans

SHUTDOWN_S: Final = 5.0
LOOK_S: Final = 1.0
ROOM_LOOK_S: Final = 5.0
GC_THRESHOLDS: Final = (20_000, 20, 50)
"""An entry of hundreds of operations makes thousands of objects that die young; the default looks at them each 700."""
_MODULES: Final = (
    *(operations, transactions, sessions, tables, rows, watch, events, flows),
    *(cluster, figures, snapshots, debug, dashboard),
)
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


def desk_of(node: Node, tokens: Tokens | None = None, routes: tuple[Route, ...] = ROUTES) -> Desk:
    """Return the desk of ``node``; without ``tokens`` everybody may do everything."""
    settings = node.settings
    return Desk(
        routes,
        tokens=tokens,
        requests_max=settings.tenant_requests_max,
        operations_per_s=settings.tenant_operations_per_s,
        body_bytes_max=settings.body_bytes_max,
        hosts=AllowedHosts(_names(settings, tokens)),
    )


def application(
    node: Node,
    tokens: Tokens | None = None,
    *,
    routes: tuple[Route, ...] = ROUTES,
    desk: Desk | None = None,
    audit: AuditLog | None = None,
) -> web.Application:
    """Return the HTTP application of ``node``, with a desk of its own or the one given."""
    settings = node.settings
    desk = desk_of(node, tokens, routes) if desk is None else desk
    app = web.Application(client_max_size=settings.body_bytes_max, middlewares=[observing(desk), gate(desk)])
    app[NODE] = node
    app[REQUESTS] = RequestTimes({route.handler: (route.method, route.path) for route in routes})
    if audit is not None:
        app[AUDIT] = audit
    if tokens is not None:
        app[TOKENS] = tokens
    app[connections.CONNECTIONS] = connections.ConnectionCounts()
    app[BODIES] = BodyBudget(
        settings.body_bytes_max, settings.receiving_bytes_max, settings.body_ms_max, settings.receiving_max
    )
    running_keys: set[str] = set()
    app[RUNNING] = running_keys
    app[PARSING] = parsing = ParsingThread()
    app.on_cleanup.append(parsing.close)
    for route in routes:
        for method in ("GET", "HEAD") if route.method == "GET" and route.head else (route.method,):
            app.router.add_route(method, route.path, route.handler, expect_handler=_expected)
    flows.set_up(app)
    watch.set_up(app)
    figures.set_up(app)
    snapshots.set_up(app)
    cluster.set_up(app, routes)
    return app


def _names(settings: Settings, tokens: Tokens | None) -> Iterable[str]:
    """Return the names that a node answers to; with tokens to any, as no page has one."""
    if not settings.allowed_hosts and tokens is not None:
        return [ANY]
    hosts = (member.host for member in settings.addresses.values())
    return [*settings.allowed_hosts, settings.http_address[0], *hosts]


@contextlib.asynccontextmanager
async def running(settings: Settings, make_node: MakeNode = Node, *, hot: bool = True) -> AsyncIterator[Node]:
    """Run a node with its HTTP server for as long as the context lasts; not ``hot``: aiohttp serves every request.

    Raises:
        ValueError: certificate, key or tokens are unusable, or needed and missing.
    """
    check_exposure(settings)
    tokens = tokens_of(settings)
    context = server_context(settings)
    range_bodies.warm_up()
    node = make_node(settings)
    desk = desk_of(node, tokens)
    audit = AuditLog(settings.data_dir, settings.node)
    app = application(node, tokens, desk=desk, audit=audit)
    spans = spans_of(settings)
    if spans is not None:
        app[SPANS] = spans
        app.on_cleanup.append(lambda _: asyncio.to_thread(spans.close))
    if settings.access_log:
        app[ACCESS] = AccessLog(settings.data_dir)
        app.cleanup_ctx.append(_writing)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
    patience = connections.Patience(
        connections.connections_allowed(settings.connections_max),
        settings.headers_ms_max,
        settings.idle_ms_max,
        settings.unsent_ms_max,
        settings.unsent_bytes_max,
    )
    counted = app[REQUESTS], app[connections.CONNECTIONS]
    node.figures.requests = partial(counted[0].totals, {route.handler for route in ROUTES if route.endless})
    node.figures.connections = lambda: counted[1].open
    try:
        await node.start()
        if spans is not None:
            node.proposer.on_logged = spans.logged
        await runner.setup()
        guard = connections.Guard(patience, app[connections.CONNECTIONS])
        connect = partial(
            Connection, _shared(runner, guard, HotRoutes(ROUTES, desk, node, app[RUNNING]) if hot else None)
        )
        await connections.GuardedSite(runner, *settings.http_address, guard, connect, tls=context).start()
        served = settings.http_of(settings.address)
        log.info("node %s serves %s, data in %s", settings.node, served, settings.data_dir)
        with _reloading(settings, tokens, context, audit), told_rarely(asyncio.get_running_loop()):
            yield node
    finally:
        await node.hand_over()
        await runner.cleanup()
        await node.stop()
        audit.close()


def spans_of(settings: Settings) -> Spans | None:
    """Return what makes the spans of a node, None without a collector.

    Raises:
        ValueError: there is a collector, and OpenTelemetry is not installed.
    """
    if settings.otlp_endpoint is None:
        return None
    try:
        from oncegate.gateway.observability.spans import Spans
    except ModuleNotFoundError as missing:
        raise ValueError(f"otlp_endpoint: {missing.name} is not installed; {installing('otlp')}") from None
    return Spans(settings.otlp_endpoint, settings.node, settings.cluster)


async def _writing(app: web.Application) -> AsyncIterator[None]:
    """Write the access log for as long as the application runs."""
    writer = asyncio.get_running_loop().create_task(app[ACCESS].run())
    yield
    writer.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await writer
    app[ACCESS].close()


def _shared(runner: web.AppRunner, guard: connections.Guard, routes: HotRoutes | None) -> Shared:
    server, app = runner.server, runner.app
    if server is None:
        raise RuntimeError("the runner is not set up")
    aside = Aside(app[BODIES], app[PARSING], app[REQUESTS], app.get(ACCESS), app.get(SPANS))
    return Shared(guard, aside, partial(AiohttpSide, server, asyncio.get_running_loop()), connections.refuse, routes)


@contextlib.contextmanager
def _reloading(
    settings: Settings, tokens: Tokens | None, context: ssl.SSLContext | None, audit: AuditLog
) -> Iterator[None]:
    """Look after the tokens' file and the certificate every second; read them again on SIGHUP."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None
    certificate = settings.tls_certificate
    end = None if certificate is None else CertificateEnd(certificate, "the certificate for clients")

    def load_again() -> None:
        if context is not None:
            server_context(settings)  # a first load that fails half-way would leave the context without a key
            load(context, settings)

    given = () if context is None else (certificate, settings.tls_key)
    files = FilesTogether([path for path in given if path is not None], load_again, "the certificate")

    def look() -> None:
        nonlocal timer
        timer = loop.call_later(LOOK_S, look)
        if end is not None:
            end.look(datetime.now(UTC))
        read_tokens()
        if files.look():
            audit.record_now(Act("certificate.reload", DONE))

    def read_tokens(*, anyway: bool = False) -> None:
        if tokens is not None and tokens.refresh(anyway=anyway):
            audit.record_now(Act("tokens.reload", DONE))

    def reload() -> None:
        read_tokens(anyway=True)
        if context is not None and files.load():
            audit.record_now(Act("certificate.reload", DONE))

    if tokens is not None or context is not None:
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
    """Run a node until SIGTERM or SIGINT; on a disk without room to start, wait for some, and say so."""
    connections.raise_descriptor_limit(settings.connections_max)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    while not stop.is_set():
        try:
            await _serve_until(stop, settings, make_node)
        except OSError as full:
            if full.errno not in NO_SPACE_ERRNOS or stop.is_set():
                raise
            log.error("the disk is full: node %s waits for room to start: %s", settings.node, full)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), ROOM_LOOK_S)


async def _serve_until(stop: asyncio.Event, settings: Settings, make_node: MakeNode) -> None:
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
        files = f"{settings.tls_certificate} and {settings.tls_key}"
        raise ValueError(f"{files} are no certificate with its key: {fault.reason or fault}") from None


def check_exposure(settings: Settings) -> None:
    """Refuse to serve HTTP on an address that others can reach without tokens or without TLS.

    Raises:
        ValueError: the address is no loopback address, TLS or tokens are missing, and it is not allowed explicitly.
    """
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise ValueError("tls_certificate and tls_key go together")
    host, _ = settings.http_address
    if settings.insecure_http or is_loopback(host):
        return
    missing = [] if settings.tls_certificate is not None else ["tls_certificate"]
    if settings.tokens_file is None and settings.jwt_keys_file is None:
        missing.append("tokens_file")
    if missing:
        raise ValueError(f"{host} is not a loopback address: {' and '.join(missing)} or insecure_http is required")
