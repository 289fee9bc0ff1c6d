"""Alerts and dashboard name only what a running node exports, in PromQL, and each alert has its section."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from oncegate.gateway.http.metrics import METRICS
from tests.gateway.http_contract import declare, one_node, serving

ROOT = Path(__file__).parent.parent.parent
ALERTS = yaml.safe_load((ROOT / "deploy" / "prometheus" / "oncegate-alerts.yaml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "oncegate.json").read_text())
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
OF_PROMETHEUS = {"up"}
"""What Prometheus itself adds to a scrape."""
OF_A_SCRAPE = {"job", "instance"}
ENDS = re.compile("_(bucket|sum|count)$")


def queries() -> Iterator[tuple[str, str]]:
    """Yield where each query stands, and the query, with the dashboard's variables filled in."""
    for alert in ALERTS:
        yield alert["alert"], alert["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            filled = target["expr"].replace("$__rate_interval", "5m").replace("$instance", ".*")
            yield panel["title"], filled.replace("$job", "oncegate")


def selectors(node: Any) -> Iterator[promql_parser.VectorSelector]:
    """Yield what a query reads."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "param", "vector_selector"):
        below = getattr(node, name, None)
        if below is not None:
            yield from selectors(below)
    for argument in getattr(node, "args", None) or ():
        yield from selectors(argument)


@pytest.fixture
async def exported(tmp_path: Path) -> set[str]:
    """The metrics of a node that has all parts, histograms by their family."""
    settings = one_node(tmp_path, stream_store=f"sqlite:///{tmp_path}/store")
    async with serving(settings) as (api, _):
        await declare(api, "events", "stream")
        text = (await api.call("GET", "/metrics"))[2].decode()
    return {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}


async def test_every_metric_of_alerts_and_dashboard_is_exported_with_these_labels(exported: set[str]) -> None:
    labels = {one.full_name: {*one.labels, *OF_A_SCRAPE} for one in METRICS} | {"up": OF_A_SCRAPE}
    read = 0
    for where, query in queries():
        for selector in selectors(promql_parser.parse(query)):
            family = ENDS.sub("", selector.name) if selector.name not in exported else selector.name
            assert family in exported | OF_PROMETHEUS, f"{where}: {selector.name}"
            asked = {matcher.name for matcher in selector.matchers.matchers}
            assert asked <= labels[family], f"{where}: {asked}"
            read += 1
    assert read > 50


def test_every_alert_has_a_section_of_the_runbook_and_every_section_an_alert() -> None:
    sections = {
        re.sub("[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in re.findall("(?m)^## (.+)$", RUNBOOK)
    }
    linked = {alert["annotations"]["runbook_url"].removeprefix("docs/runbook.md#") for alert in ALERTS}
    assert linked == sections


def test_alerts_have_what_whoever_is_woken_needs() -> None:
    assert len({alert["alert"] for alert in ALERTS}) == len(ALERTS)
    for alert in ALERTS:
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert alert["annotations"]["summary"]


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.parametrize("broken", ["rate(oncegate_commit)", "sum by (", "oncegate_commit{job=}"])
def test_the_parser_refuses_what_prometheus_refuses(broken: str) -> None:
    with pytest.raises(ValueError):
        promql_parser.parse(broken)
