"""Tables and rows: what is read, at which point, and as which page."""

from __future__ import annotations

import asyncio
from math import inf
from pathlib import Path
from urllib.parse import quote

import pytest
import yarl

from oncegate.consensus.errors import NoLeader
from oncegate.consensus.replica.replica import Replica
from tests.conftest import Api
from tests.gateway.http_contract import assert_problem, batch_lines, declare, one_node, put, sealed, serving


async def test_table_of_each_kind_is_declared_once_and_described(api: Api) -> None:
    for number, kind in enumerate(("resident", "stream"), 1):
        status, _, made = await api.call("PUT", f"/v1/tables/{kind}", {"kind": kind})
        assert status == 200
        assert made == {"name": kind, "kind": kind, "quota_bytes": 2**30, "rows": 0, "bytes": 0, "incarnation": number}
        assert (await api.call("PUT", f"/v1/tables/{kind}", {"kind": kind}))[2] == made
        assert (await api.call("GET", f"/v1/tables/{kind}"))[2] == made
    assert_problem(await api.call("PUT", "/v1/tables/stream", {"kind": "resident"}), "CONFLICT")
    assert_problem(await api.call("GET", "/v1/tables/nowhere"), "NOT_FOUND")
    for bad in ({}, {"kind": "other"}, *({"kind": "resident", "quota_bytes": size} for size in (1, 2**60))):
        assert_problem(await api.call("PUT", "/v1/tables/new", bad), "BAD_REQUEST")
    for name in ("Upper", ".hidden", "a" * 65, "a%20b", "a%00b", "%2E%2E%2Fetc"):
        url = yarl.URL(f"/v1/tables/{name}", encoded=True)
        assert_problem(await api.call("PUT", url, {"kind": "resident"}), "BAD_REQUEST")  # type: ignore[arg-type]


async def test_row_is_answered_with_version_and_etag(api: Api, client_id: str) -> None:
    await api.operate(client_id, put(1, "a", {"x": 1}), put(2, "b", 2))
    for level in ("linearizable", "session", "stale"):
        status, headers, row = await api.call("GET", f"/v1/tables/rows/rows/a?consistency={level}")
        assert status == 200
        assert row == {"key": "a", "value": {"x": 1}, "version": 1, "commit": 2}
        assert headers["ETag"] == '"1"'
        assert headers["Oncegate-Commit"] == "2"
    assert_problem(await api.call("GET", "/v1/tables/rows/rows/none"), "NOT_FOUND")
    assert_problem(await api.call("GET", "/v1/tables/none/rows/a"), "NOT_FOUND")


