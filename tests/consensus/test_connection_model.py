"""Two ends of one connection, without sockets: whatever one writes behind the handshake, the other gets as it was sent.

Frames of every size up to the bound, both ways, cut anywhere, with each kind of protection; some go to two peers at
once, as the same object. And the ends of a connection: who is not admitted, not named by its certificate, too slow, too
large or does not read is closed, and nobody else is.
"""

from __future__ import annotations

import random
import socket
import ssl
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from oncegate.consensus.errors import ProtocolError
from oncegate.consensus.messages import CallRequest, Message
from oncegate.consensus.net import connection as net
from oncegate.consensus.net.connection import Connection
from oncegate.consensus.net.handshake import Acceptor, Credentials, Dialler, Stamp
from oncegate.consensus.net.sealing import TAG_BYTES
from oncegate.consensus.net.wire import Frame

FRAME_BYTES_MAX = 200_000
EDGES = (0, 100, 2_048, 4_096, 32 << 10, 64 << 10, 128 << 10, FRAME_BYTES_MAX)
"""Sizes of bodies at which something may change; the first of them is the smallest there is."""


def framed(size: int) -> tuple[CallRequest, Frame]:
    """Return a message whose body has that many bytes, if it can be so small."""
    payload = size
    while True:
        message = CallRequest(7, b"\x5a" * payload)
        frame = Frame(message)
        if len(frame.body) <= size or not payload:
            return message, frame
        payload -= min(payload, len(frame.body) - size)


def credentials(node_id: str, secret: bool) -> Credentials:
    return Credentials(
        cluster_id="c",
        node_id=node_id,
        stamp=Stamp(f"of {node_id}", 1, (7,)),
        secrets=(b"a secret of the cluster",) if secret else (),
        peer_ids={"n1", "n2", "n3"},
        judge=lambda peer_id, stamp: None,
    )


class Timer:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class End:
    """One end: owner and transport of a connection. What is written waits until :meth:`bring` takes it across."""

    def __init__(self, side: Dialler | Acceptor, names: tuple[str, ...] | None) -> None:
        self.config = SimpleNamespace(frame_bytes_max=FRAME_BYTES_MAX)
        self.loop: Any = self
        self.timers: list[tuple[float, Any, Timer]] = []
        self.written = bytearray()
        self.total = self.pending = 0
        self.closed = False
        self.admits = True
        self.heard: list[tuple[str, Message]] = []
        self.complaints: list[str] = []
        self.said: list[tuple[str, str]] = []
        self.known: list[tuple[str, Stamp]] = []
        self.up: list[str] = []
        self.gone: list[Connection] = []
        self.options: dict[Any, Any] = {}
        """What was set of the socket."""
        self.ends = self.steps = 0
        """How often who waits for the end was told it, and how often the handshake went on."""
        self.greeting: Frame | None = None
        """Written as soon as the handshake is over, as a leader does."""
        self.names = names
        self.connection = Connection(cast("Any", self), side)

    # the loop

    def create_future(self) -> Any:
        return SimpleNamespace(done=lambda: bool(self.ends), set_result=self._ended)

    def _ended(self, _: None) -> None:
        self.ends += 1

    def call_later(self, after_s: float, call: Any) -> Timer:
        self.timers.append((after_s, call, Timer()))
        return self.timers[-1][2]

    # the transport

    def get_extra_info(self, name: str) -> Any:
        names = self.names
        socket = SimpleNamespace(setsockopt=lambda level, option, value: self.options.update({(level, option): value}))
        certificate = {"subjectAltName": tuple(("DNS", one) for one in names or ())}
        tls = {} if names is None else {"ssl_object": object(), "peercert": certificate}
        return {"peername": ("h", 1), "socket": socket, **tls}.get(name)

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written += data
        self.total += len(data)

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return self.pending

    def abort(self) -> None:
        self.closed = True

    close = abort

    # the owner

    def admit(self, connection: Connection) -> bool:
        return self.admits

    def stepped(self, connection: Connection) -> None:
        assert not self.known, "who has proved itself is a stranger no more"
        self.steps += 1

    def remember(self, peer_id: str, stamp: Stamp) -> None:
        self.known.append((peer_id, stamp))

    def established(self, connection: Connection, peer_id: str) -> None:
        assert (connection.peer_id, connection.subject, self.known[-1][0]) == (peer_id,) * 3
        assert (connection._seal is None) == (self.names is not None or connection.secret is None)
        self.up.append(peer_id)
        if self.greeting is not None:
            assert connection.write_frame(self.greeting, 0)

    def refuses(self, connection: Connection, reason: str) -> None:
        self.said.append(("refuses", reason))

    def refused(self, connection: Connection) -> None:
        self.said.append(("refused", connection.refusal or ""))

    def complain(self, connection: Connection, error: Exception) -> None:
        self.complaints.append(str(error))

    def lost(self, connection: Connection) -> None:
        self.gone.append(connection)

    def received(self, connection: Connection, peer_id: str, messages: list[Message]) -> None:
        self.heard += [(peer_id, one) for one in messages]


