"""Verdicts of the apply rule in the short form that tests compare."""

from __future__ import annotations

from typing import assert_never

from oncegate.gateway.machine.results import AppliedPart
from oncegate.rifl.range_rule import NewPart, RefusedPart, ReplayPart
from oncegate.rifl.rule import Execute, Refusal, Replay, Verdict


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
