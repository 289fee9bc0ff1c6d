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
from oncegate.gateway.machine.levels import FIRST, NEEDS, NEWEST
from oncegate.gateway.machine.ordering import SMALL_BYTES
from oncegate.gateway.node import proposer
from oncegate.gateway.node.attempts import Waiting
from oncegate.gateway.node.between_leaders import HOLD_MS
from oncegate.gateway.node.commit_stall import STALLED_S
from oncegate.gateway.node.forwarding import LATE_ANSWER_S, PROPOSE, Relayed
from oncegate.gateway.node.proposer import SWEEP_S, Leadership, Proposer
from oncegate.gateway.node.refusals import packed
from oncegate.rifl.errors import Code, OncegateError, Outcome
from oncegate.rifl.key_table import KEYS_BYTES_DEFAULT

BODY = wire.SessionOpened("1", 1, 60_000, 64)
ENTRY_BYTES_MAX, ANSWER_S = 2 * SMALL_BYTES, 5.0
LATEST_S = ANSWER_S + 2 * SWEEP_S + HOLD_MS / 1000
"""What waits for a leader when its deadline passes is ended when it is held no more."""
COMMANDS_MAX, BYTES_MAX = 40, 10 * SMALL_BYTES
SIZES = (64, 64, 64, SMALL_BYTES // 2, SMALL_BYTES, SMALL_BYTES + 1, ENTRY_BYTES_MAX, ENTRY_BYTES_MAX + 1)
TOO_LARGE, UNANSWERED = 17, 13
"""Of so many commands one is."""
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
        self.gone = False
        self.wrong: list[str] = []
        self.may_be_in_the_log: Callable[[], bool] = lambda: False
        self.is_due: Callable[[], bool] = lambda: False

    def done(self) -> bool:
        return self.gone or bool(self.ends)

    def set_result(self, answer: Answer) -> None:
        self.ends.append(answer.body)

    def set_exception(self, fault: BaseException) -> None:
        if not isinstance(fault, OncegateError):
            self.wrong.append(f"it was told {fault!r}")
            return
        self.ends.append(fault)
        # Noted, not raised: what a waiter raises is the proposer's to catch.
        if fault.code is Code.TIMEOUT and fault.outcome is Outcome.NOT_APPLIED and not self.is_due():
            self.wrong.append(f"before its time it was told {fault!r}")
        if (fault.outcome is Outcome.UNKNOWN) != self.may_be_in_the_log():
            self.wrong.append(f"it was told {fault!r}")


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
    refused: bool = False
    """Whoever leads has refused it, and nothing has been heard since of who leads."""
    is_too_large: bool = False
    """The log takes no entry that has it."""

    @property
    def ends_with_a_fault(self) -> bool:
        """Its answer cannot be made."""
        return self.number % UNANSWERED == 0


@dataclass
class Out:
    """An entry or a frame under way."""

    items: list[Item]
    end: Any
    leader: str = ""
    number: int = 0
    doubted_s: float | None = None
    """When another leader was known first."""


class Walk:
    """Stands for the replica and the machine as well."""

    def __init__(self, seed: int, loop: Loop) -> None:
        self.dice = random.Random(seed)
        self.loop = loop
        self.sizes = self.dice.choice((SIZES, (SMALL_BYTES, ENTRY_BYTES_MAX), (64, 65)))
        """At times such as fill a bound exactly."""
        self.done = self.dice.choice((0.1, 0.3, 1.0))
        """How likely an entry or a frame comes to its end when it might."""
        self.has_large = self.dice.random() < 0.5
        self.level = NEWEST
        self.commit = 0
        self.stalled = 0.0
        self.refuses = False
        """By what it was told, it takes no commands while nothing commits."""
        self.before = 0
        """Entries that were under way when this turn began."""
        self.logged: list[int] = []
        self.expected: list[int] = []
        """Commands of each entry that came to its end, as told, and as it was."""
        self.items: dict[int, Item] = {}
        self.entries: list[Out] = []
        self.frames: list[Out] = []
        self.turn: list[list[Item]] = []
        """Entries of this turn of the loop."""
        self.plain = True
        """Nothing in this turn was held back, or refused by the replica."""
        self.asked = self.proposals = self.left = 0
        self.wrong: list[str] = []
        self.was_held: set[int] = set()
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
        self.proposer.on_logged = self.logged_entry
        self.hold = self.proposer._between.hold
        self.proposer._between.hold = self.held_back  # type: ignore[method-assign]

    # what it calls

    def logged_entry(self, _: list[str], __: float, count: int) -> None:
        self.logged.append(count)
        if self.dice.random() < 0.1:
            raise RuntimeError("it cannot be counted")

    def held_back(self, held: Any, refusal: OncegateError) -> None:
        told, leads = self.leadership, self.leadership.leads
        own = refusal.detail == OncegateError(refusal.code).detail  # else it is what a leader that was lost has said
        if not leads and own and refusal.code in (Code.NO_LEADER, Code.NOT_READY):
            self.must((refusal.code is Code.NO_LEADER) == (told.leader_id is None), f"{refusal.code} of {told}")
        self.hold(held, refusal)

    def stalled_s(self) -> float:
        return self.stalled

    def propose(self, entry: bytes) -> asyncio.Future[Any]:
        self.must(self.leadership.leads, "a follower proposes")
        self.must(bool(c.decode_entry(entry).commands), "an entry without commands")
        items = [self.items[int(command.nonce)] for command in c.decode_entry(entry).commands]  # type: ignore[union-attr]
        fault: Exception | None = self.dice.choice(
            (None,) * 14 + (ce.NotLeader(None), ce.Transferring("away"), ce.Overloaded("the log", 1))
        )
        if any(item.is_too_large for item in items):
            fault = ce.CommandRefused(9, 1, 8)
        if fault is not None:
            self.plain = False
            for item in items:
                item.refused = isinstance(fault, (ce.NotLeader, ce.Transferring))
            raise fault
        self.take(items)
        self.heard()
        self.proposals += 1
        self.turn.append(items)
        self.entries.append(Out(items, self.loop.create_future()))
        return self.entries[-1].end  # type: ignore[no-any-return]

    def ask(self, leader: str, payload: bytes, *, timeout_s: float, answered: Callable[[Any], None]) -> int:
        self.must(leader == self.leadership.leader_id in ("n2", "n3"), f"{leader} does not lead")
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
            self.must(not (item.told.gone and item.number in self.was_held), f"nobody waits for {item.number}")
            self.must(not item.out, f"{item.number} is under way twice")
            self.must(not item.told.ends and not item.doubtful, f"{item.number} was ended, and is sent again")
            self.must(not late, f"{item.number} is sent too late")
            item.out += 1

    def heard(self) -> None:
        """Somebody leads: all that is held is sent on."""
        for item in self.items.values():
            item.refused = False

    def must(self, holds: bool, why: str) -> None:
        """Note what does not hold: an exception raised in here is the proposer's to catch."""
        if not holds:
            self.wrong.append(why)

    # what it does

    def order(self) -> None:
        number = len(self.items) + 1
        item = Item(number, self.dice.choice(self.sizes), self.loop.now_s, Told())
        item.is_too_large = self.has_large and number % TOO_LARGE == 0
        self.items[number] = item
        item.told.may_be_in_the_log = lambda: bool(item.out or item.doubtful)
        item.told.is_due = lambda: self.loop.now_s >= item.ordered_s + ANSWER_S
        counted = [one for one in self.items.values() if self.is_counted(one) and one is not item]
        full = len(counted) >= COMMANDS_MAX or sum(one.size for one in counted) + item.size > BYTES_MAX
        stalled = self.refuses and self.stalled >= STALLED_S
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
        waited = [item for item in out.items if not item.told.done()]
        for item in out.items:
            item.out -= 1
            item.doubtful = not isinstance(fault, ce.NotLeader)
            item.refused = not item.doubtful
        if fault is None:
            out.end.set_result([item.number for item in out.items])
            self.expected.append(len(out.items))
        else:
            out.end.set_exception(fault)
        self.loop.settle()
        for item in waited:
            ends = item.told.ends
            if fault is None and item.ends_with_a_fault:
                assert [end.code for end in ends] == [Code.INTERNAL]
            elif fault is None:
                assert ends == [item.number]
            elif item.doubtful:
                assert [end.outcome for end in ends] == [Outcome.UNKNOWN]
            else:
                self.check_goes_on(item)

    def end_frame(self) -> None:
        out = self.frames.pop(self.dice.randrange(len(self.frames)))
        how = self.dice.choice(("answer", "answer", "not_led", "quota", "lost"))
        refusal = {"not_led": Code.NOT_LEADER, "quota": Code.QUOTA}.get(how)
        for item in out.items:
            item.out -= 1
            item.doubtful = how in ("answer", "lost")
            item.refused = how == "not_led" and out.leader == self.leadership.leader_id
        waited = [item for item in out.items if not item.told.done()]
        if how == "answer" and out.leader == self.leadership.leader_id:
            self.heard()
        if how == "lost":
            out.end(ce.PeerUnavailable(out.leader, "lost", outcome="unknown"))
        elif refusal is not None:
            out.end(MSGPACK.encode([Relayed(refusal=packed(OncegateError(refusal)))] * len(out.items)))
        else:
            out.end(MSGPACK.encode([Relayed(BODY) for _ in out.items]))
        self.loop.settle()
        for item in waited:
            if how == "not_led":
                self.check_goes_on(item)
            else:
                code = {"answer": None, "quota": Code.QUOTA, "lost": Code.TIMEOUT}[how]
                assert [getattr(end, "code", None) for end in item.told.ends] == [code]

    def lead(self) -> None:
        leader = self.dice.choice(("n1", "n1", "n1", "n1", "n2", "n2", "n3", "n3", "elected", None))
        leads, leader = leader == "n1", "n1" if leader == "elected" else leader
        self.leadership.leads, self.leadership.leader_id = leads, leader
        if self.is_led:
            self.heard()
        if leader not in ("n1", None):
            for frame in self.frames:
                if frame.leader != leader and frame.doubted_s is None:
                    frame.doubted_s = self.loop.now_s
            self.proposer.leader_known(leader)
        self.proposer.led()

    def stall(self) -> None:
        self.stalled = self.dice.choice((0.0, 0.0, STALLED_S))
        if self.dice.random() < 0.7:  # else nobody has looked since
            self.refuses = bool(self.stalled)
            self.proposer.stall("it stands" if self.stalled else "")
            assert not self.refuses or not self.proposer._waiting, "what waits is told at once"

    def step(self) -> None:
        what = self.dice.choice(("order",) * 6 + ("entry", "entry", "frame", "lead", "stall", "time", "time", "leave"))
        if what == "order":
            for _ in range(self.dice.choice((1, 1, 2, 6))):
                self.order()
            if self.dice.random() < 0.1:
                self.stall()  # in the turn in which they came: there may be nothing to send at its end
        elif what == "entry" and self.entries and self.dice.random() < self.done:
            self.end_entry()
        elif what == "frame" and self.frames and self.dice.random() < self.done:
            self.end_frame()
        elif what == "lead" and self.dice.random() < 0.5:
            self.lead()
        elif what == "stall" and self.dice.random() < 0.3:
            self.stall()
        elif what == "leave" and self.items:
            item = self.dice.choice([*self.items.values()][-20:])
            item.told.gone = not item.told.ends
            self.left += item.told.gone
        elif what == "time":
            self.loop.pass_to(self.loop.now_s + self.dice.choice((0.05, 0.3, 0.7, 2.0)))
        self.turn.clear()
        self.before, self.was_held = len(self.entries), self.held
        self.plain = not self.was_held
        self.loop.settle()
        if what == "order" and self.plain:
            self.check_entries()
        self.check()

    # what holds

    @property
    def is_led(self) -> bool:
        return self.leadership.leads or self.leadership.leader_id not in ("n1", None)

    @property
    def held(self) -> set[int]:
        return {int(one.command.nonce) for batch, _ in self.proposer._between._held for one in batch}  # type: ignore[union-attr]

    def is_counted(self, item: Item) -> bool:
        """In flight: an entry or a frame has it, or it is held, or nobody was told an end of it."""
        if item.told.gone:
            proposer = self.proposer
            waiting = (*proposer._waiting, *proposer._forwarding._waiting)
            if any(one.command.nonce == str(item.number) for one in waiting):  # type: ignore[union-attr]
                return True
        return bool(item.out) or not item.told.done() or item.number in self.held

    def check_goes_on(self, item: Item) -> None:
        """Nobody has got it: it waits, for a leader or in its hands, unless that takes too long or is hopeless."""
        for end in item.told.ends:
            over = self.proposer._between.until_s
            if end.code in (Code.NO_LEADER, Code.NOT_LEADER, Code.NOT_READY):
                assert over is not None and self.loop.now_s >= over, "somebody may lead soon"  # noqa: PT018
            else:
                assert end.code in (Code.TIMEOUT, Code.OVERLOADED) or item.is_too_large

    def check_entries(self) -> None:
        """Entries of one turn are in the order of coming, and two neighbours would not have fitted one."""
        for before, after in zip(self.turn, self.turn[1:], strict=False):
            assert before[-1].number < after[0].number
            assert sum(one.size for one in before) + after[0].size > ENTRY_BYTES_MAX
        if self.before and self.turn:
            assert sum(one.size for entry in self.turn for one in entry) >= SMALL_BYTES, "it could have waited"
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
        if self.is_led:
            assert all(self.items[number].refused for number in self.held), "what is held could be sent"
        for item in self.items.values():
            assert not item.told.wrong
            assert len(item.told.ends) <= 1
            if item.told.gone:
                continue
            if not item.told.ends:
                assert self.loop.now_s < item.ordered_s + LATEST_S, f"{item.number} waits for too long"
                continue
            end = item.told.ends[0]
            if not isinstance(end, OncegateError):
                assert item.doubtful
            elif end.code is Code.PAYLOAD_TOO_LARGE:
                assert item.is_too_large
        for frame in self.frames:
            assert frame.doubted_s is None or self.loop.now_s < frame.doubted_s + LATE_ANSWER_S
        assert self.logged == self.expected
        assert self.proposer.entry_times.count == len(self.expected)
        assert self.proposer.inflight_commands == sum(self.is_counted(item) for item in self.items.values())

    def finish(self) -> None:
        """Whoever leads at last does everything."""
        self.stalled, self.refuses = 0.0, False
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
        assert all(item.told.done() for item in self.items.values())
        assert self.proposer.inflight_commands == self.proposer.inflight_bytes == 0
        assert not self.proposer._proposed


def answered(command: Any, number: int, _: Any) -> Answer:
    assert int(command.nonce) == number
    if number % UNANSWERED == 0:
        raise ZeroDivisionError
    return Answer(number, 1, False, None)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposer, "INFLIGHT_COMMANDS_MAX", COMMANDS_MAX)
    monkeypatch.setattr(proposer, "INFLIGHT_BYTES_MAX", BYTES_MAX)
    monkeypatch.setattr(proposer, "answer", answered)


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


