"""The checks that workloads share say of random histories what a look at every pair of operations says.

The checks sort and sweep; the rules here are their promises written down again, one pair at a time. In the histories
operations overlap and touch, workers go on under other numbers, writes are refused, fail or stay in doubt.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from oncegate.proof.check.checks import (
    LOST,
    Findings,
    exactly_once,
    no_lost_item,
    no_lost_version,
    no_lost_write,
    rising,
)
from oncegate.proof.check.plan import PROCESSES_MAX
from oncegate.proof.check.recorder import LANES
from oncegate.proof.lincheck import Operation, Result
from oncegate.proof.lincheck.verdict import FAILURES_MAX

KEYS = ("a", "b")
Found = Sequence[Operation]


class History:
    """Operations at random times, few enough for each of them to matter."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.ops: list[Operation] = []

    def add(self, f: str, argument: Any, result: Any, *, final: bool = False, sure: bool = False) -> None:
        dice = self.dice
        status: Any = "ok" if sure else dice.choice(("ok", "ok", "ok", "unknown", "failed"))
        process = (PROCESSES_MAX if final else dice.randrange(2)) + LANES * dice.randrange(3)
        invoked = dice.randrange(8)
        returned = invoked + dice.randrange(4) if status == "ok" else None
        told = result if status == "ok" else None
        self.ops.append(Operation(0, process, f, dice.choice(KEYS), argument, told, status, invoked, returned, "n1"))

    def done(self) -> list[Operation]:
        self.dice.shuffle(self.ops)
        return [
            Operation(at, op.process, op.f, op.key, op.argument, op.result, op.status, op.invoked, op.returned, op.node)
            for at, op in enumerate(self.ops)
        ]

    def result(self, made: Any) -> Any:
        return {"refused": "X"} if self.dice.random() < 0.2 else made


def before(one: Operation, other: Operation) -> bool:
    return one.returned is not None and one.returned < other.invoked


def refused(op: Operation) -> bool:
    return op.status == "failed" or (isinstance(op.result, dict) and "refused" in op.result)


def acknowledged(op: Operation) -> bool:
    return op.status == "ok" and not refused(op)


def is_final(op: Operation) -> bool:
    """Whether its lane is one of those that are for final reads, whatever number its worker has come to."""
    return op.process % LANES in range(PROCESSES_MAX, LANES)


def final(found: Found, key: str, f: str) -> list[Operation]:
    return [op for op in found if op.key == key and op.f == f and op.status == "ok" and is_final(op)]


def judged(found: Found, fs: Sequence[str], f: str, wrong: Callable[[str, Operation], bool]) -> tuple[bool, bool]:
    """Tell whether a final read is wrong, and whether a key of the operations ``fs`` has none."""
    keys = {op.key for op in found if op.f in fs}
    return (
        any(wrong(key, read) for key in keys for read in final(found, key, f)),
        any(not final(found, key, f) for key in keys),
    )


def writes(seed: int) -> list[Operation]:
    history = History(seed)
    for value in range(4):
        history.add("write", value, history.result(None))
    for _ in range(3):
        seen = history.dice.choice((0, 1, 2, 3, None, 3, 9))
        history.add("read", None, seen, final=history.dice.random() < 0.7, sure=history.dice.random() < 0.8)
    return history.done()


def a_lost_write(found: Found) -> tuple[bool, bool]:
    def wrong(key: str, read: Operation) -> bool:
        made = [op for op in found if op.f == "write" and op.key == key]
        sure = [op for op in made if acknowledged(op)]
        if read.result is None:
            return bool(sure)
        sources = [op for op in made if op.argument == read.result]
        return not sources or any(refused(one) or any(before(one, other) for other in sure) for one in sources)

    return judged(found, ("write",), "read", wrong)


def versions(seed: int) -> list[Operation]:
    history = History(seed)
    for version in range(1, 5):
        f = history.dice.choice(("put", "put", "insert", "delete"))
        again = history.dice.random() < 0.05
        history.add(f, {}, history.result({"version": 1 if again else version}))
    for _ in range(3):
        history.add("get", None, {"version": history.dice.randrange(5)}, final=history.dice.random() < 0.8)
    return history.done()


