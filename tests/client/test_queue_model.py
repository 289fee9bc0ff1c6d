"""A queue against its contract, with late requests, lost answers, cut off calls and consumers that end.

Through its public methods alone: each item that was put is completed once, with what its completion brings; items that
wait are in the order of their numbers; an item that is claimed is nobody else's.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import msgspec
import pytest
from aiohttp import web

from oncegate import Client, Transaction, Tuning
from oncegate.recipes import Claim, Queue
from oncegate.rifl.ids import format_client_id
from oncegate.testing import FakeGateway
from tests.client.answers import OPERATIONS, Answer
from tests.client.unreliable_path import UnreliablePath

HASTY = Tuning(backoff_first_s=0.001, backoff_cap_s=0.01)
ITEMS, CONSUMERS = 20, 4


@pytest.fixture
async def fake() -> AsyncIterator[FakeGateway]:
    """One node with a table for recipes, and one for what they guard."""
    async with FakeGateway() as gateway:
        gateway.declare("rows")
        gateway.declare("recipes")
        yield gateway


@pytest.mark.parametrize("seed", range(5))
async def test_each_item_is_completed_once_whatever_becomes_of_consumers_and_answers(
    fake: FakeGateway, seed: int
) -> None:
    path, completed, holders = UnreliablePath(fake, seed), dict[int, int](), dict[int, int]()
    numbers = dict[int, int]()

    async def consume(number: int, client: Client) -> None:
        own = random.Random(f"{seed} {number}")
        while len(completed) < ITEMS:
            async with client.session() as session:
                queue = Queue(client, session, "q")
                for _ in range(own.randint(1, 6)):
                    claiming = asyncio.ensure_future(queue.claim())
                    if own.random() < 0.15:
                        await asyncio.sleep(own.choice((0, 0.005)))
                        claiming.cancel()
                    while not claiming.done() and len(completed) < ITEMS:
                        await asyncio.wait([claiming], timeout=0.05)
                    if not claiming.done():
                        claiming.cancel()
                    try:
                        claim = await claiming
                    except asyncio.CancelledError:
                        continue
                    assert isinstance(claim.item, dict)
                    item = claim.item["n"]
                    assert isinstance(item, int)
                    assert item not in completed, "it had been completed before it was claimed"
                    assert item not in holders, "two consumers have it"
                    assert numbers.setdefault(item, claim.number) == claim.number
                    holders[item] = number
                    for _ in range(own.randint(0, 20)):
                        await asyncio.sleep(0)
                    if own.random() < 0.1:
                        del holders[item]
                        fake.expire(session.client_id)
                        break
                    if own.random() < 0.15:
                        del holders[item]
                        await claim.release()
                        continue
                    result = await claim.complete(Transaction().increment("rows", f"done {item}"))
                    assert result.applied
                    completed[item] = number
                    del holders[item]

    async with Client(fake.endpoints, tuning=HASTY) as client, client.session() as session:
        producer = Queue(client, session, "q")
        async with asyncio.timeout(100):
            tasks = [asyncio.create_task(consume(number, client)) for number in range(CONSUMERS)]
            for number in range(1, ITEMS + 1):
                put = await producer.put({"n": number})
                assert numbers.setdefault(number, put) == put
            await asyncio.gather(*tasks)
        path.heal()
        for number in range(1, ITEMS + 1):
            assert await fake.value("rows", f"done {number}") == 1
        scan = client.rows("recipes")
        assert not [
            row.key async for row in scan if any(f"/{where}/" in row.key for where in ("ready", "later", "taken"))
        ]
        assert [numbers[item] for item in range(1, ITEMS + 1)] == sorted(numbers.values()), "numbers rise with the puts"
    assert path.lost


async def test_items_nobody_has_are_claimed_in_order_and_one_that_is_given_back_comes_before_later_ones(
    fake: FakeGateway,
) -> None:
    dice = random.Random(1)
    async with Client(fake.endpoints, tuning=HASTY) as client, client.session() as session:
        queue, waiting, held = Queue(client, session, "q"), list[int](), dict[int, Claim]()
        for _ in range(60):
            what = dice.choice(("put", "claim", "claim", "give back", "complete"))
            if what == "put" or (what == "claim" and not waiting):
                waiting.append(await queue.put("x"))
            elif what == "claim":
                async with asyncio.timeout(20):
                    claim = await queue.claim()
                assert claim.number == min(waiting)
                waiting.remove(claim.number)
                held[claim.number] = claim
            elif held:
                number = dice.choice(sorted(held))
                claim = held.pop(number)
                if what == "give back":
                    assert await claim.release()
                    waiting.append(number)
                else:
                    assert (await claim.complete()).applied


@pytest.mark.parametrize("others", range(4))
async def test_item_that_was_completed_while_another_was_about_to_claim_it_is_claimed_by_nobody(
    fake: FakeGateway, others: int
) -> None:
    """What a consumer has asked for comes late; so many items are completed before it does."""
    async with (
        Client(fake.endpoints, tuning=HASTY) as client,
        client.session() as quick,
        Client(fake.endpoints, tuning=HASTY) as another,
        another.session() as slow,
    ):
        whose = format_client_id(slow.client_id)
        queue, late, go_on = Queue(client, quick, "q"), asyncio.Event(), asyncio.Event()
        for _ in range(5):
            await queue.put("x")

        async def hold(request: web.Request) -> Answer:
            if request.path == OPERATIONS and msgspec.msgpack.decode(await request.read())["client_id"] == whose:
                late.set()
                await go_on.wait()
            return None

        fake.nodes[0].before = hold
        claiming = asyncio.create_task(Queue(another, slow, "q").claim())
        async with asyncio.timeout(25):
            await late.wait()
            for number in range(1, others + 1):
                claim = await queue.claim()
                assert claim.number == number
                assert (await claim.complete()).applied
            go_on.set()
            found = await claiming
            assert found.number == others + 1
            assert (await found.complete()).applied
