"""The model of a lease against a search for moments: what can have been when is tried, millisecond by millisecond.

An operation takes effect at one moment between its begin and its end, and the moments of an order never go back. Where
no operation was refused, or none overlaps another, the model says exactly what the search finds; a refusal among others
bounds no moment in the model, which may then take what cannot have been, and never the other way round.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from oncegate.proof.lincheck import MODELS, Operation, check
from oncegate.proof.lincheck.history import refused

MS, TOKENS = 1_000_000, 7
Held = tuple[float, str | None, int]
"""The newest token, the owner, and until when the lease lasts at least."""


def after(held: Held, op: Operation, now: int) -> list[Held]:
    """Do an operation at a moment; nothing if it cannot have had its result then, several if it tells of none."""
    token, owner, until = held
    asker, lasts = op.argument["owner"], now + op.argument.get("ms", 0)
    if op.f == "acquire":
        if refused(op):
            return [held] if owner is not None else []
        if owner not in (None, asker) and now < until:
            return []
        # The model takes tokens for dense: one that nobody was told lies between any two.
        given = [token + 0.25, *range(1, TOKENS)] if op.status == "unknown" else [op.result["token"]]
        return [(new, asker, lasts) for new in given if new > token]
    is_owner = (token, owner) == (op.argument["token"], asker)
    if refused(op):
        return [] if is_owner and now < until else [held]
    if not is_owner:
        return []
    return [(token, None, 0) if op.f == "release" else (token, owner, max(until, lasts))]


def is_possible(ops: list[Operation], held: Held = (0, None, 0), now: int = 0) -> bool:
    if all(op.status == "unknown" for op in ops):
        return True
    last = max(op.returned or op.invoked for op in ops) // MS
    for op in ops:
        left = [other for other in ops if other is not op]
        if any(other.returned is not None and other.returned < op.invoked for other in left):
            continue
        ends = last if op.returned is None else op.returned // MS
        for moment in range(max(now, op.invoked // MS), ends + 1):
            if any(is_possible(left, then, moment) for then in after(held, op, moment)):
                return True
    return False


def histories(seed: int, *, overlap: bool) -> Iterator[list[Operation]]:
    dice, now = random.Random(seed), 0
    while True:
        ops: list[Operation] = []
        now = 0
        for index in range(dice.randint(2, 4)):
            invoked = max(0, now + dice.randint(-3, 1)) if overlap else now + dice.randint(1, 2)
            now = invoked + dice.randint(0, 3)
            owner, token = dice.choice(("ann", "ann", "bob")), dice.choice((1, 1, 1, 2))
            f = dice.choice(("acquire", "acquire", "renew", "renew", "release")) if index else "acquire"
            argument: dict[str, Any] = {"owner": owner} | ({} if f == "release" else {"ms": dice.choice((1, 2, 5))})
            result: Any = {"token": dice.choice((1, index, index + 1, index + 1))} if f == "acquire" else None
            argument |= {} if f == "acquire" else {"token": token}
            if index and dice.random() < 0.25:
                result = {"refused": True}
            if f == "acquire" and dice.random() < 0.3:
                ops.append(Operation(index, index, f, None, argument, None, "unknown", invoked * MS, None))
            else:
                ops.append(Operation(index, index, f, None, argument, result, "ok", invoked * MS, now * MS))
        yield ops


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_lease_is_lost_or_granted_anew_exactly_where_some_moments_allow_it(seed: int, *, overlap: bool) -> None:
    ends = Counter[bool]()
    for _, ops in zip(range(300), histories(seed, overlap=overlap), strict=False):
        possible, valid = is_possible(ops), check(ops, MODELS["lease"]).verdict == "valid"
        if (overlap or any(op.status == "unknown" for op in ops)) and any(map(refused, ops)):
            assert valid or not possible, ops
        else:
            assert valid == possible, ops
            ends[valid] += 1
    assert min(ends[False], ends[True]) > 20
