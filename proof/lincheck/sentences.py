"""Operations and proofs in words.

Owns: how an operation reads ("process 3 read 7"), and the sentences of a proof. Times are seconds since the run
began; a history without times is described by its order alone.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from typing import Any, Final

from oncegate.proof.lincheck.history import Operation, freeze, thaw
from oncegate.proof.lincheck.models import Model, describe

_TEXT_MAX: Final = 80
_ITEMS_MAX: Final = 8
_PAST: Final = {
    "read": "read",
    "get": "got",
    "write": "wrote",
    "put": "put",
    "append": "appended",
    "add": "added",
    "remove": "removed",
    "increment": "incremented by",
    "enqueue": "enqueued",
    "dequeue": "dequeued",
    "acquire": "acquired the lock",
    "release": "released the lock",
    "renew": "renewed the lease",
    "delete": "deleted the row",
    "insert": "inserted",
}


def seconds(time: int) -> str:
    """Write nanoseconds as seconds."""
    return f"{time / 1e9:.6f}".rstrip("0").rstrip(".") + " s"


def shown(value: Any) -> str:
    """Write a value as JSON, shortened."""
    if isinstance(value, list) and len(value) > _ITEMS_MAX:
        ends = ", ".join(map(shown, value[:2])), ", ".join(map(shown, value[-2:]))
        return f"[{ends[0]}, …, {ends[1]}] ({len(value)} items)"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "…"


def what(op: Operation) -> str:
    """Say what an operation did: ``process 3 read 7``."""
    who = f"process {op.process}"
    if isinstance(op.result, dict) and op.result.get("refused"):
        return f"{who} was refused {op.f} {shown(op.argument)} with {shown(op.result)}"
    if op.f == "get" and isinstance(op.result, dict):
        found = f"got {shown(op.result['value'])}" if "value" in op.result else "found no row"
        return f"{who} {found} at version {op.result['version']}" if op.result.get("version") else f"{who} {found}"
    past = _PAST.get(op.f, f"did {op.f}")
    if op.f == "cas" and isinstance(op.argument, (list, tuple)) and len(op.argument) == 2:
        return f"{who} swapped {shown(op.argument[0])} for {shown(op.argument[1])}"
    if op.f in ("read", "dequeue") or (op.f == "get" and op.argument in (None, {})):
        return f"{who} {past} {shown(op.result)}"
    if op.f in ("acquire", "release", "delete") and op.argument in (None, {}) and op.result is None:
        return f"{who} {past}"
    answer = "" if op.result is None else f" and was told {shown(op.result)}"
    return f"{who} {past} {shown(1 if op.f == 'increment' and op.argument is None else op.argument)}{answer}"


def when(op: Operation) -> str:
    """Say when an operation ran, in brackets after a space; nothing if its history had no times."""
    if op.returned is None:
        return f" (from {seconds(op.invoked)} on, outcome unknown)" if op.timed else " (outcome unknown)"
    return f" ({seconds(op.invoked)} to {seconds(op.returned)})" if op.timed else ""


def proof(
    model: Model, window: Sequence[Operation], operations: Sequence[Operation], starts: Sequence[Hashable], moment: int
) -> list[str]:
    """Return the proof that a window's operations do not fit together, a sentence an item.

    Args:
        model: what the operations mean; its ``reasons(window, operations)``, if it has them, are the proof's middle.
        window: operations in the order of their invocations.
        operations: all of the object.
        starts: states that were possible at ``moment``, before the window; none if it does not matter.
        moment: when nothing was running, but what is unknown.
    """
    lines = [what(op) + when(op) for op in window]
    lines.extend(_before(earlier, later) for earlier, later in _orders(window))
    if starts:
        states = [*(describe(model, state) for state in starts[:4]), *(["others"] if len(starts) > 4 else [])]
        at = f"at {seconds(moment)}" if window[0].timed else f"before {what(window[0])}"
        lines.append(f"{at}, when nothing else was running, the state can only have been {' or '.join(states)}")
    reasons = getattr(model, "reasons", None)
    lines.extend(reasons(window, operations) if reasons is not None else _makers(window, operations))
    lines.extend(line for earlier, later in _orders(window) for line in _lost(earlier, later))
    lines.append("no order of these keeps real time and gives these results, whatever the other operations did")
    return lines


def _before(earlier: Operation, later: Operation) -> str:
    if not earlier.timed:
        return f"{what(earlier)} and had its answer before {what(later)} began"
    answered, began = seconds(earlier.returned or 0), seconds(later.invoked)
    return f"{what(earlier)} and had its answer at {answered}, before {what(later)}, which began at {began}"


def no_proof(window: Sequence[Operation], count: int) -> list[str]:
    """Return what is known where no short proof was found within limits."""
    lines = [what(op) + when(op) for op in window]
    return [*lines, f"after the longest good order, of {count} operations, none of these can come next, and one must"]


def _makers(window: Sequence[Operation], operations: Sequence[Operation]) -> list[str]:
    """Say of each value in a window whether anything else can have made it."""
    names = {op.f for op in operations}
    if "get" in names and names & {"increment", "append"}:
        return []
    inside = {op.index for op in window}
    lines: list[str] = []
    for op in window:
        for value in _missing(op, operations):
            made = [other for other in operations if value in map(freeze, _gives(other))]
            if not made:
                lines.append(f"no operation ever gave {shown(thaw(value))}")
            elif not any(other.index not in inside and other.invoked <= (op.returned or 0) for other in made):
                by = f"by {seconds(op.returned or 0)}" if op.timed else f"before {what(op)}"
                text = f"no other operation that gives {shown(thaw(value))} had begun {by}"
                if text not in lines:
                    lines.append(text)
    return lines


def _lost(earlier: Operation, later: Operation) -> list[str]:
    """Say what of an earlier operation a later one lacks."""
    old, new = _version(earlier), _version(later)
    if old and new and new < old:
        return [f"version {new} is older than {old}"]
    if later.f == "read" and isinstance(later.result, list):
        found = set(map(freeze, later.result))
        had = earlier.result if isinstance(earlier.result, list) else _gives(earlier)
        lacks = [item for item in had if freeze(item) not in found]
        if lacks:
            return [f"the later read lacks {shown(lacks[0])}"]
    return []


def _version(op: Operation) -> int:
    version = op.result.get("version") if isinstance(op.result, dict) else None
    return version if type(version) is int else 0


def _missing(op: Operation, operations: Sequence[Operation]) -> list[Hashable]:
    """Return the value that an operation saw; of a list, the first item that no operation made."""
    if op.status != "ok" or op.f not in ("read", "get", "dequeue") or op.result is None:
        return []
    if op.f == "get":
        return [freeze(op.result["value"])] if "value" in op.result else []
    if not isinstance(op.result, list):
        return [freeze(op.result)]
    made = {freeze(value) for other in operations for value in _gives(other)}
    return [item for item in map(freeze, op.result) if item not in made][:1]


def _gives(op: Operation) -> list[Any]:
    """Return the value that an operation leaves, if its argument tells."""
    if op.f in ("write", "append", "add", "enqueue"):
        return [op.argument]
    if op.f == "cas":
        return [op.argument[1]]
    return [op.argument.get("value")] if op.f in ("put", "insert") and isinstance(op.argument, dict) else []


def _orders(window: Sequence[Operation]) -> list[tuple[Operation, Operation]]:
    """Return the pairs that real time orders, without those that follow from others."""

    def precedes(a: Operation, b: Operation) -> bool:
        return a.returned is not None and a.returned < b.invoked

    pairs = [(a, b) for a in window for b in window if precedes(a, b)]
    return [(a, b) for a, b in pairs if not any(precedes(a, c) and precedes(c, b) for c in window)]
