"""Windows over event time, tumbling and sliding: a fifth of the events come late, some carry no number."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

from oncegate.spark import ClaimedStore, Store
from oncegate.spark_sink.library.events import events_by
from oncegate.spark_sink.library.windows import Windows, sliding, tumbling
from tests.spark.library.case import Case, Write

EVENTS = events_by({"user": str}, at="at", unit_ms=1000, sums=["likes"])
TUMBLING = tumbling("case_tumbling", EVENTS, size_ms=60_000, lateness_ms=300_000)
SLIDING = sliding("case_sliding", EVENTS, size_ms=300_000, slide_ms=60_000, lateness_ms=300_000)


def events(chance: random.Random) -> Iterator[Write]:
    for number in range(2_000):
        late = chance.choice([0, 0, 0, 0, chance.randrange(1_000)])
        likes = "many" if chance.random() < 0.01 else chance.randrange(9)
        yield f"e{number}", {"user": f"u{chance.randrange(30)}", "at": 2 * number - late, "likes": likes}


def recount(writes: list[Write], size_s: int, slide_s: int) -> object:
    counts: Counter[Any] = Counter()
    likes: Counter[Any] = Counter()
    for _, value in writes:
        assert isinstance(value, dict)
        if value["likes"] != "many":
            newest = value["at"] // slide_s * slide_s
            for start in range(newest, newest - size_s, -slide_s):
                counts[value["user"], start * 1000] += 1
                likes[value["user"], start * 1000] += value["likes"]
    return {key: (count, likes[key]) for key, count in counts.items()}


def case(name: str, job: Windows, size_s: int, slide_s: int) -> Case:
    def read(store: ClaimedStore | Store) -> object:
        rows = job.read(store).to_pylist()
        return {(row["user"], row["start_ms"]): (row["events"], row["likes"]) for row in rows}

    return Case(name, job, job.tables, events, read, lambda writes: recount(writes, size_s, slide_s))


CASES = [case("windows-tumbling", TUMBLING, 60, 60), case("windows-sliding", SLIDING, 300, 60)]
