"""Dialling against a table: who is called, after how long, with TLS or without, and what is left of it at an end.

The test plays the attempts and the sleep: attempts fail, are refused, or end as connections. A member has one dialler
as long as it is one and has an address; a connection that could not be opened is given back once.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import types
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import pytest

from oncegate.consensus.configuration import RaftMember
from oncegate.consensus.net import dialling as module
from oncegate.consensus.net.connection import HANDSHAKE_S
from oncegate.consensus.net.dialling import Dialling

TLS: Any = object()


@dataclass
class Connection:
    """What an attempt ended as."""

    peer_id: str | None = None
    refusal: str | None = None


@types.coroutine
def wait(*what: Any) -> Generator[Any, Any, Any]:
    return (yield what)


def config(*, clear_too: bool = False) -> Any:
    return types.SimpleNamespace(node_id="n2", clear_too=clear_too)


def dialler(members: dict[str, RaftMember], connected: Any, forget: Any = None, **options: bool) -> Dialling:
    return Dialling(
        config(**options),
        members,
        begin=lambda peer_id: Connection(),  # type: ignore[arg-type,return-value]
        forget=forget,
        connected=connected,
        context=lambda: TLS,
    )


@pytest.mark.parametrize("clear_too", [False, True])
@pytest.mark.parametrize("peer_id", ["n1", "n3"])
@pytest.mark.parametrize("seed", range(4))
def test_a_peer_is_called_again_the_later_the_more_often_it_failed_and_at_once_after_a_connection(
    seed: int, peer_id: str, clear_too: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: None)
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: wait("sleep", seconds))
    monkeypatch.setattr(random, "uniform", lambda low, high: (low + high) / 2)
    is_connected = False
    dialling = dialler({}, lambda asked: is_connected and asked == peer_id, clear_too=clear_too)
    vars(dialling)["_dial"] = lambda asked, context: wait("dial", asked, context)
    running = dialling._keep_connected(peer_id)
    does = running.send(None)
    expected_s, tls = 0.03, True
    for _ in range(200):
        if peer_id > "n2":  # the greater id dials; the lesser is patient before each attempt
            while True:
                assert does == ("sleep", 3.0)
                is_connected = dice.random() < 0.4
                does = running.send(None)
                if not is_connected:
                    break
        assert does == ("dial", peer_id, TLS if tls else None)
        came = dice.choice(("error", "error", "error", "open", "unknown", "wiped", "cloned", "lost"))
        if came == "error":
            errors = (ConnectionRefusedError(), TimeoutError(), ssl.SSLError(), UnicodeError())
            does = running.throw(dice.choice(errors))
        else:
            does = running.send(
                Connection(
                    peer_id if came == "open" else None, came if came in ("unknown", "wiped", "cloned") else None
                )
            )
        if came == "open":
            expected_s = 0.03
        elif came in ("wiped", "cloned"):
            expected_s = 2.0
        tls = not clear_too or came == "open" or not tls
        assert does[0] == "sleep"
        assert does[1] == pytest.approx(expected_s)
        expected_s = min(expected_s * 1.5, 0.5)
        does = running.send(None)
    running.close()


@pytest.mark.parametrize("seed", range(4))
async def test_each_member_with_an_address_has_one_dialler_until_it_goes(seed: int) -> None:
    dice, members, running = random.Random(seed), dict[str, RaftMember](), list[str]()
    dialling = dialler(members, lambda peer_id: False)

    async def keep(peer_id: str) -> None:
        running.append(peer_id)
        try:
            await asyncio.Event().wait()
        finally:
            running.remove(peer_id)

    vars(dialling)["_keep_connected"] = keep
    for _ in range(60):
        wanted = {name: RaftMember("h", dice.choice((0, 1, 1))) for name in dice.sample(("n1", "n3", "n4"), 2)}
        for gone in members.keys() - wanted.keys():
            dialling.end(gone)
        dialled = {name for name in members if name in running and name in wanted}
        members.clear()
        members.update(wanted)
        dialling.dial()
        dialling.dial()
        for _ in range(3):
            await asyncio.sleep(0)
        assert sorted(running) == sorted(dialled | {name for name, one in wanted.items() if one.port})
    await dialling.stop()
    assert not running


class Made:
    """Connections as the loop makes them: opened, failed, or still under way when all stops."""

    def __init__(self) -> None:
        self.forgotten: list[tuple[Any, str]] = []
        self.begun: list[Any] = []
        self.opening: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self, peer_id: str) -> Any:
        connection = types.SimpleNamespace(closed=asyncio.get_running_loop().create_future(), peer_id=None)
        self.begun.append(connection)
        return connection

    def forget(self, connection: Any, error: BaseException) -> None:
        self.forgotten.append((connection, type(error).__name__))


@pytest.mark.parametrize("end", ["opened", "failed", "cancelled", "cancelled, then opened"])
async def test_a_connection_that_is_being_made_is_let_finish_or_given_back_once(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, loop = Made(), asyncio.get_running_loop()
    dialling = Dialling(
        config(),
        {"n1": RaftMember("127.0.0.1", 1)},
        begin=made.begin,
        forget=made.forget,
        connected=lambda peer_id: False,
        context=lambda: None,
    )

    async def reach(found: Any, **options: Any) -> Any:
        return "a socket"

    async def create(protocol: Any, **options: Any) -> None:
        assert protocol() is made.begun[0]
        await made.opening

    monkeypatch.setattr(module, "start_connection", reach)
    monkeypatch.setattr(loop, "create_connection", create)
    task = asyncio.create_task(dialling._dial("n1", None))
    while not made.begun:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    if end == "failed":
        made.opening.set_exception(ConnectionResetError())
        with pytest.raises(ConnectionResetError):
            await task
    elif end.startswith("cancelled"):
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not made.forgotten, "it is let finish"
        assert len(dialling._connecting) == 1
    if end.endswith("opened"):
        made.opening.set_result(None)
        for _ in range(6):
            await asyncio.sleep(0)
        assert not dialling._connecting
        if end == "opened":
            assert not task.done(), "the connection lasts"
            made.begun[0].closed.set_result(None)
            assert await task is made.begun[0]
    if end == "cancelled":
        monkeypatch.setattr(module, "_STOP_S", 0.01)
    await dialling.stop()
    assert not dialling._connecting
    expected = {"failed": "ConnectionResetError", "cancelled": "CancelledError"}.get(end)
    assert made.forgotten == ([(made.begun[0], expected)] if expected else [])


@pytest.mark.parametrize("seed", range(24))
async def test_nothing_is_under_way_and_no_connection_is_lost_sight_of_once_dialling_has_stopped(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever state each connection is in: looked up, reached, opened by and by, or never."""
    dice, loop = random.Random(seed), asyncio.get_running_loop()
    monkeypatch.setattr(module, "_STOP_S", 0.05)
    made, never = Made(), asyncio.Event()
    stages = {f"n{at}": dice.choice(("look-up", "reach", "soon", "never")) for at in (3, 4, 5, 6)}
    opened, options = list[Any](), list[dict[str, Any]]()

    async def getaddrinfo(host: str, port: int, *, type: int) -> Any:  # noqa: A002
        if stages[host] == "look-up":
            await never.wait()
        return host

    async def reach(found: Any, **_: Any) -> Any:
        if stages[found] == "reach":
            await never.wait()
        return found

    async def create(protocol: Any, *, sock: Any, **more: Any) -> None:
        connection = protocol()
        assert connection.member == sock, "each connection has its own socket"
        options.append(more)
        if stages[sock] == "never":
            await never.wait()
        for _ in range(3):
            await asyncio.sleep(0)
        opened.append(connection)

    def begin(peer_id: str) -> Any:
        connection = made.begin(peer_id)
        connection.member = peer_id
        return connection

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(module, "start_connection", reach)
    monkeypatch.setattr(loop, "create_connection", create)
    tls = dice.choice((TLS, None))
    dialling = Dialling(
        types.SimpleNamespace(node_id="n9", clear_too=False),  # type: ignore[arg-type]
        {name: RaftMember(name, 1) for name in stages},
        begin=begin,
        forget=made.forget,
        connected=lambda peer_id: False,
        context=lambda: tls,
    )
    before = asyncio.all_tasks()
    dialling.dial()
    for _ in range(dice.randrange(8)):
        await asyncio.sleep(0)
    await dialling.stop()
    assert asyncio.all_tasks() == before
    assert not dialling._connecting
    ended = [connection for connection, _ in made.forgotten]
    assert sorted(one.member for one in (*opened, *ended)) == sorted(one.member for one in made.begun)
    assert {stages[one.member] for one in opened} <= {"soon"}
    assert {stages[one.member] for one in ended} <= {"never"}
    for one, more in zip(made.begun, options, strict=False):
        expected = (TLS, one.member, HANDSHAKE_S) if tls is TLS else (None, None, None)
        assert (more["ssl"], more["server_hostname"], more["ssl_handshake_timeout"]) == expected
