"""The fixture that applications test with: installed by itself, on a clock of its own, and able to misbehave."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from oncegate import Client, Code, OncegateError, sync
from oncegate.testing import FakeCluster
from tests.client.answers import fails


def test_lease_ends_when_the_test_says_so(oncegate_cluster: FakeCluster) -> None:
    oncegate_cluster.declare("rows")
    with sync.Client(oncegate_cluster.endpoints) as client, client.session(lease_ms=60_000) as session:
        session.put("rows", "k", 1)
        oncegate_cluster.advance(60.0)
        session.put("rows", "k", 2)  # renews
        oncegate_cluster.advance(60.001)
        with fails(Code.SESSION_EXPIRED):
            session.put("rows", "k", 3)
    assert oncegate_cluster.value("rows", "k") == 2
    with pytest.raises(OncegateError):
        oncegate_cluster.value("rows", "none")


async def test_lost_answers_and_stopped_nodes_cost_no_duplicate(oncegate_cluster: FakeCluster) -> None:
    oncegate_cluster.declare("rows")
    async with Client(oncegate_cluster.endpoints) as client, client.session() as session:
        oncegate_cluster.lose_answers(2)
        result = await session.increment("rows", "n")
        assert (result.value, result.replayed) == (1, True)
        oncegate_cluster.stop(0)
        assert (await session.increment("rows", "n")).value == 2
        oncegate_cluster.start(0)
        oncegate_cluster.freeze(1)
        oncegate_cluster.thaw(1)
    assert [write.key for write in oncegate_cluster.executed] == ["n", "n"]


def test_plugin_is_found_by_pytest_and_imports_the_sdk_only_when_asked() -> None:
    (found,) = entry_points(group="pytest11", name="oncegate")
    code = f"import {found.value}, sys; sys.exit('oncegate.gateway.client' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
