"""Sessions that are lost at any moment, any number of times: each row has its writes once, in the order of the calls.

Requests are few or many at a time, small or large, and their refusals come in any order.
"""

from __future__ import annotations

import asyncio
import random

import pytest
from aiohttp import web

from oncegate import Client, WriteResult
from oncegate.gateway.client.settings import Tuning
from oncegate.testing import FakeGateway
from tests.client.answers import OPERATIONS, Answer

ROWS = ("a", "b", "c", "d")


class Losing:
    """Lets the session expire at some requests, and holds requests back so that they come in another order."""

    def __init__(self, fake: FakeGateway, seed: int) -> None:
        self.fake, self.dice, self.losses = fake, random.Random(seed), 0

    async def __call__(self, request: web.Request) -> Answer:
        if request.path == OPERATIONS:
            for _ in range(self.dice.choice((0, 0, 1, 5, 30))):
                await asyncio.sleep(0)
            if self.losses < 4 and self.dice.random() < 0.3:
                self.losses += 1
                self.fake.advance(61)
        return None


@pytest.mark.parametrize("seed", range(12))
async def test_each_row_has_its_writes_once_and_in_order_however_often_the_session_is_lost(
    fake: FakeGateway, seed: int
) -> None:
    dice = random.Random(seed)
    tuning = Tuning(
        batch_operations_max=dice.choice((1, 2, 5, 64)), in_flight_max=dice.choice((1, 2, 4)), pipeline_min=1
    )
    wanted: dict[str, list[int]] = {row: [] for row in ROWS}
    losing = Losing(fake, seed)
    async with Client(fake.endpoints, tuning=tuning) as client, client.session(renew_lost=True) as session:
        fake.nodes[0].before = losing
        writes: list[asyncio.Future[WriteResult]] = []
        for number in range(60):
            row = dice.choice(ROWS)
            wanted[row].append(number)
            writes.append(session.submit("append", "rows", row, number))
            for _ in range(dice.choice((0, 0, 0, 1, 4, 40))):
                await asyncio.sleep(0)
        async with asyncio.timeout(60):
            results = await asyncio.gather(*writes)
        fake.nodes[0].before = None
        assert all(result.applied and not result.replayed for result in results)
        for row, numbers in wanted.items():
            assert await fake.value("rows", row) == numbers
    assert losing.losses


@pytest.mark.parametrize("seed", range(6))
async def test_what_a_lost_session_gives_back_in_any_order_waits_in_the_order_of_the_calls(
    fake: FakeGateway, seed: int
) -> None:
    """Whatever came to the queue meanwhile stays behind it."""
    dice = random.Random(seed)
    tuning = Tuning(batch_operations_max=3, in_flight_max=4, pipeline_min=1)
    async with Client(fake.endpoints, tuning=tuning) as client, client.session(renew_lost=True) as session:
        held = list[asyncio.Event]()

        async def hold(request: web.Request) -> Answer:
            if request.path == OPERATIONS:
                mine = asyncio.Event()
                held.append(mine)
                await mine.wait()
            return None

        fake.nodes[0].before = hold
        writes = [session.submit("put", "rows", f"k{number}", number) for number in range(12)]
        async with asyncio.timeout(20):
            while len(held) < 4:
                await asyncio.sleep(0)
        fake.advance(61)
        writes += [session.submit("put", "rows", f"k{number}", number) for number in range(12, 20)]
        fake.nodes[0].before = None
        sender = session._life.sender
        dice.shuffle(held)
        order = list[str]()
        real = sender.go_on

        def going_on(*how: object) -> None:
            sender._put_back()
            order.extend(pending.operation.key for pending in sender._waiting)  # type: ignore[union-attr]
            real(*how)  # type: ignore[arg-type]

        sender.go_on = going_on  # type: ignore[method-assign, assignment]
        for one in held:
            one.set()
            for _ in range(dice.randint(0, 40)):
                await asyncio.sleep(0)
        async with asyncio.timeout(20):
            await asyncio.gather(*writes)
    assert order == [f"k{number}" for number in range(20)]
