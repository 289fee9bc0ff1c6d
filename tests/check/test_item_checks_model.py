"""The checks of queues and flows, where each item has one place in the end, against their promises item by item.

An item is lost now and then, there twice, of somebody who was refused, or of nobody; nodes tell different things; some
of what the check needs was not read. See :mod:`tests.check.test_recipe_checks_model`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from oncegate.proof.check.checks import LOST
from oncegate.proof.check.workloads.recipes import queue
from oncegate.proof.lincheck import Event, Operation, operations
from tests.check.histories import FINAL, Book, Overlapping, verdicts_follow

Found = Sequence[Operation]


def worked(seed: int) -> list[Event]:
    """Items 1, 5 and 10, of which the last two cannot be processed; what two nodes tell of them in the end."""
    book = Overlapping(f"queue {seed}")
    dice = book.dice
    items = dice.sample((1, 2, 5), dice.randint(1, 3))
    for item in items:
        book.add("put", "q", item, {"refused": "X"} if dice.random() < 0.1 else item + 6)
    ends: dict[str, list[list[int]]] = {name: [] for name in queue.QUEUES}
    done: list[str] = []
    for item in items:
        times = dice.choices((0, 1, 2), (1, 12, 1))[0]
        for _ in range(times):
            if (dice.random() < 0.9) == (item % queue.POISON == 0):
                ends[dice.choice(queue.QUEUES)].append([item, dice.choices((2, 3, 4), (1, 12, 3))[0]])
            else:
                done.append(f"{item}.{item + 40 + len(done)}")
    for name, dead in ends.items():
        book.add("dead", name, None, dead, ends=("ok",) * 12 + ("fail",))
    for node in ("n1", "n2"):
        told = list(done) if dice.random() < 0.9 else [*done, *done[:1]][dice.randrange(2) :]
        book.add("read", "d1", None, told, ends=("ok",) * 12 + ("fail",), final=dice.random() < 0.95, node=node)
    return book.events


def nowhere_or_twice(found: Found) -> str:
    reads = [op for op in found if op.f == "read" and op.status == "ok" and op.process % (2 * FINAL) >= FINAL]
    letters = [op for op in found if op.f == "dead" and op.status == "ok"]
    puts = {op.argument for op in found if op.f == "put" and op.status == "ok" and not isinstance(op.result, dict)}
    aside = [item for op in letters for item, _ in op.result]
    if any(attempts < queue.ATTEMPTS_MAX for op in letters for _, attempts in op.result):
        return "invalid"
    for node in {op.node for op in reads}:
        listed = [int(mark.split(".")[0]) for op in reads if op.node == node for mark in op.result]
        places = Counter([*listed, *aside])
        poisoned = {item for item in puts if item % queue.POISON == 0}
        if max(places.values(), default=0) > 1 or puts - places.keys() or poisoned - {*aside}:
            return "invalid"
    return "valid" if not puts or (reads and len(letters) == len(queue.QUEUES)) else "unknown"


def consumed(seed: int) -> list[Event]:
    """Writes of up to two rows, the batches with their items at two nodes, and the store; a few things go wrong."""
    book, dice = Book(), Overlapping(f"flow {seed}").dice
    commit, value = 3, 0
    items: list[list[Any]] = []
    for _ in range(dice.randint(2, 4)):
        rows = [[dice.choice("kl"), value + 1 + at] for at in range(dice.randint(1, 2))]
        value += len(rows)
        commits = [commit + 1 + at for at in range(len(rows))]
        commit += len(rows)
        end = dice.choices(("ok", "info", "fail"), (6, 2, 1))[0]
        happened = end == "ok" or (end == "info" and dice.random() < 0.5)
        items += [[*row, at] for row, at in zip(rows, commits, strict=True)] if happened else []
        book.did("write", "changes", rows, commits if end == "ok" else None, end=end)
    newest = {key: [key, one, at] for key, one, at in items}
    spoilt = dice.randrange(16)
    if spoilt == 0 and items:
        items.pop(dice.randrange(len(items)))
    elif spoilt == 1 and items:
        items.append(dice.choice(items))
    elif spoilt == 2:
        items.append(["k", value + dice.randrange(3) - 1, commit + 1])
    elif spoilt == 3:
        dice.shuffle(items)
    elif spoilt == 4 and items:
        one, at = dice.choice(items), dice.randrange(3)
        one[at] = ("l", 1, commit + 2)[at]
    if spoilt == 5 and newest:
        del newest[dice.choice([*newest])]
    elif spoilt == 6:
        newest["x"] = ["x", 1, 4]
    elif spoilt == 7 and newest:
        newest["k"] = ["k", 99, 4]
    rows = [*newest.values()] * (1 + (spoilt == 8))
    half = dice.randint(0, len(items))
    for number, listed in ((1, items[:half]), (2, items[half:])):
        batch = {"etag": "e", "crc": number, "bytes": 9}
        other = batch | ({dice.choice(("etag", "crc", "bytes")): 7} if dice.random() < 0.05 else {})
        book.did("batch", f"changes/{number}", None, batch | {"items": listed}, node="n1")
        book.did("batch", f"changes/{number}", None, other, node="n2", end=dice.choice(("ok", "ok", "ok", "fail")))
    if dice.random() < 0.9:
        book.did("stored", "changes", None, rows[:1]).did("stored", "changes", None, rows[1:])
    return book.events


def batches(found: Found) -> list[Operation]:
    return [op for op in found if op.f == "batch" and op.status == "ok"]


def listed(found: Found) -> list[Any]:
    by_number = {op.key: op.result["items"] for op in batches(found) if "items" in op.result}
    return [tuple(item) for _, its in sorted(by_number.items()) for item in its]


def differs(found: Found) -> str:
    told = [(op.key, *(op.result[one] for one in ("etag", "crc", "bytes"))) for op in batches(found)]
    if len({*told}) > len({key for key, *_ in told}):
        return "invalid"
    return "unknown" if any(op.f == "batch" and op.status != "ok" for op in found) else "valid"


def lost_or_twice(found: Found) -> str:
    there = listed(found)
    commits, values = [commit for *_, commit in there], [value for _, value, _ in there]
    writes = [op for op in found if op.f == "write"]
    sent = [row[1] for op in writes for row in op.argument]
    refused = [row[1] for op in writes if op.status == "failed" for row in op.argument]
    sure = {(*row, at) for op in writes if op.status == "ok" for row, at in zip(op.argument, op.result, strict=True)}
    in_order = all(one < other for one, other in pairwise(commits))
    wrong = (
        not in_order or len({*values}) < len(values) or sure - {*there} or {*values} - {*sent} or {*values} & {*refused}
    )
    return "invalid" if wrong else "valid"


def not_in_the_store(found: Found) -> str:
    newest: dict[str, Any] = {}
    for key, value, commit in sorted(listed(found), key=lambda item: item[2]):
        newest[key] = (key, value, commit)
    stored = [op for op in found if op.f == "stored"]
    if not newest:
        return "valid"
    if not stored:
        return "unknown"
    rows = [tuple(row) for op in stored for row in op.result]
    return "valid" if sorted(rows) == sorted(newest.values()) else "invalid"


CASES: list[tuple[str, Callable[[int], list[Event]], str, Callable[[Found], str]]] = [
    ("queue", worked, "each item is completed or set aside", nowhere_or_twice),
    ("flow", consumed, "a batch is the same bytes", differs),
    ("flow", consumed, LOST, lost_or_twice),
    ("flow", consumed, "the store holds", not_in_the_store),
]


@pytest.mark.parametrize(("workload", "made", "check", "rule"), CASES, ids=[f"{one[0]}: {one[2]}" for one in CASES])
def test_verdict_is_what_each_item_says(
    workload: str, made: Callable[[int], list[Event]], check: str, rule: Callable[[Found], str]
) -> None:
    verdicts_follow(workload, check, made, lambda events: rule(operations(events)), 800)
