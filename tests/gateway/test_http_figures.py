"""``/v1/cluster/figures``: what all members tell of themselves, once and as a stream, and who may ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from oncegate.consensus.errors import CallFailed, PeerUnavailable
from oncegate.gateway.http.routes import figures
from oncegate.gateway.node.figures import FIGURES, Seen
from oncegate.gateway.observability import last_hour
from tests.conftest import Api
from tests.gateway.http_contract import assert_problem, one_node, put, serving
from tests.gateway.test_auth import ADMIN, READER, as_, bearer, entry, written
from tests.gateway.three_nodes import three

NARROW = "t-narrow"


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps and events follow each other at once."""
    monkeypatch.setattr("oncegate.gateway.node.figures.STEP_MS", 20)
    monkeypatch.setattr(figures, "EVENT_S", 0.02)


async def events(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
    """Yield name and data of each event of a stream."""
    name = ""
    async for line in answer.content:
        if line.startswith(b"event: "):
            name = line[7:].strip().decode()
        elif line.startswith(b"data: "):
            yield name, msgspec.json.decode(line[6:])


def moments_of(member: Any, columns: list[str]) -> list[dict[str, Any]]:
    return [dict(zip(columns, one, strict=True)) for one in member["figures"]["moments"]]


async def test_every_member_tells_of_itself_and_one_that_is_gone_is_named_silent(tmp_path: Path, hurried: None) -> None:
    async with three(tmp_path) as cluster:
        leader = await cluster.leader()
        follower, gone = (name for name in cluster.nodes if name != leader)
        async with asyncio.timeout(30):
            while True:
                status, _, told = await cluster.get(follower, "/v1/cluster/figures")
                members = {one["id"]: one for one in told["members"]}
                if all(one["figures"] and one["figures"]["moments"] for one in members.values()):
                    break
        assert status == 200
        assert (told["node"], told["leader"], set(members)) == (follower, leader, set(cluster.nodes))
        assert members[leader]["figures"]["role"] == members[leader]["role"] == "leader"
        for name, member in members.items():
            assert member["figures"]["node"] == name
            newest = moments_of(member, told["columns"])[-1]
            assert newest["disk_free_bytes"] > 0
            assert newest["lag"] >= 0
        await cluster.stop(gone)
        async with asyncio.timeout(30):
            while True:
                _, _, told = await cluster.get(follower, "/v1/cluster/figures")
                left = next(one for one in told["members"] if one["id"] == gone)
                if left["figures"] is None:
                    break
        assert left["silent"] == "does not answer"


async def test_stream_begins_with_all_that_is_kept_and_goes_on_with_what_is_new(
    api: Api, client_id: str, hurried: None
) -> None:
    await api.operate(client_id, put(1, "a", 1))
    seen: list[int] = []
    async with asyncio.timeout(30), api._http.get("/v1/cluster/figures/watch") as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert answer.headers["Cache-Control"] == "no-store"
        async for name, told in events(answer):
            assert name == "figures"
            (member,) = told["members"]
            assert member["figures"]["commit"] == 1
            seen += [moment["number"] for moment in moments_of(member, told["columns"])]
            if len(seen) >= 3:
                break
    assert seen == list(range(1, len(seen) + 1)), "each moment comes once"


async def test_requests_are_counted_but_for_streams_that_do_not_end(api: Api, client_id: str, hurried: None) -> None:
    async with asyncio.timeout(30):
        requested = 0.0
        while requested == 0.0:
            await api.call("GET", "/v1/tables")
            _, _, told = await api.call("GET", "/v1/cluster/figures")
            (member,) = told["members"]
            requested = max((one["requests_per_s"] for one in moments_of(member, told["columns"])), default=0.0)
    assert any(one["request_p99_ms"] for one in moments_of(member, told["columns"]))
    assert any(one["connections"] >= 1 for one in moments_of(member, told["columns"]))


async def test_node_remembers_no_more_than_an_hour_and_tells_a_new_process_from_the_one_before(tmp_path: Path) -> None:
    async with serving(one_node(tmp_path)) as (_, node):
        for _ in range(4):
            await node.figures.look()
        own = node.figures.own()
        assert own.seen == Seen(own.life, own.moments[-1].number)
        assert [one.number for one in node.figures.own(Seen(own.life, 2)).moments] == [
            one.number for one in own.moments if one.number > 2
        ]
        assert node.figures.own(Seen(own.life - 1, 2)).moments == own.moments
        assert last_hour.MOMENTS_MAX * last_hour.STEP_MS == 3_600_000


async def test_member_of_an_earlier_build_and_one_that_answers_nonsense_are_told_from_a_silent_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def call(peer: str, payload: bytes, *, timeout_s: float) -> bytes:
        assert payload[:1] == FIGURES
        if peer == "old":
            raise CallFailed(peer, "unknown call")
        if peer == "gone":
            raise PeerUnavailable(peer, "not connected", outcome="not_applied")
        return b"\xc1"

    async with serving(one_node(tmp_path)) as (_, node):
        monkeypatch.setattr(node.replica, "call", call)
        told = await node.figures.of(["old", "gone", "odd"], {})
    assert told == {
        "gone": "does not answer",
        "odd": "gives an answer that this build cannot read",
        "old": "runs an earlier build",
    }


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[tuple[Api, Path]]:
    file = entry(ADMIN, "ops", "read", "admin") + entry(READER, "ann", "read") + entry(NARROW, "ann", "read:orders")
    tokens = written(tmp_path / "tokens.toml", file)
    async with serving(one_node(tmp_path, tokens_file=tokens)) as (api, _):
        yield api, tokens


async def test_token_is_told_what_it_may_and_strangers_are_told_nothing(guarded: tuple[Api, Path]) -> None:
    api, _ = guarded
    for path in ("/v1/token", "/v1/cluster/figures", "/v1/cluster/figures/watch"):
        assert_problem(await api.call("GET", path), "UNAUTHENTICATED")
    assert (await as_(api, NARROW, "GET", "/v1/cluster/figures"))[0] == 200
    _, _, told = await as_(api, NARROW, "GET", "/v1/token")
    within = {"read": ["orders"]}
    assert told == {"tokens": True, "name": NARROW, "tenant": "ann", "scopes": ["read"], "within": within}
    assert (await as_(api, ADMIN, "GET", "/v1/token"))[2]["scopes"] == ["admin", "read"]


async def test_node_without_tokens_says_so(api: Api) -> None:
    _, _, told = await api.call("GET", "/v1/token")
    assert told["tokens"] is False
    assert "admin" in told["scopes"]


async def test_stream_ends_when_its_token_is_taken_out(guarded: tuple[Api, Path], hurried: None) -> None:
    api, tokens = guarded
    async with asyncio.timeout(30), api._http.get("/v1/cluster/figures/watch", headers=bearer(READER)) as answer:
        told = [event async for event in _until_end(answer, tokens)]
    assert [name for name, _ in told[:-1]] == ["figures"] * (len(told) - 1)
    assert (told[-1][0], told[-1][1]["code"]) == ("end", "UNAUTHENTICATED")


async def _until_end(answer: aiohttp.ClientResponse, tokens: Path) -> AsyncIterator[tuple[str, Any]]:
    """Yield the events of a stream, and take its token out after the first one."""
    there = True
    async for event in events(answer):
        if there:
            written(tokens, entry(ADMIN, "ops", "read", "admin"))
        there = False
        yield event


async def test_streams_are_bounded_and_a_closed_one_makes_room(
    api: Api, hurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "STREAMS_MAX", 2)
    async with asyncio.timeout(30):
        async with api._http.get("/v1/cluster/figures/watch"), api._http.get("/v1/cluster/figures/watch"):
            assert_problem(await api.call("GET", "/v1/cluster/figures/watch"), "OVERLOADED")
        while True:
            async with api._http.get("/v1/cluster/figures/watch") as answer:
                if answer.status == 200:
                    break
