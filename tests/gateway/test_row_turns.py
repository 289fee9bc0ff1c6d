"""Turns: a row that comes wakes one of those who wait, nobody is forgotten, and nobody waits at a node that follows."""

from __future__ import annotations

import asyncio
import time

import pytest

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.tenant_share import share
from oncegate.gateway.node import row_turns as turns_module
from oncegate.gateway.node.row_turns import RowTurns
from oncegate.rifl.errors import Code, OncegateError
from tests.gateway.test_transactions import put, transaction


class Node:
    """A machine, and who waits for its rows."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.turns = RowTurns(self.machine, leads=True)
        self.at = 0
        self.do(c.DeclareTable("t", "resident", 1 << 20), c.OpenSession("n", 60_000, 16))

    def do(self, *commands: c.Command) -> None:
        self.at += 1
        apply(self.machine, self.at, 1, c.encode_entry(0, list(commands)))
        self.turns.applied(self.machine.changes)

    def put(self, *keys: str) -> None:
        self.do(c.Operate(1, 1, self.at, [transaction(self.at, *(put("t", key, 1) for key in keys))]))  # type: ignore[arg-type]

    def delete(self, key: str) -> None:
        self.do(c.Operate(1, 1, self.at, [transaction(self.at, {"op": "delete", "table": "t", "key": key})]))  # type: ignore[arg-type]

    async def waiting(self, prefix: str = "r/", count: int = 1, *, wait_s: float = 60.0) -> asyncio.Task[int]:
        task = asyncio.create_task(self.turns.wait("t", prefix, count, wait_s, ""))
        await asyncio.sleep(0)
        return task


async def told(*tasks: asyncio.Task[int]) -> list[int | None]:
    for _ in range(5):
        await asyncio.sleep(0)
    return [task.result() if task.done() else None for task in tasks]


async def end(*tasks: asyncio.Task[int]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_row_that_comes_wakes_one_of_those_who_wait_and_the_first_first() -> None:
    node = Node()
    waiting = [await node.waiting() for _ in range(50)]
    other = await node.waiting("other/")
    node.put("s/", "r")
    assert await told(*waiting, other) == [None] * 51
    node.put("r/1")
    assert await told(*waiting) == [1] + [None] * 49
    node.put("r/1")  # written again: nothing came
    node.put("r/2", "r/3")
    assert await told(*waiting, other) == [1] * 3 + [None] * 48
    await end(*waiting, other)
    assert (node.turns.waiting, node.turns._lines, node.turns._lengths) == (0, {}, {})


async def test_rows_that_are_there_give_turns_at_once_and_as_many_as_are_asked_for() -> None:
    node = Node()
    node.put("r/1", "r/2", "r/3")
    assert [await node.turns.wait("t", "r/", count, 0, "") for count in (1, 2, 9)] == [1, 2, 3]
    assert await node.turns.wait("t", "none/", 1, 0, "") == 0
    for key in ("r/1", "r/2", "r/3"):
        node.delete(key)
    several, one = await node.waiting(count=2), await node.waiting()
    node.put("r/1", "r/2", "r/3")
    assert await told(several, one) == [2, 1]


async def test_turn_of_one_who_has_gone_is_given_to_the_next() -> None:
    node = Node()
    gone, following = await node.waiting(), await node.waiting()
    node.put("r/1")
    gone.cancel()
    assert await told(following) == [1]
    await end(gone)


async def test_turn_that_comes_as_the_time_ends_is_told() -> None:
    """It is nobody else's: told as none, its row would lie until the next look."""
    node, loop = Node(), asyncio.get_running_loop()
    waiting = await node.waiting(wait_s=0.02)
    timer = loop.call_at(loop.time() + 0.01, node.put, "r/1")  # both timers are due when the loop looks again
    time.sleep(0.05)
    assert await told(waiting) == [1]
    timer.cancel()


async def test_row_that_lies_gives_another_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "LOOK_S", 0.02)
    node = Node()
    dies, lives, never = [await node.waiting() for _ in range(3)]
    node.put("r/1")
    assert await told(dies) == [1]
    async with asyncio.timeout(20):
        assert await lives == 1
    node.delete("r/1")
    await asyncio.sleep(0.1)
    assert await told(never) == [None]
    await end(never)


async def test_only_the_leader_gives_turns_and_sends_all_away_when_it_leads_no_more() -> None:
    node = Node()
    waiting = [await node.waiting() for _ in range(3)]
    node.turns.lead(leads=False)
    assert await told(*waiting) == [0, 0, 0]
    with pytest.raises(OncegateError) as refused:
        await node.turns.wait("t", "r/", 1, 60, "")
    assert (refused.value.code, refused.value.retryable) == (Code.NOT_LEADER, True)
    node.turns.lead(leads=True)
    again = await node.waiting()
    node.put("r/1")
    assert await told(again) == [1]


async def test_who_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "WAITING_MAX", 1)
    node = Node()
    one = await node.waiting()
    with pytest.raises(OncegateError) as refused:
        await node.turns.wait("t", "r/", 1, 60, "")
    assert refused.value.code is Code.OVERLOADED
    await end(one)
    assert await node.turns.wait("t", "r/", 1, 0.001, "") == 0


async def test_each_tenant_waits_as_often_as_its_share_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "WAITING_MAX", 20)
    node, waiting = Node(), list[asyncio.Task[int]]()
    of_tenant = dict.fromkeys(("ann", "bob", "cid"), 0)
    for number, tenant in enumerate(["ann", "bob", "ann", "cid", *["ann", "bob"] * 10, *["cid"] * 5]):
        has_room = of_tenant[tenant] < share(tenant, 20, sum(of_tenant.values()), of_tenant[tenant])
        task = asyncio.create_task(node.turns.wait("t", f"{number}/", 1, 60.0, tenant))
        await asyncio.sleep(0)
        assert task.done() != has_room, of_tenant
        if has_room:
            of_tenant[tenant] += 1
            waiting.append(task)
        else:
            assert isinstance(task.exception(), OncegateError)
    assert all(of_tenant.values())
    await end(*waiting)
    assert node.turns.waiting == 0
