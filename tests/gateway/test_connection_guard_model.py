"""Which connections are ended, closed and refused, whatever they do, against a model that keeps what each sweep saw.

All moments are multiples of half a second, and so are the bounds: one that is off by a moment shows.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import resource
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from oncegate.consensus.config import EVERY_ADDRESS
from oncegate.gateway.http.admission import connections
from oncegate.gateway.http.admission.connections import (
    EVICTED_SHARE,
    SENT_BYTES_MIN,
    SWEEP_S,
    ConnectionCounts,
    Guard,
    Patience,
)
from oncegate.gateway.node.fitness import DESCRIPTORS_RESERVED

HEADERS_S, IDLE_S, UNSENT_S = 2.0, 3.0, 2.5
PLACES = 40
UNSENT_MAX = 12 * SENT_BYTES_MIN


class Clock:
    """The event loop as far as a guard knows it."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.due.append((delay_s, call))


class Connection:
    """A connection that is what the test says, and what became of it."""

    def __init__(self, made_s: float) -> None:
        self.made_s = made_s
        self.idle_since_s = self.unsent_since_s = 0.0
        self.unsent_bytes = self.pending_bytes = self.looks = 0
        self.has_asked = False
        self.is_idle = True
        self.calls: list[str] = []
        self.seen: list[tuple[float, bool, int]] = []
        """Of each sweep since it has asked: when, whether it was idle, and what was unsent."""

    def look(self) -> None:
        self.looks += 1

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")

    def drain(self) -> asyncio.Future[None] | None:
        return None

    def idles_for_s(self) -> float:
        """Return for how long every sweep found it idle with nothing unsent, up to the last."""
        since = now_s = self.seen[-1][0]
        for at_s, idle, size in reversed(self.seen):
            if not idle or size:
                break
            since = at_s
        return now_s - since

    def takes_nothing_for_s(self) -> float:
        """Return for how long what is unsent has not become less by what has to be taken."""
        marks: list[tuple[float, int]] = []
        for at_s, _, size in self.seen:
            if not size:
                marks.clear()
            elif not marks or size <= marks[-1][1] - SENT_BYTES_MIN:
                marks.append((at_s, size))
        return self.seen[-1][0] - marks[-1][0] if marks else 0.0


