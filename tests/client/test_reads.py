"""Reads and declarations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from oncegate import Client, Code, DeadlineExceeded, MalformedAnswer, Session, Tuning
from oncegate.rifl.errors import Outcome
from oncegate.testing import FakeGateway
from tests.client.answers import cut, fails


async def test_get_returns_the_row_or_none(client: Client, session: Session) -> None:
    await session.put("rows", "a/b c%", [1, None])
    row = await client.get("rows", "a/b c%")
    assert (row.key, row.value, row.version, row.commit) == ("a/b c%", [1, None], 1, 1)
    assert await client.get("rows", "absent") is None
    assert await session.get("rows", "..") is None


async def test_session_read_asks_for_what_it_has_seen(fake: FakeGateway, client: Client, session: Session) -> None:
    queries: list[dict[str, str]] = []

    async def note(request: web.Request) -> web.StreamResponse | None:
        if "/rows/" in request.path:
            queries.append(dict(request.query))
        return None

    fake.nodes[0].before = note
    await session.put("rows", "a", 1)
    await session.put("rows", "a", 2)
    await session.get("rows", "a")
    await session.get("rows", "a", consistency="stale")
    await client.get("rows", "a", consistency="session", min_commit=1)
    await client.get("rows", "a")
    assert queries == [
        {"consistency": "session", "min_commit": "2"},
        {"consistency": "stale"},
        {"consistency": "session", "min_commit": "1"},
        {},
    ]


async def test_stale_row_says_how_old_it_may_be(client: Client, session: Session) -> None:
    await session.put("rows", "k", 1)
    stale = await client.get("rows", "k", consistency="stale")
    strict = await client.get("rows", "k")
    assert (stale.age_ms, strict.age_ms) == (0, None)


async def test_row_that_was_seen_to_be_gone_is_not_read_from_a_node_that_still_has_it(fake: FakeGateway) -> None:
    floors: list[int] = []

    async def note(request: web.Request) -> web.StreamResponse | None:
        if "/rows/" in request.path:
            floors.append(int(request.query["min_commit"]))
        return None

    fake.nodes[0].before = note
    async with Client(fake.endpoints) as client, client.session() as session:
        for n in range(41):
            await session.put("rows", f"k{n}", n)
        session._sender.highest_commit = 0  # as if another session had written
        assert await session.get("rows", "gone") is None
        assert await session.get("rows", "gone") is None
        assert await client.get("rows", "gone", consistency="session") is None
    assert floors == [0, 41, 41]


READS: dict[str, Callable[[Client], Awaitable[object]]] = {
    "a row": lambda client: client.get("rows", "k"),
    "an absent row": lambda client: client.get("rows", "gone"),
    "rows by name": lambda client: client.get_many([("rows", "k"), ("rows", "gone")]),
    "a page": lambda client: client.scan("rows"),
    "a page without rows": lambda client: client.scan("rows", prefix="gone"),
    "a range": lambda client: anext(client.rows("rows").pages()),
    "a change": lambda client: anext(aiter(client.watch("rows", from_commit=0))),
    "a write under a key": lambda client: client.put("rows", "k", 2, idempotency_key="key"),
    "a refused write under a key": lambda client: client.put("rows", "k", 2, if_absent=True, idempotency_key="key"),
}


@pytest.mark.parametrize("first", READS)
async def test_session_read_reflects_all_that_its_client_has_seen(fake: FakeGateway, first: str) -> None:
    floors: list[int] = []

    async def note(request: web.Request) -> web.StreamResponse | None:
        if "min_commit" in request.query:
            floors.append(int(request.query["min_commit"]))
        return None

    fake.nodes[0].before = note
    async with Client(fake.endpoints) as writer, writer.session() as session:
        await session.put("rows", "k", 1)
        await session.put("rows", "other", 1)
        async with Client(fake.endpoints) as client:
            await READS[first](client)
            seen = client.highest_commit
            await client.get("rows", "k", consistency="session")
            await client.get_many([("rows", "k")], consistency="session")
    assert seen >= (1 if first in ("a row", "a change") else 2)
    assert floors == [seen, max(seen, floors[1])]


async def test_reads_that_any_node_can_answer_are_spread(trio: FakeGateway) -> None:
    async with Client(trio.endpoints) as client:
        for _ in range(6):
            await client.get("rows", "k", consistency="stale")
    assert [node.requests["GET /v1/tables/rows/rows/k"] for node in trio.nodes] == [2, 2, 2]


async def test_scan_reads_on_after_a_page(client: Client, session: Session) -> None:
    await session.put_many("rows", {f"k{n}": n for n in range(5)})
    page = await client.scan("rows", prefix="k", limit=3)
    assert [row.key for row in page.rows] == ["k0", "k1", "k2"]
    page = await client.scan("rows", prefix="k", after=page.next)
    assert [row.key for row in page.rows] == ["k3", "k4"]
    assert page.next is None


async def test_declarations_are_idempotent_and_conflicts_typed(fake: FakeGateway, client: Client) -> None:
    assert (await client.declare_table("tweets", kind="stream")).kind == "stream"
    assert (await client.declare_table("tweets", kind="stream")).kind == "stream"
    with fails(Code.CONFLICT):
        await client.declare_table("tweets", kind="resident")
    assert (await client.declare_flow("fanout", source="tweets")).source == "tweets"
    assert (await client.flow("fanout")).flow == "fanout"
    cluster = await client.cluster()
    assert cluster.leader == "n0"
    assert cluster.members[0].http == fake.nodes[0].endpoint


async def test_malformed_read_answer_is_a_typed_error(fake: FakeGateway) -> None:
    async def answer(request: web.Request) -> web.StreamResponse | None:
        return web.Response(text='{"rows": 7}', content_type="application/json")

    fake.nodes[0].before = answer
    tuning = Tuning(backoff_first_s=0.001)
    async with Client(fake.endpoints, tuning=tuning) as client:
        with pytest.raises(MalformedAnswer):
            await client.scan("rows")


async def test_token_travels_with_every_request(fake: FakeGateway) -> None:
    seen: set[str | None] = set()

    async def note(request: web.Request) -> web.StreamResponse | None:
        seen.add(request.headers.get("Authorization"))
        return None

    fake.nodes[0].before = note
    async with Client(fake.endpoints, token="s3") as client, client.session() as session:
        await session.put("rows", "a", 1)
        await session.put_many("events", {f"k{n}": n for n in range(20)})
        await client.get("rows", "a")
    assert seen == {"Bearer s3"}


@pytest.mark.parametrize("read", ["row", "rows", "page", "tables", "request"])
async def test_read_that_runs_out_of_time_leaves_nothing_in_doubt(fake: FakeGateway, read: str) -> None:
    async def lost(request: web.Request) -> web.StreamResponse:
        return cut(request)

    async with Client(fake.endpoints, tuning=Tuning(backoff_first_s=0.001, backoff_cap_s=0.01)) as client:
        asked: dict[str, Callable[[], Awaitable[object]]] = {
            "row": lambda: client.get("rows", "k", timeout_s=0.1),
            "rows": lambda: client.get_many([("rows", "k")], timeout_s=0.1),
            "page": lambda: client.scan("rows", timeout_s=0.1),
            "tables": lambda: client.tables(timeout_s=0.1),
            "request": lambda: client.request(1, 1, timeout_s=0.1),
        }
        fake.nodes[0].before = lost
        with fails(Code.TIMEOUT, Outcome.NOT_APPLIED, kind=DeadlineExceeded):
            await asked[read]()
