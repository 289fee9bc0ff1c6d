"""The examples of docs/library-time.md on the real messages they are about, against plain loops over the file."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from examples.jobs import unanswered
from examples.jobs.conversations import CONVERSATIONS
from examples.jobs.messages_per_hour import DAYS, HOURS
from examples.jobs.replies import REPLIES
from oncegate.spark import FlowBatch, Store, apply, claimed_store, open_store
from tests.spark.fake_gateway import FakeFlow, FakeNode

MESSAGES, PER_BATCH = 6_000, 1_000
FILE = Path(__file__).parents[2] / "examples" / "collegemsg.txt.gz"
Message = tuple[int, int, int]
"""Sender, receiver, time in seconds."""


def messages(count: int) -> list[Message]:
    with gzip.open(FILE, "rt") as lines:
        next(lines)
        return [(int(a), int(b), int(at)) for a, b, at in (next(lines).split() for _ in range(count))]


def batches(given: list[Message]) -> list[FlowBatch]:
    written = [(f"m{at}", {"sender": a, "receiver": b, "sent_at": t}) for at, (a, b, t) in enumerate(given)]
    return [
        FlowBatch.of(*written[at : at + PER_BATCH], number=at // PER_BATCH + 1, first_commit=at + 1)
        for at in range(0, len(written), PER_BATCH)
    ]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite://{tmp_path}/store") as opened:
        yield opened


def test_messages_per_hour_and_day(store: Store) -> None:
    given = messages(MESSAGES)
    for job in (HOURS, DAYS):
        apply(job, store, job.tables, *batches(given))
    hours = Counter((sender, at // 3600 * 3_600_000) for sender, _, at in given)
    assert {(row["sender"], row["start_ms"]): row["events"] for row in HOURS.read(store).to_pylist()} == hours
    days = Counter((sender, (at // 3600 - back) * 3_600_000) for sender, _, at in given for back in range(24))
    assert {(row["sender"], row["start_ms"]): row["events"] for row in DAYS.read(store).to_pylist()} == days
    over = HOURS.final(store).to_pylist()
    end = max(at for _, _, at in given) * 1000 - 3_600_000
    assert {(row["sender"], row["start_ms"]): row["events"] for row in over} == {
        key: count for key, count in hours.items() if key[1] + 3_600_000 <= end
    }
    assert sum(row["late"] for row in over) == 0


def test_conversations(store: Store) -> None:
    given = messages(MESSAGES)
    apply(CONVERSATIONS, store, CONVERSATIONS.tables, *batches(given))
    times: dict[tuple[int, int], list[int]] = defaultdict(list)
    for sender, receiver, at in given:
        times[sender, receiver].append(at)
    pauses = sum(later - at > 3600 for each in times.values() for at, later in pairwise(each))
    rows = CONVERSATIONS.read(store).to_pylist()
    assert len(rows) == len(times) + pauses
    assert sum(row["events"] for row in rows) == MESSAGES
    assert max(row["end_ms"] for row in rows) == max(at for _, _, at in given) * 1000


def test_replies(store: Store) -> None:
    given = messages(MESSAGES)
    evicted = 0
    for batch in batches(given):
        for side in (REPLIES.left, REPLIES.right):
            apply(side, store, REPLIES.tables, batch)
        evicted += REPLIES.assemble(store).evicted
    sent: dict[tuple[int, int], list[int]] = defaultdict(list)
    for sender, receiver, at in given:
        sent[sender, receiver].append(at)
    pairs = sum(at <= later <= at + 600 for a, b, at in given for later in sent.get((b, a), ()))
    assert REPLIES.read(store).num_rows == pairs > 500
    assert evicted > 1.9 * MESSAGES
    assert store.count(REPLIES.waiting) == 2 * MESSAGES - evicted


@pytest.mark.spark
def test_unanswered(spark: SparkSession, flow: FakeFlow, node: FakeNode, tmp_path: Path) -> None:
    given = [*messages(1_000), (0, 10**9, 2 * 10**9)]
    keys = ("sender", "receiver", "sent_at")
    values = [json.dumps(dict(zip(keys, message, strict=True))) for message in given]
    flow.seal_all([(commit, f"m{commit}", value) for commit, value in enumerate(values, 1)], 100)
    url = f"sqlite://{tmp_path}/store"
    unanswered.main(node.url, flow.name, url, f"{tmp_path}/checkpoint")
    answers: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for number, (sender, receiver, at) in enumerate(given):
        answers[receiver, sender].append((at, number))
    expected = Counter(
        any(later <= at + 86_400 for later, other in answers[sender, receiver] if (later, other) > (at, number))
        for number, (sender, receiver, at) in enumerate(given[:-1])
        if sender < receiver
    )
    with claimed_store(url) as store:
        rows = [row for part in store.scan(unanswered.TABLE) for row in part.to_pylist()]
    assert Counter(row["rule"] for row in rows) == {"answered": expected[True], "unanswered": expected[False]}
