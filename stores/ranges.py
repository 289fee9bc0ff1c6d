"""Reads of a part of one partition, cut into slices that both databases answer alike. Pure.

Owns: what a range is, and its slices: rows that agree in the first columns of the key, with bounds of the next one.
Must not know a database. Read next: `store`.

Example: a table ((user), day, number), after the row (day 5, number 9): the rows of day 5 with a number over 9, then
those of days over 5. A multi-column comparison would do in one database, and in the other not for mixed directions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from oncegate.stores import cells
from oncegate.stores.column_types import AnyType, name_of
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.tables import StoreTable

LIMIT_MAX: Final = 100_000
"""Rows of one call."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A value of the column, and how it compares: `>`, `>=`, `<` or `<=`."""

    name: str
    comparison: str
    value: Any


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows whose key has these values, within the bounds of the key's next column, in or against the table's order."""

    equal: Mapping[str, Any]
    bounds: tuple[Bound, ...]
    reverse: bool

    @property
    def conditions(self) -> list[tuple[str, str, Any]]:
        """Column, comparison and value of each condition."""
        equal = [(name, "=", value) for name, value in self.equal.items()]
        return [*equal, *((bound.name, bound.comparison, bound.value) for bound in self.bounds)]


def slices(
    table: StoreTable,
    prefix: Mapping[str, Any],
    start: Any,
    stop: Any,
    after: Mapping[str, Any] | None,
    *,
    limit: int,
    reverse: bool,
) -> Iterator[Slice]:
    """Yield the slices of a range, in its order; see `Store.range`.

    Raises:
        StoreError: BAD_ROWS, when ``prefix`` or ``after`` has other columns than it may have, or there is no column
            that could be bound; BAD_OPTION, when ``limit`` is out of bounds.
    """
    if not 1 <= limit <= LIMIT_MAX:
        raise StoreError(StoreCode.BAD_OPTION, f"the limit of a range is 1..{LIMIT_MAX} rows")
    key = table.key
    if set(prefix) != set(key[: len(prefix)]) or len(prefix) < len(table.partition_key):
        raise StoreError(
            StoreCode.BAD_ROWS, f"a range of {table.name} is in one partition: the first columns of {', '.join(key)}"
        )
    if (start is not None or stop is not None) and len(prefix) == len(key):
        raise StoreError(StoreCode.BAD_ROWS, f"a whole key of {table.name} leaves no column to be bound")
    kinds = {column.name: column.type for column in table.columns}
    equal = {name: normal(kinds[name], prefix[name]) for name in key[: len(prefix)]}
    if len(prefix) == len(key):
        if after is None:
            yield Slice(equal, (), reverse)
        return
    first = key[len(prefix)]
    kind = kinds[first]
    outer = [Bound(first, how, normal(kind, one)) for how, one in ((">=", start), ("<", stop)) if one is not None]
    if after is None:
        yield Slice(equal, tuple(outer), reverse)
        return
    given = zip(key, table.key_values({name: after[name] for name in key if name in after}), strict=True)
    last = {name: normal(kinds[name], value) for name, value in given}
    descending = {column.name for column in table.clustering if column.descending}
    for at in reversed(range(len(prefix), len(key))):
        name = key[at]
        bounds = [Bound(name, "<" if (name in descending) != reverse else ">", last[name])]
        if at == len(prefix):
            # A database takes one bound on a side: of two the tighter one.
            beyond = bounds.pop()
            same = next((one for one in outer if one.comparison[0] == beyond.comparison[0]), None)
            bounds = [one for one in outer if one is not same]
            bounds.append(beyond if same is None or not _tighter(kind, same, beyond) else same)
        yield Slice({**equal, **{one: last[one] for one in key[len(prefix) : at]}}, tuple(bounds), reverse)


def normal(kind: AnyType, value: Any) -> Any:
    """Return a value as a store gives it back; raises BAD_ROWS for one of another type."""
    try:
        return cells.array_of([value], kind)[0].as_py()
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as fault:
        raise StoreError(
            StoreCode.BAD_ROWS, f"a value of a key is no {name_of(kind)}: {type(fault).__name__}"
        ) from None


def _tighter(kind: AnyType, one: Bound, other: Bound) -> bool:
    found = cells.sortable(cells.cells_of(cells.array_of([one.value, other.value], kind), kind)[0], kind).to_pylist()
    return bool(found[0] > found[1] if one.comparison[0] == ">" else found[0] < found[1])
