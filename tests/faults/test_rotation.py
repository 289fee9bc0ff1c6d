"""Certificates, the shared secret and tokens are replaced on one node after the other, and no caller sees an error."""

from __future__ import annotations

import asyncio
import os
import secrets
import ssl
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from oncegate import Client
from oncegate.gateway.http.auth import new_token
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.gateway.local.waiting import until, wait_for
from oncegate.gateway.node.proposer import ANSWER_S
from oncegate.proof.check.certificates import Certificates
from tests.faults.harness.sdk_load import Ledger, check_counters, check_rows, progress, writing

pytestmark = pytest.mark.faults

WORKERS = 4
PAUSE_S = 0.02
TAKEN_S = 60.0
TAKEN = "peers are proved with what"
SCOPES = ["read", "write", "flows", "admin"]


class Proved(LocalCluster):
    """Nodes with peer TLS, a shared secret and tokens, each with files of its own."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.certificates = Certificates(directory / "certificates")
        for node_id in self.ids:
            self.certificates.issue(node_id)

    def command(self, node_id: str) -> list[str]:
        """Return the command line of a node: with its files."""
        files = ("--secret-file", self.file(node_id, "secret"), "--tokens-file", self.file(node_id, "tokens"))
        return [*super().command(node_id), *self.certificates.flags(node_id), *map(str, files)]

    def file(self, node_id: str, kind: str) -> Path:
        """Return where a node has its secret or its tokens."""
        return self.directory / f"{node_id}.{kind}"

    def replace(self, node_id: str, kind: str, text: str) -> None:
        """Rename a new file over an old one, as docs/operations.md says."""
        file = self.file(node_id, kind)
        beside = file.with_suffix(".new")
        beside.touch(mode=0o600)
        beside.write_text(text)
        os.replace(beside, file)

    def taken(self, node_id: str, since: int) -> None:
        """Wait until a node has said once more that it goes on with what its files hold now."""
        wait_for(lambda: self.log(node_id).count(TAKEN) > since, TAKEN_S, f"{node_id} looks at its files")

    def shown(self, node_id: str) -> bytes:
        """Return the certificate that a node shows whoever connects to its peer port."""
        (address,) = (member.peer for member in self.members if member.node_id == node_id)
        return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(address))


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """The first token's entry, and the file in which clients have theirs."""
    token, entry = new_token("first", "load", SCOPES)
    file = tmp_path / "token"
    file.write_text(token)
    monkeypatch.setenv("ONCEGATE_TOKEN_FILE", str(file))
    return entry, str(file)


@pytest.fixture
def cluster(tmp_path: Path, tokens: tuple[str, str]) -> Iterator[Proved]:
    """A ready one."""
    with Proved(tmp_path / "nodes") as started:
        secret = secrets.token_hex(32)
        for node_id in started.ids:
            started.replace(node_id, "secret", secret)
            started.replace(node_id, "tokens", tokens[0])
        started.start()
        started.wait_ready()
        yield started


def replace_certificates(cluster: Proved) -> None:
    """Give each node another certificate, the next one when the last one shows it."""
    for node_id in cluster.ids:
        before, since = cluster.shown(node_id), cluster.log(node_id).count(TAKEN)
        cluster.certificates.issue(node_id)
        cluster.taken(node_id, since)
        wait_for(lambda: cluster.shown(node_id) != before, TAKEN_S, "it is shown")  # noqa: B023 - called at once


def replace_secret(cluster: Proved) -> None:
    """Three steps, each on all nodes before the next."""
    old, new = cluster.file("n1", "secret").read_text(), secrets.token_hex(32)
    for text in (f"send: {old}\naccept: {new}\n", f"send: {new}\naccept: {old}\n", new):
        for node_id in cluster.ids:
            since = cluster.log(node_id).count(TAKEN)
            cluster.replace(node_id, "secret", text)
            cluster.taken(node_id, since)


async def replace_tokens(cluster: Proved, first: str, file: Path) -> str:
    """Add a successor on each node, hand it out, take the old one out on each node; return the old one."""
    old, (new, second) = file.read_text(), new_token("second", "load", SCOPES)
    async with aiohttp.ClientSession() as http:

        async def answer(node_id: str, token: str) -> int:
            headers = {"Authorization": f"Bearer {token}"}
            async with http.get(f"{cluster.endpoint(node_id)}/v1/cluster", headers=headers) as got:
                return got.status

        async def become(node_id: str, text: str, token: str, status: int) -> None:
            cluster.replace(node_id, "tokens", text)

            async def answered() -> bool:
                return await answer(node_id, token) == status

            await until(answered, TAKEN_S, f"{node_id} answers {status}")

        for node_id in cluster.ids:
            await become(node_id, f"{first}\n{second}\n", new, 200)
        file.write_text(new)
        await asyncio.sleep(2)  # a client looks at its file once a second; nothing says that it has
        for node_id in cluster.ids:
            await become(node_id, f"{second}\n", old, 401)
    return old


@pytest.mark.timeout(240)
async def test_credentials_are_replaced_one_node_at_a_time_under_load_and_no_caller_sees_an_error(
    cluster: Proved, tokens: tuple[str, str]
) -> None:
    ledger, (first, file) = Ledger(), tokens
    async with Client(cluster.endpoints, token_file=file) as client:
        async with writing(client, ledger, WORKERS, PAUSE_S):
            for step in (replace_certificates, replace_secret):
                await progress(ledger, 20)
                await asyncio.to_thread(step, cluster)
            # What was replaced is what the next connections are made with.
            leader = await asyncio.to_thread(cluster.leader)
            follower = next(node_id for node_id in cluster.ids if node_id != leader)
            assert await asyncio.to_thread(cluster.stop, follower)
            cluster.start(follower)
            await asyncio.to_thread(cluster.wait_ready, follower)
            await replace_tokens(cluster, first, Path(file))
            await progress(ledger, 20)
        await check_counters(client, ledger)
        await check_rows(client, ledger)
    for node_id in cluster.ids:
        assert "stays as it was" not in cluster.log(node_id)
        assert "by nothing but checksums" not in cluster.log(node_id)


@pytest.mark.timeout(120)
async def test_what_was_forwarded_to_a_leader_that_stands_still_is_unknown_once_the_next_one_leads(
    tmp_path: Path,
) -> None:
    with LocalCluster(tmp_path / "nodes") as cluster:
        cluster.start()
        await asyncio.to_thread(cluster.wait_ready)
        leader = await asyncio.to_thread(cluster.leader)
        other = next(node_id for node_id in cluster.ids if node_id != leader)
        async with Client(cluster.endpoints) as client:
            await client.declare_table("rows")
        async with aiohttp.ClientSession(cluster.endpoint(other)) as http:
            loop = asyncio.get_running_loop()
            cluster.freeze(leader)
            began = loop.time()
            async with http.put("/v1/tables/rows/rows/k", json=1, headers={"Idempotency-Key": '"frozen"'}) as answer:
                refused = await answer.json()
            assert loop.time() - began < ANSWER_S, "it was waited for an answer that cannot come"
            assert (answer.status, refused["code"], refused["outcome"]) == (504, "TIMEOUT", "unknown"), refused
            again = {"Idempotency-Key": '"frozen"'}
            await until(lambda: asyncio.to_thread(cluster.is_ready, other), TAKEN_S, "the next leader leads")
            async with http.put("/v1/tables/rows/rows/k", json=1, headers=again) as answer:
                assert answer.status < 300
        cluster.thaw(leader)
