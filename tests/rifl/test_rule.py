"""The apply rule is its table: every faster way says the same, for all that fits into small windows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

from oncegate.rifl import result_tracker, rule
from oncegate.rifl.completion import SEALED_COMMIT, CompletionRecord, RangeRecord
from oncegate.rifl.range_rule import NewPart, RefusedPart, ReplayPart, decide_range, decide_range_without_session
from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.rule import (
    EXECUTE,
    RULE,
    Applied,
    Case,
    OpVerdict,
    Refusal,
    Rejected,
    Replay,
    Replayed,
    Standing,
    Verdict,
    decide,
    decide_by_table,
    decide_each,
    decide_without_session,
)

STANDINGS = (Standing.LIVE, Standing.ENDED, Standing.FENCED)
OTHER = 99
"""A fingerprint that is no sequence number: that of another payload."""


class Bytes(NamedTuple):
    """A result of a given size."""

    size: int


class Op(NamedTuple):
    """What the rule needs of an operation."""

    sequence: int
    fingerprint: int


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A range counts its gaps in twos; three operations of a range, or two alone, are over the bytes of a session."""
    monkeypatch.setattr(rule, "RANGE_LENGTH_MAX", 2)
    for module in (rule, result_tracker):
        monkeypatch.setattr(module, "RECORD_BYTES_MAX", 17)


def trackers(numbers: int) -> Iterator[ResultTracker]:
    """Every tracker of a window of 1 to 3 in which each of so many numbers is absent, alone, sealed or in a range."""
    for window, first, kinds in product((1, 2, 3), (2,), product("-asrc", repeat=numbers)):
        records: dict[int, CompletionRecord] = {}
        ranges: list[RangeRecord] = []
        for sequence, kind, before in zip(range(first, first + numbers), kinds, ("-", *kinds), strict=False):
            if kind == "c" and before not in "rc":
                break
            if kind in "as":
                commit, size = (10 * sequence, Bytes(9)) if kind == "a" else (SEALED_COMMIT, None)
                records[sequence] = CompletionRecord(sequence, commit, size)
            elif kind == "r":
                ranges.append(RangeRecord(sequence, sequence, 10 * sequence, sequence.to_bytes(8, "big")))
            elif kind == "c":
                part = ranges.pop()
                prints = part.fingerprints + sequence.to_bytes(8, "big")
                ranges.append(RangeRecord(part.first, sequence, part.commit, prints))
        else:
            highest = max([first - 1, *records, *(part.last for part in ranges)])
            yield ResultTracker.restore(window, first, highest, records, ranges)


def test_one_operation_is_decided_as_the_table_says() -> None:
    for tracker in trackers(4):
        for sequence, ack, stand in product(range(1, 9), range(1, 9), STANDINGS):
            for fingerprint in (sequence, OTHER) if tracker.find(sequence) else (sequence,):
                expected = decide_by_table(Case(sequence, ack, fingerprint, stand, tracker))
                assert decide(tracker, sequence, ack, fingerprint, stand) == expected, (tracker, sequence, ack)


@pytest.mark.parametrize("stand", STANDINGS)
def test_request_is_decided_as_the_table_says_of_each_operation_after_the_one_before(stand: Standing) -> None:
    requests = [*product(range(1, 7), repeat=2), (3, 4, 5, 6), (4, 3, 4)]
    for ack, sequences in product((1, 2, 4), requests):
        for fast, slow in zip(trackers(2), trackers(2), strict=True):
            operations = [Op(sequence, sequence) for sequence in sequences]
            told, accepted = decide_each(fast, operations, ack, stand, execute, 1, "")
            expected: list[OpVerdict] = []
            for operation in operations:
                verdict = decide_by_table(Case(operation.sequence, ack, operation.fingerprint, stand, slow))
                if verdict is EXECUTE:
                    expected.append(Applied(operation.sequence, execute(1, slow, operation, "")))
                elif isinstance(verdict, Replay):
                    expected.append(Replayed(operation.sequence, verdict.record))
                else:
                    expected.append(Rejected(operation.sequence, verdict))
            assert told == expected
            assert accepted == sum(not isinstance(verdict, Rejected) for verdict in expected)


