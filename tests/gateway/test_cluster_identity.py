"""A cluster has an identity of its own: made once, in the log, kept over restarts, another after a rebuild."""

from __future__ import annotations

from pathlib import Path

from oncegate.gateway.local.waiting import until
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.state import state_digest
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.settings import Settings
from oncegate.gateway.testing.nodes import FakeGateway
from oncegate.proof.verify.states import first_unequal
from tests.conftest import Api
from tests.gateway.http_contract import declare, one_node, serving
from tests.gateway.state_harness import Fed

FIRST, SECOND = "1" * 32, "2" * 32


def machine(*identities: str) -> Machine:
    made = Machine()
    for index, identity in enumerate(identities, 1):
        apply(made, index, 1, c.encode_entry(0, [c.Identify(identity)]))
    return made


def test_first_identity_stays_and_is_part_of_the_state() -> None:
    assert machine(FIRST, SECOND).identity == FIRST
    assert state_digest(machine(FIRST, SECOND)) == state_digest(machine(FIRST)) != state_digest(machine(SECOND))
    unequal = first_unequal(machine(FIRST), machine(SECOND))
    assert unequal is not None
    assert (unequal.what, unequal.left, unequal.right) == ("identity", FIRST, SECOND)


def test_saved_state_keeps_the_identity(tmp_path: Path) -> None:
    fed = Fed(tmp_path)
    fed.do(c.Identify(FIRST))
    fed.save()
    again = fed.reopened()
    assert again.machine.identity == FIRST
    again.close()


async def identity_of(api: Api, node: Node) -> str:
    await until(lambda: bool(node.machine.identity), 60, "the leader gives the cluster its identity")
    _, _, cluster = await api.call("GET", "/v1/cluster")
    assert cluster["identity"] == node.machine.identity
    assert len(bytes.fromhex(cluster["identity"])) == 16
    return str(cluster["identity"])


async def test_identity_is_made_once_and_shown_to_clients_of_flows(files: Settings) -> None:
    async with serving(files) as (api, node):
        first = await identity_of(api, node)
        await declare(api, "events", "stream")
        _, _, flow = await api.call("GET", "/v1/flows/events")
        assert flow["cluster_identity"] == first
        applied = node.replica.status().last_index
    async with serving(files) as (api, node):
        assert await identity_of(api, node) == first
        assert node.replica.status().last_index <= applied + 1, "only the term's own entry is new"


async def test_rebuilt_cluster_of_the_same_name_has_another_identity(tmp_path: Path) -> None:
    found = []
    for life in ("one", "two"):
        async with serving(one_node(tmp_path / life)) as (api, node):
            _, _, cluster = await api.call("GET", "/v1/cluster")
            found.append((cluster["cluster"], await identity_of(api, node)))
    assert found[0][0] == found[1][0]
    assert found[0][1] != found[1][1]


async def test_fake_gateway_of_tests_has_an_identity_too() -> None:
    async with FakeGateway() as one, FakeGateway() as other:
        assert one.machine.identity
        assert one.machine.identity != other.machine.identity
