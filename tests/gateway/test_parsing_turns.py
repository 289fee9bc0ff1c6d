"""Large bodies are parsed one at a time, tenants in turn, each tenant's in the order in which they came."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from collections.abc import Callable

import pytest

from oncegate.gateway.http.admission.parsing import ParsingThread


class Work:
    """What is parsed: it begins when the thread comes to it, and ends when the test says so."""

    def __init__(self, name: str, began: Callable[[str], None]) -> None:
        self.name, self.began = name, began
        self.may_end = threading.Event()

    def __call__(self) -> str:
        self.began(self.name)
        assert self.may_end.wait(60)
        if self.name.endswith("!"):
            raise ValueError(self.name)
        return self.name


@pytest.mark.parametrize("seed", range(6))
async def test_bodies_are_parsed_one_at_a_time_and_tenants_take_turns(seed: int) -> None:
    dice, loop, parsing = random.Random(seed), asyncio.get_running_loop(), ParsingThread()
    began = asyncio.Queue[str]()
    works: dict[str, tuple[Work, asyncio.Task[str]]] = {}
    lines: dict[str, deque[str]] = {}
    """Of each tenant that waits, in the order in which their turns come: what waits."""

    async def ask(tenant: str, number: int) -> None:
        name = f"{tenant}{number}{dice.choice(('', '!'))}"
        work = Work(name, lambda name: loop.call_soon_threadsafe(began.put_nowait, name))
        works[name] = work, asyncio.create_task(parsing.run(tenant, work))
        lines.setdefault(tenant, deque()).append(name)
        await asyncio.sleep(0)

    for number in range(12):
        await ask(dice.choice("abc"), number)
    for number in range(12, 40):
        async with asyncio.timeout(60):
            name = await began.get()
        tenant = next(iter(lines))
        assert name == lines[tenant][0]
        assert began.empty()
        work, task = works.pop(name)
        waiting = [name for line in lines.values() for name in line if name in works]
        if waiting and dice.random() < 0.3:
            gone = dice.choice(waiting)
            works.pop(gone)[1].cancel()
            whose, line = next((whose, line) for whose, line in lines.items() if gone in line)
            if line[0] == gone:
                lines[whose] = lines.pop(whose)  # it had the tenant's place: the next one gets one behind all others
            line.remove(gone)
            lines = {whose: line for whose, line in lines.items() if line}
            for _ in range(3):
                await asyncio.sleep(0)
        if number < 30:
            await ask(dice.choice("abcd"), number)
        work.may_end.set()
        ended = await asyncio.gather(task, return_exceptions=True)
        assert str(ended[0]) == name
        line = lines.pop(tenant)
        line.popleft()
        if line:
            lines[tenant] = line
        if not lines:
            break
    assert parsing._thread._max_workers == 1, "also beside one whose caller has gone"
    assert not works
    assert not parsing._turns
    await parsing.close()
