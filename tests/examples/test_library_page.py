"""docs/library.md: its jobs are the examples, run as they stand over all real messages, against plain recounts."""

from __future__ import annotations

import gzip
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from examples.jobs import feed, message_statistics, messages_found, messages_sql
from oncegate.spark import FlowBatch, Store, apply, open_store

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "library.md").read_text(), re.DOTALL)
LINES_MAX = 30
SENT, PART = 6_000, 1_000
"""Messages of a test, a tenth of all, and of a batch."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite://{tmp_path}/store?shards=1") as opened:
        yield opened


@cache
def messages() -> list[tuple[int, int, int]]:
    with gzip.open(ROOT / "examples" / "collegemsg.txt.gz", "rt") as lines:
        next(lines)
        return [tuple(map(int, line.split())) for line in lines]  # type: ignore[misc]


def sent() -> list[FlowBatch]:
    names = ("sender", "receiver", "sent_at")
    items = [(f"m{at}", dict(zip(names, row, strict=True))) for at, row in enumerate(messages()[:SENT])]
    return [
        FlowBatch.of(*items[at : at + 1_000], number=at // 1_000 + 1, first_commit=at + 1)
        for at in range(0, SENT, 1_000)
    ]


@pytest.mark.parametrize("module", [message_statistics, messages_found, feed, messages_sql])
def test_the_page_shows_the_examples_as_they_are_and_they_are_short(module: Any) -> None:
    text = Path(module.__file__).read_text()
    assert text in BLOCKS
    assert sum(1 for line in text.splitlines() if line.strip()) < LINES_MAX


def test_what_else_the_page_shows_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = [block for block in BLOCKS if "apply(" in block]
    for at, block in enumerate(blocks):
        exec(compile(block, "library.md", "exec"), {"store_url": f"sqlite://{tmp_path}/{at}"})
        told = re.findall(r"  # (.*)", block)
        printed = capsys.readouterr().out.splitlines()
        assert printed == (told or ["[{'key': 'o1', 'cents': 5, 'version': 10}]"])
    assert len(blocks) == 2


def test_statistics_of_real_messages(store: Store) -> None:
    job = message_statistics.STATISTICS
    apply(job, store, job.tables, *sent(), sent()[2])
    job.maintain(store, 4)  # type: ignore[arg-type]
    days, receivers, times = Counter[tuple[int, int]](), defaultdict[int, Counter[int]](Counter), []
    for sender, receiver, at in messages()[:SENT]:
        days[sender, at // 86_400] += 1
        receivers[sender][receiver] += 1
        times.append(at)
    found = message_statistics.DAILY.read(store).to_pylist()
    assert {(row["sender"], row["day"]): row["messages"] for row in found} == days
    for row in message_statistics.REACHED.read(store).to_pylist():
        assert row["low"] <= len(receivers[row["sender"]]) <= row["high"]
    for row in message_statistics.FAVOURITES.read(store).to_pylist():
        assert {int(one["value"]): one["low"] for one in row["items"]} == receivers[row["sender"]]
    (row,) = message_statistics.TIMES.read(store).to_pylist()
    assert (row["count"], row["least"], row["greatest"]) == (SENT, min(times), max(times))
    assert abs(sum(at < row["q0_5"] for at in times) / SENT - 0.5) < 0.01


def test_real_messages_are_found_by_both_ends(store: Store) -> None:
    job = messages_found.MESSAGES
    apply(job, store, job.tables, *sent())
    for column, at in (("sender", 0), ("receiver", 1)):
        user = messages()[5][at]
        found = {row["key"] for row in job.find(store, column, user)}
        assert found == {f"m{number}" for number, row in enumerate(messages()[:SENT]) if row[at] == user}


def test_feeds_of_real_messages(store: Store) -> None:
    apply(feed.FEED, store, feed.FEED.tables, sent()[0])
    wrote = {(sender, receiver) for sender, receiver, _ in messages()}
    for user in (1, 9, 32):
        rows = feed.FEED.read(store, user, PART, 30)
        expected = [f"m{at}" for at, row in enumerate(messages()[:PART]) if (row[0], user) in wrote][::-1][:30]
        assert [row["item"] for row in rows] == expected


def test_pairs_of_real_messages_by_sql(store: Store) -> None:
    apply(messages_sql.JOB, store, messages_sql.JOB.tables, *sent(), sent()[0])
    pairs = defaultdict[tuple[int, int], list[int]](list)
    for sender, receiver, at in messages()[:SENT]:
        pairs[sender, receiver].append(at)
    found = {(row["sender"], row["receiver"]): row for row in messages_sql.JOB.read(store).to_pylist()}
    told = {pair: (row["messages"], row["first"], row["last"]) for pair, row in found.items()}
    assert told == {pair: (len(times), min(times), max(times)) for pair, times in pairs.items()}
