"""Dead letters as a store keeps them: their table, and how they are found again.

Owns: one row a job and item that became no row. How an item becomes a letter: :mod:`oncegate.spark_sink.dead_letters`.
A node shows them, too, where jobs write into the store that it reads (:mod:`oncegate.gateway.node.stream_store`).
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final, NamedTuple

from oncegate.stores.claimed import ClaimedStore
from oncegate.stores.tables import Clustering, Column, ColumnType, StoreTable

READ_MAX: Final = 100_000
"""Letters that :func:`newest_letters` looks at."""
DEAD_LETTERS: Final = StoreTable(
    name="job_dead_letters",
    columns=(
        Column("job", ColumnType.TEXT),
        Column("flow", ColumnType.TEXT),
        Column("batch", ColumnType.INT64),
        Column("commit", ColumnType.INT64),
        Column("item_key", ColumnType.TEXT),
        Column("raw", ColumnType.BLOB),
        Column("error", ColumnType.TEXT),
        Column("client_id", ColumnType.INT64),
        Column("sequence", ColumnType.INT64),
        Column("time_ms", ColumnType.INT64),
        Column("traceparent", ColumnType.TEXT, nullable=True),
    ),
    partition_key=("job", "flow", "batch"),
    clustering=(Clustering("commit"),),
)
"""One row a job and item; ``job`` is the name of the job's consumer. ``raw`` is empty for a deletion.

Before version 0.2 the timeline job alone wrote them, to the table `dead_letters`, without ``job``; nothing reads or
changes that table any more.
"""


class Newest(NamedTuple):
    """The newest letters of a flow, how many it has, and whether all of the store's were looked at."""

    letters: list[dict[str, Any]]
    found: int
    whole: bool


def found_letters(
    store: ClaimedStore, job: str = "", flow: str = "", error: str = "", commits: Collection[int] = ()
) -> Iterator[dict[str, Any]]:
    """Yield the letters of a job and a flow whose error contains a text; empty: of all. Reads the whole table.

    Args:
        store: where they are; without such a table there are none.
        job: name of the job's consumer.
        flow: name of the flow.
        error: a part of the error.
        commits: commit numbers of the items; empty: any.
    """
    for letter in _letters(store):
        named = job in ("", letter["job"]) and flow in ("", letter["flow"])
        if named and error in letter["error"] and (not commits or letter["commit"] in commits):
            yield letter


def newest_letters(store: ClaimedStore, flow: str, limit: int) -> Newest:
    """Return the ``limit`` newest letters of a flow, the newest first; looks at ``READ_MAX`` letters at most."""
    return newest_of(_letters(store), flow, limit, READ_MAX)


def newest_of(letters: Iterable[dict[str, Any]], flow: str, limit: int, read_max: int) -> Newest:
    """Return the same of letters in any order; holds ``limit`` of them at a time."""
    kept: list[tuple[int, int, dict[str, Any]]] = []
    found = 0
    for number, letter in enumerate(letters):
        if number == read_max:
            return Newest(_in_order(kept), found, whole=False)
        if letter["flow"] != flow:
            continue
        found += 1
        entry = (int(letter["commit"]), -number, letter)
        if len(kept) < limit:
            heapq.heappush(kept, entry)
        else:
            heapq.heappushpop(kept, entry)
    return Newest(_in_order(kept), found, whole=True)


def _in_order(kept: list[tuple[int, int, dict[str, Any]]]) -> list[dict[str, Any]]:
    return [letter for _, _, letter in sorted(kept, key=lambda entry: entry[:2], reverse=True)]


def _letters(store: ClaimedStore) -> Iterator[dict[str, Any]]:
    if DEAD_LETTERS.name in store.tables():
        for rows in store.scan(DEAD_LETTERS):
            yield from rows.to_pylist()
