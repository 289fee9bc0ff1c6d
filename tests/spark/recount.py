"""An independent count of what a timeline must hold: plain loops over plain values, none of the product's code."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from oncegate.spark_sink.rows import TIMELINE
from oncegate.stores import ClaimedStore
from tests.spark.fake_gateway import Item

Row = tuple[int, int, int, int, str, int, int, int]


def messages(senders: int, count: int, *, first: int = 1) -> list[Item]:
    """Return items first .. first + count - 1 of ``senders`` senders in turn."""
    items: list[Item] = []
    for commit in range(first, first + count):
        value = {"sender": commit % senders, "receiver": 0, "sent_at": 1_000_000 + commit}
        items.append((commit, f"m{commit:07d}", json.dumps(value)))
    return items


def write_contacts(path: Path, edges: Iterable[tuple[int, int]]) -> str:
    path.write_text("sender,follower\n" + "".join(f"{sender},{follower}\n" for sender, follower in edges))
    return str(path)


def expected(items: Iterable[Item], edges: Iterable[tuple[int, int]]) -> set[Row]:
    """Return the rows of items that are messages, the write timestamp last."""
    distinct = set(edges)
    rows: set[Row] = set()
    for commit, key, text in items:
        message = json.loads(text or "null")
        for sender, follower in distinct:
            if sender == message["sender"]:
                rows.add((follower, commit >> 20, commit, 0, key, sender, message["sent_at"], commit))
    return rows


def stored(store: ClaimedStore) -> set[Row]:
    """Return the rows of the timeline, without their trace contexts; a repeated row would be noticed by the number."""
    rows: list[Row] = []
    for batch in store.scan(TIMELINE):
        columns = batch.drop_columns(["traceparent"]).columns
        rows += zip(*(column.to_pylist() for column in columns), strict=True)
    if len(set(rows)) != len(rows):
        raise AssertionError("the scan yields a row twice")
    return set(rows)
