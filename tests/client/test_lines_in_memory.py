"""Lines of contenders, each step of theirs: who holds when, and who is told of the end of it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from oncegate import Code, OperationFailed, Outcome, Transaction
from oncegate.recipes import Election, Hold, Lock, ReadWriteLock, Semaphore
from tests.client.answers import fails
from tests.client.small_cluster import SmallCluster, in_memory, now_s, settle


async def held(cluster: SmallCluster, **options: Any) -> tuple[Hold, Any, str]:
    """A lock that is held, its session and its row."""
    session = cluster.session(**options)
    hold = await Lock(cluster.client, session, "l").acquire()
    (key,) = cluster.names()
    return hold, session, key


@pytest.mark.parametrize("steps", range(10))
@in_memory
async def test_who_waits_is_told_whenever_the_one_before_it_leaves(cluster: SmallCluster, steps: int) -> None:
    hold, _, _ = await held(cluster)
    waiting = asyncio.ensure_future(Lock(cluster.client, cluster.session(), "l").acquire())
    for _ in range(steps):
        await asyncio.sleep(0)
    await hold.release()
    assert (await waiting).token > hold.token


@pytest.mark.parametrize("table", ["recipes", "others"])
@in_memory
async def test_row_of_a_contender_says_what_it_asks_for_and_ends_with_its_session(
    cluster: SmallCluster, table: str
) -> None:
    client, session, more = cluster.client, cluster.session(), {} if table == "recipes" else {"table": table}
    lock, semaphore = Lock(client, session, "n", **more), Semaphore(client, session, "n", 9, **more)
    both = ReadWriteLock(client, session, "n", **more)

    async def said(kind: str, value: object, hold: Any) -> None:
        assert isinstance(hold, Hold)
        ((key, row),) = cluster.tables[table].items()
        assert re.fullmatch(f"{kind}/n/[0-9a-f]{{24}}", key)
        assert cluster.value(key, table) == value
        assert type(cluster.value(key, table)) is type(value)
        assert (row.owner, row.version) == (session.client_id, hold.token)
        assert hold.alive
        assert await hold.release()
        assert cluster.tables[table] == {}

    await said("lock", True, await lock.acquire())
    await said("lock", True, await lock.try_acquire())
    await said("semaphore", True, await semaphore.acquire())
    await said("semaphore", True, await semaphore.try_acquire())
    await said("rwlock", "read", await both.acquire("read"))
    await said("rwlock", "write", await both.acquire("write"))
    for kind, value, block in (
        ("lock", True, lock.held()),
        ("semaphore", True, semaphore.held()),
        ("rwlock", "read", both.reading()),
        ("rwlock", "write", both.writing()),
    ):
        with contextlib.suppress(LookupError):
            async with block as hold:
                assert [*cluster.values(table).values()] == [value]
                assert cluster.names(table)[0].startswith(f"{kind}/n/")
                raise LookupError
        assert not hold.alive
        assert cluster.names(table) == [], "left at the end of the block, however it ends"


@in_memory
async def test_who_does_not_wait_is_answered_at_once_and_leaves_nothing(cluster: SmallCluster) -> None:
    _, _, key = await held(cluster)
    assert await Lock(cluster.client, cluster.session(), "l").try_acquire() is None
    assert cluster.names() == [key]
    assert cluster.client.asked["watch"] == 0


@in_memory
async def test_names_and_figures_are_refused_exactly_beyond_their_bounds(cluster: SmallCluster) -> None:
    client, session = cluster.client, cluster.session()
    for name in ("a/b", "/", ""):
        with fails(Code.BAD_REQUEST):
            Lock(client, session, name)
    longest = "n" * (512 - len("lock//") - 24)
    await Lock(client, session, longest).acquire()
    with fails(Code.PAYLOAD_TOO_LARGE):
        Lock(client, session, longest + "n")
    for permits in (1, 10_000):
        Semaphore(client, session, "s", permits)
    for permits in (0, 10_001):
        with pytest.raises(OperationFailed, match=r"^BAD_REQUEST: permits is a whole number in 1\.\.10000 "):
            Semaphore(client, session, "s", permits)
    with pytest.raises(OperationFailed, match=r"^BAD_REQUEST: side is one of read, write "):
        await ReadWriteLock(client, session, "l").acquire("both")  # type: ignore[arg-type]
    with fails(Code.BAD_REQUEST):
        Lock(client, session, "l", table="No Table")


@in_memory
async def test_rows_of_others_and_who_joins_behind_cost_nobody_anything(cluster: SmallCluster) -> None:
    for key in ("lock/another/0", "semaphore/l/0", "lock/la/0", "a"):
        cluster.plant(key, True)
    client, asked = cluster.client, cluster.client.asked
    assert await Lock(client, cluster.session(), "l").try_acquire() is not None
    waiting = []
    for _ in range(5):
        waiting.append(asyncio.ensure_future(Lock(client, cluster.session(), "l").acquire()))
        await settle()
    assert (asked["rows"], asked["watch"]) == (6, 5), "each reads the line once"
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


@in_memory
async def test_observer_sees_the_candidates_of_its_own_election_alone(cluster: SmallCluster) -> None:
    election = Election(cluster.client, cluster.session(), "e")
    async with contextlib.aclosing(election.leaders()) as leaders:
        assert await anext(leaders) is None
        seen = asyncio.ensure_future(anext(leaders))
        await settle()
        await Election(cluster.client, cluster.session(), "another").campaign("x")
        await settle()
        assert not seen.done()
        term = await election.campaign("me")
        leader = await seen
        assert leader is not None
        assert (leader.value, leader.token) == ("me", term.token)


# Who is lost


@in_memory
async def test_who_waits_without_a_row_is_told_that_its_session_has_ended(cluster: SmallCluster) -> None:
    await held(cluster)
    for at_once in (True, False):
        waiting = asyncio.ensure_future(Lock(cluster.client, cluster.session(), "l").acquire())
        while len(cluster.names()) < 2:
            await asyncio.sleep(0)
        if not at_once:
            await settle()
        (own,) = [key for key, row in cluster.tables["recipes"].items() if row.version == cluster.commit]
        cluster.remove(own)
        with pytest.raises(OperationFailed, match="the place in line with it") as caught:
            await waiting
        assert (caught.value.code, caught.value.outcome) == (Code.SESSION_EXPIRED, Outcome.NOT_APPLIED)


@in_memory
async def test_what_ends_a_watch_but_a_lack_of_history_is_told_to_who_waits_and_it_leaves(
    cluster: SmallCluster,
) -> None:
    _, _, key = await held(cluster)
    waiting = asyncio.ensure_future(Lock(cluster.client, cluster.session(), "l").acquire())
    await settle()
    cluster.cut_watches(OperationFailed(Code.RETENTION_EXCEEDED))
    await settle()
    assert not waiting.done()
    assert cluster.client.asked["rows"] == 3, "all was read again"
    cluster.cut_watches(OperationFailed(Code.FORBIDDEN))
    with fails(Code.FORBIDDEN):
        await waiting
    await settle()
    assert cluster.names() == [key]


@in_memory
async def test_guarded_transaction_happens_while_the_row_is_the_one_of_the_hold(cluster: SmallCluster) -> None:
    hold, _, key = await held(cluster)
    other = cluster.session()
    guarded = Transaction().put("rows", "r", 1)
    assert hold.guard(guarded) is guarded
    assert (await other.transact(guarded)).applied
    cluster.plant(key, "of somebody else")
    assert not (await other.transact(guarded)).applied
    cluster.remove(key)
    assert not (await other.transact(guarded)).applied


@in_memory
async def test_hold_is_alive_as_long_as_the_lease_of_its_own_session(cluster: SmallCluster) -> None:
    hold, session, _ = await held(cluster)
    alive = [hold.alive]
    for pause_s in (59.99, 0.01):
        await asyncio.sleep(pause_s)
        alive.append(hold.alive)
    assert alive == [True, True, False]
    session.renew(1_000)
    alive = [hold.alive]
    session.client_id += 1
    alive.append(hold.alive)  # it is a session that followed
    session.client_id -= 1
    await hold.release()
    alive.append(hold.alive)
    assert alive == [True, False, False]


@pytest.mark.parametrize("end", ["removed before", "removed", "expired", "released"])
@in_memory
async def test_end_of_a_hold_is_told_at_once(cluster: SmallCluster, end: str) -> None:
    hold, session, key = await held(cluster)
    if end == "removed before":
        cluster.remove(key)
    lost = asyncio.ensure_future(hold.lost())
    cluster.plant("lock/l/another", True)
    if end != "removed before":
        await settle()
        assert not lost.done()
        cluster.remove("lock/l/another")
        cluster.remove(key, table="others")
        await settle()
        assert not lost.done()
    if end == "removed":
        cluster.remove(key)
    elif end == "expired":
        cluster.expire(session)
    elif end == "released":
        await hold.release()
    await lost
    assert now_s() == pytest.approx(0, abs=1e-3)
    await hold.release()
    await hold.lost()


@in_memory
async def test_hold_of_which_nothing_is_told_is_over_with_the_lease_as_it_is_then(cluster: SmallCluster) -> None:
    hold, session, _ = await held(cluster, lease_ms=60_000)
    lost = asyncio.ensure_future(hold.lost())
    await asyncio.sleep(30)
    session.renew(50_000)
    await asyncio.sleep(31)
    assert not lost.done()
    await lost
    assert now_s() == pytest.approx(80, abs=1e-5)
    assert cluster.client.asked["watch"] == 2, "it looks when a lease could be over, and not before"


@pytest.mark.parametrize(("after_s", "told_s"), [(0.5, 1), (20, 20)])
@in_memory
async def test_long_hold_is_watched_although_the_changes_since_its_token_are_not_kept(
    cluster: SmallCluster, after_s: float, told_s: float
) -> None:
    hold, _, key = await held(cluster)
    cluster.plant("rows", 1, table="rows")
    cluster.kept_from = cluster.commit
    lost = asyncio.ensure_future(hold.lost())
    await asyncio.sleep(after_s)
    assert not lost.done()
    cluster.remove(key)
    await lost
    assert now_s() == pytest.approx(told_s, abs=1e-3)
    asked = cluster.client.asked
    assert (asked["watch"], asked["get"]) == (2, 1), "from where it was seen"


@pytest.mark.parametrize("instead", [None, "of somebody else"])
@in_memory
async def test_hold_whose_row_has_gone_unseen_is_over(cluster: SmallCluster, instead: str | None) -> None:
    hold, _, key = await held(cluster)
    cluster.remove(key)
    if instead is not None:
        cluster.plant(key, instead)
    cluster.kept_from = cluster.commit
    await hold.lost()
    assert now_s() == pytest.approx(0, abs=1e-3)


@in_memory
async def test_hold_whose_watches_are_refused_is_looked_at_once_a_second_until_its_lease_is_over(
    cluster: SmallCluster,
) -> None:
    hold, _, _ = await held(cluster, lease_ms=4_500)
    cluster.client.watch_refusals.extend([OperationFailed(Code.OVERLOADED)] * 99)
    await hold.lost()
    assert now_s() == pytest.approx(4.5, abs=1e-5)
    assert (cluster.client.asked["watch"], cluster.client.asked["get"]) == (5, 5)


@in_memory
async def test_what_ends_a_watch_of_a_hold_without_telling_anything_is_told(cluster: SmallCluster) -> None:
    hold, _, _ = await held(cluster)
    cluster.client.watch_refusals.append(OperationFailed(Code.INTERNAL))
    with fails(Code.INTERNAL):
        await hold.lost()
    assert cluster.client.asked["get"] == 0


# Whatever happens

Asks = Callable[[Any, Any, bool], Any]
LINES: dict[str, tuple[Asks, Callable[[Sequence[bool], bool], bool]]] = {
    "lock": (lambda client, session, _: Lock(client, session, "x").acquire(), lambda before, _: bool(before)),
    "two permits": (
        lambda client, session, _: Semaphore(client, session, "x", 2).acquire(),
        lambda before, _: len(before) >= 2,
    ),
    "readers and writers": (
        lambda client, session, writes: ReadWriteLock(client, session, "x").acquire("write" if writes else "read"),
        lambda before, writes: bool(before) if writes else any(before),
    ),
    "nameless candidates": (
        lambda client, session, _: Election(client, session, "x").campaign(),
        lambda before, _: bool(before),
    ),
}
"""How one asks, and the rule: whether those before it, by what they ask for, are in the way of one."""
STEPS = ("ask", "ask", "ask", "leave", "leave", "end", "cancel", "forget", "beside")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("line", LINES)
@in_memory
async def test_each_holds_from_when_nobody_is_in_its_way_and_until_it_leaves(
    cluster: SmallCluster, line: str, seed: int
) -> None:
    dice = random.Random(seed)
    done = [(dice.choice(STEPS), dice.randrange(10)) for _ in range(40)]
    ask, blocks = LINES[line]
    asked: dict[int, tuple[asyncio.Task[Hold], Any, bool]] = {}
    holds: set[int] = set()
    for at, (what, which) in enumerate(done):
        if what == "ask":
            session, writes = cluster.session(), bool(which % 2)
            asked[at] = asyncio.ensure_future(ask(cluster.client, session, writes)), session, writes
        elif what == "forget":
            cluster.kept_from = cluster.commit
            cluster.cut_watches(OperationFailed(Code.RETENTION_EXCEEDED))
        elif what == "beside":
            cluster.remove("nothing of the line")
        elif asked:
            number = sorted(asked)[which % len(asked)]
            task, session, _ = asked.pop(number)
            if what == "end":
                cluster.expire(session)
            elif number not in holds:
                task.cancel()
            else:
                assert await (await task).release()
            await settle()
            if number not in holds:
                with pytest.raises((OperationFailed, asyncio.CancelledError)):
                    await task
            elif what == "end":
                assert not await (await task).release()
        await settle()
        order = sorted(asked)
        for place, number in enumerate(order):
            if not blocks([asked[before][2] for before in order[:place]], asked[number][2]):
                holds.add(number)
        assert {number for number in order if asked[number][0].done()} == holds & {*order}
        assert len(cluster.names()) == len(order)
    tokens = [(await asked[number][0]).token for number in sorted(holds & {*asked})]
    assert tokens == sorted(tokens)
    for task, _, _ in asked.values():
        task.cancel()
    await asyncio.gather(*(task for task, _, _ in asked.values()), return_exceptions=True)
    await settle()
    assert len(cluster.names()) == len(tokens), "only those who hold are left"
