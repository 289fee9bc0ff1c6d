"""Listening in every state: who comes in is told once what became of it, and what cannot be opened is given back.

The test plays the loop and the sockets: accepts fail and are tried again after a pause, handshakes fail or last, and
the first bytes of who comes say whether it speaks TLS.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import ssl
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from oncegate.consensus.config import EVERY_ADDRESS
from oncegate.consensus.net.connection import HANDSHAKE_S
from oncegate.consensus.net.listening import Listening
from oncegate.consensus.net.strangers import COMPLAINT_S

TLS: Any = object()


class Socket:
    """One that listens, or one that was accepted."""

    def __init__(self, host: str = "", first: bytes | OSError = b"") -> None:
        self.host, self.first = host, first
        self.coming: list[Socket | OSError] = []
        self.closed = False
        self.blocks = True

    def setblocking(self, blocks: bool) -> None:
        self.blocks = blocks

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        one = self.coming.pop(0)
        if isinstance(one, OSError):
            raise one
        return one, (one.host, 1)

    def recv(self, size: int, flags: int) -> bytes:
        assert (size, flags) == (3, socket.MSG_PEEK)
        if isinstance(self.first, OSError):
            raise self.first
        return self.first

    def close(self) -> None:
        self.closed = True


class Scene:
    """The loop, and whose connections come."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, context: Any = None, clear_too: bool = False) -> None:
        self.now_s = 100.0
        self.readers: dict[Any, tuple[Any, ...]] = {}
        self.timers: list[tuple[float, Callable[[], None], SimpleNamespace]] = []
        self.served: list[Socket] = []
        self.begun: list[Any] = []
        self.forgotten: list[Any] = []
        self.lost: list[Any] = []
        self.opens: Callable[[Socket], Any] | None = None
        self.tls: list[Any] = []
        self.taken = 0
        monkeypatch.setattr(socket, "create_server", self.create_server)
        self.listening = Listening(
            begin=self.begin,
            forget=lambda connection, error: self.forgotten.append((connection, error)),
            context=lambda: context,
            clear_too=clear_too,
        )
        vars(self.listening)["_loop"] = self

    def create_server(self, address: Any, *, family: int, backlog: int) -> Socket:
        if len(self.served) == self.taken - 1:
            raise OSError(98, "taken")
        self.served.append(Socket(address))
        return self.served[-1]

    async def getaddrinfo(self, host: str | None, port: int, *, type: int, flags: int) -> list[Any]:  # noqa: A002
        assert (port, type, flags) == (7, socket.SOCK_STREAM, socket.AI_PASSIVE)
        found = [(family, None, None, None, f"{host} {family}") for family in (2, 10)]
        return [*found, found[0]]

    def time(self) -> float:
        return self.now_s

    def add_reader(self, one: Any, *call: Any) -> None:
        self.readers[one] = call

    def remove_reader(self, one: Any) -> None:
        assert not one.closed, "its number may be another one's by now"
        self.readers.pop(one, None)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Any:
        timer = SimpleNamespace(cancelled=False)
        timer.cancel = lambda: setattr(timer, "cancelled", True)
        self.timers.append((delay_s, call, timer))
        return timer

    def create_task(self, running: Any) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(running)

    async def connect_accepted_socket(
        self, protocol: Callable[[], Any], accepted: Socket, *, ssl: Any, ssl_handshake_timeout: float | None
    ) -> None:
        assert not accepted.blocks
        assert protocol().accepted is accepted
        assert ssl_handshake_timeout == (None if ssl is None else HANDSHAKE_S)
        self.tls.append(ssl)
        if self.opens is not None:
            await self.opens(accepted)

    def begin(self, host: str) -> Any:
        connection = SimpleNamespace(host=host, accepted=None)
        connection.connection_lost = lambda error: self.lost.append((connection, error))
        self.begun.append(connection)
        return connection

    def read(self, one: Socket) -> None:
        call, *args = self.readers[one]
        call(*args)


