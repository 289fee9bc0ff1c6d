"""The check of a whole history: each key by itself, within limits.

Owns: the partition by key, how limits are shared out, and the verdict over all keys.

Read next: :mod:`oncegate.proof.lincheck.search`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from oncegate.proof.lincheck.collections import AppendList, GrowSet, Queue
from oncegate.proof.lincheck.decide import decide
from oncegate.proof.lincheck.explain import explain
from oncegate.proof.lincheck.history import Operation
from oncegate.proof.lincheck.lease import Lease
from oncegate.proof.lincheck.models import CasRegister, Counter, Model, Mutex, Register
from oncegate.proof.lincheck.row import Row
from oncegate.proof.lincheck.search import Found, checked
from oncegate.proof.lincheck.values import freeze
from oncegate.proof.lincheck.verdict import Failure, Limits, Result, Verdict, worst

MODELS: Final[dict[str, Model]] = {
    model.name: model
    for model in (Register(), CasRegister(), Counter(), AppendList(), GrowSet(), Queue(), Mutex(), Lease(), Row())
}
"""Models by their names."""
FAILURES_MAX: Final = 20
"""Keys of which failures are told."""


def split(operations: Iterable[Operation], model: Model) -> list[tuple[Any, list[Operation]]]:
    """Return the operations of each key; of all together if the model is not partitioned."""
    if not model.partitioned:
        return [(None, list(operations))]
    found: dict[Any, tuple[Any, list[Operation]]] = {}
    for op in operations:
        found.setdefault(freeze(op.key), (op.key, []))[1].append(op)
    return list(found.values())


def check(operations: Iterable[Operation], model: Model, limits: Limits = Limits()) -> Result:  # noqa: B008
    """Decide whether a history is linearizable.

    Args:
        operations: of the whole history, in any order.
        model: what they mean.
        limits: for all keys together.

    Returns:
        ``unknown`` with its reason when a limit came first; other keys may have failed nevertheless.

    Raises:
        ModelError: an operation is none of the model's.
    """
    kept = checked(model, operations)
    parts = sorted(split(kept, model), key=lambda part: len(part[1]))
    return over_keys("linearizable", model, parts, limits, partial(decide, model), partial(explain, model))


def over_keys(
    level: str,
    model: Model,
    parts: Sequence[tuple[Any, list[Operation]]],
    limits: Limits,
    judge: Callable[[list[Operation], Limits], Found],
    tell: Callable[[Any, list[Operation], Found, Limits], Failure],
) -> Result:
    """Judge each key by itself, with its share of what is left of the limits, and add the verdicts up.

    Args:
        level: what is asked of a history, in a word.
        model: what its operations mean.
        parts: the operations of each key, as :func:`split` returns them.
        limits: for all keys together.
        judge: decides about one key's operations.
        tell: makes a failure out of an invalid one.
    """
    ends = limits.clock() + limits.seconds
    verdicts: list[Verdict] = []
    failures: list[Failure] = []
    reasons: list[str] = []
    visited = most = 0
    for number, (key, part) in enumerate(parts):
        left = len(parts) - number
        share = replace(
            limits,
            states_max=max(1, (limits.states_max - visited) // left),
            seconds=max(0.0, (ends - limits.clock()) / left),
        )
        found = judge(part, share)
        verdicts.append(found.verdict)
        visited += found.visited
        most = max(most, found.bytes)
        if found.verdict == "invalid" and len(failures) < FAILURES_MAX:
            # The first proof may take its time; a history that is broken everywhere must not take many times as much.
            brief = share if not failures else replace(share, seconds=min(1.0, share.seconds))
            failures.append(tell(key, part, found, brief))
        elif found.verdict == "unknown":
            reasons.append(f"key {key}: {found.reason}" if model.partitioned else found.reason)
    return Result(
        name=f"{level} {model.name}",
        verdict=worst(verdicts),
        operations=sum(len(part) for _, part in parts),
        keys=len(parts),
        failures=failures,
        reason="; ".join(reasons[:FAILURES_MAX]),
        states_visited=visited,
        bytes_estimated=most,
    )
