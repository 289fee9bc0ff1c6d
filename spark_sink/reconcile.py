"""The log against the tables: which rows of a job are missing, surplus or different, from batch down to row.

Owns: what a range of batches should leave in a store, and the comparison. Reads only; needs no Spark. Read next:
`applying`, `derivation`.

Each row that should be there, and each that is, gets two hashes of 128 bits, one of its key and one of its values. The
number of a batch's rows in a table, and the exclusive or of their hashes, are a signature that does not depend on their
order; only batches whose signatures differ are looked at row by row. A row belongs to the batch that its key names
(columns `batch` or `commit`), else to the one that holds the commit number in its `write_ts`. About 60 bytes are held
for each row of the range: reconcile a long flow in ranges.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from oncegate.spark_sink.applying import Applier, Done
from oncegate.spark_sink.compaction import compacted_through
from oncegate.spark_sink.dead_letters import DEAD_LETTERS
from oncegate.spark_sink.derivation import FlowBatch
from oncegate.stores import cells
from oncegate.stores.claimed import ClaimedStore
from oncegate.stores.limits import sift
from oncegate.stores.tables import WRITE_TS, ColumnType, StoreTable

Array = npt.NDArray[Any]

DIFFERENCES_MAX: Final = 1000
"""So many rows are named; all are counted."""

_NEVER: Final = 2**63 - 1
_PAIR: Final = np.dtype([("one", np.uint64), ("two", np.uint64)])
_SALTS: Final = {"one": ("oncegate hash 1.", np.uint64(0)), "two": ("oncegate hash 2.", np.uint64(0xA0761D6478BD642F))}
"""Of texts and of numbers: they make two hashes out of one function."""
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Difference:
    """One row that is not as it should be.

    Attributes:
        kind: `missing` (should be there), `surplus` (should not), `differs` (has other values, or is of another item).
        batch: number of the batch that should have made the row; of a surplus one, the batch that it claims.
    """

    kind: str
    table: str
    batch: int
    key: Mapping[str, Any]


@dataclass(slots=True)
class Reconciled:
    """The outcome for a range of batches.

    Attributes:
        rows: how many rows should be there.
        batches_differing: numbers of batches whose signature differs in some table.
        counts: differing rows by kind.
        differences: the first of them, at most `DIFFERENCES_MAX`.
    """

    rows: int = 0
    batches_differing: set[int] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether the store holds exactly what it should."""
        return not self.counts


def reconcile(
    read: Callable[[int], FlowBatch],
    first: int,
    last: int,
    applier: Applier,
    store: ClaimedStore,
    *,
    tables: Iterable[StoreTable] = (),
    only: Mapping[str, Mapping[str, Any]] | None = None,
    newest: Callable[[], int] | None = None,
    clock: Callable[[], float] = time.time,
) -> Reconciled:
    """Compare what batches ``first`` .. ``last`` make with what the store holds of them.

    A row that an adopted store still holds of another cluster's log counts as absent. Of a table declared partial is
    compared which rows there are and when each was last written; their cells may be of before the range. Partials of
    compacted batches are not judged.

    Args:
        read: gives a batch by its number, the same items each time.
        first: number of the first batch of the range.
        last: number of the last one.
        applier: the job: its derivation and its name.
        store: where the job writes; it is scanned only.
        tables: further tables in which the range may have left nothing.
        only: for each table that the job shares with others, the column values that mark its own rows.
        newest: number of the newest batch that the job may have written by now, for a job that goes on: rows that
            batches behind ``last`` touch are not judged.
        clock: seconds since 1970: rows that have ended count as absent.

    Raises:
        StoreError: what ``read`` and the store raise.
    """
    expected, borders, flow = _Recorder(), [0], ""
    for number in range(first, last + 1):
        batch = read(number)
        if number == first:
            borders = [batch.items.column("commit")[0].as_py() - 1]
        borders.append(batch.last_commit)
        applier.apply(batch, expected, Done())
        flow = batch.flow
    place = _Place(first, np.array(borders))
    own = {DEAD_LETTERS.name: {"job": applier.job, "flow": flow}, **(only or {})}
    done = Reconciled()
    wrong: dict[StoreTable, _Wrong] = {}
    for table in {**dict.fromkeys(tables), **dict.fromkeys(expected.tables)}:
        wanted = expected.of(table).survivors()
        scanned = (cells.rows_of_cells(table, rows) for rows in _scanned(store, table, own, place))
        found = _joined([_hashed(table, rows, dead=False) for rows in scanned])
        # A row that ends in the meantime is looked for neither here nor there.
        now_ms = int(clock() * 1000)
        wanted, found = wanted.live(now_ms), found.live(now_ms)
        # Asked after the scan: a partial that is gone for another reason than compaction is behind this.
        begun = compacted_through(store, table)
        wanted, found = wanted.behind(begun), found.behind(begun)
        done.rows += len(wanted.ts)
        differing = _differing(place.signatures(table, wanted), place.signatures(table, found))
        if differing:
            done.batches_differing |= {first + at for at in differing}
            wrong[table] = _Wrong(place.within(table, wanted, differing), place.within(table, found, differing))
    if wrong and newest is not None and (end := newest()) > last:
        later = _Recorder()
        for number in range(last + 1, end + 1):
            applier.apply(read(number), later, Done())
        for table, rows in wrong.items():
            rows.forget(later.of(table).key)
    for rows in wrong.values():
        for kind, keys in rows.kinds().items():
            done.counts[kind] += len(keys)
    done.counts = +done.counts
    if done.counts:
        done.differences = list(_named(wrong, read, place, applier, store, own))
    return done


