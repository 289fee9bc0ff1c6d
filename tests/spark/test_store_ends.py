"""Rows that end: when follows from the item alone, so a replay gives the same, late or not (`stores.expiry`)."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from cassandra import ConsistencyLevel
from cassandra.cluster import Cluster
from cassandra.query import SimpleStatement
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncegate.spark import FlowBatch, apply
from oncegate.spark_sink.applying import Applier
from oncegate.spark_sink.derivation import Change
from oncegate.spark_sink.reconcile import reconcile
from oncegate.stores import WRITE_TS, Clustering, Column, ColumnType, Store, StoreTable, claimed_store, open_store
from oncegate.stores.devcassandra import DevCluster
from oncegate.stores.expiry import live, seconds_kept
from oncegate.stores.limits import sift
from tests.spark.patience import PATIENT

CARTS = StoreTable(
    "carts",
    (
        Column("shop", ColumnType.TEXT),
        Column("cart", ColumnType.TEXT),
        Column("until", ColumnType.TIMESTAMP, nullable=True),
        Column("note", ColumnType.TEXT, nullable=True),
        Column("items", ColumnType.INT64),
    ),
    ("shop",),
    (Clustering("cart"),),
    expires="until",
)
NOW_MS = int(time.time() * 1000)


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with open_store(store_url) as opened:
        opened.create([CARTS])
        opened.clock = lambda: NOW_MS / 1000
        yield opened


def cart(name: str, ts: int, until_ms: int | None, items: int = 1, note: str | None = None) -> dict[str, Any]:
    return {"shop": "s", "cart": name, "until": until_ms, "note": note, "items": items, WRITE_TS: ts}


def rows(*found: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(found), schema=CARTS.schema)


def keys(*names: str, ts: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([cart(name, ts, None) for name in names], schema=CARTS.key_schema)


def test_row_is_seen_until_it_ends_by_no_reader_after_and_one_without_an_end_stays(store: Store) -> None:
    store.write(CARTS, rows(cart("past", 1, NOW_MS), cart("next", 1, NOW_MS + 1), cart("ever", 1, None)))
    for now_ms, alive in ((NOW_MS - 1, {"past", "next", "ever"}), (NOW_MS, {"next", "ever"}), (NOW_MS + 1, {"ever"})):
        store.clock = lambda now_ms=now_ms: now_ms / 1000 + 1e-6
        assert {row["cart"] for part in store.scan(CARTS) for row in part.to_pylist()} == alive
        assert {row["cart"] for row in store.range(CARTS, {"shop": "s"}).to_pylist()} == alive
        assert [row["cart"] for row in store.range(CARTS, {"shop": "s"}, limit=1).to_pylist()] == sorted(alive)[:1]
        found = {name for name in ("past", "next", "ever") if store.get(CARTS, {"shop": "s", "cart": name})}
        assert (found, store.count(CARTS)) == (alive, len(alive))


def test_late_replay_of_older_rows_does_not_raise_the_dead_and_a_newer_one_lives(store: Store) -> None:
    older, ended = (
        rows(cart("a", 1, None), cart("b", 1, NOW_MS + 10**9)),
        rows(cart("a", 2, 1), cart("b", 2, NOW_MS - 5)),
    )
    for batch in (older, ended, older, ended, older):
        store.write(CARTS, batch)
    assert store.count(CARTS) == 0
    store.write(CARTS, rows(cart("a", 3, NOW_MS + 60_000, items=3), cart("b", 3, None)))
    store.write(CARTS, ended)
    found = store.range(CARTS, {"shop": "s"}).to_pylist()
    assert [(row["cart"], row["items"], row[WRITE_TS]) for row in found] == [("a", 3, 3), ("b", 1, 3)]
    store.delete(CARTS, keys("a", "b", ts=4))
    store.write(CARTS, rows(cart("a", 3, NOW_MS + 60_000, items=3)))
    assert store.count(CARTS) == 0


_example = count()
_ends = st.sampled_from([None, 1, NOW_MS - 1, NOW_MS + 3_600_000, NOW_MS + 10**9, 2_200_000_000_000])
_written = st.tuples(st.integers(1, 5), _ends, st.integers(-1, 1), st.sampled_from([None, "", "n"]))


@given(
    st.lists(st.lists(_written, min_size=1, max_size=4), min_size=1, max_size=5), st.sets(st.integers(1, 5), max_size=2)
)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_calls_in_any_order_and_number_end_the_same_whenever_they_come(
    store: Store, calls: list[list[tuple[int, Any, int, str | None]]], deleted: set[int]
) -> None:
    """A commit's writes of a key come in one call; here they may differ."""
    name, used, script = f"c{next(_example)}", set[int](), list[list[tuple[int, Any, int, str | None]]]()
    for call in calls:
        script.append([one for one in call if one[0] not in used])
        used |= {ts for ts, *_ in call}
    shuffled = random.Random(name).sample(script, len(script)) + script[:2]
    for call in shuffled:
        store.write(CARTS, rows(*(cart(name, ts, until, items, note) for ts, until, items, note in call)))
        for ts in deleted:
            store.delete(CARTS, keys(name, ts=ts))
    ts = max(used)
    tied = [(until, items, note) for call in script for at, until, items, note in call if at == ts]
    until, note = (None if any(one[at] is None for one in tied) else max(one[at] for one in tied) for at in (0, 2))
    items = max((one[1] for one in tied), key=lambda number: number.to_bytes(8, signed=True))
    gone = ts <= max(deleted, default=0) or (until is not None and until <= NOW_MS)
    (found,) = [store.get(CARTS, {"shop": "s", "cart": name})]
    seen = found and (found["until"] and round(found["until"].timestamp() * 1000), found["items"], found["note"])
    assert seen == (None if gone else (until, items, note))


