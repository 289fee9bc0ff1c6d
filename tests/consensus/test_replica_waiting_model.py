"""Who waits at one replica, against lists: for a read point, for an index to be applied, for the next tick.

A read at a follower ends with the answer to a question that was asked after the read came, of the node that was asked,
on the connection that was there then, or it is told that the leader was lost; none is forgotten, and one question is
open at a time. What is asked of the leader gets one answer each. The ticker ticks at the engine's deadline at the
latest, and once for all that wants a tick soon.
"""

from __future__ import annotations

import asyncio
import math
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from oncegate.consensus.errors import ConsensusError, NoLeader, NotLeader, NotReady, PeerUnavailable, Stopped
from oncegate.consensus.messages import Message, ReadReply, ReadRequest
from oncegate.consensus.net.calls import Calls
from oncegate.consensus.replica import ticker as waiting
from oncegate.consensus.replica.inbound import Inbound
from oncegate.consensus.replica.read_points import ReadPoints
from oncegate.consensus.replica.ticker import AppliedWaiters, FollowerReads, Ticker, fail

LEADERS = ("n2", "n3")
LONG_S = 3_600.0


class Engine:
    """A follower's, or one that leads, as the walk says."""

    tick_wanted = False

    def __init__(self) -> None:
        self.leader_id: str | None = "n2"
        self.fault: ConsensusError | None = None
        self.reads: list[asyncio.Future[object]] = []
        self.shown: list[str] = []
        self.leading = self.peers = self.inbox = self

    def read(self, token: asyncio.Future[object]) -> None:
        if self.fault is not None:
            raise self.fault
        self.reads.append(token)

    def is_connected(self, peer_id: str, epoch: int) -> bool:
        return True

    def show_commit(self, peer_id: str) -> None:
        self.shown.append(peer_id)

    def peer_up(self, peer_id: str, epoch: int) -> None:
        pass

    def peer_down(self, peer_id: str) -> None:
        pass


