"""A materialised copy of a table: the newest state of each key, found by key, by the value of a field, or by words.

Owns: the copy, its index entries, which of them a reader believes, and which are removed. Must not know Spark. Read
next: `fields`.

The derivation sees one batch, so when a field's value changes it cannot know the old one, whose entry stays behind. So
an entry is only a hint: a reader looks at the copy of each key that it finds, and takes it if the copy has that value
now. Entries are written before the copy of the same items; so what the copy has, the index finds, at every moment,
and what a reader gets is what the copy held when it looked. Entries that nothing holds true are removed beside the job
(`maintain`): those of finished batches only, because others may be ahead of their copy, and each at its own timestamp,
because the value may come back.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncegate.spark_sink.compaction import AnyStore
from oncegate.spark_sink.derivation import Change, Delete, FlowBatch, Upsert
from oncegate.spark_sink.library.fields import COMMIT, KEY, Field, Kind, agreed, take
from oncegate.spark_sink.library.partitions import rows_of_partition
from oncegate.stores.claimed import ClaimedStore
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.tables import WRITE_TS, Clustering, Column, ColumnType, StoreTable

WORD_CHARACTERS_MAX: Final = 100
_WORD: Final = re.compile(r"\w+")
_BATCH: Final = "batch"
_BUCKET: Final = "bucket"
Row: TypeAlias = dict[str, Any]


def words(text: str) -> list[str]:
    """Return the distinct words of a text, folded: compatible forms (NFKC) and case are one, accents are not.

    A word is a run of letters, digits and underscores of any script, cut at `WORD_CHARACTERS_MAX`; scripts that put no
    spaces between words have no shorter words.
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return sorted({word[:WORD_CHARACTERS_MAX] for word in _WORD.findall(folded)})


@dataclass(frozen=True, slots=True)
class Index:
    """Entries of one column of a copy: ``terms`` gives the values under which a row is found."""

    table: StoreTable
    column: str
    terms: Callable[[Any], Iterable[Any]]
    buckets: int

    @property
    def value(self) -> str:
        """The column that holds what is searched for."""
        return self.table.key[0]

    def entries(self, rows: pa.RecordBatch, rows_max: int) -> Iterator[pa.RecordBatch]:
        """Yield entries of ``rows``, states of the copy and their `batch`, about ``rows_max`` at once."""
        values, keys = rows.column(self.column).to_pylist(), rows.column(KEY.name).to_pylist()
        found: list[Any] = []
        of: list[int] = []
        for at, value in enumerate(values):
            terms = self.terms(value)
            found += terms
            of += [at] * (len(found) - len(of))
            if len(found) >= rows_max or at == len(values) - 1:
                taken = rows.take(pa.array(of, pa.int64()))
                bucket = (
                    [zlib.crc32(keys[at].encode()) % self.buckets for at in of] if self.buckets > 1 else [0] * len(of)
                )
                columns = {self.value: pa.array(found, self.table.schema.field(self.value).type)}
                columns |= {_BUCKET: pa.array(bucket, pa.int64())}
                columns |= {name: taken.column(name) for name in self.table.schema.names[2:]}
                yield pa.RecordBatch.from_arrays(list(columns.values()), schema=self.table.schema)
                found, of = [], []

    def keys(self, store: AnyStore, term: Any) -> set[str]:
        """Return the keys of all entries of this term; some may be of the past."""
        found: set[str] = set()
        for bucket in range(self.buckets):
            entries = rows_of_partition(store, self.table, {self.value: term, _BUCKET: bucket})
            found.update(entry[KEY.name] for entry in entries)
        return found


