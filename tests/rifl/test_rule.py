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
from oncegate.rifl.errors import REGISTRY, Code, InvariantViolation
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
    is_beyond_window,
    is_new_run,
    is_range_beyond_window,
)
from tests.rifl.apply_rule import places

STANDINGS = (Standing.LIVE, Standing.ENDED, Standing.FENCED)
CLIENT = 7
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
            told, accepted = decide_each(fast, operations, ack, stand, execute, CLIENT, "trace")
            expected: list[OpVerdict] = []
            for operation in operations:
                verdict = decide_by_table(Case(operation.sequence, ack, operation.fingerprint, stand, slow))
                if verdict is EXECUTE:
                    expected.append(Applied(operation.sequence, execute(CLIENT, slow, operation, "trace")))
                elif isinstance(verdict, Replay):
                    expected.append(Replayed(operation.sequence, verdict.record))
                else:
                    expected.append(Rejected(operation.sequence, verdict))
            assert told == expected
            assert accepted == sum(not isinstance(verdict, Rejected) for verdict in expected)


def execute(client: int, tracker: ResultTracker, operation: Op, traceparent: str) -> CompletionRecord:
    """Record an operation, with a result so large that two of them use up a session's bytes."""
    assert client == CLIENT
    return tracker.record(operation.sequence, operation.fingerprint, 100 + operation.sequence, Bytes(9), traceparent)


def execute_or_refuse(client: int, tracker: ResultTracker, operation: Op, traceparent: str) -> CompletionRecord | Code:
    """Of three numbers in a row, one is refused for now, one for good, and one is recorded."""
    refused = (None, Code.QUOTA, Code.NOT_FOUND)[operation.sequence % 3]
    return refused or execute(client, tracker, operation, traceparent)


def test_window_is_full_exactly_where_counting_its_places_one_by_one_says_so() -> None:
    for tracker in trackers(4):
        done = {s: (0, 0, object()) for s in tracker.records}
        for part in tracker.ranges:
            done |= dict.fromkeys(range(part.first, part.last + 1), (0, 0, object()))
        for ack in range(1, 7):
            base = max(ack, tracker.first_incomplete)
            held = len({together for s, (_, _, together) in done.items() if s >= base})
            for first in (s for s in range(base, 9) if s not in done):
                full = places(done, base, first, 1) >= tracker.window
                assert is_beyond_window(tracker, first, ack) == full, (tracker, first, ack)
                crowded = held >= tracker.window and any(s not in done for s in range(base, first))
                full = crowded or places(done, base, first, 2) >= tracker.window
                assert is_range_beyond_window(tracker, first, ack) == full, (tracker, first, ack)


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("stand", STANDINGS)
def test_in_order_nothing_new_is_executed_behind_an_operation_that_is_refused_for_now(
    stand: Standing, in_order: bool
) -> None:
    requests = [*product(range(2, 7), repeat=2), (3, 4, 5, 6), (6, 2, 5, 3), (5, 2, 4, 3), (9, 3, 2)]
    for ack, sequences, other in product((1, 3), requests, (False, True)):
        for fast, slow in zip(trackers(2), trackers(2), strict=True):
            operations = [Op(s, OTHER if other and at else s) for at, s in enumerate(sequences)]
            told, accepted = decide_each(fast, operations, ack, stand, execute_or_refuse, CLIENT, "", in_order=in_order)
            expected: list[OpVerdict] = []
            waits = False
            for operation in operations:
                verdict = decide_by_table(Case(operation.sequence, ack, operation.fingerprint, stand, slow))
                if verdict is EXECUTE and waits:
                    verdict = Refusal.BEHIND
                elif verdict is EXECUTE:
                    done = execute_or_refuse(CLIENT, slow, operation, "")
                    if isinstance(done, CompletionRecord):
                        expected.append(Applied(operation.sequence, done))
                        continue
                    verdict = Refusal(done)
                if isinstance(verdict, Replay):
                    expected.append(Replayed(operation.sequence, verdict.record))
                    continue
                assert isinstance(verdict, Refusal)
                waits = waits or (in_order and REGISTRY[verdict.code].retryable)
                expected.append(Rejected(operation.sequence, verdict))
            assert told == expected
            assert accepted == sum(not isinstance(verdict, Rejected) for verdict in expected)


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


def with_runs(numbers: int) -> Iterator[tuple[ResultTracker, ResultTracker]]:
    """Every tracker in which some plain records stand in runs, each with the same one without a run."""
    for window, first, kinds in product((1, 2, 3), (2, 3), product("-apqs", repeat=numbers)):
        records: dict[int, CompletionRecord] = {}
        runs: list[RangeRecord] = []
        highest = first - 1
        for sequence, kind, before in zip(range(2, 2 + numbers), kinds, ("-", *kinds), strict=False):
            if (kind == "q" and before not in "pq") or (kind != "-" and sequence < first):
                break
            highest = highest if kind == "-" else sequence
            if kind == "a":
                records[sequence] = CompletionRecord(sequence, 10 + sequence, Bytes(9))
            elif kind == "s":
                records[sequence] = CompletionRecord(0, SEALED_COMMIT)
            elif kind == "p":
                runs.append(RangeRecord(sequence, sequence, 10 + sequence, sequence.to_bytes(8, "big")))
            elif kind == "q":
                run = runs.pop()
                runs.append(
                    RangeRecord(run.first, sequence, run.commit, run.fingerprints + sequence.to_bytes(8, "big"))
                )
        else:
            if runs:
                short = ResultTracker.restore(window, first, highest, dict(records), [], runs)
                plain = {s: CompletionRecord(s, 10 + s) for run in runs for s in range(run.first, run.last + 1)}
                yield short, ResultTracker.restore(window, first, highest, records | plain, [])


