"""A run as its folder has it: operations with their ends, faults, verdict.

Owns: reading all of it, once. Read next: :mod:`oncegate.proof.check.report.page`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from oncegate.proof.check.errors import FileMalformed
from oncegate.proof.check.folder import FaultNote, RunFolder, RunInfo, RunVerdict
from oncegate.proof.lincheck.history import Event, HistoryError, Operation, operations


class RecordedRun(NamedTuple):
    """Everything a page tells.

    Attributes:
        info, verdict, faults: as in the folder.
        operations: of the whole history.
        ended: by index of an operation without an answer: when it was given up or refused (ns), and the code.
    """

    info: RunInfo
    verdict: RunVerdict
    faults: list[FaultNote]
    operations: list[Operation]
    ended: dict[int, tuple[int, str | None]]


def recorded(folder: RunFolder) -> RecordedRun:
    """Read the folder.

    Raises:
        FileMissing: no run, no history or no verdict.
        FileMalformed: a file that is not what its name says, or events that do not fit together.
    """
    info, verdict = folder.read_run(), folder.read_verdict()
    events = list(folder.read_history())
    try:
        found = operations(events)
    except HistoryError as bad:
        raise FileMalformed(folder.history, bad.detail.partition(": ")[2], line=bad.line) from bad
    return RecordedRun(info, verdict, folder.read_faults(), found, ends(events))


def ends(events: Sequence[Event]) -> dict[int, tuple[int, str | None]]:
    """Return for every operation that was refused or given up its last end, by index.

    Of an operation with an answer nothing is returned that matters: the answer is its end. Times are line numbers where
    the history has none, as in :func:`oncegate.proof.lincheck.history.operations`.
    """
    timed = any(event.time for event in events)
    running: dict[int, int] = {}
    requests: dict[str, int] = {}
    found: dict[int, tuple[int, str | None]] = {}
    invocations = 0
    for number, event in enumerate(events, 1):
        time = event.time if timed else number
        if event.type == "invoke":
            first = invocations if event.request is None else requests.setdefault(event.request, invocations)
            running[event.process] = first
            invocations += 1
            continue
        index = running.pop(event.process)
        if event.type != "ok" and (index not in found or found[index][0] <= time):
            found[index] = (time, event.error)
    return found
