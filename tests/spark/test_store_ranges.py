"""Reads of a part of a partition: in order, bounded, and gone on with, in every store and through a claim."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncegate.stores import WRITE_TS, Clustering, Column, ColumnType, Store, StoreTable, claimed_store, open_store
from oncegate.stores.claims import wipe
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.ranges import LIMIT_MAX, slices

EVENTS = StoreTable(
    "events",
    (
        Column("room", ColumnType.TEXT),
        Column("day", ColumnType.INT64),
        Column("name", ColumnType.TEXT),
        Column("number", ColumnType.INT64),
        Column("text", ColumnType.TEXT, nullable=True),
    ),
    ("room",),
    (Clustering("day", descending=True), Clustering("name"), Clustering("number", descending=True)),
)
ALL = [
    {"room": room, "day": day, "name": name, "number": number, "text": None, WRITE_TS: 1}
    for room in ("a", "b")
    for day in range(4)
    for name in ("", "x", "é")
    for number in (-1, 0, 2**40)
]


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with open_store(store_url) as opened:
        opened.create([EVENTS])
        opened.write(EVENTS, pa.RecordBatch.from_pylist(ALL[::-1], schema=EVENTS.schema))
        yield opened


def expected(prefix: dict[str, Any], start: Any, stop: Any, *, reverse: bool) -> list[dict[str, Any]]:
    """By sorting and filtering all rows."""
    found = [row for row in ALL if all(row[name] == value for name, value in prefix.items())]
    if len(prefix) < len(EVENTS.key):
        name = EVENTS.key[len(prefix)]
        found = [row for row in found if (start is None or row[name] >= start) and (stop is None or row[name] < stop)]
    ordered = sorted(found, key=lambda row: (-row["day"], row["name"].encode(), -row["number"]))
    return ordered[::-1] if reverse else ordered


_bounds = {"day": st.integers(-1, 5), "name": st.sampled_from(["", "m", "x", "é"]), "number": st.integers(-2, 2**41)}


@given(data=st.data(), depth=st.integers(1, 4), limit=st.sampled_from([1, 2, 5, 100]), reverse=st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_range_read_in_pieces_is_what_sorting_and_filtering_gives(
    store: Store, data: st.DataObject, depth: int, limit: int, *, reverse: bool
) -> None:
    row = data.draw(st.sampled_from(ALL))
    prefix = {name: row[name] for name in EVENTS.key[:depth]}
    bound = st.none() if depth == len(EVENTS.key) else st.none() | _bounds[EVENTS.key[depth]]
    start, stop = data.draw(bound), data.draw(bound)
    found: list[dict[str, Any]] = []
    while True:
        after = {name: found[-1][name] for name in EVENTS.key} if found else None
        part = store.range(EVENTS, prefix, start, stop, after=after, limit=limit, reverse=reverse)
        found += part.to_pylist()
        if part.num_rows < limit:
            break
        assert part.num_rows == limit
    assert found == expected(prefix, start, stop, reverse=reverse)


def test_range_of_nothing_has_the_tables_columns(store: Store) -> None:
    found = store.range(EVENTS, {"room": "c"})
    assert (found.num_rows, found.schema) == (0, EVENTS.schema)


@pytest.mark.parametrize(
    ("prefix", "more", "code"),
    [
        ({}, {}, StoreCode.BAD_ROWS),
        ({"day": 1}, {}, StoreCode.BAD_ROWS),
        ({"room": "a", "name": "x"}, {}, StoreCode.BAD_ROWS),
        ({"room": 5}, {}, StoreCode.BAD_ROWS),
        ({"room": "a"}, {"start": "x"}, StoreCode.BAD_ROWS),
        ({"room": "a"}, {"after": {"room": "a"}}, StoreCode.BAD_ROWS),
        ({"room": "a", "day": 1, "name": "x", "number": 0}, {"stop": 5}, StoreCode.BAD_ROWS),
        ({"room": "a"}, {"limit": 0}, StoreCode.BAD_OPTION),
        ({"room": "a"}, {"limit": 100_001}, StoreCode.BAD_OPTION),
    ],
)
def test_range_that_is_none_is_refused(
    tmp_path: Any, prefix: dict[str, Any], more: dict[str, Any], code: StoreCode
) -> None:
    with open_store(f"sqlite://{tmp_path}/store") as store:
        store.create([EVENTS])
        with pytest.raises(StoreError) as refused:
            store.range(EVENTS, prefix, **more)
        assert refused.value.code is code


def test_range_through_a_claim_gives_commits_and_fills_up_behind_wiped_rows(store_url: str) -> None:
    identity = "0" * 32
    with claimed_store(store_url, identity) as old:
        old.create([EVENTS])
        old.write(EVENTS, pa.RecordBatch.from_pylist(ALL, schema=EVENTS.schema))
        assert (
            old.range(EVENTS, {"room": "a"}, limit=5).to_pylist()
            == expected({"room": "a"}, None, None, reverse=False)[:5]
        )
        with open_store(store_url) as raw:
            kept = [part for part in raw.scan(EVENTS) if part.num_rows]
            wipe(raw, store_url, identity)
            # What a process of before the wipe was still writing.
            for part in kept:
                raw.write(EVENTS, part)
    with claimed_store(store_url, identity) as new:
        mine = [row for row in ALL if row["number"] == 0]
        new.write(EVENTS, pa.RecordBatch.from_pylist(mine, schema=EVENTS.schema))
        wanted = [row for row in expected({"room": "a"}, 1, None, reverse=True) if row in mine]
        assert new.range(EVENTS, {"room": "a"}, 1, limit=7, reverse=True).to_pylist() == wanted[:7]
        assert new.range(EVENTS, {"room": "a"}, 1, limit=50, reverse=True).to_pylist() == wanted
        for _, group in groupby(wanted, key=lambda row: row["day"]):
            row = next(group)
            assert new.get(EVENTS, {name: row[name] for name in EVENTS.key}) == row


def test_limit_of_a_range_may_be_each_of_its_bounds_and_nothing_beyond() -> None:
    for limit in (1, LIMIT_MAX):
        assert len(list(slices(EVENTS, {"room": "a"}, None, None, None, limit=limit, reverse=False))) == 1
    for limit in (0, LIMIT_MAX + 1):
        with pytest.raises(StoreError) as refused:
            next(slices(EVENTS, {"room": "a"}, None, None, None, limit=limit, reverse=False))
        assert refused.value.code is StoreCode.BAD_OPTION