class _Recorder:
    """Takes what a job writes, and keeps hashes; refuses what every store refuses."""

    def __init__(self) -> None:
        self.tables: dict[StoreTable, list[_Hashed]] = {}

    def write(self, table: StoreTable, rows: pa.RecordBatch) -> None:
        sifted = sift(table, rows, table.schema)
        self.take(table, sifted.rows, dead=False)
        sifted.raise_rejected()

    def update(self, table: StoreTable, rows: pa.RecordBatch) -> None:
        sifted = sift(table, rows, table.update_schema(rows.schema.names))
        self.take(table, sifted.rows, dead=False)
        sifted.raise_rejected()

    def delete(self, table: StoreTable, keys: pa.RecordBatch) -> None:
        sifted = sift(table, keys, table.key_schema)
        self.take(table, sifted.rows, dead=True)
        sifted.raise_rejected()

    def of(self, table: StoreTable) -> _Hashed:
        return _joined(self.tables.get(table, []))

    def take(self, table: StoreTable, rows: pa.RecordBatch, *, dead: bool) -> None:
        self.tables.setdefault(table, []).append(_hashed(table, rows, dead=dead))


class _Finder(_Recorder):
    """Keeps the keys of the rows whose hashes are looked for, in place of hashes."""

    def __init__(self, wanted: Mapping[StoreTable, Array]) -> None:
        super().__init__()
        self.wanted = wanted
        self.rows: dict[tuple[StoreTable, bytes], tuple[dict[str, Any], int]] = {}

    def take(self, table: StoreTable, rows: pa.RecordBatch, *, dead: bool) -> None:
        keys = _hash(rows, table.key)
        chosen = np.flatnonzero(np.isin(keys, self.wanted.get(table, keys[:0])))
        claims = np.asarray(rows.column(_claim(table)))
        for at, row in zip(
            chosen, cells.rows_of_values(table, rows.select(table.key).take(chosen)).to_pylist(), strict=True
        ):
            known = self.rows.get((table, keys[at].tobytes()))
            if known is None or claims[at] >= known[1]:
                self.rows[table, keys[at].tobytes()] = (row, int(claims[at]))


