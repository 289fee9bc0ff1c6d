"""The derivation of the integrated data flow. Pure.

A module of its own: Spark pickles what a driver's `__main__` defines by value, without what it refers to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from bench.dataflows.workload import TIMELINES, TWEETS, Audience, Posts, copies, followers_of, tweets
from oncegate.spark_sink.derivation import Change, FlowBatch, Upsert
from oncegate.spark_sink.rows import Contacts


@lru_cache(maxsize=1)
def _known(audience: Audience, seed: int) -> Contacts:
    return followers_of(audience, seed)


@dataclass(frozen=True)
class FanOut:
    """Derives the tweet and the copies of each post."""

    audience: Audience
    seed: int

    def __call__(self, batch: FlowBatch) -> Iterator[Change]:
        """Yield the rows of a batch, in pieces."""
        keys, values = (batch.items.column(name).to_pylist() for name in ("key", "value"))
        # A value of the table is JSON; a post is JSON inside a string.
        posts = Posts.of(map(int, keys), map(json.loads, values))
        yield Upsert(TWEETS, tweets(posts))
        for rows in copies(posts, _known(self.audience, self.seed)):
            yield Upsert(TIMELINES, rows)
