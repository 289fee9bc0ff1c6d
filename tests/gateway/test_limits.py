"""docs/limits.md is true: settings, constants and refusals are as it says; rates, bodies, connections keep to them."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from oncegate.gateway.http.admission.bodies import BodyBudget
from oncegate.gateway.http.admission.connections import ConnectionCounts, Guard, Patience, refuse
from oncegate.gateway.http.admission.desk import OperationRate
from oncegate.gateway.http.admission.parsing import ParsingThread
from oncegate.gateway.http.hot.connection import AiohttpSide, Connection
from oncegate.gateway.http.hot.request import Aside
from oncegate.gateway.http.hot.shared import Shared
from oncegate.gateway.http.routes import flows
from oncegate.gateway.node.settings import SETTINGS
from oncegate.gateway.observability.request_times import RequestTimes
from oncegate.rifl.errors import REGISTRY, Code, OncegateError, Outcome
from tests.conftest import Api
from tests.gateway.http_contract import (
    ARROW,
    arrow_body,
    assert_problem,
    declare,
    one_node,
    operations,
    put,
    range_headers,
    serving,
)
from tests.gateway.test_edge import nested

PAGE = (Path(__file__).parents[2] / "docs" / "limits.md").read_text()


class Limit(NamedTuple):
    what: str
    name: str
    default: int
    refusal: str


LIMITS = [
    Limit(what, name, int(default), refusal)
    for what, name, default, refusal in re.findall(r"^\| ([^|]+) \| `([^`]+)` \| (\d+)[^|]* \| ([^|]+) \|$", PAGE, re.M)
]
EDGE_SETTINGS = {name for name in SETTINGS if name.endswith(("_max", "_per_s"))} - {"scrub_bytes_per_s"}


def test_every_setting_of_the_edge_is_in_the_table() -> None:
    assert {limit.name for limit in LIMITS if "." not in limit.name} == EDGE_SETTINGS


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_default_is_what_the_table_says(limit: Limit) -> None:
    if "." not in limit.name:
        assert SETTINGS[limit.name].default == limit.default
    else:
        module, name = limit.name.rsplit(".", 1)
        assert getattr(importlib.import_module(module), name) == limit.default
    for code in re.findall(r"`([A-Z_]+)`", limit.refusal):
        assert code in REGISTRY


@contextlib.asynccontextmanager
async def prepared(directory: Path, **settings: Any) -> AsyncIterator[tuple[Api, str]]:
    """A node with these settings, two tables and a session."""
    async with serving(one_node(directory, **settings)) as (api, _):
        await declare(api)
        await declare(api, "events", "stream")
        yield api, await api.session()


Sent = Awaitable[tuple[int, Any, Any]]


def _operations(api: Api, client_id: str, *many: Any) -> Sent:
    body = io.BytesIO(json.dumps(operations(client_id, *many)).encode())
    return api.call("POST", "/v1/operations", data=body)


def _puts(value: Any, *, key: str = "k", count: int = 1) -> Callable[[Api, str], Sent]:
    many = [put(i, key, value) for i in range(1, count + 1)]
    return lambda api, client_id: _operations(api, client_id, *many)


def _appends(api: Api, client_id: str) -> Sent:
    append = {"op": "append", "table": "rows", "key": "k", "item": 1}
    return _operations(api, client_id, *({**append, "sequence": i} for i in range(1, 1026)))


def _range(api: Api, client_id: str) -> Sent:
    body = arrow_body(["k"] * 10_001, ["1"] * 10_001)
    return api.call("POST", "/v1/tables/events/ranges", data=body, headers=range_headers(client_id, 1, ARROW))


def _long_key(api: Api, _: str) -> Sent:
    return api.call("PUT", "/v1/tables/rows/rows/k", 1, headers={"Idempotency-Key": f'"{"k" * 256}"'})


def _long_body(api: Api, _: str) -> Sent:
    return api.call("POST", "/v1/operations", data=io.BytesIO(b" " * (8 * 2**20 + 1)))


REFUSED: dict[str, Callable[[Api, str], Sent]] = {
    "body_bytes_max": _long_body,
    "oncegate.gateway.machine.commands.KEY_BYTES_MAX": _puts(1, key="k" * 513),
    "oncegate.gateway.machine.commands.VALUE_BYTES_MAX": _puts("v" * 262_143),
    "oncegate.gateway.http.request_bodies.VALUE_DEPTH_MAX": _puts(nested(65)),
    "oncegate.gateway.machine.commands.OPERATIONS_MAX": _puts(1, count=4097),
    "oncegate.gateway.machine.commands.APPENDS_MAX": _appends,
    "oncegate.gateway.idempotency_key.KEY_LENGTH_MAX": _long_key,
    "oncegate.gateway.http.request_bodies.OPERATIONS_BYTES_MAX": _puts("v" * 250_000, count=17),
    "oncegate.rifl.ids.RANGE_LENGTH_MAX": _range,
}


async def test_size_over_a_limit_is_refused_as_the_table_says_and_nothing_is_proposed(tmp_path: Path) -> None:
    refusals = {limit.name: limit.refusal.strip("`") for limit in LIMITS}
    async with prepared(tmp_path) as (api, client_id):
        before = (await api.call("GET", "/v1/cluster"))[2]["log_index"]
        for name, refused in REFUSED.items():
            assert_problem(await refused(api, client_id), refusals[name])
        assert (await api.call("GET", "/v1/cluster"))[2]["log_index"] == before


async def test_rate_and_requests_of_a_tenant_are_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows, "KEEP_ALIVE_S", 0.2)  # a watch that its client has left ends with the next look
    settings = {"tenant_operations_per_s": 100, "tenant_requests_max": 2, "body_bytes_max": 524_288}
    async with prepared(tmp_path, **settings) as (api, client_id):

        async def applied(sequence: int, session: str) -> None:
            async with asyncio.timeout(30):
                while (await _operations(api, session, put(sequence, "k", 1)))[0] != 200:
                    await asyncio.sleep(0.01)

        # Until the bucket is full again: an operation that cost two would never leave 99.
        async with asyncio.timeout(30):
            while (await _operations(api, "0" * 15 + "9", put(1, "k", 1)))[1]["RateLimit"] != '"operations";r=99;t=1':
                await asyncio.sleep(0.05)
        answer = await api.call("POST", "/v1/operations", data=b" " * 524_289)
        assert_problem(answer, "PAYLOAD_TOO_LARGE")
        assert answer[1]["RateLimit-Policy"] == '"operations";q=100;w=1'
        async with api._http.get("/v1/flows/events/watch"), api._http.get("/v1/flows/events/watch"):
            assert_problem(await _operations(api, client_id, put(1, "k", 1)), "OVERLOADED")
            assert (await api.call("GET", "/livez"))[0] == 200, "a node that is busy is not to be restarted"
        await applied(1, client_id)
        # More than the bucket holds: let in, and paid for by the next request.
        session = await api.session("wide", window=4096)
        status, headers, _ = await _puts(1, count=250)(api, session)
        assert (status, headers["RateLimit"][:17]) == (200, '"operations";r=0;')
        assert (await api.call("GET", "/livez"))[0] == 200, "what is open to everyone costs nobody's rate"
        refused = await _operations(api, session, put(251, "k", 1))
        assert_problem(refused, "QUOTA")
        assert refused[1]["RateLimit"].startswith('"operations";r=0;t=')
        await applied(251, session)


async def test_watchers_are_bounded_as_the_table_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with prepared(tmp_path) as (api, _):
        monkeypatch.setattr(flows, "WATCHERS_MAX", 0)
        assert_problem(await api.call("GET", "/v1/flows/events/watch"), "OVERLOADED")


steps = st.lists(st.tuples(st.floats(0, 3), st.integers(1, 50)), max_size=40)


@given(st.integers(1, 100), st.integers(1, 100), steps)
def test_rate_is_never_ahead_by_more_than_the_burst_and_one_request(
    per_s: int, burst: int, steps: list[tuple[float, int]]
) -> None:
    bucket = OperationRate(per_s, burst)
    now_s, spent, largest = 0.0, 0, 0
    for later_s, many in steps:
        now_s += later_s
        wait_ms = bucket.wait_ms(now_s)
        if wait_ms == 0:
            bucket.take(many)
            spent, largest = spent + many, max(largest, many)
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
    assert not budget.receiving
    assert not budget._tenants


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
    guard = Guard(Patience(3, 10_000, 75_000, 30_000, 2**20), ConnectionCounts())
    aside = Aside(BodyBudget(1000, 1500, 60_000), ParsingThread(), RequestTimes({}))
    other_side = partial(AiohttpSide, server, asyncio.get_running_loop())
    shared = Shared(guard, aside, other_side, refuse, None)

    def connect() -> Connection:
        connection = Connection(shared)
        connection.connection_made(Wire())
        return connection

    at_work = connect()
    sent = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    at_work.get_buffer(-1)[: len(sent)] = sent
    at_work.buffer_updated(len(sent))
    while not (at_work.has_asked and at_work.is_idle):
        await asyncio.sleep(0)
    crowd = [connect() for _ in range(9)]  # no turn of the loop between them: none has begun to wait
    assert at_work in guard.connections
    assert crowd[-1] in guard.connections
    assert len(guard.connections) == 3
    for one in (at_work, *crowd):
        one.connection_lost(None)


class Reader:
    """A connection whose client has not taken so many bytes of its answers."""

    def __init__(self, pending_bytes: int) -> None:
        self.pending_bytes = pending_bytes
        self.made_s = self.idle_since_s = self.unsent_since_s = 0.0
        self.unsent_bytes = 0
        self.has_asked, self.is_idle, self.ended = True, False, False

    def look(self) -> None: ...

    def close(self) -> None:
        raise AssertionError

    def abort(self) -> None:
        self.ended = True

    def drain(self) -> None: ...


async def test_of_clients_that_do_not_read_those_with_most_unsent_bytes_go_and_no_more_than_need_be() -> None:
    counts = ConnectionCounts()
    guard = Guard(Patience(9, 10_000, 75_000, 30_000, 100), counts)
    readers = [Reader(size) for size in (10, 60, 50, 30, 0)]  # 150: one of them is enough
    for one in readers:
        guard.add(one)
    guard.sweep()
    await guard.close()
    assert [one.ended for one in readers] == [False, True, False, False, False]
    assert (counts.open, counts.ended) == (4, 1)


async def test_writes_and_conditions_of_a_transaction_count_for_the_rate(tmp_path: Path) -> None:
    async with prepared(tmp_path, tenant_operations_per_s=100) as (api, _):
        conditions = [{"table": "rows", "key": "no", "if": {"absent": True}}] * 128
        writes = [{"op": "increment", "table": "rows", "key": f"k{n}"} for n in range(128)]
        body = {"writes": writes, "conditions": conditions}
        status, answered, _ = await api.call("POST", "/v1/transactions", body, headers={"Idempotency-Key": "k"})
        assert (status, answered["RateLimit"][:17]) == (200, '"operations";r=0;')


async def test_items_of_a_range_count_for_the_rate(tmp_path: Path) -> None:
    async with prepared(tmp_path, tenant_operations_per_s=100) as (api, client_id):
        body = arrow_body(["k"] * 500, ["1"] * 500)
        headers = range_headers(client_id, 1, ARROW)
        status, answered, _ = await api.call("POST", "/v1/tables/events/ranges", data=body, headers=headers)
        assert (status, answered["RateLimit"][:17]) == (200, '"operations";r=0;')
