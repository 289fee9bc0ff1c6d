"""docs/spark.md: its jobs are the examples, run as they stand without Spark, and one of them through Spark."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import oncegate.spark
from examples.jobs import messages_by_room, orders_with_country, posts_per_hour, seats_held
from oncegate.spark import DEAD_LETTERS, FlowBatch, Store, StoreTable, apply, claimed_store, open_store, summed
from oncegate.stores import WRITE_TS

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "spark.md").read_text(), re.DOTALL)
LINES_MAX = 30


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/store"


def rows(store: Store, table: StoreTable) -> list[dict[str, Any]]:
    return [row for batch in store.scan(table) for row in batch.to_pylist()]


@pytest.mark.parametrize("module", [posts_per_hour, orders_with_country, messages_by_room, seats_held])
def test_the_page_shows_the_examples_as_they_are_and_they_are_short(module: Any) -> None:
    text = Path(module.__file__).read_text()
    assert text in BLOCKS
    assert sum(1 for line in text.splitlines() if line.strip()) < LINES_MAX


def test_the_unit_test_on_the_page_runs(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = (block for block in BLOCKS if "apply(" in block)
    exec(compile(block, "spark.md", "exec"), {"store_url": store_url})
    assert capsys.readouterr().out.strip() == re.findall(r"  # (\[.*\])", block)[0]


def test_orders_have_the_newest_customer_with_a_country_until_they_are_deleted(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "customers.csv").write_text("customer,country\nann,NO\nbob,PE\n")
    monkeypatch.setenv("CUSTOMERS", str(tmp_path / "customers.csv"))
    first = FlowBatch.of(("o1", {"customer": "ann"}), ("o2", {"customer": "bob"}), ("o3", {"customer": "eve"}))
    second = FlowBatch.of(("o1", {"customer": "bob"}), ("o2", None), number=2, first_commit=4)
    with open_store(store_url) as store:
        for batches in ((second, first), (first, second)):
            apply(orders_with_country.orders_with_country, store, [orders_with_country.ORDERS], *batches)
            (order,) = rows(store, orders_with_country.ORDERS)
            assert (order["order_id"], order["customer"], order["country"]) == ("o1", "bob", "PE")
        (letter,) = rows(store, DEAD_LETTERS)
    assert (letter["item_key"], letter["error"]) == ("o3", "KeyError: 'eve'")


def test_the_index_follows_writes_and_deletions(store_url: str) -> None:
    batch = FlowBatch.of(("a/1", {"text": "hi"}), ("a/2", {"text": "there"}), ("a/1", None), ("x", {"text": "lost"}))
    with open_store(store_url) as store:
        apply(messages_by_room.messages_by_room, store, [messages_by_room.INDEX], batch)
        assert [(row["room"], row["message"], row["text"]) for row in rows(store, messages_by_room.INDEX)] == [
            ("a", "2", "there")
        ]
        assert [row["error"] for row in rows(store, DEAD_LETTERS)] == ["the key names no room"]


def test_holds_of_seats_end_by_themselves_and_go_when_they_are_given_back(store_url: str) -> None:
    def hold(guest: str, at_ms: int) -> dict[str, Any]:
        return {"guest": guest, "at_ms": at_ms}

    minute = 60_000
    first = FlowBatch.of(("ham/1/2", hold("ann", 0)), ("ham/1/10", hold("bob", 0)), ("ham/2/1", hold("eve", minute)))
    second = FlowBatch.of(("ham/1/2", None), ("ham/2/1", hold("joe", 5 * minute)), number=2, first_commit=4)
    with open_store(store_url) as store:
        for batches in ((second, first), (first, second), (first,)):
            apply(seats_held.seats_held, store, [seats_held.HELD], *batches)
            for minutes, guests in ((14, ["bob", "joe"]), (15, ["joe"]), (20, [])):
                store.clock = lambda minutes=minutes: minutes * 60.0
                found = store.range(seats_held.HELD, {"show": "ham"}).to_pylist()
                assert [row["guest"] for row in found] == guests
                assert store.count(DEAD_LETTERS) == 0


def test_the_partial_table_on_the_page_joins_two_sources_in_either_order(store_url: str) -> None:
    (block,) = (block for block in BLOCKS if "partial=True" in block)
    names = vars(oncegate.spark).copy()
    exec(compile(block, "spark.md", "exec"), names)
    first, second = FlowBatch.of(("mail/ann", "a@x")), FlowBatch.of(("tags/ann", ["new"]), first_commit=2)
    for batches in ((first, second), (second, first)):
        with open_store(f"{store_url}-{batches[0].last_commit}") as store:
            apply(names["guests"], store, [names["GUEST"]], *batches)
            assert rows(store, names["GUEST"]) == [{"guest": "ann", "mail": "a@x", "tags": ["new"], WRITE_TS: 2}]


def test_the_reads_on_the_page_run(store_url: str) -> None:
    (block,) = (block for block in BLOCKS if "store.range(" in block)
    with claimed_store(store_url, "0" * 32) as store:
        now_ms = int(time.time() * 1000)
        held = [(f"hamlet/{row}/2", {"guest": "ann", "at_ms": now_ms}) for row in (1, 2, 3, 4)]
        apply(seats_held.seats_held, store, [seats_held.HELD], FlowBatch.of(*held))
    names = {**vars(oncegate.spark), **vars(seats_held)}
    exec(compile(block.replace("sqlite:///var/lib/jobs/store", store_url), "spark.md", "exec"), names)
    assert names["seat"]["guest"] == "ann"
    assert names["front"].column("row").to_pylist() == [1, 2, 3]
    assert names["rest"].num_rows == 0


def test_partials_of_any_number_of_batches_add_up_and_none_to_nothing(store_url: str) -> None:
    posts = [(f"p{at}", {"author": f"a{at % 2}", "at": 1800 * at}) for at in range(8)]
    batches = [FlowBatch.of(*posts, number=number, first_commit=8 * number) for number in (1, 2, 3)]
    table = posts_per_hour.HOURLY
    with open_store(store_url) as store:
        apply(posts_per_hour.posts_per_hour, store, [table])
        assert summed(table, store.scan(table)).num_rows == 0
        apply(posts_per_hour.posts_per_hour, store, [table], *batches, batches[1])
        found = {(row["author"], row["hour"]): row["posts"] for row in summed(table, store.scan(table)).to_pylist()}
    assert found == {(f"a{at % 2}", at // 2): 3 for at in range(8)}


@pytest.mark.spark
def test_the_first_example_runs_through_spark(tmp_path: Path, store_url: str) -> None:
    from oncegate.spark_sink import session
    from oncegate.spark_sink.jobs import job
    from oncegate.spark_sink.sink import sink_of
    from tests.spark.fake_gateway import FakeFlow, serving

    flow = FakeFlow("posts-of-the-page")
    posts = [(at, f"p{at}", json.dumps({"author": f"a{at % 3}", "at": 600 * at})) for at in range(1, 201)]
    flow.seal_all(posts, 30)
    with serving(flow) as node:
        settings = job.JobSettings(
            tables=(posts_per_hour.HOURLY,),
            sink=sink_of(posts_per_hour.posts_per_hour, "posts-per-hour"),
            endpoints=node.url,
            flow=flow.name,
            consumer="hourly",
            store=store_url,
            checkpoint=str(tmp_path / "checkpoint"),
            timeout_s=10,
        )
        assert job.run(session.build("tests", cores=2), settings, threading.Event()) == 0
    with open_store(store_url) as store:
        found = summed(posts_per_hour.HOURLY, store.scan(posts_per_hour.HOURLY)).to_pylist()
    counted: dict[tuple[str, int], int] = {}
    for at, _, _ in posts:
        key = (f"a{at % 3}", 600 * at // 3600)
        counted[key] = counted.get(key, 0) + 1
    assert {(row["author"], row["hour"]): row["posts"] for row in found} == counted
