"""What operations mean: sequential objects, as pure step functions.

Owns: the protocol of a model and the models of one value, of a counter, of collections and of locks. A user's own model
needs ``name``, ``partitioned``, ``initial`` and ``step``. What else a model may have makes checks faster or complaints
earlier, never different; :func:`changes_nothing`, :func:`complaint` and :func:`prepared` ask for it.

Read next: :mod:`oncegate.proof.lincheck.row` (table rows with versions), :mod:`oncegate.proof.lincheck.search` (who
calls ``step``).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final, Protocol

from oncegate.proof.lincheck import counting, refine, zones
from oncegate.proof.lincheck.history import Operation, refused
from oncegate.proof.lincheck.values import freeze, thaw
from oncegate.rifl.errors import Code, OncegateError


class _Illegal:
    def __repr__(self) -> str:
        return "ILLEGAL"


ILLEGAL: Final = _Illegal()
"""What ``step`` returns for an operation that cannot come next with the result it had."""


class ModelError(OncegateError):
    """A model that does not exist, or operations that it does not know."""

    def __init__(self, detail: str) -> None:
        super().__init__(Code.BAD_REQUEST, detail)

    def __reduce__(self) -> tuple[object, ...]:
        return (ModelError, (self.detail,))


class Model(Protocol):
    """A sequential object.

    May also have:

    - ``read_only(op) -> bool``: the operation, wherever it is legal, changes nothing;
    - ``equal_by_value``: ``step`` looks at nothing of an operation but its name, argument, status and result;
    - ``complain(op) -> str``: why an operation is none of this model, or "";
    - ``describe(state) -> str``;
    - ``prepare(operations) -> Model``: the same object for orders of just these operations that contain all whose
      status is ``ok``; it may use what they return to see early that an order leads nowhere;
    - ``prepares_by_time``: what it sees early is true only of orders that keep real time;
    - ``refine(operations) -> operations``: the same with narrower times (:mod:`oncegate.proof.lincheck.refine`);
    - ``quick(operations)``: operations that do not fit together, [] if all do, None if it cannot tell;
    - ``witness(operations)``: a good order of them, or None if it has none at once;
    - ``urgency``: by index of an operation, the time by which to sort what could come next, if not that of its end;
    - ``reasons(window, operations) -> list[str]``: sentences on why a window's operations do not fit together.
    """

    name: str
    partitioned: bool
    """Whether each key is an object of its own."""

    def initial(self) -> Hashable:
        """Return the state before the first operation."""
        ...

    def step(self, state: Any, op: Operation) -> Hashable | _Illegal:
        """Return the state after ``op``, or :data:`ILLEGAL` if it cannot have had its result here.

        Pure. For an operation whose status is ``unknown`` the result is not looked at.
        """
        ...


def changes_nothing(model: Model, op: Operation) -> bool:
    """Tell whether the model promises that ``op`` is a read."""
    ask = getattr(model, "read_only", None)
    return ask is not None and bool(ask(op))


def complaint(model: Model, op: Operation) -> str:
    """Return why ``op`` is none of the model's operations, "" if it is."""
    ask = getattr(model, "complain", None)
    return "" if ask is None else str(ask(op))


def prepared(model: Model, operations: Sequence[Operation]) -> Model:
    """Return the model for just these operations."""
    ask = getattr(model, "prepare", None)
    return model if ask is None else ask(operations)


def describe(model: Model, state: Any) -> str:
    """Return a state as a person would write it, at most 200 characters."""
    ask = getattr(model, "describe", None)
    text = str(thaw(state)) if ask is None else str(ask(state))
    return text if len(text) <= 200 else text[:197] + "…"


class _KnownOperations:
    """What the models here share: the names of their operations."""

    name: str = ""
    partitioned: bool = True
    reads: frozenset[str] = frozenset({"read"})
    writes: frozenset[str] = frozenset()
    equal_by_value = True

    def read_only(self, op: Operation) -> bool:
        """Reads and refusals change nothing."""
        return op.f in self.reads or refused(op)

    def complain(self, op: Operation) -> str:
        """Refuse names that the model does not have."""
        if op.f in self.reads or op.f in self.writes:
            return ""
        return f"{self.name} has no operation {op.f!r}, only {', '.join(sorted(self.reads | self.writes))}"


