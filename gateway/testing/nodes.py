"""The nodes of a fake gateway: the real routes over :class:`oncegate.gateway.testing.state.SharedState`, and faults on
request.

Owns: HTTP on the loopback interface, what a fault does to a request, and whom the nodes name as leader.

``async with FakeGateway(nodes=3) as fake, Client(fake.endpoints) as client: ...``
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, Self, cast

from aiohttp import web
from aiohttp.typedefs import Middleware

from oncegate.gateway import wire
from oncegate.gateway.http.negotiation import bare_problem, local
from oncegate.gateway.http.routes.cluster import ClusterState, Member
from oncegate.gateway.http.routing import Handler
from oncegate.gateway.http.server import ROUTES, application
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.settings import MemberAddress, Settings
from oncegate.gateway.testing.state import SharedState
from oncegate.rifl.errors import OncegateError

Interceptor = Callable[[web.Request], Awaitable[web.StreamResponse | None]]

_CLUSTER: Final = "/v1/cluster"
_OF_REAL_NODES: Final = ("/metrics", "/v1/explain", "/v1/check", "/v1/cluster/")
_ROUTES: Final = tuple(route for route in ROUTES if not route.path.startswith(_OF_REAL_NODES))
_HANDLER: Final = web.RequestKey("handler", object)


class _Served:
    """What the routes ask of a :class:`oncegate.gateway.node.node.Node`, answered from the shared state."""

    live_check: Final = None

    def __init__(self, gateway: FakeGateway, node: FakeNode) -> None:
        self.settings = Settings(node=node.node_id, members=[str(node.address)])
        self.machine = gateway.machine
        self.reads = gateway.reads
        self.submit = self.attempt = gateway.submit
        self._gateway = gateway

    @property
    def leader_http(self) -> str | None:
        leader = self._gateway.leader
        return None if leader is None else leader.endpoint


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
        app.middlewares.insert(0, self._faults())
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
        """Apply the next ``count`` POSTs of writes and cut their connections instead of answering."""
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

    def _faults(self) -> Middleware:
        @web.middleware
        async def faults(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._answer(request, handler)

        return faults

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.requests[f"{request.method} {request.path}"] += 1
        request[_HANDLER] = handler
        await self._thaw.wait()
        if self.before is not None:
            answer = await self.before(request)
            if answer is not None:
                return answer
        response = self._cluster(request) if request.path == _CLUSTER else await handler(request)
        if self._lose and request.method == "POST" and request.path.endswith(("/operations", "/ranges")):
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
        state = ClusterState(self.node_id, role, leader, 1, 0, 0, 0, gateway.commit, gateway.time_ms, 0, "0", members)
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
        for node in self.nodes:
            await node.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes:
            await node.stop()
