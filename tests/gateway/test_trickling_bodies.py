"""Bodies that arrive a byte at a time take no place of those that are there, whoever sends them, on either path."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.gateway.http.admission.bodies import BodyBudget
from oncegate.gateway.http.admission.desk import Usage
from oncegate.gateway.node.node import Node
from oncegate.rifl.errors import Code, OncegateError
from tests.conftest import Api
from tests.gateway.http_contract import one_node, serving
from tests.gateway.test_auth import as_, entry, written
from tests.gateway.test_limits import Body, whole

ANN, BOB, OPS = "ann" * 12, "bob" * 12, "ops" * 12
TOKENS = entry(ANN, "ann", "read", "write") + entry(BOB, "bob", "read", "write") + entry(OPS, "ops", "read", "admin")
PLACES, RECEIVING = 4, 12
HOT, LENT = "PUT /v1/tables/rows/rows/k", "POST /v1/sessions"
"""A route of the hot path and one of aiohttp's."""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[tuple[Api, Node]]:
    settings = {"tokens_file": written(tmp_path / "tokens.toml", TOKENS), "tenant_requests_max": PLACES}
    limits = {"receiving_max": RECEIVING, "connections_max": 64, "body_ms_max": 600_000}
    async with serving(one_node(tmp_path, **settings, **limits)) as (api, running):
        assert (await as_(api, OPS, "PUT", "/v1/tables/rows", {"kind": "resident"}))[0] == 200
        yield api, running