class Pair:
    """Dialler and acceptor; ``names``: those of the certificate that each shows, None without TLS."""

    def __init__(self, dice: random.Random, secret: bool, names: dict[str, tuple[str, ...]] | None, to: str) -> None:
        self.dice = dice
        shown = (None, None) if names is None else (names[to], names["n1"])
        self.ends = (
            End(Dialler(credentials("n1", secret), to), shown[0]),
            End(Acceptor(credentials(to, secret)), shown[1]),
        )

    def open(self) -> None:
        for end in self.ends[::-1]:
            end.connection.connection_made(cast("Any", end))
        self.bring()

    def bring(self) -> None:
        """Take everything across, in pieces, until nobody has anything more to say."""
        while any(end.written and not other.closed for end, other in zip(self.ends, self.ends[::-1], strict=True)):
            for end, other in zip(self.ends, self.ends[::-1], strict=True):
                while end.written and not other.closed:
                    space = other.connection.get_buffer(-1)
                    cut = min(len(end.written), len(space), self.dice.choice((1, 30, 5_000, 1 << 20)))
                    space[:cut] = end.written[:cut]
                    del end.written[:cut]
                    other.connection.buffer_updated(cut)


NAMES = {"n1": ("n1",), "n2": ("x", "n2"), "n3": ("n3",)}
PROTECTION = {"MAC": (True, None, 4 + TAG_BYTES), "TLS": (True, NAMES, 8), "TLS alone": (False, NAMES, 8)}


@pytest.mark.parametrize("protection", PROTECTION)
@pytest.mark.parametrize("seed", range(2))
def test_frames_of_any_size_arrive_as_they_were_sent_at_each_peer(seed: int, protection: str) -> None:
    dice, (secret, names, header) = random.Random(seed), PROTECTION[protection]
    pairs = [Pair(dice, secret, names, to) for to in ("n2", "n3")]
    for pair in pairs:
        pair.open()
        for end, peer in zip(pair.ends, (pair.ends[1], pair.ends[0]), strict=True):
            assert len(end.up) == 1
            assert end.steps == 2, "each step of the handshake was told"
            assert end.known == [(end.up[0], Stamp(f"of {end.up[0]}", 1, (7,)))]
            assert all(timer.cancelled for _, _, timer in end.timers), "the handshake is over"
            assert (end.connection.epoch, end.connection.secret) == (peer.connection.epoch, peer.connection.secret)
    before = [[end.total for end in pair.ends] for pair in pairs]
    sizes = [edge + off for edge in EDGES for off in (-21, -1, 0, 1, 21) if edge + off <= FRAME_BYTES_MAX]
    sent: list[list[list[Message]]] = [[[], []], [[], []]]
    dice.shuffle(sizes)
    for size in sizes:
        message, frame = framed(max(0, size))
        for at in dice.choice(((0,), (1,), (0, 1))):
            side = dice.randrange(2)
            pairs[at].ends[side].pending = 1_000
            assert pairs[at].ends[side].connection.write_frame(frame, 1_000)
            sent[at][side].append(message)
            before[at][side] += header + len(frame.body)
        if dice.random() < 0.5:
            dice.choice(pairs).bring()
    for at, pair in enumerate(pairs):
        pair.bring()
        assert [end.total for end in pair.ends] == before[at], "one header each, as the protection has it"
        for end, said in zip(pair.ends, sent[at][::-1], strict=True):
            assert end.complaints == []
            assert end.heard == [(end.up[0], one) for one in said]


@pytest.mark.parametrize("protection", PROTECTION)
@pytest.mark.parametrize("over", [0, 1])
def test_frame_of_the_largest_size_is_taken_and_one_more_byte_ends_the_connection(protection: str, over: int) -> None:
    secret, names, _ = PROTECTION[protection]
    pair = Pair(random.Random(over), secret, names, "n2")
    pair.open()
    _, frame = framed(FRAME_BYTES_MAX + over)
    assert len(frame.body) == FRAME_BYTES_MAX + over
    pair.ends[0].connection.write_frame(frame, 0)
    pair.bring()
    end = pair.ends[1]
    assert (end.closed, len(end.complaints), len(end.heard)) == ((True, 1, 0) if over else (False, 0, 1))


