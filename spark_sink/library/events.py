"""Items as events: the fields of their JSON values as Arrow columns, with the time at which each event happened. Pure.

Owns: which item is an event, and the bounds of its fields. Must not know windows or stores. Read next: `event_clock`,
`windows`.

All values of a batch are decoded by one call, in C; item by item only where one of them is no event. On one core that
is about two million events a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from oncegate.spark_sink.derivation import ERROR_CHARACTERS_MAX, Change, FlowBatch, Reject, Upsert
from oncegate.spark_sink.errors import SinkError
from oncegate.stores.errors import StoreCode
from oncegate.stores.tables import WRITE_TS, Column, ColumnType, StoreTable

Int64s = npt.NDArray[np.int64]

TIME_MS_MAX: Final = 2**53
"""Times are within ± this many milliseconds of 1970: 285,000 years."""
VALUE_MAX: Final = 2**40
"""Numbers that are added up are within ± this, so that a sum of eight million of them is still an int64."""

_KEY_TYPES: Final = {
    int: (ColumnType.INT64, Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]),
    str: (ColumnType.TEXT, str),
}


@dataclass(frozen=True, slots=True)
class EventFields:
    """Which fields of an item's value make the event; others are ignored. `events_by` makes it.

    Args:
        keys: column, type and field of what events are grouped by.
        at: name of the field that says when it happened, an integer; empty: the cluster's time of the write.
        unit_ms: how many milliseconds one of ``at`` is: 1000 for seconds.
        sums: column and field of what is added up, integers within ± `VALUE_MAX`.
        ahead_ms_max: an event that claims to be later than the write by more than this is refused. Without it one wrong
            time in the far future ends all windows.
        where: a field and its value: items whose field has another one are passed over, neither counted nor refused.

    Raises:
        SinkError: BAD_OPTION.
    """

    keys: tuple[tuple[str, type[int | str], str], ...]
    at: str
    unit_ms: int = 1
    sums: tuple[tuple[str, str], ...] = ()
    ahead_ms_max: int | None = None
    where: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        if not self.keys or any(kind not in _KEY_TYPES for _, kind, _ in self.keys):
            raise SinkError(StoreCode.BAD_OPTION, "events are grouped by at least one field, an int or a str")
        if not 1 <= self.unit_ms <= TIME_MS_MAX:
            raise SinkError(StoreCode.BAD_OPTION, f"unit_ms is 1..{TIME_MS_MAX}")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the key columns."""
        return tuple(name for name, _, _ in self.keys)

    @property
    def sum_names(self) -> tuple[str, ...]:
        """Names of the columns that are added up."""
        return tuple(name for name, _ in self.sums)

    def columns(self) -> tuple[Column, ...]:
        """Return the key columns."""
        return tuple(Column(name, _KEY_TYPES[kind][0]) for name, kind, _ in self.keys)


def events_by(
    keys: Mapping[str, type[int | str] | tuple[type[int | str], str]],
    *,
    at: str,
    unit_ms: int = 1,
    sums: Iterable[str] | Mapping[str, str] = (),
    ahead_ms_max: int | None = None,
    where: tuple[str, str] | None = None,
) -> EventFields:
    """Return the declaration of events: `EventFields`, with its arguments.

    A field whose name is no column's is named beside it: ``keys={"user_id": (str, "userId")}``, ``sums={"n": "N"}``.
    """
    typed = [(name, *(kind if isinstance(kind, tuple) else (kind, name))) for name, kind in keys.items()]
    summed = sums.items() if isinstance(sums, Mapping) else ((name, name) for name in sums)
    return EventFields(tuple(typed), at, unit_ms, tuple(summed), ahead_ms_max, where)


@dataclass(frozen=True, slots=True)
class Events:
    """The events of a batch, in commit order, and the items that are none.

    Attributes:
        keys: key columns, by name.
        at_ms: when they happened, int64.
        sums: int64, by name.
        position: of their items in the batch.
        rejected: an item without a value (a deletion), or whose value lacks a field or has another type.
    """

    keys: Mapping[str, pa.Array]
    at_ms: Int64s
    sums: Mapping[str, Int64s]
    position: Int64s
    rejected: tuple[Reject, ...]


