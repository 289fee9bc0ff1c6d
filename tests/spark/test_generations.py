"""What a table holds is one checkpoint's: another one is refused, and a rebuild wins over all that was there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from oncegate.spark import DEAD_LETTERS, ClaimedStore, Column, ColumnType, StoreTable, claimed_store
from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.generations import GENERATIONS, bind, generation_of, sweep
from oncegate.spark_sink.table_sink import write_rows
from oncegate.stores.errors import StoreCode

TABLE = StoreTable(
    name="totals",
    columns=(Column("user", ColumnType.TEXT), Column("total", ColumnType.INT64)),
    partition_key=("user",),
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ClaimedStore]:
    with claimed_store(f"sqlite://{tmp_path}/store", "c0ffee") as opened:
        opened.create([TABLE, GENERATIONS, DEAD_LETTERS])
        yield opened


def write(store: ClaimedStore, stamp: int | None, *rows: dict[str, Any]) -> None:
    write_rows(pa.Table.from_pylist(list(rows)), TABLE, store, stamp, "job", 3)


def held(store: ClaimedStore) -> dict[str, int]:
    return {row["user"]: row["total"] for part in store.scan(TABLE) for row in part.to_pylist()}


def refused(code: StoreCode, action: Any, *arguments: Any) -> str:
    with pytest.raises(SinkError) as caught:
        action(*arguments)
    assert caught.value.code is code
    return caught.value.detail


def test_a_later_micro_batch_wins_also_with_a_smaller_value_and_one_that_comes_again_changes_nothing(
    store: ClaimedStore,
) -> None:
    job = generation_of(store, [TABLE], "job")
    write(store, job.stamp(0), {"user": "ann", "total": 9}, {"user": "bob", "total": 1})
    write(store, job.stamp(1), {"user": "ann", "total": 3})
    write(store, job.stamp(0), {"user": "ann", "total": 9}, {"user": "bob", "total": 1})
    assert held(store) == {"ann": 3, "bob": 1}


def test_a_row_that_is_marked_deleted_goes(store: ClaimedStore) -> None:
    write(store, 1, {"user": "ann", "total": 9, "deleted": False}, {"user": "bob", "total": 1, "deleted": None})
    write(store, 2, {"user": "ann", "total": 9, "deleted": True})
    assert held(store) == {"bob": 1}


def test_two_rows_of_one_key_in_a_micro_batch_are_refused_instead_of_mixed(store: ClaimedStore) -> None:
    rows = [{"user": "ann", "total": 9}, {"user": "ann", "total": 3}]
    assert "one key" in refused(StoreCode.BAD_ROWS, write, store, 1, *rows)
    assert held(store) == {}
    # With the commit numbers of their items it is clear which one is newer.
    write(store, None, *({**row, "write_ts": commit} for commit, row in enumerate(rows, 7)))
    assert held(store) == {"ann": 3}


def test_a_column_of_another_type_is_refused(store: ClaimedStore) -> None:
    assert "totals" in refused(StoreCode.BAD_ROWS, write, store, 1, {"user": "ann", "total": "many"})


def test_a_row_that_no_store_takes_is_a_dead_letter_and_the_others_are_written(store: ClaimedStore) -> None:
    for _ in range(2):
        write(store, 1, {"user": "x" * 70_000, "total": 9}, {"user": "ann", "total": 1})
    assert held(store) == {"ann": 1}
    (letter,) = [row for part in store.scan(DEAD_LETTERS) for row in part.to_pylist()]
    assert (letter["job"], letter["flow"], letter["batch"]) == ("job", "", 3)
    assert letter["error"].startswith("totals: ")
    assert b'"total": 9' in letter["raw"]


def test_each_row_that_no_store_takes_is_a_letter_of_its_own(store: ClaimedStore) -> None:
    write(store, 1, {"user": "x" * 70_000, "total": 1}, {"user": "y" * 70_000, "total": 2})
    letters = [row for part in store.scan(DEAD_LETTERS) for row in part.to_pylist()]
    assert sorted(letter["item_key"][:3] for letter in letters) == ['["x', '["y']


def test_another_checkpoint_is_refused_before_it_writes_a_row(store: ClaimedStore) -> None:
    """Its micro-batches count from zero again: all their rows would lose to older ones in silence."""
    job = generation_of(store, [TABLE], "job")
    for micro_batch in (0, 0, 1, 57):
        bind(store, job, "first", micro_batch)
    assert generation_of(store, [TABLE], "job") == bound(job, "first")
    assert "rebuild" in refused(StoreCode.CURSOR_MISMATCH, bind, store, job, "second", 0)
    # Two jobs have nothing to do with one another.
    bind(store, generation_of(store, [TABLE], "other"), "second", 0)


def test_a_checkpoint_whose_earlier_rows_are_not_in_this_store_is_refused(store: ClaimedStore) -> None:
    job = generation_of(store, [TABLE], "job")
    assert "earlier ones" in refused(StoreCode.STORE_MISMATCH, bind, store, job, "first", 5)


def test_a_rebuild_wins_over_all_older_rows_and_what_it_no_longer_makes_goes(store: ClaimedStore) -> None:
    job = generation_of(store, [TABLE], "job")
    bind(store, job, "first", 0)
    write(store, job.stamp(900), {"user": "ann", "total": 9}, {"user": "bob", "total": 1})
    again = generation_of(store, [TABLE], "job", "fix")
    bind(store, again, "second", 0)
    write(store, again.stamp(0), {"user": "ann", "total": 2})
    assert held(store) == {"ann": 2, "bob": 1}
    # The one before is over, wherever it still runs.
    refused(StoreCode.CURSOR_MISMATCH, bind, store, bound(job, "first"), "first", 901)
    # A restart goes on in the rebuild, with its name and, later, without.
    assert generation_of(store, [TABLE], "job", "fix") == generation_of(store, [TABLE], "job") == bound(again, "second")
    assert [sweep(store, [TABLE], "job"), sweep(store, [TABLE], "job")] == [1, 0]
    assert held(store) == {"ann": 2}
    write(store, again.stamp(1), {"user": "bob", "total": 5})
    assert held(store) == {"ann": 2, "bob": 5}


def test_a_rebuild_that_was_followed_by_another_does_not_begin_again(store: ClaimedStore) -> None:
    for name in ("", "one", "two"):
        generation_of(store, [TABLE], "job", name)
    assert "new one" in refused(StoreCode.CURSOR_MISMATCH, generation_of, store, [TABLE], "job", "one")


def bound(generation: Any, query: str) -> Any:
    return type(generation)(generation.job, generation.generation, generation.rebuild, generation.floor, query)
