"""``oncegate store adopt`` for a restored cluster: who reads again, in which order, and up to where is inherited."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from oncegate.gateway.cli import dead_letters, store
from oncegate.gateway.cli.output import Output
from oncegate.gateway.local.blocking_http import RequestRefused, Unreachable
from oncegate.stores.claimed import claimed_store
from oncegate.stores.stream_rows import STREAM_ROWS

OLD, NEW, OTHER = "a" * 32, "b" * 32, "c" * 32
DELIVERIES = [("f", "job"), ("f", "second"), ("g", "job")]


class Cluster:
    """The node that is asked; notes which consumers were moved back, and who held the store then."""

    def __init__(self, url: str, origin: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url, self.moved = url, list[tuple[str, str]]()
        self.gone: set[str] = set()
        self.silent = False
        self.about = {"identity": NEW, "cluster": "second", "origin": origin, "origin_commit": 41, "commit": 900}
        monkeypatch.setattr(store, "ask", lambda *_: self.about)
        monkeypatch.setattr(store, "send_json", self.send)

    def send(self, method: str, path: str, body: dict[str, Any], _timeout_s: float) -> dict[str, Any]:
        assert (method, body["start"]) == ("POST", "beginning")
        if self.silent:
            raise Unreachable("nobody")
        assert held(self.url)["cluster"] == OLD, "no job of the new cluster writes there yet"
        _, flow, _, consumer, _ = path.removeprefix("http://n/v1/").split("/")
        if flow in self.gone:
            raise RequestRefused("no such flow")
        self.moved.append((flow, consumer))
        return {"cursor": 6, "fence": 9}


def held(url: str) -> dict[str, Any]:
    with claimed_store(url) as opened:
        claim = opened.claim()
    return {"cluster": claim.cluster, "epoch": claim.epoch, "inherited": claim.inherited}


@pytest.fixture
def url(tmp_path: Path) -> str:
    place = f"sqlite://{tmp_path}/store"
    with claimed_store(place, OLD) as opened:
        opened.create([STREAM_ROWS])
        for flow, consumer in DELIVERIES:
            opened.begin(flow, consumer)
    return place


@pytest.mark.parametrize("origin", [OLD, OTHER, ""])
def test_only_a_cluster_made_of_the_holder_s_backup_inherits_and_reads_again(
    url: str, origin: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(url, origin, monkeypatch)
    for _ in range(2):  # a second time changes nothing: the store is this cluster's
        store.adopt(url, "http://n")
        assert cluster.moved == (DELIVERIES if origin == OLD else [])
        inherited = ((1, 41),) if origin == OLD else ()
        assert held(url) == {"cluster": NEW, "epoch": 2, "inherited": inherited}
    told = capsys.readouterr()
    assert told.err.count("reads batch 7 next") == len(cluster.moved)
    store.status(url, output=Output.JSON)
    assert json.loads(capsys.readouterr().out)["inherited"] == [list(one) for one in inherited]


def test_a_flow_that_is_gone_is_named_and_one_that_nobody_moves_leaves_the_store_as_it_was(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(url, OLD, monkeypatch)
    cluster.silent = True
    with pytest.raises(typer.Exit) as ended:
        store.adopt(url, "http://n")
    assert ended.value.exit_code == 3
    assert held(url) == {"cluster": OLD, "epoch": 1, "inherited": ()}
    cluster.silent, cluster.gone = False, {"f"}
    store.adopt(url, "http://n")
    assert cluster.moved == [("g", "job")]
    assert capsys.readouterr().err.count("stays where it is") == 2
    assert held(url)["cluster"] == NEW


def test_letters_are_listed_in_order_so_many_as_asked_for_and_all_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    letters = [
        {"job": job, "flow": flow, "batch": 1, "commit": commit, "item_key": "k", "error": "why", "raw": b"\xff"}
        for commit, job, flow in [(9, "b", "f"), (3, "a", "g"), (7, "a", "f"), (2, "b", "f"), (5, "a", "f")]
    ]
    monkeypatch.setattr(dead_letters, "_found", lambda *_: [dict(one) for one in letters])
    for limit in (1, 3, 5, 9):
        dead_letters.list_letters("u", limit=limit, output=Output.JSON)
        found = json.loads(capsys.readouterr().out)
        order = [("a", "f", 5), ("a", "f", 7), ("a", "g", 3), ("b", "f", 2), ("b", "f", 9)]
        assert [(one["job"], one["flow"], one["commit"]) for one in found["shown"]] == order[:limit]
        assert found["letters"] == 5
        dead_letters.list_letters("u", limit=limit)
        assert (f"the first {limit} are shown" in capsys.readouterr().out) == (limit < 5)
    dead_letters.show_letter("u", 9)
    assert [one["raw_hex"] for one in json.loads(capsys.readouterr().out)] == ["ff"] * 5
