"""A stream of events against its rules, with nodes that end, refuse, freeze, or send it elsewhere, as a seed says.

The model beside it knows who has sent the stream away, who lacks the past, and since when nobody has told anything.
Time is the loop's own, and passes when nothing is left to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator
from typing import Any, Self

import aiohttp
import msgspec
import pytest

from oncegate import Code, DeadlineExceeded, OperationFailed, Outcome, Tuning
from oncegate.gateway.client.event_stream import SILENCE_S, EventStream
from oncegate.gateway.client.routing import Router
from oncegate.gateway.wire import H_ELSEWHERE, H_LEADER, Problem
from tests.client.answers import fails
from tests.client.small_cluster import StillLoop

NODES = ["http://a:1", "http://b:1", "http://c:1"]
TIMEOUT_S = 20.0
TRIES_MAX = 100
"""Of a stream that nobody serves: all nodes, then pauses that double, each half as long as it may be, or less."""
TUNING = Tuning(attempt_timeout_s=2.0, backoff_first_s=0.05, backoff_cap_s=1.0)
LOST = {
    "ends": "refused",
    "told the end": "refused",
    "cut": "unreachable",
    "falls silent": "silent",
    "not ready": "refused",
    "garbage": "unreachable",
    "no connection": "unreachable",
    "frozen": "silent",
    "elsewhere": "answered",
    "past": "",
}
"""Ways to lose a stream, each with what is noted of its node."""
WITHOUT_EVENTS = ("not ready", "garbage", "no connection", "frozen", "elsewhere", "past")


class NotingRouter(Router):
    """Notes what is told of nodes, with the leader that an answer names."""

    def __init__(self, *, leader: str | None) -> None:
        super().__init__(NODES)
        self.leader = leader
        self.noted: list[tuple[str, str, str | None]] = []

    def answered(self, endpoint: str, leader: str | None, now: float) -> None:
        self.noted.append((endpoint, "answered", leader))
        super().answered(endpoint, leader, now)

    def refused(self, endpoint: str, leader: str | None, now: float) -> None:
        self.noted.append((endpoint, "refused", leader))
        super().refused(endpoint, leader, now)

    def unreachable(self, endpoint: str, now: float, *, silent: bool = False) -> None:
        self.noted.append((endpoint, "silent" if silent else "unreachable", None))
        super().unreachable(endpoint, now, silent=silent)

    def rests(self, endpoint: str, now: float) -> bool:
        return self._rest_until.get(endpoint, 0.0) > now


def problem(code: str, *, retryable: bool, elsewhere: bool = False) -> bytes:
    return msgspec.json.encode(Problem("", "t", 503, code, "not_applied", retryable, "why", elsewhere=elsewhere))


class Answer:
    """An answer without an end, cut into pieces anywhere; ``how`` it ends."""

    def __init__(self, world: World, how: str, pieces: list[bytes]) -> None:
        self.status = 200 if how not in WITHOUT_EVENTS else 503
        self.headers = {} if world.names is None else {H_LEADER: world.names}
        self.content = self
        self._world, self._how, self._pieces = world, how, pieces

    async def __aenter__(self) -> Self:
        self._world.open += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._world.open -= 1
        self._world.since = min(self._world.since, self._world.clock())

    async def read(self) -> bytes:
        if self._how == "garbage":
            return b"<html>"
        code = "RETENTION_EXCEEDED" if self._how == "past" else "NOT_READY"
        return problem(code, retryable=self._how != "past", elsewhere=self._how == "elsewhere")

    async def readany(self) -> bytes:
        world = self._world
        assert world.streams == {self}, "a client that is left ends it"
        assert world.told - world.told_here == world.sent.count(b"\n\n"), "it reads on before it tells"
        await asyncio.sleep(world.dice.choice((0.0, 0.001, SILENCE_S - 1)))
        if self._pieces:
            world.sent += self._pieces[0]
            return self._pieces.pop(0)
        if self._how == "cut":
            raise aiohttp.ClientPayloadError
        if self._how == "falls silent":
            await asyncio.Event().wait()
        return b""


class World:
    """Nodes that all have the same events, 1, 2, 3 and so on, and the client's connection to them."""

    def __init__(self, seed: int, *, told_max: int, weights: dict[str, int]) -> None:
        self.dice = dice = random.Random(seed)
        self.loop = asyncio.get_running_loop()
        self.router = NotingRouter(leader=dice.choice([None, *NODES]))
        self.courier, self.tuning, self.headers = self, TUNING, {"Authorization": "x"}
        self.http: Any = self
        self.closed = False
        self.timeout_s = TIMEOUT_S
        self.clock = self.loop.time
        self.streams: set[Any] = set()
        self.places = self.open = 0
        self.names: str | None = None
        self.sent = b""
        self.told = 0
        self.since = self.clock()
        self.away: set[str] = set()
        self.past: set[str] = set()
        self.asked: list[tuple[str, str]] = []
        self.opened_at: list[float] = []
        self.given_up = self.lacking = 0
        self._last: tuple[str, str] | None = None
        self._told_max, self._weights = told_max, weights
        self.told_here = 0

    @contextlib.contextmanager
    def stream_place(self) -> Iterator[None]:
        self.places += 1
        try:
            yield
        finally:
            self.places -= 1

    async def open_stream(self, endpoint: str, path: str, headers: dict[str, str]) -> Answer:
        self.check_noted()
        self.opened_at.append(self.clock())
        self._check_choice(endpoint, headers)
        assert path == f"/from/{self.told}", "it goes on behind what was told"
        assert headers["Authorization"] == "x"
        assert not self.open
        assert not self.streams
        how = self.dice.choices([*self._weights], [*self._weights.values()])[0]
        if how == "elsewhere" and H_ELSEWHERE not in headers:
            how = "ends"
        self._last = endpoint, how
        self.asked.append(self._last)
        self.router.noted.clear()
        self.sent, self.told_here = b"", self.told
        self.names = self.dice.choice([None, *NODES])
        if how == "no connection":
            raise OSError
        if how == "frozen":
            await asyncio.Event().wait()
        return Answer(self, how, self._pieces(how))

    def _pieces(self, how: str) -> list[bytes]:
        if how in WITHOUT_EVENTS:
            return []
        count = self.dice.randint(0, min(4, self._told_max - self.told))
        whole = b"".join(b"event: n\ndata: %d\n\n" % (self.told + 1 + at) for at in range(count))
        if how == "told the end":
            whole += b"event: end\ndata: %b\n\n" % problem("NOT_READY", retryable=True)
        cuts = sorted(self.dice.choices(range(len(whole) + 1), k=self.dice.randint(0, 5)))
        return [piece for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True) if (piece := whole[a:b])]

    def check_noted(self) -> None:
        """What the last attempt has told of its node is noted, and nothing else."""
        if self._last is None:
            return
        endpoint, how = self._last
        wanted = [LOST[how]] if how in WITHOUT_EVENTS else ["answered", LOST[how]]
        leader = {"answered": self.names}
        assert self.router.noted == [(endpoint, one, leader.get(one)) for one in wanted if one], how
        if how == "elsewhere":
            self.away.add(endpoint)
        if how == "past":
            self.past.add(endpoint)

    def begins(self) -> None:
        """A reader opens a stream: nothing is known of nodes but to the router."""
        self.since = self.clock()
        self.away.clear()
        self.past.clear()
        self._last = None
        self.opened_at.clear()
        self.router.noted.clear()

    def _check_choice(self, endpoint: str, headers: dict[str, str]) -> None:
        now, router = self.clock(), self.router
        assert now < self.since + TIMEOUT_S, "no node has told anything for longer"
        assert endpoint not in self.past, "it does not keep what is asked for"
        if endpoint == router.leader or endpoint in self.away:
            better = [one for one in NODES if one not in self.past | self.away and one != router.leader]
            assert all(router.rests(one, now) for one in better), "a last resort"
        others = [one for one in NODES if one != endpoint and one not in self.past]
        assert (H_ELSEWHERE in headers) == (bool(others) and endpoint not in self.away)

    def took(self, name: str, data: bytes) -> None:
        """Note an event that the reader has got: in order, once, and as soon as it is whole."""
        self.told += 1
        assert (name, data) == ("n", b"%d" % self.told)
        self.away.clear()
        self.past.clear()
        self.since = float("inf")


