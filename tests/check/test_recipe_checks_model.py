"""The checks of recipes' workloads say of random histories what a look at every pair of operations says.

Each rule here is the promise of one check, written down without sorting or sweeping. Bounds are met exactly now and
then: an end and a beginning at one time, one holder too many, a number more than was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import pytest

from oncegate.proof.check.workloads.recipes import allocation, barrier, locks, queue
from oncegate.proof.lincheck import Event, Operation, operations
from tests.check.histories import Overlapping, verdicts_follow

Found = Sequence[Operation]
Rule = Callable[[Found], bool]
DOUBTFUL = ("ok", "ok", "ok", "info", "fail")


def never(op: Operation) -> bool:
    return op.status == "failed" or (isinstance(op.result, dict) and "refused" in op.result)


def done(found: Found, f: str) -> list[Operation]:
    return [op for op in found if op.f == f and op.status == "ok" and not never(op)]


def before(one: Operation, other: Operation) -> bool:
    return one.returned is not None and one.returned < other.invoked


def pairs(found: Found) -> list[tuple[Operation, Operation]]:
    return [(one, other) for one in found for other in found if one is not other]


def held(seed: int, workload: str) -> list[Event]:
    book = Overlapping(f"{workload} {seed}")
    dice, letter = book.dice, {"lock": "l", "read-write-lock": "w", "semaphore": "s", "election": "e"}[workload]
    kinds = ("guarded", "guarded", "fenced") if workload in ("lock", "election") else ("guarded",)
    tokens = range(3, 3 + 3 * dice.randint(2, 4), 3)
    for number, token in enumerate(tokens):
        asked = {"read-write-lock": dice.choice(("read", "read", "write")), "election": f"c{number}"}.get(workload)
        told = {"refused": "TAKEN"} if dice.random() < 0.1 else tokens[0] if dice.random() < 0.05 else token
        book.add("hold", f"{letter}{dice.randrange(4) // 3}", asked, told, ends=("ok", "ok", "ok", "ok", "ok", "info"))
    commits = iter(dice.sample(range(100, 150), 20))
    for number in range(len(tokens) * 2 if workload == "semaphore" else dice.randint(2, 5)):
        key = f"{letter}{dice.randrange(4) // 3}/{dice.choice(kinds)}"
        told = {"refused": "X"} if dice.random() < 0.1 else next(commits)
        book.add("write", key, [dice.choice(tokens), number], told, ends=DOUBTFUL)
    if workload == "election":
        for _ in range(3):
            led = [[token, f"c{(token - 3) // 3}"] for token in tokens if dice.random() < 0.6]
            seen = led if dice.random() < 0.9 else [[dice.choice(tokens), f"c{dice.randrange(4)}"] for _ in range(2)]
            shown = [*seen, None] if dice.random() < 0.3 else seen
            book.add("observe", f"e{dice.randrange(2)}", None, shown, ends=("ok", "ok", "info"))
    return book.events


def tokens_fall(found: Found) -> bool:
    holds = pairs(done(found, "hold"))
    return any(
        one.result == other.result or (one.key == other.key and before(one, other) and other.result < one.result)
        for one, other in holds
    )


def an_earlier_holder_follows(found: Found) -> bool:
    return any(
        one.key == other.key and one.result < other.result and one.argument[0] > other.argument[0]
        for one, other in pairs(done(found, "write"))
    )


def too_many_at_once(may: Callable[[list[Any], Any], bool]) -> Rule:
    def rule(found: Found) -> bool:
        holds, writes = done(found, "hold"), [op for op in done(found, "write") if op.key.endswith("/guarded")]
        asked = {op.result: op.argument for op in holds}
        for key in {op.key for op in writes}:
            here = [op for op in writes if op.key == key]
            commits = {
                token: [op.result for op in here if op.argument[0] == token]
                for token in {op.argument[0] for op in here}
            }
            for token, its in commits.items():
                around = [other for other, each in commits.items() if min(each) < min(its) < max(each)]
                if not may([asked.get(other) for other in around], asked.get(token)):
                    return True
            for hold in (hold for hold in holds if key == f"{hold.key}/guarded"):
                late = {op.argument[0] for op in here if op.argument[0] < hold.result and before(hold, op)}
                if not may([asked.get(other) for other in late], hold.argument):
                    return True
        return False

    return rule


def alone(others: list[Any], _: Any) -> bool:
    return not others


def readers(others: list[Any], asked: Any) -> bool:
    return not others or ("write" not in others and asked != "write")


def permits(others: list[Any], _: Any) -> bool:
    return len(others) + 1 <= locks.PERMITS


def wrongly_told(found: Found) -> bool:
    looks = [(op, [one for one in op.result if one]) for op in found if op.f == "observe" and op.status == "ok"]
    leaders = {op.result: op for op in done(found, "hold")}
    spans = [(op, op.result, op.result) for op in leaders.values()]
    for op, seen in looks:
        told = [token for token, _ in seen]
        if told != sorted(set(told)):
            return True
        for token, name in seen:
            if not any(hold.f == "hold" and (hold.key, hold.argument) == (op.key, name) for hold in found):
                return True
            if token in leaders and leaders[token].argument != name:
                return True
        spans += [(op, told[0], told[-1])] if told else []
    return any(
        one.key == other.key and before(one, other) and low < high for one, _, high in spans for other, low, _ in spans
    )


def names(seed: int) -> list[Event]:
    book = Overlapping(f"names {seed}")
    dice = book.dice
    tokens = [4, 9][: dice.randint(1, 2)]
    for at, token in enumerate(tokens):
        owner = {"owner": f"o{at}", "bound": dice.random() < 0.3}
        book.add("hold", f"n{dice.randrange(10) // 9}", owner, token, ends=("ok", "ok", "ok", "info"))
    for _ in range(dice.randrange(3)):
        book.add("give-up", "n0", dice.choice(tokens), result=True)
    for _ in range(dice.randrange(1, 4)):
        book.add("find", "n0", None, dice.choice((None, [4, "o0"], [9, "o1"], [4, "o1"])))
    return book.events


def taken_from_its_owner(found: Found) -> bool:
    for hold in done(found, "hold"):
        ends = [op.invoked for op in found if op.f == "give-up" and op.argument == hold.result]
        until = 0 if hold.argument["bound"] else min(ends, default=inf)
        here = [op for op in found if op.key == hold.key and op.returned is not None]
        for op in here:
            if op.f == "hold" and op.result > hold.result and (op.returned or 0) < until:
                return True
            if op.f != "find" or op.result == [hold.result, hold.argument["owner"]]:
                continue
            if (op.result and op.result[0] == hold.result) or (before(hold, op) and (op.returned or 0) < until):
                return True
    return False


def waits(seed: int) -> list[Event]:
    book = Overlapping(f"barrier {seed}")
    dice = book.dice
    for number in range(dice.randint(2, 6)):
        result = {"refused": "SESSION_EXPIRED"} if dice.random() < 0.2 else None
        book.add("wait", f"b{dice.randrange(10) // 9}", f"{number}", result, ends=("ok", "ok", "info", "fail"))
        for _ in range(dice.randrange(5) // 3):
            book.add("close", "b0", f"{number}", ends=("ok", "ok", "info"))
    book.add("late", f"b{dice.randrange(2)}", "9", {"refused": "X"} if dice.random() < 0.3 else None)
    return book.events


def too_few_wait(found: Found) -> bool:
    def waiting(op: Operation, at: int) -> bool:
        if op.status == "ok":
            return op.invoked <= at and (not never(op) or at < (op.returned or 0))
        # Its row may be in line until its session is closed.
        closed = [c.returned or 0 for c in found if c.f == "close" and c.status == "ok" and c.argument == op.argument]
        first = next(iter(closed), inf)
        return op.invoked <= at < max(first, op.invoked)

    for key in {op.key for op in done(found, "wait")}:
        its = [op for op in found if op.f == "wait" and op.key == key]
        first = min(op.returned or 0 for op in done(its, "wait"))
        if max(sum(waiting(op, at) for op in its) for at in range(first)) < barrier.PARTIES:
            return True
    return False


def is_shut_again(found: Found) -> bool:
    passed = {op.key for op in done(found, "wait")}
    return any(op.f == "late" and op.key in passed and (op.status != "ok" or never(op)) for op in found)


def claims(seed: int) -> list[Event]:
    book = Overlapping(f"queue {seed}")
    dice = book.dice
    tokens = iter(dice.sample(range(10, 60), 20))
    for _ in range(dice.randint(2, 4)):
        told = [[dice.choice((7, 9)), next(tokens), dice.choices((1, 2, 3, 4), (6, 6, 4, 1))[0]] for _ in range(1)]
        book.add("claim", dice.choice(queue.QUEUES), None, told)
    return book.events


def attempts_repeat(found: Found) -> bool:
    made = [(op.key, *one) for op in found if op.f == "claim" and op.status == "ok" for one in op.result]
    return any(attempts > queue.ATTEMPTS_MAX for *_, attempts in made) or any(
        one[:2] == other[:2] and one[2] < other[2] and one[3] >= other[3] for one in made for other in made
    )


def numbers(seed: int) -> list[Event]:
    book = Overlapping(f"sequence {seed}")
    dice = book.dice
    first = dice.choices((0, 1), (1, 9))[0]
    for _ in range(dice.randint(2, 4)):
        size = dice.randint(1, 3)
        low = first + dice.choices((-1, 0, 1), (1, 9, 1))[0]
        first = low + size
        book.add(
            "next",
            f"i{dice.randrange(8) // 7}",
            max(1, size + dice.choices((-1, 0, 1), (1, 18, 1))[0]),
            [low, low + size - 1],
        )
    return book.events


def handed_out_wrongly(found: Found) -> bool:
    for one in done(found, "next"):
        low, high = one.result
        asked = sum(op.argument for op in found if op.key == one.key and op.status != "failed")
        if high - low + 1 != one.argument or low < 1 or high > asked:
            return True
    for one, other in pairs(done(found, "next")):
        if one.key == other.key and one.result[0] <= other.result[1] and other.result[0] <= one.result[1]:
            return True
        if one.key == other.key and before(one, other) and other.result[0] < one.result[1]:
            return True
    return False


def limited(seed: int) -> list[Event]:
    book = Overlapping(f"permits {seed}")
    dice = book.dice
    ends = [300, 300 + allocation.PER_MS - dice.randrange(4) // 3]
    for commit in dice.sample(range(4, 40), dice.randint(1, 4)):
        there = {"ends_ms": dice.choice(ends), "value": dice.choices((1, 2, 5, 6), (6, 6, 6, 1))[0]}
        there = there if dice.random() < 0.9 else {}
        book.add("look", "r0", None, {"at_ms": 1, "commit": commit, **there})
    for _ in range(dice.randrange(7)):
        book.add("take", "r0", 1, {"refused": "TAKEN"} if dice.random() < 0.3 else None)
    return book.events


def windows(found: Found) -> dict[int, list[Operation]]:
    looks = [op for op in done(found, "look") if "ends_ms" in op.result]
    by_end = {
        end: [op for op in looks if op.result["ends_ms"] == end] for end in {op.result["ends_ms"] for op in looks}
    }
    return {end: sorted(its, key=lambda op: int(op.result["commit"])) for end, its in by_end.items()}


def over_given(found: Found) -> bool:
    for its in windows(found).values():
        first = its[0]
        for op in its:
            more = sum(take.argument for take in done(found, "take") if before(first, take) and before(take, op))
            if op.result["value"] > allocation.PERMITS or first.result["value"] + more > op.result["value"]:
                return True
    return False


def overlap(found: Found) -> bool:
    ends = sorted(windows(found))
    return any(0 < other - one < allocation.PER_MS for one in ends for other in ends)


CASES: list[tuple[str, Callable[[int], list[Event]], str, Rule]] = [
    *(
        (workload, lambda seed, workload=workload: held(seed, workload), check, rule)
        for workload, check, rule in [
            ("lock", "tokens rise", tokens_fall),
            ("lock", "no write of an earlier", an_earlier_holder_follows),
            ("lock", "one holder", too_many_at_once(alone)),
            ("read-write-lock", "a writer holds", too_many_at_once(readers)),
            ("semaphore", "no more holders", too_many_at_once(permits)),
            ("election", "observers", wrongly_told),
        ]
    ),
    ("registry", names, "a name is its owner's", taken_from_its_owner),
    ("barrier", waits, "nobody passes", too_few_wait),
    ("barrier", waits, "what is open", is_shut_again),
    ("queue", claims, "attempts are counted", attempts_repeat),
    ("sequence", numbers, "each number", handed_out_wrongly),
    ("rate-limiter", limited, "no window has more", over_given),
    ("rate-limiter", limited, "windows do not overlap", overlap),
]


@pytest.mark.parametrize(("workload", "made", "check", "rule"), CASES, ids=[f"{one[0]}: {one[2]}" for one in CASES])
def test_verdict_is_what_a_look_at_every_pair_says(
    workload: str, made: Callable[[int], list[Event]], check: str, rule: Rule
) -> None:
    verdicts_follow(workload, check, made, lambda events: "invalid" if rule(operations(events)) else "valid", 400)
