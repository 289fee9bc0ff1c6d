"""Rows that travel together against one list of rows: what became of each, however they are cut and told."""

from __future__ import annotations

import random
from itertools import groupby, pairwise
from typing import Any

import pytest

from oncegate import OperationFailed, OutcomeUnknown, PartialFailure, WriteResult
from oncegate.gateway.client.batch import (
    TOLD,
    BatchPlace,
    OperationsBatch,
    Pending,
    PlaceFate,
    RangeBatch,
    RowPromise,
    RowsCollector,
)
from oncegate.gateway.client.results import ManyResult, RowsPart
from oncegate.gateway.wire import Operation
from oncegate.rifl.errors import Code, Outcome
from oncegate.rifl.ids import ClientId, RequestId, SequenceNumber

OWNER = ClientId(7)


class Told:
    """A caller that notes what it is told, once."""

    def __init__(self) -> None:
        self.ends: list[Any] = []

    def done(self) -> bool:
        return bool(self.ends)

    def set_result(self, result: Any, /) -> None:
        self.ends.append(result)

    set_exception = set_result


def _cut(dice: random.Random, count: int) -> list[range]:
    """Cut rows 0..``count`` - 1 into adjacent parts."""
    edges = sorted({0, count, *(dice.randint(0, count) for _ in range(dice.randint(0, 5)))})
    return [range(low, high) for low, high in pairwise(edges)]


@pytest.mark.parametrize("seed", range(60))
def test_put_many_tells_once_and_with_its_last_row_what_became_of_all(seed: int) -> None:
    """Parts come in any order; they are one in the result exactly if nothing lies between their commit numbers."""
    dice, count, first = random.Random(seed), random.Random(seed).randint(1, 12), 20
    caller, fate = Told(), dict[int, tuple[int, bool] | OperationFailed]()
    collector = RowsCollector(OWNER, count, caller)
    row, at, given, fails = RowPromise(collector), 100, 0, seed % 2
    cut = _cut(dice, count)
    if dice.random() < 0.5:
        dice.shuffle(cut)
    failures = list[OperationFailed]()
    for part in cut:
        assert not caller.ends, "a row has no fate yet"
        at, replayed = at + dice.choice((0, 0, 0, 1, 9)), dice.random() < 0.3
        if seed % 4 == 0:  # others have taken as many numbers as the rows between
            at = 100 + part.start
        if fails and dice.random() < 0.5:
            kind = dice.choice((OperationFailed, OutcomeUnknown))
            outcome = Outcome.UNKNOWN if kind is OutcomeUnknown else Outcome.NOT_APPLIED
            failure = kind(
                Code.QUOTA,
                f"part {part.start}",
                request_id=RequestId(OWNER, SequenceNumber(first + part.start)),
                outcome=outcome,
                retry_after_ms=part.start,
            )
            if isinstance(failure, OutcomeUnknown):
                failure.resolver = object()  # type: ignore[assignment]
            failures.append(failure)
            fate |= dict.fromkeys(part, failure)
            if dice.random() < 0.5:
                collector.fail(len(part), failure)
            else:
                for _ in part:
                    row.set_exception(failure)
            continue
        fate |= {one: (at + one - part.start, replayed) for one in part}
        given = dice.randint(0, 10**6)
        low, high = SequenceNumber(first + part.start), SequenceNumber(first + part.stop - 1)
        if dice.random() < 0.5:
            collector.add(RowsPart(low, high, at, replayed), given)
        else:
            for one in part:
                commit, number = at + one - part.start, SequenceNumber(first + one)
                row.set_result(WriteResult(OWNER, number, True, commit, commit, None, replayed, given))
        at += len(part)
    (end,) = caller.ends
    applied = sum(not isinstance(one, OperationFailed) for one in fate.values())
    if not failures:
        pairs = [(one, fate[one]) for one in range(count)]
        assert isinstance(end, ManyResult)
        assert (end.client_id, end.first, end.last) == (OWNER, first, first + count - 1)
        assert (end.commit, end.replayed) == (fate[0][0], all(one[1][1] for one in pairs))  # type: ignore[index]
        rows = [(n, p.commit + n - p.first, p.replayed) for p in end.parts for n in range(p.first, p.last + 1)]
        assert rows == [(first + one, *fate[one]) for one in range(count)]  # type: ignore[misc]
        if cut == sorted(cut, key=lambda part: part.start):
            runs = [*groupby(rows, key=lambda one: (one[1] - one[0], one[2]))]
            assert len(end.parts) == len(runs)
        assert end.memory_ms_left == given
        return
    worst = next((one for one in failures if one.outcome is Outcome.UNKNOWN), failures[0])
    assert (end.code, end.detail, end.request_id) == (worst.code, worst.detail, worst.request_id)
    assert (end.outcome, end.retry_after_ms) == (worst.outcome, worst.retry_after_ms)
    assert isinstance(end, OutcomeUnknown) == isinstance(worst, OutcomeUnknown)
    if isinstance(worst, OutcomeUnknown):
        assert end.resolver is worst.resolver
    assert isinstance(end, PartialFailure) == (applied > 0)
    if isinstance(end, PartialFailure):
        assert (end.applied, end.failed) == (applied, count - applied)


