"""Scans at one commit number, several rows at once, watches and consumers: the fixture and a real node keep the same
contract; and what a watch does when its node goes, on the fixture's three nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from oncegate import Change, Client, Code, OncegateError, OperationFailed, Session, Transaction, Tuning, sync
from oncegate.gateway.http.routes import watch
from oncegate.gateway.machine import commands as c
from oncegate.gateway.node import watching
from oncegate.testing import FakeCluster, FakeGateway
from tests.client.answers import fails
from tests.client.test_contract import a_fake, a_node, http


@pytest.fixture(params=[a_fake, a_node], ids=["fake", "node"])
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    async with request.param(tmp_path) as endpoint, Client(endpoint) as connected:
        await connected.declare_table("rows")
        await connected.declare_table("others")
        await connected.declare_table("events", kind="stream")
        yield connected


@pytest.fixture
async def session(client: Client) -> AsyncIterator[Session]:
    async with client.session() as opened:
        yield opened


async def taken(source: AsyncIterator[Any], count: int) -> list[Any]:
    """Return the next items of an iteration."""
    async with asyncio.timeout(20):
        return [await anext(source) for _ in range(count)]


async def taken_all(source: AsyncIterable[Any]) -> list[Any]:
    return [one async for one in source]


async def collected(source: Any) -> list[Any]:
    return [(row.key, row.value) async for row in source]


async def test_a_scan_is_one_state_however_rows_change_between_its_pages(client: Client, session: Session) -> None:
    for n in range(10):
        await session.put("rows", f"k{n}", n)
    before = [(f"k{n}", n) for n in range(10)]
    scan = client.rows("rows", page_rows=3)
    seen = []
    async for row in scan:
        seen.append((row.key, row.value))
        if row.key in ("k0", "k4"):
            await session.delete("rows", "k1")
            await session.put("rows", "k7", "new")
            await session.put("rows", "k55", "new")
            await session.delete("rows", "k9")
    assert (seen, scan.commit) == (before, 10)
    after = dict(before) | {"k7": "new", "k55": "new"}
    del after["k1"], after["k9"]
    assert await collected(client.rows("rows")) == sorted(after.items())
    assert await collected(client.rows("rows", commit=10, reverse=True, page_rows=4)) == before[::-1]
    assert await collected(client.rows("rows", commit=10, prefix="k", start="k3", end="k6")) == before[3:6]
    assert await collected(client.rows("rows", prefix="k5", reverse=True)) == [("k55", "new"), ("k5", 5)]
    assert await collected(client.rows("rows", prefix="x")) == []


async def test_pages_over_plain_http_go_on_by_token_or_by_key(client: Client, session: Session) -> None:
    for n in range(5):
        await session.put("rows", f"k{n}", n)
    path = "/v1/tables/rows/rows"
    first = (await http(client, "GET", f"{path}?limit=2")).body
    assert ([row["key"] for row in first["rows"]], first["next"]) == (["k0", "k1"], "k1")
    await session.put("rows", "k1a", 1)
    at_once = (await http(client, "GET", f"{path}?limit=9&page={first['page']}")).body
    assert ([row["key"] for row in at_once["rows"]], at_once["page"]) == (["k2", "k3", "k4"], None)
    assert at_once["commit"] == first["commit"] == 5
    newer = (await http(client, "GET", f"{path}?limit=9&after=k1")).body
    assert ([row["key"] for row in newer["rows"]], newer["next"]) == (["k1a", "k2", "k3", "k4"], None)
    back = (await http(client, "GET", f"{path}?limit=2&after=k3&reverse=true")).body
    assert [row["key"] for row in back["rows"]] == ["k2", "k1a"]
    for wrong in ("page=x", f"page={first['page']}&prefix=k", "reverse=1", "commit=x", "from=" + "k" * 600):
        assert (await http(client, "GET", f"{path}?{wrong}")).status in (400, 413), wrong
    assert (await http(client, "GET", "/v1/tables/events/rows")).body["code"] == "BAD_REQUEST"
    later = await http(client, "GET", f"{path}?commit=99&consistency=stale")
    assert (later.status, later.body["code"]) == (503, "NOT_READY")


async def test_several_rows_of_several_tables_are_read_at_one_commit_number(client: Client, session: Session) -> None:
    await session.put("rows", "a", 1)
    await session.put("others", "a", {"n": 2})
    found = await client.get_many([("rows", "a"), ("rows", "absent"), ("others", "a")])
    assert [None if row is None else (row.value, row.version, row.commit) for row in found] == [
        (1, 1, 2),
        None,
        ({"n": 2}, 2, 2),
    ]
    with fails(Code.NOT_FOUND):
        await client.get_many([("nowhere", "a")])
    with fails(Code.BAD_REQUEST):
        await client.get_many([("events", "a")])
    with fails(Code.PAYLOAD_TOO_LARGE):
        await client.get_many([("rows", "a")] * 257)


async def test_a_watch_tells_each_change_of_its_rows_once_and_in_order(client: Client, session: Session) -> None:
    await session.put("rows", "a", 1)
    async with aclosing(aiter(client.watch("rows", prefix="a", from_commit=0))) as changes:
        assert await taken(changes, 1) == [Change("a", 1, 1, False, "", 1, 1)]
        await session.put("rows", "b", 1)
        await session.put("others", "a", 1)
        await session.increment("rows", "a", 4)
        await session.put("rows", "ab", None)
        await session.delete("rows", "a")
        await session.delete("rows", "a")  # changes nothing
        await session.append("rows", "a", "x")
        found = await taken(changes, 4)
    assert [(one.key, one.commit, one.value, one.deleted) for one in found] == [
        ("a", 4, 5, False),
        ("ab", 5, None, False),
        ("a", 6, None, True),
        ("a", 8, ["x"], False),
    ]
    watch = client.watch("rows", key="a", from_commit=5)
    async with aclosing(aiter(watch)) as changes:
        assert [one.commit for one in await taken(changes, 2)] == [6, 8]
        assert watch.commit == 8


async def test_a_watch_without_a_beginning_tells_what_changes_from_now_on(client: Client, session: Session) -> None:
    await session.put("rows", "a", 1)
    watch = client.watch("rows")
    async with aclosing(aiter(watch)) as changes:
        first = asyncio.ensure_future(taken(changes, 1))
        async with asyncio.timeout(20):
            while watch.commit is None:  # the position that the node has told
                await asyncio.sleep(0.001)
        await session.put("rows", "a", 2)
        assert [one.value for one in await first] == [2]


async def test_rows_and_a_watch_from_their_commit_leave_nothing_out(client: Client, session: Session) -> None:
    for n in range(4):
        await session.put("rows", f"k{n}", n)
    scan = client.rows("rows", page_rows=2)
    state = {}
    async for row in scan:
        state[row.key] = row.value
        await session.increment("rows", "k3")
    async with aclosing(aiter(client.watch("rows", from_commit=scan.commit))) as changes:
        for change in await taken(changes, 4):
            state[change.key] = change.value
    assert state == dict(await collected(client.rows("rows")))


async def test_changes_of_a_transaction_come_in_one_event(client: Client) -> None:
    writes = [
        {"op": "put", "table": table, "key": key, "value": 1}
        for table, key in (("rows", "a"), ("others", "x"), ("rows", "b"))
    ]
    body = {"writes": writes}
    answer = await http(client, "POST", "/v1/transactions", body, Idempotency_Key='"t1"')
    assert answer.status == 200, answer.body
    async with aclosing(aiter(client.watch("rows", from_commit=0))) as changes:
        found = await taken(changes, 2)
    assert [(one.key, one.version, one.commit, one.until) for one in found] == [("a", 1, 0, 3), ("b", 3, 3, 3)]
    # Whoever has done with the first alone, and kept its number, is told both again after a restart.
    async with aclosing(aiter(client.watch("rows", from_commit=found[0].commit))) as changes:
        assert [one.key for one in await taken(changes, 2)] == ["a", "b"]


async def test_a_number_inside_a_transaction_means_its_end_everywhere(client: Client, session: Session) -> None:
    for account in ("a", "b"):
        await session.put("rows", account, 100)
    moved = Transaction().increment("rows", "a", -30).increment("others", "x", 1).increment("rows", "b", 30)
    result = await session.transact(moved)
    assert ([one.commit for one in result.writes], result.commit) == ([3, 4, 5], 5)
    row = await client.get("rows", "a")
    assert row is not None
    assert (row.version, row.commit) == (3, 5)
    for number in (3, 4, 5):
        scan = client.rows("rows", page_rows=1, commit=number)
        assert ([(one.key, one.value, one.commit) async for one in scan], scan.commit) == (
            [("a", 70, 5), ("b", 130, 5)],
            5,
        )
        answer = await http(client, "GET", f"/v1/tables/rows/rows?commit={number}&limit=1")
        assert (answer.body["commit"], answer.headers["Oncegate-Commit"]) == (5, "5")
        kept = await client.get("rows", "b", consistency="session", min_commit=number)
        assert kept is not None
        assert (kept.value, kept.commit >= 5) == (130, True)
    await session.put("rows", "later", 1)
    for number in (3, 4, 5):
        async with aclosing(aiter(client.watch("rows", from_commit=number))) as changes:
            (first,) = await taken(changes, 1)
        assert first.key == "later", "the number says all of the transaction already"


async def test_commit_is_one_number_in_the_header_the_body_and_the_sdk(client: Client, session: Session) -> None:
    """It names a state: of a transaction that after its last write, however it is sent, also in a replay."""
    writes = [{"op": "get", "table": "rows", "key": "a"}]
    writes += [{"op": "put", "table": "rows", "key": key, "value": 1} for key in ("a", "b")]
    for _ in range(2):
        answer = await http(client, "POST", "/v1/transactions", {"writes": writes}, Idempotency_Key='"t1"')
        assert (answer.body["commit"], answer.headers["Oncegate-Commit"]) == (3, "3")
        assert [one["commit"] for one in answer.body["writes"]] == [1, 2, 3]
    both = Transaction().put("rows", "c", 1).put("rows", "d", 1)
    result = await session.transact(both)
    assert (result.commit, result.request_id.sequence) == (5, 1)
    resolved = await http(client, "GET", f"/v1/requests/{result.request_id}")
    assert resolved.body["result"]["commit"] == 5
    listed = await http(client, "GET", f"/v1/sessions/{str(result.request_id).split('/')[0]}/requests")
    assert [one["commit"] for one in listed.body["requests"]] == [5]
    keyed = await session.transact(both, idempotency_key="k")
    assert keyed.commit == keyed.writes[-1].commit == 7


async def test_a_reader_who_leaves_in_the_middle_of_a_transaction_is_told_the_rest_once(
    client: Client, session: Session
) -> None:
    await session.put("rows", "before", 1)
    three = Transaction().put("rows", "a", 1).put("rows", "b", 2).put("rows", "c", 3)
    await session.transact(three)
    watch = client.watch("rows", from_commit=0)
    seen: list[Change] = []
    for _ in range(3):  # the same watch, left after each
        async with aclosing(aiter(watch)) as changes:
            seen += await taken(changes, 1)
        assert watch.commit == 1, "it stands at a state's number"
    async with aclosing(aiter(watch)) as changes:
        seen += await taken(changes, 1)
    assert ([one.key for one in seen], watch.commit) == (["before", "a", "b", "c"], 4)
    for left in seen:  # another process, which kept the number that came with the change
        rest = [one.key for one in seen if one.version > left.commit]
        if rest:
            async with aclosing(aiter(client.watch("rows", from_commit=left.commit))) as changes:
                assert [one.key for one in await taken(changes, len(rest))] == rest


async def test_rows_of_a_closed_session_end_at_one_commit_number(client: Client) -> None:
    async with client.session() as session:
        for key in ("a", "b", "c"):
            await session.put("rows", key, 1, bound=True)
    for number, rows in ((3, ["a", "b", "c"]), (4, []), (5, []), (6, [])):
        assert [row.key async for row in client.rows("rows", commit=number)] == rows
    async with aclosing(aiter(client.watch("rows", from_commit=3))) as changes:
        assert [(one.deleted, one.until) for one in await taken(changes, 3)] == [(True, 6)] * 3


async def test_the_end_of_a_row_that_is_bound_to_a_session_is_a_change_with_its_cause(client: Client) -> None:
    async with client.session() as session:
        await session.put("rows", "lock", "me", bound=True)
        (row,) = await client.get_many([("rows", "lock")])
        assert row is not None
        assert row.owner
        assert [one.owner async for one in client.rows("rows")] == [row.owner]
    async with aclosing(aiter(client.watch("rows", key="lock", from_commit=1))) as changes:
        (ended,) = await taken(changes, 1)
    assert (ended.deleted, ended.value, ended.cause) == (True, None, "session end")


async def test_what_cannot_be_watched_is_refused(client: Client) -> None:
    path = "/v1/tables/rows/watch"
    assert (await http(client, "GET", "/v1/tables/nowhere/watch")).body["code"] == "NOT_FOUND"
    assert (await http(client, "GET", "/v1/tables/events/watch")).body["code"] == "BAD_REQUEST"
    assert (await http(client, "GET", f"{path}?key=a&prefix=b")).body["code"] == "BAD_REQUEST"
    assert (await http(client, "GET", f"{path}?from=x")).body["code"] == "BAD_REQUEST"
    with fails(Code.NOT_FOUND):
        await taken(aiter(client.watch("nowhere")), 1)


async def test_a_consumer_gets_each_batch_and_its_cursor_moves_once_the_body_has_run(client: Client) -> None:
    await client.declare_flow("copies", source="events", max_items=2, linger_ms=60_000)
    async with client.session() as session:
        await session.put_many("events", [(f"k{n}", n) for n in range(6)])
    seen = []

    async def work() -> None:
        async for batch in client.consume("copies", "mail"):
            seen.append((batch.number, [(item.key, item.value) for item in batch.items]))
            if batch.number == 2:
                raise RuntimeError("the body failed")

    with pytest.raises(RuntimeError, match="the body failed"):
        await work()
    assert seen == [(1, [("k0", 0), ("k1", 1)]), (2, [("k2", 2), ("k3", 3)])]
    assert (await client.flow("copies")).consumers["mail"].cursor == 1
    batches = []
    async for batch in client.consume("copies", "mail"):
        batches.append(batch)
        seen.append((batch.number, [item.key for item in batch.items]))
        if batch.number == 3:
            for one in (batch, batches[0], batch):
                await one.done()
            break
    assert seen[2:] == [(2, ["k2", "k3"]), (3, ["k4", "k5"])]
    assert (await client.flow("copies")).consumers["mail"].cursor == 3


async def test_what_a_stream_table_retains_is_read_in_commit_order_from_any_place(client: Client) -> None:
    own = {"max_items": 2, "linger_ms": 60_000, "consumers": ["mail"], "retention_ms": 0}
    await client.declare_table("log", kind="stream", flow=own)
    assert await taken_all(client.items("log")) == []
    async with client.session() as session:
        commits = []
        for n in range(8):  # items of other tables lie between
            commits.append((await session.put("log", f"k{n}", n)).commit)
            await session.put("rows", "k", n)
    batches = (await client.flow("log")).last_batch
    items = client.items("log")
    assert [(item.commit, item.key, item.value) for item in await taken_all(items)] == [
        (commit, f"k{n}", n) for n, commit in enumerate(commits)
    ]
    assert items.batch == batches
    assert await taken_all(client.items("log", from_batch=batches + 1)) == []
    for above in range(commits[-1] + 2):
        found = [item.commit for item in await taken_all(client.items("log", from_commit=above))]
        assert found == [commit for commit in commits if commit > above], above
    assert not (await client.flow("log")).consumers["mail"].attached

    async for batch in client.consume("log", "mail"):
        await batch.done()
        if batch.number == 3:
            break
    async with asyncio.timeout(20):
        while (kept := await client.flow("log")).first_batch < 4:
            async with client.session() as session:
                await session.put("log", "more", 0)
    oldest = (await taken_all(client.items("log")))[0].commit
    for early in (client.items("log", from_batch=3), client.items("log", from_commit=oldest - 2)):
        with pytest.raises(OperationFailed, match=rf"(oldest is|in batch) {kept.first_batch} ") as refused:
            await taken_all(early)
        assert refused.value.code is Code.RETENTION_EXCEEDED
    assert (await taken_all(client.items("log", from_commit=oldest - 1)))[0].commit == oldest
    with fails(Code.NOT_FOUND):
        await taken_all(client.items("nothing"))
    with fails(Code.BAD_REQUEST):
        client.items("log", from_batch=1, from_commit=1)


async def test_an_instance_that_was_replaced_is_fenced(client: Client) -> None:
    await client.declare_flow("copies", source="events", max_items=1)
    async with client.session() as session:
        await session.put_many("events", [(f"k{n}", n) for n in range(3)])
    older, newer = aiter(client.consume("copies", "mail")), aiter(client.consume("copies", "mail"))
    async with aclosing(older), aclosing(newer):
        (first,) = await taken(older, 1)
        assert [batch.number for batch in await taken(newer, 2)] == [1, 2]
        with fails(Code.FENCED, kind=OperationFailed):
            await first.done()
        with fails(Code.FENCED, kind=OperationFailed):
            await anext(older)


# On the fixture alone: nodes that go, histories that end


TUNING = Tuning(backoff_first_s=0.001, backoff_cap_s=0.01)


async def test_a_watch_goes_on_at_another_node_and_misses_nothing(trio: FakeGateway) -> None:
    async with (
        Client(trio.endpoints, tuning=TUNING) as client,
        client.session() as session,
        aclosing(aiter(client.watch("rows", from_commit=0))) as changes,
    ):
        for turn in range(6):
            await session.put("rows", f"k{turn}", turn)
            await session.put("rows", f"k{turn}", -turn)
            assert [one.value for one in await taken(changes, 2)] == [turn, -turn]
            node = next(one for one in trio.nodes if any("/watch" in path for path in one.requests))
            await node.stop()
            node.requests.clear()
            trio.lead(next(one for one in trio.nodes if one.running))
            await session.put("rows", f"l{turn}", turn)  # while nobody is connected
            await node.start()
            assert [one.key for one in await taken(changes, 1)] == [f"l{turn}"]


async def test_a_watch_in_which_nothing_changes_outlives_its_node(trio: FakeGateway) -> None:
    """The deadline is for nodes that do not answer: a stream that is quiet for longer is one that is there."""
    async with (
        Client(trio.endpoints, tuning=TUNING) as client,
        client.session() as session,
        aclosing(aiter(client.watch("rows", from_commit=0, timeout_s=0.2))) as changes,
    ):
        await session.put("rows", "before", 1)
        await taken(changes, 1)
        waiting = asyncio.ensure_future(taken(changes, 1))
        await asyncio.sleep(0.3)
        for node in trio.nodes:
            await node.stop()
            await node.start()
        await session.put("rows", "after", 1)
        assert [one.key for one in await waiting] == ["after"]


async def test_a_past_that_no_node_keeps_is_refused_with_the_first_commit_that_is_kept(trio: FakeGateway) -> None:
    async with Client(trio.endpoints, tuning=TUNING) as client, client.session() as session:
        await session.put("rows", "a", 1)
        scan = client.rows("rows", page_rows=1)
        await session.put("rows", "b", 1)
        steps = aiter(scan)
        await taken(steps, 1)
        await session.put("rows", "c", 1)
        trio.watching.replaced(trio.commit)
        with fails(Code.RETENTION_EXCEEDED):
            await anext(steps)
        with fails(Code.RETENTION_EXCEEDED):
            await taken(aiter(client.watch("rows", from_commit=1)), 1)
        refused = await http(client, "GET", "/v1/tables/rows/watch?from=1")
        assert (refused.status, refused.body["code"], refused.body["first_commit"]) == (410, "RETENTION_EXCEEDED", 3)
        watches = [node.requests["GET /v1/tables/rows/watch"] for node in trio.nodes]
        assert all(watches), "each node was asked"


async def test_a_scan_goes_on_at_the_node_that_keeps_its_state(trio: FakeGateway) -> None:
    async def exceeded(request: web.Request) -> web.StreamResponse | None:
        pages = request.path == "/v1/tables/rows/rows" and "page" in request.query
        return trio.nodes[0].problem(OncegateError(Code.RETENTION_EXCEEDED)) if pages else None

    async with Client(trio.endpoints, tuning=TUNING) as client, client.session() as session:
        await session.put_many("rows", {f"k{n}": n for n in range(6)})
        for node in trio.nodes[:2]:
            node.before = exceeded
        assert [row.value async for row in client.rows("rows", page_rows=2)] == list(range(6))


async def test_a_watcher_that_does_not_read_is_cut_off_and_told_so(
    fake: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it leaves lying is bounded: beyond, it is read from the history, and that is bounded too."""
    monkeypatch.setattr(watching, "PENDING_MAX", 4)
    async with (
        Client(fake.endpoints) as client,
        client.session() as session,
        aiohttp.ClientSession(read_bufsize=1024) as http,
        http.get(f"{fake.endpoints[0]}/v1/tables/rows/watch?from=0") as answer,
    ):
        await session.put("rows", "k", "x" * 200_000)
        (audience,) = fake.watching._all()
        for n in range(60):  # more than its connection holds
            await session.put("rows", "k", f"{n}" + "x" * 200_000)
        assert len([*audience.above(0)]) <= 1, "what is more is not kept for it"
        fake.watching.replaced(fake.commit)
        async with asyncio.timeout(20):
            text = (await answer.content.read()).decode()
    *_, last, _ = text.split("\n\n")
    event, _, data = last.partition("\ndata: ")
    assert event == "event: end"
    problem = msgspec.json.decode(data)
    assert (problem["code"], problem["first_commit"]) == ("RETENTION_EXCEEDED", fake.commit)
    assert fake.watching.watchers == 0


