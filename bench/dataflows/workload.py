"""The Twitter-like workload: authors whose followers obey a power law, their posts, and the rows that posts become.

Pure. Post ``number`` has the same author and text everywhere, so a recount needs only which posts were acknowledged.
All three data flows make their rows here, from the same columns: they differ in where and when it happens.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from oncegate.spark_sink.rows import Contacts, cuts, spread
from oncegate.stores.tables import WRITE_TS, Clustering, Column, ColumnType, StoreTable

Int64s = npt.NDArray[np.int64]
Numbers = TypeVar("Numbers", int, Int64s)
TEXT_BYTES: Final = 150
"""Of each post; with its key, author and JSON about 200 bytes."""
PIECE_ROWS: Final = 50_000
_MIX: Final = 2_654_435_761
_MIX_SEED: Final = 2_246_822_519
_BOOK_WORDS: Final = 12_000

TWEETS: Final = StoreTable(
    name="tweets",
    columns=(
        Column("message", ColumnType.INT64), Column("author", ColumnType.INT64), Column("text", ColumnType.TEXT),
    ),
    partition_key=("message",),
)  # fmt: skip
TIMELINES: Final = StoreTable(
    name="timelines",
    columns=(
        Column("reader", ColumnType.INT64), Column("message", ColumnType.INT64), Column("author", ColumnType.INT64),
        Column("text", ColumnType.TEXT),
    ),
    partition_key=("reader",),
    clustering=(Clustering("message", descending=True),),
)  # fmt: skip
"""One copy of a post for each follower of its author."""


class Audience(NamedTuple):
    """How followers are spread: author of rank r has about ``largest`` / r ** ``exponent`` of them, at least one."""

    authors: int
    largest: int
    exponent: float = 1.25


WHOLE: Final = Audience(20_000, 200_000)
SAMPLE: Final = Audience(2_000, 2_000)


def followers_of(audience: Audience, seed: int) -> Contacts:
    """Return who follows whom; readers are numbered from 0 to twice the largest following."""
    chance = np.random.default_rng(seed)
    ranks = np.arange(1, audience.authors + 1)
    counts = np.maximum(1, audience.largest / ranks**audience.exponent).astype(np.int64)
    universe = 2 * audience.largest
    begins = chance.integers(0, universe, audience.authors)
    authors = np.repeat(np.arange(audience.authors), counts)
    within = np.arange(len(authors)) - np.repeat(np.cumsum(counts) - counts, counts)
    return Contacts.from_edges(authors, (np.repeat(begins, counts) + within) % universe)


def author_of(number: Numbers, audience: Audience, seed: int) -> Numbers:
    """Return the author of a post, or of each of several; each author is about as likely as any other."""
    return ((number * 2 + 1) * _MIX + seed * _MIX_SEED % 2**32) % 2**32 * audience.authors >> 32


@lru_cache(maxsize=1)
def texts() -> tuple[str, ...]:
    """Return all texts that posts have: pieces of a book whose words are as frequent as those of a language are.

    The more alike texts were, the less of them would travel where rows are compressed.
    """
    chance = random.Random(1)
    syllables = [first + vowel for first in "bdfghklmnprstvwz" for vowel in "aeiou"]
    vocabulary = ["".join(chance.choices(syllables, k=chance.randint(1, 4))) for _ in range(_BOOK_WORDS // 3)]
    frequent = [1 / rank for rank in range(1, len(vocabulary) + 1)]
    book = " ".join(chance.choices(vocabulary, frequent, k=_BOOK_WORDS))
    return tuple(book[at : at + TEXT_BYTES] for at in range(len(book) - TEXT_BYTES))


def text_of(number: int) -> str:
    """Return the text of a post."""
    return texts()[_text_at(number)]


def _text_at(number: Numbers) -> Numbers:
    return number * _MIX % len(texts())


def value_of(number: int, audience: Audience, seed: int) -> str:
    """Return a post as JSON, about 200 bytes with its key."""
    post = {"author": author_of(number, audience, seed), "text": text_of(number)}
    return json.dumps(post, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Posts:
    """Posts as columns: numbers, authors and texts, equally long."""

    message: Int64s
    author: Int64s
    text: pa.Array

    @classmethod
    def of(cls, messages: Iterable[int], values: Iterable[str]) -> Posts:
        """Return posts by their values.

        Raises:
            ValueError, KeyError: a value is no post.
        """
        found = [json.loads(value) for value in values]
        authors = np.array([one["author"] for one in found], dtype=np.int64)
        return cls(
            np.fromiter(messages, dtype=np.int64), authors, pa.array([one["text"] for one in found], pa.string())
        )


def tweets(posts: Posts) -> pa.RecordBatch:
    """Return a row for each post."""
    columns = {"message": posts.message, "author": posts.author, "text": posts.text, WRITE_TS: posts.message + 1}
    return pa.RecordBatch.from_arrays([pa.array(one) for one in columns.values()], schema=TWEETS.schema)


def copies(posts: Posts, known: Contacts) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the followers' timelines, `PIECE_ROWS` at once, or all of one post."""
    for cut in cuts(known.ranges_of(posts.author)[1], PIECE_ROWS):
        message, author = posts.message[cut], posts.author[cut]
        reader, of = spread(message, author, known)
        columns = {
            "reader": reader, "message": message[of], "author": author[of],
            "text": posts.text[cut].take(pa.array(of)), WRITE_TS: message[of] + 1,
        }  # fmt: skip
        yield pa.RecordBatch.from_arrays([pa.array(one) for one in columns.values()], schema=TIMELINES.schema)