@pytest.mark.parametrize("seed", range(40))
def test_parts_of_a_batch_carry_each_row_once_with_its_number_and_whoever_waits(seed: int) -> None:
    dice, count = random.Random(seed), random.Random(seed).randint(2, 17)
    first, alone = dice.randint(1, 900), seed % 2 == 0
    callers = [Told() for _ in range(count)]
    operations = [Operation(first + at, "put", "events", f"k{at}", value=at) for at in range(count)]
    pendings = [
        Pending(*pair, 100.0 + at) for at, pair in enumerate(zip(operations, [None] * count, callers, strict=True))
    ]
    collector = RowsCollector(OWNER, count, Told())
    place = BatchPlace(first, count)
    ranged = RangeBatch(
        place=place,
        first=first,
        table="events",
        keys_of_rows=[f"k{at}" for at in range(count)],
        texts=[f"{at}" for at in range(count)],
        deadline=9.0,
        pendings=pendings if alone else None,
        rows=None if alone else collector,
        span="span",
    )
    ranged.touched = {"events": {f"k{at}" for at in range(count)}}
    together = OperationsBatch(pendings, range(first, first + count), {"events": {"all"}})
    pieces: list[Any] = [ranged, together]
    for _ in range(4):
        at = dice.randrange(len(pieces))
        if len(pieces[at]) > 1:
            pieces[at : at + 1] = pieces[at].halves()
    for one in pieces:
        assert len(one) > 0
    ranges = [one for one in pieces if isinstance(one, RangeBatch)]
    rows = [
        row for one in ranges for row in zip(range(one.first, one.last + 1), one.keys_of_rows, one.texts, strict=True)
    ]
    assert rows == [(first + at, f"k{at}", f"{at}") for at in range(count)]
    gone = dice.sample(range(count), dice.randint(0, 2))
    for at in gone:
        callers[at].ends.append(None)
    for one in ranges:
        own = range(one.first - first, one.last + 1 - first)
        assert (one.place, one.table, one.deadline, one.span) == (place, "events", 9.0, "span")
        assert one.keys() == {"events": {f"k{at}" for at in own}}
        assert one.pendings == (pendings[own.start : own.stop] if alone else None)
        assert one.rows is (None if alone else collector)
        assert one.waits == (not alone or not {*own} & {*gone})
    batches = [one for one in pieces if isinstance(one, OperationsBatch)]
    assert [number for one in batches for number in one.sequences] == [*range(first, first + count)]
    assert [pending for one in batches for pending in one.pendings] == pendings
    for one in batches:
        assert len(one.sequences) == len(one)
        assert one.deadline == max(pending.deadline for pending in one.pendings)
        if len(batches) > 1:
            assert one.keys() == {"events": {pending.operation.key for pending in one.pendings}}
    for pending in pendings:
        pending.promise = TOLD
    for one in [] if alone else ranges:
        one.rows = TOLD
    assert all(one.waits for one in ranges), "who was told does not ask"


@pytest.mark.parametrize("seed", range(60))
def test_place_is_given_up_for_one_doubt_and_given_back_only_if_no_row_came(seed: int) -> None:
    dice, count = random.Random(seed), random.Random(seed).randint(1, 9)
    place, noted = BatchPlace(1, count), list[PlaceFate]()
    for part in _cut(dice, count):
        assert place.fate() is None, "a row of it waits"
        fate, waits = (
            dice.choice([*PlaceFate] if seed % 3 else [PlaceFate.COMPLETE, PlaceFate.RELEASE]),
            dice.random() < 0.9,
        )
        place.note(len(part), fate, waits=waits)
        noted.append(fate if waits else PlaceFate.ABANDON)
    strongest = [PlaceFate.ABANDON, PlaceFate.UNCLAIMED, PlaceFate.COMPLETE, PlaceFate.RELEASE]
    assert place.fate() is min(noted, key=strongest.index)


def test_row_of_a_put_many_that_ends_as_nobody_expects_is_told_as_an_internal_error() -> None:
    """Whatever it is, the caller is told once, with all that is known of the other rows."""
    caller = Told()
    collector = RowsCollector(OWNER, 2, caller)
    row = RowPromise(collector)
    row.set_exception(ZeroDivisionError("odd"))
    assert not caller.ends
    row.set_result(WriteResult(OWNER, SequenceNumber(1), True, 5, 5, None, False, 0))
    (end,) = caller.ends
    assert isinstance(end, PartialFailure)
    assert (end.code, end.detail, end.applied, end.failed) == (Code.INTERNAL, "odd", 1, 1)
