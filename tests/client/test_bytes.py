"""Bytes as values: what is written comes back as bytes wherever a value is shown, and is never taken for text.

The fixture and a real node keep the same contract.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from oncegate import Client, Code, Transaction
from oncegate.flows import bytes_text
from oncegate.gateway import wire
from oncegate.testing import FakeGateway
from tests.client.answers import fails
from tests.client.test_contract import a_fake, a_node

RAW = bytes(range(256))
TEXT = b64encode(RAW).decode()
LARGEST = 196_605


@pytest.fixture(params=[a_fake, a_node], ids=["fake", "node"])
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    async with request.param(tmp_path) as endpoint, Client(endpoint) as connected:
        await connected.declare_table("rows")
        await connected.declare_flow("copies", source="rows", max_items=1)
        await connected.declare_table("events", kind="stream", flow={"max_items": 1})
        yield connected


async def plain(client: Client, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
    """Call a node without the SDK; the answer is built as its type says."""
    written = {name.replace("_", "-"): text for name, text in headers.items()}
    url = f"{client._connection.router.endpoints[0]}{path}"
    async with aiohttp.request(method, url, data=body, headers=written) as answer:
        read = msgspec.msgpack.decode if answer.content_type == wire.MSGPACK else msgspec.json.decode
        return answer.status, read(await answer.read())


async def test_bytes_come_back_as_bytes_from_every_call_of_the_sdk(client: Client) -> None:
    async with client.session() as session:
        assert (await session.put("rows", "b", RAW)).applied
        row = await client.get("rows", "b")
        assert row.value == RAW
        assert (await client.get("rows", "b", held=row)).value == RAW
        assert [one.value for one in await client.get_many([("rows", "b")])] == [RAW]
        assert [one.value async for one in client.rows("rows")] == [RAW]
        assert [one.value for one in (await client.scan("rows")).rows] == [RAW]
        assert (await session.get_remembered("rows", "b")).value == RAW
        refused = await session.insert("rows", "b", 1)
        assert (refused.applied, refused.value) == (False, RAW)
        assert (await session.resolve(refused.request_id)).result.value == RAW
        assert (await client.put("rows", "b", 1, if_absent=True, idempotency_key="k")).value == RAW
        both = await session.transact(Transaction().put("rows", "c", b"").insert("rows", "b", 1))
        assert (both.applied, both.failed, both.value) == (False, "writes[1]", RAW)
        await session.put("events", "e", RAW)
        assert (await client.get("events", "e")).value == RAW
        async with aclosing(aiter(client.watch("rows", from_commit=0))) as changes:
            assert (await anext(changes)).value == RAW
        for flow, key in (("copies", "b"), ("events", "e")):
            async with aclosing(aiter(client.consume(flow, "reader"))) as batches:
                batch = await anext(batches)
                assert [(item.key, item.value) for item in batch.items] == [(key, RAW)]


async def test_bytes_are_equal_to_themselves_alone(client: Client) -> None:
    async with client.session() as session:
        await session.put("rows", "b", RAW)
        assert not (await session.put("rows", "b", 1, if_value=TEXT)).applied
        assert not (await session.increment("rows", "b")).applied
        assert not (await session.append("rows", "b", 1)).applied
        assert not (await session.transact(Transaction().check("rows", "b", at_least=0).put("rows", "x", 1))).applied
        assert (await session.transact(Transaction().check("rows", "b", value=RAW).put("rows", "x", b"y"))).applied
        assert (await session.put("rows", "b", TEXT, if_value=RAW)).applied
        assert (await client.get("rows", "b")).value == TEXT
        assert not (await session.put("rows", "b", 1, if_value=RAW)).applied


async def test_bytes_over_plain_http(client: Client) -> None:
    row = "/v1/tables/rows/rows/b"
    status, _ = await plain(client, "PUT", row, RAW, content_type=wire.BYTES, idempotency_key="one")
    assert status == 200
    status, told = await plain(client, "GET", row)
    assert (told["value"], told["encoding"]) == (TEXT, "base64")
    status, told = await plain(client, "GET", row, accept=wire.MSGPACK)
    assert told["value"] == RAW
    again = {"content_type": wire.BYTES, "if_none_match": "*", "idempotency_key": "two"}
    status, told = await plain(client, "PUT", row, b"", **again)
    assert (status, told["value"], told["encoding"]) == (412, TEXT, "base64")
    assert (await client.get("rows", "b")).value == RAW
    for number, name in enumerate((wire.JSON, "application/octet-stream")):  # as ever: JSON
        await plain(client, "PUT", row, b'{"a":1}', content_type=name, idempotency_key=f"three-{number}")
        status, told = await plain(client, "GET", row)
        assert (told["value"], "encoding" in told) == ({"a": 1}, False)


async def test_bytes_have_a_bound_and_are_whole_values(client: Client) -> None:
    async with client.session() as session:
        await session.put("rows", "b", b"x" * LARGEST)
        assert (await client.get("rows", "b")).value == b"x" * LARGEST
        with fails(Code.PAYLOAD_TOO_LARGE):
            await session.put("rows", "b", b"x" * (LARGEST + 1))
        for refused in ({"a": b"x"}, [b"x"], bytearray(b"x")):
            with fails(Code.BAD_REQUEST):
                await session.put("rows", "b", refused)
        with fails(Code.BAD_REQUEST):
            await session.append("rows", "l", b"x")
        with fails(Code.BAD_REQUEST):
            await session.put_many("events", {"k": b"x"})
        assert (await client.get("rows", "b")).value == b"x" * LARGEST


async def test_outbox_sends_bytes_again(fake: FakeGateway, tmp_path: Path) -> None:
    async with Client(fake.endpoints) as client, client.session(outbox=tmp_path / "outbox") as session:
        await session.put("rows", "b", RAW)
        assert (await client.get("rows", "b")).value == RAW


@pytest.mark.parametrize("text", [b'"AAEC"', b' "AAE"', b' "not base64"', b" 1", b' "AA=="x', b' "A\\u0041=="'])
def test_json_is_never_taken_for_bytes(text: bytes) -> None:
    assert not bytes_text.is_bytes(text)


def test_text_of_bytes_is_json_and_no_canonical_value() -> None:
    for value in (b"", b"a", b"ab", b"abc", RAW):
        text = bytes_text.text_of(value)
        assert bytes_text.is_bytes(text)
        assert bytes_text.bytes_of(text) == value
        read = msgspec.json.decode(text)
        assert read == b64encode(value).decode()
        assert msgspec.json.encode(read) != text


async def test_text_with_the_mark_is_refused_in_a_range(client: Client) -> None:
    async with client.session() as session:
        body = msgspec.msgpack.encode({"keys": ["k"], "values": [bytes_text.text_of(RAW).decode()]})
        ids = {"oncegate_client": f"{session.client_id:016x}", "oncegate_epoch": "1"}
        ids |= {"oncegate_first_sequence": "1", "oncegate_first_incomplete": "1"}
        status, told = await plain(client, "POST", "/v1/tables/events/ranges", body, content_type=wire.MSGPACK, **ids)
        assert (status, "blank" in told["detail"]) == (400, True)