def events_of(batch: FlowBatch, fields: EventFields) -> Events:
    """Return the events of ``batch``."""
    raw: list[bytes | None] = batch.items.column("value").cast(pa.binary()).to_pylist()
    position, rejected = np.arange(len(raw)), dict[int, str]()
    if fields.where is not None:
        field, value = fields.where
        kinds, position = _decoded(raw, position, _kind_decoders(field), rejected)
        position = position[np.fromiter((kind.value == value for kind in kinds), np.bool_, len(kinds))]
    found, position = _decoded(raw, position, _decoders(fields), rejected)
    written_ms = np.asarray(batch.items.column("time_ms"))[position]
    at_ms = _integers(found, "at") * fields.unit_ms if fields.at else written_ms
    keys = {
        name: pa.array([getattr(one, f"k{at}") for one in found], _KEY_TYPES[kind][0].arrow)
        for at, (name, kind, _) in enumerate(fields.keys)
    }
    sums = {name: _integers(found, f"s{at}") for at, (name, _) in enumerate(fields.sums)}
    if fields.ahead_ms_max is not None:
        ahead = at_ms - written_ms > fields.ahead_ms_max
        rejected |= dict.fromkeys(position[ahead].tolist(), f"{fields.at} is later than the write")
        kept = np.flatnonzero(~ahead)
        keys = {name: column.take(pa.array(kept)) for name, column in keys.items()}
        sums = {name: column[kept] for name, column in sums.items()}
        at_ms, position = at_ms[kept], position[kept]
    commits = np.asarray(batch.items.column("commit"))
    return Events(keys, at_ms, sums, position, tuple(Reject(int(commits[at]), why) for at, why in rejected.items()))


def upserts(batch: FlowBatch, table: StoreTable, columns: Mapping[str, Any]) -> Iterator[Change]:
    """Yield the writes of rows that derive from the whole batch: ``columns`` are all but `write_ts`, equally long."""
    count = len(next(iter(columns.values())))
    stamped = {**columns, WRITE_TS: np.full(count, batch.last_commit)}
    arrays = [pa.array(stamped[field.name], field.type) for field in table.schema]
    rows = pa.RecordBatch.from_arrays(arrays, schema=table.schema)
    for begin in range(0, count, batch.rows_max):
        yield Upsert(table, rows.slice(begin, batch.rows_max))


def _decoded(
    raw: list[bytes | None], position: Int64s, decoders: tuple[Any, Any], rejected: dict[int, str]
) -> tuple[list[Any], Int64s]:
    """The structs of the values at these positions, and the positions; those that are none go to ``rejected``."""
    whole, each = decoders
    chosen = raw if len(position) == len(raw) else [raw[at] for at in position.tolist()]
    try:
        # Each value is JSON by itself: the gateway has seen to it. So commas between them make one array.
        found = whole(b"[" + b",".join(chosen) + b"]")  # type: ignore[arg-type]
        if len(found) == len(chosen):
            return found, position
    except (TypeError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    found, good = [], []
    for at in position.tolist():
        value = raw[at]
        try:
            found.append(each(b"" if value is None else value))
            good.append(at)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            rejected[at] = "deleted: no value" if value is None else str(error)[:ERROR_CHARACTERS_MAX]
    return found, np.array(good, np.int64)


@cache
def _kind_decoders(field: str) -> tuple[Any, Any]:
    struct = msgspec.defstruct("Kind", [("value", Any, None)], rename={"value": field}, frozen=True, gc=False)
    return msgspec.json.Decoder(list[struct]).decode, msgspec.json.Decoder(struct).decode  # type: ignore[valid-type]


@cache
def _decoders(fields: EventFields) -> tuple[Any, Any]:
    most = TIME_MS_MAX // fields.unit_ms
    wanted: list[tuple[str, Any]] = [(f"k{at}", _KEY_TYPES[kind][1]) for at, (_, kind, _) in enumerate(fields.keys)]
    names = {f"k{at}": field for at, (_, _, field) in enumerate(fields.keys)}
    if fields.at:
        wanted.append(("at", Annotated[int, msgspec.Meta(ge=-most, le=most)]))
        names["at"] = fields.at
    for at, (_, field) in enumerate(fields.sums):
        wanted.append((f"s{at}", Annotated[int, msgspec.Meta(ge=-VALUE_MAX, le=VALUE_MAX)]))
        names[f"s{at}"] = field
    struct = msgspec.defstruct("Event", wanted, rename=names, frozen=True, gc=False)
    return msgspec.json.Decoder(list[struct]).decode, msgspec.json.Decoder(struct).decode  # type: ignore[valid-type]


def _integers(found: list[Any], name: str) -> Int64s:
    return np.fromiter((getattr(one, name) for one in found), np.int64, len(found))
