"""Planted bugs of runs of puts: one record for many operations, which are asked for, acknowledged and saved apart.

What runs are says docs/decisions/0045-runs-of-puts.md. Read next: :mod:`oncegate.proof.mutants.mutant`.
"""

from __future__ import annotations

from oncegate.gateway.machine.state import session_images
from oncegate.gateway.machine.state.layout import encode_session
from oncegate.proof.mutants.mutant import plants
from oncegate.rifl import result_tracker as tracker_module
from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.result_tracker import ResultTracker

_KILLS = {"kill": 8, "kill several": 4, "power loss": 4, "break": 3}
_SAVED = {"save_every": 10}
_record_of = tracker_module._record_of


@plants("run-record-of-another", "runs", (tracker_module, "_record_of"))
def middle_as_last(part, sequence):
    """An operation inside of a run is answered with the commit number of the run's last one."""
    record = _record_of(part, sequence)
    if not part.first < sequence < part.last:
        return record
    return CompletionRecord(record.fingerprint, part.commit_of(part.last), None, record.traceparent)


@plants("ack-drops-rest-of-run", "runs", (tracker_module, "_from"), start=6)
def drops_cut_runs(parts, first):
    """An acknowledgement inside of a run or range drops all of its record."""
    return [part for part in parts if part.first >= first] or None


@plants("snapshot-without-runs", "runs", (session_images, "encode_session"), kinds=_KILLS, fixed=_SAVED)
def forgets_runs(session, tracker):
    """A saved state holds single records, and no runs: they are executed again after a restart."""
    known = tracker.first_incomplete, tracker.highest, dict(tracker.kept_singly), list(tracker.ranges)
    return encode_session(session, ResultTracker.restore(session.window, *known))
