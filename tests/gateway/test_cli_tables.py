"""``oncegate table``: what it prints, drops and exits with."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import Result
from typer.testing import CliRunner

from oncegate import sync
from oncegate.gateway.cli.main import app
from oncegate.gateway.testing.nodes import FakeCluster
from tests.gateway.test_cli_sessions import one_a_page


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as started:
        yield started


def oncegate(cluster: FakeCluster, *words: str) -> Result:
    return CliRunner().invoke(app, ["table", *words, "--endpoint", cluster.endpoints[0]])


def listed(cluster: FakeCluster) -> dict[str, dict[str, object]]:
    return {one["name"]: one for one in json.loads(oncegate(cluster, "list", "-o", "json").stdout)}


def test_tables_are_listed_over_all_pages(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("seats", "receipts", "balances"):
        cluster.declare(name)
    cluster.declare("events", "stream")
    with sync.Client(cluster.endpoints) as client, client.session() as session:
        session.put("seats", "14C", "ann")
    asked = one_a_page(monkeypatch)
    found = listed(cluster)
    assert list(found) == ["balances", "events", "receipts", "seats"]
    assert len(asked) == len(found)
    assert [found[name]["kind"] for name in found] == ["resident", "stream", "resident", "resident"]
    assert (found["seats"]["rows"], found["receipts"]["rows"]) == (1, 0)
    shown = oncegate(cluster, "list")
    assert shown.exit_code == 0
    (line,) = [line.split() for line in shown.stdout.splitlines() if line.split()[:1] == ["seats"]]
    assert line[1:4] == ["resident", str(found["seats"]["incarnation"]), "1"]


def test_a_table_is_declared_as_asked_for_again_without_effect_and_otherwise_not(cluster: FakeCluster) -> None:
    clicks = ("declare", "clicks", "--stream", "--consumer", "totals", "--retention", "24h")
    for words in (("declare", "seats", "--quota-bytes", "4096"), clicks):
        told = {(done := oncegate(cluster, *words)).stderr for _ in range(2)}
        assert (done.exit_code, done.stdout, len(told)) == (0, "", 1)
    found = listed(cluster)
    assert {name: one["kind"] for name, one in found.items()} == {"seats": "resident", "clicks": "stream"}
    assert found["seats"]["quota_bytes"] == 4096
    with sync.Client(cluster.endpoints) as client:
        flow = client.flow("clicks")
    assert flow.retention_ms == 86_400_000
    assert list(flow.consumers) == ["totals"]
    otherwise = oncegate(cluster, "declare", "seats", "--stream")
    assert (otherwise.exit_code, otherwise.stdout) == (1, "")
    assert "CONFLICT" in otherwise.stderr
    for words in (("declare", "rows", "--retention", "24h"), (*clicks[:-1], "a day")):
        misused = oncegate(cluster, *words)
        assert (misused.exit_code, misused.stdout, misused.stderr.count("\n")) == (2, "", 1)
    assert listed(cluster) == found


def test_row_command_on_a_table_that_is_not_there_says_how_to_declare_it(cluster: FakeCluster) -> None:
    for line in ("put rows k 1", "get rows k", "increment rows k", "append rows k 1", "delete rows k", "scan rows"):
        refused = CliRunner().invoke(app, [*line.split(), "--endpoint", cluster.endpoints[0]])
        assert (refused.exit_code, refused.stderr.count("\n")) == (4, 1)
        assert refused.stderr.endswith("; `oncegate table declare rows` declares it\n")


def test_a_table_is_dropped_by_its_incarnation_and_one_with_rows_by_force(cluster: FakeCluster) -> None:
    cluster.declare("seats")
    with sync.Client(cluster.endpoints) as client, client.session() as session:
        session.put("seats", "14C", "ann")
    number = str(listed(cluster)["seats"]["incarnation"])
    drop = ("drop", "seats", "--incarnation")
    assert oncegate(cluster, "drop", "seats").exit_code == 2, "nothing is dropped by its name alone"
    for words, why in (
        ((*drop, str(int(number) + 1), "--force"), "CONFLICT"),
        ((*drop, number), "CONFLICT"),
        (("drop", "seatz", "--incarnation", number), "NOT_FOUND"),
    ):
        refused = oncegate(cluster, *words)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert why in refused.stderr
        assert refused.stderr.count("\n") == 1
    assert "seats" in listed(cluster)
    dropped = oncegate(cluster, *drop, number, "--force")
    assert (dropped.exit_code, dropped.stdout) == (0, "")
    assert f"seats, incarnation {number}, is dropped" in dropped.stderr
    assert listed(cluster) == {}


def test_nobody_who_answers_is_exit_code_3(cluster: FakeCluster) -> None:
    for words in (("list",), ("drop", "seats", "--incarnation", "1")):
        result = CliRunner().invoke(app, ["table", *words, "--endpoint", "http://127.0.0.1:9"])
        assert result.exit_code == 3
        assert "no node answers" in result.stderr
