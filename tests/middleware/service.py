"""A web service with the gate in front of it, the same one on aiohttp and on Starlette; also a process of its own.

``POST /orders`` is an effect that can be counted: it appends the ticket's id to a file, and writes an order once
through the gateway. The body says what else happens: ``{"hang": path}`` sleeps, the first time, until it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn
from aiohttp import web
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from oncegate import Client
from oncegate.gateway.local.ports import free_ports
from oncegate.middleware import SCOPE_TICKET, TICKET, ForAsgi, Gate, Policy, for_aiohttp

KINDS = ("aiohttp", "starlette")


class Orders:
    """The service proper: no framework, no idempotency."""

    def __init__(self, effects: Path) -> None:
        self.effects = effects
        self.waiting = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def order(self, body: bytes, ticket: Any) -> tuple[int, dict[str, Any]]:
        asked = json.loads(body or b"{}")
        with self.effects.open("a") as file:
            file.write(f"{'-' if ticket is None else ticket.id}\n")
        if "once" in asked:
            await ticket.put_once("orders", asked)
        if "hang" in asked and not (marker := Path(asked["hang"])).exists():
            marker.touch()
            await asyncio.Event().wait()
        self.waiting.set()
        await self.go_on.wait()
        if "fail" in asked:
            raise RuntimeError("asked to fail")
        return int(asked.get("status", 201)), {"order": self.count, "attempt": 0 if ticket is None else ticket.attempt}

    @property
    def count(self) -> int:
        return len(self.effects.read_text().splitlines()) if self.effects.exists() else 0


def for_framework(kind: str, orders: Orders, gate: Gate) -> Any:
    """Return the application."""
    return _aiohttp(orders, gate) if kind == "aiohttp" else _starlette(orders, gate)


def _aiohttp(orders: Orders, gate: Gate) -> web.Application:
    async def order(request: web.Request) -> web.Response:
        status, told = await orders.order(await request.read(), request.get(TICKET))
        if status == 418:
            raise web.HTTPConflict(text="asked to refuse")
        return web.json_response(
            told, status=status, headers={"Location": f"/orders/{told['order']}", "Set-Cookie": "s=1"}
        )

    async def large(request: web.Request) -> web.StreamResponse:
        await orders.order(b"", request.get(TICKET))
        stream = web.StreamResponse()
        await stream.prepare(request)
        for _ in range(20):
            await stream.write(b"x" * 1_000)
        await stream.write_eof()
        return stream

    app = web.Application(middlewares=[for_aiohttp(gate)])
    app.add_routes([web.post("/orders", order), web.put("/orders", order), web.post("/large", large)])
    return app


def _starlette(orders: Orders, gate: Gate) -> ForAsgi:
    async def order(request: Request) -> Response:
        status, told = await orders.order(await request.body(), request.scope.get(SCOPE_TICKET))
        if status == 418:
            return PlainTextResponse("asked to refuse", status_code=409)
        headers = {"Location": f"/orders/{told['order']}", "Set-Cookie": "s=1"}
        return JSONResponse(told, status_code=status, headers=headers)

    async def large(request: Request) -> Response:
        await orders.order(b"", request.scope.get(SCOPE_TICKET))

        async def parts() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b"x" * 1_000

        return StreamingResponse(parts())

    routes = [Route("/orders", order, methods=["POST", "PUT"]), Route("/large", large, methods=["POST"])]
    return ForAsgi(Starlette(routes=routes), gate)


@contextlib.asynccontextmanager
async def serving(kind: str, app: Any, port: int = 0) -> AsyncIterator[str]:
    """Serve an application on a real socket and yield its address."""
    port = port or free_ports(1)[0]
    if kind == "aiohttp":
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            await runner.cleanup()
        return
    config = uvicorn.Config(
        app, host="127.0.0.1", port=port, log_level="critical", lifespan="off", ws="none", timeout_graceful_shutdown=1
    )
    server = _Quiet(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


class _Quiet(uvicorn.Server):
    """Leaves the signals to the test."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


async def main(kind: str, port: int, gateway: str, effects: Path, *, rerun: bool) -> None:
    """Serve until killed."""
    policy = Policy(lease_ms=1_000, rerun=(lambda _: rerun))
    async with Client(gateway) as client:
        await client.declare_table("orders", kind="resident")
        async with Gate(client, policy) as gate, serving(kind, for_framework(kind, Orders(effects), gate), port):
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            await asyncio.Event().wait()


if __name__ == "__main__":
    _, kind_, port_, gateway_, effects_, rerun_ = sys.argv
    asyncio.run(main(kind_, int(port_), gateway_, Path(effects_), rerun=rerun_ == "rerun"))
