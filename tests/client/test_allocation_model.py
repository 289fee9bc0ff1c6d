"""Names, numbers, permits, barriers and leaders against small references, with sessions that end and pasts not kept."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from oncegate import Code, OperationFailed, Transaction
from oncegate.gateway.client.arguments import canonical
from oncegate.gateway.client.recipes.election import Leader
from oncegate.recipes import Barrier, Election, RateLimiter, Registry, Sequence
from tests.client.small_cluster import SmallCluster, in_memory, settle

SEEDS = range(10)


@pytest.mark.parametrize("seed", SEEDS)
@in_memory
async def test_name_is_its_owners_until_it_is_given_up_or_its_session_ends(cluster: SmallCluster, seed: int) -> None:
    dice = random.Random(seed)
    large, had = "x" * 3_000, dict[str, tuple[Any, int, Any]]()
    sessions = [cluster.session() for _ in range(3)]
    tokens: list[tuple[str, int]] = []
    for _ in range(80):
        at, entry = dice.randrange(3), dice.choice(("a", "b/c"))
        registry = Registry(cluster.client, sessions[at], "n", table="others")
        match dice.choice(("take", "take", "give up", "find", "guard", "end")):
            case "take":
                owner, bound = dice.choice((1, True, "1", {"b": 1, "a": 2}, large, large + "y")), dice.random() < 0.5
                token = await registry.take(
                    entry, dict(reversed(owner.items())) if isinstance(owner, dict) else owner, bound=bound
                )
                if entry not in had:
                    assert token == cluster.commit
                    had[entry] = owner, token, sessions[at] if bound else None
                    tokens.append((entry, token))
                assert token == (had[entry][1] if canonical(had[entry][0]) == canonical(owner) else None)
            case "give up" if tokens:
                entry, token = dice.choice(tokens)
                held = entry in had and had[entry][1] == token
                assert await registry.give_up(entry, token) == held
                if held:
                    del had[entry]
            case "guard" if tokens:
                entry, token = dice.choice(tokens)
                guarded = registry.guard(Transaction().increment("rows", "done"), entry, token)
                held = entry in had and had[entry][1] == token
                assert (await sessions[dice.randrange(3)].transact(guarded)).applied == held
            case "end":
                cluster.expire(sessions[at])
                had = {name: one for name, one in had.items() if one[2] is not sessions[at]}
                sessions[at] = cluster.session()
        row = await registry.find(entry)
        assert (row is not None) == (entry in had)
        assert row is None or (row.value, row.version) == had[entry][:2]


@pytest.mark.parametrize("seed", SEEDS)
@in_memory
async def test_name_whose_owner_changes_as_it_is_read_is_had_as_the_row_says_then(
    cluster: SmallCluster, seed: int
) -> None:
    dice, mine, other = random.Random(seed), "x" * 3_000, "y" * 3_000  # a refusal tells neither
    registry = Registry(cluster.client, cluster.session(), "n")
    key = registry._entry("a")

    def change(owner: str | None) -> None:
        if key in cluster.names():
            cluster.remove(key)
        if owner is not None:
            cluster.plant(key, owner)

    for _ in range(20):
        change(dice.choice((mine, other)))
        changes = [dice.choice((mine, other, None)) for _ in range(3)]
        cluster.client.fates.extend(partial(change, owner) for owner in changes)
        token = await registry.take("a", mine)
        cluster.client.fates.clear()
        row = await registry.find("a")
        assert row is not None
        assert token == (row.version if row.value == mine else None)


@in_memory
async def test_numbers_are_adjacent_and_rise(cluster: SmallCluster) -> None:
    given = 0
    for count in (1, 2, 7, 2**40, 1):
        numbers = await Sequence(cluster.client, cluster.session(), "s").next(count)
        assert (numbers[0], numbers[-1], len(numbers)) == (given + 1, given + count, count)
        given += count
    for wrong in (0, 2**40 + 1):
        with pytest.raises(OperationFailed, match="BAD_REQUEST"):
            await Sequence(cluster.client, cluster.session(), "s").next(wrong)


@pytest.mark.parametrize("seed", SEEDS)
@in_memory
async def test_window_gives_its_permits_and_begins_with_the_first(cluster: SmallCluster, seed: int) -> None:
    dice = random.Random(seed)
    permits, per_ms = dice.choice((1, 3)), 1_000
    limiters = [RateLimiter(cluster.client, cluster.session(), "r", permits, per_ms) for _ in range(2)]
    begun, used, now = -per_ms, 0, 0
    for _ in range(60):
        if dice.random() < 0.5:
            passed = dice.choice((1, 400, 999, 1_000))
            cluster.advance(passed)
            now += passed
        if now >= begun + per_ms:
            used = 0
        count = dice.randint(1, permits)
        given = used + count <= permits
        assert await dice.choice(limiters).try_acquire(count) == given
        if given:
            begun, used = (now, count) if not used else (begun, used + count)
    for wrong in (0, permits + 1):
        with pytest.raises(OperationFailed, match="BAD_REQUEST"):
            await limiters[0].try_acquire(wrong)


@pytest.mark.parametrize("kept", [True, False])
@in_memory
async def test_who_waits_for_a_permit_has_one_of_the_next_window_and_not_before(
    cluster: SmallCluster, kept: bool
) -> None:
    limiters = [RateLimiter(cluster.client, cluster.session(), "r", 2, 1_000) for _ in range(5)]
    waiting = [asyncio.create_task(limiter.acquire()) for limiter in limiters]
    for round_ in range(3):
        await settle()
        assert sum(task.done() for task in waiting) == min(5, 2 * round_ + 2)
        cluster.advance(999)
        if not kept:
            cluster.kept_from = cluster.commit
        await settle()
        assert sum(task.done() for task in waiting) == min(5, 2 * round_ + 2)
        cluster.advance(1)
    await asyncio.gather(*waiting)


@pytest.mark.parametrize("steps", range(8))
@in_memory
async def test_window_that_ends_while_somebody_begins_to_wait_is_not_waited_for(
    cluster: SmallCluster, steps: int
) -> None:
    limiter = RateLimiter(cluster.client, cluster.session(), "r", 1, 1_000)
    await limiter.acquire()
    waiting = asyncio.create_task(limiter.acquire())
    for _ in range(steps):
        await asyncio.sleep(0)
    cluster.advance(1_000)
    await asyncio.wait_for(waiting, 60)


@pytest.mark.parametrize("seed", range(15))
@in_memory
async def test_barrier_opens_once_so_many_stand_at_it_and_stays_open(cluster: SmallCluster, seed: int) -> None:
    dice = random.Random(seed)
    parties = dice.randint(1, 4)
    sessions: dict[asyncio.Task[None], Any] = {}
    ended: set[asyncio.Task[None]] = set()

    def opened() -> bool:
        """Whether so many stood at it at one moment, as its rows tell."""
        there: set[str] = set()
        for _, change in cluster.changes:
            if not change.key.endswith("/open"):
                (there.discard if change.deleted else there.add)(change.key)
            if len(there) >= parties:
                return True
        return False

    for _ in range(40):
        standing = [task for task in sessions if not task.done()]
        match dice.choice(("come", "come", "cancel", "end", "forget")):
            case "come":
                session = cluster.session()
                sessions[asyncio.create_task(Barrier(cluster.client, session, "b", parties).wait())] = session
            case "cancel" if standing:
                dice.choice(standing).cancel()
            case "end" if standing:
                ended.add(task := dice.choice(standing))
                cluster.expire(sessions[task])
                if forgets := dice.random() < 0.3:
                    cluster.kept_from = cluster.commit
                    cluster.cut_watches(OperationFailed(Code.RETENTION_EXCEEDED))
                await settle()
                assert task.done(), f"it is told, {forgets=}"
            case "forget" if dice.random() < 0.5:
                cluster.kept_from = cluster.commit
                cluster.cut_watches(OperationFailed(Code.RETENTION_EXCEEDED))
        for _ in range(dice.choice((0, 1, 3, 20))):
            await asyncio.sleep(0)
        passed = [task for task in sessions if task.done() and not task.cancelled() and task.exception() is None]
        assert opened() or not passed, "before so many were there"
        if opened():
            await settle()
            assert all(task.done() for task in sessions), "who came, and whoever comes later, goes on at once"
    for _ in range(parties):
        session = cluster.session()
        sessions[asyncio.create_task(Barrier(cluster.client, session, "b", parties).wait())] = session
    for task, end in zip(sessions, await asyncio.gather(*sessions, return_exceptions=True), strict=True):
        if isinstance(end, OperationFailed):
            assert (end.code, task in ended) == (Code.SESSION_EXPIRED, True)
        else:
            assert end is None or isinstance(end, asyncio.CancelledError)
    for session in sessions.values():
        cluster.expire(session)
    await settle()
    assert cluster.names() == ["barrier/b/open"], "for good, and nothing else is left"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("forgets", [False, True])
@in_memory
async def test_observer_sees_each_leader_once_in_order(cluster: SmallCluster, seed: int, forgets: bool) -> None:
    dice = random.Random(seed)
    seen: list[Leader | None] = []
    led: list[Leader | None] = [None]
    line: dict[str, Leader] = {}

    async def observe() -> None:
        async with aclosing(Election(cluster.client, None, "e").leaders()) as leaders:  # type: ignore[arg-type]
            async for leader in leaders:
                seen.append(leader)  # noqa: PERF401 - each as it comes

    watching = asyncio.create_task(observe())
    await settle()
    for step in range(40):
        if line and dice.random() < 0.5:
            key = dice.choice(list(line))
            if dice.random() < 0.3:
                cluster.plant(key, step)  # it says something else of itself: a later place, and another token
                line[key] = Leader(step, cluster.commit)
            else:
                cluster.remove(key)
                del line[key]
        else:
            key = f"election/e/{dice.randrange(10**6)}"
            cluster.plant(key, step)
            line[key] = Leader(step, cluster.commit)
        first = min(line.values(), key=lambda one: one.token, default=None)
        if led[-1] != first:
            led.append(first)
        assert await Election(cluster.client, None, "e").leader() == first  # type: ignore[arg-type]
        if forgets and dice.random() < 0.3:
            cluster.kept_from = cluster.commit
            cluster.cut_watches(OperationFailed(Code.RETENTION_EXCEEDED))
        if dice.random() < 0.5:
            await settle()
    await settle()
    watching.cancel()
    await asyncio.wait([watching])
    assert seen[-1] == led[-1]
    assert all(one != following for one, following in pairwise(seen))
    rest = iter(led)
    assert all(one in rest for one in seen), "in their order"
    assert forgets or seen == led
