"""The job of the scenarios, in two versions, and what must be in its tables, recounted from what was acknowledged.

Owns: the sales, both versions of the derivation, and the recount, which shares no code with either. Read next:
`bench.scenarios.scene`.

The first version is wrong in three ways that a replay has to mend: it counts sales of shop `s0` double, makes a line of
sales of nothing, and refuses refunds, which become dead letters.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from oncegate.spark_sink.derivation import Change, FlowBatch
from oncegate.stores.claimed import ClaimedStore
from oncegate.stores.tables import Clustering, Column, ColumnType, StoreTable

LINES: Final = StoreTable(
    name="sale_lines",
    columns=(Column("shop", ColumnType.TEXT), Column("commit", ColumnType.INT64), Column("amount", ColumnType.INT64)),
    partition_key=("shop",),
    clustering=(Clustering("commit", descending=True),),
)
TOTALS: Final = StoreTable(
    name="shop_totals",
    columns=(
        *(Column(name, kind) for name, kind in (("shop", ColumnType.TEXT), ("batch", ColumnType.INT64))),
        *(Column(name, ColumnType.INT64) for name in ("sales", "amount")),
    ),
    partition_key=("shop",),
    clustering=(Clustering("batch"),),
)
NEWEST: Final = StoreTable(
    name="newest_sale",
    columns=(Column("sale", ColumnType.TEXT), Column("shop", ColumnType.TEXT), Column("amount", ColumnType.INT64)),
    partition_key=("sale",),
)
_KEYS: Final = 500
_SHOPS: Final = 8
Sale = dict[str, Any]


class Written(NamedTuple):
    """An acknowledged write and its commit number; ``sale`` None = deleted."""

    commit: int
    key: str
    sale: Sale | None


def sales(seed: int) -> Iterator[tuple[str, Sale | None]]:
    """Yield keys and what is written to them, for ever; the same for the same seed."""
    chosen = random.Random(seed)
    number = 0
    while True:
        number += 1
        key = f"k{chosen.randrange(_KEYS)}"
        if chosen.random() < 0.03:
            yield key, None
        else:
            yield key, {"shop": f"s{chosen.randrange(_SHOPS)}", "amount": chosen.randrange(-2, 20), "number": number}


def first_version(batch: FlowBatch) -> Iterator[Change]:
    """Lines and totals, wrong."""
    amounts: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for item in batch:
        sale = item.json()
        if sale is None:
            continue
        if sale["amount"] < 0:
            yield item.reject("a refund: not known to this version")
            continue
        amount = sale["amount"] * (2 if sale["shop"] == "s0" else 1)
        yield item.upsert(LINES, shop=sale["shop"], commit=item.commit, amount=amount)
        amounts[sale["shop"]] += amount
        counts[sale["shop"]] += 1
    for shop, count in counts.items():
        yield batch.upsert(TOTALS, shop=shop, batch=batch.number, sales=count, amount=amounts[shop])


def second_version(batch: FlowBatch) -> Iterator[Change]:
    """Lines and totals, right."""
    amounts: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for item in batch:
        sale = item.json()
        if sale is None:
            continue
        if sale["amount"]:
            yield item.upsert(LINES, shop=sale["shop"], commit=item.commit, amount=sale["amount"])
        amounts[sale["shop"]] += sale["amount"]
        counts[sale["shop"]] += 1
    for shop, count in counts.items():
        yield batch.upsert(TOTALS, shop=shop, batch=batch.number, sales=count, amount=amounts[shop])


def newest(batch: FlowBatch) -> Iterator[Change]:
    """Lines, and the newest state of each sale."""
    for item in batch:
        sale = item.json()
        if sale is None:
            yield item.delete(NEWEST, sale=item.key)
            continue
        yield item.upsert(NEWEST, sale=item.key, shop=sale["shop"], amount=sale["amount"])
        if sale["amount"]:
            yield item.upsert(LINES, shop=sale["shop"], commit=item.commit, amount=sale["amount"])


Rows = Mapping[tuple[Any, ...], tuple[Any, ...]]
"""Values by key."""


def lines_of(written: Iterable[Written]) -> Rows:
    """Recount the lines."""
    return {(one.sale["shop"], one.commit): (one.sale["amount"],) for one in written if one.sale and one.sale["amount"]}


def totals_of(written: Iterable[Written]) -> Rows:
    """Recount sales and amounts by shop."""
    found: dict[tuple[Any, ...], tuple[int, int]] = {}
    for one in written:
        if one.sale is not None:
            sales_before, amount_before = found.get((one.sale["shop"],), (0, 0))
            found[one.sale["shop"],] = (sales_before + 1, amount_before + one.sale["amount"])
    return found


def newest_of(written: Iterable[Written], before: Rows | None = None) -> Rows:
    """Recount the newest state of each sale, on top of what was there ``before``."""
    found = dict(before or {})
    for one in sorted(written):
        if one.sale is None:
            found.pop((one.key,), None)
        else:
            found[one.key,] = (one.sale["shop"], one.sale["amount"])
    return found


def stored(store: ClaimedStore, table: StoreTable) -> Rows:
    """Read a table; totals are added up over their batches."""
    found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for rows in store.scan(table):
        for row in rows.to_pylist():
            if table is TOTALS:
                before = found.get((row["shop"],), (0, 0))
                found[row["shop"],] = (before[0] + row["sales"], before[1] + row["amount"])
            else:
                key = tuple(row[name] for name in table.key)
                found[key] = tuple(row[column.name] for column in table.columns if column.name not in table.key)
    return found
