"""The jobs that docs/spark.md shows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

from examples.jobs.messages_by_room import INDEX, messages_by_room
from examples.jobs.posts_per_hour import HOURLY, posts_per_hour
from oncegate.spark import ClaimedStore, Store, summed
from tests.spark.library.case import Case, Write


def posts(chance: random.Random) -> Iterator[Write]:
    for number in range(2_000):
        yield f"p{number}", {"author": f"a{chance.randrange(20)}", "at": chance.randrange(100_000)}


def hourly(store: ClaimedStore | Store) -> object:
    rows = summed(HOURLY, store.scan(HOURLY)).to_pylist()
    return {(row["author"], row["hour"]): row["posts"] for row in rows}


def counted(writes: list[Write]) -> object:
    return dict(Counter((value["author"], value["at"] // 3600) for _, value in writes))  # type: ignore[index]


def rooms(chance: random.Random) -> Iterator[Write]:
    for number in range(2_000):
        key = f"r{chance.randrange(5)}/m{chance.randrange(200)}"
        yield key, None if chance.random() < 0.2 else {"text": f"text {number}"}


def index(store: ClaimedStore | Store) -> object:
    rows = (row for batch in store.scan(INDEX) for row in batch.to_pylist())
    return {f"{row['room']}/{row['message']}": row["text"] for row in rows}


def newest(writes: list[Write]) -> object:
    return {key: value["text"] for key, value in dict(writes).items() if value is not None}  # type: ignore[index]


CASES = [
    Case("posts-per-hour", posts_per_hour, (HOURLY,), posts, hourly, counted),
    Case("messages-by-room", messages_by_room, (INDEX,), rooms, index, newest),
]
