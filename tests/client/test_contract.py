"""The fixture and a real node keep the same contract: each elementary call, as the SDK and as HTTP see it.

A promise here is written once and runs on both. The fixture has the node's machine, edge and routes; what could differ
is what it leaves out: the log, the disk, and the clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import msgspec
import pytest

from oncegate import (
    Client,
    Code,
    OncegateError,
    OperationFailed,
    Outcome,
    OutcomeUnknown,
    RequestId,
    Session,
    Transaction,
)
from oncegate.gateway import wire
from oncegate.gateway.http.server import running
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.node.settings import Settings
from oncegate.rifl.ids import SequenceNumber, format_client_id
from oncegate.testing import FakeGateway
from tests.client.answers import fails


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


_lines = msgspec.json.Decoder()


class Answer(NamedTuple):
    """An answer to plain HTTP: status, the part of the body that does not depend on when it was asked, headers."""

    status: int
    body: Any
    headers: Any


async def http(client: Client, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    """Call a node without the SDK; ``headers`` are written with underscores."""
    written = {name.replace("_", "-"): text for name, text in headers.items()}
    url = f"{client._connection.router.endpoints[0]}{path}"
    async with aiohttp.request(method, url, json=body, headers=written) as answer:
        text = await answer.read()
        lines = answer.content_type == "application/x-ndjson"
        body = _lines.decode_lines(text) if lines else msgspec.json.decode(text) if text else None
        return Answer(answer.status, body, answer.headers)


async def operate(client: Client, client_id: int, epoch: int, *operations: wire.Operation) -> list[Any]:
    """Send operations under numbers of the test's own choice; return (status or code, value) of each."""
    body = wire.OperationsRequest(format_client_id(client_id), epoch, 1, list(operations))
    assert client._connection.http is not None
    headers = {"Content-Type": wire.MSGPACK, "Accept": wire.MSGPACK}
    url = f"{client._connection.router.endpoints[0]}/v1/operations"
    async with client._connection.http.post(url, data=msgspec.msgpack.encode(body), headers=headers) as answer:
        told = msgspec.msgpack.decode(await answer.read(), type=wire.OperationsResponse)
    return [
        result.code if result.status == "rejected" else (result.status, result.value, result.replayed)
        for result in told.results
    ]


Call = Callable[[Session], Awaitable[Any]]
INT_MAX = 2**63 - 1


class Refusal(NamedTuple):
    """An elementary call that is refused: as a result that is recorded (no outcome), or as an error."""

    name: str
    call: Call
    code: str
    outcome: str | None = None


async def _full(session: Session) -> Any:
    await session.put("rows", "full", ["x" * (64 * 1024 - 4)])
    return await session.append("rows", "full", 1)


async def _after(session: Session, value: Any, *, by: int = 1) -> Any:
    await session.put("rows", "k", value)
    return await session.increment("rows", "k", by)


REFUSALS = (
    Refusal("insert on a row", lambda s: s.insert("rows", "there", 2), "CONDITION_FAILED"),
    Refusal("put under another version", lambda s: s.put("rows", "there", 2, if_version=99), "CONDITION_FAILED"),
    Refusal("put under another value", lambda s: s.put("rows", "there", 2, if_value=[]), "CONDITION_FAILED"),
    Refusal("delete under another value", lambda s: s.delete("rows", "there", if_value=[]), "CONDITION_FAILED"),
    Refusal("append under another version", lambda s: s.append("rows", "there", 1, if_version=99), "CONDITION_FAILED"),
    Refusal("increment of text", lambda s: _after(s, "text"), "NOT_AN_INTEGER"),
    Refusal("increment beyond 64 bits", lambda s: _after(s, INT_MAX), "OVERFLOW"),
    Refusal("append to no list", lambda s: s.append("rows", "there", 1), "NOT_A_LIST"),
    Refusal("append to a full list", _full, "LIST_FULL"),
    Refusal("empty key", lambda s: s.put("rows", "", 1), "BAD_REQUEST", "not_applied"),
    Refusal("key with a NUL", lambda s: s.put("rows", "a\0b", 1), "BAD_REQUEST", "not_applied"),
    Refusal("key of 600 bytes", lambda s: s.put("rows", "k" * 600, 1), "PAYLOAD_TOO_LARGE", "not_applied"),
    Refusal("value of 256 KiB", lambda s: s.put("rows", "k", "x" * 2**18), "PAYLOAD_TOO_LARGE", "not_applied"),
    Refusal("by over 64 bits", lambda s: s.increment("rows", "k", 2**63), "BAD_REQUEST", "not_applied"),
    Refusal("table that is not declared", lambda s: s.put("nowhere", "k", 1), "NOT_FOUND", "not_applied"),
    Refusal("name that is none", lambda s: s.put("No Table", "k", 1), "BAD_REQUEST", "not_applied"),
    Refusal("increment on a stream", lambda s: s.increment("events", "k"), "BAD_REQUEST", "not_applied"),
    Refusal("append on a stream", lambda s: s.append("events", "k", 1), "BAD_REQUEST", "not_applied"),
    Refusal("condition on a stream", lambda s: s.insert("events", "k", 1), "BAD_REQUEST", "not_applied"),
    Refusal("range with an empty key", lambda s: s.put_many("events", {"": 2}), "BAD_REQUEST", "not_applied"),
    Refusal("read of no table", lambda s: s.get("nowhere", "k"), "NOT_FOUND", "not_applied"),
    Refusal("read under a key of 600 bytes", lambda s: s.get("rows", "k" * 600), "PAYLOAD_TOO_LARGE", "not_applied"),
)