@dataclass(frozen=True, slots=True)
class _Hashed:
    """Rows as columns, equally long: hashes of key and values (`_PAIR`), what tells their batch (`_claim`), write
    timestamp, whether it deletes, and when the row ends, in milliseconds since 1970.
    """

    key: Array
    values: Array
    claim: Array
    ts: Array
    dead: Array
    ends: Array

    def take(self, at: Array) -> _Hashed:
        return _Hashed(self.key[at], self.values[at], self.claim[at], self.ts[at], self.dead[at], self.ends[at])

    def live(self, now_ms: int) -> _Hashed:
        """The rows that have not ended."""
        return self.take(np.flatnonzero(self.ends > now_ms))

    def behind(self, batch: int) -> _Hashed:
        """The rows whose claim is a later batch, where a batch is compacted; 0: all."""
        return self.take(np.flatnonzero(self.claim > batch)) if batch else self

    def survivors(self) -> _Hashed:
        """The live rows after all writes: of one key the newest, of equally new ones a deletion."""
        order = np.lexsort((self.dead, self.ts, self.key["two"], self.key["one"]))
        rows = self.take(order)
        last = np.ones(len(order), dtype=np.bool_)
        last[:-1] = rows.key[1:] != rows.key[:-1]
        return rows.take(np.flatnonzero(last & ~rows.dead))


@dataclass(frozen=True, slots=True)
class _Place:
    """The range: batch ``first`` + i holds commits ``borders[i]`` + 1 .. ``borders[i + 1]``."""

    first: int
    borders: Array

    def bounds(self, table: StoreTable) -> tuple[int, int]:
        """The smallest and the largest claim of the range."""
        if _claim(table) == "batch":
            return self.first, self.first + len(self.borders) - 2
        return int(self.borders[0]) + 1, int(self.borders[-1])

    def batch_of(self, table: StoreTable, claims: Array) -> Array:
        """Positions of batches in the range, from 0."""
        if _claim(table) == "batch":
            return claims - self.first
        return np.searchsorted(self.borders, claims, side="left") - 1

    def signatures(self, table: StoreTable, rows: _Hashed) -> Array:
        """For each batch the number of rows and the exclusive or of their four hashes."""
        of = self.batch_of(table, rows.claim)
        found = np.zeros((len(self.borders) - 1, 5), dtype=np.uint64)
        np.add.at(found[:, 0], of, np.uint64(1))
        # With their values alone, two rows that swap them would have the signature of those that do not.
        mixed = rows.key["one"] | np.uint64(1)
        # A row of another item of the batch is another row, also where its values are the same.
        item = rows.claim.view(np.uint64) * _MIX
        ones, twos = (rows.values["one"] ^ item) * mixed, (rows.values["two"] ^ item) * mixed
        parts = (rows.key["one"], rows.key["two"], ones, twos)
        for at, hashes in enumerate(parts, 1):
            np.bitwise_xor.at(found[:, at], of, hashes)
        return found

    def within(self, table: StoreTable, rows: _Hashed, batches: list[int]) -> _Hashed:
        """The rows of these batches."""
        return rows.take(np.flatnonzero(np.isin(self.batch_of(table, rows.claim), batches)))


@dataclass(slots=True)
class _Wrong:
    """The rows of differing batches: as they should be, and as they are."""

    wanted: _Hashed
    found: _Hashed

    def forget(self, keys: Array) -> None:
        """Leave these keys out."""
        self.wanted = self.wanted.take(np.flatnonzero(~np.isin(self.wanted.key, keys)))
        self.found = self.found.take(np.flatnonzero(~np.isin(self.found.key, keys)))

    def kinds(self) -> dict[str, Array]:
        """Key hashes by the kind of difference."""
        both, mine, other = np.intersect1d(self.wanted.key, self.found.key, return_indices=True)
        unequal = self.wanted.values[mine] != self.found.values[other]
        unequal |= self.wanted.claim[mine] != self.found.claim[other]
        return {
            "missing": np.setdiff1d(self.wanted.key, self.found.key),
            "surplus": np.setdiff1d(self.found.key, self.wanted.key),
            "differs": both[unequal],
        }


def _differing(one: Array, other: Array) -> list[int]:
    found: list[int] = np.flatnonzero(np.any(one != other, axis=1)).tolist()
    return found


def _scanned(
    store: ClaimedStore, table: StoreTable, own: Mapping[str, Mapping[str, Any]], place: _Place
) -> Iterator[pa.RecordBatch]:
    """The job's own rows in a table that claim a batch of the range."""
    low, high = place.bounds(table)
    for rows in store.scan(table):
        claims = rows.column(_claim(table))
        kept = pc.and_(pc.greater_equal(claims, low), pc.less_equal(claims, high))
        # Timestamp 0: a row of another cluster's log in an adopted store, whose numbers say nothing here.
        kept = pc.and_(kept, pc.greater(rows.column(WRITE_TS), 0))
        for name, value in own.get(table.name, {}).items():
            kept = pc.and_(kept, pc.equal(rows.column(name), value))
        chosen = rows.filter(kept)
        if chosen.num_rows:
            yield chosen


