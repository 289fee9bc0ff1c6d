"""The queue, each step of it: where an item is, who has it, and what ends that."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest

from oncegate import Code, NotKnownYet, OncegateError, OperationFailed, OutcomeUnknown, Transaction
from oncegate.recipes import Claim, Queue
from tests.client.answers import fails
from tests.client.small_cluster import FULL, GONE, LATE, SmallCluster, in_memory, settle

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
    cluster.advance(10**7)
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
    cluster.told_bytes_max = 12
    items = {number: str(number) * 20 for number in range(1, 5)}
    for number, item in items.items():
        cluster.plant(at("ready", number), [0, item])
    cluster.client.fates.append(lambda: cluster.remove(at("taken", 1)))
    cluster.client.fates.append(lambda: cluster.plant(at("taken", 2), [1, "of another"]))
    claims = [*await queue.claim_many(4), *await queue.claim_many(4)]  # a take ends before what would not be told
    assert [(claim.number, claim.item, claim.attempts) for claim in claims] == [(3, items[3], 1), (4, items[4], 1)]
    assert [(await claim.complete()).applied for claim in claims] == [True, True]
    assert cluster.values() == {at("taken", 2): [1, "of another"]}
    cluster.plant(at("ready", 5), [0, "short"])
    assert (await queue.claim()).item == "short"
    assert cluster.client.asked["get"] == 4, "what is told need not be read"
    assert session.asked["transact"] == 7, "a take each, and two completions"


@in_memory
async def test_row_that_is_no_item_and_goes_while_it_is_read_costs_no_item(cluster: SmallCluster) -> None:
    queue, _ = queue_of(cluster)
    cluster.plant(at("ready", 1), "no item")
    cluster.plant(at("ready", 2), [0, "b"])
    cluster.client.fates.append(lambda: cluster.remove(at("taken", 1)))
    assert [(claim.number, claim.item) for claim in await queue.claim_many(2)] == [(2, "b")]


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


@pytest.mark.parametrize("end", ["complete", "complete with effects", "bury"])
@pytest.mark.parametrize("fate", ["lost", "late", "stuck", "stuck done"])
@in_memory
async def test_end_that_was_cut_off_and_is_asked_for_again_is_told_as_it_happened(
    cluster: SmallCluster, fate: str, end: str
) -> None:
    claim, session = await claimed(cluster)

    async def ended() -> bool:
        if end == "bury":
            return await claim.bury()
        return (await claim.complete(Transaction().put("rows", "r", 1) if "effects" in end else None)).applied

    session.fates.append(fate)  # type: ignore[arg-type]
    cut = asyncio.ensure_future(ended())
    await settle()
    cut.cancel()
    (told,) = await asyncio.gather(cut, return_exceptions=True)
    assert isinstance(told, (OutcomeUnknown, asyncio.CancelledError))
    other = await claim.complete(Transaction().put("rows", "other", 1)) if fate in ("lost", "stuck done") else None
    assert await ended()
    session.arrive()
    assert await ended()
    assert other is None or not other.applied, "of what has other effects nothing has happened"
    assert cluster.names("rows") == (["r"] if "effects" in end else [])
    assert cluster.names() == ([at("dead", 7)] if end == "bury" else [])


@pytest.mark.parametrize("between", ["lost", "late"])
@in_memory
async def test_end_that_was_cut_off_is_known_behind_others_that_were(cluster: SmallCluster, between: str) -> None:
    claim, session = await claimed(cluster)
    for value, fate in ((1, "lost"), (2, between), (3, between)):
        session.fates.append(fate)
        with pytest.raises(OutcomeUnknown):
            await claim.complete(Transaction().put("rows", "r", value))
    results = [await claim.complete(Transaction().put("rows", "r", value)) for value in (3, 2, 1, 1)]
    assert [result.applied for result in results] == [False, False, True, True]
    assert cluster.values("rows") == {"r": 1}


@in_memory
async def test_each_doubt_of_an_end_is_asked_about_once(cluster: SmallCluster) -> None:
    claim, session = await claimed(cluster)
    session.fates += ["late", "late", "lost"]
    for asked in range(3):
        with pytest.raises(OutcomeUnknown):
            await claim.complete()
        assert session.asked["resolve"] == asked
    for _ in range(2):
        assert (await claim.complete()).applied
        assert session.asked["resolve"] == 3


@in_memory
async def test_end_that_was_refused_unheard_is_tried_again(cluster: SmallCluster) -> None:
    claim, session = await claimed(cluster)
    cluster.plant("r", 1, "rows")
    session.fates.append("lost")
    with pytest.raises(OutcomeUnknown):
        await claim.complete(Transaction().check("rows", "r", absent=True))
    cluster.remove("r", "rows")
    assert (await claim.complete(Transaction().check("rows", "r", absent=True))).applied


@in_memory
async def test_item_is_told_as_a_type_while_it_is_claimed_and_when_it_was_buried(cluster: SmallCluster) -> None:
    queue, _ = queue_of(cluster)
    await queue.put("2026-03-01")
    claim = await queue.claim()
    assert claim.item_as(date) == date(2026, 3, 1)
    with fails(Code.BAD_REQUEST):
        claim.item_as(int)
    await claim.bury()
    assert [letter.item_as(date) async for letter in queue.dead()] == [date(2026, 3, 1)]


@pytest.mark.parametrize("fate", ["lost", "stuck"])
@in_memory
async def test_end_whose_fate_nobody_can_tell_now_stays_in_doubt_until_somebody_can(
    cluster: SmallCluster, fate: str
) -> None:
    claim, session = await claimed(cluster)
    session.fates.append(fate)  # type: ignore[arg-type]
    cut = asyncio.ensure_future(claim.complete())
    await settle()
    cut.cancel()
    await asyncio.gather(cut, return_exceptions=True)
    session.refusals += [NotKnownYet(Code.TIMEOUT), NotKnownYet(Code.TIMEOUT)]
    for _ in range(2):
        with pytest.raises(NotKnownYet):
            await claim.complete()
    assert (await claim.complete()).applied
    assert cluster.names() == []


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
