"""Turns of those who wait for rows under a prefix, against what they promise, with cancellations and refusals.

The rule: the cluster is asked by one at a time and for no more than wait; who has a turn has a row that it may take, as
far as anybody has told; whoever stays gets a turn as long as there are rows; who goes costs the others nothing.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from oncegate import Code, OperationFailed
from oncegate.gateway.client.recipes import turns
from tests.client.small_cluster import SmallCluster, in_memory, now_s, settle

PLACES = [("recipes", "q/"), ("recipes", "r/"), ("others", "q/")]


class Asked:
    """Stands before a client's questions: who asks where, for how many, and what it is told."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.asking: dict[tuple[str, str], int] = {}
        self.waiting: dict[tuple[str, str], int] = {}
        self.using: dict[tuple[str, str], int] = {}
        self.told: dict[tuple[str, str], int] = {}
        self.refusals: list[OperationFailed] = []
        self.refused = 0

    async def turns(self, table: str, *, prefix: str, count: int) -> int:
        place = table, prefix
        assert place not in self.asking, "one question at a time"
        assert not self.using.get(place), "those who were told of rows have not used them all"
        assert 1 <= count <= min(64, self.waiting[place]), "more than wait"
        self.asking[place] = count
        try:
            if self.refusals:
                self.refused += 1
                raise self.refusals.pop()
            self.told[place] = await self._client.turns(table, prefix=prefix, count=count)
            return self.told[place]
        finally:
            del self.asking[place]


