"""What planted bugs have in common that execute an operation again: what is known of it has to be dropped first.

:meth:`oncegate.rifl.result_tracker.ResultTracker.record` raises where a record would be overwritten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.rule import EXECUTE, Execute, Verdict, decide


def forgotten(tracker: ResultTracker, sequence: int) -> Execute:
    """Drop what is known of an operation, as a bug would that then executes it again without a trace."""
    if tracker._records is not None:
        tracker._records.pop(sequence, None)
    tracker.first_incomplete = min(tracker.first_incomplete, sequence)
    return EXECUTE


def executes(wrong: object) -> Callable[..., Verdict]:
    """Return the rule with a bug: what gets this verdict is executed, as if nothing were known of it."""

    def mutated(tracker: ResultTracker, sequence: int, *how: Any) -> Verdict:
        verdict = decide(tracker, sequence, *how)
        return forgotten(tracker, sequence) if verdict is wrong or type(verdict) is wrong else verdict

    return mutated


class DropsTooEarly(ResultTracker):
    """A bug: first incomplete is taken for an inclusive ack."""

    def acknowledge(self, first_incomplete: int) -> None:
        super().acknowledge(first_incomplete)
        if self._records is not None:
            self._records.pop(first_incomplete, None)
