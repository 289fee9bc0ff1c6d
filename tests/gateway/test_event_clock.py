"""The event-time clock of a flow: read from sealed batches, ordered in the log, gone back with a replay, saved."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from oncegate.flows import segment
from oncegate.flows.chunks import SealedBatch
from oncegate.flows.errors import RetentionExceededError
from oncegate.flows.event_clock import newest_ms
from oncegate.flows.flow import FlowDeclaration
from oncegate.flows.open_segment import OpenSegment
from oncegate.gateway.cli.flows import place
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.state import state_digest
from oncegate.gateway.node.event_clocks import EventClocks
from oncegate.gateway.node.settings import Settings
from oncegate.rifl.errors import Code
from tests.conftest import Api
from tests.gateway.http_contract import assert_problem, declare, put, serving
from tests.gateway.state_harness import Fed, ship
from tests.gateway.test_flow_changes import Cluster


def payload(*values: bytes | None) -> bytes:
    items = OpenSegment("f", "t")
    for commit, value in enumerate(values, 1):
        items.append_one(commit, "k", value, 0, 1, commit)
    sealed: SealedBatch = items.freeze(1)
    return segment.build(sealed.chunks, "f", "t", 1)


@pytest.mark.parametrize(
    ("values", "newest"),
    [
        ((b'{"at":5}', b'{"at":7,"x":[1]}', b'{"at":6}'), 7),
        ((b'{"at":5.9}', b'{"at":"9"}', b'{"at":null}', b'{"at":true}'), 5),
        ((None, b"7", b'"at"', b"[7]", b'{"other":9}'), 0),
        ((b'{"at":-3}', b'{"at":9007199254740992}', b'{"at":1e300}'), 0),
        ((b'{"a":{"at":9}}',), 0),
    ],
)
def test_event_time_is_a_number_in_range_at_the_top_of_a_value(values: tuple[bytes | None, ...], newest: int) -> None:
    assert newest_ms(payload(*values), "at") == newest


@pytest.mark.parametrize("name", ['a"b', "a\\b", "\n", "\0", "é", "\u2028", "😀", " ", "a.b", "__class__"])
def test_event_time_may_have_any_name(name: str) -> None:
    values = [msgspec.json.encode(value) for value in ({name: 5}, {"at": 9}, {name: "9"}, {"x": {name: 9}})]
    assert newest_ms(payload(*values), name) == 5


def clocked(*newest: int, **fields: Any) -> Cluster:
    """A flow with a batch for each of these event times."""
    cluster = Cluster(event_time="at", **fields)
    cluster.fill(len(newest))
    if newest:
        cluster.done(c.ClockBatches("f", "at", 1, list(newest)))
    return cluster


def test_clock_never_goes_back_and_counts_each_batch_once() -> None:
    cluster = clocked(10, 30, 20, 40)
    before = state_digest(cluster.machine)
    assert cluster.done(c.ClockBatches("f", "at", 1, [99, 99])) == 4, "sent again, by a leader that was late"
    assert cluster.done(c.ClockBatches("f", "at", 9, [99])) == 4, "not the next one"
    assert cluster.done(c.ClockBatches("f", "other", 5, [99])) == 4
    assert state_digest(cluster.machine) == before
    assert [cluster.flow.batches.event_ms_at(n) for n in range(1, 5)] == [10, 30, 30, 40]
    assert cluster.flow_state().event_ms == 40


@pytest.mark.parametrize(("event_ms", "cursor"), [(1, 0), (10, 0), (11, 1), (30, 1), (31, 3), (40, 3), (41, 4)])
def test_consumer_starts_where_the_clock_reached_a_time(event_ms: int, cursor: int) -> None:
    cluster = clocked(10, 30, 20, 40)
    assert cluster.done(c.StartConsumer("f", "job", "n", "event", event_ms))[1] == cursor


def test_lag_in_event_time_is_that_of_the_cursor_and_goes_back_with_a_replay() -> None:
    cluster = clocked(10, 30, 20, 40)
    fence, _ = cluster.done(c.Attach("f", "job", "n"))
    cluster.done(c.MoveCursor("f", "job", 3, fence, False))
    job = cluster.flow_state().consumers["job"]
    assert (job.event_ms, job.event_lag_ms) == (30, 10)
    cluster.done(c.MoveCursor("f", "job", 1, fence, True))
    job = cluster.flow_state().consumers["job"]
    assert (job.event_ms, job.event_lag_ms) == (10, 30)


def test_retention_waits_until_event_times_are_read_so_that_nothing_is_skipped_silently() -> None:
    cluster = Cluster(event_time="at", retention_ms=0)
    cluster.fill(4)
    fence, _ = cluster.done(c.Attach("f", "job", "n"))
    cluster.done(c.MoveCursor("f", "job", 3, fence, False))
    assert cluster.flow.batches.first == 1
    assert "event times" in cluster.flow_state().held
    cluster.done(c.ClockBatches("f", "at", 1, [10, 50]))
    assert cluster.flow.batches.first == 3
    cluster.done(c.ClockBatches("f", "at", 3, [20, 60]))
    assert cluster.flow.batches.first == 4
    assert cluster.refused(c.StartConsumer("f", "job", "o", "event", 50)).code is Code.RETENTION_EXCEEDED
    assert cluster.done(c.StartConsumer("f", "job", "p", "event", 51))[1] == 3


def test_another_member_begins_the_clock_anew_and_says_what_it_cannot_know() -> None:
    cluster = clocked(10, 30, retention_ms=0)
    fence, _ = cluster.done(c.Attach("f", "job", "n"))
    cluster.done(c.MoveCursor("f", "job", 1, fence, False))
    cluster.done(cluster.alter("f", 1, event_time="then"))
    assert (cluster.flow.batches.clocked_through, cluster.flow_state().event_ms) == (1, 0)
    cluster.done(c.ClockBatches("f", "then", 2, [7]))
    assert cluster.flow_state().event_ms == 7
    assert cluster.refused(c.StartConsumer("f", "job", "o", "event", 5)).code is Code.RETENTION_EXCEEDED
    cluster.done(cluster.alter("f", 2, event_time=""))
    refused = cluster.refused(c.StartConsumer("f", "job", "o", "event", 5))
    assert (refused.code, "event_time" in refused.detail) == (Code.BAD_REQUEST, True)


def test_saves_and_snapshots_hold_the_clock_also_of_batches_that_were_saved_without_it(tmp_path: Path) -> None:
    leader, follower = Fed(tmp_path / "leader"), Fed(tmp_path / "follower")
    flow = FlowDeclaration(name="f", source="t", max_items=1, event_time="at")
    leader.do(c.DeclareTable("t", "resident", 1 << 20), c.DeclareFlow(msgspec.json.encode(flow)))
    leader.do(c.OpenSession("n", 10**6, 512))
    for number in range(1, 6):
        leader.do(c.Operate(1, 1, 1, [c.Op(number, 1, "t", f"k{number}", number, b"1")]))  # type: ignore[arg-type]
        leader.save()
        if number > 2:
            leader.do(c.ClockBatches("f", "at", number - 2, [number]))
    leader.save()
    leader = leader.reopened()
    assert leader.machine.flows.get("f").batches.clocked_through == 3
    leader.do(c.ClockBatches("f", "at", 4, [9, 8]))
    leader.save()
    leader = leader.reopened()
    leader.do(c.AlterFlow("f", 1, b'{"event_time":"then"}'), c.ClockBatches("f", "then", 1, [1, 2, 3, 4, 5]))
    leader.save()
    leader = leader.reopened()
    ship(leader.state, follower.state).install()
    assert state_digest(follower.machine) == state_digest(leader.machine)
    assert [follower.machine.flows.get("f").batches.event_ms_at(n) for n in (1, 5)] == [1, 5]
    leader.close()
    follower.close()


def test_saves_and_snapshots_hold_the_clock_of_batches_that_were_dropped(tmp_path: Path) -> None:
    leader, follower = Fed(tmp_path / "leader"), Fed(tmp_path / "follower")
    flow = FlowDeclaration(name="f", source="t", max_items=1, event_time="at", retention_ms=0)
    leader.do(c.DeclareTable("t", "resident", 1 << 20), c.DeclareFlow(msgspec.json.encode(flow)))
    leader.do(c.OpenSession("n", 10**6, 512), c.Attach("f", "job", "n"))
    for number in range(1, 4):
        leader.do(c.Operate(1, 1, 1, [c.Op(number, 1, "t", f"k{number}", number, b"1")]))  # type: ignore[arg-type]
    leader.do(c.ClockBatches("f", "at", 1, [10, 30, 20]))
    leader.save()
    leader.do(c.MoveCursor("f", "job", 2, 1, False))
    leader.save()
    leader = leader.reopened()
    ship(leader.state, follower.state).install()
    for fed in (leader, follower):
        batches = fed.machine.flows.get("f").batches
        assert (batches.first, batches.clocked_through, batches.event_ms_at(2)) == (3, 3, 30)
        with pytest.raises(RetentionExceededError):
            batches.before_event(30)
    leader.close()
    follower.close()


async def _reached(api: Api, event_ms: int) -> Any:
    async with asyncio.timeout(20):
        while (state := (await api.call("GET", "/v1/flows/f"))[2])["event_ms"] != event_ms:
            await asyncio.sleep(0.01)
    return state


async def test_node_reads_event_times_of_its_batches_also_of_those_before_the_clock_was_declared(
    files: Settings,
) -> None:
    async with serving(files) as (api, _):
        await declare(api)
        client_id = await api.session()
        await api.call("PUT", "/v1/flows/f", {"source": "rows", "max_items": 1})
        await api.operate(client_id, *(put(n, f"k{n}", {"at": 100 * n}) for n in (1, 2, 3)))
        status, _, altered = await api.call("PATCH", "/v1/flows/f", {"version": 1, "event_time": "at"})
        assert (status, altered["event_time"]) == (200, "at")
        await _reached(api, 300)
    async with serving(files) as (api, _):
        await _reached(api, 300)
        await api.operate(client_id, put(4, "k4", {"at": 250}), put(5, "k5", {"at": 900}), first_incomplete=4)
        await _reached(api, 900)
        start = "/v1/flows/f/consumers/job/start"
        assert (await api.call("POST", start, {"nonce": "n", "event_ms": 301}))[2]["cursor"] == 4
        job = (await api.call("GET", "/v1/flows/f"))[2]["consumers"]["job"]
        assert (job["event_ms"], job["event_lag_ms"]) == (300, 600)
        assert_problem(await api.call("POST", start, {"nonce": "o", "event_ms": 1, "batch": 1}), "BAD_REQUEST")


async def test_a_batch_that_cannot_be_read_yet_holds_the_clock_back_with_all_behind_it() -> None:
    cluster = Cluster(event_time="at")
    cluster.fill(4)
    lost, proposed = {2}, []

    class Files:
        def get(self, _flow: str, number: int) -> bytes:
            if number in lost:
                raise OSError("not there yet")
            return payload(b'{"at":%d}' % (10 * number))

    clocks = EventClocks(cluster.machine, Files(), lambda _, command: proposed.append(command))  # type: ignore[arg-type]
    clocks.look()
    await clocks.close()
    assert proposed == [c.ClockBatches("f", "at", 1, [10])]
    cluster.done(proposed.pop())
    clocks.look()
    await clocks.close()
    assert proposed == []
    lost.clear()
    clocks.look()
    await clocks.close()
    assert proposed == [c.ClockBatches("f", "at", 2, [20, 30, 40])]


async def test_a_flow_whose_batches_cannot_be_read_keeps_no_other_clock_from_going_on(
    files: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(files) as (api, node):
        await declare(api)
        client_id = await api.session()
        for flow in ("a", "f", "z"):
            await api.call("PUT", f"/v1/flows/{flow}", {"source": "rows", "max_items": 1, "event_time": "at"})
        kept = node.publisher.get

        def get(flow: str, number: int) -> bytes:
            if flow != "f":
                raise OSError("this node does not have it")
            return kept(flow, number)

        monkeypatch.setattr(node.publisher, "get", get)
        for n in (1, 2, 3):
            await api.operate(client_id, put(n, f"k{n}", {"at": 100 * n}))
            await _reached(api, 100 * n)


def test_place_by_event_time() -> None:
    assert place("event:1700000000000", None) == {"event_ms": 1_700_000_000_000}  # type: ignore[arg-type]
