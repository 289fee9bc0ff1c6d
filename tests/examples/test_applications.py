"""The examples run, and do what they say."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest

from examples.applications import script, ticket_shop, worker
from oncegate import Client, Code, OperationFailed, Outcome
from oncegate.testing import FakeCluster


@pytest.fixture(autouse=True)
def endpoints(oncegate_cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What ``Client()`` finds, whatever profiles this machine has."""
    monkeypatch.setenv("ONCEGATE_ENDPOINTS", ",".join(oncegate_cluster.endpoints))
    monkeypatch.setenv("ONCEGATE_PROFILES", str(tmp_path / "none.toml"))


async def test_script_reserves_once_and_resolves_a_doubt(oncegate_cluster: FakeCluster) -> None:
    async with Client() as client:
        assert await script.reserve(client, "12A", "ann") == "12A is reserved for ann"
        assert await script.reserve(client, "12A", "bob") == "12A is reserved for ann"
        oncegate_cluster.lose_answers(1)
        assert await script.reserve(client, "12B", "bob") == "12B is reserved for bob"
    assert [write.key for write in oncegate_cluster.executed] == ["12A", "12B"]


def test_notebook_runs_cell_by_cell(oncegate_cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_module("examples.applications.notebook")
    assert capsys.readouterr().out.splitlines() == ["ann has 7", "written: 28", "[('ann', 7)]"]


async def test_worker_counts_each_word_once(oncegate_cluster: FakeCluster, tmp_path: Path) -> None:
    text = "the cat and the dog and the bird " * 20
    async with Client() as client:
        assert await worker.count(client, text, tmp_path / "o") == 160
        assert await worker.count(client, text, tmp_path / "o") == 0
        assert await worker.count(client, text + "the end", tmp_path / "o") == 2
    assert oncegate_cluster.value("words", "the") == 61


def test_worker_killed_in_the_middle_goes_on(oncegate_cluster: FakeCluster, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text(" ".join(f"w{n % 50}" for n in range(3000)))
    command = [sys.executable, "-m", "examples.applications.worker", str(text), str(tmp_path / "o")]
    killed = subprocess.Popen(command, env=os.environ)
    while len(oncegate_cluster.executed) < 200:
        assert killed.poll() is None
        time.sleep(0.001)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    subprocess.run(command, check=True, capture_output=True)
    applied = Counter(write.key for write in oncegate_cluster.executed)
    assert applied == Counter({f"w{n}": 60 for n in range(50)})


async def test_service_takes_an_order_once(oncegate_cluster: FakeCluster) -> None:
    from examples.applications import service

    async with service.connected(service.app) as state:
        app = service.app

        async def with_state(scope: dict[str, object], receive: object, send: object) -> None:
            await app({**scope, "state": dict(state)}, receive, send)  # type: ignore[arg-type]

        transport = httpx.ASGITransport(with_state)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as http:
            order = {"item": "tea", "count": 2}
            oncegate_cluster.lose_answers(1)
            first = await http.put("/orders/o-17", json=order)
            again = await http.put("/orders/o-17", json=order)
            other = await http.put("/orders/o-17", json={**order, "count": 3})
            assert (first.json()["new"], again.json()["new"], other.status_code) == (True, False, 409)
            assert (await http.get("/orders/o-17")).json() == {"order": "o-17", **order}
            assert (await http.get("/orders/o-18")).status_code == 404
            assert (await http.put("/orders/o-19", json={"item": "tea"})).status_code == 422
            oncegate_cluster.advance(75)
            assert (await http.put("/orders/o-20", json=order)).json()["new"], "a lost session is opened anew"
    assert [write.key for write in oncegate_cluster.executed] == ["o-17", "o-20"]


async def test_service_says_whether_an_order_may_be_sent_again() -> None:
    from examples.applications import service

    unsent = OperationFailed(Code.NO_LEADER, outcome=Outcome.NOT_APPLIED)
    assert (await service.failed(None, unsent)).status_code == 503  # type: ignore[arg-type]
    assert (await service.failed(None, OperationFailed(Code.TIMEOUT))).status_code == 504  # type: ignore[arg-type]


async def test_ticket_shop_sells_an_order_whole_or_not_at_all(
    oncegate_cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    orders = [
        ("o1", "14C", "ann", 9_000),
        ("o2", "14C", "bob", 1),
        ("o3", "14D", "ann", 1_001),
        ("o4", "14D", "eve", 1),
    ]
    lines = [json.dumps(dict(zip(("order", "seat", "customer", "cents"), order, strict=True))) for order in orders]
    (tmp_path / "orders").write_text("\n".join(lines))
    monkeypatch.setattr(sys, "argv", ["ticket_shop", str(tmp_path / "orders"), str(tmp_path / "o")])
    first = ["o1 sold", "o2 refused: seat taken", "o3 refused: too little money", "o4 sold"]
    for told in (first, []):
        await ticket_shop.main()
        assert capsys.readouterr().out.splitlines() == told
    oncegate_cluster.advance(25 * 3600)  # no key is remembered any more: nobody gets money again
    monkeypatch.setattr(sys, "argv", ["ticket_shop", str(tmp_path / "orders"), str(tmp_path / "another till")])
    await ticket_shop.main()
    assert capsys.readouterr().out.splitlines() == [
        "o1 sold before",
        first[1],
        "o3 refused: seat taken",
        "o4 sold before",
    ]
    assert oncegate_cluster.value("balances", "ann") == 1_000
    assert oncegate_cluster.value("shop", "sold") == 2
    assert (oncegate_cluster.value("seats", "14C"), oncegate_cluster.value("seats", "14D")) == ("o1", "o4")
