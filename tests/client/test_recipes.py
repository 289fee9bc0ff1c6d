"""Recipes: what holds while a session lives, and what becomes of it when the session ends, at any point."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest
from aiohttp import web

from oncegate import Client, Code, OutcomeUnknown, Session, Transaction, Tuning
from oncegate.gateway.client.recipes import line
from oncegate.gateway.local.waiting import until
from oncegate.recipes import (
    Barrier,
    Claim,
    Election,
    Hold,
    Lock,
    Queue,
    RateLimiter,
    ReadWriteLock,
    Registry,
    Semaphore,
    Sequence,
)
from oncegate.testing import FakeGateway
from tests.client.answers import fails
from tests.client.test_contract import a_fake, a_node

Sessions = Callable[[], "asyncio.Future[Session]"]


@pytest.fixture
async def client(fake: FakeGateway, client: Client) -> Client:
    fake.declare("recipes")
    return client


@pytest.fixture
async def sessions(client: Client) -> AsyncIterator[Callable[[], object]]:
    """Opens one session after another."""
    async with AsyncExitStack() as stack:
        yield lambda: asyncio.ensure_future(stack.enter_async_context(client.session()))


def rows(fake: FakeGateway) -> list[str]:
    return [key for key, _ in fake.machine.tables["recipes"].rows.items()]


async def standing(fake: FakeGateway, count: int) -> None:
    """Wait until so many contenders are in line."""

    async def there() -> bool:
        return len(rows(fake)) == count

    await until(there, 20.0, f"{count} in line", state=lambda: rows(fake))


async def within(waiting: asyncio.Task[Hold]) -> Hold:
    async with asyncio.timeout(20):
        return await waiting


def written(hold: Hold, value: object) -> Transaction:
    return hold.guard(Transaction().put("rows", "r", value))  # type: ignore[arg-type]


async def test_lock_is_had_in_the_order_of_asking_with_tokens_that_rise(
    fake: FakeGateway, client: Client, sessions: Sessions
) -> None:
    waiting = []
    for n in range(5):
        lock = Lock(client, await sessions(), "l")
        waiting.append(asyncio.create_task(lock.acquire()))
        await standing(fake, n + 1)
    tokens = []
    for at, task in enumerate(waiting):
        hold = await within(task)
        assert not any(later.done() for later in waiting[at + 1 :])
        assert hold.alive
        tokens.append(hold.token)
        assert await hold.release()
        assert await hold.release(), "idempotent"
        assert not hold.alive
    assert tokens == sorted(set(tokens))
    assert rows(fake) == []


async def test_next_in_line_is_told_when_the_holders_session_ends_and_the_late_write_is_refused(
    fake: FakeGateway, client: Client, sessions: Sessions, session: Session
) -> None:
    ended, next_one = await sessions(), await sessions()
    held = await Lock(client, ended, "l").acquire()
    gone = asyncio.create_task(held.lost())
    assert (await session.transact(written(held, 1))).applied
    waiting = asyncio.create_task(Lock(client, next_one, "l").acquire())
    await standing(fake, 2)
    fake.expire(ended.client_id)
    hold = await within(waiting)
    assert hold.token > held.token
    async with asyncio.timeout(20):
        await gone
    late = await session.transact(written(held, "late"))
    assert (late.applied, late.failed) == (False, "conditions[0]")
    assert (await session.transact(written(hold, 2))).applied
    assert await fake.value("rows", "r") == 2


@pytest.mark.parametrize("seed", range(3))
async def test_no_guarded_write_of_an_earlier_holder_follows_one_of_a_later_holder(
    fake: FakeGateway, client: Client, session: Session, seed: int
) -> None:
    dice, holds, applied = random.Random(seed), list[Hold](), list[tuple[int, int]]()

    async def contend() -> None:
        for _ in range(4):
            async with client.session() as own:
                hold = await Lock(client, own, "l").acquire()
                holds.append(hold)
                for _ in range(dice.randrange(4)):
                    tried = dice.choice(holds)  # also by those who think they have it still
                    result = await session.transact(written(tried, tried.token))
                    if result.applied:
                        applied.append((result.commit, tried.token))
                if dice.random() < 0.5:
                    await hold.release()
                elif dice.random() < 0.5:
                    fake.expire(own.client_id)

    async with asyncio.timeout(60):
        await asyncio.gather(*(contend() for _ in range(5)), return_exceptions=False)
    tokens = [token for _, token in sorted(applied)]
    assert tokens == sorted(tokens)
    assert len(set(tokens)) > 3
    assert rows(fake) == []


async def test_cancelled_waiter_leaves_no_trace_wherever_it_was_cut(
    fake: FakeGateway, client: Client, sessions: Sessions
) -> None:
    held = await Lock(client, await sessions(), "l").acquire()
    own = await sessions()
    for steps in (*range(12), 10_000):
        task = asyncio.create_task(Lock(client, own, "l").acquire())
        for _ in range(steps):
            await asyncio.sleep(0)
            if len(rows(fake)) == 2:
                break
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        await own.drain()
        await standing(fake, 1)
    await held.release()
    assert rows(fake) == []
    assert await (await Lock(client, own, "l").acquire()).release()


async def test_waiter_reads_the_line_again_where_its_past_is_not_kept(
    fake: FakeGateway, client: Client, sessions: Sessions, session: Session
) -> None:
    held = await Lock(client, await sessions(), "l").acquire()
    watches = 0

    async def cut(request: web.Request) -> web.StreamResponse | None:
        nonlocal watches
        if request.path.endswith("/watch"):
            watches += 1
            await held.release()
            fake.watching.replaced(fake.commit)  # what a snapshot does to a node that was behind
        return None

    fake.nodes[0].before = cut
    async with asyncio.timeout(20):
        assert (await Lock(client, session, "l").acquire()).alive
    assert watches == 1


async def test_put_in_doubt_leaves_no_trace_once_the_cluster_answers(fake: FakeGateway, client: Client) -> None:
    tuning = Tuning(backoff_first_s=0.001, backoff_cap_s=0.01)
    async with Client(fake.endpoints, timeout_s=0.2, tuning=tuning) as hasty, hasty.session() as own:
        fake.nodes[0].lose_answers(10**9)
        with fails(kind=OutcomeUnknown):
            await Lock(hasty, own, "l").acquire()
        fake.nodes[0].lose_answers(0)
        fake.nodes[0].freeze()
        for _ in range(3):  # for longer than a delete may take
            with fails(Code.TIMEOUT):
                await hasty.get("rows", "r")
        assert len(rows(fake)) == 1
        fake.nodes[0].thaw()
        await standing(fake, 0)
        async with asyncio.timeout(20):
            await own.drain()  # the row is gone before the answer that says so has come
        assert own.outstanding == 0
        assert (await Lock(hasty, own, "l").acquire()).alive


async def test_waiter_whose_session_has_ended_is_told(fake: FakeGateway, client: Client, sessions: Sessions) -> None:
    await Lock(client, await sessions(), "l").acquire()
    own = await sessions()
    waiting = asyncio.create_task(Lock(client, own, "l").acquire())
    await standing(fake, 2)
    fake.expire(own.client_id)
    with fails(Code.SESSION_EXPIRED):
        await within(waiting)


async def test_session_that_opens_anew_has_lost_its_lock_and_can_have_it_again(
    fake: FakeGateway, client: Client
) -> None:
    async with client.session(renew_lost=True) as session:
        before = session.client_id
        lock = Lock(client, session, "l")
        held = await lock.acquire()
        fake.expire(before)
        assert not (await session.transact(written(held, 1))).applied, "it travels in the session that follows"
        assert session.client_id != before
        assert not held.alive
        assert not await held.release()
        again = await lock.acquire()
        assert again.token > held.token
        assert (await session.transact(written(again, 2))).applied


async def test_holder_that_reaches_nobody_is_told_when_its_lease_is_over(fake: FakeGateway, client: Client) -> None:
    async with client.session(lease_ms=1_000) as session:
        hold = await Lock(client, session, "l").acquire()
        fake.nodes[0].freeze()
        async with asyncio.timeout(60):
            await hold.lost()
        assert not hold.alive
        fake.nodes[0].thaw()


async def test_lock_that_is_had_is_not_to_be_had_at_once(fake: FakeGateway, client: Client, sessions: Sessions) -> None:
    lock, other = Lock(client, await sessions(), "l"), Lock(client, await sessions(), "l")
    async with lock.held() as hold:
        assert await other.try_acquire() is None
        assert len(rows(fake)) == 1
    assert not hold.alive
    free = await other.try_acquire()
    assert free is not None
    assert free.alive
    assert await Lock(client, await sessions(), "another").try_acquire() is not None


async def test_readers_read_together_and_a_writer_writes_alone(
    fake: FakeGateway, client: Client, sessions: Sessions
) -> None:
    lock = ReadWriteLock(client, await sessions(), "l")
    first, second = await lock.acquire("read"), await lock.acquire("read")
    writer = asyncio.create_task(lock.acquire("write"))
    await standing(fake, 3)
    behind = asyncio.create_task(lock.acquire("read"))
    await standing(fake, 4)
    await first.release()
    await second.release()
    writing = await within(writer)
    assert not behind.done()
    await writing.release()
    assert (await within(behind)).alive
    with fails(Code.BAD_REQUEST):
        await lock.acquire("both")  # type: ignore[arg-type]


async def test_semaphore_has_as_many_holders_as_permits(fake: FakeGateway, client: Client, sessions: Sessions) -> None:
    within_it, most = 0, 0

    async def work(session: Session) -> None:
        nonlocal within_it, most
        for _ in range(3):
            async with Semaphore(client, session, "s", 2).held():
                within_it += 1
                most = max(most, within_it)
                await client.get("rows", "x")
                within_it -= 1

    async with asyncio.timeout(60):
        await asyncio.gather(*[work(await sessions()) for _ in range(6)])
    assert most == 2
    assert rows(fake) == []


async def test_observers_see_each_leader_in_order(fake: FakeGateway, client: Client, sessions: Sessions) -> None:
    first, second = await sessions(), await sessions()
    watched = Election(client, first, "e")
    assert await watched.leader() is None
    async with aclosing(watched.leaders()) as leaders, asyncio.timeout(20):
        assert await anext(leaders) is None
        term = await Election(client, first, "e").campaign("one")
        seen = await anext(leaders)
        assert seen is not None
        assert (seen.value, seen.token) == ("one", term.token)
        heir = asyncio.create_task(Election(client, second, "e").campaign("two"))
        await standing(fake, 2)
        assert await watched.leader() == seen
        fake.expire(first.client_id)
        following = await anext(leaders)
        assert following is not None
        assert (following.value, following.token) == ("two", (await heir).token)
        await (await heir).release()
        assert await anext(leaders) is None


async def test_first_candidate_leads_whatever_its_row_is_called(
    fake: FakeGateway, client: Client, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = [Election(client, await sessions(), "e") for _ in range(2)]
    names = iter("za")
    monkeypatch.setattr(Election, "_new_key", lambda election: election._prefix + next(names))
    term = await first.campaign("first")
    heir = asyncio.create_task(second.campaign("second"))
    await standing(fake, 2)
    leader = await second.leader()
    assert leader is not None
    assert (leader.value, leader.token) == ("first", term.token)
    async with aclosing(second.leaders()) as leaders:
        assert await anext(leaders) == leader
    await term.release()
    await (await within(heir)).release()


async def test_candidate_leads_after_one_that_said_nothing_of_itself(
    fake: FakeGateway, client: Client, sessions: Sessions
) -> None:
    term = await Election(client, await sessions(), "e").campaign()
    heir = asyncio.create_task(Election(client, await sessions(), "e").campaign())
    await standing(fake, 2)
    await term.release()
    assert (await within(heir)).token > term.token


async def test_items_are_claimed_in_order_and_completed_once(
    fake: FakeGateway, client: Client, sessions: Sessions
) -> None:
    producer = Queue(client, await sessions(), "q")
    numbers = [await producer.put({"n": n}) for n in range(12)]
    assert numbers == sorted(set(numbers))
    done = list[int]()

    async def consume(session: Session) -> None:
        queue = Queue(client, session, "q")
        while len(done) < 12:
            claim = await queue.claim()
            result = await claim.complete(Transaction().increment("rows", f"n{claim.number}"))
            assert result.applied
            done.append(claim.number)

    consumers = [asyncio.create_task(consume(await sessions())) for _ in range(4)]
    async with asyncio.timeout(60):
        await asyncio.wait(consumers, return_when=asyncio.FIRST_COMPLETED)
    for task in consumers:
        task.cancel()
    await asyncio.gather(*consumers, return_exceptions=True)
    assert sorted(done) == numbers
    assert [await fake.value("rows", f"n{n}") for n in numbers] == [1] * 12
    await standing(fake, 0)


async def test_item_of_a_dead_consumer_comes_again_and_its_late_completion_does_nothing(
    fake: FakeGateway, client: Client, sessions: Sessions, session: Session
) -> None:
    producer = Queue(client, session, "q")
    first, following = await producer.put("a"), await producer.put("b")
    dead, living = await sessions(), await sessions()
    lost = await Queue(client, dead, "q").claim()
    queue = Queue(client, living, "q")
    second = await queue.claim()
    assert (lost.item, second.item) == ("a", "b")
    waiting: asyncio.Task[Claim] = asyncio.create_task(queue.claim())
    fake.expire(dead.client_id)
    async with asyncio.timeout(20):
        again = await waiting
    assert (again.item, again.number, again.attempts) == ("a", first, 2)
    assert again.token > lost.token
    late = await session.transact(lost.guard(Transaction().put("rows", "late", 1)))
    assert not late.applied
    assert (await again.complete(Transaction().put("rows", "r", 1))).applied
    assert not (await again.complete(Transaction().put("rows", "r", 2))).applied
    assert await again.release()
    await second.release()
    async with queue.claimed() as given_back:
        assert given_back.number == following
    async with queue.claimed() as given_back:
        assert (given_back.number, given_back.attempts) == (following, 3)
        assert (await given_back.complete()).applied
    assert rows(fake) == []


async def test_claim_that_is_given_back_or_cut_off_is_had_by_another(
    fake: FakeGateway, client: Client, sessions: Sessions, session: Session
) -> None:
    own, other = Queue(client, await sessions(), "q"), Queue(client, await sessions(), "q")
    waiting = asyncio.create_task(other.claim())
    await Queue(client, session, "q").put("a")
    claim = await within(waiting)  # type: ignore[arg-type]
    for steps in (*range(12), 60):
        task = asyncio.create_task(own.claim())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    waiting = asyncio.create_task(own.claim())
    assert await claim.release()
    assert (await within(waiting)).item == "a"  # type: ignore[arg-type,attr-defined]


async def test_claim_that_came_too_late_and_was_cut_off_leaves_the_others_alone(
    client: Client, sessions: Sessions, session: Session
) -> None:
    late = Queue(client, await sessions(), "q")
    await late.put("a")
    claim = await Queue(client, session, "q").claim()
    for steps in range(12):
        task = asyncio.create_task(late.claim())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while line._leaving:
            await asyncio.sleep(0)
    assert (await claim.complete()).applied


async def test_numbers_are_handed_out_once_whoever_asks(client: Client, sessions: Sessions) -> None:
    asked = [Sequence(client, await sessions(), "s").next(count) for count in (1, 5, 2, 3, 1)]
    found = [number for numbers in await asyncio.gather(*asked) for number in numbers]
    assert sorted(found) == list(range(1, 13))
    with fails(Code.BAD_REQUEST):
        await Sequence(client, await sessions(), "s").next(0)


async def test_name_has_one_owner_until_it_is_given_up_or_its_session_ends(
    fake: FakeGateway, client: Client, sessions: Sessions
) -> None:
    first, second = await sessions(), await sessions()
    one, two = Registry(client, first, "r"), Registry(client, second, "r")
    token = await one.take("ann/1", "first")
    assert token is not None
    assert await one.take("ann/1", "first") == token
    assert await two.take("ann/1", "second") is None
    assert await two.take("ann/1", None) is None
    assert not await two.give_up("ann/1", token - 1)
    found = await two.find("ann/1")
    assert found is not None
    assert (found.value, found.version) == ("first", token)
    assert (await second.transact(one.guard(Transaction().put("rows", "r", 1), "ann/1", token))).applied
    assert await one.give_up("ann/1", token)
    assert not (await second.transact(one.guard(Transaction().put("rows", "r", 2), "ann/1", token))).applied
    other = await two.take("ann/1", "second")
    assert other is not None
    assert not (await second.transact(one.guard(Transaction().put("rows", "r", 3), "ann/1", token))).applied
    assert await two.give_up("ann/1", other)
    assert await one.take("ann/1", "first", bound=True) is not None
    fake.expire(first.client_id)
    assert await two.take("ann/1", "second") is not None


async def test_hold_is_not_alive_once_its_session_or_client_is_closed(fake: FakeGateway) -> None:
    fake.declare("recipes")
    client = Client(fake.endpoints)
    async with client:
        async with client.session() as session:
            hold = await Lock(client, session, "l").acquire()
            assert hold.alive
        assert not hold.alive
        assert session.memory_ms_left == 0
    assert not hold.alive


async def test_owner_of_a_name_is_known_by_the_text_of_its_value(client: Client, sessions: Sessions) -> None:
    registry = Registry(client, await sessions(), "r")
    for number, (owner, other) in enumerate([(("a", 1), "a"), (1, True), (1, 1.0), ("z" * 3000, None), (None, 0)]):
        token = await registry.take(f"n{number}", owner)  # type: ignore[arg-type]
        assert token is not None
        assert await registry.take(f"n{number}", owner) == token, "the same owner"  # type: ignore[arg-type]
        assert await registry.take(f"n{number}", other) is None, "another owner"  # type: ignore[arg-type]


async def test_window_has_so_many_permits_and_who_waits_gets_one_of_the_next(
    fake: FakeGateway, client: Client, sessions: Sessions
) -> None:
    limiters = [RateLimiter(client, await sessions(), "r", 3, 1_000) for _ in range(4)]
    assert sorted(await asyncio.gather(*(one.try_acquire() for one in limiters))) == [False, True, True, True]
    waiting = [asyncio.create_task(one.acquire(2)) for one in limiters[:2]]
    fake.advance(0.9)
    assert not await limiters[3].try_acquire()
    fake.advance(0.2)
    async with asyncio.timeout(20):
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert [task.done() for task in waiting].count(True) == 1
    fake.advance(1.1)
    async with asyncio.timeout(20):
        await asyncio.gather(*waiting)
    with fails(Code.BAD_REQUEST):
        await limiters[0].try_acquire(4)


async def test_window_begins_with_its_first_permit_and_no_other_prolongs_it(
    fake: FakeGateway, client: Client, session: Session
) -> None:
    limiter = RateLimiter(client, session, "r", 3, 1_000)
    assert await limiter.try_acquire()
    fake.advance(0.6)
    assert await limiter.try_acquire(2)
    fake.advance(0.6)
    assert await limiter.try_acquire(3)


async def test_barrier_opens_for_those_who_wait_and_not_for_the_dead(
    fake: FakeGateway, client: Client, sessions: Sessions
) -> None:
    dead, own = await sessions(), [await sessions() for _ in range(4)]
    gone = asyncio.create_task(Barrier(client, dead, "b", 3).wait())
    waiting = [asyncio.create_task(Barrier(client, own[0], "b", 3).wait())]
    await standing(fake, 2)
    fake.expire(dead.client_id)
    with fails(Code.SESSION_EXPIRED):
        await gone
    cut = asyncio.create_task(Barrier(client, own[3], "b", 3).wait())
    await standing(fake, 2)
    cut.cancel()
    await standing(fake, 1)
    waiting.append(asyncio.create_task(Barrier(client, own[1], "b", 3).wait()))
    await standing(fake, 2)
    assert not any(task.done() for task in waiting)
    async with asyncio.timeout(20):
        await Barrier(client, own[2], "b", 3).wait()
        await asyncio.gather(*waiting)
        await Barrier(client, own[3], "b", 3).wait()
    assert rows(fake) == ["barrier/b/open"]


@pytest.mark.parametrize("name", ["", "a/b", "x" * 500, "\ud800", 1])
def test_name_that_cannot_be_is_refused(name: str) -> None:
    with fails(Code.PAYLOAD_TOO_LARGE if name == "x" * 500 else Code.BAD_REQUEST):
        Lock(None, None, name)  # type: ignore[arg-type]


@pytest.mark.parametrize("where", [a_fake, a_node], ids=["fake", "node"])
async def test_recipes_keep_the_same_contract_on_a_node(tmp_path: Path, where: Callable[[Path], object]) -> None:
    async with where(tmp_path) as endpoint, Client(endpoint) as client:  # type: ignore[attr-defined]
        await client.declare_table("recipes")
        await client.declare_table("rows")
        async with client.session() as one:
            async with client.session() as two:
                hold = await Lock(client, two, "l").acquire()
                waiting = asyncio.create_task(Lock(client, one, "l").acquire())
                await Queue(client, one, "q").put("a")
                claim = await Queue(client, two, "q").claim()
                assert (await two.transact(written(hold, 1))).applied
            later = await within(waiting)
            assert later.token > hold.token
            assert not (await one.transact(written(hold, 2))).applied
            again = await Queue(client, one, "q").claim()
            assert (again.number, again.token > claim.token, again.attempts) == (claim.number, True, 2)
            assert (await again.complete(written(later, 3))).applied
            row = await client.get("rows", "r")
            assert row is not None
            assert row.value == 3