@pytest.mark.parametrize("leader", ["n1", "n2"])
@pytest.mark.parametrize("held_s", [0.05, 0.25, 0.45])
@pytest.mark.parametrize("before_s", [0.01, 0.2])
def test_what_was_held_while_the_deadlines_were_looked_at_ends_in_time(
    before_s: float, held_s: float, leader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else has a deadline then: nobody but who sends it on sees to it that they are looked at again."""
    loop = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    walk = Walk(0, loop)
    walk.dice = SimpleNamespace(choice=lambda of: of[0], random=lambda: 1.0)  # type: ignore[assignment]
    walk.order()
    loop.settle()
    first = walk.items[1]
    looked_at_s = loop.now_s + ANSWER_S
    loop.pass_to(looked_at_s - before_s)
    walk.leadership.leads, walk.leadership.leader_id = False, None
    walk.proposer.led()
    walk.order()
    loop.settle()
    held = walk.items[2]
    assert walk.held == {2}
    loop.pass_to(loop.now_s + held_s)
    walk.leadership.leads, walk.leadership.leader_id = leader == "n1", leader
    walk.proposer.led()
    loop.settle()
    assert held.out == 1, "whoever leads has it"
    loop.pass_to(looked_at_s + SWEEP_S)
    assert len(first.told.ends) == 1
    loop.pass_to(held.ordered_s + ANSWER_S - 0.001)
    assert not held.told.ends
    loop.pass_to(held.ordered_s + ANSWER_S + 2 * SWEEP_S)
    assert [(end.code, end.outcome) for end in held.told.ends] == [(Code.TIMEOUT, Outcome.UNKNOWN)]


@pytest.mark.parametrize("seed", range(2))
def test_what_may_not_be_ordered_is_refused_for_the_first_reason_and_leaves_nothing(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for keys is the leader's to know; a level that the cluster has not is refused wherever a command comes."""
    loop, dice, now_s, seen = Loop(), random.Random(seed), list[float](), set[Code | str | None]()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    walk = Walk(seed, loop)
    ordering = walk.proposer
    founding, full = False, False

    def has_room(machine: Any, command: Any, bytes_max: int, now_ms: Callable[[], int]) -> None:
        assert (machine, command, bytes_max, now_ms()) == (walk, ordered, KEYS_BYTES_DEFAULT, 1)
        if full:
            raise OncegateError(Code.QUOTA, retry_after_ms=7)

    def is_founding(at_s: float) -> bool:
        now_s.append(at_s)
        return founding

    monkeypatch.setattr(proposer, "check_room", has_room)
    ordering._is_founding = is_founding
    for number in range(400):
        ordered = dice.choice(
            (c.OpenSession(str(number), 60_000, 64), c.Keyed(1, []), c.Keyed(1, []), c.DropTable("t", 1, True))
        )
        walk.level = dice.choice((1, NEWEST - 1, NEWEST))
        founding, full, stalled = (dice.random() < 0.3 for _ in range(3))
        walk.leadership.leads = dice.random() < 0.7
        walk.stalled = STALLED_S if stalled else 0.0
        ordering._stall = "it stands" if stalled or dice.random() < 0.5 else ""
        before = (ordering.inflight_commands, ordering.inflight_bytes, ordering._waiting_bytes, len(ordering._waiting))
        expected: Code | str | None = None
        if NEEDS.get(type(ordered), FIRST) > walk.level:
            expected = Code.NOT_READY if founding else Code.CONFLICT
        elif stalled:
            expected = "stalled"
        elif isinstance(ordered, c.Keyed) and walk.leadership.leads and full:
            expected = Code.QUOTA
        seen.add(expected)
        if expected is None:
            ordering.order(Waiting(ordered, 1, Told()))
            assert ordering._waiting.pop().command is ordered
            ordering._waiting_bytes -= 1
            ordering.inflight_bytes -= 1
            ordering.inflight_commands -= 1
        else:
            with pytest.raises(OncegateError) as refused:
                ordering.order(Waiting(ordered, 1, Told()))
            code = Code.NOT_READY if expected == "stalled" else expected
            assert (refused.value.code, refused.value.outcome) == (code, Outcome.NOT_APPLIED)
            assert (refused.value.detail == "it stands") == (expected == "stalled")
        after = (ordering.inflight_commands, ordering.inflight_bytes, ordering._waiting_bytes, len(ordering._waiting))
        assert after == before
    assert set(now_s) == {loop.now_s}
    assert len(seen) == 5
