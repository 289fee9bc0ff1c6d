"""A whole cluster on IPv6 and under names: members, certificates, SDK and commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
from typer.testing import CliRunner

from oncegate import Client
from oncegate.gateway.cli import cluster
from oncegate.gateway.cli.main import command_line
from oncegate.gateway.http.server import running
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.node.settings import Settings
from tests.conftest import Api
from tests.gateway.three_nodes import three


@asynccontextmanager
async def serving_at(settings: Settings) -> AsyncIterator[Api]:
    async with running(settings), aiohttp.ClientSession() as http:
        yield Api(http)


@pytest.mark.parametrize("hosts", [("[::1]",) * 3, ("localhost", "[::1]", "127.0.0.1")], ids=["ipv6", "mixed"])
async def test_three_nodes_with_tls_serve_sdk_and_commands_at_ipv6_addresses_and_names(
    hosts: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, pem, ca = trustme.CA(), tmp_path / "node.pem", tmp_path / "ca.pem"
    authority.issue_cert(
        "n1", "n2", "n3", "localhost", "::1", "127.0.0.1"
    ).private_key_and_cert_chain_pem.write_to_path(pem)
    authority.cert_pem.write_to_path(ca)
    pem.chmod(0o600)
    tls = dict.fromkeys(("tls_certificate", "tls_key", "peer_tls_certificate", "peer_tls_key"), pem)
    async with three(tmp_path, hosts, **tls, peer_tls_authority=ca) as nodes:
        leader = await nodes.leader()
        addresses = {name: one.http_of(one.address) for name, one in nodes.settings.items()}
        for first in addresses.values():  # of each: it names the leader, to whom the write then goes
            async with Client(first, ca_file=ca) as client, client.session() as session:
                await client.declare_table("rows", kind="resident")
                assert (await session.put("rows", "k", first)).applied
                assert (await client.get("rows", "k")).value == first
                known = {member.id: member.http for member in (await client.cluster()).members}
                assert known == addresses
        monkeypatch.setenv("ONCEGATE_CA_FILE", str(ca))
        asked = ["status", "--endpoint", addresses[leader]]
        shown = await asyncio.to_thread(CliRunner().invoke, command_line("status"), asked)
        assert shown.exit_code == 0, shown.output
        assert shown.stdout.count("follower") == 2
        assert all(address in shown.stdout for address in addresses.values())


async def test_node_that_listens_at_every_address_is_reached_at_each_and_told_by_its_own(tmp_path: Path) -> None:
    http_port, peer_port = free_ports(2)
    member = f"n1=one.test:{http_port}:{peer_port}"
    secret = tmp_path / "secret"
    secret.write_text("s" * 32)
    secret.chmod(0o600)
    insecure = {"secret_file": secret, "insecure_peers": True, "insecure_http": True}
    listen = {"http_listen": f"[::]:{http_port}", "peer_listen": f"[::]:{peer_port}"}
    async with serving_at(Settings(members=[member], data_dir=tmp_path / "n1", **listen, **insecure)) as api:
        for host in ("127.0.0.1", "[::1]", "localhost"):
            status, _, state = await api.call("GET", f"http://{host}:{http_port}/v1/cluster")
            assert (status, state["members"][0]["http"]) == (200, f"http://one.test:{http_port}")
        unknown = {"Host": f"two.test:{http_port}"}
        assert (await api.call("GET", f"http://[::1]:{http_port}/v1/cluster", headers=unknown))[0] == 403
        for host in ("0.0.0.0", "::", "fe80::1%eth0", "[::1"):
            body = {"id": "n2", "host": host, "http_port": 1, "peer_port": 2}
            status, _, _ = await api.call("POST", f"http://[::1]:{http_port}/v1/cluster/members", body)
            assert status == 400, host


def test_ipv6_member_is_added_by_its_bare_address(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    member = {"id": "n1", "http": "http://[::1]:7400", "peer": "[::1]:7401", "voter": True}

    def ask(method: str, endpoint: str, path: str, body: Any = None, *_: Any) -> Any:
        sent.append(body)
        return {"cluster": "c", "node": "n1", "members": [member], "settings": {}}

    monkeypatch.setattr(cluster, "ask", ask)
    shown = CliRunner().invoke(command_line("member"), ["member", "add", "n2=[::1]:7402:7403"])
    assert shown.exit_code == 0, shown.output
    assert sent[-1] == {"id": "n2", "host": "::1", "http_port": 7402, "peer_port": 7403}
    assert "--member 'n1=[::1]:7400:7401' --member 'n2=[::1]:7402:7403'" in shown.stdout