def execute(_: int, tracker: ResultTracker, operation: Op, traceparent: str) -> CompletionRecord:
    """Record an operation, with a result so large that two of them use up a session's bytes."""
    return tracker.record(operation.sequence, operation.fingerprint, 100 + operation.sequence, Bytes(9), traceparent)


def by_table(tracker: ResultTracker, prints: dict[int, int], ack: int, stand: Standing) -> list[Verdict]:
    """Walk the table for each operation of a range; the unrecorded ones in a row are judged by the first of them."""
    verdicts: list[Verdict] = []
    run_first: int | None = None
    for sequence, fingerprint in prints.items():
        known = tracker.find(sequence) or sequence < max(ack, tracker.first_incomplete)
        run_first = None if known else run_first or sequence
        verdicts.append(decide_by_table(Case(sequence, ack, fingerprint, stand, tracker, run_first)))
    return verdicts


@pytest.mark.parametrize("stand", STANDINGS)
def test_range_is_decided_as_the_table_says_of_each_of_its_operations(stand: Standing) -> None:
    for tracker in trackers(3):
        for first, length, ack in product(range(1, 7), (1, 2, 4), (1, 3, 4, 7)):
            for changed in (0, first + length // 2):
                prints = {s: OTHER if s == changed else s for s in range(first, first + length)}
                body = b"".join(fingerprint.to_bytes(8, "big") for fingerprint in prints.values())
                parts = decide_range(tracker, first, body, ack, stand)
                assert operations_of(parts) == by_table_told(tracker, prints, ack, stand), (tracker, first, length, ack)


def operations_of(parts: list[NewPart | ReplayPart | RefusedPart]) -> list[tuple[int, object]]:
    """Each operation with EXECUTE, its commit number or what refuses it."""
    told: list[tuple[int, object]] = []
    for part in parts:
        for sequence in range(part.first, part.last + 1):
            match part:
                case NewPart():
                    told.append((sequence, EXECUTE))
                case ReplayPart():
                    told.append((sequence, part.commit + sequence - part.first))
                case RefusedPart():
                    told.append((sequence, part.refusal))
    return told


def by_table_told(
    tracker: ResultTracker, prints: dict[int, int], ack: int, stand: Standing
) -> list[tuple[int, object]]:
    verdicts = by_table(tracker, prints, ack, stand)
    return [
        (sequence, verdict.record.commit if isinstance(verdict, Replay) else verdict)
        for sequence, verdict in zip(prints, verdicts, strict=True)
    ]


def test_without_a_session_or_in_another_tenants_the_table_needs_no_records() -> None:
    for sequence, ack in product(range(1, 5), range(1, 7)):
        absent = decide_by_table(Case(sequence, ack, sequence, Standing.ABSENT, None))
        assert decide_without_session(sequence, ack) is absent
        assert decide_by_table(Case(sequence, ack, sequence, Standing.FOREIGN, None)) is Refusal.FORBIDDEN
        ranged = [decide_by_table(Case(s, ack, s, Standing.ABSENT, None)) for s in range(sequence, sequence + 3)]
        told = operations_of(decide_range_without_session(sequence, sequence + 2, ack))
        assert [refusal for _, refusal in told] == ranged


def test_every_condition_decides_some_case() -> None:
    """A condition that never decides would be a line of the contract that says nothing."""
    cases = [Case(1, 1, 1, standing, None) for standing in (Standing.ABSENT, Standing.FOREIGN)]
    for tracker in trackers(3):
        cases += [Case(s, 1, p, stand, tracker) for s, p, stand in product((1, 2, 3, 7), (3, OTHER), STANDINGS)]
    cases.append(Case(1, 2, 1, Standing.LIVE, None))
    deciding = {next(at for at, condition in enumerate(RULE) if condition.holds(case)) for case in cases}
    assert deciding == set(range(len(RULE)))


def test_rule_is_the_only_place_that_names_a_refusal_of_it() -> None:
    """The machine and the tracker ask the rule; a condition of their own would be a second rule."""
    for module in ("rifl/result_tracker.py", "gateway/machine/machine.py"):
        tree = ast.parse((Path(__file__).parents[2] / module).read_text())
        named = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Refusal"
        }
        assert not named & {"BAD_ACK", "STALE", "SEALED", "PAYLOAD_MISMATCH", "WINDOW_FULL", "SESSION_EXPIRED"}
