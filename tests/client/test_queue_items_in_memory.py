"""Items of a queue that nobody has finished: those set aside or left by others, and those that a cut off call took."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest

from oncegate import Code, OncegateError, OperationFailed, OutcomeUnknown, Transaction
from oncegate.recipes import Claim
from oncegate.rifl.ids import RequestId, SequenceNumber
from tests.client.answers import fails
from tests.client.small_cluster import FULL, GONE, LATE, SmallCluster, in_memory, now_s, settle
from tests.client.test_queue_in_memory import at, queue_of


@in_memory
async def test_effects_that_are_given_to_a_completion_stay_as_they_are_for_the_next_claim(
    cluster: SmallCluster,
) -> None:
    queue, _ = queue_of(cluster)
    for number in (1, 2):
        cluster.plant(at("ready", number), [0, "x"])
    effects = Transaction().put("rows", "r", 1)
    before = effects.copy().operation
    for claim in await queue.claim_many(2):
        assert (await claim.complete(effects)).applied, "it is held to the condition of this claim only"
        assert effects.operation == before


# Dead letters


@in_memory
async def test_item_that_was_claimed_so_often_is_set_aside_uncounted(cluster: SmallCluster) -> None:
    queue, session = queue_of(cluster, attempts_max=3)
    for number, attempts in enumerate((2, 3, 0, 9), 1):
        cluster.plant(at("ready", number), [attempts, "x"])
    assert [(claim.number, claim.attempts) for claim in await queue.claim_many(9)] == [(1, 3), (3, 1)]
    assert cluster.values() == {
        at("taken", 1): [3, "x"], at("dead", 2): [3, "x"], at("taken", 3): [1, "x"], at("dead", 4): [9, "x"],
    }  # fmt: skip
    cluster.plant(at("ready", 5), [3, "x"])
    waiting = asyncio.ensure_future(queue.claim())
    await settle()
    assert not waiting.done()
    cluster.plant(at("ready", 6), [0, "good"])
    assert (await waiting).item == "good"
    assert session.asked["resolve"] == 0
    unbounded, _ = queue_of(cluster)
    cluster.plant(at("ready", 7), [999_999, "x"])
    cluster.plant(at("ready", 8), [1_000_000, "x"])
    assert [claim.attempts for claim in await unbounded.claim_many(2)] == [1_000_000]
    assert cluster.value(at("dead", 8)) == [1_000_000, "x"]


@in_memory
async def test_letters_are_read_in_their_order_and_put_back_as_if_they_had_never_been_claimed(
    cluster: SmallCluster,
) -> None:
    queue, _ = queue_of(cluster)
    for number in (10, 1, 100):
        cluster.plant(at("dead", number), [number + 1, f"item {number}"])
    cluster.plant(at("dead", 5, "another"), [1, "x"])
    cluster.plant(at("ready", 50), [1, "x"])
    assert [letter async for letter in queue.dead()] == [
        (1, "item 1", 2), (10, "item 10", 11), (100, "item 100", 101),
    ]  # fmt: skip
    assert (letter := await anext(aiter(queue.dead()))) == (letter.number, letter.item, letter.attempts)
    cluster.client.page_rows.clear()
    assert await queue.redrive(10) == 1
    assert await queue.redrive(10) == 0
    assert cluster.value(at("ready", 10)) == [0, "item 10"]
    (other, _) = queue_of(cluster)
    assert sum(await asyncio.gather(queue.redrive(), other.redrive())) == 2
    assert await queue.redrive() == 0
    assert set(cluster.client.page_rows) == {32}, "few enough for their values to travel at once"
    assert cluster.values() == {
        at("dead", 5, "another"): [1, "x"], at("ready", 50): [1, "x"],
        **{at("ready", number): [0, f"item {number}"] for number in (1, 10, 100)},
    }  # fmt: skip


@pytest.mark.parametrize("steps", range(6))
@in_memory
async def test_letter_that_has_become_another_meanwhile_is_not_put_back_as_it_was(
    cluster: SmallCluster, steps: int
) -> None:
    queue, _ = queue_of(cluster)
    cluster.plant(at("dead", 1), [1, "earlier"])
    redriving = asyncio.ensure_future(queue.redrive())
    for _ in range(steps):
        await asyncio.sleep(0)
    cluster.plant(at("dead", 1), [1, "later"])
    moved = await redriving
    found = {value[1] for value in cluster.values().values()}
    assert found in ({"later"}, {"earlier", "later"})
    assert moved == (at("ready", 1) in cluster.names())


# What is cut off


@pytest.mark.parametrize("refusals", [[], [LATE, FULL, LATE]], ids=["known at once", "known later"])
@pytest.mark.parametrize("fate", ["stuck", "stuck done", "late", "lost"])
@in_memory
async def test_take_that_is_cut_off_leaves_the_items_as_they_were(
    cluster: SmallCluster, fate: str, refusals: list[OncegateError]
) -> None:
    queue, session = queue_of(cluster)
    before = {at("ready", number): [number, "x"] for number in (1, 2)}
    for key, value in before.items():
        cluster.plant(key, value)
    session.fates.append(fate)
    session.refusals.extend(refusals)
    claiming = asyncio.ensure_future(queue.claim_many(2))
    await settle()
    claiming.cancel()
    with pytest.raises((asyncio.CancelledError, OutcomeUnknown)):
        await claiming
    await settle()
    assert cluster.values() == before
    assert session.asked["resolve"] == len(refusals) + 1
    assert session.asked["drain"] == refusals.count(FULL)
    session.arrive()
    assert cluster.values() == before


@in_memory
async def test_take_of_which_nobody_knows_any_more_ends_with_its_session(cluster: SmallCluster) -> None:
    queue, session = queue_of(cluster)
    cluster.plant(at("ready", 1), [0, "x"])
    session.fates.append("lost")
    session.refusals.append(OncegateError(Code.STALE))
    with pytest.raises(OutcomeUnknown):
        await queue.claim()
    await settle()
    assert cluster.names() == [at("taken", 1)]
    assert session.asked == {"transact": 1, "resolve": 1}
    cluster.expire(session)
    assert cluster.names() == [at("ready", 1)]


@pytest.mark.parametrize("first", ["unknown", "taken", "sealed"])
@in_memory
async def test_each_of_several_doubts_is_settled_for_itself(cluster: SmallCluster, first: str) -> None:
    queue, session = queue_of(cluster)
    for number in (1, 2):
        cluster.plant(at("ready", number), [0, "x"])
    taking = Transaction().take("recipes", "queue/q/ready/", "queue/q/taken/", 1, bound=True)
    doubts = [(await session.transact(taking)).request_id for _ in range(2)]
    if first == "unknown":
        session.refusals.append(GONE)
    elif first == "sealed":
        doubts[0] = RequestId(session.client_id, SequenceNumber(99))
    cut = OncegateError(Code.INTERNAL)
    cut.request_ids = doubts  # type: ignore[attr-defined]
    session.fates.append(cut)
    with fails(Code.INTERNAL, kind=OncegateError):
        await queue.claim()
    await settle()
    left = [at("ready", 1), at("ready", 2)] if first == "taken" else [at("ready", 2), at("taken", 1)]
    assert cluster.names() == left


@in_memory
async def test_take_whose_items_cannot_be_read_gives_them_back(cluster: SmallCluster) -> None:
    queue, session = queue_of(cluster)
    cluster.told_bytes_max = 1
    before = {at("ready", number): [number, "x"] for number in (1, 2)}
    for key, value in before.items():
        cluster.plant(key, value)
    cluster.client.fates.append(OperationFailed(Code.OVERLOADED))
    with fails(Code.OVERLOADED):
        await queue.claim_many(2)
    await settle()
    assert cluster.values() == before
    assert session.asked["resolve"] == 0


@pytest.mark.parametrize("fate", [OncegateError(Code.FENCED), "late", "lost"], ids=str)
@in_memory
async def test_claims_that_were_not_told_are_given_back_when_one_cannot_be_set_aside(
    cluster: SmallCluster, fate: Any
) -> None:
    queue, session = queue_of(cluster, attempts_max=2)
    before = {at("ready", number): [attempts, "x"] for number, attempts in ((1, 2), (2, 1), (3, 5))}
    for key, value in before.items():
        cluster.plant(key, value)
    session.fates.extend(["done", fate])
    with pytest.raises(OncegateError):
        await queue.claim_many(3)
    await settle()
    session.arrive()
    if fate == "lost":
        before[at("dead", 1)] = before.pop(at("ready", 1))
    assert cluster.values() == before
    assert session.asked["transact"] == 5, "a take, a try to set one aside, and each of three once"


@in_memory
async def test_setting_aside_that_was_refused_in_doubt_brings_nothing_back(cluster: SmallCluster) -> None:
    queue, session = queue_of(cluster, attempts_max=1)
    cluster.told_bytes_max = 1
    cluster.plant(at("ready", 1), [1, "x"])
    cluster.client.fates.append(lambda: None)
    session.fates.extend(["done", "lost"])
    claiming = asyncio.ensure_future(queue.claim())
    while not cluster.client.asked["get"]:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    cluster.plant(at("taken", 1), "of another")
    with pytest.raises(OutcomeUnknown):
        await claiming
    await settle()
    assert cluster.values() == {at("taken", 1): "of another"}


# Whatever happens

FATES = ("done", "done", "lost", "late", FULL, LATE)
STEPS = ("put", "put late", "claim", "claim", "claim", "complete", "release", "release later", "bury", "redrive", "end",
    "time", "arrive")  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
@in_memory
async def test_item_is_in_one_place_and_completed_once_and_claimed_before_later_ones(
    cluster: SmallCluster, seed: int
) -> None:
    """Whatever becomes of each request: it is refused, its answer is lost, or it comes later."""
    dice = random.Random(seed)
    done = [(dice.choice(STEPS), dice.randrange(10), dice.choice(FATES)) for _ in range(40)]
    consumers = [queue_of(cluster, attempts_max=3) for _ in range(2)]
    claims: list[Claim] = []
    places = ("ready", "later", "taken", "dead")
    for what, which, fate in done:
        number = which % 2
        queue, session = consumers[number]
        claim = claims[which % len(claims)] if claims else None
        if not what.startswith("put"):
            session.fates.append(fate)
        ready = [key for key in cluster.names() if "/ready/" in key]
        with contextlib.suppress(OncegateError, TimeoutError):
            if what.startswith("put"):
                session.fates.clear()
                await queue.put(which, delay_ms=None if what == "put" else 50)
            elif what == "claim" and ready:
                found = await asyncio.wait_for(queue.claim_many(1 + which // 3), 1)
                assert [claim.number for claim in found] == sorted(claim.number for claim in found)
                assert found[0].number >= int(ready[0][-19:])
                claims += found
            elif what == "complete" and claim is not None:
                await claim.complete(Transaction().put("rows", f"{claim.number} {claim.token}", 1))
            elif what == "release" and claim is not None:
                await claim.release(counts=which < 5)
            elif what == "release later" and claim is not None:
                await claim.release(delay_ms=1 + which)
            elif what == "bury" and claim is not None:
                await claim.bury()
            elif what == "redrive":
                await queue.redrive()
            elif what == "end":
                cluster.expire(session)
                consumers[number] = queue_of(cluster, attempts_max=3)
            elif what == "time":
                cluster.advance(10 * which)
            elif what == "arrive":
                session.arrive()
        await asyncio.sleep(2)
        put = {change.key[-19:] for _, change in cluster.changes if any(f"/{one}/" in change.key for one in places)}
        there = [key[-19:] for key in cluster.names()]
        completed = [key.split()[0].zfill(19) for key in cluster.names("rows")]
        assert sorted(there + completed) == sorted(put)
        for key, value in cluster.values().items():
            assert value[0] <= (4 if "/taken/" in key else 3)
    assert now_s() < 1_000
