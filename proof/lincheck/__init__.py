"""Is a history linearizable? Histories, models, the checker and its relatives: pure, no I/O, no clock of its own.

Read :mod:`oncegate.proof.lincheck.history` first (what a history is), then :mod:`oncegate.proof.lincheck.models` (what
operations mean), :mod:`oncegate.proof.lincheck.search` (how an order is found), :mod:`oncegate.proof.lincheck.check`
(the whole). Also :mod:`oncegate.proof.lincheck.levels` (weaker levels), :mod:`oncegate.proof.lincheck.audit` (effects).
"""

from oncegate.proof.lincheck.audit import audit, same_answers
from oncegate.proof.lincheck.check import MODELS, check
from oncegate.proof.lincheck.history import Event, HistoryError, Operation, line_of, operations, parse_line, read_events
from oncegate.proof.lincheck.levels import sequential, sessions, stale_reads
from oncegate.proof.lincheck.models import ILLEGAL, Model, ModelError
from oncegate.proof.lincheck.verdict import Failure, Limits, Result, Verdict

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
