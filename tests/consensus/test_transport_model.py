"""Whose connection is whose: at any time one a peer, the newest that proved itself, and only of who is wanted.

Connections come, are replaced, lost and heard of late; members and secrets change. The test plays the connections.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from oncegate.consensus.config import ReplicaConfig
from oncegate.consensus.configuration import RaftMember
from oncegate.consensus.messages import CallRequest, Refusal
from oncegate.consensus.net import transport as transport_module
from oncegate.consensus.net.connection import Connection as RealConnection
from oncegate.consensus.net.connection import TlsContexts
from oncegate.consensus.net.handshake import Stamp
from oncegate.consensus.net.strangers import Strangers
from oncegate.consensus.net.transport import PeerTransport
from oncegate.consensus.net.wire import Frame

NAMES = ("n2", "n3", "n4")
SECRETS = (b"the old secret of this cluster", b"the new secret of this cluster", b"the newest secret of all of it")


@dataclass(eq=False)
class Connection:
    """Stands where a connection stands: what is done to it, and what was written."""

    peer_id: str
    secret: bytes | None
    epoch: int
    host: str = "127.0.0.1"
    protection: str = "a MAC"
    dialled: bool = False
    refusal: Refusal | None = None
    ended: str = ""
    written: list[bytes] = field(default_factory=list)

    @property
    def claimed_id(self) -> str:
        return self.peer_id

    def close(self) -> None:
        self.ended = self.ended or "close"

    def abort(self) -> None:
        self.ended = self.ended or "abort"

    def write_frame(self, frame: Any, buffered_bytes_max: int) -> bool:
        self.written.append(frame.body)
        return True


class Known:
    """Stands where the known directories stand."""

    def __init__(self) -> None:
        self.remembered: list[tuple[str, int]] = []

    def remember(self, peer_id: str, since: int, stamp: Stamp, members: Any) -> None:
        self.remembered.append((peer_id, since))

    def judge(self, peer_id: str, since: int, stamp: Stamp) -> Refusal | None:
        return "wiped" if since == 9 else None


class Walk:
    """A transport, and the model of its peers; it is the receiver as well."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.heard: list[tuple[Any, ...]] = []
        self.known = Known()
        config = ReplicaConfig(
            node_id="n1",
            cluster_id="c",
            listen=("127.0.0.1", 1),
            peers={},
            data_dir=Path("unused"),
            secrets=SECRETS[:1],
        )
        self.transport = PeerTransport(config, Stamp("u", 1, ()), self.known, self)  # type: ignore[arg-type]
        self.secrets: tuple[bytes, ...] = SECRETS[:1]
        self.peers: dict[str, Connection] = {}
        self.all: list[Connection] = []
        self.members: dict[str, RaftMember] = {}
        self.anyone = False
        self.up = 0

    def peer_up(self, peer_id: str, epoch: int) -> None:
        self.heard.append(("up", peer_id, epoch))

    def peer_down(self, peer_id: str) -> None:
        self.heard.append(("down", peer_id))

    def peer_said(self, peer_id: str, epoch: int, messages: list[Any]) -> None:
        self.heard.append(("said", peer_id, epoch, messages))

    def wanted(self, peer_id: str) -> bool:
        return self.anyone or peer_id in self.members

    # what it does

    def establish(self) -> None:
        name = self.dice.choice(NAMES)
        if not self.wanted(name):
            return  # the handshake refuses it
        connection: Any = Connection(name, self.dice.choice((None, *SECRETS)), len(self.all) + 1)
        self.all.append(connection)
        ended = {one: one.ended for one in self.all}
        self.transport.established(connection, name)
        if connection.secret is not None and connection.secret not in self.secrets:
            assert connection.ended == "abort", "it began before its secret was given up"
            assert not self.heard
            return
        old = self.peers.get(name)
        self.peers[name] = connection
        assert old is None or old.ended == (ended[old] or "abort"), "at once: nothing more is read from it"
        assert self.heard == [("up", name, connection.epoch)]
        self.up += 1

    def lose(self) -> None:
        if self.all:
            lost: Any = self.dice.choice(self.all)
            current = self.peers.get(lost.peer_id) is lost
            self.transport.lost(lost)
            self.transport.lost(lost)
            assert self.heard == ([("down", lost.peer_id)] if current else [])
            if current:
                del self.peers[lost.peer_id]

    def hear(self) -> None:
        if self.all:
            said: Any = self.dice.choice(self.all)
            messages: list[Any] = [object()]
            self.transport.received(said, said.peer_id, messages)
            current = self.peers.get(said.peer_id) is said
            assert self.heard == ([("said", said.peer_id, said.epoch, messages)] if current else [])

    def send(self) -> None:
        message = CallRequest(self.dice.randrange(3), b"x")
        for name in self.dice.sample(NAMES, 3):
            connection = self.peers.get(name)
            before = 0 if connection is None else len(connection.written)
            assert self.transport.send(name, message) == (connection is not None)
            if connection is not None:
                assert connection.written[before:] == [Frame(message).body]

    def set_members(self) -> None:
        self.members = {
            name: RaftMember("127.0.0.1", 1, since=self.dice.choice((0, 9)))
            for name in self.dice.sample(NAMES, self.dice.choice((1, 2, 3)))
        }
        before, gone = set(self.transport._members), {name: one for name, one in self.peers.items() if not one.ended}
        self.anyone = self.dice.random() < 0.3
        self.transport.set_members(self.members, anyone=self.anyone)
        for name, connection in gone.items():
            left = name in before - self.members.keys() or not self.wanted(name)
            assert connection.ended == ("close" if left else "")
        for name in NAMES:
            assert (name in self.transport._welcome) == self.wanted(name)
            told = self.transport._judge(name, Stamp("u", 1, ()))
            assert told == ("wiped" if name in self.members and self.members[name].since == 9 else None)

    def renew(self) -> None:
        self.secrets = tuple(self.dice.sample(SECRETS, self.dice.choice((1, 2))))
        before = {name: one.ended for name, one in self.peers.items()}
        self.transport.renew(self.secrets)
        for name, connection in self.peers.items():
            outdated = connection.secret is not None and connection.secret not in self.secrets
            assert connection.ended == (before[name] or ("close" if outdated else ""))
        assert self.transport._credentials.secrets == self.secrets

    def remember(self) -> None:
        name = self.dice.choice(NAMES)
        self.known.remembered.clear()
        self.transport.remember(name, Stamp("u", 1, ()))
        expected = [(name, self.members[name].since)] if name in self.members else []
        assert self.known.remembered == expected

    def step(self) -> None:
        self.heard.clear()
        what = (
            "establish",
            "establish",
            "establish",
            "lose",
            "hear",
            "hear",
            "send",
            "set_members",
            "renew",
            "remember",
        )
        getattr(self, self.dice.choice(what))()
        peers: dict[str, Any] = self.transport._peers
        assert peers == self.peers


