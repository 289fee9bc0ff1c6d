"""The check of a whole history: each key by itself, within limits.

Owns: the partition by key, how limits are shared out, and the verdict over all keys. One key without a good order
decides the history, and some keys are a thousand times harder than others: every key gets a short try first, then those
left undecided a longer one, and so on. After the first invalid key no harder one is tried.

Read next: :mod:`oncegate.proof.lincheck.search`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from oncegate.proof.lincheck.collections import AppendList, GrowSet, Queue
from oncegate.proof.lincheck.explain import explain
from oncegate.proof.lincheck.history import Operation, freeze
from oncegate.proof.lincheck.models import CasRegister, Counter, Lease, Model, Mutex, Register
from oncegate.proof.lincheck.row import RowModel
from oncegate.proof.lincheck.search import SearchOutcome, checked, decide
from oncegate.proof.lincheck.verdict import FAILURES_MAX, Failure, Limits, Result, worst

MODELS: Final[dict[str, Model]] = {
    model.name: model
    for model in (Register(), CasRegister(), Counter(), AppendList(), GrowSet(), Queue(), Mutex(), Lease(), RowModel())
}
"""Models by their names."""
PROOFS_S_MAX: Final = 5.0
"""How long the proofs in words may take, of all invalid keys together."""
_FIRST_TRY: Final = 1_000
_LONGER: Final = 8
"""How many times as many states the next try may visit: what was tried in vain is at most as much again."""


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

    Raises ModelError if an operation is none of the model's.
    """
    kept = checked(model, operations)
    parts = sorted(split(kept, model), key=lambda part: len(part[1]))
    return over_keys("linearizable", model, parts, limits, partial(decide, model), partial(explain, model))


def over_keys(
    level: str,
    model: Model,
    parts: Sequence[tuple[Any, list[Operation]]],
    limits: Limits,
    judge: Callable[[list[Operation], Limits], SearchOutcome],
    tell: Callable[[Any, list[Operation], SearchOutcome, Limits], Failure],
) -> Result:
    """Judge each key by itself, with its share of what is left of the limits, and add the verdicts up.

    The first try looks at every key, so that each plain mistake is found; later tries end at the first invalid key.

    Args:
        level: what is asked of a history, in a word.
        model: what its operations mean.
        parts: the operations of each key, as :func:`split` returns them.
        limits: for all keys together.
        judge: decides about one key's operations.
        tell: makes a failure out of an invalid one.
    """
    ends = limits.clock() + limits.seconds
    found = [SearchOutcome("unknown")] * len(parts)
    waiting = deque((place, 0) for place in range(len(parts)))
    invalid: list[int] = []
    visited = 0
    while waiting and not (invalid and waiting[0][1]):
        place, tries = waiting.popleft()
        left = len(waiting) + 1
        share = max(1, (limits.states_max - visited) // left)
        states_max = share if len(parts) == 1 else min(share, states_of_try(len(parts[place][1]), tries))
        seconds = max(0.0, (ends - limits.clock()) / left)
        now = found[place] = judge(parts[place][1], replace(limits, states_max=states_max, seconds=seconds))
        visited += now.visited
        if now.verdict == "invalid":
            invalid.append(place)
        elif now.verdict == "unknown" and states_max < min(share, now.visited):
            waiting.append((place, tries + 1))
    given_up = {place for place, _ in waiting}
    reasons = [
        f"key {parts[place][0]}: {one.reason}" if model.partitioned else one.reason
        for place, one in enumerate(found)
        if one.verdict == "unknown" and place not in given_up
    ]
    if given_up:
        reasons.append(not_decided(len(given_up), len(parts)))
    return Result(
        name=f"{level} {model.name}",
        verdict=worst(one.verdict for one in found),
        operations=sum(len(part) for _, part in parts),
        keys=len(parts),
        failures=_told([(*parts[place], found[place]) for place in invalid[:FAILURES_MAX]], limits, tell),
        reason="; ".join(reasons[:FAILURES_MAX]),
        states_visited=visited,
        bytes_estimated=max((one.bytes for one in found), default=0),
    )


def states_of_try(operations: int, tries: int) -> int:
    """Return how many states a key of so many operations may visit after so many tries.

    The first try lets an ordinary valid history through: it visits about one state an operation.
    """
    return (_FIRST_TRY + 4 * operations) * int(_LONGER**tries)


def not_decided(keys: int, of: int) -> str:
    """Say that a check ended before it had decided all keys: one was invalid, and that decides the history."""
    return f"{keys} of {of} keys were left undecided: they need over {_FIRST_TRY} states, and one key is invalid"


def _told(
    invalid: Sequence[tuple[Any, list[Operation], SearchOutcome]],
    limits: Limits,
    tell: Callable[[Any, list[Operation], SearchOutcome, Limits], Failure],
) -> list[Failure]:
    """Prove each invalid key; a history that is broken everywhere does not take many times as long as its first key."""
    ends = limits.clock() + min(PROOFS_S_MAX, limits.seconds)
    failures: list[Failure] = []
    for key, part, found in invalid:
        left = max(0.0, ends - limits.clock())
        failures.append(tell(key, part, found, replace(limits, seconds=min(1.0, left) if failures else left)))
    return failures
