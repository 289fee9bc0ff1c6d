"""The queue of the recipes: exactly once at its entrance and its exit, and what waits costs nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import web

from oncegate import Client, Code, Session, Transaction, WriteResult
from oncegate.gateway.client.recipes import line
from oncegate.gateway.client.recipes import turns as turns_module
from oncegate.gateway.local.waiting import until
from oncegate.gateway.machine import commands as c
from oncegate.recipes import Claim, Queue
from oncegate.rifl.errors import OncegateError as Refusal
from oncegate.testing import FakeGateway
from tests.client.answers import fails, settle


@pytest.fixture
async def client(fake: FakeGateway, client: Client) -> Client:
    fake.declare("recipes")
    return client


def rows(fake: FakeGateway) -> list[str]:
    """Where items are: their places, in order."""
    return [key.split("/")[2] for key, _ in fake.machine.tables["recipes"].rows.items()]


async def settled(fake: FakeGateway, *places: str) -> None:
    async def there() -> bool:
        return rows(fake) == [*places]

    await until(there, 20.0, f"items at {places}", state=lambda: rows(fake))


async def within(waiting: asyncio.Task[Claim]) -> Claim:
    async with asyncio.timeout(20):
        return await waiting


async def test_put_under_a_key_is_in_the_queue_once_whoever_puts_it(
    fake: FakeGateway, client: Client, session: Session
) -> None:
    async with client.session() as other:
        first, second = Queue(client, session, "q"), Queue(client, other, "q")
        number = await first.put("a", idempotency_key="event-1", delay_ms=1)
        assert await second.put("a", idempotency_key="event-1", delay_ms=1) == number
        with fails(Code.PAYLOAD_MISMATCH):
            await second.put("b", idempotency_key="event-1", delay_ms=1)
        assert await second.put("a", idempotency_key="event-2") > number
    assert len(rows(fake)) == 2


async def test_put_whose_answer_is_lost_is_in_the_queue_once(
    fake: FakeGateway, client: Client, session: Session
) -> None:
    fake.nodes[0].lose_answers(2)
    number = await Queue(client, session, "q").put("a")
    assert rows(fake) == ["ready"]
    claim = await Queue(client, session, "q").claim()
    assert (claim.number, claim.attempts) == (number, 1)


async def test_claim_whose_answer_is_lost_gets_the_same_item(
    fake: FakeGateway, client: Client, session: Session
) -> None:
    queue = Queue(client, session, "q")
    await queue.put("a")
    await queue.put("b")
    fake.nodes[0].lose_answers(1)
    assert (await queue.claim()).item == "a"
    assert rows(fake) == ["ready", "taken"]


async def test_effects_of_a_claim_that_was_lost_are_those_of_the_next_one(
    fake: FakeGateway, client: Client, session: Session
) -> None:
    queue, effects = Queue(client, session, "q"), Transaction().increment("rows", "sent")
    await queue.put("a")
    lost = await queue.claim()
    await lost.release()
    assert not (await lost.complete(effects)).applied
    assert (await (await queue.claim()).complete(effects)).applied
    row = await client.get("rows", "sent")
    assert row is not None
    assert row.value == 1


async def test_key_has_no_place_in_the_order_of_a_session(fake: FakeGateway, client: Client) -> None:
    async with client.session(in_order=True) as session:
        queue = Queue(client, session, "q")
        with fails(Code.BAD_REQUEST):
            await queue.put("a", idempotency_key="event-1")
        await queue.put("b")
    assert rows(fake) == ["ready"]


async def test_item_is_not_put_into_a_stream_table_where_nobody_can_claim_it(
    fake: FakeGateway, client: Client, session: Session
) -> None:
    fake.declare("stream", kind="stream")
    queue = Queue(client, session, "q", table="stream")
    for delay_ms in (None, 1):
        with fails(Code.BAD_REQUEST):
            await queue.put("lost", delay_ms=delay_ms)
    with fails(Code.BAD_REQUEST):
        await session.transact(queue.putting("lost"))


async def test_put_and_completion_are_part_of_a_transaction(
    fake: FakeGateway, client: Client, session: Session
) -> None:
    first, second = Queue(client, session, "q"), Queue(client, session, "p")
    async with session.transaction() as order:
        first.putting("a", order).insert("rows", "order", 1)
    claim = await first.claim()
    assert order.result.writes[0].version == claim.number
    async with session.transaction() as again:
        first.putting("b", again).insert("rows", "order", 1)
    assert not again.result.applied
    assert rows(fake) == ["taken"]
    handed = second.putting(claim.item, claim.completing())
    assert [(await session.transact(handed)).applied for _ in range(2)] == [True, False]
    assert next(key for key, _ in fake.machine.tables["recipes"].rows.items()).startswith("queue/p/ready/")
    assert (await second.claim()).item == "a"


async def test_delayed_items_come_when_their_time_is_over(fake: FakeGateway, client: Client, session: Session) -> None:
    queue = Queue(client, session, "q")
    late = await queue.put("late", delay_ms=5_000)
    await queue.put("now")
    claim = await queue.claim()
    assert claim.item == "now"
    assert await claim.release(delay_ms=9_000)
    waiting = asyncio.create_task(queue.claim())
    fake.advance(4)
    assert rows(fake) == ["later", "later"]
    fake.advance(2)
    assert (await within(waiting)).number == late
    waiting = asyncio.create_task(queue.claim())
    fake.advance(4)
    assert ((again := await within(waiting)).item, again.attempts) == ("now", 2)


async def test_item_that_is_claimed_too_often_is_set_aside_and_put_back(
    fake: FakeGateway, client: Client, session: Session
) -> None:
    queue = Queue(client, session, "q", attempts_max=2)
    numbers = [await queue.put(item) for item in ("poison", "good")]
    for attempt in (1, 2):
        claim = await queue.claim()
        assert (claim.item, claim.attempts) == ("poison", attempt)
        await claim.release()
    both = await queue.claim_many(8)
    assert [(claim.item, claim.attempts) for claim in both] == [("good", 1)]
    assert [tuple(letter) async for letter in queue.dead()] == [(numbers[0], "poison", 2)]
    assert not await claim.bury()
    assert await both[0].bury()
    assert rows(fake) == ["dead", "dead"]
    assert [await queue.redrive(numbers[1]), await queue.redrive(), await queue.redrive()] == [1, 1, 0]
    again = await queue.claim()
    assert (again.number, again.attempts) == (numbers[0], 1)


async def test_letters_that_two_put_back_beside_each_other_are_in_the_queue_once(
    fake: FakeGateway, client: Client, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has read them; before it puts the first back, the other puts all of them back, and they are claimed."""
    queue = Queue(client, session, "q")
    for number in range(3):
        await queue.put(number)
        await (await queue.claim()).bury()
    claims, transact = list[Claim](), Session.transact
    async with client.session() as beside:
        other = Queue(client, beside, "q")

        async def late(self: Session, made: Transaction, **more: Any) -> WriteResult:
            if self is session and not claims:
                assert await other.redrive() == 3
                claims.extend(await other.claim_many(3))
            return await transact(self, made, **more)

        monkeypatch.setattr(Session, "transact", late)
        assert await queue.redrive() == 0
        assert rows(fake) == ["taken"] * 3
        assert [(await claim.complete()).applied for claim in claims] == [True] * 3
    assert rows(fake) == []