async def test_refusal_of_a_stream_table_says_what_it_takes(client: Client) -> None:
    async with client.session() as session:
        with pytest.raises(OperationFailed, match="a stream table takes puts and deletes"):
            await session.put("events", "k", 1, ttl_ms=1)
        with pytest.raises(OperationFailed, match=r"writes\[0\], table events: .* takes puts and deletes"):
            await session.transact(Transaction().insert("events", "k", 1))


async def test_each_refusal_has_its_code_and_leaves_the_session_usable(client: Client) -> None:
    async with client.session() as session:
        await session.put("rows", "there", 1)
        for refusal in REFUSALS:
            if refusal.outcome is None:
                result = await refusal.call(session)
                assert (result.applied, result.code) == (False, refusal.code), refusal.name
            else:
                with pytest.raises(OperationFailed) as refused:
                    await refusal.call(session)
                assert (refused.value.code, refused.value.outcome) == (refusal.code, refusal.outcome), refusal.name
        assert (await session.put("rows", "there", 2, if_value=1)).applied
        assert session.outstanding == 0


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
    assert (row.key, row.value) == ("n", -3)
    page = await client.scan("rows", limit=1)
    assert ([found.key for found in page.rows], page.next) == (["n"], None)


async def test_a_row_that_is_held_travels_again_only_once_it_has_changed(client: Client) -> None:
    async with client.session() as session:
        first = await session.put("rows", "k", {"n": 1})
        await session.put_many("events", [("k", "there")])
        row, item = await client.get("rows", "k"), await client.get("events", "k")
        await session.put("rows", "other", 1)
        # The value can only be that of the row that was held: the answer had none.
        mine = msgspec.structs.replace(row, value="mine")
        for read in (client.get, session.get):
            same = await read("rows", "k", held=mine)
            assert (same.value, same.version) == ("mine", first.version)
            assert same.commit > row.commit
        stale = await client.get("rows", "k", held=mine, consistency="stale")
        assert (stale.value, stale.age_ms is not None) == ("mine", True)
        assert (await client.get("events", "k", held=msgspec.structs.replace(item, value="mine"))).value == "mine"

        await session.put("rows", "k", {"n": 2})
        assert (await client.get("rows", "k", held=mine)).value == {"n": 2}
        await session.delete("rows", "k")
        assert await client.get("rows", "k", held=mine) is None
    for wrong in (7, msgspec.structs.replace(mine, key="another")):
        with fails(Code.BAD_REQUEST):
            await client.get("rows", "k", held=wrong)


async def test_replays_mismatches_and_fences(client: Client) -> None:
    async with client.session(nonce="one") as session:
        raised = wire.Operation(1, "increment", "rows", "n", by=2)
        assert await operate(client, session.client_id, 1, raised) == [("applied", 2, False)]
        assert await operate(client, session.client_id, 1, raised) == [("applied", 2, True)]
        other = wire.Operation(1, "increment", "rows", "n", by=3)
        assert await operate(client, session.client_id, 1, other) == ["PAYLOAD_MISMATCH"]
        told = await client.request(session.client_id, 1)
        assert told.state == "applied"
        assert (told.result.value, told.result.replayed) == (2, True)
        assert (await client.request(session.client_id, 7)).state == "never_seen"
    with fails(Code.SESSION_EXPIRED):
        await session.put("rows", "k", 1)
    assert (await client.request(session.client_id, 1)).state == "expired"


