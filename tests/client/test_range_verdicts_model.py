"""Verdicts on the parts of a range against the table of what each means: each row, and the place that all rows share.

A range is answered part by part, and what is rejected for now is answered again, until each row has its verdict. Its
rows were written one by one, each with a caller, or together, with one for all.
"""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from oncegate import Code, OperationFailed, Outcome, OutcomeUnknown
from oncegate.gateway.client.batch import GONE, TOLD, BatchPlace, Pending, RangeBatch
from oncegate.gateway.client.fates import SEALED
from oncegate.gateway.client.results import RowsPart, WriteResult
from oncegate.gateway.client.verdicts import SettledAnswer, settle_range
from oncegate.gateway.wire import Operation, RangeResponse, RangeResult
from oncegate.rifl.ids import ClientId
from tests.client.test_verdicts_model import CLIENT, KNOWN, OVER, _code, _detail, _outcome, _why, resolver

LISTS = "completed", "abandoned", "released", "unclaimed"


class Together:
    """The caller of all rows of a ``put_many``."""

    def __init__(self) -> None:
        self.gone = False
        self.parts: list[RowsPart] = []
        self.failures: list[tuple[int, OperationFailed]] = []

    def done(self) -> bool:
        return self.gone

    def add(self, part: RowsPart, memory_ms: int) -> None:
        assert memory_ms == 55
        self.parts.append(part)

    def fail(self, count: int, failure: OperationFailed) -> None:
        self.failures.append((count, failure))


def _parts(dice: random.Random, first: int, last: int, *, final: bool) -> list[RangeResult]:
    """Verdicts on adjacent parts; ``final``: none is for now."""
    edges = sorted({first, last + 1, *(dice.randint(first, last) for _ in range(dice.randint(0, 3)))})
    parts = []
    for low, high in pairwise(edges):
        if dice.random() < 0.4:
            applied = RangeResult(first=low, last=high - 1, status="applied", commit=dice.randint(1, 99))
            applied.replayed = dice.random() < 0.5
            parts.append(applied)
            continue
        told = RangeResult(first=low, last=high - 1, status="rejected", **_why(dice))
        told.retryable = not final and dice.random() < 0.5
        parts.append(told)
    return parts


