"""All versions of a table, and the one that each of many items saw, as the common kill test runs it."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa

from oncegate.spark import ClaimedStore, Store
from oncegate.spark_sink.library.fields import text, whole
from oncegate.spark_sink.library.history import history
from tests.spark.library.case import Case, Write

CUSTOMERS = history("customers", [text("city"), whole("level", default=0)])
ORDERS = [(f"c{at % 40}", at) for at in range(0, 2_300, 3)]
"""Customer and commit number of items of another table."""


def writes(chance: random.Random) -> Iterator[Write]:
    for _ in range(2_000):
        key = f"c{chance.randrange(50)}"
        yield key, None if chance.random() < 0.2 else {"city": f"t{chance.randrange(9)}", "level": chance.randrange(3)}


def read(store: ClaimedStore | Store) -> object:
    customer, commit = zip(*ORDERS, strict=True)
    orders = pa.table({"customer": customer, "write_ts": commit})
    joined = CUSTOMERS.join(store, orders, "customer").to_pylist()
    for at in range(0, len(ORDERS), 100):
        row = CUSTOMERS.as_of(store, *ORDERS[at])
        assert (row and row["commit"]) == joined[at]["version"]
    return [(row["customer"], row["write_ts"], row["city"], row["level"], row["version"]) for row in joined]


def expected(written: list[Write]) -> object:
    found = []
    for customer, commit in ORDERS:
        seen = [(at, row) for at, (key, row) in enumerate(written, 1) if key == customer and at < commit]
        at, row = seen[-1] if seen else (0, None)
        told = (row["city"], row["level"], at) if isinstance(row, dict) else (None, None, None)
        found.append((customer, commit, *told))
    return found


CASE = Case("customers", CUSTOMERS, CUSTOMERS.tables, writes, read, expected)
