"""The gate in front of an ASGI application (ASGI 3), whatever its framework; imports none.

``app = ForAsgi(app, gate)``, the gate entered for as long as the application runs, for instance in its lifespan. A
handler finds its :class:`Ticket` in ``scope["oncegate.ticket"]``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from oncegate.gateway.middleware import records
from oncegate.gateway.middleware.gate import Gate, Ticket
from oncegate.gateway.middleware.records import Incoming, Kept

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


SCOPE_TICKET: Final = "oncegate.ticket"
"""Where a handler finds its ticket in its scope; a request without a key has none."""


class ForAsgi:
    """An ASGI application that carries out each request with a key once."""

    def __init__(self, app: App, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection; anything but HTTP passes."""
        gate = self._gate
        if scope["type"] != "http" or not gate.concerns(scope["method"]):
            await self._app(scope, receive, send)
            return
        keys = _keys(scope)
        body = await _body(receive, gate.policy.body_bytes_max) if keys else b""
        if body is None:
            return  # the caller hung up before its request was whole
        if isinstance(body, Kept):
            await _send(send, body)
            return
        incoming = _incoming(scope, keys, body)
        admitted = await gate.admit(incoming)
        if isinstance(admitted, Kept):
            await _send(send, admitted)
        elif admitted is None:
            await self._app(scope, receive, send)
        else:
            await self._run(admitted, incoming, scope, receive, send)

    async def _run(self, ticket: Ticket, incoming: Incoming, scope: Scope, receive: Receive, send: Send) -> None:
        held = _Held(send, self._gate, ticket)
        # Extensions would let a response bypass this hold.
        own = {**scope, SCOPE_TICKET: ticket, "extensions": {}}
        try:
            await self._app(own, _again(incoming.body, receive), held.send)
            if not held.is_settled:
                raise RuntimeError("the application returned without a whole response")
        except BaseException:
            if not held.is_settled:
                await asyncio.shield(self._gate.give_up(ticket))
            raise


class _Held:
    """Holds a response back until it is recorded; one that is too large to be kept passes as it comes."""

    def __init__(self, send: Send, gate: Gate, ticket: Ticket) -> None:
        self._send = send
        self._gate = gate
        self._ticket = ticket
        self._start: Message = {}
        self._parts: list[bytes] = []
        self._bytes = 0
        self._is_passing = False
        self.is_settled = False

    async def send(self, message: Message) -> None:
        """Take a message of the application."""
        if message["type"] == "http.response.start":
            self._start = message
        elif message["type"] != "http.response.body":
            await self._send(message)
        else:
            await self._body(message)

    async def _body(self, message: Message) -> None:
        part = bytes(message.get("body", b""))
        is_last = not message.get("more_body", False)
        self._parts.append(part)
        self._bytes += len(part)
        if not self._is_passing and not is_last and self._bytes > self._gate.policy.response_bytes_max:
            await self._send(self._published())
            self._is_passing = True
        if is_last:
            # Record the response before the caller gets it; a background task cannot change it afterwards.
            sent = self._start.get("headers", ())  # an application may leave them out
            headers = [(bytes(n).decode("latin-1"), bytes(v).decode("latin-1")) for n, v in sent]
            body = None if self._is_passing else b"".join(self._parts)
            self.is_settled = True
            await asyncio.shield(self._gate.settle(self._ticket, Kept(self._start["status"], headers, body)))
            if not self._is_passing:
                await self._send(self._published())
                self._is_passing = True
        if self._is_passing:
            whole = b"".join(self._parts)
            self._parts.clear()
            await self._send({"type": "http.response.body", "body": whole, "more_body": not is_last})

    def _published(self) -> Message:
        name, value = self._gate.kept_header
        headers = [*self._start.get("headers", []), (name.lower().encode(), value.encode())]
        return {**self._start, "headers": headers}


def _keys(scope: Scope) -> tuple[str, ...]:
    return tuple(
        bytes(value).decode("latin-1") for name, value in scope["headers"] if bytes(name).lower() == b"idempotency-key"
    )


def _incoming(scope: Scope, keys: tuple[str, ...], body: bytes) -> Incoming:
    headers = {bytes(n).decode("latin-1").lower(): bytes(v).decode("latin-1") for n, v in scope["headers"]}
    path = bytes(scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
    query = bytes(scope.get("query_string", b"")).decode("latin-1")
    return Incoming(scope["method"].upper(), f"{path}?{query}" if query else path, headers, keys, body)


async def _body(receive: Receive, bytes_max: int) -> bytes | Kept | None:
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(bytes(message.get("body", b"")))
        size += len(parts[-1])
        if size > bytes_max:
            return records.body_too_large(bytes_max)
        more = message.get("more_body", False)
    return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that gives the body first, then the server's messages."""
    given = False

    async def give() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return give


async def _send(send: Send, kept: Kept) -> None:
    body = kept.body or b""
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in kept.headers]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": kept.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
