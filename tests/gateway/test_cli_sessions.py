"""``oncegate session``: what it prints and exits with."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import Result
from typer.testing import CliRunner

from oncegate.gateway import wire
from oncegate.gateway.cli import tables
from oncegate.gateway.cli.main import app
from oncegate.gateway.http import request_bodies
from oncegate.gateway.testing.nodes import FakeCluster


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as started:
        started.declare("rows")
        yield started


@pytest.fixture
def owner(cluster: FakeCluster) -> str:
    """A session with two recorded results, and a gap of three numbers between them."""
    client_id: str = cluster.gateway.apply(request_bodies.open_session(wire.OpenSession("n"))).body.client_id
    for number in (1, 5):
        sent = wire.OperationsRequest(client_id, 1, 1, [wire.Operation(number, "put", "rows", f"k{number}", 1)])
        cluster.gateway.apply(request_bodies.operations(sent))
    return client_id


def oncegate(cluster: FakeCluster, *words: str) -> Result:
    return CliRunner().invoke(app, ["session", *words, "--endpoint", cluster.endpoints[0]])


def one_a_page(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make the command ask for pages of one; what it asks for is in the list."""
    asked: list[str] = []
    ask = tables.ask

    def asks(method: str, endpoint: str, path: str) -> dict[str, object]:
        asked.append(path)
        return ask(method, endpoint, path.replace("limit=1000", "limit=1"))

    monkeypatch.setattr(tables, "ask", asks)
    return asked


def test_live_sessions_are_listed_over_all_pages(
    cluster: FakeCluster, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = cluster.gateway.apply(request_bodies.open_session(wire.OpenSession("m"))).body.client_id
    asked = one_a_page(monkeypatch)
    found = {one["client_id"]: one for one in json.loads(oncegate(cluster, "list", "-o", "json").stdout)}
    assert list(found) == [owner, other]
    assert len(asked) >= 2
    assert (found[owner]["records"], found[owner]["highest_sequence"], found[other]["records"]) == (2, 5, 0)
    (line,) = [line.split() for line in oncegate(cluster, "list").stdout.splitlines() if line.split()[:1] == [owner]]
    assert line == [owner, "1", str(found[owner]["lease_ms_left"]), "1", "5", "2"]
    cluster.advance(61)
    assert json.loads(oncegate(cluster, "list", "-o", "json").stdout) == [], "those whose leases are over are gone"


def test_open_requests_are_results_and_gaps(cluster: FakeCluster, owner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = one_a_page(monkeypatch)
    found = json.loads(oncegate(cluster, "requests", owner, "-o", "json").stdout)
    assert len(asked) >= 3
    told = [(one["first"], one["last"], one["state"], "commit" in one) for one in found]
    assert told == [(1, 1, "executed", True), (2, 4, "never_seen", False), (5, 5, "executed", True)]
    lines = [line.split() for line in oncegate(cluster, "requests", owner).stdout.splitlines()]
    assert ["2", "4", "never_seen"] in lines
    assert ["5", "5", "executed", str(found[2]["commit"])] in lines


def test_a_doubt_is_ended_for_good_and_one_that_nobody_remembers_exits_6(cluster: FakeCluster, owner: str) -> None:
    def resolved(sequence: int) -> dict[str, object]:
        found: dict[str, object] = json.loads(oncegate(cluster, "resolve", f"{owner}/{sequence}", "-o", "json").stdout)
        return found

    assert (resolved(1)["state"], resolved(3)["state"], resolved(3)["state"]) == ("applied", "sealed", "sealed")
    assert oncegate(cluster, "resolve", "nonsense").exit_code == 2
    cluster.advance(3600)
    assert oncegate(cluster, "resolve", f"{owner}/1").exit_code == 6


@pytest.mark.parametrize(("named", "code"), [("00000000000fffff", "NOT_FOUND"), ("nonsense", "BAD_REQUEST")])
def test_requests_of_no_session_exit_1_and_say_why(cluster: FakeCluster, named: str, code: str) -> None:
    refused = oncegate(cluster, "requests", named)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert code in refused.stderr
    assert refused.stderr.count("\n") == 1