def _named(
    wrong: Mapping[StoreTable, _Wrong],
    read: Callable[[int], FlowBatch],
    place: _Place,
    applier: Applier,
    store: ClaimedStore,
    own: Mapping[str, Mapping[str, Any]],
) -> Iterator[Difference]:
    """Find the keys behind the hashes: those that should be by deriving the batches again, the others by a scan."""
    kinds = {
        table: {kind: keys[:DIFFERENCES_MAX] for kind, keys in rows.kinds().items()} for table, rows in wrong.items()
    }
    should = _Finder({table: np.concatenate([by["missing"], by["differs"]]) for table, by in kinds.items()})
    batches = np.unique(np.concatenate([place.batch_of(table, rows.wanted.claim) for table, rows in wrong.items()]))
    for at in batches.tolist():
        applier.apply(read(place.first + at), should, Done())
    there = _Finder({table: by["surplus"] for table, by in kinds.items()})
    for table in kinds:
        for rows in _scanned(store, table, own, place):
            there.take(table, cells.rows_of_cells(table, rows), dead=False)
    left = DIFFERENCES_MAX
    for table, by in kinds.items():
        for kind, keys in by.items():
            rows_of = there.rows if kind == "surplus" else should.rows
            for key in keys[: max(left, 0)]:
                if (table, key.tobytes()) not in rows_of:
                    continue  # It has ended since.
                row, claim = rows_of[table, key.tobytes()]
                yield Difference(kind, table.name, place.first + int(place.batch_of(table, np.array(claim))), row)
            left -= len(keys)


def _hashed(table: StoreTable, rows: pa.RecordBatch, *, dead: bool) -> _Hashed:
    unknown = dead or table.partial
    values = np.zeros(rows.num_rows, _PAIR) if unknown else _hash(rows, [column.name for column in table.values])
    ends = np.full(rows.num_rows, _NEVER)
    if table.expires and not dead:
        ends = np.asarray(rows.column(table.expires).fill_null(_NEVER))
    claim, ts = np.asarray(rows.column(_claim(table))), np.asarray(rows.column(WRITE_TS))
    return _Hashed(_hash(rows, table.key), values, claim, ts, np.full(rows.num_rows, dead), ends)


def _claim(table: StoreTable) -> str:
    """The column that tells a row's batch. A replay gives rows another timestamp, but only where their key tells it."""
    numbers = {column.name for column in table.columns if column.type is ColumnType.INT64}
    return next((name for name in ("batch", "commit") if name in table.key and name in numbers), WRITE_TS)


def _hash(rows: pa.RecordBatch, names: Iterable[str]) -> Array:
    """Two hashes of 64 bits a row in cell form, the same in every process."""
    out = np.zeros(rows.num_rows, _PAIR)
    for name in names:
        column = rows.column(name)
        coded = None if pa.types.is_integer(column.type) else column.cast(pa.binary()).dictionary_encode("encode")
        for half, (salt, number) in _SALTS.items():
            if coded is None:
                found = pd.util.hash_array(np.asarray(column.fill_null(0)).view(np.uint64) ^ number)
                found[np.asarray(column.is_null())] = number
            else:
                distinct = np.array(coded.dictionary.to_pylist(), dtype=object)
                found = pd.util.hash_array(distinct, hash_key=salt, categorize=False)[np.asarray(coded.indices)]
            out[half] = (out[half] ^ found) * _MIX
            out[half] ^= out[half] >> np.uint64(29)
    return out


def _joined(parts: list[_Hashed]) -> _Hashed:
    numbers = np.zeros(0, np.int64)
    empty = _Hashed(np.zeros(0, _PAIR), np.zeros(0, _PAIR), numbers, numbers, np.zeros(0, np.bool_), numbers)
    names = [one.name for one in fields(_Hashed)]
    return _Hashed(*(np.concatenate([getattr(part, name) for part in (empty, *parts)]) for name in names))
