"""Commands at a proposer, whatever becomes of leaders, entries, frames and time: each comes to one honest end.

The test plays the loop, the replica and the clock. What it holds the proposer to: an end that says "not applied" is
told of no command that an entry or a frame may still bring into the log; nobody waits beyond the deadline; entries are
as full as their bound allows and no fuller; and what is counted as in flight is what nobody has ended.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from oncegate.consensus import errors as ce
from oncegate.gateway import wire
from oncegate.gateway.answer_values import MSGPACK
from oncegate.gateway.answers import Answer
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.levels import NEWEST
from oncegate.gateway.node import proposer
from oncegate.gateway.node.attempts import Waiting
from oncegate.gateway.node.between_leaders import HOLD_MS
from oncegate.gateway.node.commit_stall import STALLED_S
from oncegate.gateway.node.forwarding import PROPOSE, Relayed
from oncegate.gateway.node.group_commit import SMALL_BYTES
from oncegate.gateway.node.proposer import SWEEP_S, Leadership, Proposer
from oncegate.gateway.node.refusals import packed
from oncegate.rifl.errors import Code, OncegateError, Outcome

BODY = wire.SessionOpened("1", 1, 60_000, 64)
ENTRY_BYTES_MAX, ANSWER_S = 2 * SMALL_BYTES, 5.0
LATEST_S = ANSWER_S + 2 * SWEEP_S + HOLD_MS / 1000
"""What waits for a leader when its deadline passes is ended when it is held no more."""
COMMANDS_MAX, BYTES_MAX = 40, 10 * SMALL_BYTES
SIZES = (64, 64, 64, SMALL_BYTES // 2, SMALL_BYTES, SMALL_BYTES + 1, ENTRY_BYTES_MAX, ENTRY_BYTES_MAX + 1)
FAULTS = (None, None, None, None, ce.LeadershipLost("lost"), ce.NotLeader(None), ce.StorageError("damaged"))


class Loop:
    """Turns and timers in the test's hands."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.ready: deque[tuple[contextvars.Context | None, Callable[..., Any], tuple[Any, ...]]] = deque()
        self.timers: list[tuple[float, int, asyncio.TimerHandle]] = []

    def get_debug(self) -> bool:
        return False

    def time(self) -> float:
        return self.now_s

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)  # type: ignore[arg-type]

    def call_soon(self, call: Callable[..., Any], *args: Any, context: contextvars.Context | None = None) -> None:
        self.ready.append((context, call, args))

    def call_at(self, when: float, call: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, call, args, self)  # type: ignore[arg-type]
        heapq.heappush(self.timers, (when, len(self.timers) + id(handle), handle))
        return handle

    def call_later(self, delay_s: float, call: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        return self.call_at(self.now_s + delay_s, call, *args)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Asked by handles that are cancelled."""

    def settle(self) -> None:
        while self.ready:
            context, call, args = self.ready.popleft()
            context.run(call, *args) if context is not None else call(*args)

    def pass_to(self, until_s: float) -> None:
        """Let time go by, timer by timer."""
        while self.timers and self.timers[0][0] <= until_s:
            when, _, handle = heapq.heappop(self.timers)
            if not handle.cancelled():
                self.now_s = max(self.now_s, when)
                handle._run()
                self.settle()
        self.now_s = until_s


class Told:
    """Who waits for a command, and what it was told when."""

    def __init__(self) -> None:
        self.ends: list[Any] = []
        self.may_be_in_the_log: Callable[[], bool] = lambda: False

    def done(self) -> bool:
        return bool(self.ends)

    def set_result(self, answer: Answer) -> None:
        self.ends.append(answer.body)

    def set_exception(self, fault: BaseException) -> None:
        assert isinstance(fault, OncegateError)
        self.ends.append(fault)
        assert (fault.outcome is Outcome.UNKNOWN) == self.may_be_in_the_log(), f"it was told {fault!r}"


@dataclass
class Item:
    """A command by the model: whose hands it is in besides the proposer's."""

    number: int
    size: int
    ordered_s: float
    told: Told
    out: int = 0
    """Entries and frames under way that have it."""
    doubtful: bool = False
    """An entry or a frame that had it has ended, and may have brought it into the log."""


@dataclass
class Out:
    """An entry or a frame under way."""

    items: list[Item]
    end: Any
    leader: str = ""
    number: int = 0


class Walk:
    """Stands for the replica and the machine as well."""

    def __init__(self, seed: int, loop: Loop) -> None:
        self.dice = random.Random(seed)
        self.loop = loop
        self.sizes = self.dice.choice((SIZES, SIZES, (SMALL_BYTES, ENTRY_BYTES_MAX), (64, 65)))
        """At times such as fill a bound exactly."""
        self.done = self.dice.choice((0.2, 1.0, 1.0))
        """How likely an entry or a frame comes to its end when it might."""
        self.level = NEWEST
        self.commit = 0
        self.stalled = 0.0
        self.items: dict[int, Item] = {}
        self.entries: list[Out] = []
        self.frames: list[Out] = []
        self.turn: list[list[Item]] = []
        """Entries of this turn of the loop."""
        self.plain = True
        """Nothing in this turn was held back, or refused by the replica."""
        self.asked = self.proposals = 0
        self.wrong: list[str] = []
        self.leadership = Leadership(leads=True, leader_id="n1", node_id="n1")
        clock = SimpleNamespace(stamp_ms=lambda now_s: 1)
        self.proposer = Proposer(
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            clock,  # type: ignore[arg-type]
            self.leadership,
            lambda now_s: False,
            entry_bytes_max=ENTRY_BYTES_MAX,
            answer_s=ANSWER_S,
        )

    # what it calls

    def stalled_s(self) -> float:
        return self.stalled

    def propose(self, entry: bytes) -> asyncio.Future[Any]:
        self.must(self.leadership.leads, "a follower proposes")
        items = [self.items[int(command.nonce)] for command in c.decode_entry(entry).commands]  # type: ignore[union-attr]
        fault = self.dice.choice(
            (None,) * 12 + (ce.NotLeader(None), ce.Transferring("away"), ce.CommandRefused(9, 1, 8))
        )
        if fault is not None:
            self.plain = False
            raise fault
        self.take(items)
        self.proposals += 1
        self.turn.append(items)
        self.entries.append(Out(items, self.loop.create_future()))
        return self.entries[-1].end  # type: ignore[no-any-return]

    def ask(self, leader: str, payload: bytes, *, timeout_s: float, answered: Callable[[Any], None]) -> int:
        self.must(leader == self.leadership.leader_id != "n1", f"{leader} does not lead")
        commands = c.decode_commands(payload.removeprefix(PROPOSE))
        items = [self.items[int(command.nonce)] for command in commands]  # type: ignore[union-attr]
        self.take(items)
        self.asked += 1
        self.frames.append(Out(items, answered, leader, self.asked))
        return self.asked

    def give_up(self, number: int) -> None:
        [frame] = [one for one in self.frames if one.number == number]
        self.frames.remove(frame)
        for item in frame.items:
            item.out -= 1
            item.doubtful = True  # whoever has it may still do it

    def take(self, items: list[Item]) -> None:
        for item in items:
            late = self.loop.now_s >= item.ordered_s + ANSWER_S + 2 * SWEEP_S
            self.must(not item.out, f"{item.number} is under way twice")
            self.must(not item.told.ends and not item.doubtful, f"{item.number} was ended, and is sent again")
            self.must(not late, f"{item.number} is sent too late")
            item.out += 1

    def must(self, holds: bool, why: str) -> None:
        """Note what does not hold: an exception raised in here is the proposer's to catch."""
        if not holds:
            self.wrong.append(why)

    # what it does

    def order(self) -> None:
        number = len(self.items) + 1
        item = Item(number, self.dice.choice(self.sizes), self.loop.now_s, Told())
        self.items[number] = item
        item.told.may_be_in_the_log = lambda: bool(item.out or item.doubtful)
        counted = [one for one in self.items.values() if self.is_counted(one) and one is not item]
        full = len(counted) >= COMMANDS_MAX or sum(one.size for one in counted) + item.size > BYTES_MAX
        stalled = bool(self.proposer._stall) and self.stalled >= STALLED_S
        refused: Code | None = None
        try:
            self.proposer.order(Waiting(c.OpenSession(str(number), 60_000, 64), item.size, item.told))
        except OncegateError as refusal:
            item.told.ends.append(refusal)
            refused = refusal.code
        assert refused is (Code.NOT_READY if stalled else Code.OVERLOADED if full else None)

    def end_entry(self) -> None:
        out = self.entries.pop(self.dice.randrange(len(self.entries)))
        fault = self.dice.choice(FAULTS)
        for item in out.items:
            item.out -= 1
            item.doubtful = not isinstance(fault, ce.NotLeader)
        if fault is None:
            out.end.set_result([item.number for item in out.items])
        else:
            out.end.set_exception(fault)

    def end_frame(self) -> None:
        out = self.frames.pop(self.dice.randrange(len(self.frames)))
        how = self.dice.choice(("answer", "answer", "not_led", "quota", "lost"))
        refusal = {"not_led": Code.NOT_LEADER, "quota": Code.QUOTA}.get(how)
        for item in out.items:
            item.out -= 1
            item.doubtful = how in ("answer", "lost")
        if how == "lost":
            out.end(ce.PeerUnavailable(out.leader, "lost", outcome="unknown"))
        elif refusal is not None:
            out.end(MSGPACK.encode([Relayed(refusal=packed(OncegateError(refusal)))] * len(out.items)))
        else:
            out.end(MSGPACK.encode([Relayed(BODY) for _ in out.items]))

    def lead(self) -> None:
        leads, leader = self.dice.choice(((True, "n1"),) * 4 + ((False, "n1"), (False, "n2"), (False, None)))
        self.leadership.leads, self.leadership.leader_id = leads, leader
        if leader not in ("n1", None):
            self.proposer.leader_known(leader)
        self.proposer.led()

    def stall(self) -> None:
        self.stalled = self.dice.choice((0.0, 0.0, STALLED_S))
        if self.stalled or self.dice.random() < 0.5:  # else nobody has looked since entries commit again
            self.proposer.stall("it stands" if self.stalled else "")

    def step(self) -> None:
        what = self.dice.choice(("order",) * 6 + ("entry", "entry", "frame", "lead", "stall", "time"))
        if what == "order":
            for _ in range(self.dice.choice((1, 1, 2, 6))):
                self.order()
        elif what == "entry" and self.entries and self.dice.random() < self.done:
            self.end_entry()
        elif what == "frame" and self.frames and self.dice.random() < self.done:
            self.end_frame()
        elif what == "lead" and self.dice.random() < 0.5:
            self.lead()
        elif what == "stall" and self.dice.random() < 0.3:
            self.stall()
        elif what == "time":
            self.loop.pass_to(self.loop.now_s + self.dice.choice((0.05, 0.3, 0.7, 2.0)))
        self.turn.clear()
        self.plain = not self.proposer._between._held
        self.loop.settle()
        if what == "order" and self.plain:
            self.check_entries()
        self.check()

    # what holds

    def is_counted(self, item: Item) -> bool:
        """In flight: an entry or a frame has it, or it is held, or nobody was told an end of it."""
        held = {int(one.command.nonce) for batch, _ in self.proposer._between._held for one in batch}  # type: ignore[union-attr]
        return bool(item.out) or not item.told.ends or item.number in held

    def check_entries(self) -> None:
        """Entries of one turn are in the order of coming, and two neighbours would not have fitted one."""
        for before, after in zip(self.turn, self.turn[1:], strict=False):
            assert before[-1].number < after[0].number
            assert sum(one.size for one in before) + after[0].size > ENTRY_BYTES_MAX
        for entry in self.turn:
            assert [one.number for one in entry] == sorted(one.number for one in entry)
            assert len(entry) == 1 or sum(one.size for one in entry) <= ENTRY_BYTES_MAX

    def check(self) -> None:
        assert not self.wrong
        waiting = self.proposer._waiting
        assert self.proposer._waiting_bytes == sum(one.size for one in waiting)
        if waiting:
            assert self.leadership.leads, "what waits here could leave"
            assert self.entries, "what waits, waits for nothing"
            assert self.proposer._waiting_bytes < SMALL_BYTES
        for item in self.items.values():
            assert len(item.told.ends) <= 1
            if not item.told.ends:
                assert self.loop.now_s < item.ordered_s + LATEST_S, f"{item.number} waits for too long"
                continue
            if not isinstance(item.told.ends[0], OncegateError):
                assert item.doubtful

    def finish(self) -> None:
        """Whoever leads at last does everything."""
        self.stalled = 0.0
        self.proposer.stall("")
        self.leadership.leads, self.leadership.leader_id = True, "n1"
        self.proposer.led()
        self.loop.settle()
        while self.entries or self.frames:
            if self.entries:
                self.end_entry()
            else:
                self.end_frame()
            self.loop.settle()
            self.check()
        self.loop.pass_to(self.loop.now_s + 2 * ANSWER_S)
        assert all(item.told.ends for item in self.items.values())
        assert self.proposer.inflight_commands == self.proposer.inflight_bytes == 0
        assert not self.proposer._proposed


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposer, "INFLIGHT_COMMANDS_MAX", COMMANDS_MAX)
    monkeypatch.setattr(proposer, "INFLIGHT_BYTES_MAX", BYTES_MAX)
    monkeypatch.setattr(proposer, "answer", lambda command, result, machine: Answer(result, 1, False, None))


@pytest.mark.parametrize("seed", range(16))
def test_each_command_comes_to_one_end_in_time_that_says_no_more_than_is_known(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop()
    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "get_running_loop", lambda: loop)
        walk = Walk(seed, loop)
    for _ in range(250):
        walk.step()
    walk.finish()
    assert walk.proposals


def test_bytes_of_a_forwarded_frame_are_counted_once_however_many_commands_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    told: list[bytes] = []
    walk = Walk(0, loop)
    payload = c.encode_commands([c.OpenSession(str(number), 60_000, 64) for number in range(10)])
    walk.proposer.serve_forwarded(payload, told.append)
    assert walk.proposer.inflight_commands == 10
    assert len(payload) - 10 < walk.proposer.inflight_bytes <= len(payload)
    assert not told