async def test_item_of_a_consumer_that_hangs_comes_again_and_its_completion_does_nothing(
    fake: FakeGateway, client: Client, session: Session
) -> None:
    queue = Queue(client, session, "q", visibility_ms=1_000)
    await queue.put("a")
    hangs = await queue.claim()
    waiting = asyncio.create_task(queue.claim())
    fake.advance(2)
    again = await within(waiting)
    assert not (await hangs.complete()).applied
    assert (await again.complete()).applied
    assert rows(fake) == []


async def test_large_items_are_claimed_one_by_one(client: Client, session: Session) -> None:
    queue, items = Queue(client, session, "q"), [letter * 150_000 for letter in "abc"]
    for item in items:
        await queue.put(item)
    got: list[object] = []
    while len(got) < 3:
        claims = await queue.claim_many(8)
        assert len(claims) == 1
        got.append(claims[0].item)
    assert got == items


@pytest.mark.parametrize("count", [1, 3])
async def test_claim_that_is_cut_off_at_any_point_leaves_no_trace(
    fake: FakeGateway, client: Client, session: Session, count: int
) -> None:
    queue = Queue(client, session, "q", attempts_max=1)
    for item in range(3):
        await queue.put(item)
    for steps in (*range(0, 40, 2), 80):
        task = asyncio.create_task(queue.claim_many(count))
        for _ in range(steps):
            await asyncio.sleep(0)
        if not task.cancel():  # it was faster: it has what it wanted, and does not need it
            for claim in task.result():
                await claim.release(counts=False)
        await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled() and task.exception() is None:
            for claim in task.result():
                await claim.release(counts=False)
        while line._leaving:
            await asyncio.sleep(0.001)
        await settled(fake, "ready", "ready", "ready")
    assert [claim.attempts for claim in await queue.claim_many(3)] == [1, 1, 1]
    assert turns_module._LINES == {}


async def test_claim_that_is_cut_off_while_nobody_answers_is_given_back_later(
    fake: FakeGateway, client: Client, session: Session
) -> None:
    queue = Queue(client, session, "q")
    await queue.put("a")
    fake.nodes[0].lose_answers(10**9)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await queue.claim()
    assert rows(fake) == ["taken"]
    fake.nodes[0].lose_answers(0)
    await settled(fake, "ready")


