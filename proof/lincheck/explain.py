"""Why a history is not linearizable, in few operations.

Owns: the longest good prefix, and a window that is a proof: operations that do not fit together although every other
operation is let go. To let an operation go is to forget its result and its end (it may have happened at any time after
its invocation, or never), which makes any history easier to order; a read that is let go is gone. Where that leaves
many operations, a proof begins at a moment when nothing was running, from all states that were possible then: nothing
before it is let go.

Read next: :mod:`oncegate.proof.lincheck.sentences`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from oncegate.proof.lincheck.history import Operation
from oncegate.proof.lincheck.models import ILLEGAL, Model, changes_nothing, describe, prepared
from oncegate.proof.lincheck.search import SearchOutcome, decide, endings, search
from oncegate.proof.lincheck.sentences import no_proof, proof
from oncegate.proof.lincheck.verdict import Failure, Limits

T = TypeVar("T")
_STATES_MAX: Final = 10_000
"""States of one try; a try that ends in unknown proves nothing."""
_STATES_IN_ALL_MAX: Final = 400_000
_OPERATIONS_IN_ALL_MAX: Final = 2_000_000
"""Operations looked at, over all tries: a bound also where the clock stands still."""
_WINDOW_MAX: Final = 8
"""Operations of a window that is not worth another way to shorten it."""
_SECONDS_MAX: Final = 5.0
_LAST: Final = (2, 4, 8, 16, 32, 64, 128, 256, 1024)
"""How many of the last operations are tried as a first window."""


def explain(model: Model, key: Any, operations: Sequence[Operation], found: SearchOutcome, limits: Limits) -> Failure:
    """Explain why one object's operations, which ``found`` calls invalid, have no good order."""
    task = _Task(model, list(operations), limits)
    window = task.among(found.clash)
    starts: list[Hashable] = []
    moment = 0
    task.cut()
    if window is None or len(window) > _WINDOW_MAX:
        window, starts, moment = task.window()
    order, stuck = task.longest(found, operations)
    if found.clash and hasattr(model, "reasons") and len(window or operations) > _WINDOW_MAX:
        window, starts = found.clash, []
    if window is None:
        window = stuck[:_WINDOW_MAX]
        words = no_proof(window, len(order))
    else:
        words = proof(model, window, operations, starts, moment)
    return Failure(
        key=key,
        prefix=[op.index for op in order],
        stuck=[op.index for op in stuck],
        window=[op.index for op in window],
        states=[describe(model, state) for state in starts],
        words=words,
    )


def let_go(model: Model, op: Operation) -> Operation | None:
    """Return the operation without its result and its end; None if nothing is left of it."""
    loose = msgspec.structs.replace(op, status="unknown", returned=None, result=None)
    return None if changes_nothing(model, loose) else loose


