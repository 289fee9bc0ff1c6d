"""The recount of a run: every tweet and every copy is read from the store and compared with the posts.

Owns: what is read. Which copies there must be, and what is wrong with one, is :mod:`bench.dataflows.workload`'s.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from bench.dataflows.workload import TIMELINES, TWEETS, Audience, Check, Int64s, check, followers_of, wrong
from oncegate.stores.store import Store
from oncegate.stores.tables import StoreTable


def recount(store: Store, acknowledged: Int64s, sent: int, audience: Audience, seed: int) -> Check:
    """Return what became of all posts; the numbers below ``sent`` were sent, those in ``acknowledged`` answered."""
    differing = 0

    def scanned(table: StoreTable) -> Iterator[pa.RecordBatch]:
        nonlocal differing
        for rows in store.scan(table):
            differing += wrong(rows, audience, seed)
            yield rows

    copies = ((_column(rows, "reader"), _column(rows, "message")) for rows in scanned(TIMELINES))
    found = check(acknowledged, sent, copies, followers_of(audience, seed), audience, seed)
    tweets = [_column(rows, "message") for rows in scanned(TWEETS)]
    no_tweet = np.isin(acknowledged, np.concatenate([np.zeros(0, np.int64), *tweets]), invert=True)
    return found._replace(wrong=differing, no_tweet=int(no_tweet.sum()))


def _column(rows: pa.RecordBatch, name: str) -> Int64s:
    return np.asarray(rows.column(name), dtype=np.int64)