@pytest.mark.parametrize("dialler_is_it", [True, False])
def test_peer_whose_certificate_names_another_node_is_neither_remembered_nor_heard(dialler_is_it: bool) -> None:
    names = {**NAMES, "n1" if dialler_is_it else "n2": ("n3", "N1", "N2")}
    pair = Pair(random.Random(1), True, names, "n2")
    pair.open()
    end = pair.ends[1 if dialler_is_it else 0]
    assert (end.known, end.up, end.closed, len(end.complaints)) == ([], [], True, 1)
    assert "certificate" in end.complaints[0]
    if dialler_is_it:
        assert pair.ends[0].up == [], "it was told nothing from which it could take itself for connected"


def test_connection_that_is_not_admitted_or_too_slow_is_closed_before_a_word() -> None:
    for admits in (False, True):
        pair = Pair(random.Random(1), True, None, "n2")
        end = pair.ends[0]
        end.admits = admits
        end.connection.connection_made(cast("Any", end))
        assert (end.closed, bool(end.written)) == (not admits, admits)
        [(after_s, call, timer)] = end.timers
        assert after_s == net.HANDSHAKE_S
        assert not timer.cancelled
        call()
        assert end.closed


def test_peer_that_does_not_read_is_closed_beyond_what_may_wait_for_it() -> None:
    pair = Pair(random.Random(1), True, None, "n2")
    pair.open()
    end, (_, frame) = pair.ends[0], framed(100)
    for pending, taken in ((500, True), (501, False), (0, False)):
        end.pending = pending
        total = end.total
        assert end.connection.write_frame(frame, 500) is taken
        assert (end.closed, end.total > total) == (not taken, taken)


def test_connection_that_is_lost_during_its_handshake_takes_its_timer_along() -> None:
    pair = Pair(random.Random(1), True, None, "n2")
    end = pair.ends[1]
    end.connection.connection_made(cast("Any", end))
    end.connection.connection_lost(None)
    assert end.gone == [end.connection]
    assert all(timer.cancelled for _, _, timer in end.timers)


@pytest.mark.parametrize("reason", ["wiped", "cloned", "unknown"])
@pytest.mark.parametrize("refuser", [0, 1])
def test_peer_that_is_not_wanted_is_told_why_and_both_ends_close_with_nothing_remembered(
    refuser: int, reason: str
) -> None:
    pair = Pair(random.Random(1), True, None, "n2")
    given = pair.ends[refuser].connection._side
    assert given is not None
    own = vars(given)["_credentials"]
    changed = {"peer_ids": ()} if reason == "unknown" else {"judge": lambda peer_id, stamp: reason}
    vars(given)["_credentials"] = replace(own, **changed)
    pair.open()
    one, other = pair.ends[refuser], pair.ends[1 - refuser]
    assert one.said == [("refuses", reason)]
    assert other.said == [("refused", reason)]
    for end in pair.ends:
        assert (end.known, end.up, end.heard, end.complaints, end.closed) == ([], [], [], [], True)
        assert end.connection.peer_id is None
        assert not end.connection.write_frame(framed(100)[1], 500)


@pytest.mark.parametrize("protection", PROTECTION)
@pytest.mark.parametrize("seed", range(4))
def test_what_comes_right_behind_the_handshake_is_heard_by_both_once(seed: int, protection: str) -> None:
    secret, names, _ = PROTECTION[protection]
    pair, (message, frame) = Pair(random.Random(seed), secret, names, "n2"), framed(100)
    for end in pair.ends:
        end.greeting = frame
    pair.open()
    assert [end.heard for end in pair.ends] == [[("n2", message)], [("n1", message)]]


@pytest.mark.parametrize(("protection", "name"), [("MAC", "a MAC on each frame"), ("TLS", "TLS"), ("TLS alone", "TLS")])
def test_a_connection_says_whose_it_is_where_it_comes_from_and_what_protects_it(protection: str, name: str) -> None:
    secret, names, _ = PROTECTION[protection]
    pair = Pair(random.Random(1), secret, names, "n2")
    dialler, acceptor = (end.connection for end in pair.ends)
    assert (dialler.dialled, dialler.subject, dialler.claimed_id) == (True, "n2", "n2")
    assert (acceptor.dialled, acceptor.subject, acceptor.claimed_id) == (False, "a stranger", "")
    acceptor.host = "where it came from"
    pair.open()
    assert (dialler.host, acceptor.host) == ("h", "where it came from")
    assert (dialler.subject, acceptor.subject) == ("n2", "n1")
    assert (dialler.claimed_id, acceptor.claimed_id) == ("", "")
    assert dialler.protection == acceptor.protection == name
    assert (dialler.dialled, acceptor.dialled) == (True, False)
    for end in pair.ends:
        tcp, anyhow = socket.IPPROTO_TCP, socket.SOL_SOCKET
        assert end.options == {
            (tcp, socket.TCP_NODELAY): 1,
            (anyhow, socket.SO_KEEPALIVE): 1,
            (tcp, socket.TCP_KEEPIDLE): 2,
            (tcp, socket.TCP_KEEPINTVL): 1,
            (tcp, socket.TCP_USER_TIMEOUT): net._SILENT_LINK_MS,
        }


