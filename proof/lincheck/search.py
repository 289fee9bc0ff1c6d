"""The search for an order: Wing and Gong's, with Lowe's memory of what was tried.

Owns: whether the operations of one object can be put in an order that keeps real time and that the model allows, by the
model's own means where these can tell (:func:`decide`), else by the search; tests compare both with trying every order.

An
operation is *required* if it returned, *optional* if its outcome is unknown: it may come anywhere after its invocation,
or never. The search goes deep first, without recursion; a place is (required operations done, optional ones done,
state), and none is entered twice. Orders that some other order stands for are not tried:

- a read that is possible is done at once: later it would only hold others up;
- of equal operations, the one that must end first goes first, of equal optional ones the one that began first;
- an optional operation goes as late as possible: the next operation must need it (the state without it, or with it
  afterwards, would be another), else the place is reached in another way too.

Each rule turns a good order into one that is tried, and none of them undoes another: what it changes (optional
operations used, then places of reads, then how many operations stand behind optional ones) only falls.

Sources: Wing & Gong 1993; Lowe, *Testing for linearizability* (2017); Horn & Kroening 2015 for the partition by key.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Any, Final

from oncegate.proof.lincheck.history import Operation, freeze
from oncegate.proof.lincheck.models import ILLEGAL, Model, ModelError, changes_nothing, complaint, prepared
from oncegate.proof.lincheck.verdict import Limits, Verdict

_LOOK_EVERY: Final = 256
"""Steps between two looks at the clock."""
_PLACE_BYTES: Final = 320
"""What remembering a place costs beside its state and bit sets: tuples, integers, an entry of a set."""
ENDINGS_MAX: Final = 32
"""States that a proof in words goes through."""
_NEVER: Final = 1 << 62


@dataclass(slots=True)
class SearchOutcome:
    """How a search ended."""

    verdict: Verdict
    reason: str = ""
    order: list[Operation] = field(default_factory=list)
    """A good order of all; if there is none, the one that got furthest."""
    stuck: list[Operation] = field(default_factory=list)
    """After ``order``: what was open and could not come next."""
    reached: int = 0
    """No order gets beyond an end at this time."""
    states: list[Hashable] = field(default_factory=list)
    """States in which the furthest orders ended."""
    clash: list[Operation] = field(default_factory=list)
    """Operations that do not fit together, where that was found without a search."""
    visited: int = 0
    bytes: int = 0


def decide(model: Model, operations: Sequence[Operation], limits: Limits) -> SearchOutcome:
    """Decide about one object's operations, with status ``ok`` or ``unknown``: by the model's means, else by search."""
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


def search(
    model: Model, operations: Sequence[Operation], limits: Limits, starts: Iterable[Hashable] = ()
) -> SearchOutcome:
    """Look for a good order of one object's operations.

    Args:
        model: as :func:`oncegate.proof.lincheck.models.prepared` returns it.
        operations: with status ``ok`` or ``unknown``; others are left out.
        limits: states and bytes of this search, and the moment of ``clock`` at which it ends in ``seconds`` from now.
        starts: states to begin in; the model's own if there are none.
    """
    return _Search(model, operations, limits).run(list(starts) or [model.initial()])


def endings(model: Model, operations: Sequence[Operation], limits: Limits) -> list[tuple[Hashable, set[int]]] | None:
    """Return every state in which a good order of the operations can end, with the unknown operations used for it.

    Returns:
        At most ``ENDINGS_MAX``; None if there are more, or a limit came first.
    """
    tree = _Search(model, operations, limits)
    tree.collect = True
    found = tree.run([model.initial()])
    if found.verdict == "unknown" or len(tree.endings) > ENDINGS_MAX:
        return None
    return [
        (state, {op.index for number, op in enumerate(tree.optional) if used >> number & 1})
        for state, used in tree.endings
    ]


class _Search:
    def __init__(self, model: Model, operations: Sequence[Operation], limits: Limits) -> None:
        self.limits = limits
        self.step: Any = model.step
        required = [op for op in operations if op.status == "ok"]
        required.sort(key=lambda op: (op.invoked, op.returned))
        self.ops = required
        self.count = len(required)
        self.invoked = [op.invoked for op in required] + [_NEVER]
        self.returned = [_NEVER if op.returned is None else op.returned for op in required]
        self.reads = [changes_nothing(model, op) for op in required]
        urgency = getattr(model, "urgency", {})
        self.urgency: list[int] = [urgency.get(op.index, end) for op, end in zip(required, self.returned, strict=True)]
        classes: dict[Hashable, int] = {}
        self.classes = [
            classes.setdefault((op.f, freeze(op.argument), freeze(op.result), _who(model, op)), len(classes))
            for op in required
        ]
        optional = [op for op in operations if op.status == "unknown" and not changes_nothing(model, op)]
        kinds: dict[Hashable, list[Operation]] = {}
        for op in sorted(optional, key=lambda op: op.invoked):
            kinds.setdefault((op.f, freeze(op.argument), _who(model, op)), []).append(op)
        self.optional = [op for kind in kinds.values() for op in kind]
        self.kinds = [number for number, kind in enumerate(kinds.values()) for _ in kind]
        self.collect = False
        self.endings: set[tuple[Hashable, int]] = set()
        self.path: list[int] = []
        self.best_at = (-1, -1)
        self.best_length = 0
        self.best: list[int] | None = None
        self.best_states: set[Hashable] = set()

    def run(self, starts: list[Hashable]) -> SearchOutcome:
        limits, path = self.limits, self.path
        ends = limits.clock() + limits.seconds
        seen: set[Hashable] = set()
        bytes_held = steps = 0
        # A frame: length of the path, base, done above base, optional done, state, moves left, whether optional moves
        # are still to be looked up, how the place was reached (state before an optional operation, the operation).
        stack: list[list[Any]] = [[0, 0, 0, 0, start, [(-1, start)], False, None] for start in reversed(starts)]
        while stack:
            frame = stack[-1]
            length, base, done, used, state, moves, later, came = frame
            if not moves and later:
                frame[6] = False
                moves = frame[5] = self._optional_moves(base, done, used, state, came)
            if not moves:
                stack.pop()
                continue
            steps += 1
            if not steps % _LOOK_EVERY and limits.clock() > ends:
                return self._found("unknown", f"no time left after {limits.seconds:g} s", path, seen, bytes_held)
            move, state = moves.pop()
            if not moves and not frame[6]:
                stack.pop()
            if len(path) > length:
                if self.best is None and length < self.best_length:
                    self.best = path[: self.best_length]
                del path[length:]
            came = None
            if move >= self.count:
                number = move - self.count
                path.append(move)
                used |= 1 << number
                came = (frame[4], number)
            elif move >= 0:
                path.append(move)
                done |= 1 << (move - base)
                while done & 1:
                    done >>= 1
                    base += 1
            open_now, latest, base, done, state, read = self._reads(base, done, state)
            if base == self.count and self.collect:
                self.endings.add((state, used))
                continue
            if base == self.count:
                return self._found("valid", "", path, seen, bytes_held)
            place: Hashable = (base, done, used, state)
            if place in seen:
                continue
            if came is not None and not read:
                place = (place, came)
                if place in seen:
                    continue
            else:
                came = None
            seen.add(place)
            bytes_held += _PLACE_BYTES + getsizeof(state) + (done.bit_length() + used.bit_length() >> 3)
            if (latest, base) >= self.best_at:
                self._note(latest, base, state)
            if len(seen) > limits.states_max:
                return self._found("unknown", f"over {limits.states_max} states", path, seen, bytes_held)
            if bytes_held > limits.bytes_max:
                return self._found("unknown", f"over {limits.bytes_max} bytes", path, seen, bytes_held)
            moves = self._moves(open_now, state, came)
            if moves or self.optional:
                stack.append([len(path), base, done, used, state, moves, bool(self.optional), came])
        return self._found("invalid", "", path, seen, bytes_held)

    def _reads(self, base: int, done: int, state: Any) -> tuple[list[int], int, int, int, Any, bool]:
        """Do all reads that are possible; return what is open, and when the first of it ends."""
        invoked, returned, reads, step, ops = self.invoked, self.returned, self.reads, self.step, self.ops
        any_read = False
        while True:
            open_now: list[int] = []
            latest = _NEVER
            index, bits, again = base, done, False
            while invoked[index] <= latest and index < self.count:
                if not bits & 1:
                    if reads[index] and step(state, ops[index]) == state:
                        done |= 1 << (index - base)
                        self.path.append(index)
                        again = any_read = True
                    else:
                        open_now.append(index)
                        if returned[index] < latest:
                            latest = returned[index]
                bits >>= 1
                index += 1
            while done & 1:
                done >>= 1
                base += 1
            if not again:
                return open_now, latest, base, done, state, any_read

    def _moves(self, open_now: list[int], state: Any, came: tuple[Any, int] | None) -> list[tuple[int, Any]]:
        """Return the open operations that can come next, the most urgent last."""
        step, ops = self.step, self.ops
        if len(open_now) > 1:
            open_now = sorted(open_now, key=self.urgency.__getitem__)
        moves: list[tuple[int, Any]] = []
        tried: set[int] = set()
        for index in open_now:
            kind = self.classes[index]
            if kind in tried:
                continue
            tried.add(kind)
            after = step(state, ops[index])
            if after is ILLEGAL or (came is not None and self._needless(came, ops[index], after, -1)):
                continue
            moves.append((index, after))
        moves.reverse()
        return moves

    def _optional_moves(
        self, base: int, done: int, used: int, state: Any, came: tuple[Any, int] | None
    ) -> list[tuple[int, Any]]:
        """Return the optional operations that can come next and change something."""
        latest, index = _NEVER, base
        while index < self.count and self.invoked[index] <= latest:
            if not done >> (index - base) & 1:
                latest = min(latest, self.returned[index])
            index += 1
        moves: list[tuple[int, Any]] = []
        kind = -1
        for number, op in enumerate(self.optional):
            if self.kinds[number] == kind or used >> number & 1:
                continue
            kind = self.kinds[number]
            if op.invoked > latest:
                continue
            after = self.step(state, op)
            if after is ILLEGAL or after == state:
                continue
            if came is not None and self._needless(came, op, after, kind):
                continue
            moves.append((self.count + number, after))
        moves.reverse()
        return moves

    def _needless(self, came: tuple[Any, int], op: Operation, after: Any, kind: int) -> bool:
        """Tell whether the optional operation before ``op`` could as well be left out, or come after it."""
        before, number = came
        without = self.step(before, op)
        if without is ILLEGAL:
            return False
        if without == after:
            return True
        if kind >= 0 and self.kinds[number] <= kind:
            return False
        return bool(self.step(without, self.optional[number]) == after)

    def _note(self, latest: int, base: int, state: Hashable) -> None:
        if (latest, base) > self.best_at:
            self.best_at = (latest, base)
            self.best_length, self.best = len(self.path), None
            self.best_states = {state}
        elif len(self.best_states) < 16:
            self.best_states.add(state)

    def _found(self, verdict: Verdict, reason: str, path: list[int], seen: set[Hashable], held: int) -> SearchOutcome:
        best = path if verdict == "valid" else (self.best if self.best is not None else path[: self.best_length])
        order = [self.ops[move] if move < self.count else self.optional[move - self.count] for move in best]
        done = {op.index for op in order}
        stuck = [op for op in self.ops if op.index not in done and op.invoked <= self.best_at[0]]
        return SearchOutcome(
            verdict,
            reason,
            order,
            [] if verdict == "valid" else stuck,
            self.best_at[0],
            list(self.best_states),
            visited=len(seen),
            bytes=held,
        )


def _who(model: Model, op: Operation) -> Hashable:
    """Return what else tells two operations apart: a model may look at anything unless it says otherwise."""
    return None if getattr(model, "equal_by_value", False) else op.index


def checked(model: Model, operations: Iterable[Operation]) -> list[Operation]:
    """Return what a search needs of a history: no failed operations, and only those that the model knows.

    Raises ModelError if an operation is none of the model's.
    """
    kept = [op for op in operations if op.status != "failed"]
    for op in kept:
        if text := complaint(model, op):
            raise ModelError(f"operation {op.index}: {text}")
    return kept
