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
RULES = yaml.safe_load((ROOT / "deploy" / "prometheus" / "oncegate-alerts.yaml").read_text())
ALERTS = RULES["groups"][0]["rules"]
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "oncegate.json").read_text())
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
OF_PROMETHEUS = {"up"}
"""What Prometheus itself adds to a scrape."""
OF_A_SCRAPE = {"job", "instance"}
ENDS = re.compile("_(bucket|sum|count)$")
DURATION = re.compile("([0-9]+y)?([0-9]+w)?([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?")
"""As Prometheus reads one, but for an empty text and a bare 0."""


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


def kept(node: Any, labels: dict[str, set[str]]) -> set[str]:
    """Return the labels that each result of a query has, of metrics that have ``labels``."""
    match node:
        case promql_parser.VectorSelector():
            return labels[node.name if node.name in labels else ENDS.sub("", node.name)]
        case promql_parser.MatrixSelector():
            return kept(node.vector_selector, labels)
        case promql_parser.AggregateExpr():
            grouped = set() if node.modifier is None else set(node.modifier.labels)
            left_out = node.modifier is not None and "Without" in str(node.modifier.type)
            return kept(node.expr, labels) - grouped if left_out else kept(node.expr, labels) & grouped
        case promql_parser.Call():
            vectors = [one for one in node.args if not isinstance(one, promql_parser.NumberLiteral)]
            return kept(vectors[0], labels) - ({"le"} if node.func.name == "histogram_quantile" else set())
        case promql_parser.BinaryExpr():
            sides = [
                kept(one, labels) for one in (node.lhs, node.rhs) if not isinstance(one, promql_parser.NumberLiteral)
            ]
            return sides[0] if "and" in str(node.op) else set.intersection(*sides)
        case promql_parser.ParenExpr() | promql_parser.UnaryExpr():
            return kept(node.expr, labels)
    raise TypeError(f"{type(node).__name__} is not known here")


def untold(alert: dict[str, Any]) -> set[str]:
    """Return the labels that an alert's texts name and its query does not keep: they would be shown as nothing."""
    labels = {one.full_name: {*one.labels, "le", *OF_A_SCRAPE} for one in METRICS} | {"up": OF_A_SCRAPE}
    texts = " ".join(alert["annotations"].values())
    return set(re.findall(r"\$labels\.(\w+)", texts)) - kept(promql_parser.parse(alert["expr"]), labels)


def malformed(rules: dict[str, Any]) -> list[str]:
    """Return what Prometheus would refuse of a file of rules, beyond its queries (``promtool check rules``)."""
    found = [] if set(rules) == {"groups"} else [f"fields {sorted(rules)}"]
    names = [group["name"] for group in rules["groups"]]
    found += [f"two groups {name}" for name in names if names.count(name) > 1]
    for group in rules["groups"]:
        found += [f"{group['name']}: {name}" for name in set(group) - {"name", "interval", "limit", "labels", "rules"}]
        for rule in group["rules"]:
            fields = {"alert", "expr", "for", "keep_firing_for", "labels", "annotations"}
            found += [f"{rule['alert']}: {name}" for name in set(rule) - fields]
            waits = [str(rule[name]) for name in ("for", "keep_firing_for") if name in rule]
            found += [f"{rule['alert']}: {wait}" for wait in waits if not DURATION.fullmatch(wait)]
            given = {**rule.get("labels", {}), **rule.get("annotations", {})}
            found += [f"{rule['alert']}: {name}" for name in given if not re.fullmatch("[a-zA-Z_]\\w*", name)]
            found += [
                f"{rule['alert']}: {name} is no text" for name, text in given.items() if not isinstance(text, str)
            ]
            found += [f"{rule['alert']}: {text}" for text in given.values() if text.count("{{") != text.count("}}")]
    return found


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


def test_rules_have_the_form_that_prometheus_reads() -> None:
    assert malformed(RULES) == []


@pytest.mark.parametrize(
    "changed", [{"for": "5 minutes"}, {"summary": "beside, not below, its annotations"}, {"labels": {"a-b": "c"}}]
)
def test_a_rule_of_another_form_is_found(changed: dict[str, Any]) -> None:
    assert len(malformed({"groups": [{"name": "oncegate", "rules": [ALERTS[0] | changed]}]})) == 1


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_texts_of_an_alert_name_only_labels_that_its_query_keeps(alert: dict[str, Any]) -> None:
    assert untold(alert) == set()


def test_a_label_that_a_sum_has_lost_is_found() -> None:
    summed = {"expr": "sum by (job) (rate(oncegate_http_requests_total[5m])) > 1"}
    assert untold({**summed, "annotations": {"summary": "{{ $labels.instance }} of {{ $labels.job }}"}}) == {"instance"}


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
