"""Rows that end over HTTP: what a request may say, what a read tells, and a node that ends them by itself."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Api
from tests.gateway.http_contract import assert_problem, declare


def write(sequence: int, key: str, **more: Any) -> dict[str, Any]:
    return {"sequence": sequence, "op": "put", "table": "rows", "key": key, "value": 1, **more}


async def gone(api: Api, key: str) -> None:
    """Ask until the row is not there any more."""
    while (await api.call("GET", f"/v1/tables/rows/rows/{key}"))[0] != 404:
        pass


async def test_node_ends_rows_by_time_and_with_their_session_and_explain_says_why(api: Api) -> None:
    await declare(api)
    client_id = await api.session()
    writes = (
        write(1, "timed", ttl_ms=1),
        write(2, "mine", bound=True),
        write(3, "late", ttl_ms=10**9),
        write(4, "stays"),
    )
    assert [one["status"] for one in await api.operate(client_id, *writes)] == ["applied"] * 4
    rows = {key: (await api.call("GET", f"/v1/tables/rows/rows/{key}"))[2] for key in ("late", "mine", "stays")}
    assert rows["late"].pop("ends_ms") >= 10**9
    assert rows["mine"].pop("owner") == client_id
    assert not [row for row in rows.values() if row.keys() & {"ends_ms", "owner"}]
    _, _, page = await api.call("GET", "/v1/tables/rows/rows")
    assert [row.get("owner") for row in page["rows"] if row["key"] in ("late", "mine")] == [None, client_id]
    await gone(api, "timed")
    assert (await api.call("GET", "/v1/tables/rows/rows/mine"))[0] == 200
    assert (await api.call("DELETE", f"/v1/sessions/{client_id}?epoch=1"))[0] == 204
    assert (await api.call("GET", "/v1/tables/rows/rows/mine"))[0] == 404
    assert (await api.call("GET", "/v1/tables/rows/rows/stays"))[0] == 200
    for key, cause in (("timed", "ttl end"), ("mine", "session end")):
        _, _, told = await api.call("GET", f"/v1/explain?table=rows&key={key}")
        newest = [event for event in told["events"] if event["what"] == "log"][-1]
        assert newest["detail"] == f"{cause} rows/{key}: executed"
        assert newest["commit"] == {"timed": 5, "mine": 6}[key]


async def test_header_lets_a_row_end_for_callers_without_the_sdk(api: Api) -> None:
    await declare(api)
    path = "/v1/tables/rows/rows/k"

    async def sent(method: str, key: str, ttl_ms: str, where: str = path, body: Any = 1) -> Any:
        headers = {"Idempotency-Key": f'"{key}"', "Oncegate-Ttl-Ms": ttl_ms}
        return await api.call(method, where, body, headers=headers)

    assert (await sent("PUT", "a", "100"))[0] == 200
    assert_problem(await sent("PUT", "a", "101"), "PAYLOAD_MISMATCH")
    await gone(api, "k")
    status, headers, _ = await sent("PUT", "a", "100")
    assert (status, headers["Idempotent-Replayed"]) == (200, "true")
    assert (await api.call("GET", path))[0] == 404, "a replay does not bring it back"
    assert (await sent("POST", "i", "100", f"{path}/increment", {}))[0] == 200
    for ttl_ms in ("0", "-1", "x", str(2**40), "1.5"):
        assert_problem(await sent("PUT", "b", ttl_ms), "BAD_REQUEST")
    assert_problem(await sent("DELETE", "c", "5", body=None), "BAD_REQUEST")


@pytest.mark.parametrize(
    "more",
    [
        {"ttl_ms": 0},
        {"ttl_ms": 366 * 24 * 3_600_000 + 1},
        {"ttl_ms": "5"},
        {"bound": 1},
        {"op": "delete", "value": None, "ttl_ms": 5},
        {"op": "get", "bound": True},
    ],
)
async def test_end_that_cannot_be_refuses_the_request(api: Api, more: dict[str, Any]) -> None:
    await declare(api)
    client_id = await api.session()
    sent = {name: value for name, value in write(1, "k", **more).items() if value is not None}
    body = {"client_id": client_id, "epoch": 1, "first_incomplete": 1, "operations": [sent]}
    assert_problem(await api.call("POST", "/v1/operations", body), "BAD_REQUEST")
