"""The checks of sessions and of rows that end say of random histories what a look at every pair of operations says.

Each rule here is the promise of one check, written down without sorting or sweeping; see
:mod:`tests.check.test_recipe_checks_model`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from oncegate.proof.check.recorder import LANES
from oncegate.proof.check.workloads import leases
from oncegate.proof.lincheck import Event, Operation, operations
from tests.check.histories import FINAL, Overlapping, verdicts_follow

Found = Sequence[Operation]
Rule = Callable[[list[Event]], bool]


def before(one: Operation, other: Operation) -> bool:
    return one.returned is not None and one.returned < other.invoked


def answered(found: Found, f: str) -> list[Operation]:
    return [op for op in found if op.f == f and op.status == "ok"]


def pairs(found: Found) -> list[tuple[Operation, Operation]]:
    return [(one, other) for one in found for other in found if one is not other]


def client(op: Operation) -> str:
    return str(op.request).partition("/")[0]


def taken_over(seed: int) -> list[Event]:
    book = Overlapping(f"hand-over {seed}")
    dice = book.dice
    for epoch in range(2, 2 + dice.randint(1, 2)):
        book.add("take-over", f"s{dice.randrange(6) // 5}", None, {"epoch": epoch}, ends=("ok", "ok", "info"))
    commit = dice.randint(1, 5)
    for number in range(dice.randint(2, 4)):
        commit += dice.choices((1, -2), (9, 1))[0]
        done = {"commit": commit, "replayed": dice.random() < 0.3, "epoch": 1 + number // 2}
        book.add("append", "l0", number, done, request=f"s{dice.randrange(6) // 5}/{number}", error="FENCED")
    return book.events


def fenced_too_late(events: list[Event]) -> bool:
    found = operations(events)
    ran = [op for op in answered(found, "append") if not op.result["replayed"]]
    for op in ran:
        others = [one for one in answered(found, "take-over") if one.key == client(op)]
        if any(before(one, op) and one.result["epoch"] > op.result["epoch"] for one in others):
            return True
    return any(
        client(one) == client(other)
        and one.result["epoch"] > other.result["epoch"]
        and one.result["commit"] < other.result["commit"]
        for one, other in pairs(ran)
    )


def expiring(seed: int) -> list[Event]:
    book = Overlapping(f"lease {seed}")
    dice = book.dice
    for number in range(dice.randint(2, 4)):
        request = f"s{dice.randrange(6) // 5}/{number}"
        for _ in range(dice.randint(1, 2)):
            done = {"commit": number + 1 + dice.randrange(12) // 11, "replayed": dice.random() < 0.4}
            error = dice.choice(("SESSION_EXPIRED", "SESSION_EXPIRED", "FENCED"))
            book.add("append", "l0", number, done, ends=("ok", "ok", "fail", "info"), request=request, error=error)
    return book.events


def ran_after_its_end(events: list[Event]) -> bool:
    begun = {event.process: event.time for event in events if event.type == "invoke"}
    ends = [event for event in events if event.type != "invoke"]
    done = [event for event in ends if event.type == "ok"]
    for over in ends:
        for one in done:
            same = str(over.request).partition("/")[0] == str(one.request).partition("/")[0]
            late = over.error == "SESSION_EXPIRED" and begun[one.process] > over.time
            if same and late and not one.value["replayed"]:
                return True
    return any(
        one.request == other.request and one.value["commit"] != other.value["commit"] for one in done for other in done
    )


def holding(seed: int) -> list[Event]:
    book = Overlapping(f"leases {seed}")
    dice = book.dice
    rows: dict[str, list[dict[str, Any]]] = {"h0": [], "h1": []}
    for value in range(1, 4):
        key, bound = f"h{dice.randrange(6) // 5}", dice.random() < 0.4
        session = f"s{dice.randrange(2)}"
        asked = {"value": value, "ttl_ms": 0 if bound else 9, "bound": bound, "session": session}
        ends = ("ok", "ok", "info", "fail")
        error = dice.choice(("SESSION_EXPIRED", "SESSION_EXPIRED", "FENCED"))
        book.add("hold", key, asked, {"commit": value * 3}, ends=ends, request=f"{session}/{value}", error=error)
        row: dict[str, Any] = {"value": value, "version": value * 3}
        row |= {"ends_ms": 40} if not bound or dice.random() < 0.3 else {}
        rows[key].append({**row, "owner": session} if bound else row)
    for session in dice.sample(("s0", "s1"), dice.randrange(3)):
        book.add("close", session, ends=("ok", "info"))
    for _ in range(dice.randint(2, 5)):
        key = f"h{dice.randrange(6) // 5}"
        seen = dice.choice([{}, *rows[key]])
        at_ms = dice.choice((20, 39, 40, 1_040, 2_020, 2_021, 2_040, 4_000))
        at_ms = dice.choice((20, 39)) if "ends_ms" in seen and dice.random() < 0.6 else at_ms
        book.add("look", key, None, {"at_ms": at_ms, "commit": dice.choice((3, 6, 9, 12)), **seen})
    return book.events


def looks(events: list[Event]) -> list[Operation]:
    return answered(operations(events), "look")


def ends_late(events: list[Event]) -> bool:
    return any(op.result["at_ms"] - op.result.get("ends_ms", 1e9) > leases.LATE_MS for op in looks(events))


def ends_early(events: list[Event]) -> bool:
    bound = [op.argument["value"] for op in operations(events) if op.f == "hold" and op.argument["bound"]]
    for one in looks(events):
        if "ends_ms" not in one.result or one.result["value"] in bound:
            continue
        for other in looks(events):
            gone = one.key == other.key and other.result.get("version") != one.result["version"]
            knows = other.result["commit"] > one.result["version"]  # the state that it was answered from
            if gone and knows and other.result["at_ms"] < one.result["ends_ms"]:
                return True
    return False


def outlives_its_session(events: list[Event]) -> bool:
    found = operations(events)
    told = [event for event in events if event.f == "hold" and event.error == "SESSION_EXPIRED"]
    for op in (op for op in looks(events) if "owner" in op.result):
        owner = op.result["owner"]
        if any(close.key == owner and before(close, op) for close in answered(found, "close")):
            return True
        for end in (end for end in told if str(end.request).startswith(f"{owner}/")):
            # Whatever was asked for after the session's end was told is later in cluster time than that end.
            later = [one.result["at_ms"] for one in looks(events) if one.invoked > end.time]
            if any(op.result["at_ms"] > at_ms + leases.REAPED_MS for at_ms in later):
                return True
    return False


def fates(seed: int) -> list[Event]:
    book = Overlapping(f"resolve {seed}")
    dice = book.dice
    for _ in range(dice.randint(1, 3)):
        answers = [
            (
                dice.choice(("attempt", "resolve")),
                *dice.choices(
                    (("applied", 3), ("sealed", None), ("failed", None), ("unknown", None), ("applied", 4)),
                    (20, 3, 5, 5, 1),
                )[0],
                "n1",
            )
            for _ in range(dice.randint(1, 2))
        ]
        book.add("fates", f"s/{dice.randrange(2)}", None, answers, ends=("ok",))
    return book.events


def two_fates(events: list[Event]) -> bool:
    told = [(op.key, what, commit) for op in operations(events) for _, what, commit, _ in op.result]
    known = [one for one in told if one[1] in ("applied", "sealed")]
    return any(one[0] == other[0] and one != other for one in known for other in known)


def attempts(seed: int) -> list[Event]:
    book = Overlapping(f"dedup {seed}")
    dice = book.dice
    for when in ("first", "again")[: dice.randint(1, 2)]:
        answers = [
            [
                dice.choices(("applied", "refused", "unknown"), (6, 1, 2))[0],
                {"commit": 3 + dice.randrange(16) // 15},
                dice.random() < 0.8,
                "",
                "n1",
            ]
            for _ in range(dice.randint(1, 3))
        ]
        book.add("answers", f"s/{dice.randrange(4) // 3}", when, answers, ends=("ok",))
    return book.events


def told_apart(events: list[Event]) -> bool:
    told = [(op.key, *one) for op in operations(events) for one in op.result if one[0] in ("applied", "refused")]
    executed = Counter(key for key, _, _, replayed, *_ in told if not replayed)
    return max(executed.values(), default=0) > 1 or any(
        one[0] == other[0] and one[2] != other[2] for one in told for other in told
    )


def doubtful(seed: int) -> list[Event]:
    book = Overlapping(f"doubts {seed}")
    dice = book.dice
    for item in range(3):
        fate = dice.choices(("applied", "sealed", "lost session", "never known: STALE"), (6, 4, 2, 1))[0]
        key = f"l{dice.randrange(6) // 5}"
        book.add("append", key, item, ends=("info",))
        book.add("fate", key, item, fate, ends=("ok",))
    for number in range(4):
        listed = dice.sample(range(3), dice.choice((0, 1, 2, 3, 3)))
        book.add("read", f"l{number // 3}", None, listed, ends=("ok",), final=number != 1)
    return book.events


def false_fate(events: list[Event]) -> bool:
    found = operations(events)
    for fate in answered(found, "fate"):
        reads = [op for op in answered(found, "read") if op.key == fate.key]
        last = [op for op in reads if op.process % LANES >= FINAL]
        there, stays = ([fate.argument in op.result for op in each] for each in (reads, last))
        wrong = {"applied": not all(stays), "sealed": any(there), "lost session": False}
        if wrong.get(fate.result, True):
            return True
    return False


CASES: list[tuple[str, Callable[[int], list[Event]], str, Rule]] = [
    ("hand-over", taken_over, "an owner that was taken over", fenced_too_late),
    ("lease", expiring, "a session that was told", ran_after_its_end),
    ("leases", holding, "no row is there more than", ends_late),
    ("leases", holding, "no row ends early", ends_early),
    ("leases", holding, "no row is seen bound", outlives_its_session),
    ("resolve", fates, "a request is applied", two_fates),
    ("dedup", attempts, "all attempts", told_apart),
    ("doubts", doubtful, "each doubt ends", false_fate),
]


@pytest.mark.parametrize(("workload", "made", "check", "rule"), CASES, ids=[f"{one[0]}: {one[2]}" for one in CASES])
def test_verdict_is_what_a_look_at_every_pair_says(
    workload: str, made: Callable[[int], list[Event]], check: str, rule: Rule
) -> None:
    verdicts_follow(workload, check, made, lambda events: "invalid" if rule(events) else "valid", 500)
