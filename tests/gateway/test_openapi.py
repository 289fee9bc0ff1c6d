"""What a node says of itself: health, state and metrics; ``/openapi.json``, which is complete and true."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import requests
import schemathesis
from hypothesis import given, seed, settings
from schemathesis.specs.openapi import checks

from oncegate.gateway.http import routes
from oncegate.gateway.http.metrics import METRICS, Sources
from oncegate.gateway.http.openapi import document
from oncegate.gateway.http.routing import Route
from oncegate.gateway.http.server import ROUTES
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.gateway.observability.exposition import Metric
from oncegate.rifl.errors import REGISTRY, Code
from tests.conftest import Api
from tests.gateway.http_contract import ARROW, JSON_LINES, MSGPACK, operations, put, send_range
from tests.gateway.test_decoders import generated


def no_bug(context: Any, response: Any, case: Any) -> None:
    """A bug is 500; that a node has not got that far (503, 504) is an answer."""
    assert response.status_code != REGISTRY[Code.INTERNAL].status, response.content


CLIENT = "0000000000000001"
CHECKS = [
    no_bug,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
UNTRIED = {
    ("GET", "/v1/flows/{flow}/watch"): "does not end",
    ("GET", "/v1/tables/{table}/watch"): "does not end",
    ("GET", "/v1/cluster/figures/watch"): "does not end",
    ("GET", "/openapi.json"): "schemathesis leaves out where it read",
    ("POST", "/v1/cluster/members"): "changes the cluster under test",
    ("DELETE", "/v1/cluster/members/{id}"): "changes the cluster under test",
}
KNOWN = {
    "table": "rows",
    "flow": "events",
    "client_id": CLIENT,
    "key": "a",
    "name": "c",
    "n": 1,
    "sequence": 1,
    "sha256": "0" * 64,
}


@schemathesis.serializer(MSGPACK, ARROW, JSON_LINES)
def _as_bytes(_: Any, value: Any) -> Any:
    try:
        return msgspec.msgpack.encode(value)
    except (TypeError, OverflowError):
        return repr(value).encode(errors="replace")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory: Path = tmp_path_factory.mktemp("described")
    with LocalCluster(directory, 1) as started:
        started.start()
        started.wait_ready()
        base = started.endpoints[0]
        for table, kind in (("rows", "resident"), ("events", "stream")):
            assert requests.put(f"{base}/v1/tables/{table}", json={"kind": kind}, timeout=10).ok
        assert requests.post(f"{base}/v1/sessions", json={"nonce": "n", "lease_ms": 600_000}, timeout=10).ok
        body = operations(CLIENT, put(1, "a", 1))
        assert requests.post(f"{base}/v1/operations", json=body, timeout=10).ok
        yield started


def shown(route: Route) -> str:
    """Return a route's path as the description has it: without the pattern of a key."""
    return route.path.replace(":(?s:.+)", "")


def test_every_route_of_every_module_is_served_and_described() -> None:
    """A route that is no :class:`Route`, has no description or is missing from the server fails here."""
    described = json.loads(document(ROUTES, "0"))["paths"]
    for name in sorted(path.stem for path in Path(routes.__file__).parent.glob("*.py") if path.stem != "__init__"):
        module = __import__(f"oncegate.gateway.http.routes.{name}", fromlist=["ROUTES"])
        for route in module.ROUTES:
            assert isinstance(route, Route), f"{name}: {route} is not described"
            assert route in ROUTES, f"{route.path} is not served"
    for route in ROUTES:
        operation = described[shown(route)][route.method.lower()]
        assert operation["summary"], f"{route.path}: its handler has no docstring"
        assert set(map(str, route.answers)) <= set(operation["responses"])
        for code in route.errors:
            assert code.value in operation["responses"][str(REGISTRY[code].status)]["description"]
    assert len({route.handler for route in ROUTES}) == len(ROUTES)


def test_path_with_an_unknown_part_has_no_description() -> None:
    with pytest.raises(KeyError, match="mystery"):
        document([Route("GET", "/v1/{mystery}", ROUTES[0].handler, "of", None, {200: None})], "0")


async def test_what_is_served_is_what_the_router_knows(api: Api) -> None:
    status, headers, described = await api.call("GET", "/openapi.json")
    assert (status, headers["Content-Type"], described["openapi"]) == (200, "application/json", "3.1.0")
    assert set(described["components"]["schemas"]["Problem"]["properties"]["code"]["enum"]) == {c.value for c in Code}
    for path, item in described["paths"].items():
        for part, value in KNOWN.items():
            path = path.replace(f"{{{part}}}", str(value))
        unserved = "POST" if "patch" in item else "PATCH"
        status, headers, _ = await api.call(unserved, path.replace("{id}", "n9"))
        assert status == 405
        allowed = set(headers["Allow"].lower().split(","))
        # A key may end like the name of what is done to a row, so that such a path is that of a row too.
        row = described["paths"]["/v1/tables/{table}/rows/{key}"] if path.endswith(("/increment", "/append")) else {}
        assert allowed == {*item, *row}, path


def _fuzzed(schema: Any) -> Iterator[tuple[str, Any]]:
    for found in schema.get_all_operations():
        operation = found.ok()
        if (operation.method.upper(), operation.path) not in UNTRIED and operation.method != "head":
            yield f"{operation.method} {operation.path}", operation


def test_nothing_is_answered_that_is_not_described(node: LocalCluster) -> None:
    base = node.endpoints[0]
    schema = schemathesis.openapi.from_url(f"{base}/openapi.json")
    tried = []
    with requests.Session() as session:
        for name, operation in _fuzzed(schema):
            turn = 0

            @seed(1)
            @settings(generated, max_examples=14, derandomize=False)
            @given(case=operation.as_strategy())
            def answered(case: Any) -> None:
                nonlocal turn
                turn += 1
                if turn % 2:  # half of the time what exists, so that more than the first look-up is reached
                    case.path_parameters = {part: KNOWN.get(part, old) for part, old in case.path_parameters.items()}
                if str((case.query or {}).get("min_commit", "x")).isdigit():
                    case.query["min_commit"] = 1  # a larger one is waited for, which takes its time
                if str((case.query or {}).get("wait_ms", "x")).isdigit():
                    case.query["wait_ms"] = 1
                case.call_and_validate(session=session, checks=CHECKS, timeout=20)

            answered()
            tried.append(name)
    assert sorted(tried) == sorted(
        f"{route.method.lower()} {shown(route)}" for route in ROUTES if (route.method, shown(route)) not in UNTRIED
    )
    assert requests.get(f"{base}/readyz", timeout=10).ok


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
    declared = [one.full_name for one in METRICS if not one.name.startswith(("stream_store", "access_log"))]
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
