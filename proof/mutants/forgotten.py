"""How a planted bug executes an operation again: what is known of it has to be dropped first.

:meth:`oncegate.rifl.result_tracker.ResultTracker.record` raises where a record would be overwritten.
"""

from __future__ import annotations

from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.rule import EXECUTE, Execute


def forgotten(tracker: ResultTracker, sequence: int) -> Execute:
    """Drop what is known of an operation, as a bug would that then executes it again without a trace."""
    if tracker._records is not None:
        tracker._records.pop(sequence, None)
    tracker.first_incomplete = min(tracker.first_incomplete, sequence)
    return EXECUTE