async def test_forgotten_twin_of_an_outbox_is_fenced(client: Client, tmp_path: Path) -> None:
    path, lost = tmp_path / "o", list[OperationFailed]()
    twin = await client.session(outbox=path, on_lost=lost.append).__aenter__()
    await twin.increment("rows", "n")
    (tmp_path / "copy").write_bytes(path.read_bytes())
    async with client.session(outbox=tmp_path / "copy") as session:
        assert (session.client_id, session.epoch) == (twin.client_id, 2)
        with fails(Code.FENCED, Outcome.NOT_APPLIED):
            await twin.increment("rows", "n")
        assert twin.lost.is_set()
        assert [failure.code for failure in lost] == [Code.FENCED]
        assert (await session.increment("rows", "n")).value == 2
    await twin.close()


async def test_appends_are_in_order(client: Client) -> None:
    async with client.session() as session:
        await session.append("rows", "l", 1)
        await session.submit("append", "rows", "l", {"two": 2})
    row = await client.get("rows", "l")
    assert row.value == [1, {"two": 2}]


async def test_remembered_read_keeps_its_answer_when_the_row_has_changed(client: Client) -> None:
    async with client.session() as session:
        written = await session.put("rows", "k", "old")
        read = wire.Operation(2, "get", "rows", "k")
        assert await operate(client, session.client_id, 1, read) == [("applied", "old", False)]
        changed = wire.Operation(3, "put", "rows", "k", "new")
        await operate(client, session.client_id, 1, changed)
        assert await operate(client, session.client_id, 1, read) == [("applied", "old", True)]
        assert written.sequence == 1
    async with client.session() as another:
        kept, absent = await another.get_remembered("rows", "k"), await another.get_remembered("rows", "nothing")
        assert (kept.value, kept.version, absent.value, absent.version) == ("new", 3, None, 0)


async def test_resolve_tells_the_result_or_seals_the_number(client: Client) -> None:
    async with client.session() as session:
        raised = wire.Operation(1, "increment", "rows", "n", by=2)
        await operate(client, session.client_id, 1, raised)
        applied = await client.resolve(RequestId(session.client_id, SequenceNumber(1)))
        assert applied.result.value == 2
        for _ in range(2):
            sealed = await client.resolve(RequestId(session.client_id, SequenceNumber(2)))
            assert sealed.state == "sealed"
        late = wire.Operation(2, "increment", "rows", "n", by=2)
        (verdict,) = await operate(client, session.client_id, 1, late)
        assert isinstance(verdict, str)
        row = await client.get("rows", "n")
        assert row.value == 2
        with pytest.raises(OncegateError):
            await client.resolve(RequestId(session.client_id, SequenceNumber(0)))


async def test_rows_over_plain_http(client: Client) -> None:
    row = "/v1/tables/rows/rows/a%20b"
    created = await http(client, "PUT", row, {"n": 1}, Idempotency_Key='"k1"')
    assert (created.status, created.body["version"], created.headers["ETag"]) == (200, 1, '"1"')
    again = await http(client, "PUT", row, {"n": 1}, Idempotency_Key='"k1"')
    assert (again.body, again.headers["Idempotent-Replayed"]) == (created.body, "true")
    reused = await http(client, "PUT", row, {"n": 2}, Idempotency_Key='"k1"')
    assert (reused.status, reused.body["code"]) == (422, "PAYLOAD_MISMATCH")
    stale = await http(client, "PUT", row, 2, Idempotency_Key='"k2"', If_Match='"9"')
    assert (stale.status, stale.body["code"], stale.body["value"]) == (412, "CONDITION_FAILED", {"n": 1})
    unnamed = await http(client, "PUT", row, 2)
    assert (unnamed.status, unnamed.body["code"]) == (400, "BAD_REQUEST")
    counted = await http(client, "POST", "/v1/tables/rows/rows/n/increment", {"by": 5}, Idempotency_Key='"k3"')
    assert counted.body["value"] == 5
    appended = await http(client, "POST", "/v1/tables/rows/rows/l/append", {"item": 7}, Idempotency_Key='"k4"')
    assert appended.status == 200
    read = await http(client, "GET", row)
    assert (read.body["value"], read.headers["Oncegate-Commit"]) == ({"n": 1}, "4")
    assert (await http(client, "GET", row, If_None_Match=read.headers["ETag"])).status == 304
    assert (await http(client, "DELETE", row, Idempotency_Key='"k5"')).status == 200
    assert (await http(client, "GET", row)).status == 404
    assert (await http(client, "PATCH", row, 1)).body["code"] == "METHOD_NOT_ALLOWED"
    assert (await http(client, "GET", "/v1/nothing")).body["code"] == "NOT_FOUND"


