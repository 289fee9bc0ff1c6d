"""The nodes of a fake gateway: the real routes over :class:`oncegate.gateway.testing.state.SharedState`, and faults on
request; also in a thread of its own, for tests that have no event loop, or must not share theirs.

Owns: HTTP on the loopback interface, what a fault does to a request, and whom the nodes name as leader. The pytest
fixture ``oncegate_cluster`` (:mod:`oncegate.gateway.pytest_plugin`) is a :class:`FakeCluster`.

``async with FakeGateway(nodes=3) as fake, Client(fake.endpoints) as client: ...``
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Self, cast

from aiohttp import web

from oncegate.gateway import wire
from oncegate.gateway.client.sync_crossing import LoopThread
from oncegate.gateway.http import range_bodies
from oncegate.gateway.http.negotiation import bare_problem, local
from oncegate.gateway.http.routes.cluster import ClusterState, Member
from oncegate.gateway.http.routing import Handler
from oncegate.gateway.http.server import ROUTES, application
from oncegate.gateway.machine.tables import TableKind
from oncegate.gateway.node.consumer_watch import ConsumerWatch
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.settings import MemberAddress, Settings
from oncegate.gateway.testing.state import Applied, SharedState
from oncegate.rifl.errors import OncegateError

Interceptor = Callable[[web.Request], Awaitable[web.StreamResponse | None]]

_CLUSTER: Final = "/v1/cluster"
_OF_REAL_NODES: Final = (
    "/metrics",
    "/v1/explain",
    "/v1/check",
    "/v1/cluster/",
    "/v1/snapshots",
    "/v1/debug",
    "/dashboard",
    "/v1/token",
)
_ROUTES: Final = tuple(route for route in ROUTES if not route.path.startswith(_OF_REAL_NODES))
_HANDLER: Final = web.RequestKey("handler", object)


def _writes(request: web.Request) -> bool:
    of_rows = "/rows/" in request.path and request.method != "GET"
    many = ("/operations", "/ranges", "/transactions", "/events")
    return of_rows or (request.method == "POST" and request.path.endswith(many))


class _Served:
    """What the routes ask of a :class:`oncegate.gateway.node.node.Node`, answered from the shared state."""

    live_check: Final = None
    damaged: Final = False

    def __init__(self, gateway: FakeGateway, node: FakeNode) -> None:
        self.settings = Settings(node=node.node_id, members=[str(node.address)])
        self.machine = gateway.machine
        self.reads = gateway.reads
        self.watching = gateway.watching
        self.row_turns = gateway.row_turns
        self.submit = gateway.submit
        self.attempt = gateway.attempt
        self.consumers = ConsumerWatch(gateway.machine, lambda: gateway.time_ms)
        self._gateway = gateway

    def check_sound(self) -> None:
        """Its state is in memory, and sound."""

    @property
    def has_followers(self) -> bool:
        leader, nodes = self._gateway.leader, self._gateway.nodes
        leads = leader is not None and leader.node_id == self.settings.node
        return leads and any(node.running for node in nodes if node is not leader)

    @property
    def leader_http(self) -> str | None:
        return None if self._gateway.leader is None else self._gateway.leader.endpoint


class FakeNode:
    """One node: an HTTP server on a free port of the loopback interface."""

    def __init__(self, gateway: FakeGateway, index: int) -> None:
        self._gateway = gateway
        self._runner: web.AppRunner | None = None
        self._thaw = asyncio.Event()
        self._thaw.set()
        self._port = 0
        self._lose = 0
        self.index = index
        self.node_id = f"n{index}"
        self.requests: Counter[str] = Counter()
        """Requests that arrived, by method and path."""
        self.before: Interceptor | None = None
        """Called with each request before it is served; a response from it is the answer."""
        self.after: Callable[[web.Request], Awaitable[None]] | None = None
        """Called when a request has been applied and before it is answered; raising loses the answer."""

    @property
    def running(self) -> bool:
        """Whether it listens."""
        return self._runner is not None

    @property
    def address(self) -> MemberAddress:
        """Where it listens; peers do not talk, so their port is that of HTTP."""
        return MemberAddress(self.node_id, "127.0.0.1", self._port, self._port)

    @property
    def endpoint(self) -> str:
        """The node's address."""
        return self.address.http

    async def start(self) -> None:
        """Listen; after a stop on the same port as before."""
        listener = socket.create_server(("127.0.0.1", self._port))
        self._port = listener.getsockname()[1]
        app = application(cast(Node, _Served(self._gateway, self)), routes=_ROUTES)
        app.middlewares.insert(0, self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.SockSite(self._runner, listener).start()

    async def stop(self) -> None:
        """Refuse connections from now on, and cut those there are."""
        runner, self._runner = self._runner, None
        self._thaw.set()
        if runner is not None:
            await runner.cleanup()

    def freeze(self) -> None:
        """Accept requests and answer none of them, as a stopped process does."""
        self._thaw.clear()

    def thaw(self) -> None:
        """Serve again, beginning with what arrived meanwhile."""
        self._thaw.set()

    def lose_answers(self, count: int) -> None:
        """Apply the next ``count`` requests that write and cut their connections instead of answering."""
        self._lose = count

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Serve a request as the node does; for interceptors that change its answer."""
        return await cast(Handler, request[_HANDLER])(request)

    def problem(self, refusal: OncegateError) -> web.Response:
        """Return the answer that carries a refusal."""
        response = bare_problem(refusal)
        leader = self._gateway.leader
        if leader is not None:
            response.headers[wire.H_LEADER] = leader.endpoint
        return response

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.requests[f"{request.method} {request.path}"] += 1
        request[_HANDLER] = handler
        await self._thaw.wait()
        if self.before is not None:
            answer = await self.before(request)
            if answer is not None:
                return answer
        response = self._cluster(request) if request.path == _CLUSTER else await handler(request)
        if self._lose and _writes(request):
            self._lose -= 1
            if request.transport is not None:
                request.transport.abort()
        if self.after is not None:
            await self.after(request)
        return response

    def _cluster(self, request: web.Request) -> web.StreamResponse:
        gateway = self._gateway
        members = []
        for node in gateway.nodes:
            role = "leader" if node is gateway.leader else "follower"
            members.append(Member(node.node_id, node.endpoint, "", role, 0))
        leader = None if gateway.leader is None else gateway.leader.node_id
        role = members[self.index].role
        identity, origin = gateway.machine.identity, gateway.machine.origin.identity
        state = ClusterState(self.node_id, role, leader, 1, 0, 0, 0, gateway.commit, gateway.time_ms, 0, "0", members)
        state.identity, state.origin = identity, origin
        return local(request, state)


class FakeGateway(SharedState):
    """Nodes with one state, which is at hand for tests to look at and change; use as ``async with``.

    Attributes:
        nodes: the nodes.
        leader: which node all of them name as leader, or None.
    """

    def __init__(self, *, nodes: int = 1) -> None:
        super().__init__()
        self.nodes = [FakeNode(self, index) for index in range(nodes)]
        self.leader: FakeNode | None = self.nodes[0]

    def lead(self, node: FakeNode | None) -> None:
        """Name a node as leader from now on, or none."""
        self.leader = node

    @property
    def endpoints(self) -> list[str]:
        """Addresses of all nodes."""
        return [node.endpoint for node in self.nodes]

    async def __aenter__(self) -> Self:
        range_bodies.warm_up()
        for node in self.nodes:
            await node.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes:
            await node.stop()


class FakeCluster:
    """Nodes with one state on a fake clock; use as ``with``.

    Cluster time stands still: leases end when :meth:`advance` says so, never because a test is slow.

    Args:
        nodes: how many; the first leads.
    """

    def __init__(self, nodes: int = 3) -> None:
        self._count = nodes
        self._thread: LoopThread
        self.gateway: FakeGateway
        """All of it, for what has no method here. It lives in the other thread: look, and leave changes to methods."""

    def __enter__(self) -> Self:
        self._thread = LoopThread("oncegate-fake")
        self.gateway = FakeGateway(nodes=self._count)
        self._thread.run(self.gateway.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._thread.run(self.gateway.__aexit__(None, None, None))
        finally:
            self._thread.stop()

    @property
    def endpoints(self) -> list[str]:
        """Addresses of all nodes."""
        return self.gateway.endpoints

    @property
    def executed(self) -> list[Applied]:
        """Every execution so far, in order: a write that was applied twice stands there twice."""
        return list(self.gateway.executed)

    def declare(self, table: str, kind: TableKind = "resident") -> None:
        """Declare a table, as :meth:`oncegate.gateway.client.Client.declare_table` would."""
        self._do(lambda: self.gateway.declare(table, kind))

    def value(self, table: str, key: str) -> Any:
        """Return a row's value; raises NOT_FOUND without one."""
        return self._thread.run(self.gateway.value(table, key))

    def advance(self, seconds: float) -> None:
        """Move the cluster's clock on; what is due ends: leases that nothing renewed, with the rows bound to their
        sessions, rows whose time is over, batches that are old enough.
        """
        self._do(lambda: self.gateway.advance(seconds))

    def stop(self, node: int = 0) -> None:
        """Stop a node: connections are cut and refused. The next one that runs leads."""
        gateway = self.gateway
        self._thread.run(gateway.nodes[node].stop())
        self._do(lambda: gateway.lead(next((other for other in gateway.nodes if other.running), None)))

    def start(self, node: int = 0) -> None:
        """Start a stopped node on the port it had."""
        self._thread.run(self.gateway.nodes[node].start())
        if self.gateway.leader is None:
            self._do(lambda: self.gateway.lead(self.gateway.nodes[node]))

    def freeze(self, node: int = 0) -> None:
        """Let a node take requests and answer none."""
        self._do(self.gateway.nodes[node].freeze)

    def thaw(self, node: int = 0) -> None:
        """Let a frozen node answer again, beginning with what has arrived."""
        self._do(self.gateway.nodes[node].thaw)

    def lose_answers(self, count: int = 1, node: int = 0) -> None:
        """Apply the next ``count`` requests that write and cut the connection instead of answering them."""
        self._do(lambda: self.gateway.nodes[node].lose_answers(count))

    def _do(self, what: Callable[[], object]) -> None:
        async def done() -> None:
            what()

        self._thread.run(done())