async def turns() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(6))
async def test_who_comes_is_let_in_or_given_back_and_an_accept_that_fails_is_tried_again_after_a_pause(
    seed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dice, scene = random.Random(seed), Scene(monkeypatch)
    await scene.listening.start("h", 7)
    assert [one.host for one in scene.served] == ["h 2", "h 10"], "each address once"
    assert not any(one.blocks for one in scene.served)
    failed, complaints, told_s = 0, 0, float("-inf")

    async def opens(accepted: Socket) -> None:
        if isinstance(accepted.first, OSError):
            raise accepted.first

    scene.opens = opens
    for number in range(200):
        scene.now_s += dice.choice((0.0, 1.0, COMPLAINT_S / 2))
        if not scene.readers:
            (_, resume, timer) = scene.timers.pop()
            assert not scene.timers
            assert not timer.cancelled
            resume()
        assert set(scene.readers) == set(scene.served)
        one, begun = dice.choice(scene.served), len(scene.begun)
        what = dice.choice(("come", "come", "fails to open", "gone", "full"))
        fault = {
            "fails to open": dice.choice((ssl.SSLError("no TLS"), ConnectionResetError())),
            "gone": dice.choice((BlockingIOError(), InterruptedError(), ConnectionAbortedError())),
            "full": OSError(24, "Too many open files"),
        }.get(what)
        accepted = Socket(f"10.0.0.{number}", fault if what == "fails to open" and fault else b"")
        one.coming.append(fault if what in ("gone", "full") and fault else accepted)
        caplog.clear()
        scene.read(one)
        await turns()
        assert not scene.listening._opening
        if what in ("gone", "full"):
            assert len(scene.begun) == begun
        else:
            assert (scene.begun[-1].host, scene.begun[-1].accepted) == (accepted.host, accepted)
        if what == "fails to open":
            failed += 1
            assert scene.forgotten[-1] == scene.lost[-1] == (scene.begun[-1], fault)
        assert len(scene.forgotten) == len(scene.lost) == failed
        if what == "full":
            assert not scene.readers, "nobody is asked again at once"
            due = scene.now_s >= told_s + COMPLAINT_S
            complaints += due
            told_s = scene.now_s if due else told_s
            assert [record.levelno for record in caplog.records] == [logging.ERROR] * due
    assert failed
    assert complaints > 2
    if not scene.timers:
        scene.served[0].coming.append(OSError(24, "Too many open files"))
        scene.read(scene.served[0])
    assert scene.timers
    served = list(scene.served)
    scene.listening.stop()
    scene.listening.stop()
    assert all(one.closed for one in served)
    assert not scene.readers
    assert all(timer.cancelled for _, _, timer in scene.timers), "nobody listens again after a pause"


async def test_who_stops_waits_for_those_that_are_being_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, aborted = Scene(monkeypatch, context=TLS), asyncio.Event()

    async def opens(_: Socket) -> None:
        await aborted.wait()
        await turns()
        raise ConnectionAbortedError

    scene.opens = opens
    await scene.listening.start("h", 7)
    for one in scene.served:
        one.coming.append(Socket("x"))
        scene.read(one)
    await turns()
    assert scene.tls == [TLS, TLS]
    scene.listening.stop()
    ended = asyncio.create_task(scene.listening.opened())
    await turns()
    assert not ended.done()
    aborted.set()
    await ended
    assert len(scene.forgotten) == len(scene.lost) == 2


@pytest.mark.parametrize("taken", [1, 2])
async def test_a_port_that_is_taken_leaves_no_socket_open(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    scene.taken = taken
    with pytest.raises(OSError, match="taken"):
        await scene.listening.start(EVERY_ADDRESS, 7)
    assert [(one.host, one.closed) for one in scene.served] == [("None 2", True)] * (taken - 1)
    assert not scene.readers


@pytest.mark.parametrize("clear_too", [False, True])
@pytest.mark.parametrize("context", [None, TLS])
@pytest.mark.parametrize(
    "first", [b"\x01\x00\x00", b"\x16\x03\x00", b"\x16\x03\x01", b"\x01\x00", b"", ConnectionResetError()]
)
async def test_who_begins_without_tls_is_let_in_only_while_both_are_allowed(
    first: bytes | OSError, context: Any, clear_too: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, one = Scene(monkeypatch, context=context, clear_too=clear_too), Socket("x", first)
    await scene.listening.start("h", 7)
    scene.served[0].coming.append(one)
    scene.read(scene.served[0])
    await turns()
    looks = context is not None and clear_too
    assert (one in scene.readers) == looks, "its first bytes are waited for only if they matter"
    if looks:
        assert not scene.tls
        scene.read(one)
        await turns()
        assert one not in scene.readers
    if looks and isinstance(first, OSError):
        assert one.closed
        assert scene.forgotten == scene.lost == [(scene.begun[0], first)]
        return
    is_clear = looks and isinstance(first, bytes) and len(first) == 3 and first[2] == 0
    assert scene.tls == [None if is_clear else context]
    assert not one.closed