class Range:
    """The rows of a range, and what is known of each."""

    def __init__(self, loop: asyncio.AbstractEventLoop, dice: random.Random) -> None:
        self.dice, self.first, count = dice, dice.randint(1, 50), dice.randint(1, 8)
        numbers = range(self.first, self.first + count)
        self.place = BatchPlace(self.first, count)
        self.fates: set[str] = set()
        self.left = count
        self.renews = dice.random() < 0.5
        self.callers: dict[int, asyncio.Future[WriteResult]] = {}
        self.together: Any = None
        pendings = None
        if dice.random() < 0.5:
            self.together = Together()
        else:
            pendings = []
            for number in numbers:
                self.callers[number] = loop.create_future()
                pendings.append(Pending(Operation(number, "put", "e", f"k{number}"), None, self.callers[number], 9.0))
                pendings[-1].alone = dice.random() < 0.7
        keys, texts = [f"k{number}" for number in numbers], [f"{number}" for number in numbers]
        self.todo = [
            RangeBatch(
                place=self.place,
                first=self.first,
                table="e",
                keys_of_rows=keys,
                texts=texts,
                deadline=9.0,
                pendings=pendings,
                rows=self.together,
            )
        ]

    def leave(self) -> None:
        """Have some callers go away."""
        for caller in self.callers.values():
            if not caller.done() and self.dice.random() < 0.15:
                caller.cancel()
        for batch in self.todo:
            for one in batch.pendings or ():
                if not one.promise.done() and self.dice.random() < 0.05:
                    one.promise = TOLD  # its deadline has passed, and no attempt can have applied it
        if self.together is not None and self.dice.random() < 0.15:
            self.together.gone = True
        if self.together is not None and self.dice.random() < 0.1:
            for batch in self.todo:
                batch.rows = self.dice.choice((TOLD, GONE))

    def answer(self, *, final: bool) -> None:
        """Answer one call, and hold all that follows against the table."""
        batch = self.todo.pop(0)
        verdicts = _parts(self.dice, batch.first, batch.last, final=final)
        ambiguous = self.dice.random() < 0.4
        rows = batch.rows
        told = rows is TOLD
        gone = {number for number in range(batch.first, batch.last + 1) if self._gone(batch, number)}
        untold = {one.operation.sequence for one in batch.pendings or () if one.waits}
        if self.together is not None:
            self.together.parts, self.together.failures = [], []
        settled = settle_range(
            batch, RangeResponse(verdicts, 55), CLIENT, resolver, ambiguous=ambiguous, renews=self.renews
        )
        late_rows: list[RowsPart] = []
        late: list[int] = []
        parts: list[RangeResult] = []
        commits, over = [0], list[Code]()
        unsent: list[int] = []
        for verdict in verdicts:
            numbers = range(verdict.first, verdict.last + 1)
            if verdict.status == "applied":
                commit: int = verdict.commit  # type: ignore[assignment]
                commits.append(commit + len(numbers) - 1)
                late_rows += self._applied(batch, verdict, commit, gone, told=told)
                self._note(len(numbers), "unclaimed" if gone & {*numbers} else "completed")
                continue
            if verdict.retryable:
                parts.append(verdict)
                continue
            code, outcome = _code(verdict), _outcome(verdict, ambiguous=ambiguous)
            if code in OVER:
                over.append(code)
            waits = (told or not gone) if batch.pendings is None else untold >= {*numbers}
            fate = "released" if outcome is Outcome.NOT_APPLIED and code not in OVER else "abandoned"
            self._note(len(numbers), ("completed" if code in KNOWN else fate) if waits else "abandoned")
            if code in KNOWN and outcome is Outcome.NOT_APPLIED and not waits:
                late += numbers
            goes_on = self.renews and code is Code.SESSION_EXPIRED and outcome is Outcome.NOT_APPLIED
            unsent += self._refused(batch, verdict, code, outcome, gone, goes_on=goes_on)
        assert settled.numbers.late == [(number, SEALED) for number in late]
        assert settled.numbers.late_rows == late_rows
        assert settled.highest_commit == max(commits)
        assert [one.operation.sequence for one in settled.unsent] == unsent
        assert (settled.session_over is None) == (not over)
        assert settled.session_over is None or settled.session_over.code in over
        self._check_rest(batch, settled, parts)
        self.todo[:0] = settled.parts
        self._check_place(settled)

    def _gone(self, batch: RangeBatch, number: int) -> bool:
        if batch.pendings is None:
            assert batch.rows is not None
            return batch.rows.done()
        return batch.pendings[number - batch.first].promise.done()

    def _note(self, count: int, fate: str) -> None:
        self.left -= count
        self.fates.add(fate)

    def _applied(
        self, batch: RangeBatch, verdict: RangeResult, commit: int, gone: set[int], *, told: bool
    ) -> list[RowsPart]:
        """Check what callers of applied rows were told; return what is to be kept, for nobody was."""
        whole = RowsPart(verdict.first, verdict.last, commit, verdict.replayed is True)  # type: ignore[arg-type]
        if batch.pendings is None:
            waits = batch.rows is self.together
            assert not waits or whole in self.together.parts
            return [whole] if gone and not told else []
        kept = []
        for number in range(verdict.first, verdict.last + 1):
            at = commit + number - verdict.first
            if number in gone:
                kept.append(RowsPart(number, number, at, whole.replayed))  # type: ignore[arg-type]
                continue
            result = self.callers[number].result()
            assert (result.client_id, result.sequence, result.applied, result.commit) == (CLIENT, number, True, at)
            assert (result.version, result.value, result.replayed, result.memory_ms_left) == (
                at,
                None,
                whole.replayed,
                55,
            )
        return kept

    def _refused(
        self, batch: RangeBatch, verdict: RangeResult, code: Code, outcome: Outcome, gone: set[int], *, goes_on: bool
    ) -> list[int]:
        """Check what callers of refused rows were told; return the rows that go on in the next session."""
        unsent = []
        if batch.pendings is None:
            waits = batch.rows is self.together
            if waits:
                told = [one for one in self.together.failures if one[1].request_id == (CLIENT, verdict.first)]
                ((count, failure),) = told
                assert count == verdict.last - verdict.first + 1
                _check(failure, verdict.first, code, outcome, _detail(verdict))
            return []
        for number in range(verdict.first, verdict.last + 1):
            pending = batch.pendings[number - batch.first]
            if number in gone:
                continue
            if goes_on and pending.alone:
                unsent.append(number)
                assert not pending.promise.done()
                pending.promise = GONE
                continue
            _check(self.callers[number].exception(), number, code, outcome, _detail(verdict))
            released = code not in (*KNOWN, *OVER) and outcome is Outcome.NOT_APPLIED
            assert pending.operation.sequence == (0 if released else number)
        return unsent

    def _check_rest(self, batch: RangeBatch, settled: SettledAnswer, parts: list[RangeResult]) -> None:
        assert [(one.first, one.last) for one in settled.parts] == [(one.first, one.last) for one in parts]
        for one in settled.parts:
            numbers = range(one.first, one.last + 1)
            assert one.place is self.place
            assert one.rows is batch.rows
            assert [one.keys_of_rows, one.texts] == [[f"k{at}" for at in numbers], [f"{at}" for at in numbers]]
            assert batch.pendings is None or [id(at) for at in one.pendings or ()] == [
                id(batch.pendings[at - batch.first]) for at in numbers
            ]
        assert (settled.again is None) == (not parts)
        if settled.again is not None:
            assert settled.again.ambiguous == any(one.outcome != "not_applied" for one in parts)
            assert settled.again.code == _code(parts[-1])

    def _check_place(self, settled: SettledAnswer) -> None:
        """The place ends once no row waits, and as its least certain row does."""
        told = {name: list(getattr(settled.numbers, name)) for name in LISTS}
        wanted: dict[str, list[int]] = {name: [] for name in LISTS}
        if not self.left:
            order = ("abandoned", "unclaimed", "completed", "released")
            wanted[next(fate for fate in order if fate in self.fates)] = [self.first]
        assert told == wanted


