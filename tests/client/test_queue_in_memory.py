"""The queue, each step of it: where an item is, who has it, and that what is cut off puts it back as it was."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator
from typing import Any

import pytest

from oncegate import Code, OncegateError, OperationFailed, Outcome, OutcomeUnknown, Transaction
from oncegate.recipes import Claim, Queue
from oncegate.rifl.ids import RequestId, SequenceNumber
from tests.client.answers import fails
from tests.client.small_cluster import SmallCluster, in_memory, now_s, settle

GONE = OperationFailed(Code.SESSION_EXPIRED, outcome=Outcome.NOT_APPLIED)
FULL = OperationFailed(Code.WINDOW_FULL)
LATE = OutcomeUnknown(Code.TIMEOUT)
DAYS_366_MS = 366 * 24 * 3_600_000


def at(place: str, number: int, name: str = "q") -> str:
    return f"queue/{name}/{place}/{number:019d}"


def queue_of(cluster: SmallCluster, **options: Any) -> tuple[Queue, Any]:
    session = cluster.session()
    return Queue(cluster.client, session, "q", **options), session


async def claimed(cluster: SmallCluster, **options: Any) -> tuple[Claim, Any]:
    """The claim of an item ``a`` that had been claimed twice before, and its session."""
    queue, session = queue_of(cluster, **options)
    cluster.plant(at("ready", 7), [2, "a"])
    return await queue.claim(), session


@contextlib.contextmanager
def refused(words: str) -> Iterator[None]:
    with pytest.raises(OperationFailed, match=f"^BAD_REQUEST: {words} "):
        yield


# Putting


@pytest.mark.parametrize("table", ["recipes", "others"])
@in_memory
async def test_item_is_put_under_the_number_of_its_write_and_moved_there_behind_its_delay(
    cluster: SmallCluster, table: str
) -> None:
    queue, session = queue_of(cluster, **({} if table == "recipes" else {"table": table}))
    first, late = await queue.put(("a", 1)), await queue.put("b", delay_ms=5_000)
    assert (first, late) == (1, 2)
    assert cluster.values(table) == {at("ready", 1): [0, ["a", 1]], at("later", 2): [0, "b"]}
    cluster.advance(4_999)
    assert cluster.names(table) == [at("later", 2), at("ready", 1)]
    cluster.advance(1)
    assert cluster.values(table) == {at("ready", 1): [0, ["a", 1]], at("ready", 2): [0, "b"]}
    assert (session.asked["transact"], cluster.client.asked["transact"]) == (2, 0)


@in_memory
async def test_item_of_an_event_is_put_once_whoever_puts_it(cluster: SmallCluster) -> None:
    (queue, session), (other, _) = queue_of(cluster), queue_of(cluster)
    number = await queue.put("a", idempotency_key="event", delay_ms=5)
    assert await other.put("a", idempotency_key="event", delay_ms=5) == number
    assert cluster.values() == {at("later", number): [0, "a"]}
    assert session.asked["transact"] == 0


@pytest.mark.parametrize("delay_ms", [None, 5])
@in_memory
async def test_what_is_put_with_an_item_happens_with_it(cluster: SmallCluster, delay_ms: int | None) -> None:
    queue, session = queue_of(cluster)
    effects = Transaction().put("rows", "r", 1).check("rows", "r", absent=True)
    assert queue.putting("a", effects, delay_ms=delay_ms) is effects
    assert (await session.transact(effects)).applied
    assert not (await session.transact(effects)).applied
    assert cluster.names() == [at("ready" if delay_ms is None else "later", 2)]
    assert cluster.names("rows") == ["r"]


@in_memory
async def test_arguments_are_refused_exactly_beyond_their_bounds_and_by_their_names(cluster: SmallCluster) -> None:
    queue, session = queue_of(cluster)
    client = cluster.client
    for most in (1, 1_000_000):
        Queue(client, session, "q", attempts_max=most)
    for most in (0, 1_000_001):
        with refused(r"attempts_max is a whole number in 1\.\.1000000"):
            Queue(client, session, "q", attempts_max=most)
    for ms in (1, DAYS_366_MS):
        Queue(client, session, "q", visibility_ms=ms)
        queue.putting("a", delay_ms=ms)
    for ms in (0, DAYS_366_MS + 1):
        with refused(rf"visibility_ms is a whole number in 1\.\.{DAYS_366_MS}"):
            Queue(client, session, "q", visibility_ms=ms)
        with refused(rf"delay_ms is a whole number in 1\.\.{DAYS_366_MS}"):
            await queue.put("a", delay_ms=ms)
    for count in (0, 65):
        with refused(r"count is a whole number in 1\.\.64"):
            await queue.claim_many(count)
    with refused(r"number is a whole number in 1\.\.\d+"):
        await queue.redrive(0)
    with fails(Code.BAD_REQUEST):
        Queue(client, session, "q", table="No Table")
    assert cluster.names() == []


@in_memory
async def test_longest_name_is_the_one_whose_items_have_keys_wherever_they_are(cluster: SmallCluster) -> None:
    longest = "n" * (512 - len("queue//") - len("taken/") - 19)
    queue = Queue(cluster.client, cluster.session(), longest)
    number = await queue.put("a", delay_ms=1)
    cluster.advance(1)
    claim = await queue.claim()
    assert await claim.release(delay_ms=1)
    cluster.advance(1)
    assert await (await queue.claim()).bury()
    assert cluster.names() == [at("dead", number, longest)]
    with fails(Code.PAYLOAD_TOO_LARGE):
        Queue(cluster.client, cluster.session(), longest + "n")


# Claiming


@in_memory
async def test_claim_says_what_was_put_and_is_bound_to_the_session_and_to_its_time(cluster: SmallCluster) -> None:
    claim, session = await claimed(cluster, visibility_ms=1_000)
    (row,) = cluster.tables["recipes"].values()
    assert cluster.values() == {at("taken", 7): [3, "a"]}
    assert (claim.number, claim.item, claim.attempts, claim.token) == (7, "a", 3, row.version)
    assert row.owner == session.client_id
    assert claim.alive
    lost = asyncio.ensure_future(claim.lost())
    await settle()
    cluster.advance(999)
    assert cluster.names() == [at("taken", 7)]
    assert not lost.done()
    cluster.advance(1)
    assert cluster.values() == {at("ready", 7): [3, "a"]}
    await lost
    other, _ = await claimed(cluster)
    cluster.advance(10**9)
    assert cluster.names() == [at("taken", 7)], "without a bound it stays as long as the session"
    assert not (await claim.complete()).applied
    assert (await other.complete()).applied


@in_memory
async def test_items_are_claimed_in_their_order_and_as_many_as_are_asked_for(cluster: SmallCluster) -> None:
    queue, session = queue_of(cluster)
    for number in range(70, 0, -1):
        cluster.plant(at("ready", number), [0, number])
        cluster.plant(at("ready", number, "another"), [0, number])
    assert (await queue.claim()).number == 1
    assert session.asked["transact"] == 1
    assert [claim.item for claim in await queue.claim_many(2)] == [2, 3]
    assert [claim.number for claim in await queue.claim_many(64)] == [*range(4, 68)]
    assert [claim.number for claim in await queue.claim_many(64)] == [68, 69, 70]
    assert cluster.client.asked["turns"] == 0, "nobody waits for what is there"
    assert sum("another/ready" in key for key in cluster.names()) == 70


@pytest.mark.parametrize("count", [1, 3])
@in_memory
async def test_who_finds_nothing_waits_until_an_item_comes_into_its_own_queue(
    cluster: SmallCluster, count: int
) -> None:
    queue, session = queue_of(cluster)
    waiting = asyncio.ensure_future(queue.claim_many(count))
    await settle()
    cluster.plant(at("ready", 1, "another"), [0, "a"])
    cluster.plant(at("dead", 1), [0, "a"])
    await settle()
    assert not waiting.done()
    assert session.asked["transact"] == 1
    producer, _ = queue_of(cluster)
    number = await producer.put("b")
    (claim,) = await waiting
    assert (claim.number, claim.item, claim.attempts) == (number, "b", 1)
    assert session.asked["transact"] == 2


@in_memory
async def test_block_gives_back_what_is_not_completed_in_it(cluster: SmallCluster) -> None:
    queue, _ = queue_of(cluster)
    await queue.put("a")
    with contextlib.suppress(LookupError):
        async with queue.claimed() as claim:
            raise LookupError
    assert not claim.alive
    assert cluster.values() == {at("ready", 1): [1, "a"]}
    async with queue.claimed() as claim:
        assert (await claim.complete()).applied
    assert cluster.names() == []


@in_memory
async def test_large_items_are_read_and_those_that_have_gone_meanwhile_are_nobodys(cluster: SmallCluster) -> None:
    queue, session = queue_of(cluster)
    cluster.told_bytes_max = 10
    items = {number: str(number) * 20 for number in range(1, 5)}
    for number, item in items.items():
        cluster.plant(at("ready", number), [0, item])
    cluster.client.fates.append(lambda: cluster.remove(at("taken", 1)))
    cluster.client.fates.append(lambda: cluster.plant(at("taken", 2), [1, "of another"]))
    claims = await queue.claim_many(4)
    assert [(claim.number, claim.item, claim.attempts) for claim in claims] == [(3, items[3], 1), (4, items[4], 1)]
    assert [(await claim.complete()).applied for claim in claims] == [True, True]
    assert cluster.values() == {at("taken", 2): [1, "of another"]}
    cluster.plant(at("ready", 5), [0, "short"])
    assert (await queue.claim()).item == "short"
    assert cluster.client.asked["get"] == 4, "what is told need not be read"
    assert session.asked["transact"] == 4


# Ending a claim


@in_memory
async def test_completion_takes_the_item_out_with_its_effects_once(cluster: SmallCluster) -> None:
    claim, session = await claimed(cluster)
    effects = Transaction().put("rows", "r", 1)
    assert claim.completing(effects) is effects
    assert (await claim.complete()).applied
    assert cluster.names() == []
    assert not claim.alive
    asked = session.asked["transact"]
    assert await claim.release() is True
    assert session.asked["transact"] == asked, "nothing is left to give back"
    assert not (await session.transact(effects)).applied
    assert not (await claim.complete(Transaction().put("rows", "r", 2))).applied
    assert not await claim.bury()
    assert cluster.names("rows") == []


@in_memory
async def test_completion_with_a_condition_that_fails_leaves_the_claim(cluster: SmallCluster) -> None:
    claim, _ = await claimed(cluster)
    never = Transaction().check("rows", "r", absent=True).put("rows", "done", 1)
    cluster.plant("r", 1, "rows")
    result = await claim.complete(never)
    assert (result.applied, result.failed) == (False, "conditions[0]")
    assert claim.alive
    assert cluster.names() == [at("taken", 7)]
    cluster.remove("r", "rows")
    again = Transaction().check("rows", "r", absent=True).put("rows", "done", 1)
    assert (await claim.complete(again)).applied
    assert cluster.values("rows") == {"done": 1}


@pytest.mark.parametrize("steps", range(3, 8))
@in_memory
async def test_completion_while_the_item_is_given_back_is_told_as_it_happened(
    cluster: SmallCluster, steps: int
) -> None:
    claim, session = await claimed(cluster)
    session.fates.append(FULL)
    releasing = asyncio.ensure_future(claim.release())
    for _ in range(steps):
        await asyncio.sleep(0)
    completed = (await claim.complete()).applied
    assert completed is (cluster.names() == [])
    assert await releasing is not completed
    assert await claim.release() is not completed


@in_memory
async def test_buried_item_is_a_dead_letter_with_its_attempts(cluster: SmallCluster) -> None:
    claim, _ = await claimed(cluster)
    assert await claim.bury()
    assert not claim.alive
    assert cluster.values() == {at("dead", 7): [3, "a"]}
    lost, _ = await claimed(cluster)
    cluster.plant(at("taken", 7), "of somebody else")
    assert not await lost.bury()
    assert cluster.values() == {at("dead", 7): [3, "a"], at("taken", 7): "of somebody else"}


@pytest.mark.parametrize(
    ("how", "place", "attempts"),
    [
        ({}, "ready", 3), ({"counts": True}, "ready", 3), ({"counts": False}, "ready", 2),
        ({"delay_ms": 5}, "later", 3), ({"delay_ms": 5, "counts": False}, "later", 2),
    ],
)  # fmt: skip
@in_memory
async def test_item_that_is_given_back_is_in_its_place_again(
    cluster: SmallCluster, how: dict[str, Any], place: str, attempts: int
) -> None:
    claim, session = await claimed(cluster)
    assert [*await asyncio.gather(claim.release(**how), claim.release())] == [True, True]
    assert await claim.release()
    assert not claim.alive
    assert cluster.values() == {at(place, 7): [attempts, "a"]}
    assert session.asked["transact"] == 2
    cluster.advance(4)
    assert cluster.names() == [at(place, 7)]
    cluster.advance(1)
    assert cluster.values() == {at("ready", 7): [attempts, "a"]}
    assert not (await claim.complete()).applied


@in_memory
async def test_item_is_not_given_back_by_arguments_that_cannot_be(cluster: SmallCluster) -> None:
    claim, _ = await claimed(cluster)
    for ms in (0, DAYS_366_MS + 1):
        with refused(rf"delay_ms is a whole number in 1\.\.{DAYS_366_MS}"):
            await claim.release(delay_ms=ms)
    with refused("counts is True or False"):
        await claim.release(counts=1)  # type: ignore[arg-type]
    assert claim.alive
    assert await claim.release(delay_ms=DAYS_366_MS)
    assert cluster.tables["recipes"][at("later", 7)].ends_ms == DAYS_366_MS


@pytest.mark.parametrize(
    ("fates", "told", "asked"),
    [
        ([FULL, FULL], True, {"transact": 4, "drain": 2}), ([LATE], True, {"transact": 3}),
        (["lost"], False, {"transact": 3}), (["late"], True, {"transact": 3}), ([GONE], False, {"transact": 2}),
        ([OncegateError(Code.FENCED)], False, {"transact": 2}),
    ],
)  # fmt: skip
@in_memory
async def test_giving_back_goes_on_until_it_is_known(
    cluster: SmallCluster, fates: list[Any], told: bool, asked: dict[str, int]
) -> None:
    claim, session = await claimed(cluster)
    session.fates.extend(fates)
    releasing = asyncio.ensure_future(claim.release())
    await asyncio.sleep(0)
    releasing.cancel()
    await settle()
    assert releasing.cancelled()
    assert await claim.release() is told
    assert session.asked == asked
    session.arrive()
    assert cluster.names() == [at("taken" if asked == {"transact": 2} else "ready", 7)]


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


@in_memory
async def test_items_of_an_earlier_build_are_taken_over_but_those_that_are_claimed(cluster: SmallCluster) -> None:
    queue, _ = queue_of(cluster)
    for number in (1, 2, 3):
        cluster.plant(at("item", number), {"n": number})
    cluster.plant(at("claim", 2), "theirs")
    cluster.plant(at("item", 9, "another"), {"n": 9})
    assert await queue.adopt() == 2
    assert cluster.values() == {
        at("item", 2): {"n": 2}, at("claim", 2): "theirs", at("item", 9, "another"): {"n": 9},
        at("ready", 1): [0, {"n": 1}], at("ready", 3): [0, {"n": 3}],
    }  # fmt: skip
    assert await queue.adopt() == 0
    cluster.remove(at("claim", 2))
    asked = cluster.client.asked
    before = asked["rows"]
    claim = await queue.claim()
    assert (claim.number, claim.item, claim.attempts) == (1, {"n": 1}, 1)
    assert (await queue.claim()).item == {"n": 2}, "looked for again until none is left"
    cluster.plant(at("item", 4), {"n": 4})
    assert (await queue.claim()).item == {"n": 3}
    assert asked["rows"] == before + 1, "and then no more"
    assert await queue.adopt() == 1
    assert (await queue.claim()).item == {"n": 4}


@in_memory
async def test_first_claim_takes_over_what_earlier_builds_have_left(cluster: SmallCluster) -> None:
    queue, _ = queue_of(cluster)
    cluster.plant(at("item", 1), "a")
    assert (await queue.claim()).item == "a"


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
    await queue.adopt()
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
    await queue.adopt()
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