def test_row_that_a_server_still_keeps_is_left_out_from_its_end_on() -> None:
    found = rows(
        cart("past", 1, NOW_MS - 1), cart("now", 1, NOW_MS), cart("next", 1, NOW_MS + 1), cart("ever", 1, None)
    )
    assert live(CARTS, found, NOW_MS).column("cart").to_pylist() == ["next", "ever"]


def test_server_keeps_a_row_a_day_longer_one_without_an_end_for_ever_and_never_counts_past_2038() -> None:
    given_rows = [
        cart("ended", 1, 1),
        cart("soon", 1, NOW_MS + 60_000),
        cart("never", 1, None),
        cart("late", 1, 2_200_000_000_000),
        cart("twice", 1, NOW_MS + 60_000),
        cart("twice", 1, NOW_MS + 61_000),
        cart("soon", 2, NOW_MS + 60_000),
    ]
    sifted = sift(CARTS, rows(*given_rows), CARTS.schema).rows
    kept = [int.from_bytes(cell) for cell in seconds_kept(CARTS, sifted, NOW_MS).to_pylist()]
    assert kept == [1, 86_460, 0, 0, 0, 0, 86_460]


@pytest.mark.cassandra
def test_cassandra_frees_what_ended_a_day_ago_and_keeps_what_does_not_end(cassandra: DevCluster) -> None:
    with (
        open_store(cassandra.url("freed")) as store,
        Cluster(["127.0.0.1"], cassandra.config.native_port, **PATIENT) as other,
    ):
        store.create([CARTS])
        store.write(CARTS, rows(cart("soon", 1, NOW_MS + 10**8, note="n"), cart("ever", 1, None, note="n")))
        found = {
            row[0]: row[1:] for row in other.connect("freed").execute("SELECT cart, TTL(items), TTL(note) FROM carts")
        }
        assert found["ever"] == (None, None)
        assert all(10**5 + 86_400 - 3_600 < seconds <= 10**5 + 86_400 for seconds in found["soon"])
        # A second at least: then it is gone for all clients.
        store.write(CARTS, rows(cart("soon", 2, NOW_MS - 10**9)))
        query = SimpleStatement("SELECT cart FROM carts", consistency_level=ConsistencyLevel.LOCAL_QUORUM)
        deadline = time.monotonic() + 60
        while len(other.connect("freed").execute(query).all()) > 1:
            assert time.monotonic() < deadline


def carts(batch: FlowBatch) -> Iterator[Change]:
    for item in batch:
        yield item.upsert(CARTS, shop="s", cart=item.key, until=item.json(), items=1)


def test_reconcile_takes_a_row_that_has_ended_for_one_that_is_not_there(tmp_path: Any) -> None:
    batch = FlowBatch.of(("old", NOW_MS - 90_000), ("new", NOW_MS + 60_000))
    with claimed_store(f"sqlite://{tmp_path}/store", "0" * 32) as store:
        apply(carts, store, [CARTS], batch)
        for later_ms, there in ((0, 1), (10**9, 0)):
            clock = lambda later_ms=later_ms: (NOW_MS + later_ms) / 1000  # noqa: E731
            store._store.clock = clock
            assert store.count(CARTS) == there
            found = reconcile(lambda _: batch, 1, 1, Applier(carts, "j"), store, tables=[CARTS], clock=clock)
            assert found.equal
