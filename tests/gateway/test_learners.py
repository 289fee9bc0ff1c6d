"""A learner that never comes: it is shown, holds nothing up, and is removed like any member."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.node import administration
from tests.conftest import Api
from tests.gateway.three_nodes import Three, three


async def shown(cluster: Three, name: str) -> dict[str, tuple[str, bool]]:
    _, _, state = await cluster.get(name, "/v1/cluster")
    return {member["id"]: (member["role"], member["voter"]) for member in state["members"]}


async def test_learner_that_never_comes_is_shown_holds_nothing_up_and_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(administration, "ADD_TIMEOUT_S", 0.3)
    async with three(tmp_path) as cluster:
        leader = await cluster.leader()
        api, base = Api(cluster.http), f"{cluster.url(leader)}/v1/cluster/members"
        for name in ("n4", "n5"):  # the first one that is missing does not keep the second from being added
            http_port, peer_port = free_ports(2)
            new = {"id": name, "host": "127.0.0.1", "http_port": http_port, "peer_port": peer_port}
            status, _, said = await api.call("POST", base, json=new)
            assert (status, said["code"], said["outcome"]) == (504, "TIMEOUT", "applied")
            assert f"oncegate member remove {name}" in said["detail"]
        assert {"n4", "n5"} <= {name for name, member in (await shown(cluster, leader)).items() if not member[1]}
        assert (await shown(cluster, leader))["n4"] == ("unreachable", False)
        assert b"oncegate_learners 2.0" in (await cluster.get(leader, "/metrics"))[2]
        engine = cluster.nodes[leader].replica._engine
        assert engine is not None
        assert not engine.leading.busy, "nothing is looked at again and again for who is not there"
        assert (await api.call("POST", f"{cluster.url(leader)}/v1/cluster/leader", json={}))[0] == 200
        successor = await cluster.leader()
        for name in ("n4", "n5"):
            status, _, changed = await api.call("DELETE", f"{cluster.url(successor)}/v1/cluster/members/{name}")
            assert status == 200
            assert name not in changed["members"]
