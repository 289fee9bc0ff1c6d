"""Members at IPv6 addresses and under names: real sockets of the loopback."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from oncegate.consensus.net import dialling
from tests.consensus.cluster import Cluster, until

SECRET = b"a secret of the cluster"


@contextlib.asynccontextmanager
async def _running(directory, *hosts, **settings):
    cluster = Cluster(directory, tuple(f"n{at + 1}" for at in range(len(hosts))), **settings)
    ports = (port for _, port in cluster.addresses.values())
    cluster.addresses = dict(zip(cluster.names, zip(hosts, ports, strict=True), strict=True))
    try:
        yield await cluster.start()
    finally:
        await cluster.stop()


@pytest.mark.parametrize("hosts", [("::1",) * 3, ("localhost",) * 3, ("127.0.0.1", "::1", "localhost")])
async def test_three_members_on_ipv6_and_under_names_elect_and_commit(tmp_path, hosts):
    async with _running(tmp_path, *hosts) as cluster:
        leader = await cluster.leader()
        await cluster.replicas[leader].propose(b"command")
        await until(lambda: all(machine.commands == [b"command"] for machine in cluster.machines.values()))


@contextlib.contextmanager
def _silent(host: str, port: int):
    """An address that neither accepts nor refuses, as that of a machine which is gone."""
    with contextlib.ExitStack() as opened:
        listening = opened.enter_context(socket.create_server((host, port), backlog=0))
        for _ in range(3):
            filling = opened.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(listening.getsockname())
        yield


async def test_member_that_comes_back_at_another_address_under_its_name_is_found(tmp_path, monkeypatch):
    loop = asyncio.get_running_loop()
    resolve, addresses, asked = loop.getaddrinfo, {"n1.test": "127.0.0.2"}, []

    async def resolver(host, *args, **how):
        asked.append(host)
        return await resolve(addresses.get(host, host), *args, **how)

    monkeypatch.setattr(loop, "getaddrinfo", resolver)
    monkeypatch.setattr(dialling, "_CONNECT_S", 0.2)
    monkeypatch.setattr(dialling, "_PATIENCE_S", 3600.0)  # n2 is the one that dials
    known = {"secrets": (SECRET,), "insecure_peers": True}
    async with _running(tmp_path, "n1.test", "127.0.0.1", **known) as cluster:

        def connected():
            return cluster.replicas["n2"].status().peers["n1"].connected

        await until(connected)
        await cluster.stop("n1")
        await until(lambda: not connected())
        with _silent("127.0.0.2", cluster.addresses["n1"][1]):
            seen = len(asked)
            await until(lambda: "n1.test" in asked[seen:], what="n2 dials the old address")
            addresses["n1.test"] = "127.0.0.3"
            await cluster.start("n1")
            await until(connected)


async def test_member_that_listens_at_every_address_is_reached_at_those_of_both_families(tmp_path):
    async with _running(tmp_path, "::", secrets=(SECRET,), insecure_peers=True) as cluster:
        for host in ("127.0.0.1", "::1"):
            _, writer = await asyncio.open_connection(host, cluster.addresses["n1"][1])
            writer.close()
