"""Commands on their way to leaders, whatever comes back and whoever leads: each comes to one end, in the right frame.

The model knows which commands wait and which are in which frame. All moments are whole seconds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from oncegate.consensus import errors as ce
from oncegate.gateway import wire
from oncegate.gateway.answer_values import MSGPACK
from oncegate.gateway.machine import commands as c
from oncegate.gateway.node.attempts import Waiting
from oncegate.gateway.node.forwarding import FRAMES_MAX, GRACE_S, LATE_ANSWER_S, PROPOSE, Forwarding, Relayed
from oncegate.gateway.node.refusals import packed
from oncegate.rifl.errors import Code, OncegateError, Outcome

BYTES_MAX, ANSWER_S = 100, 5.0
LEADERS = ("n1", "n2", "n3")
BODY = wire.SessionOpened("1", 1, 60_000, 64)


class Told:
    """Who waits for a command: what it was told."""

    def __init__(self) -> None:
        self.ends: list[Any] = []
        self.gone = False

    def done(self) -> bool:
        return self.gone or bool(self.ends)

    def set_result(self, answer: Any) -> None:
        self.ends.append(answer[1:])

    def set_exception(self, fault: BaseException) -> None:
        assert isinstance(fault, OncegateError)
        self.ends.append((fault.code, fault.outcome))


@dataclass
class Timer:
    delay_s: float
    call: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class Sent:
    """A frame under way, by the model."""

    leader: str
    items: list[Waiting]
    timer: Timer | None = None


class Walk:
    """Stands for the owner, the replica and the loop as well."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.forwarding = Forwarding(self, self, self, frame_bytes_max=BYTES_MAX, answer_s=ANSWER_S)  # type: ignore[arg-type]
        self.now_s = 0
        self.leader = ""
        self.waiting: list[Waiting] = []
        self.frames: dict[int, Sent] = {}
        self.answered: dict[int, Callable[[Any], None]] = {}
        self.asked = 0
        self.unreachable: set[str] = set()
        self.calls: list[tuple[str, list[Waiting], Any]] = []
        self.timers: list[Timer] = []
        self.given_up: list[int] = []
        self.items = 0
        self.under_way: dict[int, Waiting] = {}

    # what it calls

    def ask(self, leader: str, payload: bytes, *, timeout_s: float, answered: Callable[[Any], None]) -> int:
        if leader in self.unreachable:
            raise ce.PeerUnavailable(leader, "not connected", outcome="not_applied")
        assert payload[:1] == PROPOSE
        assert timeout_s == ANSWER_S + GRACE_S
        self.asked += 1
        self.answered[self.asked] = answered
        nonces = [command.nonce for command in c.decode_commands(payload[1:])]  # type: ignore[union-attr]
        items = [self.under_way[int(nonce)] for nonce in nonces]
        assert items == self.full()
        assert leader == self.leader
        self.frames[self.asked] = Sent(leader, items)
        del self.waiting[: len(items)]
        return self.asked

    def full(self) -> list[Waiting]:
        """Return the first of those that wait, as many as fit a frame."""
        count = 1
        while count < len(self.waiting) and sum(item.size for item in self.waiting[: count + 1]) <= BYTES_MAX:
            count += 1
        return self.waiting[:count]

    def give_up(self, number: int) -> None:
        self.given_up.append(number)

    def call_later(self, delay_s: float, call: Callable[..., None], *args: Any) -> Timer:
        self.timers.append(Timer(delay_s, lambda: call(*args)))
        return self.timers[-1]

    def send_on(self, batch: Sequence[Waiting]) -> None:
        self.over("send_on", batch)

    def refused(self, leader: str, batch: Sequence[Waiting], refusal: OncegateError) -> None:
        if leader in self.unreachable and refusal.outcome is Outcome.NOT_APPLIED and list(batch) == self.full():
            del self.waiting[: len(batch)]  # it could not be sent
            self.over("", batch)
            return
        self.over("refused", batch, (leader, refusal.code, refusal.outcome))

    def fail(self, batch: Sequence[Waiting], refusal: OncegateError) -> None:
        self.over("fail", batch, (refusal.code, refusal.outcome))

    def release(self, batch: Sequence[Waiting]) -> None:
        self.over("release", batch)

    def taken(self, leader: str) -> None:
        self.calls.append(("taken", [], leader))

    def over(self, how: str, batch: Sequence[Waiting], why: Any = None) -> None:
        for item in batch:
            del self.under_way[int(item.command.nonce)]  # type: ignore[union-attr]
        if batch and how:
            self.calls.append((how, list(batch), why))

    # what it does

    def heard(self, *expected: tuple[str, list[Waiting], Any]) -> None:
        assert self.calls == [call for call in expected if call[1] or call[0] == "taken"]
        self.calls.clear()

    def send(self) -> None:
        batch = list[Waiting]()
        age_s = self.dice.choice((0, 0, 0, 3))  # some were refused by another leader, and are sent on
        for _ in range(self.dice.choice((1, 1, 3, 9))):
            self.items += 1
            item = Waiting(c.OpenSession(str(self.items), 60_000, 64), self.dice.choice((10, 50, 90, 100, 101)), Told())
            item.due_s = self.now_s + ANSWER_S - age_s
            self.under_way[self.items] = item
            batch.append(item)
        if not self.waiting:
            self.leader = self.dice.choice((self.leader or "n1", *LEADERS))
        self.waiting = sorted([*self.waiting, *batch], key=lambda item: item.due_s)
        self.forwarding.send(self.leader, batch)
        self.heard()

    def answer(self) -> None:
        number = self.dice.choice(list(self.frames))
        frame = self.frames.pop(number)
        how = self.dice.choice(("all", "all", "some", "some", "timeout", "lost", "length", "noise"))
        answers = [
            Relayed(BODY, self.dice.randrange(99), self.dice.random() < 0.5, None, self.dice.choice((None, 5)))
            for _ in frame.items
        ]
        moves = [how == "some" and self.dice.random() < 0.5 for _ in frame.items]
        quota = packed(OncegateError(Code.QUOTA))
        refused = [self.dice.random() < 0.3 for _ in frame.items]
        for at, item in enumerate(frame.items):
            if moves[at] or refused[at]:
                answers[at] = Relayed(refusal=packed(OncegateError(Code.NOT_LEADER)) if moves[at] else quota)
            item.waiter.gone = self.dice.random() < 0.1  # type: ignore[attr-defined]
        was_done = [item.is_gone() for item in frame.items]
        ends = [list(item.waiter.ends) for item in frame.items]  # type: ignore[attr-defined]
        came: Any = MSGPACK.encode(answers)
        expected: list[tuple[str, list[Waiting], Any]] = []
        if how in ("all", "some"):
            if not all(move or refuse for move, refuse in zip(moves, refused, strict=True)):
                expected.append(("taken", [], frame.leader))
            moved = [item for item, move in zip(frame.items, moves, strict=True) if move]
            stays = [item for item, move in zip(frame.items, moves, strict=True) if not move]
            expected.append(("refused", moved, (frame.leader, Code.NOT_LEADER, Outcome.NOT_APPLIED)))
            expected.append(("release", stays, None))
        elif how == "timeout":
            came = ce.Timeout("the call", 1.0, outcome="unknown")
            expected.append(("refused", frame.items, (frame.leader, Code.TIMEOUT, Outcome.UNKNOWN)))
            if frame.leader == self.leader:
                expected.append(("fail", self.waiting, (Code.NO_LEADER, Outcome.NOT_APPLIED)))
                self.waiting = []
        else:
            came = {"lost": ce.PeerUnavailable("n", "lost", outcome="unknown"), "noise": b"\xc1"}.get(
                how, MSGPACK.encode([*answers, Relayed(BODY, 1)])
            )
            expected.append(("refused", frame.items, None))
        self.answered.pop(number)(came)
        if how in ("lost", "noise", "length"):
            self.calls = [(call, items, None) for call, items, _ in self.calls]
        self.heard(*expected)
        for at, item in enumerate(frame.items):
            told: list[Any] = [(answers[at].commit, answers[at].created, answers[at].memory_ms)]
            if refused[at]:
                told = [(Code.QUOTA, Outcome.NOT_APPLIED)]
            if was_done[at] or how not in ("all", "some") or moves[at]:
                told = []
            assert item.waiter.ends == ends[at] + told  # type: ignore[attr-defined]
        assert frame.timer is None or frame.timer.cancelled

    def leader_known(self) -> None:
        known = self.dice.choice(LEADERS)
        begun = [frame for frame in self.frames.values() if frame.leader != known and frame.timer is None]
        self.forwarding.leader_known(known)
        assert [timer.delay_s for timer in self.timers] == [LATE_ANSWER_S] * len(begun)
        for frame, timer in zip(begun, self.timers, strict=True):
            frame.timer = timer
        self.timers.clear()

    def too_late(self) -> None:
        late = [(number, frame) for number, frame in self.frames.items() if frame.timer is not None]
        if late:
            number, frame = self.dice.choice(late)
            del self.frames[number], self.answered[number]
            assert frame.timer is not None
            frame.timer.call()
            self.heard(("refused", frame.items, (frame.leader, Code.TIMEOUT, Outcome.UNKNOWN)))
            assert self.given_up == [number]
            self.given_up.clear()

    def lead_changed(self) -> None:
        waiting, self.waiting = self.waiting, []
        self.forwarding.lead_changed()
        self.heard(("send_on", waiting, None))

    def end_overdue(self) -> None:
        late = [item for item in self.waiting if item.due_s <= self.now_s]
        self.waiting = self.waiting[len(late) :]
        sent = [item for frame in self.frames.values() for item in frame.items]
        due = [item for item in sent if item.due_s <= self.now_s and not item.is_gone()]
        following = min(
            [item.due_s for item in (*self.waiting, *sent) if item.due_s > self.now_s], default=float("inf")
        )
        assert self.forwarding.end_overdue(self.now_s) == following
        self.heard(("fail", late, (Code.TIMEOUT, Outcome.NOT_APPLIED)))
        for item in due:
            assert item.waiter.ends == [(Code.TIMEOUT, Outcome.UNKNOWN)]  # type: ignore[attr-defined]

    def step(self) -> None:
        what = self.dice.choice(("send", "send", "send", "answer", "answer", "answer", "known", "late", "lead", "time"))
        if what == "send":
            self.send()
        elif what == "answer" and self.frames:
            self.answer()
        elif what == "known":
            self.leader_known()
        elif what == "late":
            self.too_late()
        elif what == "lead" and self.dice.random() < 0.3:
            self.lead_changed()
        elif what == "time":
            self.now_s += self.dice.choice((0, 1, 2))
            self.end_overdue()
            if self.dice.random() < 0.2:
                self.unreachable = set(self.dice.sample(LEADERS, self.dice.choice((0, 0, 1))))
        self.check()

    def check(self) -> None:
        assert self.forwarding._waiting == self.waiting
        assert [frame.batch for frame in self.forwarding.under_way] == [frame.items for frame in self.frames.values()]
        there = [*self.waiting, *(item for frame in self.frames.values() for item in frame.items)]
        assert sorted(self.under_way.values(), key=id) == sorted(there, key=id)
        to_leader = sum(frame.leader == self.leader for frame in self.frames.values())
        assert to_leader == FRAMES_MAX if self.waiting else to_leader <= FRAMES_MAX


@pytest.mark.parametrize("seed", range(8))
def test_each_command_is_in_one_frame_and_comes_to_the_end_that_its_frame_says(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(600):
        walk.step()
    assert walk.asked > 100
