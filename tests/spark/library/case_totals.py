"""Counts and sums by two columns, as the common kill test runs them."""

from __future__ import annotations

import random
from collections.abc import Iterator

from oncegate.spark_sink.library.aggregates import totals
from oncegate.spark_sink.library.fields import text, whole
from oncegate.stores import ClaimedStore, Store
from tests.spark.library.case import Case

SPENT = totals("spent", [text("user.name", column="buyer"), whole("at", per=3600, column="hour")], [whole("cents")])


def writes(rng: random.Random) -> Iterator[tuple[str, object | None]]:
    for at in range(2_000):
        if rng.random() < 0.02:
            yield f"o{rng.randrange(at + 1)}", None
        else:
            order = {
                "user": {"name": f"u{rng.randrange(30)}"},
                "at": rng.randrange(30_000),
                "cents": rng.randrange(999),
            }
            yield f"o{at}", order


def read(store: ClaimedStore | Store) -> object:
    """Read, and read again after half of the batches were compacted, and all of them."""
    found = [totals_in(store)]
    last = max(row["batch"] for rows in store.scan(SPENT.partials.table) for row in rows.to_pylist())
    for through in (last // 2, last):
        SPENT.partials.compact(store, through)
        found.append(totals_in(store))
    return found


def totals_in(store: ClaimedStore | Store) -> dict[tuple[str, int], tuple[int, int]]:
    return {(row["buyer"], row["hour"]): (row["count"], row["cents"]) for row in SPENT.read(store).to_pylist()}


def expected(written: list[tuple[str, object | None]]) -> object:
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for _, order in written:
        if isinstance(order, dict):
            key = order["user"]["name"], order["at"] // 3600
            count, cents = found.get(key, (0, 0))
            found[key] = count + 1, cents + order["cents"]
    return [found] * 3


CASE = Case("spent-by-hour", SPENT, SPENT.tables, writes, read, expected)
