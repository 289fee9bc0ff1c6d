"""What operators look at, and what every answer carries."""

from __future__ import annotations

from typing import cast

from oncegate.gateway.http.metrics import METRICS, Metric, Sources
from tests.conftest import Api
from tests.gateway.http_contract import put, send_range


async def test_health_is_answered_in_plain_text(api: Api) -> None:
    for path in ("/livez", "/readyz"):
        status, headers, body = await api.call("GET", path)
        assert (status, body) == (200, b"ok\n")
        assert headers["Content-Type"].startswith("text/plain")


async def test_cluster_of_one_describes_itself(api: Api, client_id: str) -> None:
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


async def test_metrics_follow_the_state(api: Api, client_id: str) -> None:
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
    declared = [one.full_name for one in METRICS if not one.name.startswith("stream_store")]
    assert [line.split()[2] for line in body.decode().splitlines() if line.startswith("# TYPE ")] == declared


def test_metric_is_written_as_prometheus_reads_it() -> None:
    of, values = cast(Sources, None), {('a"b', "c\\d\ne"): 1, ("x", "y"): 0.5}
    labelled = Metric("lag", "gauge", "how far", lambda _: values, ("flow", "consumer"))
    assert labelled.lines(of) == [
        "# HELP oncegate_lag how far",
        "# TYPE oncegate_lag gauge",
        r'oncegate_lag{flow="a\"b",consumer="c\\d\ne"} 1.0',
        'oncegate_lag{flow="x",consumer="y"} 0.5',
    ]
    assert Metric("n", "counter", "how many", lambda _: 2).lines(of)[1:] == [
        "# TYPE oncegate_n_total counter",
        "oncegate_n_total 2.0",
    ]
    assert Metric("none", "gauge", "nothing", lambda _: None).lines(of) == []
    assert len({one.full_name for one in METRICS}) == len(METRICS)
