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
    FencedError,
    FlowError,
    NotFoundError,
    QuotaError,
    RetentionExceededError,
)
from oncegate.flows.flow import CONSUMERS_MAX


def sealed(count: int, dropped: int = 0) -> BatchLog:
    """Batches of 10 items, batch n sealed at 1000 * n."""
    log = BatchLog()
    for number in range(count):
        log.append(number * 10 + 1, number * 10 + 10, 10, 100, 1000 * (number + 1))
    log.drop_through(dropped)
    return log


def test_newer_instance_fences_the_older() -> None:
    consumers, log = Consumers(), sealed(3)
    old = consumers.attach("c", "one", log)
    new = consumers.attach("c", "two", log)
    assert new.fence > old.fence
    with pytest.raises(FencedError):
        consumers.move("c", 1, old.fence, log)
    assert consumers.move("c", 1, new.fence, log) == 1


def test_attach_sent_again_is_the_same_attach() -> None:
    consumers, log = Consumers(), sealed(3)
    first = consumers.attach("c", "one", log)
    assert consumers.attach("c", "one", log) == first
    consumers.move("c", 2, first.fence, log)
    assert consumers.attach("c", "one", log) == (first.fence, 2)


def test_late_retry_of_an_old_attach_does_not_fence_the_newer_instance() -> None:
    consumers, log = Consumers(), sealed(3)
    old = consumers.attach("c", "one", log)
    new = consumers.attach("c", "two", log)
    assert consumers.attach("c", "one", log).fence == old.fence
    assert consumers.move("c", 1, new.fence, log) == 1


def test_only_the_newest_nonces_are_remembered() -> None:
    consumers, log = Consumers(), sealed(3)
    for number in range(NONCES_MAX * 3):
        consumers.attach("c", str(number), log)
    assert len(consumers.get("c").nonces) == NONCES_MAX
    assert consumers.get("c").fence == NONCES_MAX * 3


def test_move_to_the_cursor_is_idempotent_and_no_replay() -> None:
    consumers, log = Consumers(), sealed(3)
    fence = consumers.attach("c", "n", log).fence
    for _ in range(2):
        assert consumers.move("c", 2, fence, log) == 2
        assert consumers.move("c", 2, fence, log, replay=True) == 2
    assert consumers.get("c").replays == 0


def test_moving_back_needs_replay_and_is_counted() -> None:
    consumers, log = Consumers(), sealed(3)
    fence = consumers.attach("c", "n", log).fence
    consumers.move("c", 3, fence, log)
    with pytest.raises(BadRequestError, match="replay"):
        consumers.move("c", 1, fence, log)
    assert consumers.move("c", 1, fence, log, replay=True) == 1
    assert consumers.get("c").replays == 1


def test_batch_beyond_the_newest_and_fence_never_given_are_refused() -> None:
    consumers, log = Consumers(), sealed(3)
    fence = consumers.attach("c", "n", log).fence
    for batch, its_fence in ((4, fence), (-1, fence), (1, fence + 1)):
        with pytest.raises(BadRequestError):
            consumers.move("c", batch, its_fence, log)
    with pytest.raises(NotFoundError):
        consumers.move("nobody", 1, 1, log)
    with pytest.raises(NotFoundError):
        consumers.lag("nobody", log, 0)


def test_replay_below_retention_is_refused_not_shortened() -> None:
    consumers, log = Consumers(), sealed(5)
    fence = consumers.attach("c", "n", log).fence
    consumers.move("c", 5, fence, log)
    log.drop_through(3)
    with pytest.raises(RetentionExceededError):
        consumers.move("c", 2, fence, log, replay=True)
    assert consumers.move("c", 3, fence, log, replay=True) == 3


def test_consumer_overtaken_by_retention_is_told_and_goes_on_only_by_its_own_hand() -> None:
    consumers, log = Consumers(), sealed(5)
    fence = consumers.attach("c", "n", log).fence
    log.drop_through(3)
    assert consumers.attach("c", "n", log).cursor == 0
    with pytest.raises(RetentionExceededError):
        consumers.move("c", 1, fence, log)
    assert consumers.move("c", 3, fence, log) == 3


