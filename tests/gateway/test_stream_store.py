"""Rows of a stream table are read on through to the store once their batches are dropped."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.flows.open_segment import OpenSegment
from oncegate.flows.segment import read_table
from oncegate.gateway.local.waiting import until
from oncegate.gateway.machine.flow_state import Flow
from oncegate.gateway.node import stream_store
from oncegate.gateway.node.node import Node
from oncegate.rifl.errors import OncegateError
from oncegate.stores.claimed import claimed_store
from oncegate.stores.claims import Claim, adopt, wipe
from oncegate.stores.dead_letters import DEAD_LETTERS, newest_of
from oncegate.stores.errors import StoreError
from oncegate.stores.store import open_store
from oncegate.stores.stream_rows import ROWS_CONSUMER, STREAM_ROWS, rows_of
from oncegate.stores.tables import WRITE_TS
from tests.conftest import Api
from tests.gateway.http_contract import assert_problem, declare, one_node, put, serving

TABLE = "clicks"
OWN_FLOW = {"consumers": [ROWS_CONSUMER], "retention_ms": 0, "max_items": 2, "linger_ms": 3_600_000}


async def test_row_is_looked_up_in_the_state_that_a_snapshot_brought(tmp_path: Path) -> None:
    async with serving(one_node(tmp_path)) as (api, node):
        await declare(api, TABLE, "stream")
        await api.operate(await api.session(), put(1, "k", 1, TABLE))
        assert (await node.reads.row(TABLE, "k")).value == b"1"
        flow = node.machine.flows.get(TABLE)
        flow.segment = OpenSegment(TABLE, TABLE)
        flow.segment.append_one(2, "k", b"2", 0, 1, 2)
        node.reads.replaced()
        assert (await node.reads.row(TABLE, "k")).value == b"2"


class Delivering:
    """One node whose stream table is delivered by hand: batches go into the store, then the cursor moves."""

    def __init__(self, api: Api, node: Node, url: str, client_id: str) -> None:
        self.api = api
        self.node = node
        self.url = url
        self.client_id = client_id
        self.sequence = 0

    @property
    def flow(self) -> Flow:
        return self.node.machine.flows.get(TABLE)

    async def write(self, *rows: tuple[str, Any]) -> list[Any]:
        """Put rows, None deletes one."""
        first, operations = self.sequence + 1, []
        for self.sequence, (key, value) in enumerate(rows, first):
            gone = {"sequence": self.sequence, "op": "delete", "table": TABLE, "key": key}
            operations.append(gone if value is None else put(self.sequence, key, value, TABLE))
        return await self.api.operate(self.client_id, *operations, first_incomplete=first)

    def store(self, rows: pa.RecordBatch) -> None:
        """Write to the store as the job does."""
        with claimed_store(self.url, self.node.machine.identity) as store:
            store.create([STREAM_ROWS])
            store.begin(TABLE, ROWS_CONSUMER)
            store.write(STREAM_ROWS, rows)

    def store_batch(self, payload: bytes) -> None:
        for items in read_table(payload).to_batches():
            for rows in rows_of(items, TABLE, 100):
                self.store(rows)

    async def deliver(self) -> None:
        """Bring all sealed batches into the store; return when they are dropped here."""
        consumer = f"/v1/flows/{TABLE}/consumers/{ROWS_CONSUMER}"
        _, _, attached = await self.api.call("POST", f"{consumer}/attach", {"nonce": f"n{self.sequence}"})
        last = self.flow.batches.last
        for number in range(attached["cursor"] + 1, last + 1):
            payload, _ = await self.node.reads.batch(TABLE, number)
            await asyncio.to_thread(self.store_batch, payload)
        moved = await self.api.call("POST", f"{consumer}/cursor", {"batch": last, "fence": attached["fence"]})
        assert moved[0] == 200
        await until(lambda: self.flow.batches.first > last, 20, f"batch {last} is dropped")

    async def read(self, key: str, query: str = "") -> Any:
        return await self.api.call("GET", f"/v1/tables/{TABLE}/rows/{key}{query}")

    async def value(self, key: str, query: str = "") -> Any:
        """Return a row's value, None if there is none."""
        status, _, body = answer = await self.read(key, query)
        if status != 200:
            assert_problem(answer, "NOT_FOUND")
            return None
        assert body["commit"] >= body["version"]
        return body["value"]


