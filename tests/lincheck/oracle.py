"""Small random histories, and a checker so simple that it is right: it tries every order."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from oncegate.proof.lincheck import ILLEGAL, Model, Operation


def brute_force(
    operations: Sequence[Operation], model: Model, *, precedes: Callable[[Operation, Operation], bool] | None = None
) -> bool:
    """Tell whether any order of all known and any of the unknown operations is good. At most about eight of them."""
    before = precedes or (lambda a, b: a.returned is not None and a.returned < b.invoked)
    ops = [op for op in operations if op.status != "failed"]

    def go(state: Any, left: tuple[int, ...]) -> bool:
        if all(ops[index].status == "unknown" for index in left):
            return True
        for index in left:
            op = ops[index]
            if any(ops[other].status == "ok" and before(ops[other], op) for other in left if other != index):
                continue
            after = model.step(state, op)
            if after is not ILLEGAL and go(after, tuple(other for other in left if other != index)):
                return True
        return False

    return go(model.initial(), tuple(range(len(ops))))


VALUES = (1, 2, 3)
MS = 1_000_000


def _ask(name: str, random: random.Random, values: Sequence[int]) -> tuple[str, Any]:
    """Draw an operation and its argument."""
    value = random.choice(values)
    read = ("read", None)
    match name:
        case "register":
            calls: Sequence[tuple[str, Any]] = (("write", value), read, read)
        case "cas-register":
            calls = (("write", value), read, ("cas", [random.choice((None, *values)), value]))
        case "counter":
            calls = (("increment", value), ("increment", None), read)
        case "list":
            calls = (("append", value), read, read)
        case "set":
            calls = (("add", value), ("remove", value), read, read, read, read)
        case "queue":
            calls = (("enqueue", value), ("dequeue", None))
        case "mutex":
            calls = (("acquire", "ann"), ("acquire", "bob"), ("release", "ann"), ("release", "bob"))
        case "lease":
            owner = random.choice(("ann", "bob"))
            f = random.choice(("acquire", "acquire", "renew", "release"))
            asked = {"owner": owner, "ms": random.choice((2, 5, 30))}
            return f, asked if f == "acquire" else asked | {"token": random.choice((1, 1, 2, 3))}
        case _:
            conditions = ({"absent": True}, {"version": random.randrange(0, 40, 4)}, {"value": value})
            condition = random.choice((None, None, None, *conditions))
            put, insert, get = ("put", {"value": value}), ("insert", {"value": value}), ("get", {})
            changes = (("delete", {}), ("increment", {"by": value}), ("append", {"item": value}))
            f, argument = random.choice((put, put, insert, *changes, get, get))
            return f, argument if condition is None or f in ("get", "insert") else {**argument, "if": condition}
    return random.choice(calls)


class Object:
    """The real thing: does one operation after another, and answers."""

    def __init__(self, name: str, random: random.Random) -> None:
        self.name = name
        self.random = random
        self.value: Any = {"counter": 0, "list": [], "set": [], "queue": []}.get(name)
        self.version = 0
        self.commit = 0
        self.now = 0
        self.until = 0

    def answer(self, f: str, argument: Any) -> Any:
        value = self.value
        match self.name, f:
            case "row", _:
                return self._row(f, argument)
            case "lease", _:
                return self._lease(f, argument)
            case _, "read":
                return list(value) if isinstance(value, list) else value
            case _, "write":
                self.value = argument
            case _, "cas":
                if value != argument[0]:
                    return {"refused": True} | ({"value": value} if self.random.random() < 0.5 else {})
                self.value = argument[1]
            case _, "increment":
                self.value += 1 if argument is None else argument
                return self.value if self.random.random() < 0.5 else None
            case _, "append" | "enqueue":
                self.value = [*value, argument]
                # What else an answer says is none of the model's business.
                return {"commit": len(self.value)} if self.random.random() < 0.3 else None
            case _, "dequeue":
                self.value = value[1:]
                return value[0] if value else None
            case _, "add":
                self.value = sorted({*value, argument})
            case _, "remove":
                self.value = [item for item in value if item != argument]
            case _, "acquire":
                if value is not None:
                    return {"refused": True}
                self.value = argument
            case _, "release":
                if value != argument:
                    return {"refused": True}
                self.value = None
        return None

    def _lease(self, f: str, argument: dict[str, Any]) -> Any:
        if self.now > self.until:
            self.value = None
        if f == "acquire":
            if self.value not in (None, argument["owner"]):
                return {"refused": True}
            self.commit += 1
            self.value, self.until = argument["owner"], self.now + argument["ms"]
            return {"token": self.commit}
        if self.value != argument["owner"] or self.commit != argument["token"]:
            return {"refused": True}
        if f == "release":
            self.value = None
        else:
            self.until = max(self.until, self.now + argument["ms"])
        return None

    def past(self) -> Any:
        return self._row("get", {}) if self.name == "row" else self.value

    def _row(self, f: str, argument: dict[str, Any]) -> dict[str, Any]:
        self.commit += 4
        value, condition = self.value, argument.get("if", {})
        told = {"version": self.version} | ({} if value is None else {"value": value})
        if f == "get":
            return told
        holds = (
            (f != "insert" or value is None)
            and ("absent" not in condition or value is None)
            and condition.get("version", self.version) == self.version
            and condition.get("value", value) == value
        )
        if not holds:
            return {"refused": "CONDITION_FAILED"} | told
        if (f == "increment" and isinstance(value, list)) or (f == "append" and isinstance(value, int)):
            return {"refused": "NOT_A_LIST"} | told
        answer: dict[str, Any] = {"version": self.commit}
        match f:
            case "put" | "insert":
                self.value = argument["value"]
            case "delete":
                self.value = None
            case "increment":
                self.value = answer["value"] = (value or 0) + argument["by"]
            case "append":
                self.value = [*(value or []), argument["item"]]
        self.version = 0 if self.value is None else self.commit
        return answer


def by_process(ops: Sequence[Operation], count: int) -> list[Operation]:
    """Give operations to few processes, one after another where that is possible; none after an unknown one."""
    free: dict[int, float] = dict.fromkeys(range(count), -1)
    given = []
    for op in sorted(ops, key=lambda op: (op.invoked, op.index)):
        process = min((number for number, until in free.items() if until < op.invoked), default=len(free))
        free[process] = float("inf") if op.returned is None else op.returned
        given.append(msgspec.structs.replace(op, process=process))
    return given


def history(name: str, seed: int, count: int = 7, width: int | None = None) -> list[Operation]:
    """Return a small history of a real object, spoilt in every second case: a result, a time, a lost effect."""
    rng = random.Random(f"{name}/{seed}")
    thing = Object(name, rng)
    drawn: list[list[Any]] = []
    same = rng.random() < 0.5
    unknown = rng.choice((0, 0.1, 0.3))
    width = width or rng.choice((2, 5, 9))
    for index in range(count):
        point = 20 + rng.randrange(3 * count)
        drawn.append([point, index, max(0, point - rng.randrange(width)), point + rng.randrange(width)])
    drawn.sort()
    found: list[Operation] = []
    pasts: list[Any] = []
    for point, index, invoked, returned in drawn:
        thing.now = point
        invoked, returned = invoked * MS, returned * MS
        f, argument = _ask(name, rng, VALUES if same else (10 + index,))
        kind = rng.random()
        pasts.append(thing.past())
        if kind < 0.1:
            found.append(Operation(index, index, f, None, argument, None, "failed", invoked, None))
        elif kind < 0.1 + unknown:
            if rng.random() < 0.5:
                thing.answer(f, argument)
            found.append(Operation(index, index, f, None, argument, None, "unknown", invoked, None))
        else:
            result = thing.answer(f, argument)
            found.append(Operation(index, index, f, None, argument, result, "ok", invoked, returned))
    for _ in range(rng.choice((0, 1, 2, 4))):
        found = _spoil(found, pasts, rng)
    return sorted(found, key=lambda op: op.index)


def _spoil(found: list[Operation], pasts: list[Any], rng: random.Random) -> list[Operation]:
    at = rng.randrange(len(found))
    op = found[at]
    if op.status != "ok":
        return found
    if op.f in ("read", "get"):
        return [*found[:at], msgspec.structs.replace(op, result=rng.choice(pasts)), *found[at + 1 :]]
    others = [other.result for other in found if other.f == op.f and other.status == "ok"]
    if rng.random() < 0.6:
        return [*found[:at], msgspec.structs.replace(op, result=rng.choice(others)), *found[at + 1 :]]
    shift = rng.choice((-9, -5, 5, 9)) * MS
    moved = msgspec.structs.replace(op, invoked=op.invoked + shift, returned=(op.returned or 0) + shift)
    return [*found[:at], moved, *found[at + 1 :]]
