"""Patterns of events by key: A then B within a time, and A without B within a time; by Spark's own stateful operator.

Owns: the rules, when each event is settled, and the frame of matches. `settle` is pure; the rest is Spark's: state by
key in the checkpoint, event-time timers, watermark. Read next: `oncegate.spark_sink.table_sink`.

Everything is in event time, in the order of (time, commit number), whatever order events come in. An event A is settled
when the watermark has passed its first B, or the end of its time: by then all events up to there have come, but for
those that are later than ``lateness_ms``, which Spark leaves out. So matches depend on the events alone, not on
micro-batches. Events before 1970 count as late.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import LongType, StringType, StructField, StructType

from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.library.events import TIME_MS_MAX, Int64s
from oncegate.stores.errors import StoreCode
from oncegate.stores.tables import Clustering, Column, ColumnType, StoreTable

NO_COMMIT: Final = 0
"""`second_commit` of a match that says that no B came."""
_RULES_MAX: Final = 62
_STATE: Final = "version int, events string"
"""Of a key: the version of the form, 1, and JSON: a list for each field of `Events`. Spark 4.3 takes no arrays here."""
_STATE_VERSION: Final = 1
_TIME: Final = "oncegate_event_time"
_NUMBERS: Final = ("first_commit", "first_ms", "second_commit", "second_ms")
ROCKSDB: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}
"""Settings of a session that keeps state on disk instead of in the JVM's memory; set them before the query starts."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What to look for after an event of kind ``first``.

    Args:
        name: stands in the matches.
        first: kind of the event that opens it.
        second: kind of the event that is waited for, the next one behind the first.
        within_ms: at most so long after it.
        absent: match when it does not come, instead of when it does.
    """

    name: str
    first: str
    second: str
    within_ms: int
    absent: bool = False


class Events(NamedTuple):
    """Events of one key, equally long columns in order of (at, commit).

    ``open``: bit i is set while rule i waits for what follows the event.
    """

    at: Int64s
    commit: Int64s
    kind: Any
    open: Int64s


class Match(NamedTuple):
    """A rule that an event fulfilled; the second commit is `NO_COMMIT` for an absence, its time the end of the wait."""

    rule: str
    first_commit: int
    first_ms: int
    second_commit: int
    second_ms: int


def match_table(name: str, keys: Iterable[Column]) -> StoreTable:
    """Return the table for the matches of `patterns`; ``keys`` are columns of its ``keys``."""
    keys = tuple(keys)
    return StoreTable(
        name=name,
        columns=(*keys, Column("rule", ColumnType.TEXT), *(Column(one, ColumnType.INT64) for one in _NUMBERS)),
        partition_key=tuple(column.name for column in keys),
        clustering=(Clustering("rule"), Clustering("first_commit")),
    )


def patterns(
    events: DataFrame, rules: Sequence[Rule], *, keys: Sequence[str] = ("key",), lateness_ms: int
) -> DataFrame:
    """Return the matches of a stream of events: the columns ``keys`` and those of `Match`, for the mode `append`.

    Args:
        events: columns ``keys``, `kind` (string), `at_ms` and `commit` (bigint); commit numbers are distinct in a key.
        rules: at most 62.
        keys: the events of each are looked at by themselves.
        lateness_ms: how much later than the latest event of the flow an event may come; matches wait for so long.

    Raises:
        SinkError: BAD_OPTION.
    """
    if not 1 <= len(rules) <= _RULES_MAX or len({rule.name for rule in rules}) != len(rules):
        raise SinkError(StoreCode.BAD_OPTION, f"patterns need 1..{_RULES_MAX} rules of different names")
    if lateness_ms < 0 or any(not 0 <= rule.within_ms <= TIME_MS_MAX for rule in rules):
        raise SinkError(StoreCode.BAD_OPTION, f"lateness_ms is not negative, within_ms is 0..{TIME_MS_MAX}")
    missing = {*keys, "kind", "at_ms", "commit"} - set(events.columns)
    if missing:
        raise SinkError(StoreCode.BAD_OPTION, f"events lack the columns {sorted(missing)}")
    kept = tuple(rules)

    def step(key: tuple[Any, ...], parts: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        matches = _advance(kept, parts, state)
        if matches:
            yield pd.DataFrame([(*key, *match) for match in matches], columns=[*keys, *Match._fields])

    types = [StructField("rule", StringType()), *(StructField(name, LongType()) for name in _NUMBERS)]
    output = StructType([*(events.schema[name] for name in keys), *types])
    timed = events.withColumn(_TIME, sql.timestamp_millis("at_ms")).withWatermark(_TIME, f"{lateness_ms} milliseconds")
    return timed.groupBy(*keys).applyInPandasWithState(
        step, output, _STATE, "append", GroupStateTimeout.EventTimeTimeout
    )


def settle(rules: Sequence[Rule], events: Events, through: int) -> tuple[list[Match], Events, int | None]:
    """Settle what can be when all events up to the time ``through`` are known.

    Returns:
        The matches; the events that are still needed; when to look again, None: none is needed.
    """
    matches: list[Match] = []
    still, soonest = events.open.copy(), None
    place = np.arange(len(events.at))
    for number, rule in enumerate(rules):
        bit = 1 << number
        waiting = np.flatnonzero(events.open & bit)
        seconds = np.append(np.flatnonzero(events.kind == rule.second), len(place))
        following = seconds[np.searchsorted(seconds, waiting, side="right").clip(max=len(seconds) - 1)]
        ends = events.at[waiting] + rule.within_ms
        next_at = np.append(events.at, TIME_MS_MAX + 1)[following]
        came = next_at <= ends
        settled_at = np.where(came, next_at, ends)
        done = settled_at <= through
        still[waiting[done]] &= ~bit
        for one, then, at, there in zip(waiting[done], following[done], settled_at[done], came[done], strict=True):
            if there != rule.absent:
                commit = int(events.commit[then]) if there else NO_COMMIT
                matches.append(Match(rule.name, int(events.commit[one]), int(events.at[one]), commit, int(at)))
        if not done.all():
            first = int(settled_at[~done].min())
            soonest = first if soonest is None else min(soonest, first)
    needed = np.flatnonzero((still != 0) | (events.at > through))
    if soonest is None and len(needed):
        # A second of the future, which a first may still need that comes before the watermark does.
        soonest = int(events.at[needed].max())
    return matches, Events(events.at[needed], events.commit[needed], events.kind[needed], still[needed]), soonest


def ordered(rules: Sequence[Rule], known: Events, at: Int64s, commit: Int64s, kind: Any) -> Events:
    """Return known and new events together, in order; a new one opens the rules that begin with its kind."""
    opened = np.zeros(len(at), np.int64)
    used = np.zeros(len(at), np.bool_)
    for number, rule in enumerate(rules):
        opened |= np.where(kind == rule.first, 1 << number, 0)
        used |= (kind == rule.first) | (kind == rule.second)
    new = Events(at[used], commit[used], kind[used], opened[used])
    joined = [np.concatenate(pair) for pair in zip(known, new, strict=True)]
    order = np.lexsort((joined[1], joined[0]))
    return Events(*(column[order] for column in joined))


def _advance(rules: Sequence[Rule], parts: Iterator[pd.DataFrame], state: GroupState) -> list[Match]:
    """One call of Spark's operator for one key: new events, or a timer."""
    events = _decoded(state.get) if state.exists else _decoded((_STATE_VERSION, "[[],[],[],[]]"))
    if not state.hasTimedOut:
        for part in parts:
            at, commit = (part[name].to_numpy(np.int64) for name in ("at_ms", "commit"))
            events = ordered(rules, events, at, commit, part["kind"].to_numpy(object))
    matches, left, soonest = settle(rules, events, state.getCurrentWatermarkMs())
    if soonest is not None:
        state.update((_STATE_VERSION, json.dumps([column.tolist() for column in left])))
        state.setTimeoutTimestamp(soonest)
    elif state.exists:
        state.remove()
    return matches


def _decoded(held: tuple[int, str]) -> Events:
    version, text = held
    if version != _STATE_VERSION:
        raise SinkError(
            StoreCode.CURSOR_MISMATCH, f"the checkpoint holds patterns of version {version}: rebuild under a new name"
        )
    types = (np.int64, np.int64, object, np.int64)
    return Events(*(np.array(column, kind) for column, kind in zip(json.loads(text), types, strict=True)))