async def _play(seed: int, weights: dict[str, int], events: int = 12) -> World:
    world = World(seed, told_max=events, weights=weights)
    while world.told < events:
        await _follow(world, events)
    return world


async def _follow(world: World, events: int) -> None:
    """Read until the last event, or until the stream is given up: then for a reason, and not too early."""
    stream = EventStream(world, lambda: f"/from/{world.told}", None)  # type: ignore[arg-type]
    source: Any = stream.events()
    world.begins()
    try:
        async for name, data in source:
            world.took(name, data)
            assert world.places == 1
            if world.dice.random() < 0.2:
                await asyncio.sleep(world.dice.choice((0.0, 3 * TIMEOUT_S)))  # a reader may be at work for long
            if world.told == events:
                return
    except OperationFailed as failure:
        _check_end(world, failure)
    finally:
        await source.aclose()
        assert not world.streams
        assert not world.open
        assert not world.places


def _check_end(world: World, failure: OperationFailed) -> None:
    world.check_noted()
    if isinstance(failure, DeadlineExceeded):
        world.given_up += 1
        late = [at for at in world.opened_at if at >= world.since]
        assert len(late) <= TRIES_MAX, "each node is asked again and again without a pause"
        assert failure.code is Code.TIMEOUT
        assert world.clock() + TUNING.backoff_cap_s >= world.since + TIMEOUT_S, "given up too early"
    else:
        world.lacking += 1
        assert failure.code is Code.RETENTION_EXCEEDED
        assert world.past == {*NODES}
    assert failure.outcome is Outcome.NOT_APPLIED


