"""A derivation without Spark: whole batches, changes into a store, and items that it cannot make anything of."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.spark_sink.applying import Applier, Done
from oncegate.spark_sink.dead_letters import DEAD_LETTERS
from oncegate.spark_sink.derivation import Change, Derivation, FlowBatch, Reject, Upsert, changes_of
from oncegate.spark_sink.flow_batches import numbered, whole_batches
from oncegate.stores import Clustering, Column, ColumnType, Store, StoreTable, open_store
from oncegate.stores.errors import BadRows, Rejected, StoreCode, StoreError

COUNTS = StoreTable(
    name="counts",
    columns=(Column("author", ColumnType.TEXT), Column("batch", ColumnType.INT64), Column("posts", ColumnType.INT64)),
    partition_key=("author",),
    clustering=(Clustering("batch"),),
)
POSTS = StoreTable(
    name="posts",
    columns=(Column("post", ColumnType.TEXT), Column("author", ColumnType.TEXT)),
    partition_key=("post",),
)


def count(batch: FlowBatch) -> Iterator[Change]:
    """One partial count an author: wrong as soon as it is called for a part of a batch."""
    for author, posts in Counter(item.json()["author"] for item in batch).items():
        yield batch.upsert(COUNTS, author=author, batch=batch.number, posts=posts)


def post_of(batch: FlowBatch) -> Iterator[Change]:
    for item in batch:
        if item.value is None:
            yield item.delete(POSTS, post=item.key)
        else:
            yield item.upsert(POSTS, post=item.key, author=item.json()["author"])


def by(*authors: str | None, number: int = 1) -> FlowBatch:
    """A batch of posts by these authors; None is an item of which nothing can be made."""
    written = [(f"p{at}", {"author": name} if name else {"x": 1}) for at, name in enumerate(authors)]
    return FlowBatch.of(*written, number=number, first_commit=100 * number + 1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite://{tmp_path}/store") as opened:
        opened.create([COUNTS, POSTS, DEAD_LETTERS])
        yield opened


def rows(store: Store, table: StoreTable) -> list[dict[str, Any]]:
    return [row for batch in store.scan(table) for row in batch.to_pylist()]


def applied(store: Store, derivation: Derivation, *batches: FlowBatch) -> Done:
    done = Done()
    for batch in batches:
        Applier(derivation, "job").apply(batch, store, done)
    return done


def recut(pieces: list[pa.RecordBatch], size: int) -> list[pa.RecordBatch]:
    whole = pa.Table.from_batches(pieces).combine_chunks()
    return [part for at in range(0, whole.num_rows, size) for part in whole.slice(at, size).to_batches()]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 50))
@settings(deadline=None)
def test_flow_batches_are_whole_however_their_items_were_cut(lengths: list[int], size: int) -> None:
    sent = [numbered(by(*"a" * length, number=at).items, at) for at, length in enumerate(lengths, start=1)]
    found = list(whole_batches(recut(sent, size), "flow", 10))
    assert [(batch.number, batch.items.num_rows) for batch in found] == list(enumerate(lengths, start=1))
    commits = [commit for part in sent for commit in part["commit"].to_pylist()]
    assert [item.commit for batch in found for item in batch] == commits


@pytest.mark.parametrize(
    "spoil",
    [
        lambda part: part.slice(1),
        lambda part: part.filter(pa.array([True, False, True])),
        lambda part: part.take(pa.array([1, 0, 2])),
        lambda part: part.take(pa.array([0, 0, 1])),
        lambda part: part.take(pa.array([0, 1, 2, 2])),
        lambda part: part.drop_columns(["batch_items"]),
    ],
    ids=["cut", "filtered", "reordered", "repeated", "longer", "without its length"],
)
@pytest.mark.parametrize("last", [False, True])
def test_a_batch_that_comes_in_pieces_is_refused(spoil: Any, last: bool) -> None:
    first, second = (numbered(by("a", "b", "c", number=number).items, number) for number in (1, 2))
    sent = [first, spoil(second)] if last else [spoil(first), second]
    with pytest.raises(StoreError) as refused:
        list(whole_batches(sent, "flow", 10))
    assert refused.value.code is StoreCode.BATCH_INCOMPLETE


def test_changes_of_a_batch_are_in_the_store_and_again_changes_nothing(store: Store) -> None:
    first = FlowBatch.of(("p0", {"author": "ann"}), ("p1", {"author": "bob"}), first_commit=1)
    second = FlowBatch.of(("p0", None), ("p2", {"author": "bob"}), number=2, first_commit=5)
    done = applied(store, post_of, first, second)
    assert (done.items, done.first_batch, done.last_batch, dict(done.rows)) == (4, 1, 2, {"posts": 4})
    left = [{"post": "p1", "author": "bob", "write_ts": 2}, {"post": "p2", "author": "bob", "write_ts": 6}]
    assert sorted(rows(store, POSTS), key=str) == sorted(left, key=str)
    applied(store, post_of, first)
    assert sorted(rows(store, POSTS), key=str) == sorted(left, key=str)


def test_items_that_make_a_derivation_raise_become_dead_letters_and_the_others_are_derived(store: Store) -> None:
    done = applied(store, count, by("ann", None, "bob", "ann", None))
    assert {row["author"]: row["posts"] for row in rows(store, COUNTS)} == {"ann": 2, "bob": 1}
    letters = rows(store, DEAD_LETTERS)
    assert [(row["job"], row["commit"], row["item_key"], row["raw"]) for row in letters] == [
        ("job", 102, "p1", b'{"x": 1}'),
        ("job", 105, "p4", b'{"x": 1}'),
    ]
    assert letters[0]["error"] == "KeyError: 'author'"
    assert dict(done.rows) == {"counts": 2, "job_dead_letters": 2}


def test_a_value_that_does_not_fit_its_column_is_the_items_fault(store: Store) -> None:
    def wrong(batch: FlowBatch) -> Iterator[Change]:
        for item in batch:
            yield item.upsert(POSTS, post=item.key, author=7 if item.key == "p1" else "ann")

    applied(store, wrong, by("a", "b", "c"))
    assert sorted(row["post"] for row in rows(store, POSTS)) == ["p0", "p2"]
    assert [row["item_key"] for row in rows(store, DEAD_LETTERS)] == ["p1"]


def test_nothing_is_seen_of_a_batch_before_its_faults_are_known() -> None:
    def eager(batch: FlowBatch) -> Iterator[Change]:
        seen = 0
        for item in batch:
            seen += bool(item.json()["author"])
            yield batch.upsert(COUNTS, author="all", batch=batch.number, posts=seen)

    found = list(changes_of(eager, by("a", "b", None, "d")))
    assert [change.commit for change in found if isinstance(change, Reject)] == [103]
    written = [change.rows["posts"].to_pylist() for change in found if isinstance(change, Upsert)]
    assert written == [[1, 2, 3]]


@pytest.mark.parametrize(
    "error", [OSError("the table of users is away"), MemoryError(), StoreError(StoreCode.FENCED, "")]
)
def test_what_is_no_items_fault_is_nobodys_dead_letter(error: Exception) -> None:
    def failing(batch: FlowBatch) -> Iterator[Change]:
        raise error
        yield

    with pytest.raises(type(error)):
        list(changes_of(failing, by("a", "b")))


def test_a_fault_of_no_single_item_is_raised() -> None:
    def together(batch: FlowBatch) -> Iterator[Change]:
        if batch.items.num_rows > 1:
            raise ValueError("only one at a time")
        yield from ()

    with pytest.raises(ValueError, match="only one"):
        list(changes_of(together, by("a", "b")))


def test_finding_faults_costs_few_calls() -> None:
    calls = 0

    def counted(batch: FlowBatch) -> Iterator[Change]:
        nonlocal calls
        calls += 1
        yield from post_of(batch)

    authors: list[str | None] = ["a"] * 1024
    authors[700] = None
    assert sum(isinstance(change, Reject) for change in changes_of(counted, by(*authors))) == 1
    assert calls <= 3 + 2 * math.log2(1024)


def test_rows_of_other_columns_than_the_table_are_a_mistake_of_the_job() -> None:
    def misspelt(batch: FlowBatch) -> Iterator[Change]:
        for item in batch:
            yield item.upsert(POSTS, post=item.key, autor="ann")

    with pytest.raises(StoreError, match="autor") as refused:
        list(changes_of(misspelt, by("a")))
    assert (refused.value.code, refused.value.retryable) == (StoreCode.BAD_ROWS, False)


class Picky:
    """A store that does not take posts of one author, as Cassandra takes no key over 64 KiB."""

    def __init__(self, store: Store, author: str) -> None:
        self._store, self._author = store, author

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def write(self, table: StoreTable, rows: pa.RecordBatch) -> None:
        if table is not POSTS:
            self._store.write(table, rows)
            return
        bad = [at for at, row in enumerate(rows.to_pylist()) if row["author"] == self._author]
        good = [at for at in range(rows.num_rows) if at not in bad]
        self._store.write(table, rows.take(pa.array(good, pa.int64())))
        if bad:
            raise BadRows(Rejected(at, "author is too long") for at in bad)


def test_rows_that_the_store_refuses_make_dead_letters_of_their_items_and_the_batch_goes_on(store: Store) -> None:
    done = Done()
    batch = by("ann", "eve", "bob", "eve")
    Applier(post_of, "job").apply(batch, Picky(store, "eve"), done)  # type: ignore[arg-type]
    assert sorted(row["post"] for row in rows(store, POSTS)) == ["p0", "p2"]
    letters = rows(store, DEAD_LETTERS)
    assert [(row["commit"], row["item_key"], row["error"]) for row in letters] == [
        (102, "p1", "posts: author is too long"),
        (104, "p3", "posts: author is too long"),
    ]
    assert (letters[0]["raw"], letters[0]["flow"], letters[0]["batch"]) == (b'{"author": "eve"}', "flow", 1)


def test_a_row_beyond_what_any_store_takes_is_a_dead_letter_of_its_item(store: Store) -> None:
    """Cassandra's limit of a key, which SQLite keeps too."""
    batch = FlowBatch.of(("p", {"author": "ann"}), ("q" * 70_000, {"author": "bob"}), ("r", {"author": "eve"}))
    applied(store, post_of, batch)
    assert sorted(row["post"] for row in rows(store, POSTS)) == ["p", "r"]
    (letter,) = rows(store, DEAD_LETTERS)
    assert (letter["commit"], letter["raw"]) == (2, b'{"author": "bob"}')
    assert letter["error"].startswith("posts: ")


def test_the_letter_of_a_row_of_a_whole_batch_names_that_row_and_not_only_the_last_item(store: Store) -> None:
    applied(store, count, by("ann", "x" * 70_000, "y" * 70_000, "bob"))
    assert {row["author"] for row in rows(store, COUNTS)} == {"ann", "bob"}
    (letter,) = rows(store, DEAD_LETTERS)
    assert letter["item_key"] == "p3"
    assert letter["error"].startswith(
        "counts: the partition key is over 65535 bytes; the first such row of the batch is "
    )
    assert f"author='{'x' * 59}…, of whatever item" in letter["error"]
