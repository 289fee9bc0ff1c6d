"""Fields become columns: what an item holds, what it may lack, and which items are refused."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from oncegate.spark import DEAD_LETTERS, apply, open_store
from oncegate.spark_sink.derivation import FlowBatch
from oncegate.spark_sink.library.aggregates import totals
from oncegate.spark_sink.library.fields import Field, agreed, moment, real, take, text, whole
from oncegate.stores.errors import StoreCode, StoreError


def taken(fields: list[Field], *values: Any) -> tuple[list[tuple[Any, ...]], list[int]]:
    found = take(FlowBatch.of(*((f"k{at}", value) for at, value in enumerate(values, 1))), fields)
    rows = [tuple(row[field.column] for field in fields) for row in found.rows.to_pylist()]
    return rows, [reject.commit for reject in found.rejects]


def test_fields_are_found_by_path_and_converted() -> None:
    fields = [text("user.name"), whole("at", per=60, column="minute"), real("x y"), whole("user.class"), text("$key")]
    rows, rejects = taken(
        fields,
        {"user": {"name": "Ünal", "class": 3}, "at": 119, "x y": 1.5, "more": [1]},
        {"user": {"name": "", "class": -3}, "at": -1, "x y": 2},
    )
    assert rows == [("Ünal", 1, 1.5, 3, "k1"), ("", -1, 2.0, -3, "k2")]
    assert rejects == []


@pytest.mark.parametrize(
    "value", [{}, {"n": None}, {"n": "1"}, {"n": 1.5}, {"n": True}, {"n": 2**63}, [], 7, "n"], ids=repr
)
def test_an_item_that_lacks_a_field_is_rejected_and_its_neighbours_are_not(value: Any) -> None:
    assert taken([whole("n")], {"n": 1}, value, {"n": 3}) == ([(1,), (3,)], [2])


def test_a_default_stands_for_a_missing_field_and_for_null() -> None:
    fields = [text("a", default="?"), whole("b.c", default=0)]
    assert taken(fields, {"b": {}}, {"a": None, "b": {"c": None}}) == ([("?", 0), ("?", 0)], [])
    assert taken(fields, {"a": "x"}, {"a": 1, "b": {"c": 1}}) == ([], [1, 2])


def test_a_moment_is_a_time_or_null_and_within_what_stores_hold() -> None:
    fields = [moment("at", unit_ms=1000)]
    rows, rejects = taken(fields, {"at": 2}, {"at": None}, {}, {"at": 253_402_300_800}, {"at": "1"}, {"at": 1.5})
    assert rows == [(datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC),), (None,), (None,)]
    assert rejects == [4, 5, 6]


def test_deletions_are_apart_and_items_own_columns_need_no_json() -> None:
    found = take(FlowBatch.of(("a", "no object"), ("b", None), first_commit=5), [whole("$time_ms", per=2, column="t")])
    assert found.rows.to_pylist() == [{"commit": 5, "key": "a", "t": 2}]
    assert found.deleted.to_pylist() == [{"commit": 6, "key": "b"}]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: agreed(text("a"), text("a.b")),
        lambda: agreed(text("a.b"), text("a")),
        lambda: agreed(text("a"), whole("a", column="n")),
        lambda: agreed(text("a"), text("b.a")),
        lambda: whole("commit"),
        lambda: text("$value"),
        lambda: whole("n", per=0),
        lambda: moment("x", unit_ms=0),
    ],
)
def test_a_declaration_that_means_two_things_is_refused(wrong: Any) -> None:
    with pytest.raises(StoreError) as refused:
        wrong()
    assert refused.value.code is StoreCode.BAD_TABLE


def test_an_item_whose_key_no_store_takes_is_itself_the_dead_letter(tmp_path: Path) -> None:
    spent = totals("spent", [text("who"), text("where")], [whole("cents")])
    values = [("ann", "x", 1), ("", "x", 2), ("ann", "x", 4), ("x" * 70_000, "x", 8), ("ann", "y" * 70_000, 16)]
    given = [(f"k{at}", {"who": who, "where": where, "cents": cents}) for at, (who, where, cents) in enumerate(values)]
    with open_store(f"sqlite://{tmp_path}/store") as store:
        apply(spent, store, spent.tables, FlowBatch.of(*given, ("k9", {"who": "ann", "where": "x", "cents": 32})))
        assert spent.read(store).to_pylist() == [{"who": "ann", "where": "x", "count": 3, "cents": 37}]
        letters = [row for part in store.scan(DEAD_LETTERS) for row in part.to_pylist()]
    assert sorted((row["item_key"], row["error"]) for row in letters) == [
        ("k1", "spent: the partition key is empty"),
        ("k3", "spent: the partition key is over 65535 bytes"),
        ("k4", "spent: the clustering columns are over 65535 bytes together"),
    ]
