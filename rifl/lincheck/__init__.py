"""Is a history linearizable? Histories, models, the checker and its relatives: pure, no I/O, no clock of its own.

Read :mod:`rifl.lincheck.history` first (what a history is), then :mod:`rifl.lincheck.models` (what operations mean),
:mod:`rifl.lincheck.search` (how an order is found) and :mod:`rifl.lincheck.check` (the whole). Weaker levels:
:mod:`rifl.lincheck.sequential`, :mod:`rifl.lincheck.sessions`; counted effects: :mod:`rifl.lincheck.audit`.
"""

from rifl.lincheck.audit import audit, same_answers
from rifl.lincheck.check import MODELS, check
from rifl.lincheck.history import Event, HistoryError, Operation, line_of, operations, parse_line, read_events
from rifl.lincheck.models import ILLEGAL, Model, ModelError
from rifl.lincheck.sequential import sequential
from rifl.lincheck.sessions import sessions, stale_reads
from rifl.lincheck.verdict import Failure, Limits, Result, Verdict

__all__ = [
    "ILLEGAL",
    "MODELS",
    "Event",
    "Failure",
    "HistoryError",
    "Limits",
    "Model",
    "ModelError",
    "Operation",
    "Result",
    "Verdict",
    "audit",
    "check",
    "line_of",
    "operations",
    "parse_line",
    "read_events",
    "same_answers",
    "sequential",
    "sessions",
    "stale_reads",
]