@asynccontextmanager
async def trickling(node: Node, what: str, count: int) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Begin requests of ann whose bodies do not come, and keep them."""
    _, _, port, _ = node.settings.address
    head = (
        f"{what} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ANN}\r\nContent-Type: application/json\r\n"
        "Idempotency-Key: slow\r\nContent-Length: 1000\r\n\r\n["
    )
    streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    try:
        for _, writer in streams:
            writer.write(head.encode())
        yield [reader for reader, _ in streams]
    finally:
        for _, writer in streams:
            writer.transport.abort()


async def _receiving(api: Api) -> int:
    text: str = (await as_(api, OPS, "GET", "/metrics"))[2].decode()
    line = next(line for line in text.splitlines() if line.startswith("oncegate_receiving_requests "))
    return int(float(line.split()[1]))


async def _until(api: Api, count: int) -> None:
    async with asyncio.timeout(60):
        while await _receiving(api) < count:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("what", [HOT, LENT])
async def test_requests_that_are_there_are_served_beside_any_number_that_trickles(
    node: tuple[Api, Node], what: str
) -> None:
    api, running = node
    async with trickling(running, what, 2 * PLACES):
        await _until(api, 2 * PLACES)
        for token in (ANN, BOB):
            for number in range(2 * PLACES):
                path = f"/v1/tables/rows/rows/{number}"
                answer = await as_(api, token, "PUT", path, number, **{"Idempotency-Key": f"{token}{number}"})
                assert answer[0] == 200, answer
                assert (await as_(api, token, "GET", "/v1/tables/rows"))[0] == 200


@pytest.mark.parametrize("what", [HOT, LENT])
async def test_of_too_many_that_trickle_the_oldest_gives_way(node: tuple[Api, Node], what: str) -> None:
    api, running = node
    async with trickling(running, what, RECEIVING) as first:
        await _until(api, RECEIVING)
        async with trickling(running, what, 3):
            for reader in first[:3]:
                async with asyncio.timeout(60):
                    head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 429 ")
            assert await _receiving(api) == RECEIVING
            answer = await as_(api, ANN, "PUT", "/v1/tables/rows/rows/a", 1, **{"Idempotency-Key": "honest"})
            assert answer[0] == 200


async def test_body_of_a_tenant_that_has_few_does_not_give_way_to_those_of_one_that_has_many() -> None:
    budget = BodyBudget(1000, 10_000, 600_000, receiving_max=4)
    few, many = Body(b"x"), [Body(b"x") for _ in range(6)]
    asked = [asyncio.create_task(budget.receive(few, "few"))]
    asked += [asyncio.create_task(budget.receive(body, "many")) for body in many]
    for _ in range(10):
        await asyncio.sleep(0)
    assert [task.done() for task in asked] == [False, True, True, True, False, False, False]
    assert budget.receiving == 4
    for task in asked:
        task.cancel()
        with pytest.raises((OncegateError, asyncio.CancelledError)):
            await task
    assert (budget.receiving, budget.bytes) == (0, 0)


class _Pieces(asyncio.Queue[bytes]):
    """A body whose pieces come when they are put."""

    async def readany(self) -> bytes:
        return await self.get()


@pytest.mark.parametrize("tenants", [("ann", "ann"), ("ann", "bob")])
async def test_piece_that_comes_in_the_turn_in_which_its_body_gives_way_is_counted_nowhere(
    tenants: tuple[str, str],
) -> None:
    """The older body is refused for the sake of the other, and its next piece is there before it hears of that."""
    older, other = _Pieces(), _Pieces()
    budget = BodyBudget(1000, 1000, 600_000)
    first = asyncio.create_task(budget.receive(older, tenants[0]))
    older.put_nowait(b"x" * 600)
    await asyncio.sleep(0)
    second = asyncio.create_task(budget.receive(other, tenants[1]))
    await asyncio.sleep(0)
    other.put_nowait(b"x" * 500)
    older.put_nowait(b"x" * 100)
    with pytest.raises(OncegateError) as refused:
        await first
    assert refused.value.code is Code.OVERLOADED
    assert (budget.receiving, budget.bytes) == (1, 500)
    other.put_nowait(b"")
    assert await second == b"x" * 500
    assert (budget.receiving, budget.bytes) == (0, 0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 400), st.booleans()), max_size=25))
def test_oldest_body_of_the_tenant_that_has_most_bytes_gives_way_whatever_has_ended(
    bodies: list[tuple[str, int, bool]],
) -> None:
    asyncio.run(_give_way(bodies))


async def _give_way(bodies: list[tuple[str, int, bool]]) -> None:
    """Let bodies come, some whole, others that stall, and hold who is refused against a sum over those that wait."""
    budget, waiting = BodyBudget(1000, 1000, 600_000), list[tuple[str, int, asyncio.Task[bytes]]]()
    for tenant, size, is_whole in bodies:
        body = whole(b"x" * size) if is_whole else Body(b"x" * size)
        came = asyncio.create_task(budget.receive(body, tenant))
        waiting.append((tenant, size, came))
        for _ in range(8):
            await asyncio.sleep(0)
        while sum(size for _, size, _ in waiting) > 1000:
            has = Counter[str]()
            for whose, bytes_, _ in waiting:
                has[whose] += bytes_
            oldest = [
                next(one for one in waiting if one[0] == whose) for whose in has if has[whose] == max(has.values())
            ]
            [gone, *_] = [one for one in oldest if one[2].done()]
            assert (gone[2] is came and is_whole) or isinstance(gone[2].exception(), OncegateError)
            waiting.remove(gone)
        waiting = [one for one in waiting if not (one[2] is came and is_whole)]
        assert not any(task.done() for _, _, task in waiting)
        assert (budget.receiving, budget.bytes) == (len(waiting), sum(size for _, size, _ in waiting))
    for _, _, task in waiting:
        task.cancel()
    await asyncio.gather(*(task for _, _, task in waiting), return_exceptions=True)
    assert (budget.receiving, budget.bytes) == (0, 0)


def test_place_that_was_given_back_is_asked_for_again_once_the_body_is_there() -> None:
    usage = Usage(None, 1)
    usage.requests += 1
    with pytest.raises(OncegateError) as refused, usage.receiving():
        usage.requests += 1  # another one came meanwhile
    assert refused.value.code is Code.OVERLOADED
    assert usage.requests == 2, "its end takes it off, as any other's"
    usage.requests -= 1
    with usage.receiving():
        assert usage.requests == 0
    assert usage.requests == 1