@pytest.fixture
async def delivering(tmp_path: Path) -> AsyncIterator[Delivering]:
    """A node with a store, and a table that is delivered there."""
    url = f"sqlite://{tmp_path / 'store'}"
    async with _started(tmp_path, url, stream_store=url) as started:
        yield started


@asynccontextmanager
async def _started(tmp_path: Path, url: str, **settings: Any) -> AsyncIterator[Delivering]:
    async with serving(one_node(tmp_path, **settings)) as (api, node):
        await declare(api, TABLE, "stream", flow=OWN_FLOW)
        yield Delivering(api, node, url, await api.session())


async def test_row_is_read_the_same_before_and_after_its_batch_is_dropped(delivering: Delivering) -> None:
    first, *_ = await delivering.write(("a", 1), ("b", {"n": 2}), ("a", 3), ("c", "x"), ("c", None), ("d", None))
    told = {key: (await delivering.read(key))[0::2] for key in "abcdx"}
    assert [told[key][0] for key in "abcdx"] == [200, 200, 404, 404, 404]
    assert delivering.node.stream_store is not None
    assert delivering.node.stream_store.reads == 0, "the store was asked for rows that are retained"
    await delivering.deliver()
    for key, (status, body) in told.items():
        answer = await delivering.read(key)
        assert answer[0] == status
        if status == 200:
            assert (answer[2]["value"], answer[2]["version"]) == (body["value"], body["version"])
            assert answer[2]["commit"] >= first["commit"]
            assert answer[1]["ETag"] == f'"{body["version"]}"'
    assert delivering.node.stream_store.reads == 5


async def test_newer_writes_hide_what_is_in_the_store(delivering: Delivering) -> None:
    await delivering.write(("a", 1), ("b", 1), ("c", 1), ("d", 1))
    await delivering.deliver()
    await delivering.write(("a", 2), ("b", None), ("c", 2))  # a batch of two, and one item that waits
    for query in ("", "?consistency=session", "?consistency=stale"):
        assert [await delivering.value(key, query) for key in "abcd"] == [2, None, 2, 1]
    await delivering.write(("d", None))
    await delivering.deliver()
    assert [await delivering.value(key) for key in "abcd"] == [2, None, 2, None]


async def test_what_was_delivered_twice_or_late_does_not_bring_older_rows_back(delivering: Delivering) -> None:
    await delivering.write(("a", 1), ("b", 1))
    payload, _ = await delivering.node.reads.batch(TABLE, 1)
    await delivering.write(("a", 2), ("b", None))
    await delivering.deliver()
    delivering.store_batch(payload)
    assert [await delivering.value(key) for key in "ab"] == [2, None]


def _row(key: str, value: str, commit: int) -> pa.RecordBatch:
    row = {"source": TABLE, "key": key, "value": value, WRITE_TS: commit}
    return pa.RecordBatch.from_pylist([row], schema=STREAM_ROWS.schema)


async def test_answer_from_a_store_that_is_ahead_of_this_node_says_so(
    delivering: Delivering, monkeypatch: pytest.MonkeyPatch
) -> None:
    await delivering.write(("a", 1), ("b", 1))
    await delivering.deliver()
    delivering.store(_row("a", "2", 10_000))
    delivering.store(_row("b", "", 10_001))
    status, headers, body = await delivering.read("a")
    assert (status, body["value"], body["commit"], headers["Oncegate-Commit"]) == (200, 2, 10_000, "10000")
    # That a row is gone has no commit of its own to show: the node waits until it knows as much itself.
    monkeypatch.setattr(delivering.node.reads, "answer_s", 0.05)
    assert_problem(await delivering.read("b"), "NOT_READY")


