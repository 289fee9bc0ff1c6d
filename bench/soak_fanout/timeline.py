"""The fan-out to timelines, over the real messages, which name the contacts too."""

from __future__ import annotations

import gzip
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from oncegate.spark import ClaimedStore, Store
from oncegate.spark_sink.jobs.timeline import TimelineFanOut
from oncegate.spark_sink.rows import TIMELINE
from tests.spark.library.case import Case, Write

DATA = Path(__file__).parents[2] / "examples" / "collegemsg.txt.gz"
MESSAGES = 400


def sent() -> Iterator[tuple[int, int, int]]:
    with gzip.open(DATA, "rt") as lines:
        next(lines)
        for line in lines:
            sender, receiver, at = map(int, line.split())
            yield sender, receiver, at


def writes(chance: random.Random) -> Iterator[Write]:
    found = list(sent())
    for number in range(MESSAGES):
        sender, receiver, at = found[chance.randrange(len(found))]
        yield f"m{number}-{chance.randrange(1_000_000)}", {"sender": sender, "receiver": receiver, "sent_at": at}


def rows_of(store: ClaimedStore | Store) -> object:
    rows = (row for batch in store.scan(TIMELINE) for row in batch.to_pylist())
    return sorted((row["user"], row["message"], row["sender"], row["sent_at"]) for row in rows)


def expected(written: list[Write]) -> object:
    contacts: dict[int, set[int]] = defaultdict(set)
    for sender, receiver, _ in sent():
        contacts[sender].add(receiver)
    rows = []
    for key, value in written:
        assert isinstance(value, dict)
        rows += [(user, key, value["sender"], value["sent_at"]) for user in contacts[value["sender"]]]
    return sorted(rows)


CASE = Case("timeline", TimelineFanOut(str(DATA)), (TIMELINE,), writes, rows_of, expected)
