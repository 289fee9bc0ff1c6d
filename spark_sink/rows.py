"""Derives rows from items. Pure: every key and every write timestamp follows from the item alone.

Owns: the table of the fan-out job, what a message is, and the fan-out of a post to its sender's contacts. Imports no
clock, randomness or I/O. Read next: `contacts`, `sink`.

Timeline rows are keyed ((user, bucket), commit descending, ordinal). `bucket` = commit >> 20 bounds a partition to
2^20 rows. `ordinal` counts the rows which one item puts into one partition, from 0; a contact follows once, so here
it is always 0, and a replay with other contacts cannot give the same row another key. The write timestamp is the
commit number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from oncegate.spark_sink.derivation import ERROR_CHARACTERS_MAX
from oncegate.stores.tables import WRITE_TS, Clustering, Column, ColumnType, StoreTable

Int64s = npt.NDArray[np.int64]

BUCKET_BITS: Final = 20

TIMELINE: Final = StoreTable(
    name="timeline",
    columns=(
        Column("user", ColumnType.INT64),
        Column("bucket", ColumnType.INT64),
        Column("commit", ColumnType.INT64),
        Column("ordinal", ColumnType.INT64),
        Column("message", ColumnType.TEXT),
        Column("sender", ColumnType.INT64),
        Column("sent_at", ColumnType.INT64),
        Column("traceparent", ColumnType.TEXT, nullable=True),
    ),
    partition_key=("user", "bucket"),
    clustering=(Clustering("commit", descending=True), Clustering("ordinal")),
)
"""One row a post and follower: `message` is the key of the post's row, `sent_at` its own time, in seconds.

`traceparent` is the trace context of the request that applied the post, null if it had none.
"""

_Id = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Message(msgspec.Struct, frozen=True):
    """The value of an item: JSON object, fields of integers 0 .. 2^63 - 1; further fields are ignored."""

    sender: _Id
    receiver: _Id
    sent_at: _Id


_decode_message: Final = msgspec.json.Decoder(Message).decode


@dataclass(frozen=True, slots=True)
class Posts:
    """Messages as columns, equally long, in commit order.

    Attributes:
        key: row keys, string.
        commit, sender, sent_at: int64.
        traceparent: trace contexts, string, null where the request had none.
    """

    key: pa.Array
    commit: Int64s
    sender: Int64s
    sent_at: Int64s
    traceparent: pa.Array

    def slice(self, begin: int, end: int) -> Posts:
        """Return posts ``begin`` .. ``end`` - 1."""
        cut = slice(begin, end)
        return Posts(self.key[cut], self.commit[cut], self.sender[cut], self.sent_at[cut], self.traceparent[cut])


@dataclass(frozen=True, slots=True)
class Contacts:
    """The receivers of posts: for each sender the followers, as three arrays (compressed sparse rows), int64.

    Attributes:
        senders: ascending, distinct.
        offsets: one more than senders; followers of sender i lie at offsets[i] .. offsets[i + 1] - 1.
        followers: ascending and distinct within a sender.
    """

    senders: Int64s
    offsets: Int64s
    followers: Int64s

    @classmethod
    def from_edges(cls, senders: Int64s, followers: Int64s) -> Contacts:
        """Return the contacts of equally long columns of edges; an edge that repeats counts once."""
        edges = np.unique(np.stack([senders, followers], axis=1).astype(np.int64).reshape(-1, 2), axis=0)
        names, begins = np.unique(edges[:, 0], return_index=True)
        offsets = np.append(begins, len(edges)).astype(np.int64)
        return cls(names, offsets, np.ascontiguousarray(edges[:, 1]))

    def ranges_of(self, senders: Int64s) -> tuple[Int64s, Int64s]:
        """Return for each sender the first position and the number of its followers; unknown senders have none."""
        if len(self.senders) == 0:
            return np.zeros_like(senders), np.zeros_like(senders)
        at = np.minimum(np.searchsorted(self.senders, senders), len(self.senders) - 1)
        known = self.senders[at] == senders
        return self.offsets[at], np.where(known, self.offsets[at + 1] - self.offsets[at], 0)


def decode(items: pa.RecordBatch) -> tuple[Posts, dict[int, str]]:
    """Split items into posts and errors by commit number: each item ends in exactly one of the two.

    Items have the columns of `oncegate.flows.schema.PLAIN_SCHEMA`. An item without a value (a deletion) is an error: a
    timeline is a record of posts, and nothing tells which rows a deletion would mean.
    """
    messages: list[Message] = []
    good: list[int] = []
    errors: dict[int, str] = {}
    commits = np.asarray(items.column("commit"))
    for at, raw in enumerate(items.column("value").cast(pa.binary()).to_pylist()):
        try:
            messages.append(_decode_message(raw if raw is not None else b""))
            good.append(at)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            text = "deleted: no value" if raw is None else str(error)[:ERROR_CHARACTERS_MAX]
            errors[int(commits[at])] = text
    kept = items if not errors else items.take(pa.array(good, pa.int64()))
    posts = Posts(
        key=kept.column("key"),
        commit=np.asarray(kept.column("commit")),
        sender=np.array([message.sender for message in messages], dtype=np.int64),
        sent_at=np.array([message.sent_at for message in messages], dtype=np.int64),
        traceparent=kept.column("traceparent"),
    )
    return posts, errors


def fan_out(posts: Posts, contacts: Contacts) -> pa.RecordBatch:
    """Return the timeline rows of the posts, one a follower, in primary key order; rows of `TIMELINE`."""
    user, of = spread(posts.commit, posts.sender, contacts)
    commit = posts.commit[of]
    columns = {
        "user": user,
        "bucket": commit >> BUCKET_BITS,
        "commit": commit,
        "ordinal": np.zeros(len(of), dtype=np.int64),
        "message": posts.key.take(pa.array(of)),
        "sender": posts.sender[of],
        "sent_at": posts.sent_at[of],
        "traceparent": posts.traceparent.take(pa.array(of)),
        WRITE_TS: commit,
    }
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns.values()], schema=TIMELINE.schema)


def spread(commit: Int64s, sender: Int64s, contacts: Contacts) -> tuple[Int64s, Int64s]:
    """Return for each row of a fan-out its user and the position of its post, by user, bucket and falling commit."""
    first, degree = contacts.ranges_of(sender)
    # Posts in the order of a partition, then rows by user: a stable sort on one column instead of on three.
    post = np.lexsort((~commit, commit >> BUCKET_BITS))
    degree, first = degree[post], first[post]
    ends = np.cumsum(degree)
    total = int(ends[-1]) if len(ends) else 0
    within = np.arange(total, dtype=np.int64) - np.repeat(ends - degree, degree)
    user = contacts.followers[np.repeat(first, degree) + within]
    order = np.argsort(user, kind="stable")
    return user[order], np.repeat(post, degree)[order]


def cuts(degree: Int64s, rows_max: int) -> Iterator[slice]:
    """Cut posts of these many followers so that each piece has at most ``rows_max`` rows, or is a single post."""
    ends = np.cumsum(degree)
    begin = 0
    while begin < len(ends):
        before = int(ends[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(ends, before + rows_max, side="right")), begin + 1)
        yield slice(begin, end)
        begin = end


def pieces(posts: Posts, contacts: Contacts, rows_max: int) -> Iterator[Posts]:
    """Cut posts so that each piece fans out to at most ``rows_max`` rows, or is a single post."""
    for cut in cuts(contacts.ranges_of(posts.sender)[1], rows_max):
        yield posts.slice(cut.start, cut.stop)
