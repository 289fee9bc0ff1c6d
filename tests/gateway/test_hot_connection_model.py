"""A connection between two readers: whichever serves a request, each gets the answer that it gets alone, in order.

Requests come one behind the other, cut anywhere; some are hot, some are aiohttp's, some are refused by the desk, some
are too large, some have a form that only aiohttp reads. Both readers are fakes here that answer with what they were
given, so that an answer tells whose body, token and type it was made from.
"""

from __future__ import annotations

import asyncio
import random
from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from oncegate.gateway.http.admission.bodies import BodyBudget
from oncegate.gateway.http.hot import connection as hot
from oncegate.gateway.http.hot.connection import Connection
from oncegate.gateway.http.hot.framing import Head
from oncegate.gateway.http.hot.shared import Shared
from oncegate.rifl.errors import Code, OncegateError

BODY_MAX = 50
BAD = "bad"


class Request(NamedTuple):
    """What is sent, and what its answer must be made of."""

    target: str
    token: str
    media: str
    key: int
    body: bytes
    odd: bool

    @property
    def head(self) -> bytes:
        odd = "TE: trailers\r\n" if self.odd else ""
        return (
            f"PUT {self.target} HTTP/1.1\r\nHost: h\r\nAuthorization: {self.token}\r\nContent-Type: {self.media}\r\n"
            f"Idempotency-Key: {self.key}\r\n{odd}Content-Length: {len(self.body)}\r\n\r\n"
        ).encode()

    @property
    def answer(self) -> bytes:
        return told(self.target, self.token, self.media, str(self.key), self.body)

    @property
    def is_hot(self) -> bool:
        return self.target.startswith("/hot") and self.token != BAD and len(self.body) <= BODY_MAX and not self.odd


def told(target: str, token: str, media: str, key: str, body: bytes) -> bytes:
    return f"[{target} {token} {media} {key} ".encode() + body + b"]"


class Transport:
    """A client's end."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.paused = self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False

    def get_extra_info(self, name: str) -> None:
        return None


class Side:
    """Aiohttp's half: reads what it is given, and answers one request after the other when the walk says so."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.unread = b""
        self.has_asked = False
        self.full = False

    def connection_made(self, transport: Transport) -> None:
        assert transport is self.walk.transport

    def connection_lost(self, fault: Exception | None) -> None:
        self.unread = b""

    def data_received(self, data: bytes) -> None:
        assert data, "a piece of a request"
        assert self.walk.under_way is None, "one answers at a time"
        self.unread += data
        self.has_asked |= b"\r\n\r\n" in self.unread

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False

    def force_close(self) -> None:
        self.unread = b""

    @property
    def is_idle(self) -> bool:
        return b"\r\n\r\n" not in self.unread

    def answers(self) -> bool:
        """Answer the first request, if it is whole."""
        head, end, rest = self.unread.partition(b"\r\n\r\n")
        if not end or self.full:
            return False
        first, *lines = head.decode().split("\r\n")
        named = dict(line.split(": ") for line in lines)
        length = int(named["Content-Length"])
        if len(rest) < length:
            return False
        self.unread = rest[length:]
        answer = told(
            first.split()[1], named["Authorization"], named["Content-Type"], named["Idempotency-Key"], rest[:length]
        )
        self.walk.transport.write(answer)
        return True


class Routes:
    """The hot routes: what the desk says of a head is looked up once for heads that are alike."""

    def find(self, head: Head) -> Any:
        return head.target if head.target.startswith("/hot") else None

    def form(self, head: Head, found: Any, known: Any) -> Any:
        return known or (head.headers["authorization"], head.headers["content-type"])

    def admit(self, head: Head, found: Any, form: Any) -> Any:
        if form[0] == BAD:
            raise OncegateError(Code.FORBIDDEN, "the desk refuses it")
        return head, form


