"""How histories are judged: by a model, or by an invariant of the workload's own.

Owns: limits of a check, the selection of the events that a check looks at, and the result of an invariant. Pure but
for the clock that bounds a search. The checker itself: :mod:`oncegate.proof.lincheck`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from oncegate.proof.check.plan import PROCESSES_MAX
from oncegate.proof.check.recorder import LANES
from oncegate.proof.lincheck import MODELS, Failure, Limits, Operation, Result, check

CHECK_S: Final = 60.0
STATES_MAX: Final = 5_000_000
FAILURES_MAX: Final = 20
"""Violations told one by one; the rest is counted."""


def linearizable(
    found: Sequence[Operation], model: str, fs: Sequence[str], *, name: str | None = None, seconds: float = CHECK_S
) -> Result:
    """Check the operations ``fs`` of a history against a model, each key by itself.

    Args:
        found: the operations of the whole history, so that results name them by the same indexes as everybody does.
        model: a name of :data:`oncegate.proof.lincheck.MODELS`.
        fs: what is looked at; other operations do not touch the model's objects.
        name: of the result; the model's by default.
        seconds: limit of the search; beyond it the verdict is unknown.
    """
    limits = Limits(states_max=STATES_MAX, seconds=seconds, clock=time.monotonic)
    result = check([op for op in found if op.f in fs], MODELS[model], limits)
    return msgspec.structs.replace(result, name=name or f"linearizable {model}")


class Findings:
    """Collects violations of one invariant.

    Args:
        name: of the result.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.looked_at = 0
        self.keys: set[Any] = set()
        self._failures: list[Failure] = []
        self._more = 0
        self._undecided = ""

    def saw(self, key: Any, count: int = 1) -> None:
        """Note that operations were looked at."""
        self.looked_at += count
        self.keys.add(key)

    def violated(self, key: Any, words: str, involved: Sequence[Operation] = ()) -> None:
        """Note a violation in words, with the operations that show it."""
        if len(self._failures) >= FAILURES_MAX:
            self._more += 1
            return
        indexes = [operation.index for operation in involved]
        failure = Failure(key=key, prefix=[], stuck=indexes, window=indexes, states=[], words=[words])
        self._failures.append(failure)

    def undecided(self, reason: str) -> None:
        """Note that something could not be looked at: the verdict is unknown unless something was violated."""
        self._undecided = self._undecided or reason

    def result(self) -> Result:
        """Return the verdict: valid if nothing was violated and everything was looked at."""
        reason = f"{self._more} more violations are not listed" if self._more else self._undecided
        return Result(
            name=self.name,
            verdict="invalid" if self._failures else "unknown" if self._undecided else "valid",
            operations=self.looked_at,
            keys=len(self.keys),
            failures=self._failures,
            reason=reason,
            states_visited=0,
        )


def is_final(operation: Operation) -> bool:
    """Whether an operation is one of the reads after healing."""
    return operation.process % LANES >= PROCESSES_MAX


def by_key(found: Iterable[Operation], chosen: Callable[[Operation], bool]) -> dict[Any, list[Operation]]:
    """Return the chosen operations by their key."""
    grouped: dict[Any, list[Operation]] = {}
    for operation in found:
        if chosen(operation):
            grouped.setdefault(operation.key, []).append(operation)
    return grouped
