"""Locks of readers and writers against their rule, and what leaving takes back, whatever becomes of answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress

import pytest

from oncegate import Client, OperationFailed, OutcomeUnknown, Tuning
from oncegate.gateway.client.recipes import line
from oncegate.gateway.local.waiting import until
from oncegate.recipes import Barrier, Election, Lock, ReadWriteLock, Semaphore
from oncegate.testing import FakeGateway
from tests.client.unreliable_path import Held, UnreliablePath

BESIDE = Tuning(backoff_first_s=0.001, backoff_cap_s=0.01, pipeline_min=1, in_flight_max=4)
HASTY = Tuning(backoff_first_s=0.001, backoff_cap_s=0.01)


@pytest.fixture
async def fake() -> AsyncIterator[FakeGateway]:
    """One node with a table for recipes, and one for what they guard."""
    async with FakeGateway() as gateway:
        gateway.declare("rows")
        gateway.declare("recipes")
        yield gateway


def rows(fake: FakeGateway) -> list[str]:
    return [key for key, _ in fake.machine.tables["recipes"].rows.items()]


async def all_left(fake: FakeGateway) -> None:
    async def gone() -> bool:
        return not rows(fake) and not line._leaving

    await until(gone, 20.0, "rows of those who left", state=lambda: rows(fake))


@pytest.mark.parametrize("seed", range(6))
async def test_one_writer_or_many_readers_hold_in_the_order_of_asking(fake: FakeGateway, seed: int) -> None:
    """The rule: a reader holds beside readers alone, a writer beside nobody; nobody holds before one who asked before
    and is in the way. Some are cancelled while they wait, and some sessions end while they hold.
    """
    held = dict[int, str]()

    async def contend(number: int, client: Client) -> None:
        own = random.Random(f"{seed} {number}")
        async with client.session() as session:
            lock = ReadWriteLock(client, session, "l")
            for _ in range(4):
                side = own.choice(("read", "read", "write"))
                asking = asyncio.ensure_future(lock.acquire(side))  # type: ignore[arg-type]
                if own.random() < 0.2:
                    await asyncio.sleep(own.choice((0, 0.005)))
                    asking.cancel()
                with suppress(asyncio.CancelledError):
                    hold = await asking
                    sides = [*held.values(), side]
                    assert "write" not in sides or len(sides) == 1, sides
                    held[number] = side
                    for _ in range(own.randint(0, 30)):
                        await asyncio.sleep(0)
                    del held[number]
                    if own.random() < 0.1:
                        fake.expire(session.client_id)
                        return
                    await hold.release()

    path = UnreliablePath(fake, seed)
    async with Client(fake.endpoints, tuning=HASTY) as client:
        async with asyncio.timeout(60):
            await asyncio.gather(*(contend(number, client) for number in range(5)))
        path.heal()
        await all_left(fake)
    assert path.lost
    assert path.late


@pytest.mark.parametrize("order", ["rw", "wr", "ww", "rrw", "wrr", "rwr", "rrwrw"])
async def test_each_waits_for_exactly_those_in_its_way(fake: FakeGateway, order: str) -> None:
    """Everyone holds once all before whom the rule puts in the way have given up, and not before."""
    async with Client(fake.endpoints) as client, AsyncExitStack() as stack:
        asking = []
        for at, letter in enumerate(order):
            session = await stack.enter_async_context(client.session())
            side = {"r": "read", "w": "write"}[letter]
            lock = ReadWriteLock(client, session, "l")
            asking.append(asyncio.create_task(lock.acquire(side)))  # type: ignore[arg-type]

            async def stand(count: int = at + 1) -> bool:
                return len(rows(fake)) == count

            await until(stand, 20.0, "all in line")
        gone: set[int] = set()
        for leaves in range(len(order)):
            free = [
                at
                for at, letter in enumerate(order)
                if not any(order[b] == "w" or letter == "w" for b in range(at) if b not in gone)
            ]

            async def told(free: list[int] = free) -> bool:
                return all(asking[at].done() for at in free)

            await until(told, 20.0, f"{free} hold")
            for _ in range(100):
                await asyncio.sleep(0)
            assert [at for at, task in enumerate(asking) if task.done()] == free
            await (await asking[leaves]).release()
            gone.add(leaves)
        await all_left(fake)


Asks = Callable[[Client, object], object]
ASKS: dict[str, Asks] = {
    "lock": lambda client, session: Lock(client, session, "x").acquire(),  # type: ignore[arg-type]
    "semaphore": lambda client, session: Semaphore(client, session, "x", 1).acquire(),  # type: ignore[arg-type]
    "writer": lambda client, session: ReadWriteLock(client, session, "x").acquire("write"),  # type: ignore[arg-type]
    "election": lambda client, session: Election(client, session, "x").campaign(1),  # type: ignore[arg-type]
    "barrier": lambda client, session: Barrier(client, session, "x", 2).wait(),  # type: ignore[arg-type]
}


def _joins(operation: dict[str, object]) -> bool:
    return (operation["table"], operation["op"]) == ("recipes", "put")


@pytest.mark.parametrize("applied", [False, True], ids=["comes late", "answer comes late"])
@pytest.mark.parametrize("cut", ["cancelled", "out of time"])
@pytest.mark.parametrize("name", ASKS)
async def test_who_was_cut_off_leaves_nothing_behind_however_late_its_request_comes(
    fake: FakeGateway, name: str, cut: str, *, applied: bool
) -> None:
    """Also where nothing acknowledges its number: an earlier write of the session is under way all the time."""
    timeout_s = 0.2 if cut == "out of time" else 30.0
    async with (
        Client(fake.endpoints, tuning=BESIDE, timeout_s=timeout_s) as client,
        client.session() as session,
        Client(fake.endpoints) as other,
        other.session() as beside,
    ):
        held = Held(fake, lambda one: _joins(one) or one["key"] == "earlier", applied=applied)
        earlier = session.submit("put", "rows", "earlier", 1, timeout_s=30)
        await held.holds(1)
        asking = asyncio.ensure_future(ASKS[name](client, session))  # type: ignore[arg-type, call-overload, var-annotated]
        await held.holds(2)
        if cut == "cancelled":
            asking.cancel()
        with suppress(asyncio.CancelledError, OperationFailed, OutcomeUnknown):
            await asking
        for _ in range(200):
            await asyncio.sleep(0)
        held.let_go()
        await asyncio.gather(earlier, return_exceptions=True)
        await all_left(fake)
        async with asyncio.timeout(20):
            await (await Lock(other, beside, "x").acquire()).release()