async def test_an_item_wakes_one_idle_consumer_and_costs_nothing_for_the_others(
    fake: FakeGateway, client: Client, session: Session
) -> None:
    """Commit numbers count what the log has to do: a put, and one take that moves a row. An idle look is one too."""
    sessions = [session]
    async with AsyncExitStack() as stack:
        sessions += [await stack.enter_async_context(client.session()) for _ in range(9)]
        taken = Counter[int]()

        async def consume(own: Session) -> None:
            queue = Queue(client, own, "q")
            while True:
                claim = await queue.claim()
                taken[claim.number] += 1
                await claim.complete()

        tasks = [asyncio.create_task(consume(one)) for one in sessions]
        place = client, "recipes", "queue/q/ready/"

        async def idle() -> bool:
            return place in turns_module._LINES and len(turns_module._LINES[place]._waiting) == len(tasks)

        await until(idle, 20.0, "all are idle")
        asked = fake.nodes[0].requests["GET /v1/tables/recipes/turns"]
        assert asked <= 2, "all who wait share one question"
        producer = Queue(client, session, "q")
        for number in range(5):
            before = fake.commit
            await producer.put(number)

            async def done(so_many: int = number + 1) -> bool:
                return len(taken) == so_many and await idle()

            await until(done, 20.0, "it is completed, and all are idle")
            # A put, a take with its row's two, a completion; and the look of the one that had the item for the next.
            assert fake.commit - before == 1 + 3 + 1 + 1
        assert set(taken.values()) == {1}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_turn_of_one_who_is_cancelled_as_it_comes_holds_up_no_further_question() -> None:
    answers = asyncio.Queue[int]()

    class Asked:
        async def turns(self, table: str, *, prefix: str, count: int) -> int:
            return await answers.get()

    client: Any = Asked()

    async def use() -> None:
        async with turns_module.turn(client, "recipes", "q/"):
            pass

    users = [asyncio.ensure_future(use()) for _ in range(6)]
    await settle()
    waiting = turns_module._LINES[client, "recipes", "q/"]._waiting
    async with asyncio.timeout(20):
        while waiting:
            left = len(waiting)
            answers.put_nowait(2)
            while len(waiting) == left:
                await asyncio.sleep(0)
            users[6 - left].cancel()  # it has a turn, and has not run since
            await settle()
        ends = await asyncio.gather(*users, return_exceptions=True)
    assert [isinstance(end, asyncio.CancelledError) for end in ends] == [True, False] * 3
    assert not turns_module._LINES


async def test_turns_are_asked_for_again_when_a_node_refuses_and_an_end_is_told_to_all(
    fake: FakeGateway, client: Client, session: Session
) -> None:
    refusals = [Code.NOT_LEADER, Code.OVERLOADED, Code.NOT_READY]

    async def refuses(request: web.Request) -> web.StreamResponse | None:
        if request.path.endswith("/turns") and refusals:
            return fake.nodes[0].problem(Refusal(refusals.pop(), "not now", retry_after_ms=1))
        return None

    fake.nodes[0].before = refuses
    queue = Queue(client, session, "q")
    waiting = [asyncio.create_task(queue.claim()) for _ in range(2)]
    await until(lambda: asyncio.sleep(0, not refusals), 20.0, "it was refused")
    await queue.put("a")
    done, others = await asyncio.wait(waiting, timeout=20, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result().item for task in done] == ["a"]
    incarnation = fake.machine.tables["recipes"].incarnation
    fake.apply(c.DropTable("recipes", incarnation, force=True))
    fake.row_turns.send_away()
    for task in others:
        with fails(Code.NOT_FOUND):
            await within(task)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda queue: queue.put(1, delay_ms=0), lambda queue: queue.put(1, idempotency_key=""),
        lambda queue: queue.put({1: 2}), lambda queue: queue.put(b"x"), lambda queue: queue.claim_many(0),
        lambda queue: queue.claim_many(65), lambda queue: queue.redrive(-1),
    ],
)  # fmt: skip
async def test_arguments_that_cannot_be_are_refused(client: Client, session: Session, wrong: object) -> None:
    with fails(Code.BAD_REQUEST):
        await wrong(Queue(client, session, "q"))  # type: ignore[operator]
    for bounds in ({"attempts_max": 0}, {"visibility_ms": 0}, {"attempts_max": True}):
        with fails(Code.BAD_REQUEST):
            Queue(client, session, "q", **bounds)


def test_nothing_follows_a_take() -> None:
    taking = Transaction().take("recipes", "a/", "b/", bound=True)
    with fails(Code.BAD_REQUEST):
        taking.delete("recipes", "a")
    with fails(Code.BAD_REQUEST):
        Transaction().take("recipes", "a/", "b/", 65)


@pytest.fixture
async def session(client: Client) -> AsyncIterator[Session]:
    async with client.session() as session:
        yield session


async def test_a_write_beside_a_take_is_noted_under_its_own_number(
    fake: FakeGateway, client: Client, session: Session
) -> None:
    await session.transact(Transaction().put("recipes", "r/a", 1).put("recipes", "r/b", 1))
    both = Transaction().put("recipes", "beside", 1).take("recipes", "r/", "x/", 2, bound=True)
    result = await session.transact(both)
    (noted,) = [one for one in fake.executed if one.key == "beside"]
    row = await client.get("recipes", "beside")
    assert row is not None
    assert noted.commit == result.writes[0].commit == row.version
    (run,) = [one for one in await client.open_requests(session.client_id) if one.last >= result.sequence]
    assert result.commit == run.commit == fake.machine.commit, "its last number, wherever it is told"
