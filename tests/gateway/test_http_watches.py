"""What a node answers to those who ask to watch, or for turns: each refusal leaves nothing, and none takes a place."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from oncegate.gateway.http.routes import watch
from oncegate.gateway.local.waiting import until
from oncegate.gateway.node.node import Node
from tests.conftest import Api
from tests.gateway.http_contract import assert_problem, declare, one_node, put, serving

LONG = "k" * 2_000


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Api, Node]]:
    """A node at which one request of a tenant may be under way."""
    async with serving(one_node(tmp_path, tenant_requests_max=1)) as (api, node):
        await declare(api)
        await declare(api, "streamed", "stream")
        yield api, node


async def events(stream: aiohttp.ClientResponse, count: int) -> list[dict[str, str]]:
    async with asyncio.timeout(60):
        texts = [(await stream.content.readuntil(b"\n\n")).decode() for _ in range(count)]
    return [dict(line.split(": ", 1) for line in text.strip().split("\n")) for text in texts]


REFUSED: list[tuple[str, str, dict[str, str]]] = [
    ("rows/watch?key=a&prefix=b", "BAD_REQUEST", {}),
    ("rows/watch?key=", "BAD_REQUEST", {}),
    (f"rows/watch?key={LONG}", "PAYLOAD_TOO_LARGE", {}),
    ("rows/watch?from=x", "BAD_REQUEST", {}),
    ("rows/watch?from=-1", "BAD_REQUEST", {}),
    ("rows/watch?from=0", "BAD_REQUEST", {"Last-Event-ID": "x"}),
    ("none/watch", "NOT_FOUND", {}),
    ("none/watch?from=0", "NOT_FOUND", {}),
    ("streamed/watch", "BAD_REQUEST", {}),
    ("-/watch", "BAD_REQUEST", {}),
    ("rows/turns", "BAD_REQUEST", {}),
    ("rows/turns?prefix=", "BAD_REQUEST", {}),
    (f"rows/turns?prefix={LONG}", "PAYLOAD_TOO_LARGE", {}),
    ("rows/turns?prefix=q&count=0", "BAD_REQUEST", {}),
    ("rows/turns?prefix=q&count=65", "BAD_REQUEST", {}),
    ("rows/turns?prefix=q&wait_ms=30001", "BAD_REQUEST", {}),
    ("rows/turns?prefix=q&wait_ms=-1", "BAD_REQUEST", {}),
    ("none/turns?prefix=q&wait_ms=30000", "NOT_FOUND", {}),
    ("streamed/turns?prefix=q&wait_ms=30000", "BAD_REQUEST", {}),
]


async def test_watches_and_turns_that_are_refused_leave_nothing(served: tuple[Api, Node]) -> None:
    api, node = served
    for path, code, headers in REFUSED:
        async with asyncio.timeout(60):
            answer = await api.call("GET", f"/v1/tables/{path}", headers=headers)
        assert_problem(answer, code)
        assert (node.watching.watchers, node.row_turns.waiting) == (0, 0), path
        assert not node.watching._tables, path


async def test_watches_and_those_who_wait_for_turns_take_no_place_of_their_tenant(served: tuple[Api, Node]) -> None:
    api, node = served
    client_id = await api.session()
    at = node.machine.commit
    async with api._http.get("/v1/tables/rows/watch") as first, api._http.get("/v1/tables/rows/watch") as second:
        for stream in (first, second):
            assert [one["event"] for one in await events(stream, 1)] == ["progress"]
        turn = asyncio.ensure_future(api.call("GET", "/v1/tables/rows/turns?prefix=q&count=2&wait_ms=30000"))
        await until(lambda: node.row_turns.waiting == 1, 60, "somebody waits")
        (done,) = await api.operate(client_id, put(1, "q1", 7))
        status, _, given = await turn
        assert (status, given["turns"]) == (200, 1)
        for stream in (first, second):
            (told,) = await events(stream, 1)
            assert (told["event"], told["id"]) == ("changes", str(done["commit"]))
    assert done["commit"] > at
    await until(lambda: not node.watching.watchers, 60, "they have gone")
    assert (await api.call("GET", "/v1/tables/rows/rows/q1"))[0] == 200, "their places are as they were"


async def test_a_watch_is_told_when_it_has_caught_up_whether_others_watch_the_same_rows_or_not(
    served: tuple[Api, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "KEEP_ALIVE_S", 10_000.0)
    api, node = served
    client_id = await api.session()
    path = "/v1/tables/rows/watch?prefix=k"
    async with api._http.get(path) as other:
        assert [one["event"] for one in await events(other, 1)] == ["progress"]
        at = node.machine.commit
        await api.operate(client_id, put(1, "elsewhere", 1))
        for changes in range(3):
            last = node.machine.commit
            async with api._http.get(f"{path}&from={at}") as stream:
                *told, caught_up = await events(stream, changes + 2)
            assert [(one["event"], one["id"]) for one in told[:1]] == [("progress", str(at))]
            assert [one["event"] for one in told[1:]] == ["changes"] * changes
            assert (caught_up["event"], caught_up["id"]) == ("progress", str(last))
            await api.operate(client_id, put(2 + 2 * changes, f"k{changes}", 1))
            await api.operate(client_id, put(3 + 2 * changes, "elsewhere", 1))


async def test_a_watch_begins_where_it_is_asked_to_and_says_where(served: tuple[Api, Node]) -> None:
    api, node = served
    client_id = await api.session()
    commits = [(await api.operate(client_id, put(at, f"k{at}", at)))[0]["commit"] for at in range(1, 4)]
    newest = node.machine.commit
    starts: list[tuple[str, dict[str, str], int]] = [
        ("", {}, newest),
        (f"?from={commits[0]}", {}, commits[0]),
        (f"?from={commits[0]}", {"Last-Event-ID": str(commits[1])}, commits[1]),
        (f"?from={newest}", {"Last-Event-ID": "0"}, 0),
    ]
    for query, headers, position in starts:
        async with api._http.get(f"/v1/tables/rows/watch{query}", headers=headers) as stream:
            assert stream.headers["Oncegate-Commit"] == str(position)
            assert stream.headers["Cache-Control"] == "no-store"
            assert stream.headers["Content-Type"] == "text/event-stream"
            assert {"Oncegate-Time-Ms", "Oncegate-Leader"} <= stream.headers.keys()
            above = [commit for commit in commits if commit > position]
            told = await events(stream, 1 + len(above) + bool(above and position < commits[-1]))
        begins, *changes = told
        assert (begins["event"], begins["id"]) == ("progress", str(position))
        assert [one["id"] for one in changes if one["event"] == "changes"] == [str(commit) for commit in above]
        if above:
            assert (changes[-1]["event"], int(changes[-1]["id"]) >= newest) == ("progress", True), "it has caught up"


async def test_a_watch_ends_with_its_table_and_its_past_is_not_that_of_the_next_one(served: tuple[Api, Node]) -> None:
    api, node = served
    client_id = await api.session()
    await api.operate(client_id, put(1, "a", 1))
    async with api._http.get("/v1/tables/rows/watch") as stream:
        await events(stream, 1)
        incarnation = node.machine.tables["rows"].incarnation
        status, _, dropped = await api.call("DELETE", f"/v1/tables/rows?force=true&incarnation={incarnation}")
        assert status == 200, dropped
        (end,) = await events(stream, 1)
        assert (end["event"], '"code":"NOT_FOUND"' in end["data"], "id" in end) == ("end", True, False)
        async with asyncio.timeout(60):
            assert await stream.content.read() == b""
    await until(lambda: "rows" not in node.machine.closing, 60, "its rows are gone")
    await declare(api)
    since = node.machine.tables["rows"].since
    assert since > 0
    async with asyncio.timeout(60):
        answer = await api.call("GET", f"/v1/tables/rows/watch?from={since - 1}")
    assert assert_problem(answer, "RETENTION_EXCEEDED")["first_commit"] == since
    async with api._http.get(f"/v1/tables/rows/watch?from={since}") as stream:
        assert (await events(stream, 1))[0]["id"] == str(since), "all of the table that is there now"


async def test_what_the_kernel_keeps_of_a_watch_that_is_not_read_is_bounded(
    served: tuple[Api, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    api, _ = served
    kept: list[int] = []

    def bound(transport: Any) -> None:
        real(transport)
        kept.append(transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))

    real = watch._bound_unread
    monkeypatch.setattr(watch, "_bound_unread", bound)
    async with api._http.get("/v1/tables/rows/watch") as stream:
        await events(stream, 1)
    # The kernel doubles what it is given, for its own books, and has a bound for all sockets.
    most = int(Path("/proc/sys/net/core/wmem_max").read_text())
    assert kept == [2 * min(watch.SEND_BUFFER_BYTES, most)]


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize(
    ("query", "headers", "level", "position"),
    [
        ("", {}, "linearizable", 0),
        ("?from=0", {}, "session", 0),
        ("?from=2", {}, "session", 2),
        ("?from=2", {"Last-Event-ID": "1"}, "session", 1),
        ("", {"Last-Event-ID": "1"}, "session", 1),
    ],
)
async def test_a_node_that_is_behind_gets_what_a_watch_is_about_before_it_begins(
    query: str,
    headers: dict[str, str],
    level: str,
    position: int,
    hidden: bool,
    served: tuple[Api, Node],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``hidden``: the node learns of the table with what it reads at the leader."""
    api, node = served
    client_id = await api.session()
    for at in (1, 2):
        await api.operate(client_id, put(at, f"k{at}", at))
    reached, tables, real = list[tuple[str, int]](), node.machine.tables, node.reads.reach
    rows = tables["rows"]

    async def reach(consistency: str, min_commit: int, timeout_s: float | None = None) -> None:
        await real(consistency, min_commit, timeout_s)
        reached.append((consistency, min_commit))
        if consistency == "linearizable":
            tables["rows"] = rows

    monkeypatch.setattr(node.reads, "reach", reach)
    if hidden:
        del tables["rows"]
    async with api._http.get(f"/v1/tables/rows/watch{query}", headers=headers) as stream:
        assert stream.status == 200
        begins = (await events(stream, 1))[0]["id"]
    assert int(begins) == (position if level == "session" else node.machine.commit)
    assert reached == [(level, position), *[("linearizable", 0)] * (hidden and level == "session")]


async def test_a_watch_from_a_commit_that_the_node_has_not_applied_begins_when_it_has(tmp_path: Path) -> None:
    async with serving(one_node(tmp_path)) as (api, node), asyncio.timeout(60):
        await declare(api)
        client_id = await api.session()
        ahead = node.machine.commit + 2
        begun = asyncio.create_task(_begin(api, ahead))
        while not (begun.done() or node.reads.commit_waiters):
            await asyncio.sleep(0)
        for at in (1, 2):
            assert not begun.done()
            assert not node.watching.watchers
            await api.operate(client_id, put(at, f"k{at}", at))
        stream = await begun
        (done,) = await api.operate(client_id, put(3, "k3", 3))
        assert stream.headers["Oncegate-Commit"] == str(ahead)
        first, then = await events(stream, 2)
        assert (first["id"], then["id"], then["event"]) == (str(ahead), str(done["commit"]), "changes")
        stream.close()


async def _begin(api: Api, position: int) -> aiohttp.ClientResponse:
    return await api._http.get(f"/v1/tables/rows/watch?from={position}")
