"""The fan-out to timelines, over the real messages, which name the contacts too."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator

from examples.demo import dataset
from oncegate.spark import ClaimedStore, Store
from oncegate.spark_sink.jobs.timeline import TimelineFanOut
from oncegate.spark_sink.rows import TIMELINE
from tests.spark.library.case import Case, Write

MESSAGES = 400


def writes(chance: random.Random) -> Iterator[Write]:
    found = dataset.load()
    for number in range(MESSAGES):
        sent = found.value(chance.randrange(len(found)) + 1)
        yield f"m{number}-{chance.randrange(1_000_000)}", {**sent}


def rows_of(store: ClaimedStore | Store) -> object:
    rows = (row for batch in store.scan(TIMELINE) for row in batch.to_pylist())
    return sorted((row["user"], row["message"], row["sender"], row["sent_at"]) for row in rows)


def expected(written: list[Write]) -> object:
    contacts: dict[int, set[int]] = defaultdict(set)
    for sender, receiver in dataset.load().edges.tolist():
        contacts[sender].add(receiver)
    rows = []
    for key, value in written:
        assert isinstance(value, dict)
        rows += [(user, key, value["sender"], value["sent_at"]) for user in contacts[value["sender"]]]
    return sorted(rows)


CASE = Case("timeline", TimelineFanOut(str(dataset.DATA_FILE)), (TIMELINE,), writes, rows_of, expected)
