"""Versions of a slowly changing table: what an item saw does not depend on when, or how often, either was derived."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from oncegate.spark import FlowBatch, Store, apply, open_store
from oncegate.spark_sink.library.copies import copied
from oncegate.spark_sink.library.fields import text, whole
from oncegate.spark_sink.library.history import history
from oncegate.stores.errors import StoreCode, StoreError

PRICES = history("prices", [text("unit"), whole("cents")])
ORDERS = copied("orders", [text("product")])
FIRST = FlowBatch.of(("tea", {"unit": "bag", "cents": 5}), ("jam", {"unit": "jar", "cents": 300}), first_commit=10)
SECOND = FlowBatch.of(("tea", {"unit": "bag", "cents": 6}), ("jam", None), number=2, first_commit=20)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite://{tmp_path}/store?shards=1") as opened:
        opened.create((*PRICES.tables, *ORDERS.tables))
        yield opened


def joined(store: Store) -> dict[str, tuple[int | None, int | None]]:
    orders = pa.Table.from_batches(store.scan(ORDERS.table), ORDERS.table.schema)
    rows = PRICES.join(store, orders, "product").to_pylist()
    return {row["key"]: (row["cents"], row["version"]) for row in rows}


def ordered(*products: str, first_commit: int) -> FlowBatch:
    items = [(f"o{at}", {"product": product}) for at, product in enumerate(products, first_commit)]
    return FlowBatch.of(*items, first_commit=first_commit)


def test_an_order_keeps_the_price_of_its_time_in_whatever_order_both_are_derived(store: Store) -> None:
    old, between, new = (
        ordered("tea", "none", first_commit=1),
        ordered("jam", "tea", first_commit=15),
        ordered("tea", "jam", "oil", first_commit=22),
    )
    expected = {
        "o1": (None, None),
        "o2": (None, None),
        "o15": (300, 11),
        "o16": (5, 10),
        "o22": (6, 20),
        "o23": (None, None),
        "o24": (None, None),
    }
    apply(ORDERS, store, ORDERS.tables, new, old, between)
    assert set(joined(store).values()) == {(None, None)}
    apply(PRICES, store, PRICES.tables, SECOND, FIRST, SECOND)
    assert joined(store) == expected
    apply(ORDERS, store, ORDERS.tables, old, new)
    assert joined(store) == expected


def test_one_key_as_of_a_commit(store: Store) -> None:
    apply(PRICES, store, PRICES.tables, FIRST, SECOND)
    seen = [PRICES.as_of(store, "jam", commit) for commit in (11, 12, 21, 22)]
    assert [row and row["cents"] for row in seen] == [None, 300, 300, None]


def test_a_table_without_versions_joins_nothing(store: Store) -> None:
    apply(ORDERS, store, ORDERS.tables, ordered("tea", first_commit=1))
    assert joined(store) == {"o1": (None, None)}
    empty = PRICES.join(store, ORDERS.table.schema.empty_table(), "product")
    assert (empty.num_rows, empty.column_names[-3:]) == (0, ["unit", "cents", "version"])


@pytest.mark.parametrize("fields", [[text("gone")], [whole("version")], [whole("x"), text("x")]])
def test_a_malformed_declaration_is_refused(fields: list[object]) -> None:
    with pytest.raises(StoreError) as refused:
        history("prices", fields)  # type: ignore[arg-type]
    assert refused.value.code is StoreCode.BAD_TABLE


def test_an_item_sees_the_versions_before_it_and_not_the_one_it_makes(tmp_path: Path) -> None:
    job = history("own_versions", [whole("cents")])
    with open_store(f"sqlite://{tmp_path}/own") as store:
        apply(job, store, job.tables, FlowBatch.of(("tea", {"cents": 5}), ("tea", {"cents": 6}), first_commit=10))
        rows = pa.table({"key": ["tea"] * 3, "write_ts": [10, 11, 12]})
        assert job.join(store, rows, "key").column("version").to_pylist() == [None, 10, 11]
