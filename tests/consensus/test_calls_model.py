"""Calls between nodes, against a table of those that are open: each is answered once, by whom it was asked, in time.

Answers come late, twice, from somebody else, or for numbers of an earlier process; peers go away; who asks gives up, or
asks again while it is being told. The test plays the connections and the clock.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from oncegate.consensus.errors import CallFailed, ConsensusError, Overloaded, PeerUnavailable, Timeout
from oncegate.consensus.messages import CallReply, CallRequest
from oncegate.consensus.net import calls as calls_module
from oncegate.consensus.net.calls import Calls

PEERS, BYTES_MAX, CALLS_MAX = ("n1", "n2", "n3"), 10, 8


@dataclass
class Timer:
    at: float
    call: Callable[..., None]
    args: tuple[Any, ...]
    cancelled: bool = False

    def when(self) -> float:
        return self.at

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """The loop's clock and its timers."""

    def __init__(self) -> None:
        self.now_s = 50.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, at: float, call: Callable[..., None], *args: Any) -> Timer:
        self.timers.append(Timer(at, call, args))
        return self.timers[-1]

    def pass_to(self, until_s: float) -> None:
        while due := [one for one in self.timers if not one.cancelled and one.at <= until_s]:
            first = min(due, key=Timer.when)
            self.timers.remove(first)
            self.now_s = max(self.now_s, first.at)
            first.call(*first.args)
        self.timers = [one for one in self.timers if not one.cancelled]
        self.now_s = until_s


@dataclass(eq=False)
class Asked:
    """A call by the model."""

    peer: str
    due_s: float
    told: list[Any] = field(default_factory=list)
    again: bool = False
    """Asks once more when it is told."""


class Walk:
    """One node's calls, and the model of those that are open."""

    def __init__(self, seed: int, clock: Clock) -> None:
        self.dice, self.clock = random.Random(seed), clock
        self.up = set(PEERS)
        self.sent: list[tuple[str, CallRequest]] = []
        self.open: dict[int, Asked] = {}
        self.ended: list[Asked] = []
        self.numbers = 0
        self.ends = 0
        self.calls = Calls(self.send, None, BYTES_MAX)

    def send(self, peer: str, message: Any) -> bool:
        if peer in self.up:
            self.sent.append((peer, message))
        return peer in self.up

    def ask(self) -> None:
        peer, payload = self.dice.choice(PEERS), bytes(self.dice.choice((0, 5, BYTES_MAX, BYTES_MAX, BYTES_MAX + 1)))
        timeout_s = self.dice.choice((0.0, 1.0, 2.0, 2.0, 9.0))
        asked = Asked(peer, self.clock.now_s + timeout_s, again=self.dice.random() < 0.2)
        refusal: type[ConsensusError] | None = None
        if len(payload) > BYTES_MAX or len(self.open) >= CALLS_MAX:
            refusal = Overloaded
        elif peer not in self.up:
            refusal = PeerUnavailable
        self.sent.clear()

        def answered(came: bytes | ConsensusError) -> None:
            asked.told.append(came)
            number = next(number for number, one in self.open.items() if one is asked)
            del self.open[number]
            self.ended.append(asked)
            self.ends += 1
            if asked.again:
                self.ask()

        came: ConsensusError | None = None
        number = 0
        try:
            number = self.calls.ask(peer, payload, timeout_s, answered)
        except ConsensusError as error:
            came = error
        assert type(came) is (type(None) if refusal is None else refusal)
        assert came is None or came.outcome == "not_applied"
        if refusal is None:
            assert number > self.numbers, "a number that was used is an answer's to mistake"
            self.numbers = number
            self.open[number] = asked
            assert self.sent == [(peer, CallRequest(number, payload))]

    def reply(self) -> None:
        number = self.dice.choice([*self.open, self.dice.randrange(1, self.numbers + 3)])
        asked = self.open.get(number)
        peer = asked.peer if asked is not None and self.dice.random() < 0.7 else self.dice.choice(PEERS)
        payload, failure = self.dice.choice(((b"", None), (b"told", None), (None, "no"), (None, None)))
        expected = asked if asked is not None and peer == asked.peer else None
        before = self.ends
        self.calls.replied(peer, CallReply(number, payload, failure))
        if expected is None:
            assert self.ends == before
            return
        (came,) = expected.told
        assert came == payload if payload is not None else isinstance(came, CallFailed)

    def peer(self) -> None:
        peer = self.dice.choice(PEERS)
        if peer not in self.up:
            self.up.add(peer)
            return
        self.up.discard(peer)
        lost = [asked for asked in self.open.values() if asked.peer == peer]
        others = [asked for asked in self.open.values() if asked.peer != peer]
        self.calls.peer_down(peer)
        for asked in lost:
            (came,) = asked.told
            assert isinstance(came, PeerUnavailable)
            assert came.outcome == "unknown"
        assert not any(asked.told for asked in others)

    def time(self) -> None:
        open_before = list(self.open.values())
        self.clock.pass_to(self.clock.now_s + self.dice.choice((0.0, 0.5, 1.0, 3.0)))
        for asked in open_before:
            assert bool(asked.told) == (asked.due_s <= self.clock.now_s)
            if asked.told:
                assert isinstance(asked.told[0], Timeout)
                assert asked.told[0].outcome == "unknown"

    def give_up(self) -> None:
        if self.open:
            number = self.dice.choice(list(self.open))
            del self.open[number]
            self.calls.give_up(number)

    def step(self) -> None:
        getattr(self, self.dice.choice(("ask", "ask", "ask", "reply", "reply", "peer", "time", "give_up")))()
        assert {number: one.node_id for number, one in self.calls._open.items()} == {
            number: asked.peer for number, asked in self.open.items()
        }
        assert all(len(asked.told) == 1 for asked in self.ended)
        armed = [timer.at for timer in self.clock.timers if not timer.cancelled]
        assert len(armed) <= 1
        if self.open:
            assert armed
            assert armed[0] <= min(asked.due_s for asked in self.open.values())


