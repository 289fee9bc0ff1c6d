"""Models of collections: a list that is appended to, a set, a queue.

Owns: their meaning, and how a history's own reads tell early which orders lead nowhere: a list is always the beginning
of the longest one read, so its state is a length; a set is a bit an element.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, Final

from oncegate.proof.lincheck import refine, sorting
from oncegate.proof.lincheck.history import Operation, freeze, refused, thaw
from oncegate.proof.lincheck.models import ILLEGAL, _Illegal, _KnownOperations

_AT_END: Final = (refine.NEVER, refine.NEVER)


class _ReadAsList(_KnownOperations):
    def complain(self, op: Operation) -> str:
        if op.f == "read" and op.status == "ok" and not isinstance(op.result, (list, tuple)):
            return f"{op.f} returns a list"
        return super().complain(op)


class AppendList(_ReadAsList):
    """A list: ``append`` an item, ``read`` all of it."""

    name = "list"
    writes = frozenset({"append"})

    def initial(self) -> Hashable:
        return ()

    def step(self, state: Any, op: Operation) -> Hashable | _Illegal:
        if op.f == "append":
            return state if refused(op) else (*state, freeze(op.argument))
        return state if op.status == "unknown" or tuple(map(freeze, op.result)) == state else ILLEGAL

    def quick(self, operations: Sequence[Operation]) -> list[Operation] | None:
        """Find a clash by sorting."""
        return sorting.list_clash(operations)

    def refine(self, operations: Sequence[Operation]) -> list[Operation]:
        return refine.items(operations)

    def prepare(self, operations: Sequence[Operation]) -> _PreparedList:
        return _PreparedList(operations)

    def describe(self, state: Any) -> str:
        return str([thaw(item) for item in state])


class _PreparedList(AppendList):
    """The list of a history: state n is the first n items of its longest read, one more is any longer list."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        reads = [tuple(map(freeze, op.result)) for op in operations if op.f == "read" and op.status == "ok"]
        self.longest = max(reads, key=len, default=())
        self.lengths = {
            op.index: len(read)
            for op, read in zip((op for op in operations if op.f == "read" and op.status == "ok"), reads, strict=True)
            if self.longest[: len(read)] == read
        }

    def initial(self) -> Hashable:
        return 0

    def step(self, state: Any, op: Operation) -> Hashable | _Illegal:
        if op.f == "append":
            if refused(op):
                return state  # type: ignore[no-any-return]
            if state >= len(self.longest):
                return len(self.longest) + 1
            return state + 1 if self.longest[state] == freeze(op.argument) else ILLEGAL
        return state if op.status == "unknown" or self.lengths.get(op.index) == state else ILLEGAL

    def describe(self, state: Any) -> str:
        text = str([thaw(item) for item in self.longest[:state]])
        return text if state <= len(self.longest) else f"{text} and more"


class GrowSet(_ReadAsList):
    """A set: ``add`` and ``remove`` an element, ``read`` all of them as a list in any order."""

    name = "set"
    writes = frozenset({"add", "remove"})

    def initial(self) -> Hashable:
        return frozenset()

    def step(self, state: Any, op: Operation) -> Hashable | _Illegal:
        if op.f == "read":
            return state if op.status == "unknown" or _elements(op) == state else ILLEGAL
        if refused(op):
            return state  # type: ignore[no-any-return]
        element = frozenset({freeze(op.argument)})
        return state | element if op.f == "add" else state - element  # type: ignore[no-any-return]

    def refine(self, operations: Sequence[Operation]) -> list[Operation]:
        return refine.elements(operations)

    def prepare(self, operations: Sequence[Operation]) -> _PreparedSet:
        return _PreparedSet(operations)

    def describe(self, state: Any) -> str:
        return "{" + ", ".join(sorted(repr(thaw(item)) for item in state)) + "}"


def _elements(op: Operation) -> frozenset[Hashable] | None:
    """Return the elements read; None if one was there twice, which no set is."""
    found = frozenset(map(freeze, op.result))
    return found if len(found) == len(op.result) else None