class Walk:
    """A connection, its client, and who answers."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dice = random.Random(seed)
        walk = self

        class HotRequest:
            def __init__(self, exchange: Any, aside: Any, tell: Any) -> None:
                (self.head, self.form), self.tell = exchange, tell

            def begin(self, found: Any, body: bytes) -> None:
                assert walk.under_way is None
                assert not walk.full, "the client does not take what it has been answered"
                assert walk.side is None or walk.side.is_idle, "one answers at a time"
                assert walk.connection.idle_since_s == 0.0
                walk.under_way, walk.begun = self, walk.begun + 1
                assert found == self.head.target
                self.body = body
                if walk.dice.random() < 0.3:
                    self.answer()

            def answer(self) -> None:
                walk.under_way = None
                key = self.head.headers["idempotency-key"]
                token, media = self.form
                self.tell(told(self.head.target, token, media, key, self.body))

        monkeypatch.setattr(hot, "HotRequest", HotRequest)
        monkeypatch.setattr(hot, "BODY_BYTES_MAX", BODY_MAX)
        monkeypatch.setattr(hot, "WAITING_BYTES_MAX", self.dice.choice((100, 100_000)))
        self.places = set[object]()
        self.bodies = BodyBudget(1000, 1000, 1000)
        self.under_way: HotRequest | None = None
        self.side: Side | None = None
        self.full, self.begun = False, 0
        self.transport = Transport()
        guard = SimpleNamespace(has_room=lambda: True, add=self.places.add, discard=self.places.discard)
        aside = SimpleNamespace(bodies=self.bodies)
        others: list[Any] = [guard, aside, self.other_side, None, Routes()]
        self.connection = Connection(Shared(*others))
        self.connection.connection_made(cast("Any", self.transport))
        self.odd_share = self.dice.choice((0, 0, 0.1))
        kind = self.drawn(0)
        self.requests = [kind := self.like(kind, number) for number in range(40)]
        self.stream = b"".join(one.head + one.body for one in self.requests)
        stops = [0, *accumulate(len(one.head) + len(one.body) for one in self.requests)]
        self.ends = [
            (start + len(one.head), stop) for one, (start, stop) in zip(self.requests, pairwise(stops), strict=True)
        ]
        """Where each head and each request ends."""
        self.sent = 0

    def other_side(self) -> Side:
        assert self.side is None
        self.side = Side(self)
        return self.side

    def drawn(self, number: int) -> Request:
        dice = self.dice
        size = dice.choice((0, 3, 9, 30, BODY_MAX, BODY_MAX + 1, 90))
        return Request(
            dice.choice(("/hot/a", "/hot/b", "/hot/c", "/cold")),
            dice.choice(("ann", "bob", BAD)),
            dice.choice(("application/json", "application/msgpack")),
            number,
            bytes(dice.choices(b"abc\r\n\r\n", k=size)),
            dice.random() < self.odd_share,
        )

    def like(self, before: Request, number: int) -> Request:
        """Return one that is like the one before, but for what says which one it is; now and then any other."""
        other = self.drawn(number)
        if self.dice.random() < 0.2:
            return other
        return before._replace(key=number, body=other.body if self.dice.random() < 0.5 else before.body, odd=False)

    def send(self, upto: int) -> None:
        piece = self.stream[self.sent : upto]
        if piece and not self.transport.paused and not self.transport.closed:
            self.connection.get_buffer(-1)[: len(piece)] = piece
            self.sent, busy = upto, self.under_way is not None
            self.connection.buffer_updated(len(piece))
            assert not busy or self.transport.paused, "what is sent on waits in the socket"

    @property
    def heads(self) -> int:
        return sum(head <= self.sent for head, _ in self.ends)

    async def step(self) -> None:
        dice, answered = self.dice, len(self.transport.written)
        what = dice.choice(("some", "some", "alone", "alone", "hot", "hot", "side", "side", "turn", "look", "full"))
        if what == "some":
            self.send(min(len(self.stream), self.sent + dice.choice((1, 7, 60, 150, 400))))
        elif what == "alone" and answered < len(self.ends):
            is_free = not self.full and self.connection.is_idle and not self.connection._given
            starts = self.ends[answered - 1][1] if answered else 0
            begun = self.begun
            if self.sent == starts:
                self.send(self.ends[answered][1])
                if is_free:
                    assert self.begun - begun == self.requests[answered].is_hot
        elif what == "hot" and self.under_way is not None:
            self.under_way.answer()
        elif what == "side" and self.side is not None:
            self.side.answers()
        elif what == "look":
            self.connection.look()
        elif what == "full":
            self.turn_full(dice.random() < 0.3)
        for _ in range(dice.choice((0, 3))):
            await asyncio.sleep(0)
        self.check()

    def turn_full(self, full: bool) -> None:
        if full and not self.full:
            self.full = True
            self.connection.pause_writing()
        elif self.full and not full:
            self.full = False
            self.connection.resume_writing()

    def check(self) -> None:
        written = self.transport.written
        assert written == [one.answer for one in self.requests[: len(written)]]
        assert self.side is None or self.side.full == self.full
        unread = len(self.connection._unread)
        assert self.bodies.waiting_bytes <= hot.WAITING_BYTES_MAX, "what has no room is left to others at once"
        assert self.bodies.waiting_bytes in (0, unread) or (self.full and self.bodies.waiting_bytes < unread)

    async def settled(self) -> None:
        for _ in range(6):
            await asyncio.sleep(0)
        self.check()
        if self.heads > len(self.transport.written):
            assert not self.connection.is_idle, "also while its client does not take the answers before"
        if not self.full:
            assert self.connection.is_idle == (self.heads == len(self.transport.written))
            assert self.connection.has_asked == (self.heads > 0)
        if self.connection.is_idle and not self.full:
            assert not self.transport.paused
            self.connection.idle_since_s = 7.0

    async def finish(self) -> None:
        """Send the rest, and let everybody answer."""
        self.turn_full(False)
        for _ in range(2000):
            self.send(min(len(self.stream), self.sent + self.dice.randint(1, 300)))
            if self.under_way is not None:
                self.under_way.answer()
            if self.side is not None:
                self.side.answers()
            self.connection.look()
            await asyncio.sleep(0)
            if len(self.transport.written) == len(self.requests):
                break
        assert self.transport.written == [one.answer for one in self.requests]

    async def drain(self) -> None:
        """The node stops: what is under way is answered, and nothing else is begun."""
        is_hot, begun = self.under_way is not None, self.begun
        waiting = self.connection.drain()
        assert (waiting is not None) == is_hot
        assert waiting is self.connection.drain()
        if self.under_way is not None and waiting is not None:
            ended = [(self.transport.closed, waiting.done())]
            self.under_way.answer()
            assert [*ended, (self.transport.closed, waiting.done())] == [(False, False), (True, True)]
        await asyncio.sleep(0)
        assert self.begun == begun

    def lose(self) -> None:
        """The client goes; what is under way ends later, and is told to nobody."""
        written = len(self.transport.written)
        waiting = self.connection.drain() if self.dice.random() < 0.5 else None
        self.transport.closed = True
        self.connection.connection_lost(None)
        assert waiting is None or waiting.done()
        assert (self.places, self.bodies.waiting_bytes) == (set(), 0)
        if self.under_way is not None:
            self.under_way.answer()
        assert len(self.transport.written) == written


@pytest.mark.parametrize("seed", range(20))
async def test_requests_are_answered_in_order_and_each_as_alone_whoever_reads_them(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = Walk(seed, monkeypatch)
    for number in range(walk.dice.choice((30, 150, 400))):
        await walk.step()
        if number % 3 == 0:
            await walk.settled()
    await walk.finish()
    await walk.settled()
    walk.lose()


async def test_connection_ends_with_what_is_under_way_and_leaves_nothing_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seed in range(150):
        walk = Walk(seed, monkeypatch)
        for _ in range(walk.dice.randrange(50)):
            await walk.step()
        await walk.drain() if seed % 2 else walk.lose()


@pytest.mark.parametrize("seed", range(4))
async def test_only_what_does_not_arrive_at_once_is_left_to_others_and_the_next_is_hot_again(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request at a time, in pieces; a sweep comes between two pieces, if the head is there."""
    walk = Walk(4 * seed, monkeypatch)
    monkeypatch.setattr(hot, "WAITING_BYTES_MAX", 100_000)
    for number, (one, (head, end)) in enumerate(zip(walk.requests, walk.ends, strict=True)):
        if one.odd:
            break
        begun, stalled = walk.begun, False
        for cut in sorted(walk.dice.sample(range(walk.sent + 1, end), walk.dice.randint(0, 2))):
            walk.send(cut)
            assert not walk.transport.written[number:]
            if cut >= head and walk.dice.random() < 0.5:
                walk.connection.look()
                await asyncio.sleep(0)
                stalled = True
        walk.send(end)
        assert walk.begun - begun == (one.is_hot and not stalled)
        if walk.under_way is not None:
            walk.under_way.answer()
        elif not (one.is_hot and not stalled):
            assert walk.side is not None
            assert walk.side.answers()
        await walk.settled()
        assert len(walk.transport.written) == number + 1


