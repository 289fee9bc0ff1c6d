"""Items a second of processor time that one core derives with jobs of the library, from a batch's items to Arrow rows.

``python -m bench.derivations``: jobs of posts that were made up, and the derivations over event time on real messages.
*python loop* is what a derivation makes that goes over the items one by one, as docs/spark.md shows it: the same counts
as *tumbling*. No store and no Spark: the rows are made and thrown away. Rounds alternate; the best of each counts.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from bench.harness import Bench, Run, option
from examples.demo import dataset
from oncegate.spark_sink.derivation import Change, Derivation, FlowBatch, Reject, changes_of
from oncegate.spark_sink.library.aggregates import totals
from oncegate.spark_sink.library.copies import copied
from oncegate.spark_sink.library.events import events_by
from oncegate.spark_sink.library.fields import text, whole
from oncegate.spark_sink.library.history import history
from oncegate.spark_sink.library.sessions import sessions
from oncegate.spark_sink.library.sketches import distinct, most_frequent, quantiles
from oncegate.spark_sink.library.sql import batch_rows
from oncegate.spark_sink.library.store_join import store_join
from oncegate.spark_sink.library.windows import sliding, tumbling

PER_BATCH: Final = 20_000
HOUR_MS: Final = 3_600_000
AUTHOR, AT, SIZE = text("author"), whole("at"), whole("size")
SQL: Final = """SELECT value->>'author' AS author, (value->>'at')::BIGINT // 3600 AS hour, count(*) AS posts,
    sum((value->>'size')::BIGINT) AS size FROM items GROUP BY ALL"""
POSTS: Final[dict[str, Derivation]] = {
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
EVENTS: Final = events_by({"sender": int}, at="sent_at", unit_ms=1000)
TUMBLING: Final = tumbling("tumbling", EVENTS, size_ms=HOUR_MS)


def python_loop(batch: FlowBatch) -> Iterator[Change]:
    counts: Counter[tuple[int, int]] = Counter()
    for item in batch:
        message = item.json()
        counts[message["sender"], message["sent_at"] * 1000 // HOUR_MS * HOUR_MS] += 1
    for (sender, pane_ms), count in counts.items():
        yield batch.upsert(TUMBLING.table, sender=sender, pane_ms=pane_ms, batch=batch.number, events=count)


MESSAGES: Final[dict[str, Derivation]] = {
    "python loop": python_loop,
    "tumbling": TUMBLING,
    "sliding": sliding("sliding", EVENTS, size_ms=24 * HOUR_MS, slide_ms=HOUR_MS),
    "sessions": sessions("sessions", EVENTS, gap_ms=HOUR_MS),
    "join side": store_join("join", EVENTS, EVENTS, after_ms=HOUR_MS, lateness_ms=0).left,
}


def messages() -> list[FlowBatch]:
    """Return all messages of the file."""
    found = dataset.load()
    written = [(dataset.key_of(number), found.value(number)) for number in range(1, len(found) + 1)]
    cuts = range(0, len(written), PER_BATCH)
    return [FlowBatch.of(*written[at : at + PER_BATCH], number=n, first_commit=at + 1) for n, at in enumerate(cuts, 1)]


def posts(count: int, seed: int) -> list[FlowBatch]:
    chance = random.Random(seed)
    words = [f"word{at}" for at in range(5_000)]
    values = (
        {"author": f"a{chance.randrange(1_000)}", "at": chance.randrange(10**6), "size": chance.randrange(1_000),
         "body": " ".join(chance.choices(words, k=10))}
        for _ in range(count)
    )  # fmt: skip
    return [FlowBatch.of(*((f"k{at}", value) for at, value in enumerate(values)))]


def derived(derivation: Derivation, batches: Sequence[FlowBatch]) -> tuple[float, int]:
    """Return items a second, and rows."""
    began, rows = time.process_time(), 0
    for batch in batches:
        rows += sum(0 if isinstance(one, Reject) else one.rows.num_rows for one in changes_of(derivation, batch))
    return sum(batch.items.num_rows for batch in batches) / (time.process_time() - began), rows


def measure(run: Run) -> Iterator[dict[str, Any]]:
    for ways, given in ((POSTS, posts(run.options.items, run.options.seed)), (MESSAGES, messages())):
        found: dict[str, list[tuple[float, int]]] = {name: [] for name in ways}
        for _ in range(run.options.rounds):
            for name, derivation in ways.items():
                found[name].append(derived(derivation, given))
        for name, seen in found.items():
            yield {"what": name, "items_per_s": max(seen)[0], "rows": seen[0][1], "samples": len(seen)}


BENCH: Final = Bench(
    "derivations", __doc__, measure, durability="none: rows are made and not written",
    options=(
        option("--rounds", 5, "of each derivation", quick=1, type=int),
        option("--items", 100_000, "posts that are made up", quick=10_000, type=int),
    ),
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(BENCH.main())
