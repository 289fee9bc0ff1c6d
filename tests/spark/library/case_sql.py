"""Two SQL texts, one of partials and one of newest rows with deletions, as the common kill test runs them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

from oncegate.spark import ClaimedStore, Store
from oncegate.spark_sink.library.sql import batch_rows, item_rows
from oncegate.spark_sink.library.together import together
from tests.spark.library.case import Case, Write

BIDS = batch_rows(
    "bids",
    """
    SELECT value->>'lot' AS lot, count(*) AS bids, max((value->>'cents')::BIGINT) AS highest,
        min(value->>'who') AS first_name
    FROM items WHERE value IS NOT NULL GROUP BY lot
    """,
    ["lot"],
    merge={"highest": "max", "first_name": "min"},
)
OPEN = item_rows(
    "open_bids",
    """
    SELECT commit, key AS bid, value->>'lot' AS lot, (value->>'cents')::BIGINT AS cents,
        value IS NULL OR cents > 900 AS deleted
    FROM items
    """,
    ["bid"],
)


def writes(chance: random.Random) -> Iterator[Write]:
    for _ in range(2_000):
        bid = {"lot": f"l{chance.randrange(9)}", "cents": chance.randrange(1_000), "who": f"w{chance.random()}"}
        yield f"b{chance.randrange(400)}", None if chance.random() < 0.1 else bid


def bids(store: ClaimedStore | Store) -> object:
    return {row["lot"]: (row["bids"], row["highest"], row["first_name"]) for row in BIDS.read(store).to_pylist()}


def counted(written: list[Write]) -> object:
    made = [bid for _, bid in written if isinstance(bid, dict)]
    lots = Counter(bid["lot"] for bid in made)
    return {
        lot: (count, *(f(bid[name] for bid in made if bid["lot"] == lot) for f, name in ((max, "cents"), (min, "who"))))
        for lot, count in lots.items()
    }


def open_bids(store: ClaimedStore | Store) -> object:
    rows = [row for batch in store.scan(OPEN.table) for row in batch.to_pylist()]
    return {row["bid"]: (row["lot"], row["cents"]) for row in rows}


def newest(written: list[Write]) -> object:
    last = {key: bid for key, bid in dict(written).items() if isinstance(bid, dict)}
    return {key: (bid["lot"], bid["cents"]) for key, bid in last.items() if bid["cents"] <= 900}


def read(store: ClaimedStore | Store) -> object:
    return bids(store), open_bids(store)


def expected(written: list[Write]) -> object:
    return counted(written), newest(written)


AUCTION = together(BIDS, OPEN)
CASE = Case("auction", AUCTION, AUCTION.tables, writes, read, expected)
