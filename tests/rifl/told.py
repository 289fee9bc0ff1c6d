"""Verdicts of the apply rule in the short form that tests compare."""

from __future__ import annotations

from typing import assert_never

from oncegate.gateway.machine.results import AppliedPart
from oncegate.rifl.range_rule import NewPart, RefusedPart, ReplayPart
from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.rule import EXECUTE, Execute, Refusal, Replay, Verdict


def forgotten(tracker: ResultTracker, sequence: int) -> Execute:
    """Drop what is known of an operation, as a bug would that then executes it again without a trace."""
    if tracker._records is not None:
        tracker._records.pop(sequence, None)
    tracker.first_incomplete = min(tracker.first_incomplete, sequence)
    return EXECUTE


def name_of(verdict: Verdict) -> str:
    """EXECUTE, REPLAY or the refusal's name."""
    match verdict:
        case Execute() | Refusal():
            return verdict.name
        case Replay():
            return "REPLAY"
        case _:
            assert_never(verdict)


def part_told(part: NewPart | AppliedPart | ReplayPart | RefusedPart) -> tuple[int, int, str, int]:
    """First, last, name and the first commit number, 0 if there is none."""
    match part:
        case NewPart(first, last):
            return first, last, "EXECUTE", 0
        case AppliedPart(first, last, commit):
            return first, last, "EXECUTE", commit
        case ReplayPart(first, last, commit):
            return first, last, "REPLAY", commit
        case RefusedPart(first, last, refusal):
            return first, last, refusal.name, 0
        case _:
            assert_never(part)