def _check(failure: Any, number: int, code: Code, outcome: Outcome, detail: str) -> None:
    assert isinstance(failure, OperationFailed)
    assert failure.detail == detail
    assert (failure.code, failure.outcome, failure.request_id) == (code, outcome, (CLIENT, number))
    assert isinstance(failure, OutcomeUnknown) == (outcome is Outcome.UNKNOWN)
    assert not isinstance(failure, OutcomeUnknown) or failure.resolver is resolver


@pytest.mark.parametrize("seed", range(300))
def test_each_verdict_means_for_its_rows_and_their_place_what_the_table_says(seed: int) -> None:
    loop = asyncio.new_event_loop()
    try:
        one = Range(loop, random.Random(seed))
        for turn in range(30):
            if not one.todo:
                break
            one.leave()
            one.answer(final=turn > 4)
        assert not one.left
    finally:
        loop.close()


@pytest.mark.parametrize(
    "edges", [[], [(4, 5)], [(4, 5), (7, 8)], [(4, 6), (6, 8)], [(3, 8)], [(4, 9)], [(4, 3), (4, 8)]]
)
def test_parts_that_are_not_those_of_the_range_settle_nothing(edges: list[tuple[int, int]]) -> None:
    rows: Any = Together()
    batch = RangeBatch(
        place=BatchPlace(4, 5), first=4, table="e", keys_of_rows=["k"] * 5, texts=["1"] * 5, deadline=9.0, rows=rows
    )
    parts = [RangeResult(first=low, last=high, status="applied", commit=1) for low, high in edges]
    with pytest.raises(msgspec.ValidationError):
        settle_range(batch, RangeResponse(parts, 55), ClientId(7), ambiguous=False)
    assert not rows.parts
    assert batch.place.left == 5


@pytest.mark.parametrize("together", [False, True])
def test_rows_that_are_called_applied_without_a_commit_number_are_in_doubt_and_not_sent_again(together: bool) -> None:
    loop = asyncio.new_event_loop()
    try:
        rows = Together() if together else None
        caller: asyncio.Future[WriteResult] = loop.create_future()
        alone = None if together else [Pending(Operation(3, "put", "e", "k"), None, caller, 9.0)]
        batch = RangeBatch(
            place=BatchPlace(3, 1),
            first=3,
            table="e",
            keys_of_rows=["k"],
            texts=["1"],
            deadline=9.0,
            pendings=alone,
            rows=rows,  # type: ignore[arg-type]
        )
        verdict = RangeResult(first=3, last=3, status="applied", retryable=True)
        settled = settle_range(batch, RangeResponse([verdict], 55), CLIENT, resolver, ambiguous=False, renews=True)
        assert not settled.parts
        assert settled.again is None
        failure = rows.failures[0][1] if rows else caller.exception()
        assert isinstance(failure, OperationFailed)
        assert (failure.code, failure.outcome) == (Code.INTERNAL, Outcome.UNKNOWN)
    finally:
        loop.close()
