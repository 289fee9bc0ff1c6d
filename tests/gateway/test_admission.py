"""Rates, bodies and the gate's bookkeeping: pure parts, on a clock that tests move."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from oncegate.gateway.http.admission.bodies import BodyBudget
from oncegate.gateway.http.admission.connections import ConnectionCounts, Guard, GuardedConnection, Patience
from oncegate.gateway.http.admission.gate import OperationRate
from oncegate.rifl.errors import Code, OncegateError, Outcome

steps = st.lists(st.tuples(st.floats(0, 3), st.integers(1, 50)), max_size=40)


@given(st.integers(1, 100), st.integers(1, 100), steps)
def test_rate_is_never_ahead_by_more_than_the_burst_and_one_request(
    per_s: int, burst: int, steps: list[tuple[float, int]]
) -> None:
    bucket = OperationRate(per_s, burst)
    now_s, spent, largest = 0.0, 0, 0
    for later_s, operations in steps:
        now_s += later_s
        wait_ms = bucket.wait_ms(now_s)
        if wait_ms == 0:
            bucket.take(operations)
            spent, largest = spent + operations, max(largest, operations)
        else:
            assert bucket.wait_ms(now_s + wait_ms / 1000 + 1e-6) == 0, "what it advises is not enough"
            now_s += wait_ms / 1000 + 1e-6
        assert spent <= burst + per_s * now_s + largest + 1e-3
        assert 0 <= bucket.remaining <= burst


def test_rate_says_how_it_stands_as_the_draft_has_it() -> None:
    bucket = OperationRate(10, 30)
    assert (bucket.policy, bucket.state) == ('"operations";q=30;w=3', '"operations";r=30;t=0')
    bucket.take(25)
    assert bucket.state == '"operations";r=5;t=3'
    bucket.take(25)
    assert bucket.state == '"operations";r=0;t=5'
    assert bucket.wait_ms(0.0) == 2_100


class Body:
    """A body that arrives as the test lets it."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)
        self.stalled = asyncio.Event()

    async def readany(self) -> bytes:
        if self._pieces:
            return self._pieces.pop(0)
        self.stalled.set()
        await asyncio.Event().wait()
        raise AssertionError


def whole(data: bytes) -> Body:
    return Body(data, b"")


async def refused(budget: BodyBudget, body: Body | asyncio.Task[bytes]) -> tuple[Code, Outcome]:
    with pytest.raises(OncegateError) as caught:
        await (body if isinstance(body, asyncio.Task) else budget.receive(body))
    assert budget.bytes == 0
    return caught.value.code, caught.value.outcome


async def test_oldest_unfinished_body_gives_way_and_newer_ones_arrive() -> None:
    budget = BodyBudget(1000, 1500, 60_000)
    stalled = Body(b"x" * 900)
    slow = asyncio.create_task(budget.receive(stalled))
    await stalled.stalled.wait()
    assert budget.bytes == 900
    for _ in range(5):
        assert await budget.receive(whole(b"y" * 900)) == b"y" * 900
    assert (await refused(budget, slow))[0] is Code.OVERLOADED


async def test_body_that_is_too_large_or_too_slow_is_refused_and_leaves_nothing_behind() -> None:
    alone_too_much = Body(*[b"x" * 400] * 5, b"")
    assert (await refused(BodyBudget(10_000, 1000, 60_000), alone_too_much))[0] is Code.OVERLOADED
    budget = BodyBudget(1000, 10_000, 60_000)
    assert (await refused(budget, whole(b"x" * 1001)))[0] is Code.PAYLOAD_TOO_LARGE
    assert await refused(BodyBudget(1000, 10_000, 1), Body(b"x")) == (Code.TIMEOUT, Outcome.NOT_APPLIED)
    left = Body(b"x")
    gone = asyncio.create_task(budget.receive(left))
    await left.stalled.wait()
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert budget.bytes == 0
    assert not budget._receivers


class Wire(asyncio.Transport):
    """The other end of a connection, which takes everything and says nothing."""

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None: ...

    def close(self) -> None: ...


async def test_connections_that_come_in_one_turn_displace_each_other_and_not_a_client_between_two_requests() -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response()

    server = web.Server(answer)
    guard = Guard(server, Patience(3, 10_000, 75_000, 30_000, 2**20), ConnectionCounts())

    def connect() -> GuardedConnection:
        connection = guard()
        assert isinstance(connection, GuardedConnection)
        connection.connection_made(Wire())
        return connection

    at_work = connect()
    at_work.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    while not (at_work.has_asked and at_work.is_idle):
        await asyncio.sleep(0)
    crowd = [connect() for _ in range(9)]  # no turn of the loop between them: none has begun to wait
    assert at_work in guard.connections
    assert crowd[-1] in guard.connections
    assert len(guard.connections) == 3
    for one in (at_work, *crowd):
        one.connection_lost(None)
