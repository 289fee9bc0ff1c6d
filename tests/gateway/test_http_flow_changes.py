"""A consumer that nobody moves, end to end: refused with names, altered away, and never mixed up with what comes after.

One real node, by HTTP, by the SDK and by the command line.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from datetime import UTC, datetime
from typing import Any

import pytest
from typer.testing import CliRunner

from oncegate import Client, Code, OperationFailed
from oncegate import sync as blocking
from oncegate.flows.lag_trend import SAMPLE_MS, WINDOW_MS
from oncegate.gateway.cli.flows import duration_ms, place
from oncegate.gateway.cli.main import app
from oncegate.gateway.local.waiting import until
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.node import consumer_watch
from oncegate.gateway.node.consumer_watch import ConsumerWatch
from oncegate.gateway.node.settings import Settings
from oncegate.testing import FakeGateway
from tests.conftest import Api
from tests.gateway.http_contract import assert_problem, batch_lines, declare, put, serving
from tests.gateway.test_flow_changes import Cluster


def _endpoint(api: Api) -> str:
    return str(api._http._base_url).rstrip("/")


async def _fill(api: Api, client_id: str, first: int = 1) -> Any:
    """Write to ``held`` until it refuses; return the refusal and the next sequence number."""
    for sequence in range(first, first + 100):
        (result,) = await api.operate(client_id, put(sequence, f"k{sequence}", "x" * 100, "held"))
        if result["status"] == "rejected":
            return result, sequence + 1
    raise AssertionError("it never fills")


async def test_a_misspelt_consumer_fills_its_table_is_named_and_removed_and_writes_go_on(
    api: Api, client_id: str
) -> None:
    flow = {"consumers": ["spakr"], "retention_ms": 0, "max_items": 1}
    await declare(api, "held", "stream", quota_bytes=2048, flow=flow)
    refused, sequence = await _fill(api, client_id)
    assert refused["code"] == "QUOTA"
    assert "table held" in refused["detail"]
    assert "spakr (which has never attached)" in refused["detail"]
    spark = "/v1/flows/held/consumers/spark"
    _, _, attached = await api.call("POST", f"{spark}/attach", {"nonce": "n"})
    _, _, state = await api.call("GET", "/v1/flows/held")
    assert state["consumers"]["spakr"]["trend"] == "stalled"
    assert state["consumers"]["spakr"]["lag_bytes"] == state["retained_bytes"] > 1024
    _, _, metrics = await api.call("GET", "/metrics")
    held = f'oncegate_flow_held_bytes{{flow="held",holder="spakr"}} {float(state["retained_bytes"])!r}\n'
    assert held.encode() in metrics
    assert b'oncegate_flow_lag_trend{flow="held",consumer="spakr",trend="stalled"} 1.0\n' in metrics
    move = {"batch": state["last_batch"], "fence": attached["fence"]}
    assert (await api.call("POST", f"{spark}/cursor", move))[0] == 200
    assert_problem(await api.call("DELETE", "/v1/flows/held/consumers/spakr?version=7"), "CONFLICT")
    status, _, left = await api.call("DELETE", "/v1/flows/held/consumers/spakr?version=1")
    assert (status, left["version"], list(left["consumers"])) == (200, 2, ["spark"])
    assert left["retained_bytes"] == 0
    (done,) = await api.operate(client_id, put(sequence, "after", 1, "held"))
    assert done["status"] == "applied"


async def test_what_a_change_lacks_or_has_too_much_is_a_bad_request(api: Api, client_id: str) -> None:
    flow = "/v1/flows/events"
    bodies: list[Any] = [
        {}, {"version": 0}, {"version": 1, "source": "rows"}, {"version": 1, "retention_ms": -1},
        {"version": 1, "consumers": ["A"]}, {"version": "1"}, [],
    ]  # fmt: skip
    for body in bodies:
        assert_problem(await api.call("PATCH", flow, body), "BAD_REQUEST")
    assert_problem(await api.call("PATCH", "/v1/flows/none", {"version": 1}), "NOT_FOUND")
    for query in ("", "?version=x", "?version=1&force=perhaps"):
        assert_problem(await api.call("DELETE", f"{flow}{query}"), "BAD_REQUEST")
    assert_problem(await api.call("DELETE", f"{flow}?version=1&force=true"), "CONFLICT")
    starts: list[Any] = [
        {}, {"nonce": "n"}, {"nonce": "n", "start": "then"}, {"nonce": "n", "start": "now", "batch": 1},
        {"nonce": "n", "batch": 0}, {"nonce": "n", "ago_ms": -1}, {"nonce": "n", "time_ms": 2**60}, {"start": "now"},
    ]  # fmt: skip
    for body in starts:
        assert_problem(await api.call("POST", f"{flow}/consumers/c/start", body), "BAD_REQUEST")
    assert_problem(await api.call("POST", f"{flow}/consumers/c/start", {"nonce": "n", "start": "cursor"}), "NOT_FOUND")


async def test_flow_that_is_back_serves_nothing_of_the_one_deleted_also_from_files_that_a_node_kept(
    files: Settings,
) -> None:
    segments, kept = files.data_dir / "segments" / "f", files.data_dir.parent / "kept"
    async with serving(files) as (api, _):
        await declare(api)
        client_id = await api.session()
        await api.call("PUT", "/v1/flows/f", {"source": "rows", "max_items": 1})
        await api.operate(client_id, put(1, "old", 1), put(2, "older", 2))
        assert [line["key"] for line in await batch_lines(api, "f", 2)] == ["older"]
        await until(lambda: len(list(segments.glob("*.segment"))) == 2, 60, "both batches are on disk")
        shutil.copytree(segments, kept)
        status, _, deleted = await api.call("DELETE", "/v1/flows/f?version=1")
        assert (status, deleted) == (200, {"flow": "f", "last_batch": 2})
        assert (await api.call("DELETE", "/v1/flows/f?version=1"))[2] == deleted, "sent again"
        assert_problem(await api.call("GET", "/v1/flows/f/batches/1"), "NOT_FOUND")
        await until(lambda: not segments.exists(), 60, "its files are gone")
    shutil.copytree(kept, segments)  # as a node has them that was away
    async with serving(files) as (api, _):
        await until(lambda: not segments.exists(), 60, "a node that comes back drops them")
        await api.call("PUT", "/v1/flows/f", {"source": "rows", "max_items": 1})
        await api.operate(client_id, put(3, "new", 3))
        assert [line["key"] for line in await batch_lines(api, "f", 3)] == ["new"]
        assert_problem(await api.call("GET", "/v1/flows/f/batches/2"), "RETENTION_EXCEEDED")
        state = (await api.call("GET", "/v1/flows/f"))[2]
        assert (state["first_batch"], state["last_batch"]) == (3, 3)


async def test_watch_ends_with_its_flow(api: Api, client_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncegate.gateway.http.routes.flows.KEEP_ALIVE_S", 0.05)
    await api.call("PUT", "/v1/flows/f", {"source": "rows"})
    async with api._http.get("/v1/flows/f/watch") as stream:
        await api.call("DELETE", "/v1/flows/f?version=1")
        async with asyncio.timeout(20):
            assert b"sealed" not in await stream.content.read()


async def test_sdk_alters_places_removes_and_deletes_and_its_refusals_are_typed(api: Api, client_id: str) -> None:
    async with Client(_endpoint(api)) as client:
        await client.declare_flow("f", source="rows", max_items=1, consumers=["typo"])
        await api.operate(client_id, put(1, "a", 1), put(2, "b", 2))
        changed = await client.alter_flow("f", consumers=["spark"], retention_ms=0)
        assert (changed.version, list(changed.consumers)) == (2, ["spark"])
        with pytest.raises(OperationFailed) as stale:
            await client.alter_flow("f", version=1, retention_ms=5)
        assert stale.value.code is Code.CONFLICT
        started = await client.start_consumer("f", "spark", start="now")
        assert (started.cursor, started.fence > 0) == (2, True)
        assert (await client.start_consumer("f", "spark", batch=1)).cursor == 0
        assert (await client.start_consumer("f", "spark", ago_ms=3_600_000)).cursor == 0
        assert [flow.flow for flow in await client.flows()] == ["events", "f"]
        assert (await client.remove_consumer("f", "spark")).consumers == {}
        assert await client.delete_flow("f") == 2

    def scripted() -> int:
        with blocking.Client(_endpoint(api)) as client:
            client.declare_flow("g", source="rows")
            assert client.alter_flow("g", retention_ms=7).retention_ms == 7
            client.start_consumer("g", "c", start="beginning")
            with pytest.raises(OperationFailed, match="have attached"):
                client.delete_flow("g")
            return client.delete_flow("g", force=True)

    assert await asyncio.to_thread(scripted) == 0


async def test_command_line_shows_who_holds_a_flow_and_lets_it_go(api: Api, client_id: str) -> None:
    await api.call("PUT", "/v1/flows/f", {"source": "rows", "max_items": 1, "consumers": ["typo"], "retention_ms": 0})
    await api.operate(client_id, put(1, "a", 1), put(2, "b", 2))

    async def run(line: str, code: int = 0) -> Any:
        arguments = [*line.split(), "--endpoint", _endpoint(api)]
        done = await asyncio.to_thread(CliRunner().invoke, app, arguments)
        assert done.exit_code == code, done.output
        return done

    assert "batch 1 of flow f waits for consumer typo (which has never attached)" in (await run("flow list")).stdout
    listed = (await run("consumer list f")).stdout
    assert all(word in listed for word in ("typo", "never attached", "stalled"))
    assert "reads batch 3 next" in (await run("consumer start f spark --from now")).stdout
    assert "reads batch 3 next" in (await run("consumer detach f spark")).stdout
    assert json.loads((await run("consumer show f spark -o json")).stdout)["fence"] == 2
    await run("consumer remove f typo --yes")
    assert (await api.call("GET", "/v1/flows/f"))[2]["first_batch"] == 3
    altered = json.loads(
        (await run("flow alter f --consumer spark --retention 2h --retention-bytes 4096 --expiry 7d -o json")).stdout
    )
    assert (altered["retention_ms"], altered["consumer_expiry_ms"], altered["version"]) == (7_200_000, 604_800_000, 3)
    assert altered["retention_bytes"] == 4096
    assert altered["consumers"]["spark"]["required"] is True
    assert "never attached" not in (await run("flow show f")).stdout
    assert "CONFLICT" in (await run("flow delete f", 1)).stderr
    await run("flow delete f --force")
    await run("flow show f", 1)
    await run("flow alter events", 2)
    await run("flow alter events --retention soon", 2)
    await run("consumer start events c --from yesterday", 2)


async def test_the_fixture_expires_consumers_as_a_node_does() -> None:
    async with FakeGateway() as fake, Client(fake.endpoints) as client:
        await client.declare_table("rows")
        await client.declare_flow("f", source="rows", consumers=["typo"], consumer_expiry_ms=1_000)
        fake.advance(0.9)
        assert not (await client.flow("f")).consumers["typo"].expired
        fake.advance(0.2)
        assert (await client.flow("f")).consumers["typo"].expired


def test_places_and_durations_are_read_as_people_write_them() -> None:
    now = datetime(2026, 1, 2, 12, tzinfo=UTC)
    assert [duration_ms(text) for text in ("0", "5ms", "90s", "15m", "2h", "7d")] == [
        0, 5, 90_000, 900_000, 7_200_000, 604_800_000,
    ]  # fmt: skip
    assert place("beginning", now) == {"start": "beginning"}
    assert place("batch:12", now) == {"batch": 12}
    assert place("2h", now) == {"ago_ms": 7_200_000}
    assert place("2026-01-02T11:00", now) == {"ago_ms": 3_600_000}
    assert place("2026-01-02T14:00+03:00", now) == {"ago_ms": 3_600_000}
    for text in ("", "soon", "batch:", "batch:-1", "2", "2026-01-03", "9999999999999d"):
        with pytest.raises(ValueError, match=r"write|come"):
            place(text, now)


class _Watched:
    """A machine and what a node sees of it, on clocks that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> None:
        self.cluster, self.s = cluster, 1_000.0
        monkeypatch.setattr(consumer_watch.time, "monotonic", lambda: self.s)
        self.watch = ConsumerWatch(cluster.machine, lambda: cluster.now_ms)

    def look(self, *, leads: bool = True) -> str | None:
        self.s += SAMPLE_MS / 1000
        self.cluster.now_ms += SAMPLE_MS
        return self.watch.look(leads=leads)

    def trend(self, consumer: str) -> str:
        return self.watch.state("f").consumers[consumer].trend


