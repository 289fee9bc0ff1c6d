"""Who a consumer is: made, attached, fenced off, required, waited for, removed; and the parts that it writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from oncegate.flows.batch_log import BatchLog
from oncegate.flows.cursor import NONCE_LENGTH_MAX, NONCES_MAX, Consumers, ConsumerState, Lag
from oncegate.flows.errors import (
    BadRequestError,
    FencedError,
    FlowError,
    NotFoundError,
    PayloadMismatchError,
    QuotaError,
    RetentionExceededError,
)
from oncegate.flows.flow import CONSUMERS_MAX
from oncegate.flows.parts import NO_PARTS, PARTS_MAX


def batches(last: int, first: int = 1) -> BatchLog:
    """Return the log of batches ``first`` .. ``last`` of ten items, number n sealed at 1000 * n."""
    log = BatchLog()
    for number in range(1, last + 1):
        log.append(number * 10 - 9, number * 10, 10, 100, 1000 * number)
    if first > 1:
        log.drop_through(first - 1)
    return log


def refused(kind: type[FlowError], does: Callable[..., object], *args: Any, **named: Any) -> str:
    with pytest.raises(FlowError) as error:
        does(*args, **named)
    assert type(error.value) is kind
    return str(error.value)


def test_required_consumers_are_made_in_order_where_the_flow_begins() -> None:
    consumers = Consumers(("b", "a"), cursor=4, fences=7, now_ms=50)
    assert consumers.all() == tuple(ConsumerState(name, True, 4, 7, begun=4, alive_ms=50) for name in "ba")
    assert (consumers.fences, Consumers().fences) == (7, 0)
    assert Consumers(("a",)).get("a") == ConsumerState("a", True)
    assert not consumers.get("a").attached
    assert not consumers.get("a").moved


def test_attached_is_the_only_instance_from_the_oldest_retained_batch_on() -> None:
    consumers = Consumers(fences=5)
    assert consumers.attach("c", "one", batches(6, 3), 70) == (6, 2)
    found = consumers.get("c")
    wanted = ConsumerState("c", False, 2, 6, nonces=(("one", 6),), begun=2, alive_ms=70)
    assert found == wanted
    assert found.attached
    assert consumers.attach("c", "two", batches(6), 80) == (7, 2)
    assert consumers.get("c").alive_ms == 80
    assert consumers.attach("c", "one", batches(6), 90) == (6, 2), "its own older fence, which fences nobody"
    assert (consumers.get("c").fence, consumers.get("c").alive_ms) == (7, 80)
    assert consumers.attach("d", "one", batches(0)) == (6, 0)
    assert consumers.get("d").alive_ms == 0


def test_oldest_nonces_are_forgotten_first() -> None:
    consumers, log = Consumers(), batches(0)
    for number in range(NONCES_MAX + 1):
        consumers.attach("c", f"n{number}", log)
    assert [nonce for nonce, _ in consumers.get("c").nonces] == [f"n{number}" for number in range(1, NONCES_MAX + 1)]
    assert (NONCES_MAX, NONCE_LENGTH_MAX) == (16, 128)
    assert consumers.attach("c", "x" * 128, log).fence == NONCES_MAX + 2
    refused(BadRequestError, consumers.attach, "c", "x" * 129, log)


def test_attach_at_a_cursor_stands_there_and_back_is_a_replay() -> None:
    consumers = Consumers()
    assert consumers.attach("c", "one", batches(6, 3), cursor=4).cursor == 4
    assert (consumers.get("c").begun, consumers.get("c").replays) == (4, 0)
    assert not consumers.get("c").moved
    assert consumers.attach("c", "two", batches(6, 3), cursor=2).cursor == 2
    assert consumers.get("c").replays == 1
    assert consumers.attach("c", "three", batches(6, 3), cursor=6).cursor == 6
    assert consumers.get("c").replays == 1
    before = consumers.all()
    refused(RetentionExceededError, consumers.attach, "c", "four", batches(6, 3), cursor=1)
    refused(BadRequestError, consumers.attach, "c", "four", batches(6, 3), cursor=7)
    refused(RetentionExceededError, consumers.attach, "new", "one", batches(6, 3), cursor=1)
    assert consumers.all() == before
    assert consumers.attach("c", "two", batches(6, 3), cursor=1) == (2, 6), "a retry moves nothing"


def test_attach_at_a_cursor_forgets_what_was_written_and_a_plain_one_does_not() -> None:
    consumers, log = Consumers(), batches(3)
    consumers.attach("c", "one", log)
    consumers.wrote("c", 1, 11, 101, 0, last=False)
    consumers.attach("c", "two", log)
    assert consumers.get("c").parts.count == 1
    consumers.attach("c", "three", log, cursor=0)
    assert consumers.get("c").parts == NO_PARTS


def test_removed_consumer_fences_whoever_held_one_of_its_fences_for_good() -> None:
    consumers, log = Consumers(), batches(3)
    for nonce in ("one", "two"):
        consumers.attach("c", nonce, log)
    consumers.attach("d", "one", log)
    consumers.remove("d")
    assert consumers.fences == 2
    consumers.remove("c")
    assert consumers.fences == 3
    for fence in (1, 2):
        refused(FencedError, consumers.move, "c", 0, fence, log)
    for fence in (0, 3, 4):
        refused(NotFoundError, consumers.move, "c", 0, fence, log)
    refused(NotFoundError, consumers.remove, "c")
    assert consumers.attach("c", "one", log).fence == 4
    refused(FencedError, consumers.move, "c", 0, 3, log)
    assert consumers.move("c", 1, 4, log) == 1
    consumers.attach("e", "one", log)
    consumers.remove("e")
    assert consumers.fences == 5, "it never goes back"


def test_fencing_off_raises_every_fence_and_lets_no_time_pass_for_anybody() -> None:
    consumers, log = Consumers(("r",), now_ms=0), batches(3)
    consumers.attach("c", "one", log, 40)
    consumers.fence_off(10, 500)
    assert consumers.fences == 10
    assert [(one.name, one.fence, one.alive_ms) for one in consumers.all()] == [("r", 10, 500), ("c", 11, 540)]
    refused(FencedError, consumers.move, "c", 1, 1, log)
    assert consumers.attach("new", "one", log).fence == 11


def test_required_are_those_that_were_named_last_and_who_has_attached_stays() -> None:
    consumers, log = Consumers(("never", "was"), now_ms=5), batches(6, 4)
    consumers.attach("was", "one", log)
    consumers.attach("free", "one", log)
    consumers.require(("free", "new"), log, 30)
    assert [(one.name, one.required) for one in consumers.all()] == [("was", False), ("free", True), ("new", True)]
    assert consumers.get("new") == ConsumerState("new", True, 3, consumers.fences, begun=3, alive_ms=30)
    assert consumers.fences == 1, "the one that is gone had a fence which nobody may get again"
    consumers.require(("free", "new"), log, 40)
    assert consumers.get("new").alive_ms == 30, "it is there already"


def test_consumers_are_bounded_and_who_goes_makes_room_for_who_comes() -> None:
    consumers, log = Consumers(("never",)), batches(0)
    for number in range(CONSUMERS_MAX - 1):
        consumers.attach(f"c{number}", "n", log)
    refused(QuotaError, consumers.attach, "one-more", "n", log)
    before = consumers.all()
    refused(QuotaError, consumers.require, ("new", "newer"), log, 0)
    refused(QuotaError, consumers.require, ("never", "new"), log, 0)
    assert consumers.all() == before
    consumers.require(("new",), log, 0)
    assert {one.name for one in consumers.all()} == {"new", *(f"c{number}" for number in range(CONSUMERS_MAX - 1))}
    assert consumers.attach("c0", "m", log).fence == 2, "who is there needs no room"


def test_overdue_is_who_is_required_and_gave_no_sign_of_life_for_so_long() -> None:
    consumers, log = Consumers(("silent", "moved", "back", "expired"), now_ms=100), batches(3)
    consumers.attach("free", "one", log, 100)
    for name in ("moved", "back"):
        fence = consumers.attach(name, "one", log, 100).fence
        consumers.move(name, 1, fence, log, now_ms=100)
    consumers.move("back", 0, 1, log, replay=True, now_ms=100)
    consumers.expire("expired")
    assert consumers.overdue(50, 0, 149) == []
    assert consumers.overdue(50, 0, 150) == ["silent"], "who went back to where it began has moved"
    assert consumers.overdue(0, 0, 10_000) == [], "0 expires nobody"
    assert consumers.overdue(50, 120, 169) == []
    assert consumers.overdue(50, 120, 170) == ["silent"], "time counts from then on"


@pytest.mark.parametrize("sign", ["attach", "move", "wrote"])
def test_who_has_expired_is_not_waited_for_until_it_gives_a_sign_of_life(sign: str) -> None:
    consumers, log = Consumers(("a", "b")), batches(3)
    fence = consumers.attach("a", "one", log).fence
    consumers.move("b", 2, consumers.attach("b", "one", log).fence, log)
    consumers.expire("a")
    assert (consumers.watermark(), [one.name for one in consumers.counting()]) == (2, ["b"])
    if sign == "attach":
        consumers.attach("a", "two", log, 9)
    elif sign == "move":
        consumers.move("a", 0, fence, log, now_ms=9)
    else:
        assert consumers.wrote("a", 1, 1, 1, 9, last=False) == 0
    assert (consumers.get("a").expired, consumers.get("a").alive_ms) == (False, 9)
    assert (consumers.watermark(), [one.name for one in consumers.counting()]) == (0, ["a", "b"])
    refused(NotFoundError, consumers.expire, "nobody")


def test_watermark_is_the_slowest_of_those_that_are_waited_for() -> None:
    consumers, log = Consumers(), batches(5)
    assert (consumers.watermark(), consumers.slowest()) == (0, ())
    for name, batch in (("a", 3), ("b", 2), ("c", 2)):
        consumers.move(name, batch, consumers.attach(name, "one", log).fence, log)
    assert (consumers.watermark(), [one.name for one in consumers.slowest()]) == (2, ["b", "c"])
    consumers.require(("a",), log, 0)
    assert (consumers.watermark(), [one.name for one in consumers.slowest()]) == (3, ["a"])
    assert [one.name for one in consumers.counting()] == ["a"]
    consumers.expire("a")
    assert (consumers.watermark(), [one.name for one in consumers.slowest()]) == (2, ["b", "c"])


def test_lag_is_no_time_without_a_batch_and_never_negative() -> None:
    consumers, log = Consumers(), batches(3)
    consumers.attach("c", "one", log)
    assert consumers.lag("c", log, 1500) == Lag(3, 30, 500)
    assert consumers.lag("c", log, 900) == Lag(3, 30, 0)
    consumers.move("c", 3, 1, log)
    assert consumers.lag("c", log, 9000) == Lag(0, 0, 0)


def test_what_is_shown_is_a_copy() -> None:
    consumers = Consumers(("a",))
    shown = [consumers.get("a"), *consumers.all(), *consumers.slowest(), *consumers.counting(), *consumers.snapshot()]
    for one in shown:
        one.cursor = 9
    assert consumers.get("a").cursor == 0
    saved = consumers.snapshot()
    restored = Consumers.restore(saved, 6)
    saved[0].cursor = 9
    assert (restored.fences, restored.all()) == (6, consumers.all())
    assert Consumers.restore(()).fences == 0
    refused(NotFoundError, consumers.get, "nobody")


# --- parts ---------------------------------------------------------------------------------------------------------


def writing(cursor: int = 1) -> Consumers:
    """Return a consumer ``c`` with fence 1 that has finished up to ``cursor``."""
    consumers, log = Consumers(), batches(5)
    consumers.attach("c", "one", log, cursor=cursor)
    return consumers


def test_parts_are_judged_in_order_and_told_again_what_they_were_told() -> None:
    consumers, log = writing(), batches(5)

    def judged(batch: int, part: int, fingerprint: int, *, last: bool = False) -> Any:
        return consumers.part("c", batch, part, 1, fingerprint, log, last=last)

    assert judged(2, 1, 11) is None
    assert consumers.wrote("c", 2, 11, 101, 30, last=False) == 1
    assert (consumers.get("c").alive_ms, consumers.get("c").cursor) == (30, 1)
    assert judged(2, 1, 11) == (1, 101)
    refused(PayloadMismatchError, judged, 2, 1, 12)
    refused(BadRequestError, judged, 2, 3, 13)
    refused(BadRequestError, judged, 3, 1, 13)
    assert judged(2, 2, 12, last=True) is None
    assert consumers.wrote("c", 2, 12, 102, 40, last=True) == 2
    assert consumers.get("c").cursor == 2
    assert judged(2, 2, 12, last=True) == (2, 102)
    assert judged(1, 1, 99) == (2, None), "of a batch that is finished nothing is written again"
    assert judged(3, 1, 13) is None
    for batch in (0, 6):
        refused(BadRequestError, judged, batch, 1, 1)


@pytest.mark.parametrize("batch", [1, 5])
def test_part_of_the_first_and_of_the_newest_batch_is_taken(batch: int) -> None:
    consumers = writing(batch - 1)
    assert consumers.part("c", batch, 1, 1, 7, batches(5), last=True) is None


def test_part_is_taken_of_the_oldest_retained_batch_and_not_behind_one_that_was_dropped() -> None:
    assert writing().part("c", 2, 1, 1, 7, batches(5, 2), last=True) is None
    told = refused(RetentionExceededError, writing().part, "c", 2, 1, 1, 7, batches(5, 3), last=True)
    assert "batch 2 was dropped; the oldest is 3" in told


def test_part_is_judged_by_the_newest_fence_alone() -> None:
    consumers, log = writing(), batches(5)
    consumers.attach("c", "two", log)
    refused(FencedError, consumers.part, "c", 2, 1, 1, 7, log, last=True)
    refused(BadRequestError, consumers.part, "c", 2, 1, 3, 7, log, last=True)
    assert consumers.part("c", 2, 1, 2, 7, log, last=True) is None


def test_any_move_of_the_cursor_forgets_the_parts_and_one_that_moves_nothing_does_not() -> None:
    consumers, log = writing(), batches(5)
    consumers.wrote("c", 2, 11, 101, 0, last=True)
    consumers.move("c", 2, 1, log)
    assert consumers.get("c").parts.count == 1
    consumers.move("c", 3, 1, log)
    assert consumers.get("c").parts == NO_PARTS
    assert consumers.part("c", 3, 9, 1, 99, log, last=True) == (3, None), "nor of one moved past"


def test_the_greatest_part_is_the_last_one_or_refused() -> None:
    consumers, log = writing(), batches(5)
    for part in range(1, PARTS_MAX):
        consumers.wrote("c", 2, part, 100 + part, 0, last=False)
    assert consumers.part("c", 2, PARTS_MAX, 1, 7, log, last=True) is None
    refused(BadRequestError, consumers.part, "c", 2, PARTS_MAX, 1, 7, log, last=False)


# --- cursors -------------------------------------------------------------------------------------------------------


def test_cursor_moves_to_right_before_the_oldest_retained_batch_and_no_further_back() -> None:
    consumers, log = writing(5), batches(5, 3)
    for moved in (
        lambda cursor: consumers.move("c", cursor, 1, log, replay=True),
        lambda cursor: consumers.attach("d", f"at {cursor}", log, cursor=cursor).cursor,
    ):
        assert "batch 2 was dropped; the oldest is 3" in refused(RetentionExceededError, moved, 1)
        assert moved(2) == 2


def test_each_move_back_is_a_replay_and_a_sign_of_life() -> None:
    consumers, log = writing(3), batches(5)
    for back in (2, 1):
        consumers.move("c", back, 1, log, replay=True, now_ms=90 + back)
        assert (consumers.get("c").replays, consumers.get("c").alive_ms) == (3 - back, 90 + back)
    consumers.move("c", 2, 1, log)
    assert (consumers.get("c").replays, consumers.get("c").alive_ms) == (2, 0)


def test_fences_add_up() -> None:
    consumers = Consumers()
    consumers.fence_off(5, 0)
    consumers.fence_off(6, 0)
    assert consumers.fences == 11


def test_name_that_is_none_is_told_as_a_consumers() -> None:
    assert refused(BadRequestError, Consumers().attach, "C", "n", batches(1)).startswith("consumer name 'C'")
