"""Items a second that one core derives with jobs of the library, from a batch's items to rows as Arrow columns.

python -m bench.library
"""

from __future__ import annotations

import random
import time

from bench.figures import header
from oncegate.spark_sink.derivation import Change, Derivation, FlowBatch, Reject
from oncegate.spark_sink.library.aggregates import totals
from oncegate.spark_sink.library.copies import copied
from oncegate.spark_sink.library.fields import text, whole
from oncegate.spark_sink.library.history import history
from oncegate.spark_sink.library.sketches import distinct, most_frequent, quantiles
from oncegate.spark_sink.library.sql import batch_rows

ITEMS, ROUNDS = 100_000, 5
AUTHOR, AT, SIZE = text("author"), whole("at"), whole("size")
SQL = """SELECT value->>'author' AS author, (value->>'at')::BIGINT // 3600 AS hour, count(*) AS posts,
    sum((value->>'size')::BIGINT) AS size FROM items GROUP BY ALL"""
JOBS: dict[str, Derivation] = {
    "totals by author and hour": totals("totals", [AUTHOR, whole("at", per=3600, column="hour")], [SIZE]),
    "the same in SQL": batch_rows("totals_sql", SQL, ["author", "hour"]),
    "distinct": distinct("different", [AUTHOR], AT),
    "most_frequent": most_frequent("frequent", [AUTHOR], SIZE),
    "quantiles": quantiles("quantiles", [AUTHOR], SIZE),
    "copied": copied("copy", [AUTHOR, AT, SIZE]),
    "copied, by author": copied("copy_by", [AUTHOR, AT, SIZE], by=["author"]),
    "copied, words": copied("copy_words", [text("body")], words_of=["body"]),
    "history": history("versions", [AUTHOR, AT, SIZE]),
}


def main() -> None:
    header("library", seed=1, durability="none: nothing is written", calibrations={})
    chance = random.Random(1)
    words = [f"word{at}" for at in range(5_000)]
    values = [
        {
            "author": f"a{chance.randrange(1_000)}",
            "at": chance.randrange(10**6),
            "size": chance.randrange(1_000),
            "body": " ".join(chance.choices(words, k=10)),
        }
        for _ in range(ITEMS)
    ]
    batch = FlowBatch.of(*((f"k{at}", value) for at, value in enumerate(values)))
    for name, job in JOBS.items():
        found = [timed(job, batch) for _ in range(ROUNDS)]
        seconds, rows = min(found)
        print(f"{name:28} {ITEMS / seconds:12,.0f} items/s, {rows:8,} rows")


def timed(job: Derivation, batch: FlowBatch) -> tuple[float, int]:
    begun = time.perf_counter()
    rows = sum(rows_of(change) for change in job(batch))
    return time.perf_counter() - begun, rows


def rows_of(change: Change) -> int:
    return 0 if isinstance(change, Reject) else int(change.rows.num_rows)


if __name__ == "__main__":
    main()