class Check(NamedTuple):
    """Copies of acknowledged posts: how many there must be, are missing, or are there that no post explains.

    Attributes:
        posts: acknowledged ones. expected: their copies.
        missing: copies that are not there. twice: each further time that one is, which a store with keys cannot have.
        unknown: copies that no post explains.
        wrong: tweets and copies with another author or text than the post had.
        no_tweet: acknowledged posts without their tweet.
    """

    posts: int
    expected: int
    missing: int
    twice: int
    unknown: int
    wrong: int = 0
    no_tweet: int = 0

    @property
    def complete(self) -> bool:
        """Whether every acknowledged post has its tweet and is once in every timeline, and nothing else is anywhere."""
        return not (self.missing or self.twice or self.unknown or self.wrong or self.no_tweet)


def check(acknowledged: Int64s, sent: int, found: Iterable[tuple[Int64s, Int64s]], known: Contacts,
          audience: Audience, seed: int) -> Check:  # fmt: skip
    """Return what became of the copies of all posts.

    Args:
        acknowledged: numbers of posts.
        sent: posts below this number were sent; one without an answer may be there or not, in whole or in part.
        found: readers and messages of rows, in any pieces.
        known: who follows whom.
        audience: of the workload.
        seed: of the workload.
    """
    universe = 2 * audience.largest

    def copies_of(messages: Int64s) -> Int64s:
        """Return message and reader of every copy, as one number."""
        begins, counts = known.ranges_of(author_of(messages, audience, seed))
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        readers: Int64s = known.followers[np.repeat(begins, counts) + within]
        return np.repeat(messages, counts) * universe + readers

    expected = np.sort(copies_of(acknowledged))
    codes = [message * universe + reader for reader, message in found]
    seen, times = np.unique(np.concatenate([np.zeros(0, np.int64), *codes]), return_counts=True)
    missing = int(np.isin(expected, seen, invert=True).sum())
    more = seen[np.isin(seen, expected, invert=True)]
    unanswered = np.setdiff1d(np.arange(sent), acknowledged)
    unknown = int(np.isin(more, copies_of(unanswered), invert=True).sum())
    return Check(len(acknowledged), len(expected), missing, int((times - 1).sum()), unknown)


def wrong(rows: pa.RecordBatch, audience: Audience, seed: int) -> int:
    """Return how many rows, tweets or copies, have another author or text than the post of their message had."""
    messages = np.asarray(rows.column("message"), dtype=np.int64)
    authors = np.asarray(rows.column("author"), dtype=np.int64) == author_of(messages, audience, seed)
    expected = pa.array(texts(), pa.string()).take(pa.array(_text_at(messages)))
    texts_too = np.asarray(pc.fill_null(pc.equal(rows.column("text"), expected), False))
    return int((~(authors & texts_too)).sum())


def classes(audience: Audience) -> list[tuple[int, int]]:
    """Return classes of authors by their followers, both ends included: 1, to 9, to 99 and so on to the largest."""
    found, begin = [(1, 1)], 2
    while begin <= audience.largest:
        end = min(10 ** len(str(begin)) - 1, audience.largest)
        found.append((begin, end))
        begin = end + 1
    return found