def test_watch_judges_consumers_and_leaves_expiry_to_the_leaders_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(consumers=("typo",), consumer_expiry_ms=60_000)
    seen = _Watched(monkeypatch, cluster)
    fence, _ = cluster.done(c.Attach("f", "spark", "n"))
    expiring: list[str | None] = []
    for _ in range(WINDOW_MS // SAMPLE_MS + 1):
        cluster.fill(1)
        expiring.append(seen.look(leads=len(expiring) > 10))
    assert expiring[:11] == [None] * 11, "a follower proposes nothing"
    assert set(expiring[11:]) == {"f"}
    assert (seen.trend("typo"), seen.trend("spark")) == ("stalled", "stalled")
    assert "consumer typo, which has never moved" in caplog.text
    cluster.done(c.ExpireConsumers("f"))
    assert seen.look() is None
    cluster.done(c.MoveCursor("f", "spark", cluster.flow.batches.last, fence, False))
    assert seen.trend("spark") == "ok"


def test_holder_is_named_in_the_log_once_an_hour_and_again_when_it_is_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster("stream", 1_000, consumers=("typo",), retention_ms=0)
    seen = _Watched(monkeypatch, cluster)
    cluster.fill(1)

    def lines(turns: int) -> list[str]:
        caplog.clear()
        for _ in range(turns):
            seen.look()
        return [line for line in (record.getMessage() for record in caplog.records) if line.startswith("flow f ")]

    assert lines(59) == [], "ten minutes of grace beyond the retention time"
    (line,) = lines(300)
    assert "typo (which has never attached)" in line
    (again,) = lines(62)
    assert again == line
    fence, _ = cluster.done(c.Attach("f", "typo", "n"))
    cluster.done(c.MoveCursor("f", "typo", 1, fence, False))
    assert lines(2) == []
    cluster.fill(20, b'"%s"' % (b"x" * 50))
    (full,) = lines(1)
    assert "% of the quota of table t" in full
    assert "typo (cursor 1)" in full


def test_metrics_of_holders_overlap_and_name_the_retention_time() -> None:
    cluster = Cluster(consumers=("a",), retention_ms=1_000)
    cluster.fill(2)
    held = ConsumerWatch(cluster.machine, lambda: 500).held_bytes()
    size = cluster.flow.retained_bytes
    assert held == {("f", "a"): size, ("f", "(time)"): size}
    assert ConsumerWatch(cluster.machine, lambda: 5_000).held_bytes() == {("f", "a"): size, ("f", "(time)"): 0}
    assert ConsumerWatch(Machine(), lambda: 0).held_bytes() == {}