async def test_a_watch_goes_on_behind_the_newest_event_that_its_reader_has_seen(fake: FakeGateway) -> None:
    """A browser repeats the first address, and names the newest id."""
    async with aiohttp.ClientSession() as http, Client(fake.endpoints) as client, client.session() as session:
        for n in range(3):
            await session.put("rows", "k", n)
        seen = {"Last-Event-ID": "2"}
        await session.transact(Transaction().put("rows", "k", 3).put("rows", "l", 3))
        async with http.get(f"{fake.endpoints[0]}/v1/tables/rows/watch?from=0", headers=seen) as answer:
            events = [await answer.content.readuntil(b"\n\n") for _ in range(3)]
    ids = [event.partition(b"\n")[0] for event in events]
    assert ids == [b"id: 2", b"id: 3", b"id: 5"], "a transaction is told as a whole, or not yet"


async def test_a_watch_says_how_far_nothing_has_changed(fake: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "KEEP_ALIVE_S", 0.01)
    async with (
        aiohttp.ClientSession() as http,
        Client(fake.endpoints) as client,
        client.session() as session,
        http.get(f"{fake.endpoints[0]}/v1/tables/rows/watch?key=k") as answer,
    ):
        await answer.content.readuntil(b"id: 0\nevent: progress")
        await session.put("rows", "another", 1)
        async with asyncio.timeout(20):
            await answer.content.readuntil(b"id: 1\nevent: progress")


