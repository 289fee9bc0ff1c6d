"""What operators look at, and what every answer carries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.gateway.http_contract import assert_problem, declare, put, send_range

if TYPE_CHECKING:
    from tests.conftest import Api


async def test_health_is_answered_in_plain_text(api: Api) -> None:
    for path in ("/livez", "/readyz"):
        status, headers, body = await api.call("GET", path)
        assert (status, body) == (200, b"ok\n")
        assert headers["Content-Type"].startswith("text/plain")


async def test_cluster_of_one_describes_itself(api: Api) -> None:
    await declare(api)
    client_id = await api.session()
    await api.operate(client_id, put(1, "a", 1))
    status, headers, state = await api.call("GET", "/v1/cluster")
    assert status == 200
    assert (state["node"], state["role"], state["leader"]) == ("n1", "leader", "n1")
    assert state["term"] >= 1
    assert state["log_index"] == state["commit_index"] == state["applied_index"]
    assert (state["lag"], state["commit"]) == (0, 1)
    assert state["version"]
    (member,) = state["members"]
    assert member["id"] == "n1"
    assert member["http"] == headers["Oncegate-Leader"]


async def test_metrics_follow_the_state(api: Api) -> None:
    await declare(api)
    await declare(api, "events", "stream")
    client_id = await api.session()
    await api.operate(client_id, put(1, "a", 1))
    await api.operate(client_id, put(1, "a", 1))
    await send_range(api, client_id, 2, ["a", "b"])
    status, headers, body = await api.call("GET", "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain")
    values = dict(line.rsplit(" ", 1) for line in body.decode().splitlines() if not line.startswith("#"))
    assert float(values["oncegate_commit"]) == 3
    assert float(values["oncegate_replayed_total"]) == 1
    assert float(values["oncegate_sessions"]) == 1
    assert float(values["oncegate_leads"]) == 1
    assert float(values["oncegate_inflight_commands"]) == float(values["oncegate_inflight_bytes"]) == 0
    assert float(values['oncegate_table_bytes{table="rows"}']) > 0
    assert 'oncegate_flow_last_batch{flow="events"}' in values


async def test_unknown_route_and_method_are_problems(api: Api) -> None:
    for path in ("/", "/v1", "/v2/operations", "/v1/operations/", "/v1/tables/rows/rows/", "/v1/flows/f/batches"):
        assert_problem(await api.call("GET", path), "NOT_FOUND")
    for method, path in (("GET", "/v1/operations"), ("DELETE", "/v1/tables/rows"), ("PATCH", "/v1/cluster")):
        assert_problem(await api.call(method, path), "METHOD_NOT_ALLOWED")