@pytest.mark.parametrize("seed", range(10))
async def test_a_peer_has_the_newest_connection_that_proved_itself_and_no_other_is_heard(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(500):
        walk.step()
    assert walk.up > 30


@pytest.mark.parametrize("seed", range(6))
async def test_who_has_proved_nothing_has_one_place_and_those_of_members_addresses_go_last(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk, aborted = Walk(seed), list[Any]()
    monkeypatch.setattr(RealConnection, "abort", lambda one: aborted.append(one))
    dice, transport = walk.dice, walk.transport
    transport._strangers = Strangers(4, 3)
    held: dict[Any, str] = {}
    reached: dict[str, str] = {}
    ended, losers = list[Any](), 0
    for _ in range(500):
        walk.heard.clear()
        what = dice.choice(("come", "come", "come", "step", "establish", "lose", "refuse", "members"))
        if what == "come":
            host = f"10.0.0.{dice.randrange(6)}"
            before = dict(held)
            connection = transport._came_in(host)
            left = [one for one in before if one not in transport._strangers._held]
            assert len(left) <= 1
            wanted = {*reached.values(), *(member.host for member in transport._members.values())}
            for loser in left:
                losers += 1
                of_address = [one for one, at in before.items() if at == host]
                rivals = of_address if len(of_address) >= 3 else list(before)
                assert loser in rivals
                assert aborted[-1] is loser, "who lost its place is closed"
                assert before[loser] not in wanted or all(before[one] in wanted for one in rivals)
                del held[loser]
            if not left:
                assert len(before) < 4
            held[connection] = host
        elif what == "members":
            names = dice.sample(NAMES, 2)
            gone = transport._members.keys() - set(names)
            transport.set_members({name: RaftMember(f"10.0.0.{dice.randrange(6)}", 1) for name in names})
            reached = {name: host for name, host in reached.items() if name not in gone}
        elif held:
            one = dice.choice(list(held))
            if what == "step":
                transport.stepped(one)
                held[one] = held.pop(one)
            else:
                host = held.pop(one)
                if what == "establish" and transport._members:
                    name = dice.choice(list(transport._members))
                    transport.established(one, name)
                    reached[name] = host
                elif what == "refuse":
                    transport.refused(one)
                transport.lost(one)
                ended.append(one)
        assert dict(transport._strangers._held) == held
        assert transport._hosts == reached
        for one in ended:
            transport.stepped(one)  # what comes late takes no place
    assert losers > 5


@pytest.mark.parametrize("seed", range(4))
async def test_refusals_are_told_once_each_until_the_peer_is_accepted_or_goes(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="oncegate.consensus.net.transport")
    walk = Walk(seed)
    dice, transport = walk.dice, walk.transport
    ours, theirs = set[tuple[str, str]](), set[tuple[str, str, bool]]()
    told = 0
    for _ in range(300):
        caplog.clear()
        name, reason = dice.choice((*NAMES, "n9")), dice.choice(("unknown", "wiped", "cloned"))
        connection: Any = Connection(name, None, 1, dialled=dice.random() < 0.5, refusal=reason)  # type: ignore[arg-type]
        what = dice.choice(("refuses", "refuses", "refused", "refused", "refused", "remember", "members"))
        if what == "refuses":
            transport.refuses(connection, reason)  # type: ignore[arg-type]
            new = (name, reason) not in ours
            ours.add((name, reason))
        elif what == "refused":
            transport.refused(connection)
            said = name, reason, connection.dialled
            new = said not in theirs and name in transport._members
            if name in transport._members:
                theirs.add(said)
        elif what == "remember":
            new = False
            transport.remember(name, Stamp("u", 1, ()))
            if name in transport._members:
                ours = {one for one in ours if one[0] != name}
                theirs = {one for one in theirs if one[0] != name}
        else:
            new = False
            names = dice.sample(NAMES, 2)
            gone = transport._members.keys() - set(names)
            transport.set_members({one: RaftMember("10.0.0.1", 1) for one in names})
            theirs = {one for one in theirs if one[0] not in gone}
        lines = [record for record in caplog.records if "refuse" in record.message]
        assert len(lines) == new
        told += new
        if new:
            level = logging.INFO if reason == "unknown" else logging.ERROR
            if what == "refused" and not connection.dialled:
                level = logging.WARNING
            assert lines[0].levelno == level
            assert name in lines[0].message
    assert told > 10


async def test_secrets_stay_as_they_are_if_the_certificates_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    walk = Walk(0)
    transport, before = walk.transport, walk.transport._credentials
    open_one: Any = Connection("n2", SECRETS[0], 1)
    transport.set_members({"n2": RaftMember("10.0.0.1", 1)})
    transport.established(open_one, "n2")
    contexts: Any = object()
    transport._tls = contexts

    def unreadable(tls: Any) -> None:
        raise OSError("no such file")

    monkeypatch.setattr("oncegate.consensus.net.transport.tls_contexts", unreadable)
    for secrets in (SECRETS[1:2], ()):
        with pytest.raises((OSError, ValueError)):
            transport.renew(secrets)
        assert transport._credentials is before
        assert transport._tls is contexts
        assert not open_one.ended


class Part:
    """Stands where dialling or listening stands, and notes in one list what it is told to do."""

    def __init__(self, name: str, steps: list[str], fault: Exception | None = None) -> None:
        self.name, self.steps, self.fault = name, steps, fault

    async def start(self, *_: Any) -> None:
        self.steps.append("listen")
        if self.fault is not None:
            raise self.fault

    def dial(self) -> None:
        self.steps.append("dial")

    def end(self, peer_id: str) -> None:
        self.steps.append(f"end {peer_id}")

    async def _stop(self) -> None:
        await asyncio.sleep(0)
        self.steps.append("dialling has stopped")

    def stop(self) -> Any:
        if self.name == "dialling":
            return self._stop()
        self.steps.append("listening has stopped")
        return None

    async def opened(self) -> None:
        self.steps.append("those that were opening are gone")


class Living(Connection):
    """A connection that closes when it is told to, or only when it is aborted."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, *, lingers: bool, seen: list[str]) -> None:
        super().__init__(name, None, 1)
        self.closed, self.lingers, self.seen = loop.create_future(), lingers, seen

    def close(self) -> None:
        self.seen.append("close")
        if not self.lingers and not self.closed.done():
            self.closed.get_loop().call_soon(self._gone)

    def abort(self) -> None:
        if not self.closed.done():
            self.seen.append("abort")
            self.closed.get_loop().call_soon(self._gone)

    def _gone(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


@pytest.mark.parametrize("has_tls", [False, True])
@pytest.mark.parametrize("lingers", [(False,), (True,), (False, True, False)])
async def test_a_transport_that_has_stopped_has_no_connection_and_makes_none(
    lingers: tuple[bool, ...], has_tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members that come before it listens or after it stops are not dialled; those that go never are again."""
    monkeypatch.setattr(transport_module, "_STOP_S", 0.01)
    walk, steps, loop = Walk(0), list[str](), asyncio.get_running_loop()
    transport, contexts = walk.transport, TlsContexts(object(), object())  # type: ignore[arg-type]
    options: dict[str, Any] = {}

    def listening(**given: Any) -> Part:
        options.update(given)
        return Part("listening", steps)

    monkeypatch.setattr(transport_module, "Listening", listening)
    monkeypatch.setattr(transport_module, "tls_contexts", lambda tls: contexts if has_tls else None)
    if has_tls:
        monkeypatch.setattr(transport, "config", replace(transport.config, tls=object()))  # type: ignore[arg-type]
    dials = transport._dialling._context
    monkeypatch.setattr(transport, "_dialling", Part("dialling", steps))
    transport.set_members({"n2": RaftMember("10.0.0.1", 1), "n3": RaftMember("10.0.0.2", 1)})
    assert not steps, "it does not listen yet"
    await transport.start()
    assert steps == ["listen", "dial"]
    assert dials() is (contexts.dialling if has_tls else None)
    assert options["context"]() is (contexts.listening if has_tls else None)
    transport.set_members({"n2": RaftMember("10.0.0.1", 1)})
    assert steps[2:] == ["end n3", "dial"]
    seen = [list[str]() for _ in lingers]
    live = [Living("n2", loop, lingers=one, seen=at) for one, at in zip(lingers, seen, strict=True)]
    for one in live:
        transport._live.add(one)  # type: ignore[arg-type]
    assert transport.admit(live[0])  # type: ignore[arg-type]
    steps.clear()
    await transport.stop()
    assert steps == ["dialling has stopped", "listening has stopped", "those that were opening are gone"]
    assert all(one.closed.done() for one in live)
    for one, at in zip(live, seen, strict=True):
        assert at == (["abort"] if has_tls else ["close", "abort"] if one.lingers else ["close"])
    assert not transport.admit(live[0])  # type: ignore[arg-type]
    steps.clear()
    transport.set_members({"n4": RaftMember("10.0.0.4", 1)})
    assert steps == ["end n2"], "nobody is dialled any more"


async def test_a_transport_that_cannot_listen_dials_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    walk, steps = Walk(0), list[str]()
    monkeypatch.setattr(transport_module, "Listening", lambda **_: Part("listening", steps, OSError("taken")))
    monkeypatch.setattr(walk.transport, "_dialling", Part("dialling", steps))
    with pytest.raises(OSError, match="taken"):
        await walk.transport.start()
    walk.transport.set_members({"n2": RaftMember("10.0.0.1", 1)})
    await walk.transport.stop()
    assert steps == ["listen", "dialling has stopped"]


async def test_secrets_that_are_no_secrets_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = Walk(0).transport
    read: list[Any] = []
    monkeypatch.setattr(transport_module, "tls_contexts", read.append)
    before = transport._credentials
    for secrets in ((), (b"short",), (SECRETS[0], b"")):
        with pytest.raises(ValueError):
            transport.renew(secrets)
    assert transport._credentials is before
    assert not read