@pytest.mark.parametrize("seed", range(10))
def test_each_call_has_one_end_from_whom_it_was_asked_at_its_deadline_at_the_latest(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(calls_module, "_CALLS_MAX", CALLS_MAX)
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: clock)
    walk = Walk(seed, clock)
    for _ in range(600):
        walk.step()
    assert walk.ends > 20


@pytest.mark.parametrize("seed", range(4))
async def test_calls_that_are_served_are_bounded_and_each_is_told_what_came_of_it(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_module, "_CALLS_MAX", CALLS_MAX)
    dice, held, replies = random.Random(seed), dict[bytes, asyncio.Future[Any]](), list[CallReply]()

    async def serve(peer_id: str, payload: bytes) -> bytes:
        held[payload] = asyncio.get_running_loop().create_future()
        return await held[payload]  # type: ignore[no-any-return]

    def at_once(payload: bytes, tell: Callable[[bytes], None]) -> bool:
        if payload.startswith(b"now"):
            tell(payload * dice.choice((1, 4)))
        elif payload.startswith(b"bug"):
            raise ValueError("a bug")
        return payload.startswith(b"now")

    calls = Calls(lambda *_: True, serve, BYTES_MAX, at_once)
    serving: dict[bytes, int] = {}
    for number in range(1, 150):
        kind = dice.choice((b"", b"", b"", b"now", b"bug"))
        payload = kind + b"%d" % number
        replies.clear()
        calls.requested(dice.choice(PEERS), CallRequest(number, payload), replies.append)
        await asyncio.sleep(0)
        if kind:
            (reply,) = replies
            assert reply.number == number
            assert (reply.payload is None) == (reply.failure is not None)
            assert kind == b"now" or reply.failure == "ValueError: a bug"
            assert reply.payload is None or len(reply.payload) <= BYTES_MAX
        elif len(serving) >= CALLS_MAX:
            assert replies == [CallReply(number, None, "too many calls")]
        else:
            assert not replies
            serving[payload] = number
        while serving and dice.random() < 0.4:
            ended = dice.choice(list(serving))
            told = dice.choice((b"x", b"x" * BYTES_MAX, b"x" * (BYTES_MAX + 1), "text", ValueError("a bug")))
            replies.clear()
            if isinstance(told, Exception):
                held[ended].set_exception(told)
            else:
                held[ended].set_result(told)
            for _ in range(3):
                await asyncio.sleep(0)
            (reply,) = replies
            assert reply.number == serving.pop(ended)
            sound = isinstance(told, bytes) and len(told) <= BYTES_MAX
            assert (reply.payload, reply.failure is None) == (told if sound else None, sound)
        assert len(calls._serving) == len(serving)
    await calls.stop()


@pytest.mark.parametrize("seed", range(4))
async def test_nobody_waits_and_nothing_is_served_any_more_once_all_has_stopped(seed: int) -> None:
    """Whoever asked in either way is told that the outcome is unknown; who has given up is told nothing."""
    dice, sent, serving = random.Random(seed), list[tuple[str, CallRequest]](), set[bytes]()
    told, replies = list[tuple[int, Any]](), list[CallReply]()

    async def serve(peer_id: str, payload: bytes) -> bytes:
        serving.add(payload)
        try:
            await asyncio.Event().wait()
            return b""
        finally:
            await asyncio.sleep(0)
            serving.remove(payload)

    def send(peer_id: str, message: Any) -> bool:
        sent.append((peer_id, message))
        return True

    calls = Calls(send, serve, BYTES_MAX)
    waiting = [asyncio.create_task(calls.call(dice.choice(PEERS), b"%d" % at, 60.0)) for at in range(6)]
    for at in range(6):
        calls.ask(dice.choice(PEERS), b"x", 60.0, partial(lambda of, came: told.append((of, came)), at))
        calls.requested("n1", CallRequest(at, b"%d" % at), replies.append)
    await asyncio.sleep(0)
    gone = dice.sample(waiting, 2)
    for task in gone:
        task.cancel()
    peer_id, request = sent[0]
    calls.replied(peer_id, CallReply(request.number, None, "no room"))
    await asyncio.sleep(0)
    assert len(calls._open) == 12 - 2 - 1
    armed = calls._timer
    assert len(serving) == 6
    await calls.stop()
    assert not serving, "what was served has ended before stop returns"
    assert not calls._open
    assert armed is not None
    assert armed.cancelled()
    for task in waiting:
        (end,) = await asyncio.gather(task, return_exceptions=True)
        if task in gone:
            assert isinstance(end, asyncio.CancelledError)
        else:
            assert isinstance(end, PeerUnavailable)
            assert end.outcome == "unknown"
    assert sorted(at for at, _ in told) == list(range(6)), "each once"
    (failed,) = [came for _, came in told if isinstance(came, CallFailed)]
    assert "no room" in str(failed)
    assert {type(came) for _, came in told} == {PeerUnavailable, CallFailed}
    assert not replies


def test_who_serves_no_calls_says_so_once_and_only_bytes_are_asked() -> None:
    replies, none = list[CallReply](), Calls(lambda *_: True, None, BYTES_MAX)
    none.requested("n1", CallRequest(7, b"x"), replies.append)
    assert replies == [CallReply(7, None, "this node serves no calls")]
    assert not none._serving
    text: Any = "text"
    with pytest.raises(TypeError):
        none.ask("n1", text, 1.0, lambda came: None)
    assert not none._open