class _Task:
    def __init__(self, model: Model, operations: list[Operation], limits: Limits) -> None:
        self.model = model
        self.ops = sorted(operations, key=lambda op: op.invoked)
        self.clock = limits.clock
        self.limits = replace(limits, states_max=_STATES_MAX, seconds=min(1.0, limits.seconds))
        self.ends = limits.clock() + min(_SECONDS_MAX, limits.seconds)
        self.all = self.ops
        self.time = 0
        self.looked_at = 0
        self.visited = 0

    def spent(self) -> bool:
        over = self.looked_at > _OPERATIONS_IN_ALL_MAX or self.visited > _STATES_IN_ALL_MAX
        return over or self.clock() > self.ends

    def invalid(self, operations: list[Operation]) -> bool:
        return self.failed(decide(self.model, operations, self.limits), len(operations))

    def failed(self, found: SearchOutcome, count: int) -> bool:
        self.looked_at += count
        self.visited += found.visited
        return found.verdict == "invalid"

    def cut(self) -> None:
        """Cut the history off at the first end that no order explains."""
        ends = sorted({op.returned for op in self.ops if op.returned is not None})
        low, high = 0, len(ends) - 1
        while low < high and not self.spent():
            middle = (low + high) // 2
            if self.invalid(self._until(ends[middle])):
                high = middle
            else:
                low = middle + 1
        self.time = ends[high] if ends else 0
        self.all, self.ops = self.ops, self._until(self.time)

    def longest(self, found: SearchOutcome, operations: Sequence[Operation]) -> tuple[list[Operation], list[Operation]]:
        """Return the longest good order that is found, and the operations that could not come next."""
        budget = replace(self.limits, states_max=_STATES_MAX * 5)
        if not found.order:
            found = search(prepared(self.model, operations), operations, budget)
        self.ops = self.all
        failing = [op for op in operations if op.returned == self.time]
        others = [op for op in operations if op.invoked <= self.time and op.returned != self.time]
        # Mostly one operation is wrong, and all that began before its end fit together without it.
        order = max(self._order(others, operations), self._order(self._until(self.time - 1), operations), key=len)
        return (found.order, found.stuck or found.clash) if len(order) <= len(found.order) else (order, failing)

    def _order(self, chosen: Sequence[Operation], operations: Sequence[Operation]) -> list[Operation]:
        """Return the longest good order of some operations that is found quickly."""
        witness = getattr(self.model, "witness", None)
        refine = getattr(self.model, "refine", None)
        found = None if witness is None else witness(chosen)
        if found is None:
            narrowed = chosen if refine is None else refine(chosen)
            if any(op.returned is not None and op.returned < op.invoked for op in narrowed):
                narrowed = chosen
            budget = replace(self.limits, states_max=_STATES_MAX * 5)
            found = search(prepared(self.model, narrowed), narrowed, budget).order
        given = {op.index: op for op in operations}
        order: list[Operation] = []
        state: Any = self.model.initial()
        for op in found:
            # What was let go has its result again.
            state = self.model.step(state, given[op.index])
            if state is ILLEGAL:
                break
            order.append(given[op.index])
        return order

    def _until(self, time: int) -> list[Operation]:
        kept: list[Operation] = []
        for op in self.ops:
            if op.invoked > time:
                break
            if op.returned is None or op.returned <= time:
                kept.append(op)
            elif (loose := let_go(self.model, op)) is not None:
                kept.append(loose)
        return kept

    def among(self, guess: Sequence[Operation]) -> list[Operation] | None:
        """Return as few as possible of some operations, that do not fit together; None if all of them do."""
        indexes = {op.index for op in guess}
        known = [op for op in self.ops if op.index in indexes and op.status == "ok"]
        loose = {op.index: let_go(self.model, op) for op in self.ops}
        if not known or self.spent() or not self.invalid(self._core(known, loose)):
            return None
        return self._shorten(known, lambda core: self.invalid(self._core(core, loose)))

    def window(self) -> tuple[list[Operation] | None, list[Hashable], int]:
        """Return operations that do not fit together; also the states in which they began, and when, if it matters."""
        known = sorted((op for op in self.ops if op.status == "ok"), key=lambda op: op.returned or 0)
        best: list[Operation] | None = None
        for guess in [*(known[-count:] for count in _LAST if count < len(known)), known]:
            best = self.among(guess)
            if best is not None or self.spent():
                break
        if best is None or len(best) > _WINDOW_MAX:
            later, starts, moment = self._from_a_quiet_moment(known)
            if later is not None and (best is None or len(later) < len(best)):
                return later, starts, moment
        return best, [], 0

    def _core(self, core: Sequence[Operation], loose: dict[int, Operation | None]) -> list[Operation]:
        """Return the history in which everything but ``core`` is let go."""
        kept = {op.index for op in core}
        chosen = (op if op.index in kept else loose[op.index] for op in self.ops)
        return [op for op in chosen if op is not None]

    def _shorten(self, core: list[Operation], fails: Callable[[list[Operation]], bool]) -> list[Operation]:
        """Drop operations as long as the others do not fit together."""
        kept = fewer(core, lambda less: bool(less) and fails(list(less)), lambda: not self.spent())
        return sorted(kept, key=lambda op: op.invoked)

    def _from_a_quiet_moment(self, known: list[Operation]) -> tuple[list[Operation] | None, list[Hashable], int]:
        by_start = sorted(known, key=lambda op: op.invoked)
        quiet: list[int] = []
        latest = -1
        for place, op in enumerate(by_start):
            if place and latest < op.invoked:
                quiet.append(place)
            latest = max(latest, op.returned or 0)
        for place in quiet[:-4:-1]:
            if self.spent():
                break
            moment = by_start[place].invoked
            earlier = [op for op in self.ops if op.invoked < moment]
            budget = replace(self.limits, states_max=_STATES_MAX * 5)
            self.looked_at += len(earlier)
            self.visited += budget.states_max
            states = endings(self.model, earlier, budget)
            if states is None or not self._fails_after(by_start[place:], states, moment):
                continue
            core = self._shorten(by_start[place:], partial(self._fails_after, states=states, moment=moment))
            return core, list(dict.fromkeys(state for state, _ in states)), moment
        return None, [], 0

    def _fails_after(self, core: list[Operation], states: list[tuple[Hashable, set[int]]], moment: int) -> bool:
        """Tell whether operations do not fit together after a moment, from any of the states it can have had."""
        kept = {op.index for op in core}
        for state, used in states:
            rest: list[Operation] = []
            for op in self.ops:
                if op.index in kept:
                    rest.append(op)
                elif op.index not in used and (op.status == "unknown" or op.invoked >= moment):
                    loose = let_go(self.model, op)
                    if loose is not None:
                        rest.append(loose)
            if not self.failed(search(self.model, rest, self.limits, [state]), len(rest)):
                return False
        return True


def fewer(items: Sequence[T], fails: Callable[[tuple[T, ...]], bool], may_try: Callable[[], bool]) -> tuple[T, ...]:
    """Return a part of ``items`` that still fails, in their order; no single item of it can be left out.

    Delta debugging: halves are left out, then quarters, and so on down to single items (Zeller and Hildebrandt,
    *Simplifying and isolating failure-inducing input*, 2002, without the step that tries subsets, which finds little
    when runs are not deterministic).

    Args:
        items: fail together; they are not tried themselves.
        fails: says whether a part, which may be empty, still fails.
        may_try: asked before each try; after a no the part found so far is returned, and may be longer.
    """
    kept = tuple(items)
    size = max(1, len(kept) // 2)
    found = True
    while kept and (size > 1 or found):
        place, found = 0, False
        while place < len(kept):
            if not may_try():
                return kept
            less = kept[:place] + kept[place + size :]
            if fails(less):
                kept, found = less, True
            else:
                place += size
        if size > 1:
            size, found = size // 2, True
    return kept
