"""Fan-out: celebrities cost one row, feeds are the same as without, page by page, and when an author becomes one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncegate.spark import DEAD_LETTERS, FlowBatch, Store, Upsert, apply, open_store
from oncegate.spark_sink.library.fan_out import FanOut, fan_out
from oncegate.spark_sink.library.fields import real, text, whole
from oncegate.stores.errors import StoreCode, StoreError

STAR = 9


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite://{tmp_path}/store?shards=1") as opened:
        yield opened


def feed(tmp_path: Path, edges: list[tuple[int, int]], **more: Any) -> FanOut:
    file = tmp_path / "followers.csv"
    file.write_text("sender,follower\n" + "".join(f"{sender},{follower}\n" for sender, follower in edges))
    return fan_out("feed", whole("by", column="author"), str(file), [text("title")], **more)


def edges(followers: int) -> list[tuple[int, int]]:
    """A star of so many followers, and users 1 .. 5 who follow each other."""
    return [*((STAR, user) for user in range(1, followers + 1)), *((a, b) for a in range(1, 6) for b in range(1, 6))]


def posts(*authors: int, number: int = 1, first_commit: int = 1) -> FlowBatch:
    items = [(f"p{at}", {"by": author, "title": f"t{at}"}) for at, author in enumerate(authors, first_commit)]
    return FlowBatch.of(*items, number=number, first_commit=first_commit)


def test_an_item_of_a_celebrity_is_one_row_and_everybodys_feed_is_the_same(store: Store, tmp_path: Path) -> None:
    batch = posts(1, STAR, 2, STAR, 77)
    few = feed(tmp_path, edges(50), celebrity_over=49)
    done = apply(few, store, few.tables, batch, batch)
    assert (done.rows["feed"], done.rows["feed_of_celebrities"]) == (2 * 10, 2 * 2)
    with open_store(f"sqlite://{tmp_path}/other") as other:
        all_copied = feed(tmp_path, edges(50), celebrity_over=50)
        apply(all_copied, other, all_copied.tables, batch)
        for user in (1, 5, 6, 50, 51, STAR):
            assert few.read(store, user, 10) == all_copied.read(other, user, 10)
    assert [row["commit"] for row in few.read(store, 3, 10)] == [4, 3, 2, 1]
    assert [row["commit"] for row in few.read(store, 50, 10)] == [4, 2]
    assert few.read(store, 51, 10) == []


def test_a_feed_is_read_page_by_page_over_buckets(store: Store, tmp_path: Path) -> None:
    job = feed(tmp_path, edges(50), celebrity_over=49)
    early, late = posts(1, STAR, 2), posts(STAR, 3, 77, STAR, number=2, first_commit=(1 << 20) + 1)
    apply(job, store, job.tables, late, early)
    pages, newest = [], 1 << 21
    while rows := job.read(store, 4, newest, 2):
        pages.append([row["commit"] for row in rows])
        newest = rows[-1]["commit"] - 1
    assert pages == [[(1 << 20) + 4, (1 << 20) + 2], [(1 << 20) + 1, 3], [2, 1]]


def test_a_batch_again_after_an_author_became_a_celebrity_shows_no_item_twice(store: Store, tmp_path: Path) -> None:
    job = feed(tmp_path, edges(40), celebrity_over=45)
    apply(job, store, job.tables, posts(STAR, 1))
    job = feed(tmp_path, edges(60), celebrity_over=45)
    apply(job, store, job.tables, posts(STAR, 1), posts(STAR, number=2, first_commit=3))
    assert [row["commit"] for row in job.read(store, 2, 10)] == [3, 2, 1]
    assert [row["commit"] for row in job.read(store, 55, 10)] == [3, 1]


def test_a_batch_is_written_in_pieces(tmp_path: Path) -> None:
    job = feed(tmp_path, edges(50), celebrity_over=100)
    batch = posts(*(1, 2, 3, STAR, 4))
    pieces = [
        change.rows.num_rows for change in job(FlowBatch("flow", 1, batch.items, 12)) if isinstance(change, Upsert)
    ]
    assert pieces == [10, 5, 50, 5]


def test_what_names_no_author_is_a_dead_letter_and_deletions_are_passed_over(store: Store, tmp_path: Path) -> None:
    job = feed(tmp_path, edges(50))
    apply(job, store, job.tables, FlowBatch.of(("a", {"by": 1, "title": "x"}), ("b", {"by": 1}), ("a", None)))
    assert [row["item_key"] for rows in store.scan(DEAD_LETTERS) for row in rows.to_pylist()] == ["b"]
    assert [row["item"] for row in job.read(store, 1, 10)] == ["a"]


@pytest.mark.parametrize("author", [text("by"), real("by"), whole("by", column="user")])
def test_a_malformed_declaration_is_refused(author: Any) -> None:
    with pytest.raises(StoreError) as refused:
        fan_out("feed", author, "followers.csv")
    assert refused.value.code is StoreCode.BAD_TABLE
