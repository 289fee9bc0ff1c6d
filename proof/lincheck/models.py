"""What operations mean: sequential objects, as pure step functions.

Owns: the protocol of a model and the models of one value, of a counter and of locks. A user's own model
needs ``name``, ``partitioned``, ``initial`` and ``step``. What else a model may have makes checks faster or complaints
earlier, never different; :func:`changes_nothing`, :func:`complaint` and :func:`prepared` ask for it.

Read next: :mod:`oncegate.proof.lincheck.row` (table rows with versions), :mod:`oncegate.proof.lincheck.search` (who
calls ``step``).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final, Protocol

from oncegate.proof.lincheck import refine, sorting
from oncegate.proof.lincheck.history import Operation, freeze, refused, thaw
from oncegate.rifl.errors import Code, OncegateError

_NS: Final = 1_000_000


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
        if op.f in self.reads or op.f in self.writes:
            return ""
        return f"{self.name} has no operation {op.f!r}, only {', '.join(sorted(self.reads | self.writes))}"


class Register(_KnownOperations):
    """One value, read and written; null at first."""

    name = "register"
    writes = frozenset({"write"})

    def initial(self) -> Hashable:
        return None

    def step(self, state: Any, op: Operation) -> Hashable | _Illegal:
        if op.f == "write":
            return freeze(op.argument)
        return state if op.status == "unknown" or freeze(op.result) == state else ILLEGAL

    def quick(self, operations: Sequence[Operation]) -> list[Operation] | None:
        return sorting.register_clash(operations)

    def witness(self, operations: Sequence[Operation]) -> list[Operation] | None:
        return None if any(op.f == "cas" for op in operations) else sorting.register_order(operations)

    def refine(self, operations: Sequence[Operation]) -> list[Operation]:
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
        if op.f == "cas" and not (isinstance(op.argument, (list, tuple)) and len(op.argument) == 2):
            return "cas takes [old, new]"
        return super().complain(op)

    def quick(self, operations: Sequence[Operation]) -> list[Operation] | None:
        return None if any(op.f == "cas" for op in operations) else sorting.register_clash(operations)

    def step(self, state: Any, op: Operation) -> Hashable | _Illegal:
        if op.f != "cas":
            return super().step(state, op)
        old, new = op.argument
        holds = freeze(old) == state
        if refused(op):
            fits = "value" not in op.result or freeze(op.result["value"]) == state
            return state if fits and not holds else ILLEGAL
        if not holds:
            return state if op.status == "unknown" else ILLEGAL
        return freeze(new)


class Counter(_KnownOperations):
    """A number that begins at 0; ``increment`` by an integer (null: 1) returns the value after it, or null."""

    name = "counter"
    writes = frozenset({"increment", "add"})

    def complain(self, op: Operation) -> str:
        if op.f in self.writes and op.argument is not None and type(op.argument) is not int:
            return f"{op.f} takes an integer"
        return super().complain(op)

    def initial(self) -> Hashable:
        return 0

    def step(self, state: Any, op: Operation) -> Hashable | _Illegal:
        if op.f in self.writes:
            if refused(op):
                return state  # type: ignore[no-any-return]
            after = state + (1 if op.argument is None else op.argument)
            answered = op.status == "ok" and op.result is not None
            return ILLEGAL if answered and freeze(op.result) != after else after
        return state if op.status == "unknown" or freeze(op.result) == state else ILLEGAL

    def quick(self, operations: Sequence[Operation]) -> list[Operation] | None:
        """Find a value out of bounds, where nothing is taken away; more than that it cannot tell."""
        return sorting.out_of_bounds(operations) or None

    def reasons(self, window: Sequence[Operation], operations: Sequence[Operation]) -> list[str]:
        return sorting.counter_reasons(window, operations)


class Mutex(_KnownOperations):
    """A lock: ``acquire`` and ``release``, by the owner that is their argument, if one is given."""

    name = "mutex"
    reads = frozenset()
    writes = frozenset({"acquire", "release"})

    def initial(self) -> Hashable:
        return ("free",)

    def step(self, state: Any, op: Operation) -> Hashable | _Illegal:
        held = ("held", freeze(op.argument))
        possible = state == ("free",) if op.f == "acquire" else state == held
        if refused(op):
            return ILLEGAL if possible else state
        if not possible:
            return state if op.status == "unknown" else ILLEGAL
        return held if op.f == "acquire" else ("free",)

    def describe(self, state: Any) -> str:
        return "free" if state == ("free",) else "held" if state[1] is None else f"held by {thaw(state[1])}"


LeaseState = tuple[int, bool, Hashable, int, int]


class Lease(_KnownOperations):
    """A lock that ends by itself, with a token that fences earlier owners.

    ``acquire`` {"owner", "ms"} has the result {"token": n}; ``renew`` and ``release`` take {"owner", "token", "ms"?}.
    Tokens grow. An owner may lose the lease at any time after its duration, counted from the last grant that the
    history proves, and never before: that is the promise checked. Times are those of the history; a lease's own clock
    that runs slower only makes leases longer.

    State: last token, whether it is exactly that, owner (None: free), time until which the lease certainly lasts, and
    time before which this state cannot have been.
    """

    name = "lease"
    reads = frozenset()
    writes = frozenset({"acquire", "renew", "release"})
    equal_by_value = False

    def complain(self, op: Operation) -> str:
        argument = op.argument
        if not isinstance(argument, dict) or "owner" not in argument or type(argument.get("ms", 0)) is not int:
            return f'{op.f} takes {{"owner", "ms"}}'
        if op.f == "acquire" and op.status == "ok" and not refused(op):
            if not isinstance(op.result, dict) or type(op.result.get("token")) is not int:
                return 'acquire returns {"token"}'
        elif op.f in ("renew", "release") and type(argument.get("token")) is not int:
            return f"{op.f} takes a token"
        return super().complain(op)

    def initial(self) -> Hashable:
        return (0, True, None, 0, 0)

    def step(self, state: LeaseState, op: Operation) -> Hashable | _Illegal:
        last, exact, owner, until, since = state
        # An operation takes effect before it returned: a state that began later is none it can have met, and a lease
        # that lasts longer was not over.
        if op.returned is not None and op.returned < since:
            return ILLEGAL
        asker = freeze(op.argument["owner"])
        running = owner is not None and op.returned is not None and op.returned < until
        since = max(since, op.invoked)
        lasts = since + op.argument.get("ms", 0) * _NS
        if op.f == "acquire":
            if refused(op):
                return state if owner is not None else ILLEGAL
            if running and owner != asker:
                return ILLEGAL
            if owner is not None and owner != asker:
                since = max(since, until)
                lasts = since + op.argument.get("ms", 0) * _NS
            if op.status == "unknown":
                return (last, False, asker, lasts, since)
            token = op.result["token"]
            return (token, True, asker, lasts, since) if token > last else ILLEGAL
        token = op.argument["token"]
        mine = owner is not None and owner == asker and (token == last if exact else token > last)
        if refused(op):
            return ILLEGAL if mine and exact and running else state
        if not mine:
            return state if op.status == "unknown" else ILLEGAL
        if op.f == "release":
            return (token, True, None, 0, since)
        return (token, True, owner, max(until, lasts), since)

    def describe(self, state: LeaseState) -> str:
        last, exact, owner, until, _ = state
        token = f"token {last}" if exact else f"a token above {last}"
        return f"free, last {token}" if owner is None else f"held by {thaw(owner)} with {token} until {until / 1e9:g} s"