@pytest.mark.parametrize("seed", range(8))
async def test_all_connections_wait_with_no_more_than_has_room_and_what_has_none_goes_to_others_at_once(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads and bodies arrive in pieces and none is whole: whichever part is missing, its bytes are counted until it is
    left to the other reader or its connection ends.
    """
    dice, bodies, most, left = random.Random(seed), BodyBudget(1000, 1000, 1000), 400, 0
    numbers, walks = iter(range(10_000)), dict[Walk, int]()
    """Those that wait, and with how many bytes."""

    def connected() -> Walk:
        walk = next(
            walk
            for walk in (Walk(next(numbers), monkeypatch) for _ in range(10_000))
            if walk.requests[0].is_hot and walk.requests[0].body
        )
        walk.connection._shared.aside.bodies = bodies
        return walk

    for _ in range(6):
        walks[connected()] = 0
    monkeypatch.setattr(hot, "WAITING_BYTES_MAX", most)
    for _ in range(150):
        walk = dice.choice(list(walks))
        if dice.random() < 0.1:
            walk.lose()
            del walks[walk]
        else:
            upto = min(walk.sent + dice.choice((1, 20, 60, 110)), walk.ends[0][1] - 1)
            wanted = sum(walks.values()) - walks[walk] + upto
            if upto == walk.sent:
                continue
            walk.send(upto)
            if wanted <= most:
                walks[walk] = upto
                assert walk.side is None
            else:
                assert walk.side is not None
                assert walk.side.unread == walk.stream[:upto]
                del walks[walk]
                left += 1
        assert bodies.waiting_bytes == sum(walks.values())
        while len(walks) < 6:
            walks[connected()] = 0
            monkeypatch.setattr(hot, "WAITING_BYTES_MAX", most)
    assert left > 5
