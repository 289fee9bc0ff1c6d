"""Why a history is not linearizable, in few operations.

Owns: the longest good prefix, and a window that is a proof: operations that do not fit together although every other
operation is let go. To let an operation go is to forget its result and its end (it may have happened at any time after
its invocation, or never), which makes any history easier to order; a read that is let go is gone. Where that leaves
many operations, a proof begins at a moment when nothing was running, from all states that were possible then.

Read next: :mod:`rifl.lincheck.words`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from rifl.lincheck.decide import decide
from rifl.lincheck.history import Operation
from rifl.lincheck.models import Model, changes_nothing, describe, prepared
from rifl.lincheck.search import Found, endings, search
from rifl.lincheck.verdict import Failure, Limits
from rifl.lincheck.words import no_proof, proof

_STATES_MAX: Final = 10_000
"""States of one try; a try that ends in unknown proves nothing."""
_STATES_IN_ALL_MAX: Final = 400_000
_TRIES_MAX: Final = 400
_WINDOW_MAX: Final = 8
"""Operations of a window that is not worth another way to shorten it."""
_SECONDS_MAX: Final = 5.0
_LAST: Final = (2, 4, 8, 16, 32, 64, 128, 256, 1024)
"""How many of the last operations are tried as a first window."""


def explain(key: Any, model: Model, operations: Sequence[Operation], found: Found, limits: Limits) -> Failure:
    """Explain why one object's operations, which ``found`` calls invalid, have no good order."""
    task = _Task(model, list(operations), limits)
    task.cut()
    window, starts = task.window(found)
    if not found.order:
        budget = replace(limits, states_max=_STATES_MAX * 5, seconds=min(1.0, limits.seconds))
        found = search(prepared(model, operations), operations, budget)
    if found.clash and hasattr(model, "reasons") and len(window or operations) > _WINDOW_MAX:
        window, starts = found.clash, []
    if window is None:
        window = (found.stuck or found.clash)[:_WINDOW_MAX]
        words = no_proof(window, len(found.order))
    else:
        words = proof(model, window, starts, operations)
    return Failure(
        key=key,
        prefix=[op.index for op in found.order],
        stuck=[op.index for op in found.stuck or found.clash],
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
        self.tries = 0
        self.visited = 0

    def spent(self) -> bool:
        return self.tries >= _TRIES_MAX or self.visited > _STATES_IN_ALL_MAX or self.clock() > self.ends

    def invalid(self, operations: list[Operation]) -> bool:
        return self.failed(decide(self.model, operations, self.limits))

    def failed(self, found: Found) -> bool:
        self.tries += 1
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
        if ends:
            self.ops = self._until(ends[high])

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

    def window(self, found: Found) -> tuple[list[Operation] | None, list[Hashable]]:
        """Return operations that do not fit together, and the states in which the first of them may have begun."""
        known = sorted((op for op in self.ops if op.status == "ok"), key=lambda op: op.returned or 0)
        loose = {op.index: let_go(self.model, op) for op in self.ops}
        best: list[Operation] | None = None
        clash = {op.index for op in found.clash}
        lasts = [known[-count:] for count in _LAST if count < len(known)]
        guesses = [[op for op in known if op.index in clash], *lasts, known]
        for guess in guesses:
            if guess and not self.spent() and self.invalid(self._core(guess, loose)):
                best = self._shorten(guess, lambda core: self.invalid(self._core(core, loose)))
                break
        if best is not None and len(best) <= _WINDOW_MAX:
            return best, []
        later, starts = self._from_a_quiet_moment(known)
        if later is not None and (best is None or len(later) < len(best)):
            return later, starts
        return best, []

    def _core(self, core: Sequence[Operation], loose: dict[int, Operation | None]) -> list[Operation]:
        """Return the history in which everything but ``core`` is let go."""
        kept = {op.index for op in core}
        chosen = (op if op.index in kept else loose[op.index] for op in self.ops)
        return [op for op in chosen if op is not None]

    def _shorten(self, core: list[Operation], fails: Any) -> list[Operation]:
        """Drop operations, many at a time at first, as long as the others do not fit together."""
        size = max(1, len(core) // 2)
        while size:
            place = 0
            while place < len(core) and not self.spent():
                less = core[:place] + core[place + size :]
                if less and fails(less):
                    core = less
                else:
                    place += size
            size //= 2
        return sorted(core, key=lambda op: op.invoked)

    def _from_a_quiet_moment(self, known: list[Operation]) -> tuple[list[Operation] | None, list[Hashable]]:
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
            self.tries += 1
            budget = replace(self.limits, states_max=_STATES_MAX * 10)
            states = endings(self.model, earlier, budget)
            if states is None:
                continue
            core = self._shorten(by_start[place:], lambda core, states=states: self._fails_after(core, states))
            if not self._fails_after(core, states):
                continue
            return core, list(dict.fromkeys(state for state, _ in states))
        return None, []

    def _fails_after(self, core: list[Operation], states: list[tuple[Hashable, set[int]]]) -> bool:
        kept = {op.index for op in core}
        moment = min(op.invoked for op in core)
        for state, used in states:
            rest: list[Operation] = []
            for op in self.ops:
                if op.index in kept:
                    rest.append(op)
                elif op.index not in used and (op.status == "unknown" or op.invoked >= moment):
                    loose = let_go(self.model, op)
                    if loose is not None:
                        rest.append(loose)
            if not self.failed(search(self.model, rest, self.limits, [state])):
                return False
        return True