async def test_body_over_the_bound_is_refused_before_it_is_sent(client: Client) -> None:
    address = urlsplit(client._connection.router.endpoints[0])
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    head = "PUT /v1/tables/rows/rows/k HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {9 * 2**20}\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.readuntil(b"}"), 10)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 413")
    assert b'"code":"PAYLOAD_TOO_LARGE"' in answer


async def test_sessions_over_plain_http(client: Client) -> None:
    opened = await http(client, "POST", "/v1/sessions", {"nonce": "me"})
    assert opened.status == 201
    assert (await http(client, "POST", "/v1/sessions", {"nonce": "me"})).body == opened.body
    path = f"/v1/sessions/{opened.body['client_id']}"
    assert (await http(client, "POST", "/v1/sessions", {"nonce": "me", "lease_ms": 1})).body["code"] == "BAD_REQUEST"
    assert (await http(client, "POST", f"{path}/renew", {"epoch": 1})).body["lease_ms_left"] == 60_000
    taken = await http(client, "POST", f"{path}/take-over", {"nonce": "you"})
    assert taken.body == {"epoch": 2, "first_incomplete": 1, "highest_sequence": 0}
    assert (await http(client, "POST", f"{path}/renew", {"epoch": 1})).body["code"] == "FENCED"
    described = await http(client, "GET", path)
    assert (described.body["epoch"], described.body["records"]) == (2, 0)
    assert (await http(client, "DELETE", f"{path}?epoch=2")).status == 204
    assert (await http(client, "GET", path)).body["code"] == "SESSION_EXPIRED"
    assert (await http(client, "GET", "/v1/sessions/00000000000000ff")).body["code"] == "NOT_FOUND"


async def test_events_are_taken_once(client: Client) -> None:
    event = {"specversion": "1.0", "id": "e1", "source": "/shop", "type": "order", "data": {"n": 1}}
    headers = {"Content_Type": "application/cloudevents+json"}
    for replayed in (False, True):
        taken = await http(client, "POST", "/v1/tables/events/events", event, **headers)
        assert taken.status == 200
        assert [result["replayed"] for result in taken.body["results"]] == [replayed]


async def test_a_flow_is_declared_read_and_moved(client: Client) -> None:
    flow = await client.declare_flow("copies", source="events", max_items=3, linger_ms=60_000, consumers=["mail"])
    assert (flow.source, flow.last_batch) == ("events", 0)
    with fails(Code.CONFLICT):
        await client.declare_flow("copies", source="events", max_items=4)
    async with client.session() as session:
        await session.put_many("events", {f"k{n}": n for n in range(7)})
        assert (await session.get("events", "k6")) is not None
    described = await client.flow("copies")
    assert (described.last_batch, described.items, described.open_items) == (2, 6, 1)
    path = "/v1/flows/copies"
    batch = await http(client, "GET", f"{path}/batches/1", Accept="application/x-ndjson")
    assert [item["key"] for item in batch.body] == ["k0", "k1", "k2"]
    assert (await http(client, "GET", f"{path}/batches/9")).body["code"] == "NOT_FOUND"
    attached = await http(client, "POST", f"{path}/consumers/mail/attach", {"nonce": "one"})
    assert attached.body == {"fence": 1, "cursor": 0}
    moved = await http(client, "POST", f"{path}/consumers/mail/cursor", {"batch": 2, "fence": 1})
    assert moved.body == {"cursor": 2}
    assert (await client.flow("copies")).consumers["mail"].cursor == 2


async def test_outcomes_that_are_forgotten_stay_unknown(client: Client) -> None:
    async with client.session() as session:
        first = await session.put("rows", "a", 1)
        await session.put("rows", "b", 1)
        with pytest.raises(OutcomeUnknown) as acknowledged:
            await client.resolve(first.request_id)
        assert (acknowledged.value.code, acknowledged.value.request_id) == (Code.STALE, first.request_id)
    with fails(Code.SESSION_EXPIRED, kind=OutcomeUnknown):
        await client.resolve(first.request_id)


