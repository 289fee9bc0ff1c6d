"""Consumers: fences, cursors, replays, lag."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from oncegate.flows.batch_log import BatchLog
from oncegate.flows.cursor import NONCES_MAX, Consumers, ConsumerState, Lag
from oncegate.flows.errors import (
    BadRequestError,
    FlowError,
    NotFoundError,
    QuotaError,
)
from oncegate.flows.flow import CONSUMERS_MAX


def test_only_the_newest_nonces_are_remembered() -> None:
    consumers, log = Consumers(), BatchLog()
    for number in range(NONCES_MAX * 3):
        consumers.attach("c", str(number), log)
    assert len(consumers.get("c").nonces) == NONCES_MAX
    assert consumers.get("c").fence == NONCES_MAX * 3


def test_refusal_to_move_back_names_the_replay() -> None:
    consumers, log = Consumers(), BatchLog()
    log.append(1, 10, 10, 100, 1000)
    fence = consumers.attach("c", "n", log).fence
    consumers.move("c", 1, fence, log)
    with pytest.raises(BadRequestError, match="replay"):
        consumers.move("c", 0, fence, log)
    assert (consumers.move("c", 0, fence, log, replay=True), consumers.get("c").replays) == (0, 1)


def test_bad_names_and_nonces_and_one_consumer_too_many_are_refused() -> None:
    consumers, log = Consumers(), BatchLog()
    for name, nonce in (("C", "n"), ("", "n"), ("c", ""), ("c", "x" * 129)):
        with pytest.raises(BadRequestError):
            consumers.attach(name, nonce, log)
    for number in range(CONSUMERS_MAX):
        consumers.attach(f"c{number}", "n", log)
    with pytest.raises(QuotaError):
        consumers.attach("one-more", "n", log)
    with pytest.raises(NotFoundError):
        consumers.lag("nobody", log, 0)


class ConsumersMachine(RuleBasedStateMachine):
    """Compared with dictionaries of cursors, of replays and of fences by nonce; batch n is sealed at 1000 * n."""

    @initialize(required=st.sets(st.sampled_from("ab")))
    def begin(self, required: set[str]) -> None:
        self.required = tuple(sorted(required))
        self.consumers, self.log = Consumers(self.required), BatchLog()
        self.cursors = dict.fromkeys(self.required, 0)
        self.replays = dict.fromkeys(self.required, 0)
        self.fences: dict[str, dict[str, int]] = {name: {} for name in self.required}

    @rule()
    def seal(self) -> None:
        number = self.log.last
        self.log.append(number * 10 + 1, number * 10 + 10, 10, 100, 1000 * (number + 1))

    @rule()
    def drop_one(self) -> None:
        if len(self.log):
            self.log.drop_through(self.log.first)

    @rule(name=st.sampled_from("abc"), nonce=st.sampled_from("xyz"))
    def attach(self, name: str, nonce: str) -> None:
        fences = self.fences.setdefault(name, {})
        cursor = self.cursors.setdefault(name, self.log.first - 1)
        self.replays.setdefault(name, 0)
        fence = fences.setdefault(nonce, len(fences) + 1)
        assert self.consumers.attach(name, nonce, self.log) == (fence, cursor)

    @rule(name=st.sampled_from("abc"), batch=st.integers(-1, 8), fence=st.integers(0, 4), replay=st.booleans())
    def move(self, name: str, batch: int, fence: int, *, replay: bool) -> None:
        try:
            got: object = self.consumers.move(name, batch, fence, self.log, replay=replay)
        except FlowError as error:
            got = error.code
        if name not in self.cursors:
            expected: object = "NOT_FOUND"
        elif fence < len(self.fences[name]):
            expected = "FENCED"
        elif fence > len(self.fences[name]) or not 0 <= batch <= self.log.last:
            expected = "BAD_REQUEST"
        elif batch != self.cursors[name] and batch < self.log.first - 1:
            expected = "RETENTION_EXCEEDED"
        elif batch < self.cursors[name] and not replay:
            expected = "BAD_REQUEST"
        else:
            self.replays[name] += batch < self.cursors[name]
            expected = self.cursors[name] = batch
        assert got == expected

    @rule()
    def restart(self) -> None:
        data = msgspec.msgpack.encode(self.consumers.snapshot())
        self.consumers = Consumers.restore(msgspec.msgpack.decode(data, type=tuple[ConsumerState, ...]))
        assert msgspec.msgpack.encode(self.consumers.snapshot()) == data

    @invariant()
    def cursors_and_watermark_are_those_of_the_model(self) -> None:
        assert {c.name: (c.cursor, c.replays) for c in self.consumers.all()} == {
            name: (cursor, self.replays[name]) for name, cursor in self.cursors.items()
        }
        required = [self.cursors[name] for name in self.required]
        assert self.consumers.watermark() == min(required or self.cursors.values(), default=0)

    @invariant()
    def lag_counts_retained_batches_items_and_time_since_the_oldest_unread_seal(self) -> None:
        now_ms = 1000 * self.log.last + 5
        for name, cursor in self.cursors.items():
            unread = range(max(cursor + 1, self.log.first), self.log.last + 1)
            oldest_ms = 1000 * unread[0] if unread else now_ms
            assert self.consumers.lag(name, self.log, now_ms) == Lag(
                self.log.last - cursor, 10 * len(unread), now_ms - oldest_ms
            )


TestConsumersEqualADictionary = ConsumersMachine.TestCase
TestConsumersEqualADictionary.settings = settings(deadline=None, max_examples=150, stateful_step_count=30)
