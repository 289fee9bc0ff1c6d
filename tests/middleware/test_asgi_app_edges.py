"""What passes between an ASGI server, a gate and an application (``middleware.asgi_app``), with a gate that notes."""

from __future__ import annotations

from typing import Any

import pytest

from oncegate.gateway.middleware.asgi_app import SCOPE_TICKET, ForAsgi, Message
from oncegate.gateway.middleware.records import IN_PROGRESS, OUTCOME_UNKNOWN, Incoming, Kept
from oncegate.middleware import Policy

KEY = (b"idempotency-KEY", b"k")
TICKET: Any = object()


class NotingGate:
    """Admits each request, or answers it."""

    def __init__(self, decided: Any = TICKET) -> None:
        self.policy = Policy(body_bytes_max=10)
        self.kept_header = ("Idempotency-Key-Kept", "5")
        self.decided = decided
        self.asked: list[Incoming] = []
        self.settled: list[Kept] = []
        self.given_up = 0

    def concerns(self, method: str) -> bool:
        return method.upper() in ("POST", "PATCH")

    async def admit(self, request: Incoming) -> Any:
        self.asked.append(request)
        return self.decided

    async def settle(self, ticket: Any, response: Kept) -> None:
        assert ticket is TICKET
        self.settled.append(response)

    async def give_up(self, ticket: Any) -> None:
        assert ticket is TICKET
        self.given_up += 1


class Server:
    """One connection of a server, and an application behind the gate that gets what it says and answers 200."""

    def __init__(self, gate: Any, scope: dict[str, Any], *messages: Message) -> None:
        self.scope, self.messages = scope, [*messages]
        self.app = ForAsgi(self.application, gate)
        self.got: list[Message] = []
        self.sent: list[Message] = []
        self.runs: list[tuple[Any, Any, Any]] = []

    async def receive(self) -> Message:
        return self.messages.pop(0)

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def application(self, scope: Any, receive: Any, send: Any) -> None:
        self.runs.append((scope, receive, send))
        if scope["type"] == "http":
            self.got = [await receive() for _ in range(2)]
            await send({"type": "http.response.debug", "info": 1})
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"ok"})

    async def serve(self) -> None:
        await self.app(self.scope, self.receive, self.send)


def request(**other: Any) -> dict[str, Any]:
    return {"type": "http", "method": "POST", "path": "/a b", "query_string": b"", "headers": [KEY], **other}


BODY: Message = {"type": "http.request", "body": b"body", "more_body": False}
GONE: Message = {"type": "http.disconnect"}


@pytest.mark.parametrize("scope", [{"type": "lifespan"}, {"type": "websocket", "path": "/"}, request(method="GET")])
async def test_what_is_no_request_with_a_key_passes_as_it_is(scope: dict[str, Any]) -> None:
    gate = NotingGate()
    server = Server(gate, scope, BODY, GONE)
    await server.serve()
    ((told, receive, send),) = server.runs
    assert told is scope
    assert (receive, send) == (server.receive, server.send)
    assert not gate.asked


@pytest.mark.parametrize(
    ("scope", "asked"),
    [
        (request(), ("POST", "/a b")),
        (request(method="patch"), ("PATCH", "/a b")),
        (request(query_string=b"x=1"), ("POST", "/a b?x=1")),
        (request(raw_path=b"/a%20b"), ("POST", "/a%20b")),
        (request(raw_path=b"/a%20b", query_string=b"y"), ("POST", "/a%20b?y")),
        (request(path="/\xe4", raw_path=None), ("POST", "/\xe4".encode().decode("latin-1"))),
        ({key: value for key, value in request().items() if key != "query_string"}, ("POST", "/a b")),
    ],
)
async def test_gate_is_asked_about_method_path_query_keys_and_body_as_they_were_sent(
    scope: dict[str, Any], asked: tuple[str, str]
) -> None:
    """A retry to another path, or with another query, is another request."""
    gate = NotingGate()
    parts: list[Message] = [{"type": "http.request", "body": b"bo", "more_body": True}, {**BODY, "body": b"dy"}]
    scope["headers"] = [(b"X-A", b"1"), KEY, (b"x-a", b"2"), (b"Idempotency-Key", b"l")]
    server = Server(gate, scope, *parts, GONE)
    await server.serve()
    (incoming,) = gate.asked
    assert (incoming.method, incoming.path) == asked
    assert (incoming.keys, incoming.body) == (("k", "l"), b"body")
    assert incoming.headers == {"x-a": "2", "idempotency-key": "l"}


async def test_application_gets_the_body_once_and_then_what_the_server_says_and_other_messages_pass() -> None:
    gate = NotingGate()
    server = Server(gate, request(), BODY, GONE)
    await server.serve()
    assert server.got == [BODY, GONE], "an application that waits for its caller to hang up hears of it"
    ((scope, *_),) = server.runs
    assert scope[SCOPE_TICKET] is TICKET
    assert server.sent == [
        {"type": "http.response.debug", "info": 1},
        {"type": "http.response.start", "status": 200, "headers": [(b"idempotency-key-kept", b"5")]},
        {"type": "http.response.body", "body": b"ok", "more_body": False},
    ]
    assert gate.settled == [Kept(200, [], b"ok")]
    assert not gate.given_up


@pytest.mark.parametrize("kept", [IN_PROGRESS, OUTCOME_UNKNOWN, Kept(204, [("X-A", "1"), ("X-A", "2")], None)])
async def test_answer_of_the_gate_is_sent_whole_with_its_length_and_names_in_lower_case(kept: Kept) -> None:
    server = Server(NotingGate(kept), request(), BODY)
    await server.serve()
    assert not server.runs
    start, body = server.sent
    wanted = [(name.lower().encode(), value.encode()) for name, value in kept.headers]
    assert start["status"] == kept.status
    assert start["headers"] == [*wanted, (b"content-length", b"%d" % len(kept.body or b""))]
    assert body == {"type": "http.response.body", "body": kept.body or b""}