class Register(_KnownOperations):
    """One value, read and written; null at first."""

    name = "register"
    writes = frozenset({"write"})

    def initial(self) -> Hashable:
        """Return null."""
        return None

    def step(self, state: Any, op: Operation) -> Hashable | _Illegal:
        """Write replaces, read returns."""
        if op.f == "write":
            return freeze(op.argument)
        return state if op.status == "unknown" or freeze(op.result) == state else ILLEGAL

    def quick(self, operations: Sequence[Operation]) -> list[Operation] | None:
        """Decide by zones where every value is written once."""
        return zones.decide(operations)

    def witness(self, operations: Sequence[Operation]) -> list[Operation] | None:
        """Return a good order, where zones give one."""
        return None if any(op.f == "cas" for op in operations) else zones.order(operations)

    def refine(self, operations: Sequence[Operation]) -> list[Operation]:
        """Narrow times by who wrote what was read."""
        return refine.values(operations, _makes, _sees, self.initial())


def _makes(op: Operation) -> tuple[Hashable, ...]:
    if op.f == "write":
        return (freeze(op.argument),)
    return (freeze(op.argument[1]),) if op.f == "cas" and not refused(op) else ()


def _sees(op: Operation) -> tuple[Hashable, ...] | None:
    if op.f == "read":
        return (freeze(op.result),) if op.status == "ok" else ()
    if op.f == "write":
        return ()
    if refused(op):
        return (freeze(op.result["value"]),) if "value" in op.result else None
    return (freeze(op.argument[0]),)


class CasRegister(Register):
    """A register with ``cas`` [old, new]; a comparison that failed returns ``{"refused": true, "value"?: actual}``."""

    name = "cas-register"
    writes = frozenset({"write", "cas"})

    def complain(self, op: Operation) -> str:
        """Refuse also a cas without its two values."""
        if op.f == "cas" and not (isinstance(op.argument, (list, tuple)) and len(op.argument) == 2):
            return "cas takes [old, new]"
        return super().complain(op)

    def quick(self, operations: Sequence[Operation]) -> list[Operation] | None:
        """Decide by zones where nothing is compared."""
        return None if any(op.f == "cas" for op in operations) else zones.decide(operations)

    def step(self, state: Any, op: Operation) -> Hashable | _Illegal:
        """Swap if the value is the old one."""
        if op.f != "cas":
            return super().step(state, op)
        old, new = op.argument
        holds = freeze(old) == state
        if refused(op):
            told = "value" not in op.result or freeze(op.result["value"]) == state
            return state if told and not holds else ILLEGAL
        if not holds:
            return state if op.status == "unknown" else ILLEGAL
        return freeze(new)


class Counter(_KnownOperations):
    """A number that begins at 0; ``increment`` by an integer (null: 1) returns the value after it, or null."""

    name = "counter"
    writes = frozenset({"increment", "add"})

    def complain(self, op: Operation) -> str:
        """Refuse also amounts that are no integers."""
        if op.f in self.writes and op.argument is not None and type(op.argument) is not int:
            return f"{op.f} takes an integer"
        return super().complain(op)

    def initial(self) -> Hashable:
        """Return 0."""
        return 0

    def step(self, state: Any, op: Operation) -> Hashable | _Illegal:
        """Add, or return."""
        if op.f in self.writes:
            if refused(op):
                return state  # type: ignore[no-any-return]
            after = state + (1 if op.argument is None else op.argument)
            told = op.status == "ok" and op.result is not None
            return ILLEGAL if told and freeze(op.result) != after else after
        return state if op.status == "unknown" or freeze(op.result) == state else ILLEGAL

    def quick(self, operations: Sequence[Operation]) -> list[Operation] | None:
        """Find a value out of bounds, where nothing is taken away; more than that it cannot tell."""
        return counting.out_of_bounds(operations) or None

    def reasons(self, window: Sequence[Operation], operations: Sequence[Operation]) -> list[str]:
        """Tell the bounds of what was seen."""
        return counting.reasons(window, operations)


class Mutex(_KnownOperations):
    """A lock: ``acquire`` and ``release``, by the owner that is their argument, if one is given."""

    name = "mutex"
    reads = frozenset()
    writes = frozenset({"acquire", "release"})

    def initial(self) -> Hashable:
        """Return that it is free."""
        return ("free",)

    def step(self, state: Any, op: Operation) -> Hashable | _Illegal:
        """Take what is free, give back what is held."""
        held = ("held", freeze(op.argument))
        possible = state == ("free",) if op.f == "acquire" else state == held
        if refused(op):
            return ILLEGAL if possible else state
        if not possible:
            return state if op.status == "unknown" else ILLEGAL
        return held if op.f == "acquire" else ("free",)

    def describe(self, state: Any) -> str:
        """Say who holds it."""
        return "free" if state == ("free",) else "held" if state[1] is None else f"held by {thaw(state[1])}"