class Walk:
    def __init__(self, seed: int) -> None:
        self.dice, self.clock, self.counts = random.Random(seed), Clock(), ConnectionCounts()
        patience = Patience(PLACES, int(HEADERS_S * 1000), int(IDLE_S * 1000), int(UNSENT_S * 1000), UNSENT_MAX)
        self.guard = Guard(patience, self.counts)
        self.guard._loop = self.clock  # type: ignore[assignment]
        self.there: list[Connection] = []
        self.told = {"ended": 0, "refused": 0}

    def step(self) -> None:
        for one in self.there:
            self.behave(one)
        if self.dice.random() < 0.05:
            for one in self.there:
                one.has_asked, one.is_idle = True, False
            self.come()
        what = self.dice.choice(("come", "come", "sweep", "sweep", "go", "time"))
        if what == "come":
            for _ in range(self.dice.choice((1, 5, 30))):
                self.come()
        elif what == "sweep":
            self.sweep()
        elif what == "go" and self.there:
            gone = self.dice.choice(self.there)
            self.there.remove(gone)
            self.guard.discard(gone)
        else:
            self.clock.now_s += self.dice.choice((0.5, 1.0))
        assert list(self.guard.connections) == self.there
        assert self.counts == ConnectionCounts(len(self.there), self.told["refused"], self.told["ended"])

    def behave(self, one: Connection) -> None:
        if self.dice.random() < 0.2:
            one.has_asked = True
        if one.has_asked and self.dice.random() < 0.2:
            one.is_idle = not one.is_idle
            takes = self.dice.choice((0, 1, SENT_BYTES_MIN - 1, SENT_BYTES_MIN, SENT_BYTES_MIN + 1))
            lumps = self.dice.randrange(5) * SENT_BYTES_MIN + self.dice.choice((0, 0, 0, 1))
            one.pending_bytes = self.dice.choice((0, max(0, one.pending_bytes - takes), lumps))

    def come(self) -> None:
        idle = [one for one in self.there if one.is_idle]
        chosen: list[Connection] = []
        if len(self.there) >= PLACES:
            silent = [one for one in idle if not one.has_asked]
            order = silent + [one for one in idle if one.has_asked]
            chosen = order[: 1 + len(idle) // EVICTED_SHARE]
        has_room = len(self.there) - len(chosen) < PLACES
        assert self.guard.has_room() == has_room
        self.check(aborted=chosen, closed=[])
        if has_room:
            self.there.append(Connection(self.clock.now_s))
            self.guard.add(self.there[-1])
        else:
            self.told["refused"] += 1

    def sweep(self) -> None:
        now_s, aborted, closed = self.clock.now_s, list[Connection](), list[Connection]()
        unsent: list[Connection] = []
        for one in self.there:
            if not one.has_asked:
                if now_s > one.made_s + HEADERS_S:
                    aborted.append(one)
                continue
            one.seen.append((now_s, one.is_idle, one.pending_bytes))
            if one.idles_for_s() > IDLE_S:
                closed.append(one)
            elif one.takes_nothing_for_s() > UNSENT_S:
                aborted.append(one)
            elif one.pending_bytes:
                unsent.append(one)
        unsent.sort(key=lambda one: -one.pending_bytes)
        while sum(one.pending_bytes for one in unsent) > UNSENT_MAX:
            aborted.append(unsent.pop(0))
        looks = [one.looks for one in self.there]
        swept = list(self.there)
        self.clock.due.clear()
        self.guard.sweep()
        assert [one.looks for one in swept] == [look + 1 for look in looks]
        assert self.clock.due == [(SWEEP_S, self.guard.sweep)]
        self.check(aborted=aborted, closed=closed)

    def check(self, *, aborted: list[Connection], closed: list[Connection]) -> None:
        for one in self.there:
            assert one.calls == ["abort"] * (one in aborted) + ["close"] * (one in closed), vars(one)
            one.calls.clear()
        self.there = [one for one in self.there if one not in aborted]
        self.told["ended"] += len(aborted)


@pytest.mark.parametrize("seed", range(8))
async def test_connections_end_close_and_are_refused_as_what_each_sweep_saw_says(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(250):
        walk.step()
    assert all(walk.told.values()), walk.told


async def test_guard_that_closes_drains_each_connection_and_waits_for_all_that_are_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    walk, drained = Walk(0), list[int]()
    for number in range(5):
        walk.come()
        under_way = asyncio.get_running_loop().create_future() if number % 2 else None

        def drain(number: int = number, under_way: Any = under_way) -> Any:
            drained.append(number)
            return under_way

        monkeypatch.setattr(walk.there[-1], "drain", drain)
    closing = asyncio.create_task(walk.guard.close())
    for end in (1, 3):
        for _ in range(5):
            await asyncio.sleep(0)
        assert (drained, closing.done()) == ([0, 1, 2, 3, 4], False)
        walk.there[end].drain().set_result(None)  # type: ignore[union-attr]
        drained.pop()
    await closing


def test_a_node_takes_the_descriptors_that_it_may_have_and_no_more_connections_than_these_are_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over limits around all bounds; a limit that is high enough is left alone, and the hard one never changes."""
    no_limit, some = resource.RLIM_INFINITY, DESCRIPTORS_RESERVED
    limits: list[int] = []
    monkeypatch.setattr(resource, "getrlimit", lambda what: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda what, given: limits.__setitem__(slice(None), given))
    levels = (1, some, some + 1, some + 99, some + 100, some + 101, some + 500, no_limit)
    for soft, hard in itertools.product(levels, levels):
        if hard != no_limit and (soft == no_limit or soft > hard):
            continue
        limits[:] = [soft, hard]
        connections.raise_descriptor_limit(100)
        wanted = some + 100 if hard == no_limit else min(some + 100, hard)
        expected = soft if soft == no_limit else max(soft, wanted)
        assert limits == [expected, hard], (soft, hard)
        allowed = connections.connections_allowed(100)
        assert allowed == (100 if expected == no_limit else max(1, min(100, expected - some)))


async def test_a_connection_without_a_place_is_told_so_and_is_gone_soon_whatever_its_client_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    did, later = list[Any](), list[tuple[float, Any]]()
    transport: Any = SimpleNamespace(write=did.append, close=lambda: did.append("close"), abort="abort")
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda delay_s, call: later.append((delay_s, call)))
    connections.refuse(transport)
    answer, closed = did
    assert (closed, later) == ("close", [(connections.REFUSED_S, "abort")])
    head, body = answer.split(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert status == "HTTP/1.1 429 Too Many Requests"
    assert (headers["Connection"], headers["Content-Length"]) == ("close", str(len(body)))
    assert b'"code":"OVERLOADED"' in body


async def test_a_guard_that_has_closed_sweeps_no_more() -> None:
    guard = Guard(Patience(1, 1, 1, 1, 1), ConnectionCounts())
    guard.sweep()
    timer = guard._timer
    assert timer is not None
    assert not timer.cancelled()
    await guard.close()
    assert timer.cancelled()


@pytest.mark.parametrize("tls", [None, "TLS"])
@pytest.mark.parametrize("host", ["127.0.0.1", EVERY_ADDRESS])
async def test_a_site_listens_where_it_says_and_its_guard_sweeps_as_long_as_it_does(
    host: str, tls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, steps = list[Any](), list[str]()

    async def wait_closed() -> None:
        steps.append("closed")

    async def drain() -> None:
        steps.append("drain")

    async def create_server(connect: Any, *place: Any, **options: Any) -> Any:
        asked.append((connect, *place, options))
        return SimpleNamespace(close=lambda: steps.append("close"), wait_closed=wait_closed)

    monkeypatch.setattr(asyncio.get_running_loop(), "create_server", create_server)
    runner = web.AppRunner(web.Application())
    await runner.setup()
    guard: Any = SimpleNamespace(sweep=lambda: steps.append("sweep"), close=drain)
    connect: Any = object()
    site = connections.GuardedSite(runner, host, 7, guard, connect, tls=tls)
    assert site.name == f"{'https' if tls else 'http'}://{host}:7"
    assert not asked
    await site.start()
    assert site in runner.sites
    patience_s = connections.HANDSHAKE_S if tls else None
    options = {"ssl": tls, "backlog": connections.BACKLOG, "ssl_handshake_timeout": patience_s}
    assert asked == [(connect, None if host == EVERY_ADDRESS else host, 7, options)]
    assert steps == ["sweep"]
    await site.stop()
    assert (steps[1], steps[-1]) == ("close", "drain"), "nobody comes in while the last are drained"
    assert site not in runner.sites
    await runner.cleanup()
