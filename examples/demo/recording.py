"""What happened and when: acknowledgements, copies, kills, deliveries, on one clock.

Owns: the raw record of a run and the figures that follow from it. Must not know how any of it came about. Read next:
:mod:`examples.demo.report`, which draws it; :mod:`examples.demo.verdict`, which judges it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from examples.demo.dataset import Int64s
from examples.demo.plan import When

Floats = npt.NDArray[np.float64]

BUCKET_S: Final = 0.1
GAP_BEGINS_S: Final = 3.0
"""How long after a kill the gap that it causes may begin."""


class Verdict(StrEnum):
    """What a node answered to one copied operation."""

    REPLAYED = "replayed"
    FIRST = "ran first"
    STALE = "refused as stale"
    UNEXPECTED = "something else"


class Answer(NamedTuple):
    """One call of the SDK that was answered: when, how long it took, and for which messages, from line ``first``."""

    at_s: float
    latency_s: float
    first: int
    operations: int


class Copied(NamedTuple):
    """Verdict on one copy of message ``number``; ``commit`` is None where it was refused."""

    number: int
    when: When
    ranged: bool
    verdict: Verdict
    commit: int | None


class Delivered(NamedTuple):
    """Where the consumer stood: ``batches`` finished, which hold ``rows`` timeline rows."""

    at_s: float
    batches: int
    rows: int


@dataclass(slots=True)
class Kill:
    """One kill -9 of a leader. Times are on the run's clock; None: it has not come to that yet."""

    node: str
    at_s: float
    restarted_s: float | None = None
    ready_s: float | None = None
    pending: int = 0
    """Messages not yet acknowledged when it happened."""


class Buckets(NamedTuple):
    """Acknowledgements by ``BUCKET_S``, equally long; latencies are NaN where a bucket holds none."""

    at_s: Floats
    rate_per_s: Floats
    p50_ms: Floats
    p99_ms: Floats
    max_ms: Floats


@dataclass(slots=True)
class Recording:
    """The record of one run.

    Args:
        messages: how many are to be sent.
        clock: monotonic seconds.
    """

    messages: int
    clock: Callable[[], float] = time.monotonic
    began_s: float = field(init=False)
    commits: Int64s = field(init=False)
    """Commit number that the SDK was told for each message, 0 while there is none."""
    replayed: npt.NDArray[np.bool_] = field(init=False)
    """Whether the SDK's own answer was a replay."""
    answers: list[Answer] = field(default_factory=list)
    copied: list[Copied] = field(default_factory=list)
    copies_lost: int = 0
    """Attempts at a copy that reached no node or got no verdict, and were made again elsewhere."""
    kills: list[Kill] = field(default_factory=list)
    delivered: list[Delivered] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    acknowledged: int = 0
    slowed_s: float = 0.0
    """For how long writers held back the last messages, because a kill or the first delivery had not come; summed."""

    def __post_init__(self) -> None:
        self.began_s = self.clock()
        self.commits = np.zeros(self.messages, dtype=np.int64)
        self.replayed = np.zeros(self.messages, dtype=np.bool_)

    def now_s(self) -> float:
        """Return seconds since the run began."""
        return self.clock() - self.began_s

    def acknowledge(self, number: int, commit: int, *, replayed: bool) -> None:
        """Note the commit number of one message, as the SDK was told."""
        self.commits[number - 1] = commit
        self.replayed[number - 1] = replayed
        self.acknowledged += 1

    def buckets(self) -> Buckets:
        """Return rate and latency over the time in which writes were answered."""
        if not self.answers:
            empty = np.zeros(0)
            return Buckets(empty, empty, empty, empty, empty)
        at = np.array([answer.at_s for answer in self.answers])
        latency_ms = np.array([answer.latency_s for answer in self.answers]) * 1000
        operations = np.array([answer.operations for answer in self.answers])
        index = (at / BUCKET_S).astype(np.int64)
        low, count = int(index.min()), int(index.max() - index.min()) + 1
        index -= low
        rate: Floats = np.asarray(np.bincount(index, weights=operations, minlength=count) / BUCKET_S, dtype=np.float64)
        p50, p99, worst = (np.full(count, np.nan) for _ in range(3))
        order = np.argsort(index, kind="stable")
        borders = np.searchsorted(index[order], np.arange(count + 1))
        for bucket in range(count):
            inside = latency_ms[order[borders[bucket] : borders[bucket + 1]]]
            if len(inside):
                p50[bucket], p99[bucket], worst[bucket] = np.percentile(inside, [50, 99, 100])
        return Buckets(np.arange(low, low + count, dtype=np.float64) * BUCKET_S, rate, p50, p99, worst)

    def gap_s(self, kill: Kill) -> float | None:
        """Return the longest time without an acknowledgement from a kill on; None if none followed it."""
        at = np.unique([answer.at_s for answer in self.answers])
        if len(at) < 2:
            return None
        # What was silent before the kill was not silent because of it.
        begins, ends = np.maximum(at[:-1], kill.at_s), at[1:]
        caused = (ends > kill.at_s) & (begins < kill.at_s + GAP_BEGINS_S)
        return float((ends - begins)[caused].max()) if caused.any() else None

    def rows_while_writing(self) -> int:
        """Return how many rows were delivered before the last message was acknowledged."""
        last_s = max((answer.at_s for answer in self.answers), default=0.0)
        return max((delivered.rows for delivered in self.delivered if delivered.at_s < last_s), default=0)

    def latency_ms(self) -> tuple[float, float, float]:
        """Return p50, p99 and maximum over all answered calls, in milliseconds."""
        if not self.answers:
            return (float("nan"),) * 3
        found = np.percentile([answer.latency_s * 1000 for answer in self.answers], [50, 99, 100])
        return float(found[0]), float(found[1]), float(found[2])

    def copy_counts(self) -> Counter[tuple[When, Verdict]]:
        """Return how many copied operations got which verdict."""
        return Counter((copied.when, copied.verdict) for copied in self.copied)

    def copied_share(self) -> float:
        """Return the share of the messages that were sent more than once on purpose."""
        return len({copied.number for copied in self.copied}) / max(1, self.messages)