def play(seed: int, weights: dict[str, int]) -> World:
    random.seed(seed)
    with asyncio.Runner(loop_factory=StillLoop) as runner:
        return runner.run(_play(seed, weights))


def test_each_event_is_told_once_and_at_once_whatever_becomes_of_nodes() -> None:
    good = {"ends": 4, "told the end": 4, "cut": 4}
    worlds = [play(seed, {**dict.fromkeys(LOST, 1), **good, "past": 0}) for seed in range(40)]
    assert {how for world in worlds for _, how in world.asked} >= {*LOST} - {"past"}
    assert sum(world.given_up for world in worlds)


def test_past_that_one_node_keeps_is_asked_of_that_one_and_refused_once_none_does() -> None:
    worlds = [play(seed, {"past": 3, "ends": 4, "cut": 2, "elsewhere": 2, "not ready": 1}) for seed in range(40)]
    assert sum(world.lacking for world in worlds)


def test_stream_is_given_up_when_no_node_has_told_anything_for_its_time() -> None:
    worlds = [play(seed, {**dict.fromkeys(WITHOUT_EVENTS, 9), "past": 0, "ends": 5}) for seed in range(20)]
    assert sum(world.given_up for world in worlds) > 5


@pytest.mark.parametrize("how", ["answers", "ends"])
@pytest.mark.parametrize("detail", ["", "why"])
def test_final_refusal_ends_the_stream_at_once(how: str, detail: str) -> None:
    final = msgspec.json.encode(Problem("", "t", 403, "FORBIDDEN", "not_applied", False, detail))

    async def ends() -> None:
        world = World(0, told_max=0, weights={"told the end" if how == "ends" else "not ready": 1})
        source: Any = EventStream(world, lambda: "/from/0", None).events()  # type: ignore[arg-type]
        with pytest.raises(OperationFailed) as refused:
            await anext(source)
        told = refused.value.code, refused.value.outcome, refused.value.detail
        assert told == (Code.FORBIDDEN, Outcome.NOT_APPLIED, detail or "t")
        assert len(world.asked) == 1
        assert not world.streams
        assert not world.places

    with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=StillLoop) as runner:
        patch.setitem(globals(), "problem", lambda *_, **__: final)
        runner.run(ends())


async def _from(world: World, pieces: list[bytes]) -> list[bytes]:
    """Read what one answer tells, until it is lost for good."""
    told: list[bytes] = []

    async def open_stream(endpoint: str, path: str, headers: dict[str, str]) -> Answer:
        world.asked.append((endpoint, path))
        assert len(world.asked) < TRIES_MAX, "it is asked again and again without a pause"
        return Answer(world, "ends", list(pieces))

    world.open_stream = open_stream  # type: ignore[method-assign]
    source: Any = EventStream(world, lambda: "/from/0", 1.0).events()  # type: ignore[arg-type]
    with contextlib.suppress(DeadlineExceeded):
        async for _, data in source:
            told.append(data)
            world.told += 1
            if len(told) == 2:
                break
    await source.aclose()
    return told


@pytest.mark.parametrize("over", [0, 1])
def test_event_is_as_long_as_it_may_be_and_no_longer(over: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept of an event whose end has not come; a node, or what answers for it, may send without end."""
    monkeypatch.setattr("oncegate.gateway.client.event_stream.EVENT_BYTES_MAX", 1_000)
    event = b"data: " + b"x" * (994 + over)

    async def read() -> None:
        world = World(0, told_max=0, weights={"ends": 1})
        world.dice.choice = lambda _: 0.0  # type: ignore[method-assign, assignment, return-value]
        told = await _from(world, [event[:500], event[500:], b"\n\n"])
        assert told == ([] if over else [event[6:]] * 2)
        assert not world.streams

    with asyncio.Runner(loop_factory=StillLoop) as runner:
        runner.run(read())


@pytest.mark.parametrize("http", ["none", "closed"])
def test_stream_of_a_client_that_is_closed_is_refused(http: str) -> None:
    async def read() -> None:
        world = World(0, told_max=0, weights={"ends": 1})
        world.closed = http == "closed"
        world.http = world if http == "closed" else None
        source: Any = EventStream(world, lambda: "/from/0", None).events()  # type: ignore[arg-type]
        with fails(Code.CONFLICT, Outcome.NOT_APPLIED):
            await anext(source)
        assert not world.asked
        assert not world.places

    with asyncio.Runner(loop_factory=StillLoop) as runner:
        runner.run(read())
