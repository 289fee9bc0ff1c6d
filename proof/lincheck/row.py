"""The model of a table row with versions.

Owns: ``put``, ``insert``, ``delete``, ``increment``, ``append`` and ``get`` as docs/API.md tells them. A version is the
commit number of a write: unique, growing. It dictates the order of all operations that have one, which makes a
check nearly linear. The state is (commit, exact, value): the last write had this commit number, or, where it was not
known, a higher one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final

from oncegate.proof.lincheck.history import Operation, freeze, thaw
from oncegate.proof.lincheck.models import ILLEGAL, _Illegal, _KnownOperations

_ABSENT: Final = ("absent",)
_IMPOSSIBLE: Final = object()

State = tuple[int, bool, Hashable]


class RowModel(_KnownOperations):
    """A row of a resident table: absent at first, version 0 while it is absent."""

    name = "row"
    reads = frozenset({"get"})
    writes = frozenset({"put", "insert", "delete", "increment", "append"})

    def __init__(self, before: dict[int, int] | None = None, written: frozenset[int] = frozenset()) -> None:
        self._before = before or {}
        """Of each version that was seen, the one seen before it."""
        self._written = written
        """Versions that a known operation wrote."""

    def complain(self, op: Operation) -> str:
        if op.argument is not None and not isinstance(op.argument, dict):
            return f"{op.f} takes an object"
        if op.status == "ok" and op.result is not None and not isinstance(op.result, dict):
            return f"{op.f} returns an object"
        argument = op.argument or {}
        if type(argument.get("by", 1)) is not int:
            return "by is an integer"
        condition = argument.get("if")
        if condition is not None and not (
            isinstance(condition, dict) and condition.keys() & {"absent", "version", "value"}
        ):
            return "if is absent, version or value"
        version = (op.result or {}).get("version") if op.status == "ok" else None
        if version is not None and (type(version) is not int or version < 0):
            return "a version is a positive integer, or 0"
        return super().complain(op)

    def initial(self) -> Hashable:
        return (0, True, _ABSENT)

    def prepare(self, operations: Sequence[Operation]) -> RowModel:
        """Return the row which knows the versions that were seen: none of them may be passed over."""
        seen: set[int] = set()
        written: set[int] = set()
        for op in operations:
            if op.status != "ok" or not isinstance(op.result, dict) or not op.result.get("version"):
                continue
            seen.add(op.result["version"])
            if not self.read_only(op):
                written.add(op.result["version"])
        order = sorted(seen)
        return RowModel(dict(zip(order, [0, *order], strict=False)), frozenset(written))

    def refine(self, operations: Sequence[Operation]) -> list[Operation]:
        """Leave out unknown puts of values that no operation can have seen."""
        seen: set[Hashable] = set()
        versions: set[int] = set()
        conditions: set[int] = set()
        for op in operations:
            condition = (op.argument or {}).get("if") or {}
            if op.f in ("increment", "append"):
                return list(operations)
            if "value" in condition:
                seen.add(freeze(condition["value"]))
            if "version" in condition:
                conditions.add(condition["version"])
            if op.status == "ok":
                result = op.result or {}
                if "version" not in result:
                    return list(operations)
                versions.add(result["version"])
                if self.read_only(op) and result["version"]:
                    if "value" not in result:
                        return list(operations)
                    seen.add(freeze(result["value"]))
        if not conditions <= versions | {0}:
            return list(operations)
        return [
            op
            for op in operations
            if op.f not in ("put", "insert") or op.status == "ok" or freeze((op.argument or {}).get("value")) in seen
        ]

    def step(self, state: State, op: Operation) -> Hashable | _Illegal:
        result = op.result if op.status == "ok" and op.result is not None else {}
        if op.f == "get" or "refused" in result:
            return self._look(state, op, result)
        held = self._condition(state, op)
        after = _IMPOSSIBLE if held is None else _effect(held[2], op)
        if held is None or after is _IMPOSSIBLE:
            return state if op.status == "unknown" else ILLEGAL
        if "value" in result and freeze(result["value"]) != after and op.f in ("increment", "append"):
            return ILLEGAL
        version = result.get("version")
        if not version:
            return (held[0], False, after)
        if version <= held[0] or self._before.get(version, 0) > held[0]:
            return ILLEGAL
        return (version, True, after)

    def _look(self, state: State, op: Operation, result: dict[str, Any]) -> Hashable | _Illegal:
        if op.status == "unknown":
            return state
        seen: State | None = state
        if "version" in result:
            seen = self._at(state, result["version"])
        elif op.f == "get" and "value" not in result and state[2] != _ABSENT:
            return ILLEGAL
        if seen is None or ("value" in result and freeze(result["value"]) != seen[2]):
            return ILLEGAL
        if result.get("refused") in (True, "CONDITION_FAILED"):
            return seen if self._may_fail(seen, op) else ILLEGAL
        return seen

    def _at(self, state: State, version: int) -> State | None:
        """Return the state as it is if the row's version is ``version``; None if it cannot be."""
        commit, exact, value = state
        if value == _ABSENT or version == 0:
            return state if value == _ABSENT and version == 0 else None
        if exact:
            return state if commit == version else None
        if version <= commit or version in self._written or self._before.get(version, 0) > commit:
            return None
        return (version, True, value)

    def _condition(self, state: State, op: Operation) -> State | None:
        """Return the state in which the operation's condition holds; None if it cannot."""
        if op.f == "insert":
            return state if state[2] == _ABSENT else None
        condition = (op.argument or {}).get("if")
        if not condition:
            return state
        if "absent" in condition:
            return state if (state[2] == _ABSENT) == bool(condition["absent"]) else None
        if "version" in condition:
            return self._at(state, condition["version"])
        return state if state[2] == freeze(condition["value"]) else None

    def _may_fail(self, state: State, op: Operation) -> bool:
        held = self._condition(state, op)
        if held is None:
            return True
        # Where the version is not known the condition on it holds or not: either may be.
        return held != state

    def describe(self, state: State) -> str:
        commit, exact, value = state
        if value == _ABSENT:
            return "no row"
        return f"{thaw(value)!r} at version {commit}" if exact else f"{thaw(value)!r} at a version above {commit}"


def _effect(value: Hashable, op: Operation) -> Any:
    argument = op.argument or {}
    match op.f:
        case "put" | "insert":
            return freeze(argument.get("value"))
        case "delete":
            return _ABSENT
        case "increment":
            by = argument.get("by", 1)
            if value == _ABSENT:
                return by
            return value + by if type(value) is int else _IMPOSSIBLE
        case _:
            item = freeze(argument.get("item"))
            if value == _ABSENT:
                return ("list", item)
            return (*value, item) if isinstance(value, tuple) and value[0] == "list" else _IMPOSSIBLE
