"""``oncegate status``: whether there is a leader, and what a terminal shows of it."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from oncegate.gateway.cli import cluster
from oncegate.gateway.cli.main import app
from tests.gateway.three_nodes import NAMES, three


async def status(endpoint: str, *words: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, app, ["status", "--endpoint", endpoint, *words])


async def test_status_of_a_cluster_without_a_leader_shows_it_and_exits_1(tmp_path: Path) -> None:
    async with three(tmp_path) as nodes:
        left, *stopped = NAMES
        await nodes.until_state(left, leader=await nodes.leader())
        assert (await status(nodes.url(left))).exit_code == 0
        for name in stopped:
            await nodes.stop(name)
        await nodes.until_state(left, leader=None)
        shown = await status(nodes.url(left))
        told = await status(nodes.url(left), "-o", "json")
    for result in (shown, told):
        assert (result.exit_code, result.stderr) == (1, "oncegate: no leader: 1 of 3 voters answers\n")
    assert shown.stdout.count("unreachable") == 2
    assert [name for name, state in json.loads(told.stdout).items() if state] == [left]


FIGURES = {"term": 12, "commit_index": 7_654_321, "applied_index": 7_654_320, "commit": 98_765_432, "version": "0.1.0"}


@pytest.mark.parametrize(
    ("columns", "least", "most"), [(40, 3, 4), (60, 4, 6), (80, 6, 8), (100, 8, 9), (120, 9, 9), (None, 9, 9)]
)
def test_a_terminal_shows_as_many_columns_as_it_is_wide_for_and_breaks_no_word_or_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int | None, least: int, most: int
) -> None:
    members = [{"id": f"n{i}", "http": f"http://127.0.0.1:740{i}", "voter": True} for i in range(3)]
    state = {"node": "n0", "role": "follower", "leader": "n1", "members": members, **FIGURES}

    def seen(_endpoint: str, http: str) -> dict[str, Any] | str:
        return "unreachable" if http.endswith("2") else {**state, "role": "leader"}

    monkeypatch.setattr(cluster, "ask", lambda *_: state)
    monkeypatch.setattr(cluster, "_state", seen)
    if columns is not None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        for name, value in (("TERM", "xterm"), ("COLUMNS", str(columns)), ("LINES", "50")):
            monkeypatch.setenv(name, value)
    cluster.status("http://127.0.0.1:7400")
    printed = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    header, _, *rows = (line for line in printed.splitlines() if line.strip())
    assert columns is None or max(map(len, (header, *rows))) <= columns
    cells = [row.split() for row in rows]
    assert [row[0] for row in cells] == ["n0", "n1", "n2"], "a line each"
    assert least <= len(cells[0]) == len(cells[1]) <= most
    known = {*map(str, FIGURES.values()), "1", "follower", "leader", "unreachable"}
    assert {*cells[0][1:], *cells[1][1:], *cells[2][1:]} <= known | {member["http"] for member in members}
    assert ("behind" in header, "role" in header) == (True, True)
