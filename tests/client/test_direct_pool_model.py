"""Connections and requests of a pool against what is known of each: a loop whose time stands still, wires of the test.

Whatever nodes send, whenever callers go and connections break: each caller is told once, in time, and by the answer to
its own request; what is over is closed, and what may carry a further request waits for it no longer than it may.
"""

from __future__ import annotations

import asyncio
import gc
import random
import ssl
from itertools import product
from typing import Any

import pytest

from oncegate.gateway.client.answer_head import HEAD_BYTES_MAX, AnswerHead, UnusualAnswer, read_head
from oncegate.gateway.client.direct_http import IDLE_S, DirectConnection, DirectPool, NoAnswer
from tests.client.small_cluster import StillLoop

ENDPOINTS = ("http://a:1", "http://b:1")


class Wire(asyncio.Transport):
    """Where a connection writes; what was closed is told in a later turn, as by asyncio's."""

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self.endpoint = endpoint
        self.requests: list[bytes] = []
        self.gone = False
        self.connection: DirectConnection

    def write(self, data: Any) -> None:
        assert not self.gone
        self.requests.append(bytes(data))

    def abort(self, error: Exception | None = None) -> None:
        if not self.gone:
            self.gone = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, error)

    def is_closing(self) -> bool:
        return self.gone

    def arrive(self, data: bytes) -> None:
        while data and not self.gone:
            room = self.connection.get_buffer(-1)
            count = min(len(room), len(data))
            room[:count] = data[:count]
            self.connection.buffer_updated(count)
            data = data[count:]


class Asked:
    """A request, and what its caller is to be told: a body, or the kind of a failure."""

    def __init__(self, number: int, wire: Wire, due: float) -> None:
        self.number, self.wire, self.due = number, wire, due
        self.task: asyncio.Task[Any]
        self.expected: object = None
        self.cause: Exception | None = None
        self.left = b""


class Refused(Exception):
    pass


class Walk:
    def __init__(self, dice: random.Random) -> None:
        self.dice, self.loop = dice, asyncio.get_running_loop()
        self.pool = DirectPool(self.loop, None)
        self.wires: list[Wire] = []
        self.resting: dict[Wire, float] = {}
        """Until when each waits for work; the one that was used last is at the end."""
        self.under_way: list[Asked] = []
        self.number = 0

    def free(self, wire: Wire, *, stays: bool) -> None:
        if stays:
            self.resting[wire] = self.loop.time() + IDLE_S
        else:
            assert wire.gone, "a later request would find what is left of this one"

    async def ask(self) -> None:
        endpoint = self.dice.choice(ENDPOINTS)
        found = self.pool.idle(endpoint)
        mine = [wire for wire in self.resting if wire.endpoint == endpoint and not wire.gone]
        if found is None:
            assert not mine, "a connection waits for work, and another one is made"
            wire = Wire(endpoint)
            found = wire.connection = DirectConnection(self.pool, endpoint)
            found.connection_made(wire)
            self.wires.append(wire)
        else:
            wire = next(one for one in self.wires if one.connection is found)
            assert wire is mine[-1], "the one that was used last"
            del self.resting[wire]
        self.number += 1
        asked = Asked(self.number, wire, self.loop.time() + self.dice.choice((0.5, 2.0, 7.0, 40.0)))
        failing = self.dice.random() < 0.3

        def finish(head: AnswerHead, body: bytes) -> bytes:
            if failing:
                raise Refused
            return body

        asked.task = asyncio.create_task(found.ask(b"%d" % self.number, asked.due, finish))
        await asyncio.sleep(0)
        assert wire.requests[-1] == b"%d" % self.number
        body = b"%d " % self.number * self.dice.choice((1, 1, 40_000))
        asked.expected = Refused if failing else body
        asked.left = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        self.under_way.append(asked)

    async def told(self, asked: Asked) -> None:
        """Look at what the caller was told."""
        self.under_way.remove(asked)
        await asyncio.wait([asked.task], timeout=0)
        assert asked.task.done(), "nobody tells its caller"
        if asked.expected is None:
            assert asked.task.cancelled()
        elif isinstance(asked.expected, bytes):
            assert asked.task.result() == asked.expected
        else:
            failure = asked.task.exception()
            assert type(failure) is asked.expected
            if asked.cause is not None:
                assert failure is not None
                assert failure.__cause__ is asked.cause

    async def answer(self, asked: Asked) -> None:
        part = self.dice.choice((len(asked.left), self.dice.randint(1, len(asked.left))))
        now, asked.left = asked.left[:part], asked.left[part:]
        extra = b"" if asked.left or self.dice.random() < 0.8 else b"HTTP/1.1 200 OK\r\n"
        asked.wire.arrive(now + extra)
        if not asked.left:
            if self.dice.random() < 0.2:  # its caller goes in the same turn
                asked.task.cancel()
                asked.expected = None
            self.free(asked.wire, stays=not extra)
            await asyncio.sleep(0)
            await self.told(asked)

    async def spoil(self, asked: Asked) -> None:
        """Have something come that is no answer, or the end of the connection."""
        if asked.left.startswith(b"HTTP") and self.dice.random() < 0.6:
            asked.expected = UnusualAnswer
            endless = b"HTTP/1.1 200 OK\r\nX: " + b"x" * HEAD_BYTES_MAX
            asked.wire.arrive(self.dice.choice((b"SSH-2.0-x\r\n\r\n", endless)))
        else:
            asked.cause, asked.expected = OSError("reset"), NoAnswer
            asked.wire.abort(asked.cause)
            await asyncio.sleep(0)
        assert asked.wire.gone, "what comes on it now answers nobody"
        await asyncio.sleep(0)
        await self.told(asked)

    async def pass_time(self) -> None:
        await asyncio.sleep(self.dice.choice((0.1, 1.0, 5.0, IDLE_S)))
        now = self.loop.time()
        for asked in [one for one in self.under_way if one.due <= now]:
            asked.expected = NoAnswer
            await self.told(asked)
            failure = asked.task.exception()
            assert isinstance(failure, NoAnswer)
            assert failure.silent
            assert asked.wire.gone, "a late answer would be that of the next request"
        for wire, until in list(self.resting.items()):
            if until <= now:
                assert wire.gone, "it waits for work for longer than a node waits for a request"
                del self.resting[wire]

    async def step(self) -> None:
        match self.dice.choice(("ask", "ask", "ask", "answer", "answer", "answer", "spoil", "go", "time", "rest")):
            case "ask":
                await self.ask()
            case "answer" if self.under_way:
                await self.answer(self.dice.choice(self.under_way))
            case "spoil" if self.under_way and self.dice.random() < 0.5:
                await self.spoil(self.dice.choice(self.under_way))
            case "go" if self.under_way:
                asked = self.dice.choice(self.under_way)
                asked.expected = None
                asked.task.cancel()
                await asyncio.sleep(0)
                assert asked.wire.gone, "what comes on it now answers nobody"
                await asyncio.sleep(0)
                await self.told(asked)
            case "time":
                await self.pass_time()
            case "rest" if self.resting:
                wire = self.dice.choice(list(self.resting))
                match self.dice.choice(("closed", "bytes", "drop")):
                    case "closed":
                        wire.abort()
                    case "bytes":
                        wire.arrive(b"HTTP/1.1 408 Late\r\nContent-Length: 0\r\n\r\n")
                    case "drop":
                        self.pool.drop(wire.endpoint)
                        mine = [one for one in self.resting if one.endpoint == wire.endpoint]
                        assert all(one.gone for one in mine)
                        for one in mine:
                            self.resting.pop(one)
                assert wire.gone
                self.resting.pop(wire, None)
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        open_ = [wire for wire in self.wires if not wire.gone]
        assert self.pool.busy == {one.wire.connection for one in self.under_way}
        assert set(open_) == {*self.resting, *(one.wire for one in self.under_way)}
        kept = [one for idle in self.pool._idle.values() for one in idle]
        assert len(kept) == len(self.resting), "what is closed is kept"

    async def close(self) -> None:
        await self.pool.close()
        assert all(wire.gone for wire in self.wires)
        for asked in list(self.under_way):
            asked.expected = NoAnswer
            await self.told(asked)
        assert not self.pool.busy
        assert not any(self.pool._idle.values())
        wire = Wire(ENDPOINTS[0])  # one that was being made, or whose answer was being read
        wire.connection = DirectConnection(self.pool, wire.endpoint)
        wire.connection.connection_made(wire)
        self.pool.rest(wire.connection)
        assert wire.gone
        assert self.pool.idle(wire.endpoint) is None


