"""Derivations over all that a table may declare, through a claim: bad values, partial rows, reconcile and replay."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from oncegate.spark import (
    DEAD_LETTERS,
    Change,
    ClaimedStore,
    Clustering,
    Column,
    ColumnType,
    FlowBatch,
    ListOf,
    MapOf,
    Store,
    StoreTable,
    apply,
    claimed_store,
    open_store,
)
from oncegate.spark_sink.applying import Applier, Done
from oncegate.spark_sink.reconcile import Reconciled, reconcile
from oncegate.stores import WRITE_TS

ORDERS = StoreTable(
    "orders",
    (
        Column("shop", ColumnType.UUID),
        Column("day", ColumnType.TIMESTAMP),
        Column("number", ColumnType.INT64),
        Column("price", ColumnType.DECIMAL),
        Column("weight", ColumnType.FLOAT64, nullable=True),
        Column("paid", ColumnType.BOOL),
        Column("lines", ListOf(ColumnType.TEXT), nullable=True),
        Column("counts", MapOf(ColumnType.INT64), nullable=True),
        Column("raw", ColumnType.JSON),
    ),
    ("shop", "day"),
    (Clustering("number", descending=True),),
)
PROFILES = StoreTable(
    "profiles",
    (
        Column("name", ColumnType.TEXT),
        Column("mail", ColumnType.TEXT, nullable=True),
        Column("age", ColumnType.INT64, nullable=True),
    ),
    ("name",),
    partial=True,
)
TRACES = StoreTable(
    "traces",
    (
        Column("commit", ColumnType.INT64),
        Column("text", ColumnType.TEXT),
        Column("trace", ColumnType.TEXT, nullable=True),
    ),
    ("commit",),
)
SHOP, DAY = uuid.UUID(int=7), datetime(2026, 7, 1, tzinfo=UTC)
IDENTITY = "0" * 32


def orders(batch: FlowBatch) -> Iterator[Change]:
    for item in batch:
        order = item.json()
        yield item.upsert(
            ORDERS,
            shop=SHOP,
            day=DAY,
            number=int(item.key),
            price=Decimal(order["price"]),
            weight=order.get("weight"),
            paid=order.get("paid", False),
            lines=order.get("lines"),
            counts=order.get("counts"),
            raw=order.get("raw", item.value),
        )


def order(**more: Any) -> dict[str, Any]:
    return {"price": "1.5", **more}


def row(number: int, **more: Any) -> dict[str, Any]:
    nothing = {"weight": None, "paid": False, "lines": None, "counts": None}
    return {"shop": SHOP, "day": DAY, "number": number, "price": Decimal("1.5"), **nothing, "raw": "1", **more}


def profiles(batch: FlowBatch) -> Iterator[Change]:
    for item in batch:
        what, _, name = item.key.partition("/")
        if item.value is None:
            yield item.delete(PROFILES, name=name)
        elif what == "mail":
            yield item.update(PROFILES, name=name, mail=item.json())
        else:
            yield item.update(PROFILES, name=name, age=item.json())


def all_rows(store: Store | ClaimedStore, table: StoreTable) -> list[dict[str, Any]]:
    return [row for part in store.scan(table) for row in part.to_pylist(maps_as_pydicts="strict")]


def test_values_that_are_none_of_their_type_make_dead_letters_and_the_others_rows(store_url: str) -> None:
    bad = {
        "10": order(price="1.0000000001"),
        "11": order(weight=float("nan")),
        "12": order(raw="{"),
        "13": order(lines=["a", None]),
        "14": order(paid="yes"),
        "15": order(counts={"a": "b"}),
    }
    good = {"1": order(raw="1", lines=["b"], counts={"z": 1, "a": 2}), "2": order(raw="1", weight=-0.0, paid=True)}
    with claimed_store(store_url, IDENTITY) as store:
        batch = FlowBatch.of(*good.items(), *bad.items())
        for _ in range(2):
            apply(orders, store, [ORDERS], batch)
        assert {letter["item_key"] for letter in all_rows(store, DEAD_LETTERS)} == set(bad)
        second, first = store.range(ORDERS, {"shop": SHOP, "day": DAY}).to_pylist(maps_as_pydicts="strict")
        assert first == row(1, lines=["b"], counts={"a": 2, "z": 1}) | {WRITE_TS: 1}
        assert second == row(2, weight=0.0, paid=True) | {WRITE_TS: 2}
        assert store.get(ORDERS, {"shop": SHOP, "day": DAY, "number": 2}) == second


def reconciled(store: ClaimedStore, batch: FlowBatch, derivation: Any, table: StoreTable) -> Reconciled:
    return reconcile(lambda _: batch, 1, 1, Applier(derivation, "j"), store, tables=[table])


def test_reconcile_compares_all_types_and_names_the_key_of_a_row_that_differs(tmp_path: Path) -> None:
    batch = FlowBatch.of(
        *((f"{at}", order(weight=at / 3 or None, lines=["x"] * at, counts={"b": 1, "a": at})) for at in range(4))
    )
    url = f"sqlite://{tmp_path}/store"
    with claimed_store(url, IDENTITY) as store:
        apply(orders, store, [ORDERS], batch)
        found = reconciled(store, batch, orders, ORDERS)
        assert (found.equal, found.rows) == (True, 4)
        changes: list[dict[str, Any]] = [
            {"lines": ["y"]},
            {"lines": None},
            {"counts": {"a": 1}},
            {"weight": 5.0},
            {"paid": True},
            {"price": Decimal(2)},
        ]
        for change in changes:
            whole = next(one for one in all_rows(store, ORDERS) if one["number"] == 1)
            with open_store(url) as raw:
                ts = next(one[WRITE_TS] for part in raw.scan(ORDERS) for one in part.to_pylist() if one["number"] == 1)
                changed = pa.RecordBatch.from_pylist([whole | change | {WRITE_TS: ts + 1}], schema=ORDERS.schema)
                raw.write(ORDERS, changed)
            (difference,) = reconciled(store, batch, orders, ORDERS).differences
            assert (difference.kind, difference.key) == ("differs", {"shop": SHOP, "day": DAY, "number": 1})
            with open_store(url) as raw:
                raw.clear(["orders"])
            apply(orders, store, [ORDERS], batch)


def test_partial_rows_of_two_sources_end_the_same_in_any_order_and_reconcile(store_url: str) -> None:
    batches = [
        FlowBatch.of(("mail/ann", "a@x"), ("age/bob", 7), ("mail/eve", "e@x")),
        FlowBatch.of(("age/ann", 30), ("mail/bob", "b@x"), ("mail/eve", None), number=2, first_commit=4),
        FlowBatch.of(("mail/ann", "a@y"), ("age/eve", 9), number=3, first_commit=7),
    ]
    with claimed_store(store_url, IDENTITY) as store:
        apply(profiles, store, [PROFILES], *batches[::-1], batches[1], *batches)
        found = sorted(all_rows(store, PROFILES), key=lambda row: row["name"])
        assert found == [
            {"name": "ann", "mail": "a@y", "age": 30, WRITE_TS: 7},
            {"name": "bob", "mail": "b@x", "age": 7, WRITE_TS: 5},
            {"name": "eve", "mail": None, "age": 9, WRITE_TS: 8},
        ]
        same = reconcile(lambda at: batches[at - 1], 1, 3, Applier(profiles, "j"), store, tables=[PROFILES])
        assert (same.equal, same.rows) == (True, 3)
        apply(profiles, store, [PROFILES], FlowBatch.of(("mail/joe", "j@x"), first_commit=9, number=4))
        more = reconcile(lambda at: batches[at - 1], 1, 3, Applier(profiles, "j"), store, tables=[PROFILES])
        assert more.equal, "joe's is of a later batch"


@pytest.mark.parametrize("later", ["b", None])
def test_a_replay_revises_a_value_to_null_also_where_rows_never_change(store_url: str, later: str | None) -> None:
    def traced(trace: str | None) -> Any:
        def derive(batch: FlowBatch) -> Iterator[Change]:
            for item in batch:
                yield item.upsert(TRACES, commit=item.commit, text="t", trace=trace)

        return derive

    batch = FlowBatch.of(("x", 1), ("y", 2))
    with claimed_store(store_url, IDENTITY) as store:
        apply(traced("a"), store, [TRACES], batch)
        for _ in range(2):
            Applier(traced(later), "j", stamp=5).apply(batch, store, Done())
        found = sorted(all_rows(store, TRACES), key=lambda row: row["commit"])
        assert [(row["trace"], row[WRITE_TS]) for row in found] == [(later, 5), (later, 5)]


def test_a_replay_deletes_what_it_revises_to_null_and_nothing_else() -> None:
    """Where rows never change a null is no write in Cassandra: the old cell would show through."""
    done: list[tuple[str, list[tuple[int, int]]]] = []

    class Recorded:
        def write(self, table: StoreTable, rows: pa.RecordBatch) -> None:
            done.append(("write", [(row["commit"], row[WRITE_TS]) for row in rows.to_pylist()]))

        def delete(self, table: StoreTable, keys: pa.RecordBatch) -> None:
            done.append(("delete", [(row["commit"], row[WRITE_TS]) for row in keys.to_pylist()]))

        update = write

    def derive(batch: FlowBatch) -> Iterator[Change]:
        for item in batch:
            yield item.upsert(TRACES, commit=item.commit, text="t", trace=item.json())

    batch = FlowBatch.of(("x", "a"), ("y", ""))
    Applier(derive, "j").apply(batch, Recorded(), Done())
    assert done == [("write", [(1, 1), (2, 2)])]
    done.clear()

    def revised(batch: FlowBatch) -> Iterator[Change]:
        for item in batch:
            yield item.upsert(TRACES, commit=item.commit, text="t", trace=item.json() or None)

    Applier(revised, "j", stamp=9).apply(batch, Recorded(), Done())
    assert done == [("delete", [(2, 8)]), ("write", [(1, 9), (2, 9)])]
