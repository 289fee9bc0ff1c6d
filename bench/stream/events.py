"""What an event is, what the job makes of events, and the recount of all of them. Pure.

Each caller writes its events one after the other (or range after range), numbered from 1, so its events enter the log
in the order of their numbers. The job keeps for each flow batch which numbers of each caller were in it, as runs of
consecutive numbers. Nothing else is needed to say of each single event whether it came, and how often: a number that
no run covers is lost, one that two runs cover came twice. Row for row this is exact, and 55 million events leave some
hundred thousand rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from oncegate.spark_sink.derivation import Change, FlowBatch, Upsert
from oncegate.stores.tables import WRITE_TS, Clustering, Column, ColumnType, StoreTable

Int64s = npt.NDArray[np.int64]
TABLE: Final = "events"
CONSUMER: Final = "event-runs"
CALLER_DIGITS: Final = 4
NUMBER_DIGITS: Final = 10
RUNS: Final = StoreTable(
    name="event_runs",
    columns=tuple(Column(name, ColumnType.INT64) for name in ("caller", "batch", "ordinal", "first", "last")),
    partition_key=("caller",),
    clustering=(Clustering("batch"), Clustering("ordinal")),
)
"""Events of a caller in a batch: the numbers ``first`` to ``last``; ``ordinal`` counts the runs of both."""


class Runs(NamedTuple):
    """Runs of consecutive numbers, columns of equal length."""

    caller: Int64s
    first: Int64s
    last: Int64s

    @classmethod
    def joined(cls, parts: Iterable[Runs]) -> Runs:
        """Return all runs of several batches."""
        kept = [cls(*(np.zeros(0, np.int64) for _ in cls._fields)), *parts]
        return cls(*(np.concatenate(columns) for columns in zip(*kept, strict=True)))


class Recount(NamedTuple):
    """What a recount found of events: acknowledged ones, and those of them that are lost, twice; others, unknown.

    ``twice`` counts each further time that an event came.
    """

    acknowledged: int
    found: int
    lost: int
    twice: int
    unknown: int

    @property
    def exact(self) -> bool:
        """Whether each acknowledged event came once, and no other."""
        return not (self.lost or self.twice or self.unknown) and self.found == self.acknowledged


def key_of(caller: int, number: int) -> str:
    """Return the key of an event."""
    return f"{caller:0{CALLER_DIGITS}}-{number:0{NUMBER_DIGITS}}"


def numbers_of(keys: pa.Array) -> tuple[Int64s, Int64s]:
    """Return caller and number of each key.

    Raises:
        ValueError: a key is no event's.
    """
    parts = (pc.utf8_slice_codeunits(keys, 0, CALLER_DIGITS), pc.utf8_slice_codeunits(keys, CALLER_DIGITS + 1))
    caller, number = (np.asarray(part.cast(pa.int64()), dtype=np.int64) for part in parts)
    return caller, number


def runs_of(caller: Int64s, number: Int64s) -> Runs:
    """Return the runs of events in the order in which they came; each caller's are looked at by themselves."""
    order = np.argsort(caller, kind="stable")
    caller, number = caller[order], number[order]
    if not len(caller):
        return Runs(caller, number, number)
    breaks = (np.diff(caller) != 0) | (np.diff(number) != 1)
    begins = np.concatenate([[0], np.flatnonzero(breaks) + 1])
    ends = np.concatenate([begins[1:], [len(caller)]]) - 1
    return Runs(caller[begins], number[begins], number[ends])


def derive(batch: FlowBatch) -> Iterator[Change]:
    """Yield the runs of a batch."""
    runs = runs_of(*numbers_of(batch.items.column("key")))
    # Runs of one caller stand together: an ordinal is the distance to the first of them.
    _, begins, counts = np.unique(runs.caller, return_index=True, return_counts=True)
    ordinal = np.arange(len(runs.caller)) - np.repeat(begins, counts)
    same = np.full(len(runs.caller), batch.number, np.int64)
    stamp = np.full(len(runs.caller), batch.last_commit, np.int64)
    columns = {
        "caller": runs.caller, "batch": same, "ordinal": ordinal, "first": runs.first, "last": runs.last,
        WRITE_TS: stamp,
    }  # fmt: skip
    yield Upsert(RUNS, pa.RecordBatch.from_arrays([pa.array(one) for one in columns.values()], schema=RUNS.schema))


def recount(acknowledged: Mapping[int, int], runs: Runs, begins: Mapping[int, int] | None = None) -> Recount:
    """Return what became of the events 1 .. n of each caller.

    Args:
        acknowledged: n by caller.
        runs: of everything that was found.
        begins: the first number of each caller that could be found; 1 where nothing is said.
    """
    known = begins or {}
    expected = sum(max(0, count - known.get(caller, 1) + 1) for caller, count in acknowledged.items())
    found = int((runs.last - runs.first + 1).sum())
    covered = inside = 0
    order = np.lexsort((runs.first, runs.caller))
    for caller, positions in _by_caller(runs.caller[order], order):
        last = np.maximum.accumulate(runs.last[positions])
        # What a run has beyond all runs that begin before it: each number counts once.
        first = np.maximum(runs.first[positions], np.concatenate([[np.iinfo(np.int64).min], last[:-1] + 1]))
        covered += _length(first, last)
        inside += _length(np.maximum(first, known.get(caller, 1)), np.minimum(last, acknowledged.get(caller, 0)))
    return Recount(expected, found, expected - inside, found - covered, covered - inside)


def _length(first: Int64s, last: Int64s) -> int:
    return int(np.maximum(0, last - first + 1).sum())


def _by_caller(callers: Int64s, positions: npt.NDArray[np.intp]) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    names, begins = np.unique(callers, return_index=True)
    if len(names):  # nothing would be split into one empty part
        yield from zip(names.tolist(), np.split(positions, begins[1:]), strict=True)
