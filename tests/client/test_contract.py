"""The fake and a real node keep the same contract, as the SDK sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from oncegate.gateway import wire
from oncegate.gateway.client import Client, Code, OncegateError, OperationFailed, RequestId
from oncegate.gateway.http.server import running
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.node.settings import Settings
from oncegate.gateway.testing.cluster import FakeGateway
from oncegate.rifl.ids import SequenceNumber, format_client_id


@asynccontextmanager
async def a_fake(path: Path) -> AsyncIterator[str]:
    async with FakeGateway() as gateway:
        yield gateway.endpoints[0]


@asynccontextmanager
async def a_node(path: Path) -> AsyncIterator[str]:
    http_port, peer_port = free_ports(2)
    settings = Settings(members=[f"n1=127.0.0.1:{http_port}:{peer_port}"], data_dir=path / "n1")
    async with running(settings):
        yield settings.address.http


@pytest.fixture(params=[a_fake, a_node], ids=["fake", "node"])
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    async with request.param(tmp_path) as endpoint, Client(endpoint) as connected:
        await connected.declare_table("rows")
        await connected.declare_table("events", kind="stream")
        yield connected


async def operate(client: Client, client_id: int, epoch: int, *operations: wire.Operation) -> list[Any]:
    """Send operations under numbers of the test's own choice; return (status or code, value) of each."""
    body = wire.OperationsRequest(format_client_id(client_id), epoch, 1, list(operations))
    assert client._http is not None
    headers = {"Content-Type": wire.MSGPACK, "Accept": wire.MSGPACK}
    url = f"{client._router.endpoints[0]}/v1/operations"
    async with client._http.post(url, data=msgspec.msgpack.encode(body), headers=headers) as answer:
        told = msgspec.msgpack.decode(await answer.read(), type=wire.OperationsResponse)
    return [
        result.code if result.status == "rejected" else (result.status, result.value, result.replayed)
        for result in told.results
    ]


async def test_writes_conditions_and_reads(client: Client) -> None:
    async with client.session() as session:
        first = await session.put("rows", "a", {"n": 1})
        assert first.version == first.commit
        refused = await session.insert("rows", "a", 2)
        assert (refused.applied, refused.code, refused.value) == (False, "CONDITION_FAILED", {"n": 1})
        assert refused.version == first.version
        assert not (await session.put("rows", "a", 2, if_version=99)).applied
        assert (await session.put("rows", "a", 2, if_value={"n": 1})).applied
        assert (await session.increment("rows", "n", -3)).value == -3
        assert (await session.delete("rows", "a")).applied
        assert await session.get("rows", "a") is None
        many = await session.put_many("events", [(f"e{n}", n) for n in range(30)])
        assert [part.last - part.first for part in many.parts] == [29]
        row = await client.get("rows", "n")
    assert row is not None
    assert (row.key, row.value) == ("n", -3)
    page = await client.scan("rows", limit=1)
    assert ([found.key for found in page.rows], page.next) == (["n"], None)


async def test_replays_mismatches_and_fences(client: Client) -> None:
    async with client.session(nonce="one") as session:
        raised = wire.Operation(1, "increment", "rows", "n", by=2)
        assert await operate(client, session.client_id, 1, raised) == [("applied", 2, False)]
        assert await operate(client, session.client_id, 1, raised) == [("applied", 2, True)]
        other = wire.Operation(1, "increment", "rows", "n", by=3)
        assert await operate(client, session.client_id, 1, other) == ["PAYLOAD_MISMATCH"]
        told = await client.request(session.client_id, 1)
        assert told.state == "applied"
        assert told.result is not None
        assert (told.result.value, told.result.replayed) == (2, True)
        assert (await client.request(session.client_id, 7)).state == "never_seen"
    with pytest.raises(OperationFailed) as over:
        await session.put("rows", "k", 1)
    assert over.value.code is Code.SESSION_EXPIRED
    assert (await client.request(session.client_id, 1)).state == "expired"


async def test_outbox_takes_over_and_fences(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "o"
    twin = await client.session(outbox=path).__aenter__()
    await twin.increment("rows", "n")
    (tmp_path / "copy").write_bytes(path.read_bytes())
    async with client.session(outbox=tmp_path / "copy") as session:
        assert (session.client_id, session.epoch) == (twin.client_id, 2)
        with pytest.raises(OperationFailed) as fenced:
            await twin.increment("rows", "n")
        assert fenced.value.code is Code.FENCED
        assert (await session.increment("rows", "n")).value == 2
    await twin.close()


async def _append(client: Client) -> None:
    async with client.session() as session:
        await session.append("rows", "l", 1)
        await session.append("rows", "l", {"two": 2})
    row = await client.get("rows", "l")
    assert row is not None
    assert row.value == [1, {"two": 2}]


async def _remembered_read(client: Client) -> None:
    async with client.session() as session:
        written = await session.put("rows", "k", "old")
        read = wire.Operation(2, "get", "rows", "k")
        assert await operate(client, session.client_id, 1, read) == [("applied", "old", False)]
        changed = wire.Operation(3, "put", "rows", "k", "new")
        await operate(client, session.client_id, 1, changed)
        assert await operate(client, session.client_id, 1, read) == [("applied", "old", True)]
        assert written.sequence == 1


async def _resolve(client: Client) -> None:
    async with client.session() as session:
        raised = wire.Operation(1, "increment", "rows", "n", by=2)
        await operate(client, session.client_id, 1, raised)
        applied = await client.resolve(RequestId(session.client_id, SequenceNumber(1)))
        assert applied.result is not None
        assert applied.result.value == 2
        for _ in range(2):
            sealed = await client.resolve(RequestId(session.client_id, SequenceNumber(2)))
            assert sealed.state == "sealed"
        late = wire.Operation(2, "increment", "rows", "n", by=2)
        (verdict,) = await operate(client, session.client_id, 1, late)
        assert isinstance(verdict, str)
        row = await client.get("rows", "n")
        assert row is not None
        assert row.value == 2
        with pytest.raises(OncegateError):
            await client.resolve(RequestId(session.client_id, SequenceNumber(0)))


@pytest.mark.parametrize("promise", [_append, _remembered_read, _resolve])
async def test_appends_remembered_reads_and_seals(client: Client, promise: Any) -> None:
    await promise(client)