def test_new_consumer_begins_at_the_oldest_retained_batch() -> None:
    assert Consumers().attach("c", "n", sealed(5, dropped=3)).cursor == 3
    assert Consumers().attach("c", "n", sealed(5, dropped=5)).cursor == 5


def test_bad_names_and_nonces_and_one_consumer_too_many_are_refused() -> None:
    consumers, log = Consumers(), sealed(0)
    for name, nonce in (("C", "n"), ("", "n"), ("c", ""), ("c", "x" * 129)):
        with pytest.raises(BadRequestError):
            consumers.attach(name, nonce, log)
    for number in range(CONSUMERS_MAX):
        consumers.attach(f"c{number}", "n", log)
    with pytest.raises(QuotaError):
        consumers.attach("one-more", "n", log)


def test_watermark_is_the_smallest_required_cursor() -> None:
    consumers, log = Consumers(("a", "b")), sealed(5)
    assert consumers.watermark() == 0
    for name, batch in (("a", 3), ("b", 2), ("optional", 1)):
        consumers.move(name, batch, consumers.attach(name, "n", log).fence, log)
    assert consumers.watermark() == consumers.required_watermark() == 2


def test_watermark_without_required_consumers_is_the_smallest_of_all() -> None:
    consumers, log = Consumers(), sealed(5)
    assert (consumers.watermark(), consumers.required_watermark()) == (0, None)
    for name, batch in (("a", 3), ("b", 2)):
        consumers.move(name, batch, consumers.attach(name, "n", log).fence, log)
    assert (consumers.watermark(), consumers.required_watermark()) == (2, None)


def test_lag_counts_batches_items_and_time_since_the_oldest_unread_seal() -> None:
    consumers, log = Consumers(("c",)), sealed(5)
    fence = consumers.attach("c", "n", log).fence
    assert consumers.lag("c", log, 9000) == Lag(5, 50, 8000)
    consumers.move("c", 3, fence, log)
    assert consumers.lag("c", log, 9000) == Lag(2, 20, 5000)
    consumers.move("c", 5, fence, log)
    assert consumers.lag("c", log, 9000) == Lag(0, 0, 0)


class ConsumersMachine(RuleBasedStateMachine):
    """Compared with dictionaries of cursors and of fences by nonce."""

    @initialize(required=st.sets(st.sampled_from("ab")))
    def begin(self, required: set[str]) -> None:
        self.required = tuple(sorted(required))
        self.consumers, self.log = Consumers(self.required), BatchLog()
        self.cursors = dict.fromkeys(self.required, 0)
        self.fences: dict[str, dict[str, int]] = {name: {} for name in self.required}

    @rule()
    def seal(self) -> None:
        number = self.log.last
        self.log.append(number * 10 + 1, number * 10 + 10, 10, 100, number)

    @rule()
    def drop_one(self) -> None:
        if len(self.log):
            self.log.drop_through(self.log.first)

    @rule(name=st.sampled_from("abc"), nonce=st.sampled_from("xyz"))
    def attach(self, name: str, nonce: str) -> None:
        fences = self.fences.setdefault(name, {})
        cursor = self.cursors.setdefault(name, self.log.first - 1)
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
            expected = self.cursors[name] = batch
        assert got == expected

    @rule()
    def restart(self) -> None:
        data = msgspec.msgpack.encode(self.consumers.snapshot())
        self.consumers = Consumers.restore(msgspec.msgpack.decode(data, type=tuple[ConsumerState, ...]))
        assert msgspec.msgpack.encode(self.consumers.snapshot()) == data

    @invariant()
    def cursors_and_watermark_are_those_of_the_model(self) -> None:
        assert {c.name: c.cursor for c in self.consumers.all()} == self.cursors
        held = [self.cursors[name] for name in self.required] or list(self.cursors.values())
        assert self.consumers.watermark() == min(held, default=0)


TestConsumersEqualADictionary = ConsumersMachine.TestCase
TestConsumersEqualADictionary.settings = settings(deadline=None, max_examples=150, stateful_step_count=30)
