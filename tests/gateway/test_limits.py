"""docs/limits.md is true: settings and constants as it says, refusals as it says."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from oncegate.gateway.http.routes import flows
from oncegate.gateway.node.settings import SETTINGS
from oncegate.rifl.errors import REGISTRY
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
EDGE_SETTINGS = {name for name in SETTINGS if name.endswith(("_max", "_per_s"))}


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
    "oncegate.gateway.http.request_headers.KEY_LENGTH_MAX": _long_key,
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


async def test_rate_and_requests_of_a_tenant_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    settings = {"tenant_operations_per_s": 1000, "tenant_requests_max": 2, "body_bytes_max": 524_288}
    async with prepared(tmp_path, **settings) as (api, client_id):

        async def applied(sequence: int, session: str) -> None:
            async with asyncio.timeout(30):
                while (await _operations(api, session, put(sequence, "k", 1)))[0] != 200:
                    await asyncio.sleep(0.01)

        answer = await api.call("POST", "/v1/operations", data=b" " * 524_289)
        assert_problem(answer, "PAYLOAD_TOO_LARGE")
        assert answer[1]["RateLimit-Policy"] == '"operations";q=1000;w=1'
        # More than the bucket holds: let in, and paid for by the next request.
        session = await api.session("wide", window=4096)
        status, headers, _ = await _puts(1, count=1500)(api, session)
        assert (status, headers["RateLimit"][:17]) == (200, '"operations";r=0;')
        assert (await api.call("GET", "/livez"))[0] == 200, "what is open to everyone costs nobody's rate"
        refused = await _operations(api, session, put(1501, "k", 1))
        assert_problem(refused, "QUOTA")
        assert refused[1]["RateLimit"].startswith('"operations";r=0;t=')
        await applied(1501, session)
        async with api._http.get("/v1/flows/events/watch"), api._http.get("/v1/flows/events/watch"):
            assert_problem(await _operations(api, client_id, put(1, "k", 1)), "OVERLOADED")
        await applied(1, client_id)


async def test_watchers_are_bounded_as_the_table_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with prepared(tmp_path) as (api, _):
        monkeypatch.setattr(flows, "WATCHERS_MAX", 0)
        assert_problem(await api.call("GET", "/v1/flows/events/watch"), "OVERLOADED")