async def test_tables_are_listed_and_dropped_by_their_incarnation(client: Client) -> None:
    await client.declare_table("a")
    listed = await client.tables()
    assert [(one.name, one.kind, one.incarnation) for one in listed] == [
        ("a", "resident", 3), ("events", "stream", 2), ("rows", "resident", 1),
    ]  # fmt: skip
    first = await http(client, "GET", "/v1/tables?limit=2")
    assert ([one["name"] for one in first.body["tables"]], first.body["next"]) == (["a", "events"], "events")
    rest = await http(client, "GET", "/v1/tables?limit=2&after=events")
    assert ([one["name"] for one in rest.body["tables"]], rest.body["next"]) == (["rows"], None)
    unsaid = await http(client, "DELETE", "/v1/tables/a")
    assert (unsaid.status, unsaid.body["code"]) == (400, "BAD_REQUEST")
    with fails(Code.CONFLICT, Outcome.NOT_APPLIED):
        await client.drop_table("a", incarnation=1)
    assert await client.drop_table("a") == 3
    assert await client.drop_table("a", incarnation=3) == 3, "sent again it changes nothing"
    with fails(Code.NOT_FOUND):
        await client.table("a")


async def test_declared_again_a_table_has_nothing_of_the_one_that_was_dropped(client: Client) -> None:
    async with client.session() as session:
        await session.put("rows", "k", 1)
        old = await http(client, "GET", "/v1/tables/rows/rows")
        with fails(Code.CONFLICT):
            await client.drop_table("rows")
        assert await client.drop_table("rows", force=True) == 1
        with fails(Code.NOT_FOUND, Outcome.NOT_APPLIED):
            await session.put("rows", "k", 2)
        assert (await http(client, "GET", "/v1/tables/rows/rows/k")).body["detail"] == "no table rows"
        await client.declare_table("rows")
        assert await client.get("rows", "k") is None
        assert (await session.insert("rows", "k", 3)).applied
        for then in (f"rows?commit={old.body['commit'] - 1}", f"watch?from={old.body['commit'] - 1}"):
            async with asyncio.timeout(60):
                refused = await http(client, "GET", f"/v1/tables/rows/{then}")
            assert (refused.status, refused.body["code"]) == (410, "RETENTION_EXCEEDED")


async def test_stream_table_that_is_back_shows_no_row_of_the_one_before(client: Client) -> None:
    async with client.session() as session:
        await session.put("events", "k", 1)
        assert (await session.get("events", "k")) is not None
        await client.declare_flow("copies", source="events")
        with fails(Code.CONFLICT):
            await client.drop_table("events", force=True)
        await client.delete_flow("copies")
        await client.drop_table("events", force=True)
        await client.declare_table("events", kind="stream")
        assert await client.get("events", "k") is None
        await session.put("events", "k", 2)
        row = await session.get("events", "k")
        assert row is not None
        assert row.value == 2


async def test_watch_of_a_table_ends_when_it_is_dropped(client: Client) -> None:
    url = f"{client._connection.router.endpoints[0]}/v1/tables/rows/watch"
    async with aiohttp.ClientSession() as connection, connection.get(url) as events:
        assert b"progress" in await events.content.readuntil(b"\n\n")
        await client.drop_table("rows")
        await client.declare_table("rows")
        end = await asyncio.wait_for(events.content.readuntil(b"\n\n"), 10)
        assert end.startswith(b"event: end\n")
        assert b'"code":"NOT_FOUND"' in end


async def test_sessions_and_their_open_requests_are_listed(client: Client) -> None:
    async with client.session() as first, client.session() as second:
        listed = await client.sessions()
        assert [one.client_id for one in listed] == [format_client_id(one.client_id) for one in (first, second)]
        page = await http(client, "GET", "/v1/sessions?limit=1")
        assert (len(page.body["sessions"]), page.body["next"]) == (1, format_client_id(first.client_id))
        last = await http(client, "GET", f"/v1/sessions?limit=1&after={page.body['next']}")
        assert (last.body["sessions"][0]["client_id"], last.body["next"]) == (format_client_id(second.client_id), None)
        for sequence in (2, 5):
            await operate(client, second.client_id, 1, wire.Operation(sequence, "put", "rows", "k", sequence))
        await client.resolve(RequestId(second.client_id, SequenceNumber(6)))
        runs = await client.open_requests(second.client_id)
        assert [(one.first, one.last, one.state) for one in runs] == [
            (1, 1, "never_seen"), (2, 2, "executed"), (3, 4, "never_seen"), (5, 5, "executed"), (6, 6, "sealed"),
        ]  # fmt: skip
        path = f"/v1/sessions/{format_client_id(second.client_id)}/requests?limit=2"
        part = await http(client, "GET", path)
        assert ([one["first"] for one in part.body["requests"]], part.body["next"]) == ([1, 2], 2)
        rest = await http(client, "GET", f"{path}&after=2")
        assert [one["first"] for one in rest.body["requests"]] == [3, 5]
        assert (await client.open_requests(first.client_id)) == []
    assert await client.sessions() == []
    with fails(Code.SESSION_EXPIRED):
        await client.open_requests(first.client_id)