class _PreparedSet(GrowSet):
    """The set of a history: a bit an element."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.bits: dict[Hashable, int] = {}
        self.reads: Any = GrowSet.reads
        self.read_bits: dict[int, int] = {}
        for op in operations:
            if op.f != "read":
                self._bit(freeze(op.argument))
            elif op.status == "ok":
                elements = _elements(op)
                if elements is not None:
                    self.read_bits[op.index] = sum(map(self._bit, elements))

    def _bit(self, element: Hashable) -> int:
        return self.bits.setdefault(element, 1 << len(self.bits))

    def initial(self) -> Hashable:
        return 0

    def step(self, state: Any, op: Operation) -> Hashable | _Illegal:
        if op.f == "read":
            return state if op.status == "unknown" or self.read_bits.get(op.index) == state else ILLEGAL
        if refused(op):
            return state  # type: ignore[no-any-return]
        bit = self.bits[freeze(op.argument)]
        return state | bit if op.f == "add" else state & ~bit  # type: ignore[no-any-return]

    def describe(self, state: Any) -> str:
        return super().describe([element for element, bit in self.bits.items() if state & bit])


class Queue(_KnownOperations):
    """First in, first out: ``enqueue`` an item, ``dequeue`` the oldest, or null if there is none."""

    name = "queue"
    prepares_by_time = True
    reads = frozenset()
    writes = frozenset({"enqueue", "dequeue"})

    def initial(self) -> Hashable:
        return ()

    def read_only(self, op: Operation) -> bool:
        """Finding nothing changes nothing."""
        return refused(op) or (op.f == "dequeue" and op.status == "ok" and op.result is None)

    def step(self, state: Any, op: Operation) -> Hashable | _Illegal:
        if refused(op):
            return state  # type: ignore[no-any-return]
        if op.f == "enqueue":
            return (*state, freeze(op.argument))
        if op.status == "unknown":
            return state[1:]  # type: ignore[no-any-return]
        if op.result is None:
            return ILLEGAL if state else state
        return state[1:] if state and state[0] == freeze(op.result) else ILLEGAL

    def quick(self, operations: Sequence[Operation]) -> list[Operation] | None:
        """Find an item that came out more often than it can have gone in."""
        ins = Counter(freeze(op.argument) for op in operations if op.f == "enqueue" and not refused(op))
        outs = [op for op in operations if op.f == "dequeue" and op.status == "ok" and not self.read_only(op)]
        times = Counter(freeze(op.result) for op in outs)
        for item, count in times.items():
            if count > ins[item]:
                return [op for op in operations if item == freeze(op.argument if op.f == "enqueue" else op.result)]
        return None

    def refine(self, operations: Sequence[Operation]) -> list[Operation]:
        return refine.queue(operations)

    def prepare(self, operations: Sequence[Operation]) -> Queue:
        """Return the queue that knows when its items will come out, if all are different."""
        return _PreparedQueue.of(operations) or self

    def describe(self, state: Any) -> str:
        return str([thaw(item) for item in state])


class _PreparedQueue(Queue):
    """The queue of a history: no item goes behind one that comes out later."""

    def __init__(self, times: dict[Hashable, tuple[int, int]], urgency: dict[int, int]) -> None:
        self.times = times
        self.urgency = urgency

    @classmethod
    def of(cls, operations: Sequence[Operation]) -> _PreparedQueue | None:
        items = [freeze(op.argument) for op in operations if op.f == "enqueue"]
        outs = [op for op in operations if op.f == "dequeue" and not refused(op)]
        if len(set(items)) < len(items) or any(op.status == "unknown" for op in outs):
            return None
        times = {freeze(op.result): (op.invoked, op.returned or 0) for op in outs if op.result is not None}
        urgency = {op.index: times.get(freeze(op.argument), _AT_END)[1] for op in operations if op.f == "enqueue"}
        return cls(times, urgency)

    def step(self, state: Any, op: Operation) -> Hashable | _Illegal:
        if op.f == "enqueue" and state and not refused(op):
            last = self.times.get(freeze(op.argument), _AT_END)[1]
            if last < self.times.get(state[-1], _AT_END)[0]:
                return ILLEGAL
        return super().step(state, op)
