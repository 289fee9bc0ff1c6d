"""Distinct counts, most frequent values and quantiles, by mergeable sketches of Apache DataSketches. Pure.

Owns: which sketch answers what, with which error. Must not know a store. Read next: `aggregates`.

A sketch of a batch is a partial as any other, merged in the order of batches. All three are deterministic: the same
batch makes the same bytes, which a sketch that flips coins (KLL, REQ) does not. What a row counts is in `through` and
`batches`, see `oncegate.spark_sink.compaction.Partials.read`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from oncegate.spark_sink.compaction import Partials
from oncegate.spark_sink.library.aggregates import Aggregate, Result, Summary
from oncegate.spark_sink.library.fields import Field, Kind, agreed
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.tables import Column, ColumnType

SKETCH: Final = "sketch"
_LG_SIZE_MIN, _LG_SIZE_MAX = 4, 21
_K_MIN, _K_MAX = 10, 65_535
Fill: TypeAlias = Callable[[pa.Array, pa.Array], bytes]


def distinct(name: str, by: Sequence[Field], of: Field, *, lg_size: int = 12) -> Aggregate:
    """Return the derivation that estimates how many different values a field has, by key (HyperLogLog).

    `read` gives `estimate`, and `low` and `high`, between which the exact number is with 95 % confidence: about 1.04 /
    sqrt(2^``lg_size``) to either side is one standard error, 1.6 % for 12. Up to about a hundred values it is exact.

    Args:
        name: of the table.
        by: fields of the key, at least one; the first chooses the partition.
        of: a text or a whole number.
        lg_size: a sketch has up to 2^``lg_size`` registers of half a byte, 4 .. 21.

    Raises:
        StoreError: BAD_TABLE, when a name is malformed or repeats, a field is of another kind, or a size is out of
            bounds.
    """
    _check(name, _LG_SIZE_MIN <= lg_size <= _LG_SIZE_MAX and of.kind in (Kind.TEXT, Kind.WHOLE))
    return _sketched(name, by, of, partial(_hll_of, lg_size), partial(_hll_merged, lg_size), _hll_result)


def most_frequent(name: str, by: Sequence[Field], of: Field, *, lg_size: int = 10) -> Aggregate:
    """Return the derivation that finds the most frequent values of a field, by key (Misra-Gries, frequent items).

    `read` gives a list `items` of `value`, `low` and `high`, by falling `high`, at most 0.75 * 2^``lg_size``. The exact
    number is within `low` .. `high`, always; their difference is at most 3.5 / 2^``lg_size`` of all items of the key,
    and every value that is more frequent than that is in the list. Below so many different values all is exact.

    Args:
        name: of the table.
        by: fields of the key, at least one; the first chooses the partition.
        of: a text or a whole number; values are given as text.
        lg_size: a sketch holds up to 0.75 * 2^``lg_size`` values, 4 .. 21.

    Raises:
        StoreError: as `distinct`.
    """
    _check(name, _LG_SIZE_MIN <= lg_size <= _LG_SIZE_MAX and of.kind in (Kind.TEXT, Kind.WHOLE))
    return _sketched(name, by, of, partial(_items_of, lg_size), partial(_items_merged, lg_size), _items_result)


def quantiles(
    name: str, by: Sequence[Field], of: Field, *, ranks: Sequence[float] = (0.5, 0.9, 0.99), k: int = 500
) -> Aggregate:
    """Return the derivation that estimates quantiles of a field, by key (t-digest).

    `read` gives `count`, `least` and `greatest`, exact, and for each rank `q<rank>`, as `q0_99`. The share of items
    below the answer differs from the rank by less than 1 % in all our tests at ``k`` = 500, and by less towards both
    ends; the sketch promises no bound for data made to defeat it.

    Args:
        name: of the table.
        by: fields of the key, at least one; the first chooses the partition.
        of: a number.
        ranks: between 0 and 1.
        k: size of a sketch, up to about 22 * ``k`` bytes, 10 .. 65,535.

    Raises:
        StoreError: as `distinct`.
    """
    _check(name, _K_MIN <= k <= _K_MAX and of.kind in (Kind.WHOLE, Kind.REAL) and all(0 <= rank <= 1 for rank in ranks))
    return _sketched(name, by, of, partial(_digest_of, k), _digest_merged, partial(_digest_result, tuple(ranks)))


def _check(name: str, right: bool) -> None:
    if not right:
        raise StoreError(StoreCode.BAD_TABLE, f"{name}: a size, a rank or the kind of the field is out of bounds")


def _sketched(
    name: str, by: Sequence[Field], of: Field, fill: Fill, merge: Callable[[list[bytes]], bytes], result: Any
) -> Aggregate:
    agreed(*by, of)
    _check(name, of not in by)
    columns = (Column(SKETCH, ColumnType.BLOB),)
    partials = Partials(name, tuple(field.stored() for field in by), columns, partial(_merged, merge))
    summary: Summary = partial(_summary, fill, of.column)
    shown: Result = partial(_shown, result)
    return Aggregate(tuple(by), (of,), partials, summary, shown)


def _summary(fill: Fill, column: str, rows: pa.Table, key: list[str]) -> pa.Table:
    """One sketch for each key, of distinct values and their numbers, in the order of their first items."""
    pairs = rows.group_by([*key, column], use_threads=False).aggregate([([], "count_all")])
    lists = pairs.group_by(key, use_threads=False).aggregate([(column, "list"), ("count_all", "list")])
    values, counts = (lists[f"{name}_list"].combine_chunks() for name in (column, "count_all"))
    sketches = [fill(found.values, number.values) for found, number in zip(values, counts, strict=True)]
    return lists.select(key).append_column(SKETCH, pa.array(sketches, pa.binary()))


def _merged(merge: Callable[[list[bytes]], bytes], rows: pa.Table, key: list[str]) -> pa.Table:
    lists = rows.group_by(key, use_threads=False).aggregate([(SKETCH, "list")])
    sketches = [parts[0] if len(parts) == 1 else merge(parts) for parts in lists[f"{SKETCH}_list"].to_pylist()]
    return lists.select(key).append_column(SKETCH, pa.array(sketches, pa.binary()))


def _shown(result: Callable[[bytes], dict[str, Any]], merged: pa.Table) -> pa.Table:
    found = [result(sketch) for sketch in merged[SKETCH].to_pylist()]
    kept = merged.drop_columns([SKETCH])
    for name in found[0] if found else ():
        kept = kept.append_column(name, pa.array([one[name] for one in found]))
    return kept


# The library is loaded when the first sketch is made: most jobs make none.


def _hll_of(lg_size: int, values: pa.Array, _: pa.Array) -> bytes:
    import datasketches

    sketch = datasketches.hll_sketch(lg_size)
    for value in values.to_pylist():
        sketch.update(value)
    return bytes(sketch.serialize_compact())


def _hll_merged(lg_size: int, parts: list[bytes]) -> bytes:
    import datasketches

    union = datasketches.hll_union(lg_size)
    for part in parts:
        union.update(datasketches.hll_sketch.deserialize(part))
    return bytes(union.get_result(datasketches.tgt_hll_type.HLL_4).serialize_compact())


def _hll_result(sketch: bytes) -> dict[str, Any]:
    import datasketches

    found = datasketches.hll_sketch.deserialize(sketch)
    return {
        "estimate": round(found.get_estimate()),
        "low": int(found.get_lower_bound(2)),
        "high": -int(-found.get_upper_bound(2) // 1),
    }


def _items_of(lg_size: int, values: pa.Array, counts: pa.Array) -> bytes:
    import datasketches

    sketch = datasketches.frequent_strings_sketch(lg_size)
    for value, count in zip(values.to_pylist(), counts.to_pylist(), strict=True):
        sketch.update(str(value), count)
    return bytes(sketch.serialize())


def _items_merged(lg_size: int, parts: list[bytes]) -> bytes:
    import datasketches

    union = datasketches.frequent_strings_sketch(lg_size)
    for part in parts:
        union.merge(datasketches.frequent_strings_sketch.deserialize(part))
    return bytes(union.serialize())


def _items_result(sketch: bytes) -> dict[str, Any]:
    import datasketches

    found = datasketches.frequent_strings_sketch.deserialize(sketch)
    items = found.get_frequent_items(datasketches.frequent_items_error_type.NO_FALSE_NEGATIVES)
    rows = [{"value": value, "low": low, "high": high} for value, _, low, high in items]
    return {"items": sorted(rows, key=lambda row: (-row["high"], row["value"]))}


def _digest_of(k: int, values: pa.Array, counts: pa.Array) -> bytes:
    import datasketches

    sketch = datasketches.tdigest_double(k)
    sketch.update(np.repeat(np.asarray(values, np.float64), np.asarray(counts)))
    return bytes(sketch.serialize())


def _digest_merged(parts: list[bytes]) -> bytes:
    import datasketches

    union, *others = map(datasketches.tdigest_double.deserialize, parts)
    for other in others:
        union.merge(other)
    return bytes(union.serialize())


def _digest_result(ranks: tuple[float, ...], sketch: bytes) -> dict[str, Any]:
    import datasketches

    found = datasketches.tdigest_double.deserialize(sketch)
    exact = {"count": found.get_total_weight(), "least": found.get_min_value(), "greatest": found.get_max_value()}
    return exact | {f"q{rank:g}".replace(".", "_"): found.get_quantile(rank) for rank in ranks}
