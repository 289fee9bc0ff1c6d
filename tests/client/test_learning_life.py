"""The life of what learns fates (``client.learning``): it asks while that is needed, and never once it is closed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from oncegate.gateway.client.learning import Learner
from tests.client.answers import settle


class Doubts:
    """So many questions as are left, one after the other."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __len__(self) -> int:
        return self._session.left

    def ask(self, count: int) -> list[Any]:
        taken = min(count, self._session.left)
        self._session.left -= taken
        return [SimpleNamespace(request=number) for number in range(taken)]

    def asked(self, request: int) -> None:
        self._session.noted.append(request)


class Session:
    """Doubts without an end, and who asks about them."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.noted: list[int] = []
        self.left, self.rounds = 0, 0
        self.needed = True
        self.answers = asyncio.Event()
        doubts: Any = Doubts(self)
        self.learner = Learner(doubts, self.ask, lambda: self.needed and self.left > 0, self.learned)

    async def ask(self, question: Any) -> None:
        self.asked.append(question.request)
        await self.answers.wait()

    def learned(self) -> None:
        self.rounds += 1


async def test_it_asks_once_at_a_time_what_is_in_doubt_and_again_what_came_meanwhile() -> None:
    one = Session()
    one.left = 20
    one.learner.wake()
    one.learner.wake()
    await settle()
    assert len(one.asked) == 16, "so many at a time"
    one.answers.set()
    await settle()
    assert (len(one.asked), len(one.noted), one.left) == (20, 20, 0)
    assert one.rounds == 2
    one.left = 1
    one.learner.wake()
    await settle()
    assert len(one.asked) == 21


async def test_nothing_is_asked_that_is_not_needed() -> None:
    one = Session()
    one.left, one.needed = 3, False
    one.learner.wake()
    await settle()
    assert not one.asked


@pytest.mark.parametrize("under_way", [False, True])
async def test_once_closed_it_asks_nothing_and_whoever_wakes_it_begins_nothing(under_way: bool) -> None:
    one = Session()
    if under_way:
        one.left = 2
        one.learner.wake()
        await settle()
    asked = len(one.asked)
    assert asked == (2 if under_way else 0)
    one.left = 5
    await one.learner.close()
    one.answers.set()
    one.learner.wake()
    await settle()
    assert len(one.asked) == asked
    assert len(one.noted) == asked, "what was asked about is free to be asked by others"
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await asyncio.wait_for(one.learner.asked(), 10)


async def test_who_waits_until_nothing_is_asked_waits_for_the_answers_and_no_longer_than_it_may() -> None:
    one = Session()
    await asyncio.wait_for(one.learner.asked(), 10)
    await asyncio.wait_for(one.learner.idle(0.0), 10)
    one.left = 17
    one.learner.wake()
    asked, idle = asyncio.create_task(one.learner.asked()), asyncio.create_task(one.learner.idle(60.0))
    await settle()
    assert (asked.done(), idle.done()) == (False, False)
    await asyncio.wait_for(one.learner.idle(0.0), 10)
    assert len(one.asked) == 16, "leaving with doubts ends no question"
    one.answers.set()
    await asyncio.wait_for(asyncio.gather(asked, idle), 10)
    assert len(one.noted) == 17