FS = ("put", "insert", "delete")


def a_lost_version(found: Found) -> tuple[bool, bool]:
    sure = [op for op in found if op.f in FS and acknowledged(op)]

    def wrong(key: str, read: Operation) -> bool:
        newest = max((op for op in sure if op.key == key), key=lambda op: int(op.result["version"]))
        in_doubt = any(op.f == "delete" and op.key == key and op.status == "unknown" for op in found)
        seen = int(read.result["version"])
        if not seen:
            return newest.f != "delete" and not in_doubt
        return seen < int(newest.result["version"])

    old, unread = judged(sure + [op for op in found if op.f == "get"], FS, "get", wrong)
    return old or len({op.result["version"] for op in sure}) < len(sure), unread


def lists(seed: int) -> list[Operation]:
    history = History(seed)
    for item in range(4):
        history.add("append", item, history.result(None))
    for _ in range(3):
        listed = history.dice.choices((0, 1, 2, 3, 9), (8, 8, 8, 8, 1), k=history.dice.randrange(3))
        history.add("read", None, listed, final=history.dice.random() < 0.5)
    return history.done()


def a_lost_item(found: Found) -> tuple[bool, bool]:
    def wrong(key: str, read: Operation) -> bool:
        sure = [op.argument for op in found if op.f == "append" and op.key == key and acknowledged(op)]
        return not {*sure} <= {*read.result}

    return judged(found, ("append",), "read", wrong)


def one_too_many(found: Found) -> tuple[bool, bool]:
    def wrong(read: Operation, item: int, times: int) -> bool:
        sources = [op for op in found if op.f == "append" and op.key == read.key and op.argument == item]
        return times > 1 or not sources or any(refused(op) or before(read, op) for op in sources)

    reads = [op for op in found if op.f == "read" and op.status == "ok"]
    return any(wrong(read, *each) for read in reads for each in Counter(read.result).items()), False


def spans(seed: int) -> list[Operation]:
    history = History(seed)
    for _ in range(4):
        low = history.dice.randrange(6)
        history.add("next", None, [low, low + history.dice.randrange(3)], sure=True)
    return history.done()


def never_back(found: Found) -> Result:
    findings = Findings("rising")
    rising(findings, found, lambda op: (op.result[0], op.result[1]))
    return findings.result()


def a_step_back(found: Found) -> tuple[bool, bool]:
    pairs = ((one, other) for one in found for other in found if one.key == other.key and before(one, other))
    return any(other.result[0] < one.result[1] for one, other in pairs), False


RULES: dict[str, tuple[Any, Any, Any]] = {
    "no_lost_write": (writes, lambda found: no_lost_write(found, ("write",)), a_lost_write),
    "no_lost_version": (versions, lambda found: no_lost_version(found, FS), a_lost_version),
    "no_lost_item": (lists, no_lost_item, a_lost_item),
    "exactly_once": (lists, exactly_once, one_too_many),
    "rising": (spans, never_back, a_step_back),
}


def tried(name: str) -> Iterator[tuple[list[Operation], Result, str]]:
    made, check, rule = RULES[name]
    for seed in range(1_500):
        found = made(seed)
        broken, unread = rule(found)
        yield found, check(found), "invalid" if broken else "unknown" if unread else "valid"


@pytest.mark.parametrize("name", RULES)
def test_verdict_is_what_a_look_at_every_pair_says(name: str) -> None:
    said = Counter[str]()
    for found, result, expected in tried(name):
        assert result.verdict == expected, found
        said[expected] += 1
    assert min(said["invalid"], said["valid"]) > 20


def test_violations_that_are_not_listed_are_counted() -> None:
    findings = Findings(LOST)
    findings.undecided("not read")
    for number in range(FAILURES_MAX + 3):
        findings.violated(number, "lost")
    result = findings.result()
    assert len(result.failures) == FAILURES_MAX
    assert result.reason.startswith("3 more ")