def test_a_connection_without_a_secret_has_nothing_but_checksums() -> None:
    pair = Pair(random.Random(1), False, None, "n2")
    pair.open()
    assert [end.connection.protection for end in pair.ends] == ["nothing but checksums"] * 2
    assert [end.connection.secret for end in pair.ends] == [None, None]


def test_the_end_of_a_connection_is_told_once_and_nothing_is_done_to_it_any_more() -> None:
    for opens in (False, True):
        pair = Pair(random.Random(1), True, None, "n2")
        end, (_, frame) = pair.ends[0], framed(100)
        end.connection.close()
        end.connection.abort()
        assert not end.closed, "there is no socket yet"
        if opens:
            pair.open()
        for told in (1, 2):
            end.connection.connection_lost(None)
            assert (end.ends, end.gone) == (1, [end.connection] * told)
        total = end.total
        end.connection.close()
        end.connection.abort()
        assert not end.closed, "its socket is gone, and may be somebody else's"
        assert not end.connection.write_frame(frame, 500)
        assert end.total == total


def test_a_socket_that_waits_for_tls_is_closed_by_an_abort() -> None:
    end, shut = Pair(random.Random(1), True, None, "n2").ends[1], list[int]()

    def shutdown(how: int) -> None:
        shut.append(how)
        raise OSError("it is gone already")

    end.connection.accepted = cast("Any", SimpleNamespace(shutdown=shutdown))
    end.connection.abort()
    assert (shut, end.closed) == ([socket.SHUT_RDWR], False)
    end.connection.connection_lost(None)
    end.connection.abort()
    assert len(shut) == 1


@pytest.mark.parametrize(
    ("certificate", "is_it"),
    [
        ({"subjectAltName": (("DNS", "n2"),)}, True),
        ({"subjectAltName": (("IP Address", "n2"), ("URI", "n2"))}, False),
        ({"subject": ((("commonName", "n2"),),)}, True),
        ({"subject": ((("organizationName", "n2"),), (("commonName", "n3"),))}, False),
        ({"subject": ((("organizationName", "o"), ("commonName", "n2")),), "subjectAltName": ()}, True),
        ({}, False),
        (None, False),
    ],
)
def test_a_node_is_who_its_certificate_names_as_a_host_or_as_its_subject(certificate: Any, is_it: bool) -> None:
    end = Pair(random.Random(1), True, NAMES, "n2").ends[0]
    real = end.get_extra_info
    vars(end)["get_extra_info"] = lambda name: certificate if name == "peercert" else real(name)
    end.connection._check_certificate("n2")  # there is no socket yet, so there is nothing to compare
    end.connection.connection_made(cast("Any", end))
    if is_it:
        end.connection._check_certificate("n2")
    else:
        with pytest.raises(ProtocolError, match="does not name n2"):
            end.connection._check_certificate("n2")


def test_peers_are_met_with_the_newest_tls_and_the_certificates_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    fault: list[Exception] = []

    class Context:
        def __init__(self, protocol: Any) -> None:
            self.protocol, self.loaded = protocol, list[Any]()
            made.append(self)

        def load_cert_chain(self, certificate: Any, key: Any, password: str) -> None:
            if fault:
                raise fault[0]
            self.loaded.append((certificate, key, password))

        def load_verify_locations(self, authority: Any) -> None:
            self.loaded.append(authority)

    monkeypatch.setattr(ssl, "SSLContext", Context)
    assert net.tls_contexts(None) is None
    assert not made
    tls: Any = SimpleNamespace(certificate="c", key="k", authority="a")
    contexts: Any = net.tls_contexts(tls)
    assert [contexts.dialling, contexts.listening] == made
    assert [one.protocol for one in made] == [ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER]
    for one in made:
        assert one.minimum_version == ssl.TLSVersion.TLSv1_3
        assert one.verify_mode == ssl.CERT_REQUIRED
        assert one.check_hostname is False, "whose certificate it is, the handshake looks at"
        assert one.loaded == [("c", "k", ""), "a"]
    fault.append(ssl.SSLError("another key"))
    with pytest.raises(OSError, match="peers cannot be met"):
        net.tls_contexts(tls)
