"""Fan-out to real contacts, celebrities merged on read, as the common kill test runs it."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from oncegate.spark import ClaimedStore, Store
from oncegate.spark_sink.library.fan_out import fan_out
from oncegate.spark_sink.library.fields import text, whole
from tests.spark.library.case import Case, Write

MESSAGES = Path(__file__).parents[3] / "examples" / "collegemsg.txt.gz"
OVER = 100
READERS = (1, 9, 32)
FEED = fan_out("feed", whole("author"), str(MESSAGES), [text("title")], celebrity_over=OVER)


@cache
def followers() -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    with gzip.open(MESSAGES, "rt") as lines:
        next(lines)
        for line in lines:
            sender, receiver, _ = map(int, line.split())
            found.setdefault(sender, set()).add(receiver)
    return found


def writes(chance: random.Random) -> Iterator[Write]:
    famous = [author for author, found in followers().items() if len(found) > OVER]
    for at in range(2_000):
        author = chance.choice(famous) if chance.random() < 0.05 else chance.randrange(1, 1_900)
        yield f"p{at}", {"author": author, "title": f"t{at}"}


def read(store: ClaimedStore | Store) -> object:
    """Copies of all, the number of celebrities' items, and the feeds of some."""
    rows = {(row["user"], row["commit"]) for part in store.scan(FEED.table) for row in part.to_pylist()}
    celebrities = {(row["user"], row["commit"]) for part in store.scan(FEED.celebrities) for row in part.to_pylist()}
    feeds = {user: [row["title"] for row in FEED.read(store, user, 10**6, 20)] for user in READERS}
    return rows, celebrities, feeds


def expected(written: list[Write]) -> object:
    rows, celebrities = set(), set()
    feeds: dict[int, list[str]] = {user: [] for user in READERS}
    for commit, (_, post) in enumerate(written, 1):
        assert isinstance(post, dict)
        found = followers().get(post["author"], set())
        if len(found) > OVER:
            celebrities.add((post["author"], commit))
        else:
            rows |= {(user, commit) for user in found}
        for user in feeds.keys() & found:
            feeds[user].insert(0, post["title"])
    return rows, celebrities, {user: feed[:20] for user, feed in feeds.items()}


CASE = Case("feed", FEED, FEED.tables, writes, read, expected)