async def test_a_watch_does_not_go_on_with_the_table_that_has_taken_the_name(fake: FakeGateway) -> None:
    async with (
        aiohttp.ClientSession() as http,
        Client(fake.endpoints) as client,
        http.get(f"{fake.endpoints[0]}/v1/tables/rows/watch") as answer,
    ):
        assert b"progress" in await answer.content.readuntil(b"\n\n")
        fake.apply(c.DropTable("rows", fake.machine.tables["rows"].incarnation, force=False))
        fake.declare("rows")
        async with client.session() as session:
            await session.put("rows", "k", 1)
        async with asyncio.timeout(20):
            text = await answer.content.read()
    assert text.startswith(b"event: end\n")
    assert b'"code":"NOT_FOUND"' in text


async def test_a_watch_whose_client_has_gone_gives_its_place_back(
    fake: FakeGateway,
) -> None:
    async with aiohttp.ClientSession() as http, http.get(f"{fake.endpoints[0]}/v1/tables/rows/watch") as answer:
        assert await answer.content.readline()
        assert fake.watching.watchers == 1
    async with asyncio.timeout(10):  # below KEEP_ALIVE_S
        while fake.watching.watchers:
            await asyncio.sleep(0.01)


def test_without_await_rows_changes_and_batches_are_plain_iterations() -> None:
    with FakeCluster(nodes=3) as cluster, sync.Client(cluster.endpoints) as client, client.session() as session:
        client.declare_table("rows")
        client.declare_flow("copies", source="rows", max_items=1)
        for n in range(5):
            session.put("rows", f"k{n}", n)
        rows = client.rows("rows", page_rows=2)
        assert [(row.key, row.value) for row in rows] == [(f"k{n}", n) for n in range(5)]
        assert rows.commit == 5
        left = client.rows("rows", page_rows=3)
        assert (next(left).key, next(left).key) == ("k0", "k1")
        left.close()
        assert list(left) == [], "nothing is left of the page either"
        changes = client.watch("rows", from_commit=3)
        assert [next(changes).key for _ in range(2)] == ["k3", "k4"]
        changes.close()
        session.put("rows", "k3", "later")
        later = client.watch("rows", from_commit=changes.commit)
        assert (next(later).value, later.commit) == ("later", 6)
        batches = client.consume("copies", "mail")
        first = next(batches)
        first.done()
        assert (first.number, next(batches).number) == (1, 2)
        assert client.flow("copies").consumers["mail"].cursor == 1
        items = client.items("copies", from_batch=3)
        assert ([item.value for item in items], items.batch) == ([2, 3, 4, "later"], 6)
        (found,) = client.get_many([("rows", "k1")])
        assert found is not None
        assert found.value == 1