async def test_store_that_does_not_answer_is_a_refusal_to_try_again_and_no_absence(
    delivering: Delivering, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await delivering.write(("a", 1), ("b", 1))
    await delivering.deliver()
    shutil.move(tmp_path / "store", tmp_path / "gone")
    (tmp_path / "store").write_text("not a directory")
    assert_problem(await delivering.read("a"), "NOT_READY")
    (tmp_path / "store").unlink()
    shutil.move(tmp_path / "gone", tmp_path / "store")
    assert await delivering.value("a") == 1
    monkeypatch.setattr(stream_store, "WAITING_MAX", 0)
    assert_problem(await delivering.read("a"), "OVERLOADED")
    await delivering.write(("z", 1))
    assert await delivering.value("z") == 1, "what is retained needs no store"


async def test_node_without_the_store_refuses_rather_than_to_say_that_a_row_is_absent(tmp_path: Path) -> None:
    async with _started(tmp_path, f"sqlite://{tmp_path / 'store'}") as one:
        await one.write(("a", 1), ("b", 1))
        await one.deliver()
        assert_problem(await one.read("a"), "NOT_READY")
        assert_problem(await one.read("never"), "NOT_READY")
        await one.write(("c", 1))
        assert await one.value("c") == 1


@pytest.mark.parametrize("take_over", [adopt, wipe])
async def test_rebuilt_cluster_over_a_kept_store_is_refused_then_answers_what_it_wrote_and_nothing_else(
    tmp_path: Path, take_over: Callable[..., Claim]
) -> None:
    url = f"sqlite://{tmp_path / 'store'}"
    async with _started(tmp_path / "old", url, stream_store=url) as old:
        await old.write(("a", 1), ("a", 2), ("a", "OLD"), ("foreign", 1))
        await old.deliver()
        assert await old.value("a") == "OLD"
    async with _started(tmp_path / "new", url, stream_store=url) as new:
        await new.write(("a", "NEW"), ("b", 1))
        with pytest.raises(StoreError, match="STORE_MISMATCH"):
            await new.deliver()
        assert await new.value("a") == "NEW", "what is retained needs no store"
        with open_store(url) as store:
            take_over(store, "here", new.node.machine.identity)
        await new.deliver()
        assert [await new.value(key) for key in ("a", "b", "foreign", "never")] == ["NEW", 1, None, None]
        with open_store(url) as store:
            adopt(store, "here", "f" * 32)
        assert await new.value("a") == "NEW", "a row of its own log"
        for key in ("foreign", "never"):
            assert "is not this cluster's" in assert_problem(await new.read(key), "NOT_READY")["detail"]


async def test_restored_cluster_answers_rows_of_its_backup_and_calls_none_absent_that_a_lost_write_replaced(
    tmp_path: Path,
) -> None:
    url = f"sqlite://{tmp_path / 'store'}"
    async with _started(tmp_path / "old", url, stream_store=url) as old:
        (_, backed_up) = await old.write(("a", 1), ("b", 1))
        await old.deliver()
        await old.write(("b", "LOST"), ("c", "LOST"))
        await old.deliver()
        identity = old.node.machine.identity
    async with _started(tmp_path / "new", url, stream_store=url) as new:
        with open_store(url) as store:
            adopt(store, "here", new.node.machine.identity, origin=(identity, backed_up["commit"]))
        await new.write(("x", 1), ("y", 1))
        await new.deliver()
        assert [await new.value(key) for key in ("x", "a", "never")] == [1, 1, None]
        for key in ("b", "c"):
            assert "write it again" in assert_problem(await new.read(key), "NOT_READY")["detail"]
        await new.write(("b", 2), ("z", 1))
        await new.deliver()
        assert await new.value("b") == 2


async def test_node_with_another_store_than_the_job_refuses_rather_than_to_say_that_a_row_is_absent(
    tmp_path: Path,
) -> None:
    url = f"sqlite://{tmp_path / 'store'}"
    async with _started(tmp_path, url, stream_store=f"sqlite://{tmp_path / 'misspelt'}") as one:
        await one.write(("a", 1), ("b", 1))
        await one.deliver()
        assert_problem(await one.read("a"), "NOT_READY")
        assert not (tmp_path / "misspelt").exists(), "reading creates nothing"
        with claimed_store(f"sqlite://{tmp_path / 'misspelt'}", one.node.machine.identity) as other:
            other.create([STREAM_ROWS])
        assert_problem(await one.read("a"), "NOT_READY")


async def test_node_that_leads_no_cluster_yet_asks_no_store() -> None:
    unnamed = stream_store.StreamStore("sqlite:///nowhere", lambda: "")
    with pytest.raises(OncegateError, match="no identity"):
        await unnamed.find("t", "k")
    await unnamed.close()


async def test_closed_store_is_not_ready() -> None:
    closed = stream_store.StreamStore("sqlite:///nowhere", lambda: "a" * 32)
    await closed.close()
    with pytest.raises(OncegateError, match="stopping"):
        await closed.find("t", "k")


async def test_flow_of_a_stream_table_is_declared_with_it(api: Api) -> None:
    await declare(api, TABLE, "stream", flow=OWN_FLOW)
    _, _, made = await api.call("GET", f"/v1/flows/{TABLE}")
    assert (made["retention_ms"], list(made["consumers"])) == (0, [ROWS_CONSUMER])
    await declare(api, TABLE, "stream", flow=OWN_FLOW)
    await declare(api, TABLE, "stream")  # says nothing about the flow, and leaves it as it is
    again = (await api.call("GET", f"/v1/flows/{TABLE}"))[2]
    again["consumers"][ROWS_CONSUMER]["idle_ms"] = made["consumers"][ROWS_CONSUMER]["idle_ms"]  # cluster time goes on
    assert again == made

    async def refused(code: str, table: str, **options: Any) -> None:
        assert_problem(await api.call("PUT", f"/v1/tables/{table}", options), code)

    await refused("CONFLICT", TABLE, kind="stream", flow={**OWN_FLOW, "retention_ms": 1})
    await refused("BAD_REQUEST", "r", kind="resident", flow=OWN_FLOW)
    for wrong in ({"retention_ms": -1}, {"nonsense": 1}, {"consumers": ["a", "a"]}, {"source": "other"}):
        await refused("BAD_REQUEST", "s", kind="stream", flow=wrong)
    assert_problem(await api.call("GET", "/v1/tables/s"), "NOT_FOUND")


async def test_dead_letters_of_a_flow_are_told_the_newest_first_and_only_from_the_nodes_own_store(
    tmp_path: Path, delivering: Delivering
) -> None:
    columns = {"job": "hourly", "flow": TABLE, "batch": 1, "raw": b"?", "client_id": 1, "sequence": 1, "time_ms": 5}
    rows = [
        {**columns, "commit": commit, "item_key": f"k{commit}", "error": "KeyError: 'cents'", "traceparent": None}
        | {"flow": TABLE if commit % 2 else "another", WRITE_TS: commit}
        for commit in range(1, 10)
    ]
    path = f"/v1/flows/{TABLE}/dead-letters"
    assert (await delivering.api.call("GET", path))[2] == {"store": True, "letters": [], "found": 0, "whole": True}
    with claimed_store(delivering.url, delivering.node.machine.identity) as store:
        store.create([DEAD_LETTERS])
        store.write(DEAD_LETTERS, pa.RecordBatch.from_pylist(rows, schema=DEAD_LETTERS.schema))
    _, _, told = await delivering.api.call("GET", f"{path}?limit=2")
    assert (told["store"], told["found"], told["whole"]) == (True, 5, True)
    letter = {"job": "hourly", "batch": 1, "key": "k9", "error": "KeyError: 'cents'", "time_ms": 5, "commit": 9}
    assert told["letters"] == [letter, {**letter, "key": "k7", "commit": 7}]
    assert_problem(await delivering.api.call("GET", "/v1/flows/nobody/dead-letters"), "NOT_FOUND")
    assert_problem(await delivering.api.call("GET", f"{path}?limit=0"), "BAD_REQUEST")
    async with serving(one_node(tmp_path / "storeless")) as (api, _):
        await declare(api, TABLE, "stream")
        assert (await api.call("GET", path))[2]["store"] is False


@given(
    letters=st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(1, 9)), max_size=20),
    limit=st.integers(1, 5),
    read_max=st.integers(1, 25),
)
def test_newest_dead_letters_are_those_of_the_whole_list_within_the_bound(
    letters: list[tuple[str, int]], limit: int, read_max: int
) -> None:
    rows = [{"flow": flow, "commit": commit} for flow, commit in letters]
    told = newest_of(iter(rows), "a", limit, read_max)
    looked_at = [row["commit"] for row in rows[:read_max] if row["flow"] == "a"]
    assert [one["commit"] for one in told.letters] == sorted(looked_at, reverse=True)[:limit]
    assert (told.found, told.whole) == (len(looked_at), len(rows) <= read_max)
