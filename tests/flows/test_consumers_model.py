"""Several consumers of one flow against a plain reference: who may move which cursor, and what retention waits for.

Consumers attach, start elsewhere, move, write parts, are required, expire, are removed and come back, and the flow
seals and drops batches meanwhile; restarts and fences of a restored cluster lie in between. The reference keeps every
fence that was ever given out, so that none of a removed consumer, or of a name that is back, is taken for a present
one; and it recomputes from its own notes whatever the consumers say.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import msgspec
import pytest

from oncegate.flows.batch_log import BatchLog
from oncegate.flows.cursor import NONCES_MAX, Consumers, ConsumerState
from oncegate.flows.errors import BadRequestError, FencedError, FlowError, NotFoundError, RetentionExceededError

NAMES = "abc"
EXPIRY_MS = 20


@dataclass
class Known:
    """What the reference notes of a consumer that is there."""

    required: bool
    cursor: int
    alive_ms: int
    begun: int
    fence: int
    """No instance may move it by an older one, and none has a newer one."""
    expired: bool = False
    replays: int = 0
    nonces: dict[str, int] = field(default_factory=dict)
    parts: tuple[int, list[tuple[int, int]]] = (0, [])
    """The batch that is written in part, with fingerprint and commit number of each part."""

    def stands_at(self, cursor: int) -> None:
        self.cursor, self.parts = cursor, (0, [])

    @property
    def moved(self) -> bool:
        return self.cursor != self.begun or self.replays > 0


class Sides:
    """The consumers and the reference; each method does one thing to both."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        # A consumer that an earlier build made has no time of its own.
        self.now_ms, self.commit = self.dice.choice((0, 5)), 0
        begun, fences = self.dice.randint(0, 3), self.dice.randint(0, 3)
        self.batches = BatchLog(begun + 1)
        names = tuple(self.dice.sample(NAMES, self.dice.randint(0, 2)))
        self.consumers = Consumers(names, cursor=begun, fences=fences, now_ms=self.now_ms)
        self.known = {name: Known(True, begun, self.now_ms, begun, fences) for name in names}
        self.floor = fences
        """Fences below it are of consumers that were removed, of a flow that was deleted, or of another cluster."""
        self.given: list[tuple[str, int]] = []
        """Every fence that an instance of a consumer got, with its name."""

    def _alive(self, one: Known) -> None:
        one.alive_ms, one.expired = self.now_ms, False

    def _refusal(self, name: str, fence: int) -> type[FlowError] | None:
        one = self.known.get(name)
        if one is None:
            return FencedError if 0 < fence < self.floor else NotFoundError
        return None if fence == one.fence else FencedError if fence < one.fence else BadRequestError

    def _fails(self, refusal: type[FlowError] | None, error: FlowError) -> None:
        assert type(error) is refusal, error
        assert self.consumers.snapshot() == self.before, "a refusal changes nothing"

    def seal(self) -> None:
        self.now_ms += self.dice.randint(0, 9)
        for _ in range(self.dice.randint(1, 3)):
            self.commit += 1
            self.batches.append(self.commit, self.commit, 1, 10, self.now_ms)

    def drop(self) -> None:
        self.batches.drop_through(self.batches.first - 1 + self.dice.randint(0, len(self.batches)))

    def attach(self) -> None:
        name, nonce = self.dice.choice(NAMES), self.dice.randint(0, 30)
        at = self.dice.choice((None, None, self._place(), self.dice.randint(-2, 20)))
        one, first = self.known.get(name), self.batches.first
        self.before = self.consumers.snapshot()
        if one is not None and str(nonce) in one.nonces:
            assert self.consumers.attach(name, str(nonce), self.batches, self.now_ms, cursor=at) == (
                one.nonces[str(nonce)],
                one.cursor,
            )
            assert self.consumers.snapshot() == self.before, "an attach that is sent again changes nothing"
            return
        if at is not None and not first - 1 <= at <= self.batches.last:
            try:
                self.consumers.attach(name, str(nonce), self.batches, self.now_ms, cursor=at)
            except FlowError as error:
                self._fails(BadRequestError if at > self.batches.last else RetentionExceededError, error)
                return
            raise AssertionError("a place that is not there")
        begin = first - 1 if at is None else at
        fence, cursor = self.consumers.attach(name, str(nonce), self.batches, self.now_ms, cursor=at)
        if one is None:
            one = self.known[name] = Known(False, begin, self.now_ms, begin, self.floor)
        elif at is not None:
            one.replays += at < one.cursor
            one.stands_at(at)
        assert cursor == one.cursor
        assert (name, fence) not in self.given, "a fence of a name means one instance for ever"
        self.given.append((name, fence))
        self._alive(one)
        one.fence += 1
        assert fence == one.fence
        one.nonces[str(nonce)] = fence
        for old in list(one.nonces)[:-NONCES_MAX]:
            del one.nonces[old]

    def move(self) -> None:
        name, replay = self.dice.choice(NAMES), self.dice.random() < 0.5
        batch = self.dice.choice((self._place(), self._place(), self.dice.randint(-1, 20)))
        newest = self.known[name].fence if name in self.known else self.floor
        held = [own for other, own in self.given if other == name]
        fence = self.dice.choice((newest, newest, newest, newest - 1, newest + 1, 0, *held[-3:]))
        one, refusal = self.known.get(name), self._refusal(name, fence)
        if refusal is None and one is not None:
            if not 0 <= batch <= self.batches.last:
                refusal = BadRequestError
            elif batch != one.cursor and batch + 1 < self.batches.first:
                refusal = RetentionExceededError
            elif batch < one.cursor and not replay:
                refusal = BadRequestError
        self.before = self.consumers.snapshot()
        try:
            cursor = self.consumers.move(name, batch, fence, self.batches, replay=replay, now_ms=self.now_ms)
        except FlowError as error:
            self._fails(refusal, error)
            return
        assert refusal is None
        assert one is not None
        if batch != one.cursor:
            one.replays += batch < one.cursor
            one.stands_at(batch)
        self._alive(one)
        assert cursor == one.cursor == batch

    def write_part(self) -> None:
        name, print_, last = self.dice.choice(NAMES), self.dice.choice((0, 0, 0, 1)), self.dice.random() < 0.3
        one = self.known.get(name)
        if one is None:
            return
        batch, (written, parts) = one.cursor + self.dice.choice((1, 1, 1, 0, -1, 2)), one.parts
        of = parts if written == batch else []
        number = self.dice.randint(max(1, len(of)), len(of) + 2)
        self.before = self.consumers.snapshot()
        args = (name, batch, number, one.fence, print_, self.batches)
        try:
            found = self.consumers.part(*args, last=last)
        except FlowError:
            found = None
            new = number == len(of) + 1 and batch == one.cursor + 1 and self.batches.first <= batch <= self.batches.last
            same = number <= len(of) and of[number - 1][0] == print_
            assert not new or one.cursor + 1 < self.batches.first
            assert not same
            assert self.consumers.snapshot() == self.before
            return
        assert self.consumers.snapshot() == self.before, "to judge a part changes nothing"
        if found is not None:
            assert found.cursor == one.cursor
            if number <= len(of):
                assert (print_, found.commit) == of[number - 1]
            else:
                assert batch <= one.cursor
            return
        assert (batch, number) == (one.cursor + 1, len(of) + 1)
        self.commit += 1
        cursor = self.consumers.wrote(name, batch, print_, self.commit, self.now_ms, last=last)
        one.parts = (batch, [*of, (print_, self.commit)])
        one.cursor += last
        assert cursor == one.cursor
        self._alive(one)

    def remove(self) -> None:
        name = self.dice.choice(NAMES)
        try:
            self.consumers.remove(name)
        except NotFoundError:
            assert name not in self.known
        else:
            self._forget(name)

    def _forget(self, name: str) -> None:
        self.floor = max(self.floor, self.known.pop(name).fence + 1)

    def _place(self) -> int:
        return self.dice.randint(self.batches.first - 1, self.batches.last)

    def require(self) -> None:
        names = set(self.dice.sample(NAMES, self.dice.randint(0, 3)))
        self.consumers.require(tuple(sorted(names)), self.batches, self.now_ms)
        for name, one in list(self.known.items()):
            if one.required and name not in names and not one.nonces:
                self._forget(name)
            else:
                one.required = name in names
        begin = self.batches.first - 1
        for name in sorted(names - self.known.keys()):
            self.known[name] = Known(True, begin, self.now_ms, begin, self.floor)

    def expire(self) -> None:
        self.now_ms += self.dice.randint(0, EXPIRY_MS)
        since = self.now_ms - self.dice.randint(0, EXPIRY_MS)
        wanted = [
            name
            for name, one in self.known.items()
            if one.required and not one.moved and not one.expired
            if self.now_ms - max(one.alive_ms, since) >= EXPIRY_MS
        ]
        assert sorted(self.consumers.overdue(EXPIRY_MS, since, self.now_ms)) == sorted(wanted)
        assert self.consumers.overdue(0, since, self.now_ms) == []
        for name in wanted:
            self.consumers.expire(name)
            self.known[name].expired = True

    def restore_elsewhere(self) -> None:
        """A new cluster begins with this state: the old one may give out the fences in between."""
        skipped, slept_ms = self.dice.randint(1, 50), self.dice.randint(0, 50)
        self.consumers.fence_off(skipped, slept_ms)
        self.now_ms += slept_ms
        self.batches.sleep(slept_ms)
        for one in self.known.values():
            one.alive_ms += slept_ms
            one.fence += skipped
        self.floor += skipped

    def restart(self) -> None:
        data = msgspec.msgpack.encode(self.consumers.snapshot())
        state = msgspec.msgpack.decode(data, type=tuple[ConsumerState, ...])
        self.consumers = Consumers.restore(state, self.consumers.fences)

    def what_is_said_of_each_is_what_the_reference_has_noted(self) -> None:
        found = {one.name: one for one in self.consumers.all()}
        assert list(found) == list(self.known), "in order of first mention"
        for name, one in self.known.items():
            told = found[name]
            assert (told.required, told.cursor, told.alive_ms, told.expired, told.replays, told.begun) == (
                one.required,
                one.cursor,
                one.alive_ms,
                one.expired,
                one.replays,
                one.begun,
            )
            assert (told.attached, told.moved) == (bool(one.nonces), one.moved)
            lag = self.consumers.lag(name, self.batches, self.now_ms)
            left = [n for n in range(self.batches.first, self.batches.last + 1) if n > one.cursor]
            assert (lag.batches, lag.items) == (self.batches.last - one.cursor, len(left))
            assert lag.ms == (self.now_ms - self.batches.get(left[0]).sealed_ms if left else 0)

    def retention_waits_for_the_slowest_of_those_that_count(self) -> None:
        awake = {name: one for name, one in self.known.items() if not one.expired}
        counting = {name: one for name, one in awake.items() if one.required} or awake
        mark = min((one.cursor for one in counting.values()), default=0)
        assert self.consumers.watermark() == mark
        assert {one.name for one in self.consumers.counting()} == set(counting)
        assert {one.name for one in self.consumers.slowest()} == {
            n for n, one in counting.items() if one.cursor == mark
        }


@pytest.mark.parametrize("seed", range(40))
def test_consumers_are_where_the_reference_says_and_no_fence_means_two_instances(seed: int) -> None:
    sides = Sides(seed)
    steps = [sides.attach, sides.move, sides.move, sides.write_part, sides.write_part, sides.seal, sides.seal]
    rare = [sides.drop, sides.remove, sides.require, sides.expire, sides.restore_elsewhere, sides.restart]
    for _ in range(150):
        sides.dice.choice(steps if sides.dice.random() < 0.75 else rare)()
        sides.what_is_said_of_each_is_what_the_reference_has_noted()
        sides.retention_waits_for_the_slowest_of_those_that_count()
