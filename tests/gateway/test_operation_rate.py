"""What a sender is charged is what it has sent: by exact arithmetic at the desk, and to the operation on each route."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Awaitable, Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.gateway.http.admission.desk import Desk
from oncegate.gateway.http.admission.hosts import AllowedHosts
from oncegate.gateway.http.identity import ANONYMOUS
from oncegate.gateway.http.server import ROUTES
from oncegate.rifl.errors import Code, OncegateError
from tests.conftest import Api
from tests.gateway.http_contract import (
    ARROW,
    JSON_LINES,
    MSGPACK,
    arrow_body,
    declare,
    json_lines,
    msgpack_range,
    one_node,
    operations,
    put,
    range_headers,
    serving,
)

TICK = Fraction(1, 64)
"""Time passes in parts of a second that a float holds exactly, so that the desk's sums are exact as well."""
WRITE = next(route for route in ROUTES if (route.method, route.path) == ("POST", "/v1/operations"))

sizes = st.one_of(st.integers(0, 5), st.integers(1, 300))
"""Operations of a request; a rate of 100 is a bucket of 100."""
requests = st.lists(st.tuples(st.integers(0, 200), sizes), max_size=60)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 100), requests)
def test_desk_admits_and_charges_as_exact_arithmetic_does(per_s: int, sent: list[tuple[int, int]]) -> None:
    now = [Fraction(0)]
    desk = Desk(
        ROUTES,
        requests_max=10,
        operations_per_s=per_s,
        body_bytes_max=1 << 20,
        hosts=AllowedHosts([]),
        clock=lambda: float(now[0]),
    )
    level, seen = Fraction(per_s), Fraction(0)
    for ticks, count in sent:
        now[0] += ticks * TICK
        level, seen = min(Fraction(per_s), level + (now[0] - seen) * per_s), now[0]
        if level <= 0:
            with pytest.raises(OncegateError) as refused:
                desk.count(WRITE, ANONYMOUS)
            exact_ms = math.ceil((1 - level) / per_s * 1000)
            assert refused.value.code is Code.QUOTA
            assert refused.value.retry_after_ms in (exact_ms, exact_ms + 1), "it takes so long to pay the debt"
        else:
            usage = desk.count(WRITE, ANONYMOUS)
            usage.charge(count)
            usage.requests -= 1
            level -= count
        found = desk.usage_of(ANONYMOUS)
        assert found is not None
        assert found.bucket is not None
        assert (found.requests, Fraction(found.bucket.level)) == (0, level)


Answer = tuple[int, Any, Any]
Send = Callable[[Api, str, int, int], Awaitable[Answer]]
"""Sends ``count`` operations, the first numbered ``first``, in the session."""


def _writes(first: int, count: int, **numbered: bool) -> list[dict[str, Any]]:
    made = [put(first + at, f"k{at}", at) for at in range(count)]
    return made if numbered else [{name: one[name] for name in one if name != "sequence"} for one in made]


def _operations(api: Api, client_id: str, first: int, count: int) -> Awaitable[Answer]:
    body = json.dumps(operations(client_id, *_writes(first, count, numbered=True))).encode()
    return api.call("POST", "/v1/operations", data=body)


def _one_transaction(api: Api, client_id: str, first: int, count: int) -> Awaitable[Answer]:
    made = {"sequence": first, "op": "transaction", "writes": _writes(first, count)}
    return api.call("POST", "/v1/operations", data=json.dumps(operations(client_id, made)).encode())


def _keyed_transaction(api: Api, _: str, first: int, count: int) -> Awaitable[Answer]:
    body, key = {"writes": _writes(first, count)}, {"Idempotency-Key": f'"t{first}"'}
    return api.call("POST", "/v1/transactions", body, headers=key)


def _keyed_put(api: Api, _: str, first: int, count: int) -> Awaitable[Answer]:
    assert count == 1
    return api.call("PUT", "/v1/tables/rows/rows/a", 1, headers={"Idempotency-Key": f'"p{first}"'})


def _get(api: Api, _: str, first: int, count: int) -> Awaitable[Answer]:
    assert count == 1
    return api.call("GET", f"/v1/tables/rows/rows/none{first}")


def _events(api: Api, _: str, first: int, count: int) -> Awaitable[Answer]:
    many = [
        {"specversion": "1.0", "id": f"e{first + at}", "source": "s", "type": "t", "data": at} for at in range(count)
    ]
    kind = {"Content-Type": "application/cloudevents-batch+json"}
    return api.call("POST", "/v1/tables/events/events", data=json.dumps(many).encode(), headers=kind)


def _range(kind: str) -> Send:
    encode = {ARROW: arrow_body, MSGPACK: msgpack_range, JSON_LINES: json_lines}[kind]

    def send(api: Api, client_id: str, first: int, count: int) -> Awaitable[Answer]:
        body = encode([f"k{at}" for at in range(count)], ["1"] * count)
        return api.call("POST", "/v1/tables/events/ranges", data=body, headers=range_headers(client_id, first, kind))

    return send


SENDS: dict[str, tuple[Send, tuple[int, ...]]] = {
    "operations": (_operations, (1, 7, 350)),
    "one transaction": (_one_transaction, (1, 7)),
    "transaction under a key": (_keyed_transaction, (1, 7)),
    "put under a key": (_keyed_put, (1,)),
    "read": (_get, (1,)),
    "events": (_events, (1, 7)),
    "Arrow range": (_range(ARROW), (1, 7, 350)),
    "msgpack range": (_range(MSGPACK), (7, 350)),
    "range in lines": (_range(JSON_LINES), (7, 350)),
}


async def test_every_way_to_send_operations_costs_as_many_as_were_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that are more than the bucket holds: what is left over is owed."""
    now_s = [0.0]
    assert "clock" in inspect.signature(Desk.__init__).parameters
    monkeypatch.setitem(Desk.__init__.__kwdefaults__, "clock", lambda: now_s[0])  # type: ignore[index]
    async with serving(one_node(tmp_path, tenant_operations_per_s=100)) as (api, _):
        await declare(api)
        await declare(api, "events", "stream")
        client_id, first = await api.session(window=4096), 1
        for name, (send, counts) in SENDS.items():
            for count in counts:
                now_s[0] += 1_000.0  # the bucket is full again
                status, headers, body = await send(api, client_id, first, count)
                assert status in (200, 404), (name, body)
                owed = max(0, count - 100)
                assert headers["RateLimit"].startswith(f'"operations";r={max(0, 100 - count)};t='), (name, count)
                refused = await _get(api, client_id, 0, 1)
                assert (refused[0] == 429) is (count > 100), (name, count)
                if owed:
                    assert refused[2]["retry_after_ms"] - 10 * (owed + 1) in (0, 1), (name, count)
                first += count
