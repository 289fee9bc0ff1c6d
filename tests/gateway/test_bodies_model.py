"""Three bounds at once on bodies that arrive, against a list of them: each one's bytes, all bytes, and their number.

Bodies of several tenants begin, go on, end, are broken off and time out in any order; the list says after each step who
gave way, who was refused and why, and what is counted. The bytes of whole large bodies have their shares beside that.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from oncegate.gateway.http.admission import bodies
from oncegate.gateway.http.admission.bodies import BodyBudget
from oncegate.gateway.machine.tenant_share import share
from oncegate.rifl.errors import Code, OncegateError, Outcome

BODY_MAX, BYTES_MAX, NUMBER_MAX = 100, 250, 5
TURNS = 6


@dataclass(eq=False)
class Body:
    """One body: the pieces put into it, and what it must come to."""

    tenant: str
    most: int
    pieces: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    sent: bytes = b""
    task: asyncio.Task[bytes] | None = None

    async def readany(self) -> bytes:
        return await self.pieces.get()

    async def comes_to(self) -> bytes | OncegateError | None:
        """Return its bytes or its refusal; None if it was cancelled."""
        assert self.task is not None
        try:
            return await self.task
        except OncegateError as refusal:
            return refusal
        except asyncio.CancelledError:
            return None


class Arriving:
    """A budget, and the list of what arrives, the oldest first."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.budget = BodyBudget(BODY_MAX, BYTES_MAX, 3_600_000, NUMBER_MAX)
        self.list: list[Body] = []
        self.ended = Counter[str]()

    def most_of(self, count: dict[str, int]) -> set[str]:
        return {tenant for tenant, has in count.items() if has == max(count.values())}

    async def gives_way(self, count: dict[str, int]) -> None:
        """Take the oldest body of a tenant that has most off the list; it was told, and no other."""
        oldest = [next(one for one in self.list if one.tenant == tenant) for tenant in self.most_of(count)]
        [gone] = [one for one in oldest if one.task is not None and one.task.done()]
        refusal = await gone.comes_to()
        assert isinstance(refusal, OncegateError)
        assert (refusal.code, refusal.outcome) == (Code.OVERLOADED, Outcome.NOT_APPLIED)
        assert refusal.retry_after_ms
        self.list.remove(gone)
        self.ended["gave way"] += 1

    async def begin(self) -> None:
        most = self.dice.choice((None, None, 40, 180))
        body = Body(self.dice.choice("aabc"), BODY_MAX if most is None else most)
        body.task = asyncio.create_task(self.budget.receive(body, body.tenant, most))
        await self.turns()
        self.list.append(body)
        if len(self.list) > NUMBER_MAX:
            await self.gives_way(Counter(one.tenant for one in self.list))

    async def go_on(self) -> None:
        body = self.dice.choice(self.list)
        room = body.most - len(body.sent)
        piece = bytes(self.dice.choices(b"xyz", k=self.dice.choice((1, 10, 60, room, room, room + 1)) or 1))
        body.sent += piece
        body.pieces.put_nowait(piece)
        await self.turns()
        if len(body.sent) > body.most:
            refusal = await body.comes_to()
            assert isinstance(refusal, OncegateError)
            assert refusal.code is Code.PAYLOAD_TOO_LARGE
            assert str(body.most) in refusal.detail
            self.list.remove(body)
            self.ended["too large"] += 1
            return
        while sum(len(one.sent) for one in self.list) > BYTES_MAX:
            has = Counter[str]()
            for one in self.list:
                has[one.tenant] += len(one.sent)
            await self.gives_way(has)

    async def end(self) -> None:
        body = self.dice.choice(self.list)
        assert body.task is not None
        self.list.remove(body)
        if self.dice.random() < 0.3:
            body.task.cancel()
            assert await body.comes_to() is None
            self.ended["cancelled"] += 1
            return
        body.pieces.put_nowait(b"")
        await self.turns()
        assert await body.comes_to() == body.sent
        self.ended["whole"] += 1

    async def late(self) -> None:
        """Its time is over."""
        body = self.dice.choice(self.list)
        receiver = next(
            one
            for of_tenant in self.budget._tenants.values()
            for at, one in enumerate(of_tenant.receivers)
            if one.tenant == body.tenant and body is [b for b in self.list if b.tenant == body.tenant][at]
        )
        receiver.timeout.reschedule(0)
        await self.turns()
        refusal = await body.comes_to()
        assert isinstance(refusal, OncegateError)
        assert (refusal.code, refusal.outcome) == (Code.TIMEOUT, Outcome.NOT_APPLIED)
        self.list.remove(body)
        self.ended["late"] += 1

    async def turns(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def step(self) -> None:
        what = self.dice.choice(
            (self.begin, self.begin, self.begin, self.begin, self.go_on, self.go_on, self.go_on, self.end, self.late)
        )
        await (what() if self.list else self.begin())
        self.check()

    def check(self) -> None:
        assert not any(one.task is None or one.task.done() for one in self.list), "nobody else is refused"
        assert self.budget.receiving == len(self.list)
        assert self.budget.bytes == sum(len(one.sent) for one in self.list)
        assert set(self.budget._tenants) == {one.tenant for one in self.list}


@pytest.mark.parametrize("seed", range(10))
async def test_who_gives_way_and_what_is_counted_is_what_the_list_says(seed: int) -> None:
    arriving = Arriving(seed)
    for _ in range(150):
        await arriving.step()
    assert set(arriving.ended) == {"gave way", "too large", "cancelled", "whole", "late"}
    while arriving.list:
        await arriving.end()
        arriving.check()
    assert (arriving.budget.receiving, arriving.budget.bytes) == (0, 0)


async def test_bytes_that_arrive_are_at_their_bound_and_not_beyond_it_before_anybody_gives_way() -> None:
    budget, tasks = BodyBudget(BODY_MAX, BYTES_MAX, 3_600_000, NUMBER_MAX), list[asyncio.Task[bytes]]()
    arriving = [Body("a", BODY_MAX) for _ in range(NUMBER_MAX)]
    for body in arriving:
        body.pieces.put_nowait(b"x" * (BYTES_MAX // NUMBER_MAX))
        tasks.append(asyncio.create_task(budget.receive(body, "a")))
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert (budget.receiving, budget.bytes) == (NUMBER_MAX, BYTES_MAX)
    for body in arriving:
        body.pieces.put_nowait(b"")
    assert [len(data) for data in await asyncio.gather(*tasks)] == [BYTES_MAX // NUMBER_MAX] * NUMBER_MAX


@pytest.mark.parametrize("seed", range(5))
def test_whole_bodies_are_held_up_to_the_share_of_their_tenant_and_forgotten_with_the_last(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "HELD_BYTES_MAX", 1000)
    dice, budget, held = random.Random(seed), BodyBudget(1, 1, 1), list[tuple[str, int]]()
    refusals = 0
    for _ in range(400):
        tenant, size = dice.choice("abcd"), dice.choice((1, 50, 125, 200, 400))
        if held and dice.random() < 0.4:
            gone = held.pop(dice.randrange(len(held)))
            budget.release(*gone)
        else:
            own = sum(size for whose, size in held if whose == tenant)
            if own + size > share(tenant, 1000, sum(size for _, size in held), own):
                refusals += 1
                with pytest.raises(OncegateError) as refused:
                    budget.hold(tenant, size)
                assert (refused.value.code, refused.value.outcome) == (Code.OVERLOADED, Outcome.NOT_APPLIED)
            else:
                budget.hold(tenant, size)
                held.append((tenant, size))
        assert budget.held_bytes == sum(size for _, size in held)
        assert set(budget._held) == {tenant for tenant, _ in held}
    assert refusals > 10
    for one in held:
        budget.release(*one)
    assert (budget.held_bytes, len(budget._held)) == (0, 0)


@pytest.mark.parametrize("more", [1, 3])
async def test_body_that_gives_way_in_the_turn_in_which_more_of_it_comes_is_refused_and_counted_no_more(
    more: int,
) -> None:
    """It is told to end by a cancellation, which comes only when it waits: until then it must count nothing anew."""
    budget = BodyBudget(100, 100, 60_000)
    old, new = Body("ann", 100), Body("bob", 100)
    for body in (old, new):
        body.task = asyncio.create_task(budget.receive(body, body.tenant))
    old.pieces.put_nowait(b"x" * 60)
    for _ in range(TURNS):
        await asyncio.sleep(0)
    new.pieces.put_nowait(b"y" * 50)
    for _ in range(more):
        old.pieces.put_nowait(b"x")
    new.pieces.put_nowait(b"")
    refused = await old.comes_to()
    assert isinstance(refused, OncegateError)
    assert refused.code is Code.OVERLOADED
    assert await new.comes_to() == b"y" * 50
    assert (budget.bytes, budget.receiving) == (0, 0)
