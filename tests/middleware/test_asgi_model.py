"""What an ASGI server is sent, and an application is given, however request and response are cut and broken off."""

from __future__ import annotations

import random
from itertools import accumulate
from typing import Any, NamedTuple

import pytest

from oncegate import Client
from oncegate.gateway.middleware.asgi_app import Message
from oncegate.gateway.middleware.gate import Ticket
from oncegate.gateway.middleware.records import read_record
from oncegate.middleware import SCOPE_TICKET, ForAsgi, Gate, Policy
from oncegate.testing import FakeGateway

RESPONSE_MAX = 400
REQUEST_MAX = 50
HEADERS = [(b"x-a", b"1"), (b"x-a", b"2")]


class BrokeOff(Exception):
    """What the application raises."""


class Case(NamedTuple):
    """A request and what the application does with it."""

    keyed: bool
    request: list[bytes]
    hangs_up: bool
    response: list[bytes]
    breaks_off_at: int | None
    """Before which part; behind the last one: it has answered, and its background task fails."""
    returns: bool
    """In place of raising."""
    is_terse: bool
    """Whether each field is left out that may be (ASGI 3, HTTP)."""

    @property
    def held(self) -> int:
        """How many parts are held back: until they are more than is kept, or all."""
        sizes = list(accumulate(map(len, self.response)))
        return next((at + 1 for at, size in enumerate(sizes) if size > RESPONSE_MAX), len(sizes))

    @property
    def is_whole(self) -> bool:
        return self.breaks_off_at is None or self.breaks_off_at == len(self.response)


def cut(dice: random.Random, size: int) -> list[bytes]:
    """Cut so many bytes into parts, some of them empty."""
    borders = sorted(dice.randrange(size + 1) for _ in range(dice.randrange(4)))
    whole = bytes(dice.randrange(97, 123) for _ in range(size))
    return [whole[a:b] for a, b in zip([0, *borders], [*borders, size], strict=True)]


def a_case(dice: random.Random) -> Case:
    response = cut(dice, dice.choice((0, 10, RESPONSE_MAX, RESPONSE_MAX + 1, 3 * RESPONSE_MAX)))
    return Case(
        keyed=dice.random() < 0.85,
        request=cut(dice, REQUEST_MAX + dice.choice((-REQUEST_MAX, -20, 0, 0, 1))),
        hangs_up=dice.random() < 0.1,
        response=response,
        breaks_off_at=dice.randrange(len(response) + 1) if dice.random() < 0.3 else None,
        returns=dice.random() < 0.3,
        is_terse=dice.random() < 0.3,
    )


class Application:
    """Keeps what it was given."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self.runs: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.runs.append(scope)
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message.get("more_body", False)
        self.bodies.append(body)
        start: Message = {"type": "http.response.start", "status": 201}
        await send(start if self._case.is_terse else {**start, "headers": HEADERS})
        for number, part in enumerate(self._case.response):
            if number == self._case.breaks_off_at:
                if self._case.returns:
                    return
                raise BrokeOff
            last = number == len(self._case.response) - 1
            message = {"type": "http.response.body", "body": part, "more_body": not last}
            await send({k: v for k, v in message.items() if v or not self._case.is_terse})
        if self._case.breaks_off_at == len(self._case.response) and not self._case.returns:
            raise BrokeOff


class Caller:
    """One server's connection: what it gives and what it was sent."""

    def __init__(self, case: Case, client: Client, table: str) -> None:
        self._messages: list[Message] = [
            {"type": "http.request", "body": part, "more_body": number < len(case.request) - 1}
            for number, part in enumerate(case.request)
        ]
        if case.hangs_up:
            self._messages[-1] = {"type": "http.disconnect"}
        self._client, self._table = client, table
        self.scope = {
            "type": "http", "method": "POST", "path": "/", "query_string": b"",
            "headers": [(b"Idempotency-Key", b"k")] if case.keyed else [],
            "extensions": {"http.response.pathsend": {}},
        }  # fmt: skip
        self.sent: list[Message] = []
        self.recorded: list[bool] = []
        """Whether the response was recorded when that was sent."""
        self.failed = False

    async def ask(self, app: ForAsgi) -> None:
        try:
            await app(self.scope, self._receive, self._send)
        except BrokeOff:
            self.failed = True
        except RuntimeError as unfinished:
            self.failed = "without a whole response" in str(unfinished)

    async def _receive(self) -> Message:
        return self._messages.pop(0)

    async def _send(self, message: Message) -> None:
        rows = (await self._client.scan(self._table)).rows
        self.recorded.append([read_record(row.value).state for row in rows] == ["done"])
        self.sent.append(message)

    @property
    def answer(self) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        start, *parts = self.sent
        assert start["type"] == "http.response.start"
        assert all(part["type"] == "http.response.body" for part in parts)
        assert [part.get("more_body", False) for part in parts] == [True] * (len(parts) - 1) + [False]
        return start["status"], list(start["headers"]), b"".join(part.get("body", b"") for part in parts)


@pytest.mark.parametrize("part", range(4))
async def test_application_runs_once_and_callers_are_sent_whole_what_is_recorded_first(part: int) -> None:
    async with FakeGateway() as fake, Client(fake.endpoints) as client:
        for seed in range(part * 40, part * 40 + 40):
            case = a_case(random.Random(seed))
            policy = Policy(table=f"keys-{seed}", response_bytes_max=RESPONSE_MAX, body_bytes_max=REQUEST_MAX)
            application = Application(case)
            async with Gate(client, policy) as gate:
                callers = [Caller(case, client, policy.table) for _ in range(2)]
                for caller in callers:
                    await caller.ask(ForAsgi(application, gate))
            first, again = callers
            if not case.keyed:
                assert all(got is caller.scope for got, caller in zip(application.runs, callers, strict=True)), seed
                continue
            too_large, whole = sum(map(len, case.request)) > REQUEST_MAX, b"".join(case.response)
            if too_large and not (case.hangs_up and sum(map(len, case.request[:-1])) <= REQUEST_MAX):
                assert not application.runs
                assert [caller.answer[0] for caller in callers] == [413, 413]
            elif case.hangs_up:
                assert not application.runs
                assert not first.sent
            else:
                (scope,) = application.runs
                assert isinstance(scope[SCOPE_TICKET], Ticket)
                assert scope["extensions"] == {}, "nothing goes by the hold"
                assert SCOPE_TICKET not in first.scope
                assert application.bodies == [b"".join(case.request)]
                assert first.failed == (case.breaks_off_at is not None and not (case.is_whole and case.returns))
                own = [] if case.is_terse else HEADERS
                kept = [(b"idempotency-key-kept", str(policy.kept_s).encode())]
                if case.is_whole:
                    assert first.answer == (201, [*own, *kept], whole), seed
                    assert first.recorded[-1]
                    assert len(first.sent) == 2 + len(case.response) - case.held
                    assert len(whole) > RESPONSE_MAX or all(first.recorded), "the caller knew before the record did"
                    wanted = 410 if len(whole) > RESPONSE_MAX else 201
                else:
                    assert not first.sent or sum(map(len, case.response[: case.breaks_off_at])) > RESPONSE_MAX
                    wanted = 500
                status, headers, body = again.answer
                assert status == wanted, seed
                assert (b"idempotent-replayed", b"true") in headers
                if wanted == 201:
                    assert body == whole
                    assert [pair for pair in headers if pair[0] == b"x-a"] == own
                    assert kept[0] in headers