@pytest.mark.parametrize("seed", range(12))
def test_each_caller_is_told_once_and_by_its_own_answer_and_what_is_over_is_closed(seed: int) -> None:
    async def walk() -> None:
        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        one = Walk(random.Random(seed))
        for _ in range(150):
            await one.step()
        await one.close()
        del one
        gc.collect()  # what nobody has looked at is told then
        assert not complaints

    with asyncio.Runner(loop_factory=StillLoop) as runner:
        runner.run(walk())


def test_connection_stays_only_if_the_version_and_each_line_about_it_let_it() -> None:
    said = ("keep-alive", "Keep-Alive ", "close", "upgrade")
    for version, lines in product("01", [(), *product(said), *product(said, said)]):
        head = "\r\n".join([f"HTTP/1.{version} 200 OK", "Content-Length: 0", *(f"Connection:{one}" for one in lines)])
        stays = version == "1" and all(one.strip().lower() == "keep-alive" for one in lines)
        assert read_head(head.encode()).stays == stays, head


@pytest.mark.parametrize("event", ["made", "left", "lost"])
@pytest.mark.parametrize("endpoint", ["http://node.example:80", "https://node.example.:443", "https://[::1]:443"])
def test_connection_that_is_made_too_late_is_closed_and_asks_for_the_certificate_of_its_name(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, event: str
) -> None:
    made: list[Wire] = []
    names: list[object] = []

    async def connected(*_: object, **__: object) -> None:
        pass

    async def dial() -> None:
        loop: Any = asyncio.get_running_loop()
        pool = DirectPool(loop, ssl.create_default_context())

        async def connect(factory: Any, *, sock: None, **tls: object) -> tuple[Wire, DirectConnection]:
            wire = Wire(endpoint)
            made.append(wire)
            names.append(tls.get("server_hostname"))
            wire.connection = factory()
            wire.connection.connection_made(wire)
            if event == "left":
                await pool.close()
            elif event == "lost":
                wire.abort()
            return wire, wire.connection

        loop.getaddrinfo, loop.create_connection = connected, connect
        if event == "made":
            assert (await pool.dial(endpoint, loop.time() + 1)).usable
        else:
            with pytest.raises(ConnectionAbortedError):
                await pool.dial(endpoint, loop.time() + 1)
            assert made[0].gone
            assert made[0].connection.closed

    monkeypatch.setattr("oncegate.gateway.client.direct_http.start_connection", connected)
    with asyncio.Runner(loop_factory=StillLoop) as runner:
        runner.run(dial())
    expected = {"http://node.example:80": None, "https://node.example.:443": "node.example"}
    assert names == [expected.get(endpoint, "::1")]
