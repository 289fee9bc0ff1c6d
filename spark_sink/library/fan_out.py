"""Fan-out by join with a table of followers: a row for each item and follower, but one row for a celebrity's item.

Owns: which author is a celebrity, the rows of both, and how a reader merges them. Must not know Spark. Read next:
`oncegate.spark_sink.contacts` (the forms of the file), `oncegate.spark_sink.rows`.

An item of an author with 300,000 followers would be 300,000 rows, and whatever is written behind it waits. So above a
threshold the item is one row under its author, and a reader adds the celebrities that it follows: as many reads more as
these, and rows of a follower who begins or ceases to follow are right at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from oncegate.spark_sink import contacts
from oncegate.spark_sink.compaction import AnyStore
from oncegate.spark_sink.derivation import Change, FlowBatch, Upsert
from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.library.fields import COMMIT, KEY, Field, Kind, agreed, take
from oncegate.spark_sink.rows import BUCKET_BITS, Contacts, Int64s, cuts, spread
from oncegate.stores.errors import StoreCode
from oncegate.stores.tables import WRITE_TS, Clustering, Column, ColumnType, StoreTable

CELEBRITY_DEFAULT: Final = 10_000
_USER: Final = "user"
_BUCKET: Final = "bucket"
_ITEM: Final = "item"


@dataclass(frozen=True, slots=True)
class FanOut:
    """A derivation that copies each item to the followers of its author, or once if these are too many.

    Attributes:
        table: copies by `user`, newest first.
        celebrities: items of celebrities by `user`, the author, newest first; same columns.
        author: field of the item.
        fields: what a row has of the item beside its key, in `item`.
        followers: file of edges.
        celebrity_over: an author with more followers is a celebrity.
    """

    table: StoreTable
    celebrities: StoreTable
    author: Field
    fields: tuple[Field, ...]
    followers: str
    celebrity_over: int

    @property
    def tables(self) -> tuple[StoreTable, ...]:
        """The tables that the derivation writes."""
        return (self.table, self.celebrities)

    def __call__(self, batch: FlowBatch) -> Iterator[Change]:
        """Yield rejections, items of celebrities, then copies in pieces of the batch's `rows_max`."""
        taken = take(batch, (self.author, *self.fields))
        yield from taken.rejects
        edges, rows = contacts.load(Path(self.followers)), taken.rows
        author, commit = np.asarray(rows.column(self.author.column)), np.asarray(rows.column(COMMIT.name))
        degree = edges.ranges_of(author)[1]
        famous = np.flatnonzero(degree > self.celebrity_over)
        if len(famous):
            yield Upsert(self.celebrities, self._rows(self.celebrities, author[famous], rows, famous))
        others = np.flatnonzero((degree > 0) & (degree <= self.celebrity_over))
        for cut in cuts(degree[others], batch.rows_max):
            posts = others[cut]
            user, of = spread(commit[posts], author[posts], edges)
            yield Upsert(self.table, self._rows(self.table, user, rows, posts[of]))

    def read(self, store: AnyStore, user: int, newest: int, limit: int = 50) -> list[dict[str, Any]]:
        """Return the newest items for a user, its own copies and those of celebrities it follows, newest first.

        Args:
            store: where the job writes.
            user: the reader.
            newest: commit number at which to begin: one that the cluster has reached, or the one before the last row of
                the page before.
            limit: of rows, 1 .. 100,000.
        """
        edges = contacts.load(Path(self.followers))
        sources = [
            (self.table, user),
            *((self.celebrities, one) for one in _followed(edges, user, self.celebrity_over)),
        ]
        found: dict[int, dict[str, Any]] = {}
        bucket = newest >> BUCKET_BITS
        while bucket >= 0 and len(found) < limit:
            for table, of in sources:
                rows = store.range(table, {_USER: of, _BUCKET: bucket}, stop=newest + 1, limit=limit).to_pylist()
                # An author who became a celebrity meanwhile may have a row in both.
                found |= {row[COMMIT.name]: {**row, _USER: user} for row in rows}
            bucket -= 1
        return [found[commit] for commit in sorted(found, reverse=True)[:limit]]

    def _rows(self, table: StoreTable, user: Int64s, rows: pa.RecordBatch, of: Int64s) -> pa.RecordBatch:
        chosen = rows.take(pa.array(of))
        commit = chosen.column(COMMIT.name)
        columns = {field.column: chosen.column(field.column) for field in (self.author, *self.fields)}
        columns |= {_USER: pa.array(user), _BUCKET: pa.array(np.asarray(commit) >> BUCKET_BITS), COMMIT.name: commit}
        columns |= {_ITEM: chosen.column(KEY.name), WRITE_TS: commit}
        return pa.RecordBatch.from_arrays([columns[name] for name in table.schema.names], schema=table.schema)


def fan_out(
    name: str, author: Field, followers: str, fields: Sequence[Field] = (), *, celebrity_over: int = CELEBRITY_DEFAULT
) -> FanOut:
    """Return the derivation that copies items to the followers of their authors.

    Args:
        name: of the table of copies; items of celebrities are in `<name>_of_celebrities`.
        author: a whole number.
        followers: path of a file of edges (`oncegate.spark_sink.contacts`), which every executor can read. Read once a
            process as long as it does not change; a replay after a change makes the rows that follow from it.
        fields: what else a row has, texts and whole numbers.
        celebrity_over: an author with more followers is a celebrity. An author that was one has to stay one: raise it
            only for a new table.

    Raises:
        StoreError: BAD_TABLE, when a name is malformed or repeats, or a field is of another kind.
    """
    if author.kind is not Kind.WHOLE or celebrity_over < 0:
        raise SinkError(StoreCode.BAD_TABLE, f"{name}: an author is a whole number, a threshold 0 or more")
    agreed(author, *fields)
    numbers = [Column(column, ColumnType.INT64) for column in (_USER, _BUCKET, COMMIT.name)]
    columns = (*numbers, Column(_ITEM, ColumnType.TEXT), *(field.stored() for field in (author, *fields)))
    clustering = (Clustering(COMMIT.name, descending=True),)
    table, celebrities = (
        StoreTable(one, columns, (_USER, _BUCKET), clustering) for one in (name, f"{name}_of_celebrities")
    )
    return FanOut(table, celebrities, author, tuple(fields), followers, celebrity_over)


def _followed(edges: Contacts, user: int, celebrity_over: int) -> list[int]:
    """The celebrities that a user follows: one binary search each."""
    famous = np.flatnonzero(np.diff(edges.offsets) > celebrity_over)
    return [
        int(edges.senders[at]) for at in famous if _holds(edges.followers[slice(*edges.offsets[at : at + 2])], user)
    ]


def _holds(ascending: Int64s, value: int) -> bool:
    at = int(np.searchsorted(ascending, value))
    return at < len(ascending) and int(ascending[at]) == value