def test_records_in_a_run_are_told_from_single_ones_by_nothing() -> None:
    asked = range(1, 9)
    for short, plain in with_runs(4):
        assert (short.dump(), short.bytes, short.records_count) == (plain.dump(), plain.bytes, plain.records_count)
        assert [short.find(s) for s in asked] == [plain.find(s) for s in asked]
        assert short.open_requests(0, 99) == plain.open_requests(0, 99)
        for sequence, ack in product(asked, (1, 3, 5)):
            for stand, print_ in ((Standing.LIVE, sequence), (Standing.LIVE, OTHER), (Standing.ENDED, sequence)):
                told = [decide(one, sequence, ack, print_, stand) for one in (short, plain)]
                assert told[0] == told[1], (short, sequence, ack)
            prints = b"".join(s.to_bytes(8, "big") for s in range(sequence, sequence + 3))
            ranged = [decide_range(one, sequence, prints, ack, Standing.LIVE) for one in (short, plain)]
            assert ranged[0] == ranged[1], (short, sequence, ack)


def test_a_run_that_is_acknowledged_sealed_beside_or_recorded_twice_is_as_single_records_are() -> None:
    def changed(tracker: ResultTracker, change: str, sequence: int) -> object:
        try:
            if change == "acknowledge":
                tracker.acknowledge(sequence)
            elif change == "seal":
                tracker.seal(sequence)
            else:
                tracker.record(sequence, OTHER, 99)
        except InvariantViolation as broken:
            return str(broken)
        return tracker.dump()

    for change, sequence in product(("acknowledge", "seal", "record"), range(1, 8)):
        for short, plain in with_runs(3):
            assert changed(short, change, sequence) == changed(plain, change, sequence), (short, change, sequence)


@pytest.mark.parametrize("stand", STANDINGS)
def test_a_run_is_executed_at_once_only_where_the_table_executes_each_of_its_operations(stand: Standing) -> None:
    at_once = 0
    for first, count, ack in product(range(1, 8), (1, 2, 3), (1, 2, 4, 6)):
        for fast, slow in zip(trackers(3), trackers(3), strict=True):
            if not is_new_run(fast, first, count, ack, stand):
                continue
            at_once += 1
            for sequence in range(first, first + count):
                assert decide_by_table(Case(sequence, ack, sequence, stand, slow)) is EXECUTE, (slow, first, count, ack)
                slow.record(sequence, sequence, 100 + sequence)
            prints = b"".join(s.to_bytes(8, "big") for s in range(first, first + count))
            fast.record_run(RangeRecord(first, first + count - 1, 100 + first, prints))
            assert (fast.dump(), fast.bytes) == (slow.dump(), slow.bytes)
    assert bool(at_once) == (stand is Standing.LIVE)


def test_what_numbers_alone_prove_to_be_new_is_executed_without_a_look_at_a_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both quick ways are taken wherever they may be: above all that is recorded, and as near as the window is wide."""
    looks: list[int] = []

    def looking(tracker: ResultTracker, sequence: int, ack: int, print_: int, stand: Standing) -> Verdict:
        looks.append(sequence)
        return decide(tracker, sequence, ack, print_, stand)

    monkeypatch.setattr(rule, "decide", looking)
    for first, count, ack, stand in product(range(1, 8), (1, 2, 3), (1, 2, 3, 4, 5), STANDINGS):
        for tracker in trackers(3):
            base = max(ack, tracker.first_incomplete)
            numbers = range(first, first + count)
            new = all(tracker.highest < s < base + tracker.window for s in numbers) and base <= tracker.highest + 1
            quick = stand is Standing.LIVE and new and tracker.bytes <= rule.RECORD_BYTES_MAX
            assert is_new_run(tracker, first, count, ack, stand) == quick, (tracker, first, count, ack)
            if count == 1:
                looks.clear()
                decide_each(tracker, [Op(first, first)], ack, stand, execute, CLIENT, "")
                assert bool(looks) != quick, (tracker, first, ack)


@pytest.mark.parametrize("plain", [True, False])
def test_operations_above_all_that_is_known_and_inside_the_window_are_executed_at_once(plain: bool) -> None:
    tracker = ResultTracker(window=4)
    assert is_new_run(tracker, 1, 4, 1, Standing.LIVE)
    assert not is_new_run(tracker, 1, 5, 1, Standing.LIVE)
    if plain:
        tracker.record(1, 1, 1)
    else:
        tracker.record_run(RangeRecord(1, 1, 1, bytes(8)))
    assert is_new_run(tracker, 2, 3, 1, Standing.LIVE)
    assert is_new_run(tracker, 2, 4, 2, Standing.LIVE)
    assert not is_new_run(tracker, 1, 2, 1, Standing.LIVE)


def test_table_in_the_documents_has_a_row_for_each_condition_in_its_order() -> None:
    lines = rule.table_as_markdown()
    assert "\n".join(["", *lines, ""]) in (Path(__file__).parents[2] / "docs" / "SEMANTICS.md").read_text()
    assert [line.split(" | ")[0] for line in lines[2:]] == [f"| {number}" for number in range(1, len(RULE) + 1)]


def test_each_refusal_is_its_error_s_code_but_for_a_sealed_id_s_and_for_one_behind_another() -> None:
    of_their_own = {Refusal.SEALED: Code.STALE, Refusal.BEHIND: Code.OVERLOADED}
    assert {refusal: refusal.code for refusal in Refusal} == {
        refusal: of_their_own.get(refusal) or Code[refusal.name] for refusal in Refusal
    }
    assert [refusal for refusal in Refusal if not isinstance(refusal.value, Code)] == [Refusal.SEALED]


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