class Asking:
    """A follower whose reads ask the leader, and what of each read is known beside it."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.engine = Engine()
        self.asked: list[tuple[str, int]] = []
        """All questions; the number of each is its place, from 1 on."""
        self.waiting: list[asyncio.Task[int]] = []
        self.open: list[asyncio.Task[int]] = []
        self.to = ""
        self.reads = FollowerReads(self.sent, fail)
        self.points = ReadPoints(self.reads, lambda: None)
        ticks: Any = SimpleNamespace(soon=lambda: None, tick=lambda: None)
        self.calls = Calls(lambda peer, message: True, None, 1_024)
        self.called: dict[str, list[list[bytes | ConsensusError]]] = {peer: [] for peer in LEADERS}
        """What the calls were told that are open, by the peer that was called."""
        engine = cast("Any", self.engine)
        self.inbound = Inbound(engine, self.calls, self.reads, self.points, ticks, lambda peer, message: None)
        self.ended: dict[str, int] = dict.fromkeys(("answered", "not ready", "lost", "nobody"), 0)

    def sent(self, peer_id: str, message: Message) -> None:
        assert isinstance(message, ReadRequest)
        assert not self.open, "one question is open at a time"
        assert peer_id == self.engine.leader_id
        self.asked.append((peer_id, message.number))
        assert message.number == len(self.asked)
        self.open, self.waiting, self.to = self.waiting, [], peer_id
        assert self.open

    async def turns(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0)

    async def tell(self, tasks: list[asyncio.Task[int]], what: str, index: int | None = None) -> None:
        await self.turns()
        for task in tasks:
            self.ended[what] += 1
            assert task.done(), what
            if what == "answered":
                assert task.result() == index
            else:
                assert type(task.exception()) is (NotReady if what == "not ready" else NoLeader)

    async def add(self) -> None:
        self.engine.fault = NotLeader(self.engine.leader_id)
        task = asyncio.create_task(self.points.read(cast("Any", self.engine), LONG_S))
        if self.engine.leader_id is None:
            await self.tell([task], "nobody")
        else:
            self.waiting.append(task)
            await self.turns()

    async def tick(self) -> None:
        """As the ticker does."""
        if self.reads.waiting:
            await self.asks(lambda: self.reads.ask(self.engine.leader_id))

    async def asks(self, does: Any) -> None:
        """Whatever asks next: if nobody is known to lead then, those that wait are told so."""
        nobody = self.engine.leader_id is None and not self.open
        told = self.waiting if nobody else []
        does()
        if nobody:
            self.waiting = []
        await self.tell(told, "nobody")

    async def reply(self) -> None:
        peer_id = self.dice.choice((self.to or "n2", self.to or "n2", "n2", "n3"))
        number = max(1, len(self.asked) - self.dice.choice((0, 0, 0, 1)))
        index = self.dice.choice((None, self.dice.randrange(1_000)))
        fits = bool(self.open) and (peer_id, number) == self.asked[-1] and peer_id == self.to
        answered, what = (self.open if fits else []), ("not ready" if index is None else "answered")
        if fits:
            self.open = []
        await self.asks(lambda: self.inbound.peer_said(peer_id, 1, [ReadReply(number, index)]))
        await self.tell(answered, what, index)

    async def up(self) -> None:
        peer_id = self.dice.choice(LEADERS)
        if self.open and peer_id == self.to:
            self.open, self.waiting = [], self.open + self.waiting
        self.inbound.peer_up(peer_id, 1)
        self.no_answer_comes(peer_id)

    async def down(self) -> None:
        peer_id = self.dice.choice(LEADERS)
        lost = self.open if self.to != self.engine.leader_id else []
        if lost:
            self.open = []
        self.inbound.peer_down(peer_id)
        self.no_answer_comes(peer_id)
        await self.tell(lost, "lost")

    async def call(self) -> None:
        peer_id, told = self.dice.choice(LEADERS), list[bytes | ConsensusError]()
        self.calls.ask(peer_id, b"call", LONG_S, told.append)
        self.called[peer_id].append(told)

    def no_answer_comes(self, peer_id: str) -> None:
        """What was asked on a connection ends with it, also if a new one takes its place at once."""
        for told in self.called[peer_id]:
            assert [type(one) for one in told] == [PeerUnavailable]
        self.called[peer_id] = []

    async def lead(self) -> None:
        self.engine.leader_id = self.dice.choice((*LEADERS, *LEADERS, None))

    async def step(self) -> None:
        await self.dice.choice(
            (self.add, self.add, self.tick, self.tick, self.reply, self.reply, self.up, self.down, self.lead, self.call)
        )()
        await self.turns()
        assert not any(task.done() for task in self.open + self.waiting), "nobody else is told anything"
        assert not any(told for open_calls in self.called.values() for told in open_calls)
        assert len(self.reads.waiting) == len(self.waiting)


@pytest.mark.parametrize("seed", range(6))
async def test_read_ends_with_the_answer_to_a_question_that_was_asked_behind_it_and_none_is_forgotten(
    seed: int,
) -> None:
    asking = Asking(seed)
    for _ in range(250):
        await asking.step()
    assert min(asking.ended.values()) > 0
    left = asking.open + asking.waiting
    await asking.calls.stop()
    asking.reads.stop(Stopped("the node stops"))
    await asking.turns()
    assert [type(task.exception()) for task in left] == [Stopped] * len(left)


@pytest.mark.parametrize("seed", range(3))
async def test_each_question_of_a_follower_gets_one_answer_under_its_own_number(seed: int) -> None:
    dice, engine, reads = random.Random(seed), Engine(), FollowerReads(lambda peer, message: None, fail)
    points, wakes = ReadPoints(reads, lambda: wakes.append(1)), list[int]()
    told: dict[tuple[str, int], list[int | None]] = {}
    open_now: list[tuple[str, int]] = []
    shown: list[str] = []
    for number in range(1, 200):
        peer_id, woken = dice.choice(LEADERS), len(wakes)
        engine.fault = dice.choice(
            (None, None, None, NotLeader("n3"), NotLeader(None), NotReady("no entry of its own"))
        )
        slot = told[peer_id, number] = []

        def tell(reply: ReadReply, number: int = number, slot: list[int | None] = slot) -> None:
            assert reply.number == number
            slot.append(reply.index)

        points.serve(cast("Any", engine), peer_id, number, tell)
        assert slot == ([None] if engine.fault else [])
        assert len(wakes) - woken == (engine.fault is None)
        if engine.fault is None:
            open_now.append((peer_id, number))
        while open_now and dice.random() < 0.4:
            at = dice.randrange(len(open_now))
            who, future = open_now.pop(at), engine.reads.pop(at)
            index: int | None = dice.choice((None, 5, number))
            if index is None:
                future.set_exception(NotLeader("n3"))
            else:
                future.set_result(index)
            await asyncio.sleep(0)
            assert told[who] == [index]
            shown.append(who[0])
            assert engine.shown == shown, "the follower is shown how far it may apply at once"


@pytest.mark.parametrize("seed", range(4))
async def test_waiter_is_told_when_its_index_is_applied_and_not_before(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_WAITERS_KEPT", 6)
    dice, waiters, applied = random.Random(seed), AppliedWaiters(), 0
    left: list[tuple[int, asyncio.Future[None]]] = []
    loop = asyncio.get_running_loop()
    for _ in range(600):
        what = dice.choice(("add", "add", "add", "give up", "apply"))
        if what == "add":
            one = applied + dice.randint(1, 12), loop.create_future()
            waiters.add(*one)
            left.append(one)
        elif what == "give up" and left:
            left.pop(dice.randrange(len(left)))[1].cancel()
        elif what == "apply":
            applied += dice.choice((0, 1, 1, 3))
            if waiters.next_index <= applied:  # as the ticker asks
                waiters.applied(applied)
            assert waiters.next_index > applied
        assert [future.done() for _, future in left] == [index <= applied for index, _ in left]
        left = [one for one in left if not one[1].done()]
        assert waiters.next_index <= min([index for index, _ in left], default=math.inf)
        assert len(waiters._heap) <= max(6, len(left) + 6), "those that gave up are not kept for good"
    waiters.stop(Stopped("the node stops"))
    assert [type(future.exception()) for _, future in left] == [Stopped] * len(left)
    assert waiters.next_index == math.inf


class Loop:
    """Time that the test moves; calls in order."""

    def __init__(self) -> None:
        self.now, self.soon, self.timers = 0.0, list[Any](), list[Any]()

    def time(self) -> float:
        return self.now

    def call_soon(self, call: Any) -> None:
        self.soon.append(call)

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, call: Any) -> Any:
        handle = SimpleNamespace(when=lambda: when, call=call)
        handle.cancel = lambda: self.timers.remove(handle)
        self.timers.append(handle)
        return handle

    def run(self) -> None:
        due = [one for one in self.timers if one.when() <= self.now]
        for one in due:
            self.timers.remove(one)
            one.call()
        calls, self.soon = self.soon, []
        for call in calls:
            call()


@pytest.mark.parametrize("seed", range(6))
def test_engine_ticks_at_its_deadline_at_the_latest_and_once_for_all_that_comes_until_then(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice, loop = random.Random(seed), Loop()
    monkeypatch.setattr("oncegate.consensus.replica.ticker.asyncio", SimpleNamespace(get_running_loop=lambda: loop))
    applier = SimpleNamespace(applied_index=0)
    engine = SimpleNamespace(applier=applier, leader_id="n2", due=1.0, ticks=0, more=False)
    asked, told = list[str](), list[int]()
    reads: Any = SimpleNamespace(waiting=[], ask=asked.append)
    waiters: Any = SimpleNamespace(next_index=math.inf, applied=told.append)

    def tick() -> bool:
        engine.ticks += 1
        engine.due = loop.now + dice.choice((0.5, 1.0, 4.0))
        more, engine.more = bool(engine.more), False
        return more

    engine.tick, engine.deadline = tick, lambda: engine.due
    ticker = Ticker(waiters, reads, cast("Any", None))
    ticker.soon()
    assert loop.soon == []
    ticker.start(cast("Any", engine))
    ticker.tick()
    for _ in range(400):
        before, wanted = engine.ticks, 0
        more = engine.more = dice.random() < 0.1
        waiters.next_index = dice.choice((engine.applier.applied_index, engine.applier.applied_index + 1))
        reads.waiting = dice.choice(([], [1]))
        seen = len(told), len(asked)
        for _ in range(dice.choice((0, 0, 1, 12))):
            dice.choice((ticker.soon, ticker.wake))()
            wanted = 1
        if dice.random() < 0.2:
            ticker.tick()
            wanted = 1
        elif dice.random() < 0.2:
            engine.due += dice.choice((0.25, 3.0))
        for _ in range(4):
            loop.run()
        loop.run()
        ticked = engine.ticks - before
        if wanted:
            assert ticked >= 1
            assert ticked <= 3 + more, "one for all, and one for what workers ended before and behind a tick at once"
        if ticked:
            assert (len(told) > seen[0]) is (waiters.next_index <= engine.applier.applied_index)
            assert (len(asked) > seen[1]) is bool(reads.waiting)
        assert loop.now < engine.due, "it has not overslept"
        assert len(loop.timers) == 1
        loop.now += dice.choice((0.0, 0.25, 1.0))
        for _ in range(3):
            loop.run()
        assert loop.now < engine.due
    ticker.stop()
    ticker.soon()
    before = engine.ticks
    loop.now += 100
    for _ in range(4):
        loop.run()
    assert (engine.ticks, loop.timers) == (before, [])
