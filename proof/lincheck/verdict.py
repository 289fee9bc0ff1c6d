"""What a check says: valid, invalid with its failures, or unknown with a reason.

Owns: the results of all checks, and the limits that a check keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

Verdict = Literal["valid", "invalid", "unknown"]
FAILURES_MAX: Final = 20
"""Failures that a result lists."""


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One reason why a history is not valid; numbers are indexes of operations."""

    key: Any = None
    prefix: list[int] = msgspec.field(default_factory=list)
    """The longest order of operations that was found good."""
    stuck: list[int] = msgspec.field(default_factory=list)
    """Operations of which one had to come next, and none could."""
    window: list[int] = msgspec.field(default_factory=list)
    """Few operations that do not fit together by themselves."""
    states: list[str] = msgspec.field(default_factory=list)
    """States in which the object can have been when the window begins."""
    words: list[str] = msgspec.field(default_factory=list)
    """The proof, a sentence an item."""


class Failures:
    """Collects failures: the first ``FAILURES_MAX`` are listed, the others only counted."""

    def __init__(self) -> None:
        self.listed: list[Failure] = []
        self.count = 0

    def add(self, failure: Failure) -> None:
        """Take one more."""
        self.count += 1
        if len(self.listed) < FAILURES_MAX:
            self.listed.append(failure)


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """Verdict of one check."""

    name: str
    verdict: Verdict
    operations: int = 0
    keys: int = 0
    failures: list[Failure] = msgspec.field(default_factory=list)
    reason: str = ""
    """Why the verdict is unknown, in whole or in part."""
    states_visited: int = 0
    bytes_estimated: int = 0
    """Most memory that a search held at one time, roughly."""


def _no_clock() -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one check; over any of them the verdict is unknown."""

    states_max: int = 5_000_000
    """States visited, over all keys."""
    seconds: float = 60.0
    clock: Callable[[], float] = _no_clock
    """Seconds of a monotonic clock; the default stands still, so that time is no limit."""
    bytes_max: int = 2 * 2**30
    """Memory of one search, estimated."""


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return invalid if any is, else unknown if any is, else valid."""
    found = set(verdicts)
    if "invalid" in found:
        return "invalid"
    return "unknown" if "unknown" in found else "valid"