async def test_stale_read_says_how_old_its_answer_may_be(
    api: Api, client_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.operate(client_id, put(1, "a", 1))
    row, page = "/v1/tables/rows/rows/a", "/v1/tables/rows/rows"
    monkeypatch.setattr(Replica, "age_s", lambda replica: 1.2341)
    for path, expected in ((row, 200), (page, 200), (f"{row}bsent", 404), ("/v1/tables/rows", 200), ("/v1/flows", 200)):
        for level, age_ms in (("stale", "1235"), ("session", None), ("linearizable", None)):
            status, headers, _ = await api.call("GET", f"{path}?consistency={level}")
            assert (status, headers.get("Oncegate-Age-Ms")) == (expected, age_ms), (path, level)
    held = await api.call("GET", f"{row}?consistency=stale", headers={"If-None-Match": '"1"'})
    assert (held[0], held[1]["Oncegate-Age-Ms"]) == (304, "1235")
    monkeypatch.setattr(Replica, "age_s", lambda replica: inf)
    assert "Oncegate-Age-Ms" not in (await api.call("GET", f"{row}?consistency=stale"))[1]


async def test_what_became_of_a_session_or_a_request_is_never_told_from_a_state_that_may_be_old(
    api: Api, client_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(replica: Replica, timeout_s: float) -> int:
        raise NoLeader("the leader was lost")

    monkeypatch.setattr(Replica, "read_index", lost)
    for path in (f"/v1/sessions/{client_id}", f"/v1/requests/{client_id}/1"):
        assert_problem(await api.call("GET", path), "NO_LEADER")


async def test_unchanged_row_is_not_sent_again(api: Api, client_id: str) -> None:
    await api.operate(client_id, put(1, "a", 1))
    path = "/v1/tables/rows/rows/a"
    for held in ('"1"', '"7", "1"', 'W/"1"', "*"):
        status, headers, body = await api.call("GET", path, headers={"If-None-Match": held})
        assert (status, body, headers["ETag"]) == (304, b"", '"1"'), held
        assert headers["Oncegate-Commit"] == "1"
    for other in ('"2"', "nonsense", ""):
        assert (await api.call("GET", path, headers={"If-None-Match": other}))[0] == 200
    await api.operate(client_id, put(2, "a", 1))
    status, headers, _ = await api.call("GET", path, headers={"If-None-Match": '"1"'})
    assert (status, headers["ETag"]) == (200, '"2"'), "the same value written again is another version"


async def test_key_of_any_text_is_written_and_read_back(api: Api, client_id: str) -> None:
    keys = ["a/b", "a%2Fb", "a b+c", "?x=1#y", "\u00fc\U0001f600", "..", "\n\t", "'\"\\", "k" * 512, "\u00e9" * 256]
    for at, key in enumerate(keys):
        for table, sequence in (("rows", 2 * at + 1), ("events", 2 * at + 2)):
            await api.operate(client_id, put(sequence, key, key, table=table))
            url = yarl.URL(f"/v1/tables/{table}/rows/{quote(key, safe='').replace('.', '%2E')}", encoded=True)
            status, _, row = await api.call("GET", url)  # type: ignore[arg-type]
            assert (status, row.get("key"), row.get("value")) == (200, key, key)


async def test_session_read_waits_for_the_commit_it_was_told(api: Api, client_id: str) -> None:
    await api.operate(client_id, put(1, "a", 1))
    path = "/v1/tables/rows/rows/a?consistency=session&min_commit="
    assert (await api.call("GET", f"{path}1"))[2]["value"] == 1
    waiting = [asyncio.create_task(api.call("GET", f"{path}{n}")) for n in (2, 3)]
    await api.operate(client_id, put(2, "a", 2))
    status, _, row = await waiting[0]
    assert (status, row["commit"] >= 2) == (200, True)
    assert not waiting[1].done(), "a read was answered from a state that is too old for it"
    await api.operate(client_id, put(3, "a", 3))
    assert (await waiting[1])[2]["value"] == 3


async def test_read_that_waits_for_a_commit_ends_in_time(tmp_path: Path) -> None:
    async with serving(one_node(tmp_path, answer_ms_max=500)) as (api, _):
        await declare(api)
        path = f"/v1/tables/rows/rows/a?consistency=session&min_commit={2**53 - 1}"
        assert_problem(await api.call("GET", path), "NOT_READY")


async def test_pages_hold_every_row_once_in_key_order(api: Api, client_id: str) -> None:
    keys = sorted([f"a{i:02}" for i in range(12)] + ["b", "\u00fc", "aa/1"])
    await api.operate(client_id, *(put(i, key, i) for i, key in enumerate(keys, 1)))
    for limit in (1, 3, 4, 5, 15, 16, 10_000):
        pages: list[list[str]] = []
        after: str | None = ""
        while after is not None:
            _, _, page = await api.call("GET", f"/v1/tables/rows/rows?limit={limit}&after={quote(after)}")
            pages.append([row["key"] for row in page["rows"]])
            after = page["next"]
        assert [key for page in pages for key in page] == keys
        assert {len(page) for page in pages[:-1]} <= {limit}
        assert len(pages) == -(-len(keys) // limit), "the last page did not say that it is the last"
    _, _, page = await api.call("GET", "/v1/tables/rows/rows?prefix=a1")
    assert [row["key"] for row in page["rows"]] == ["a10", "a11"]
    assert page["rows"][0] == {"key": "a10", "value": page["rows"][0]["value"], "version": 11, "commit": 15}
    _, _, page = await api.call("GET", "/v1/tables/rows/rows?prefix=zz")
    assert (page["rows"], page["next"]) == ([], None)


async def test_page_of_large_rows_is_cut_by_size(api: Api, client_id: str) -> None:
    for number in range(1, 26):
        await api.operate(client_id, put(number, f"k{number:02}", "x" * 250_000), first_incomplete=number)
    _, _, page = await api.call("GET", "/v1/tables/rows/rows?limit=100")
    assert 0 < len(page["rows"]) < 25
    assert page["next"] == page["rows"][-1]["key"]
    _, _, rest = await api.call("GET", f"/v1/tables/rows/rows?limit=100&after={page['next']}")
    assert len(page["rows"]) + len(rest["rows"]) == 25
    assert rest["next"] is None


async def test_impossible_queries_are_refused(api: Api, client_id: str) -> None:
    for query in ("limit=0", "limit=-1", "limit=x", "limit=1e3", "limit=", f"limit={10**30}", "consistency=eventual"):
        assert_problem(await api.call("GET", f"/v1/tables/rows/rows?{query}"), "BAD_REQUEST")
    for query in ("consistency=", "min_commit=-1", "min_commit=x", f"min_commit={2**53}", "min_commit=%00"):
        assert_problem(await api.call("GET", f"/v1/tables/rows/rows/a?{query}"), "BAD_REQUEST")
    assert_problem(await api.call("GET", "/v1/tables/events/rows"), "BAD_REQUEST")
    assert_problem(await api.call("GET", "/v1/tables/rows/rows/%00"), "BAD_REQUEST")
    assert_problem(await api.call("GET", f"/v1/tables/rows/rows/{'k' * 513}"), "PAYLOAD_TOO_LARGE")


async def test_no_read_of_a_stream_row_misses_it_while_batches_are_sealed(api: Api, client_id: str) -> None:
    await api.operate(client_id, put(1, "row", 0, table="events"))
    written = 0

    async def write() -> None:
        nonlocal written
        for number in range(1, 200):
            await api.operate(client_id, put(number + 1, "row", number, table="events"), first_incomplete=number)
            written = number

    async def read() -> None:
        while written < 199:
            least = written
            status, headers, row = await api.call("GET", "/v1/tables/events/rows/row")
            assert status == 200
            assert row["value"] >= least, "a read went back behind an acknowledged write"
            assert int(headers["Oncegate-Commit"]) == row["commit"] >= row["version"]

    await asyncio.gather(write(), read(), read())
    state = await sealed(api, "events")
    assert state["items"] == 200
    lines = [line for n in range(1, state["last_batch"] + 1) for line in await batch_lines(api, "events", n)]
    assert [line["value"] for line in lines] == list(range(200))


async def test_tables_are_listed_by_the_beginning_of_their_names_and_by_kind(api: Api) -> None:
    for name, kind in (("a.one", "resident"), ("a.two", "stream"), ("a.three", "resident"), ("b", "resident")):
        await declare(api, name, kind)

    async def names(query: str) -> tuple[list[str], str | None]:
        _, _, page = await api.call("GET", f"/v1/tables?{query}")
        return [table["name"] for table in page["tables"]], page["next"]

    assert await names("prefix=a.") == (["a.one", "a.three", "a.two"], None)
    assert await names("prefix=a.&limit=1") == (["a.one"], "a.one")
    assert await names("prefix=a.&limit=2&after=a.one") == (["a.three", "a.two"], None)
    assert await names("kind=stream") == (["a.two"], None)
    assert await names("prefix=a.t&kind=resident") == (["a.three"], None)
    assert await names("prefix=c") == ([], None)
    assert_problem(await api.call("GET", "/v1/tables?kind=other"), "BAD_REQUEST")