@pytest.mark.parametrize("seed", range(12))
@in_memory
async def test_everybody_who_stays_has_a_turn_and_takes_a_row(cluster: SmallCluster, seed: int) -> None:
    dice = random.Random(seed)
    client = Asked(cluster.client)
    takers = {place: dice.choice((1, 3, 12, 70)) for place in PLACES}
    taken = dict.fromkeys(PLACES, 0)

    async def take(place: tuple[str, str]) -> None:
        table, prefix = place
        while True:
            client.waiting[place] = client.waiting.get(place, 0) + 1
            waits = True
            try:
                async with turns.turn(client, table, prefix):  # type: ignore[arg-type]
                    client.waiting[place] -= 1
                    waits = False
                    client.using[place] = client.using.get(place, 0) + 1
                    try:
                        assert client.using[place] <= client.told[place], "more turns than rows"
                        for _ in range(dice.randint(0, 3)):
                            await asyncio.sleep(dice.choice((0.0, 0.1)))
                        mine = [key for key in cluster.names(table) if key.startswith(prefix)]
                        if dice.random() < 0.2:
                            raise LookupError  # who breaks off has used its turn too
                        if mine and dice.random() < 0.8:
                            cluster.remove(mine[0], table)
                            taken[place] += 1
                            return
                    finally:
                        client.using[place] -= 1
            except LookupError:
                continue
            finally:
                if waits:
                    client.waiting[place] -= 1

    tasks: dict[tuple[str, str], list[asyncio.Task[None]]] = {
        place: [asyncio.create_task(take(place)) for _ in range(count)] for place, count in takers.items()
    }
    gone = dict.fromkeys(PLACES, 0)
    for step in range(60):
        place = dice.choice(PLACES)
        match dice.choice(("plant", "plant", "cancel", "refuse", "later")):
            case "plant":
                for at in range(dice.choice((1, 2, 40))):
                    cluster.plant(f"{place[1]}{step}-{at}", step, place[0])
            case "cancel" if left := [task for task in tasks[place] if not task.done()]:
                for task in dice.sample(left, k=dice.choice((1, len(left) // 2))):
                    task.cancel()
            case "refuse":
                client.refusals.append(OperationFailed(Code.NOT_READY))
            case _:
                await asyncio.sleep(dice.choice((1e-6, 1.0)))
        for _ in range(dice.choice((0, 0, 1, 2, 5))):
            await asyncio.sleep(0)
    for table, prefix in PLACES:
        for at in range(80):
            cluster.plant(f"{prefix}last-{at}", at, table)
    for place, all_ in tasks.items():
        done = await asyncio.gather(*all_, return_exceptions=True)
        gone[place] = sum(isinstance(one, asyncio.CancelledError) for one in done)
        assert [one for one in done if one is not None and not isinstance(one, asyncio.CancelledError)] == []
        assert taken[place] == takers[place] - gone[place]
    await settle()
    assert not turns._LINES
    assert not client.asking, "nobody waits for an answer any more"


@pytest.mark.parametrize("count", [1, 2, 65])
@in_memory
async def test_final_refusal_is_told_to_all_who_wait_and_the_next_one_asks_again(
    cluster: SmallCluster, count: int
) -> None:
    client = Asked(cluster.client)
    client.waiting["recipes", "q/"] = count
    client.refusals.append(OperationFailed(Code.NOT_FOUND))

    async def wait() -> None:
        async with turns.turn(client, "recipes", "q/"):  # type: ignore[arg-type]
            client.told.clear()

    told = await asyncio.gather(*(wait() for _ in range(count)), return_exceptions=True)
    assert [isinstance(one, OperationFailed) and one.code for one in told] == [Code.NOT_FOUND] * count
    assert not turns._LINES
    cluster.plant("q/1", 1)
    client.waiting["recipes", "q/"] = 1
    await wait()
    assert client.refused == 1
    assert not turns._LINES


@pytest.mark.parametrize("steps", range(8))
@in_memory
async def test_who_comes_as_others_are_refused_is_refused_too_or_asks_again(cluster: SmallCluster, steps: int) -> None:
    client = Asked(cluster.client)
    client.waiting["recipes", "q/"] = 2
    client.refusals.append(OperationFailed(Code.FORBIDDEN))
    cluster.plant("q/1", 1)

    async def wait() -> str:
        try:
            async with turns.turn(client, "recipes", "q/"):  # type: ignore[arg-type]
                return "had"
        except OperationFailed as refused:
            return refused.code

    first = asyncio.create_task(wait())
    for _ in range(steps):
        await asyncio.sleep(0)
    assert await wait() in ("had", "FORBIDDEN")
    assert await first == "FORBIDDEN"
    assert not turns._LINES


@pytest.mark.parametrize("steps", range(8))
@in_memory
async def test_turn_of_one_who_goes_as_it_comes_is_the_next_ones(cluster: SmallCluster, steps: int) -> None:
    client = Asked(cluster.client)
    client.waiting["recipes", "q/"] = 2

    async def wait() -> None:
        async with turns.turn(client, "recipes", "q/"):  # type: ignore[arg-type]
            await asyncio.sleep(0)

    goes, stays = asyncio.create_task(wait()), asyncio.create_task(wait())
    await settle()
    cluster.plant("q/1", 1)
    for _ in range(steps):
        await asyncio.sleep(0)
    goes.cancel()
    await stays
    await asyncio.wait([goes])
    assert not turns._LINES


@pytest.mark.parametrize("steps", range(-1, 6))
@in_memory
async def test_refusal_is_told_to_those_who_stay_whoever_goes_as_it_comes(cluster: SmallCluster, steps: int) -> None:
    """``steps`` after it, or in the same turn of the loop, before the others are told."""
    client, refused = Asked(cluster.client), asyncio.Event()
    client.waiting["recipes", "q/"] = 4

    async def refuse(table: str, **_: Any) -> int:
        await settle()
        refused.set()
        if steps < 0:
            goes.cancel()
        raise OperationFailed(Code.NOT_FOUND)

    client.turns = refuse  # type: ignore[method-assign]

    async def wait() -> None:
        async with turns.turn(client, "recipes", "q/"):  # type: ignore[arg-type]
            raise AssertionError("there is no row")

    before, goes, behind = (asyncio.create_task(wait()) for _ in range(3))
    await refused.wait()
    for _ in range(steps):
        await asyncio.sleep(0)
    was_told = goes.done()
    goes.cancel()
    async with asyncio.timeout(60):
        await asyncio.wait([before, goes, behind])
    for task in (before, behind):
        with pytest.raises(OperationFailed, match="NOT_FOUND"):
            await task
    assert goes.cancelled() == (steps < 0 or not was_told)
    assert not turns._LINES


@in_memory
async def test_who_is_refused_for_now_asks_again_after_a_pause(cluster: SmallCluster) -> None:
    random.seed(0)
    client = Asked(cluster.client)
    client.waiting["recipes", "q/"] = 1
    client.refusals += [OperationFailed(Code.OVERLOADED) for _ in range(40)]
    cluster.plant("q/1", 1)
    async with turns.turn(client, "recipes", "q/"):  # type: ignore[arg-type]
        assert client.refused == 40
    assert 40 * turns.PAUSE_S / 4 < now_s() < 40 * turns.PAUSE_S, "at random, lest all clients come back together"


@in_memory
async def test_nothing_is_asked_for_those_who_have_gone(cluster: SmallCluster) -> None:
    client = Asked(cluster.client)
    client.waiting["recipes", "q/"] = 3

    async def wait() -> None:
        async with turns.turn(client, "recipes", "q/"):  # type: ignore[arg-type]
            raise AssertionError("there is no row")

    waiting = [asyncio.create_task(wait()) for _ in range(3)]
    await settle()
    assert client.asking
    for task in waiting:
        task.cancel()
        await settle()
    assert not client.asking
    assert not turns._LINES
