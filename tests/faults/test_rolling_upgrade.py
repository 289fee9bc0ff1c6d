"""Nodes of the commit before this step and of this one in one cluster: upgraded, and taken back, under load."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from oncegate import Client, Session
from oncegate.gateway.local.blocking_http import get_json
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.proof.check.earlier_build import python, unpack
from oncegate.proof.check.errors import Unavailable
from tests.faults.harness.sdk_load import Ledger, check_counters, check_flows, check_rows, progress, writing

pytestmark = pytest.mark.faults

ROOT = Path(__file__).parents[2]
WORKERS = 4
PAUSE_S = 0.05
LARGE = "v" * 200_000


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages as they were."""
    try:
        return unpack(tmp_path_factory.mktemp("before"))
    except Unavailable as reason:
        pytest.skip(str(reason))


class TwoBuilds(LocalCluster):
    """Nodes that run one of two builds each; all begin with the older one."""

    def __init__(self, directory: Path, before: Path, nodes: int = 3) -> None:
        super().__init__(directory, nodes)
        self.trees = dict.fromkeys(self.ids, before)

    def command(self, node_id: str) -> list[str]:
        """Return the command line of a node: with the packages of its build."""
        return [*python(self.trees[node_id]), *super().command(node_id)[1:]]

    def restart(self, node_id: str, tree: Path) -> None:
        """Stop a node in order, start it with another build, and wait until it is ready."""
        assert self.stop(node_id), f"{node_id} did not end in order"
        self.trees[node_id] = tree
        self.start(node_id)
        self.wait_ready(node_id)

    def states(self) -> dict[str, dict[str, Any]]:
        """What each node says of the cluster."""
        return {node_id: self.state(node_id) or {} for node_id in self.ids}


async def roll(cluster: TwoBuilds, ledger: Ledger, tree: Path) -> None:
    """Restart each node with another build, the leader last, while writers write."""
    leader = await asyncio.to_thread(cluster.leader)
    for node_id in sorted(cluster.ids, key=lambda node_id: node_id == leader):
        await progress(ledger, 20)
        await asyncio.to_thread(cluster.restart, node_id, tree)
        await progress(ledger, 20)


def rows_of(endpoint: str) -> str:
    """Return the hash of all rows, with keys and versions, as a node has them when it has caught up."""
    rows, after = hashlib.sha256(), ""
    while True:
        query = urlencode({"limit": 1000, "after": after})
        page = get_json(f"{endpoint}/v1/tables/rows/rows?{query}", 10)
        assert page is not None
        rows.update(json.dumps([(row["key"], row["version"], row["value"]) for row in page["rows"]]).encode())
        if page["next"] is None:
            return rows.hexdigest()
        after = page["next"]


async def fill(cluster: TwoBuilds, session: Session) -> None:
    """Write until every node has saved its state: the other build then starts from a state, not only from a log."""
    before = await asyncio.to_thread(cluster.states)
    while any(
        state["saved_index"] == before[node_id]["saved_index"]
        for node_id, state in (await asyncio.to_thread(cluster.states)).items()
    ):
        await asyncio.gather(*(session.put("rows", f"large{number}", LARGE) for number in range(20)))


@pytest.mark.timeout(240)
async def test_nodes_of_the_commit_before_are_upgraded_one_by_one_and_taken_back_and_no_caller_sees_an_error(
    before: Path, tmp_path: Path
) -> None:
    ledger = Ledger()
    with TwoBuilds(tmp_path / "cluster", before) as cluster:
        cluster.start()
        cluster.wait_ready()
        async with Client(cluster.endpoints) as client:
            async with writing(client, ledger, WORKERS, PAUSE_S) as session:
                await fill(cluster, session)
                await roll(cluster, ledger, ROOT)
                await fill(cluster, session)
                await roll(cluster, ledger, before)
            await check_counters(client, ledger)
            await check_rows(client, ledger)
        await check_flows(cluster.endpoints, ledger)
        assert len({await asyncio.to_thread(rows_of, endpoint) for endpoint in cluster.endpoints}) == 1
        logs = "".join(map(cluster.log, cluster.ids))
        assert "Traceback" not in logs