@dataclass(frozen=True, slots=True)
class Copy:
    """A derivation that keeps the newest state of each key, and entries by which it is found.

    Attributes:
        table: key, the fields; `write_ts` is the commit number of the write that made the state.
        fields: what is kept of an item.
        indexes: by the column they are of.
    """

    table: StoreTable
    fields: tuple[Field, ...]
    indexes: tuple[Index, ...]

    @property
    def tables(self) -> tuple[StoreTable, ...]:
        """The tables that the derivation writes."""
        return (*(index.table for index in self.indexes), self.table)

    def __call__(self, batch: FlowBatch) -> Iterator[Change]:
        """Yield entries, then states, then deletions; of several writes of a key only the last."""
        taken = take(batch, self.fields)
        yield from taken.rejects
        rows, gone = _newest(taken.rows, taken.deleted)
        rows = rows.append_column(WRITE_TS, rows.column(COMMIT.name))
        rows = rows.append_column(_BATCH, pa.array(np.full(rows.num_rows, batch.number)))
        for index in self.indexes:
            for entries in index.entries(rows, batch.rows_max):
                if entries.num_rows:
                    yield Upsert(index.table, entries)
        if rows.num_rows:
            yield Upsert(self.table, rows.select(self.table.schema.names).cast(self.table.schema))
        if gone.num_rows:
            columns = [gone.column(KEY.name), gone.column(COMMIT.name)]
            yield Delete(self.table, pa.RecordBatch.from_arrays(columns, schema=self.table.key_schema))

    def get(self, store: AnyStore, key: str) -> Row | None:
        """Return the newest state of a key, in `write_ts` the commit number of its write; None: deleted, or none."""
        return store.get(self.table, {KEY.name: key})

    def find(self, store: AnyStore, column: str, value: Any) -> list[Row]:
        """Return the newest states that have this value in an indexed column, by key.

        Raises:
            StoreError: BAD_OPTION, when there is no index by that column.
        """
        return self._held(store, self._index(column, column), [value])

    def search(self, store: AnyStore, column: str, text: str) -> list[Row]:
        """Return the newest states whose words of a column include all of ``text``, by key; none for no words.

        Raises:
            StoreError: BAD_OPTION, when there is no index of the words of that column.
        """
        return self._held(store, self._index(column, "word"), words(text))

    def maintain(self, store: ClaimedStore, finished: int) -> None:
        """Remove entries that no state holds true, of batches up to ``finished``; see `jobs.maintenance`."""
        self.remove_stale(store, finished)

    def remove_stale(self, store: AnyStore, finished: int) -> int:
        """Remove entries that no state holds true, and return their number; idempotent.

        Args:
            store: where the job writes.
            finished: a batch that the job's consumer has finished, with all before it.

        Reads all states and entries, and holds the keys and terms of one index in memory.
        """
        removed = 0
        for index in self.indexes:
            key = [index.value, KEY.name]
            # States first: what is found behind this is newer, and a newer entry has a newer batch.
            held = pa.concat_tables([index.table.schema.empty_table().select(key), *self._entries(store, index)])
            for rows in store.scan(index.table):
                # Timestamp 0: an entry of another cluster's log in an adopted store; its batch says nothing here.
                past = pc.and_(pc.less_equal(rows.column(_BATCH), finished), pc.greater(rows.column(WRITE_TS), 0))
                old = pa.Table.from_batches([rows.filter(past)])
                stale = old.join(held, key, join_type="left anti").select(index.table.key_schema.names)
                for piece in stale.cast(index.table.key_schema).to_batches():
                    store.delete(index.table, piece)
                removed += stale.num_rows
        return removed

    def _entries(self, store: AnyStore, index: Index) -> Iterator[pa.Table]:
        for rows in store.scan(self.table):
            rows = rows.append_column(_BATCH, pa.array(np.zeros(rows.num_rows, np.int64)))
            for entries in index.entries(rows, rows.num_rows):
                yield pa.Table.from_batches([entries]).select([index.value, KEY.name])

    def _index(self, column: str, value: str) -> Index:
        for index in self.indexes:
            if (index.column, index.value) == (column, value):
                return index
        raise StoreError(StoreCode.BAD_OPTION, f"{self.table.name} has no such index of {column}")

    def _held(self, store: AnyStore, index: Index, terms: Sequence[Any]) -> list[Row]:
        if not terms:
            return []
        keys = set.intersection(*(index.keys(store, term) for term in terms))
        rows = [row for key in sorted(keys) if (row := self.get(store, key)) is not None]
        return [row for row in rows if set(terms) <= set(index.terms(row[index.column]))]


def copied(
    name: str,
    fields: Sequence[Field],
    *,
    by: Sequence[str] = (),
    words_of: Sequence[str] = (),
    expires: Field | None = None,
    buckets: int = 1,
) -> Copy:
    """Return the derivation that copies a table, with deletions and ends, and finds its rows by fields and by words.

    Args:
        name: of the copy's table; those of entries are `<name>_by_<column>` and `<name>_words_of_<column>`.
        fields: what is kept of an item.
        by: columns by whose value rows are found.
        words_of: columns of text by whose words rows are found.
        expires: a moment, kept as well: from then on the row is not there, nor found. Null: it never ends.
        buckets: over so many partitions the entries of one value are spread; it never changes for a table.

    Raises:
        StoreError: BAD_TABLE, when a name is malformed, too long or unknown, or a field does not fit its use.
    """
    if expires is not None and expires.kind is not Kind.MOMENT:
        raise StoreError(StoreCode.BAD_TABLE, f"{name}: a row ends at a moment")
    end = () if expires is None else (expires,)
    fields = agreed(*fields, *end)
    columns = {field.column: field.stored() for field in fields}
    texts = {column for column, stored in columns.items() if stored.type is ColumnType.TEXT}
    if not set(by) <= set(columns) or not set(words_of) <= texts or buckets < 1:
        raise StoreError(
            StoreCode.BAD_TABLE, f"{name}: an index is of a field; of words, of a text; in 1 bucket or more"
        )
    key = Column(KEY.name, ColumnType.TEXT)
    table = StoreTable(name, (key, *columns.values()), (KEY.name,), expires=expires.column if expires else "")
    found: list[tuple[str, Column, str, Callable[[Any], list[Any]]]]
    found = [(f"{name}_by_{column}", columns[column], column, _itself) for column in by]
    word = Column("word", ColumnType.TEXT)
    found += [(f"{name}_words_of_{column}", word, column, words) for column in words_of]
    indexes = [Index(_entries_table(one, value, end), column, terms, buckets) for one, value, column, terms in found]
    return Copy(table, fields, tuple(indexes))


def _itself(value: Any) -> list[Any]:
    return [value]


def _entries_table(name: str, value: Column, end: tuple[Field, ...]) -> StoreTable:
    numbers = [Column(column, ColumnType.INT64) for column in (_BUCKET, _BATCH)]
    columns = (value, numbers[0], Column(KEY.name, ColumnType.TEXT), numbers[1], *(field.stored() for field in end))
    expires = "".join(field.column for field in end)
    return StoreTable(name, columns, (value.name, _BUCKET), (Clustering(KEY.name),), expires=expires)


def _newest(rows: pa.RecordBatch, gone: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Of each key the last item alone, be it a state or a deletion."""
    own = [COMMIT.name, KEY.name]
    both = pa.concat_tables([pa.Table.from_batches([part.select(own)]) for part in (rows, gone)])
    last = both.group_by(KEY.name).aggregate([(COMMIT.name, "max")])[f"{COMMIT.name}_max"].combine_chunks()
    return tuple(part.filter(pc.is_in(part.column(COMMIT.name), last)) for part in (rows, gone))
