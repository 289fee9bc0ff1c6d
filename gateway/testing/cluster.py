"""A gateway in the test's own process, for tests of applications that use the SDK.

Owns: :class:`FakeGateway`: the HTTP contract over :mod:`oncegate.gateway.testing.fake_state`, which has the real apply
rule. Several nodes share one state, as a cluster does; nothing is durable or replicated. Faults are asked for
explicitly.

``async with FakeGateway(nodes=3) as fake, Client(fake.endpoints) as client: ...``
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import web

from oncegate.gateway import wire
from oncegate.gateway.testing.fake_state import FakeState
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import parse_client_id

Interceptor = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


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
    def endpoint(self) -> str:
        """The node's address."""
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Listen; after a stop on the same port as before."""
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._port = self._runner.addresses[0][1]

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

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.requests[f"{request.method} {request.path}"] += 1
        body = await request.read()
        await self._thaw.wait()
        if self.before is not None:
            answer = await self.before(request)
            if answer is not None:
                return answer
        try:
            response = self._gateway.serve(request, body)
        except OncegateError as refusal:
            response = self.problem(refusal)
        if self._lose and request.method == "POST" and request.path.endswith(("/operations", "/ranges")):
            self._lose -= 1
            if request.transport is not None:
                request.transport.abort()
        if self.after is not None:
            await self.after(request)
        leader = self._gateway.leader
        if leader is not None:
            response.headers[wire.H_LEADER] = leader.endpoint
        response.headers[wire.H_COMMIT] = str(self._gateway.commit)
        if request.query.get("consistency") == "stale":
            response.headers[wire.H_AGE_MS] = "0"  # the nodes share one state
        return response

    def problem(self, refusal: OncegateError) -> web.Response:
        """Return the answer that carries a refusal."""
        body = wire.Problem(
            type=f"urn:oncegate:error:{refusal.code}",
            title=refusal.title,
            status=refusal.status,
            code=refusal.code,
            outcome=refusal.outcome,
            retryable=refusal.retryable,
            detail=refusal.detail,
            retry_after_ms=refusal.retry_after_ms,
        )
        leader = self._gateway.leader
        headers = {} if leader is None else {wire.H_LEADER: leader.endpoint}
        return web.Response(
            body=msgspec.json.encode(body), status=refusal.status, content_type=wire.PROBLEM, headers=headers
        )


class FakeGateway(FakeState):
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

    def serve(self, request: web.Request, body: bytes) -> web.Response:
        """Answer one request.

        Raises:
            OncegateError: the refusal, to be answered as a problem.
        """
        match [request.method, *request.path.strip("/").split("/")]:
            case ["POST", "v1", "operations"]:
                packed = request.content_type == wire.MSGPACK
                decode = msgspec.msgpack.decode if packed else msgspec.json.decode
                try:
                    operations = decode(body, type=wire.OperationsRequest)
                except msgspec.MsgspecError as malformed:
                    raise OncegateError(Code.BAD_REQUEST, str(malformed)) from malformed
                return _packed(self.operate(operations))
            case ["POST", "v1", "tables", table, "ranges"]:
                return _packed(self._range(table, request.headers, body))
            case ["POST", "v1", "sessions"]:
                opened, created = self.open(msgspec.json.decode(body, type=wire.OpenSession))
                return _json(opened, status=201 if created else 200)
            case ["POST", "v1", "sessions", client_id, "renew"]:
                return _json(self.renew(client_id, msgspec.json.decode(body, type=wire.RenewSession).epoch))
            case ["POST", "v1", "sessions", client_id, "take-over"]:
                return _json(self.take_over(client_id, msgspec.json.decode(body, type=wire.TakeOver).nonce))
            case ["DELETE", "v1", "sessions", client_id]:
                self.sessions.pop(self.session(client_id).client_id)
                return web.Response(status=204)
            case ["PUT", "v1", "tables", table]:
                kind = msgspec.json.decode(body, type=wire.DeclareTable).kind
                if self.tables.setdefault(table, kind) != kind:
                    raise OncegateError(Code.CONFLICT)
                return _json(wire.TableState(table, kind, 0, 0))
            case ["GET", "v1", "tables", table]:
                return _json(wire.TableState(table, self.kind(table), 0, 0))
            case ["GET", "v1", "tables", table, "rows"]:
                return self._page(table, request.query)
            case ["GET", "v1", "tables", table, "rows", *_]:
                key = request.path.split("/", 5)[5]
                found = self.rows.get((table, key))
                if found is None:
                    raise OncegateError(Code.NOT_FOUND, "no such row")
                return _json(wire.RowState(key, found[0], found[1], self.commit))
            case ["GET", "v1", "requests", client_id, sequence]:
                return _json(self.request(parse_client_id(client_id), int(sequence)))
            case ["POST", "v1", "requests", client_id, sequence, "resolve"]:
                return _json(
                    self.resolve(parse_client_id(client_id), int(sequence), msgspec.json.decode(body or b"{}"))
                )
            case ["PUT" | "GET", "v1", "flows", flow]:
                if request.method == "PUT":
                    self.flows[flow] = msgspec.json.decode(body)["source"]
                if flow not in self.flows:
                    raise OncegateError(Code.NOT_FOUND)
                return _json(wire.FlowState(flow, self.flows[flow], 0, 0, 0, 0, 0, 0, {}))
            case ["GET", "v1", "cluster"]:
                return _json(self._cluster())
            case _:
                raise OncegateError(Code.NOT_FOUND, "no such route")

    def _range(self, table: str, headers: Mapping[str, str], body: bytes) -> wire.RangeResponse:
        return self.put_range(
            table,
            headers[wire.H_CLIENT],
            int(headers[wire.H_EPOCH]),
            int(headers[wire.H_FIRST_SEQUENCE]),
            int(headers[wire.H_FIRST_INCOMPLETE]),
            msgspec.msgpack.decode(body, type=wire.RangeBody),
        )

    def _page(self, table: str, query: Any) -> web.Response:
        self.kind(table)
        prefix, after, limit = query.get("prefix", ""), query.get("after", ""), int(query.get("limit", "100"))
        keys = sorted(key for owner, key in self.rows if owner == table and key.startswith(prefix) and key > after)
        rows = [wire.RowState(key, *self.rows[table, key], self.commit) for key in keys[:limit]]
        return _json(wire.RowPage(rows, rows[-1].key if len(keys) > limit else None, self.commit))

    def _cluster(self) -> wire.ClusterState:
        members = [
            wire.Member(f"n{node.index}", node.endpoint, "", "leader" if node is self.leader else "follower", 0)
            for node in self.nodes
        ]
        leader = None if self.leader is None else f"n{self.leader.index}"
        return wire.ClusterState("n0", "leader", leader, 1, 0, 0, 0, self.commit, 0, 0, "0", members)


def _packed(body: Any) -> web.Response:
    return web.Response(body=msgspec.msgpack.encode(body), content_type=wire.MSGPACK)


def _json(body: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type=wire.JSON)
