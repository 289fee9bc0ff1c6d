"""``oncegate status``: whether there is a leader, and what a terminal shows of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from click.testing import Result
from typer.testing import CliRunner

from oncegate.gateway.cli.main import app
from tests.gateway.three_nodes import NAMES, three


async def status(endpoint: str, *words: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, app, ["status", "--endpoint", endpoint, *words])


async def test_status_of_a_cluster_without_a_leader_shows_it_and_exits_1(tmp_path: Path) -> None:
    async with three(tmp_path) as cluster:
        left, *stopped = NAMES
        await cluster.until_state(left, leader=await cluster.leader())
        assert (await status(cluster.url(left))).exit_code == 0
        for name in stopped:
            await cluster.stop(name)
        await cluster.until_state(left, leader=None)
        shown = await status(cluster.url(left))
        told = await status(cluster.url(left), "-o", "json")
    for result in (shown, told):
        assert (result.exit_code, result.stderr) == (1, "oncegate: no leader: 1 of 3 voters answers\n")
    assert shown.stdout.count("unreachable") == 2
    assert [name for name, state in json.loads(told.stdout).items() if state] == [left]
