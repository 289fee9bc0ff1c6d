"""One object's verdict: by sorting where that can tell, else by the search.

Owns: the order in which the means are tried. All of them give the same verdict; tests compare them with trying every
order.
"""

from __future__ import annotations

from collections.abc import Sequence

from oncegate.proof.lincheck.history import Operation
from oncegate.proof.lincheck.models import Model, prepared
from oncegate.proof.lincheck.search import SearchOutcome, search
from oncegate.proof.lincheck.verdict import Limits


def decide(model: Model, operations: Sequence[Operation], limits: Limits) -> SearchOutcome:
    """Decide about one object's operations, with status ``ok`` or ``unknown``."""
    quick = getattr(model, "quick", None)
    clash = None if quick is None else quick(operations)
    if clash is not None:
        return SearchOutcome("invalid", clash=clash) if clash else SearchOutcome("valid")
    refine = getattr(model, "refine", None)
    refined = operations if refine is None else refine(operations)
    for op in refined:
        if op.returned is not None and op.returned < op.invoked:
            return SearchOutcome("invalid", clash=[op])
    return search(prepared(model, refined), refined, limits)
