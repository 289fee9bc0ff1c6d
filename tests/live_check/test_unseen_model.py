"""The check of a sampled row against all that unseen operations may have done: what one of them explains is no alarm.

A row lives through puts, deletes, increments and appends; the check sees some of them, in part altered afterwards. The
reference tries at each commit number between two that were seen whatever others may have done there, and keeps every
state that is possible. Where none is left the history cannot be true, and where one is left there is no alarm.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from oncegate.gateway.live_check.order import Requests, RowOrder
from oncegate.gateway.live_check.recorder import READ, Seen
from oncegate.gateway.machine import commands as c

State = tuple[int, Any]
"""Version and value; (0, None) is no row."""
ABSENT: State = (0, None)
FAILED = "CONDITION_FAILED"
FIRST = 10
"""Nothing is known of what was before."""
VALUES: tuple[Any, ...] = (1, 2, 3, (), (1,), (1, 1))
WHATS = ("put", "put", "put", "delete", "increment", "append", "get", READ, READ)


def text(value: Any) -> bytes:
    return msgspec.json.encode(value)


def holds(seen: Seen, state: State) -> bool:
    """Tell whether the operation's condition holds."""
    if seen.test == c.Test.ABSENT:
        return state == ABSENT
    if seen.test == c.Test.VERSION:
        return seen.operand == state[0]
    return seen.test != c.Test.VALUE or (state != ABSENT and text(state[1]) == seen.operand)


def after(seen: Seen, state: State) -> list[State]:
    """Return what the row may be after an operation with this answer; nothing where the answer cannot be."""
    version, value = state
    if not seen.writes:
        told = version == seen.version and (seen.value is None or (version > 0 and text(value) == seen.value))
        return [state] if told and not (seen.refusal == FAILED and holds(seen, state)) else []
    if not holds(seen, state):
        return []
    if seen.what == "delete":
        return [ABSENT]
    if seen.what == "put":
        values = VALUES if seen.argument is None else (_value(seen.argument),)
        return [(seen.commit, one) for one in values]
    if seen.what == "increment":
        made = seen.by + (0 if value is None else value) if isinstance(value, int | None) else None
        return [(seen.commit, made)] if made is not None and text(made) == seen.value else []
    items = () if value is None else value
    return [(seen.commit, (*items, _value(seen.argument)))] if isinstance(items, tuple) else []


def _value(argument: bytes | None) -> Any:
    value = msgspec.json.decode(argument or b"null")
    return tuple(value) if isinstance(value, list) else value


def is_possible(history: Iterable[Seen], *, unseen: bool) -> bool:
    """Try all that others can have done at the commit numbers that none of these has."""
    listed = list(history)
    states = {ABSENT}
    at = 0
    told = {_value(one) for seen in listed for one in (seen.value, seen.operand) if isinstance(one, bytes)}
    values = {*VALUES, *told, *(one - seen.by for one in told if isinstance(one, int) for seen in listed)}
    for number, seen in enumerate(listed):
        for commit in range(at + 1, seen.commit + (not seen.logged)):
            if unseen or not number:
                states |= {ABSENT, *((commit, value) for value in values)}
        at = seen.commit
        states = {new for state in states for new in after(seen, state)}
        if not states:
            return False
    return True


class Row:
    """One row, and what the check sees of it."""

    def __init__(self, seed: int) -> None:
        self.dice, self.state, self.commit = random.Random(seed), ABSENT, FIRST
        self.seen: list[Seen] = []

    def step(self, *, unseen: bool) -> None:
        dice = self.dice
        what = dice.choice(WHATS)
        self.commit += what != READ or dice.random() < 0.3  # of another row
        version, value = self.state
        made = Seen("t", "k", what, self.commit, 0, f"r/{self.commit}" if what != READ else "")
        if what not in (READ, "get") and dice.random() < 0.5:
            operand = dice.choice((version, version, FIRST + 2))
            made = msgspec.structs.replace(
                made, **dice.choice((
                    {"test": int(c.Test.ABSENT)},
                    {"test": int(c.Test.VERSION), "operand": operand},
                    {"test": int(c.Test.VALUE), "operand": text(value if version else 1)},
                ))
            )  # fmt: skip
        if what in ("put", "append"):
            argument = dice.choice(VALUES if what == "put" else (1,))
            made = msgspec.structs.replace(made, argument=text(argument))
        if what == "increment":
            by = dice.choice((1, 2))
            total = by + (value or 0) if isinstance(value, int | None) else None
            made = msgspec.structs.replace(made, by=by, value=None if total is None else text(total))
        told = {"version": version, "value": text(value) if version else None}
        if made.writes and not holds(made, self.state):
            made = msgspec.structs.replace(made, refusal=FAILED, **told)
        elif made.writes and not after(made, self.state):
            made = msgspec.structs.replace(made, refusal="TYPE_MISMATCH", **told)
            if made.test:  # whether its condition held is not asked
                made = msgspec.structs.replace(made, test=0, operand=None)
        elif not made.writes:
            made = msgspec.structs.replace(made, **told)
        else:
            made = msgspec.structs.replace(made, version=self.commit)
        (self.state,) = after(made, self.state)
        if what == "put" and dice.random() < 0.2:  # too large to be kept
            made = msgspec.structs.replace(made, argument=None)
        if not unseen or dice.random() < 0.7:
            self.seen.append(made)

    def altered(self) -> list[Seen]:
        """Return the history with one answer that was another one, which alone could be true."""
        dice, at = self.dice, self.dice.randrange(len(self.seen))
        one = self.seen[at]
        versions = sorted(
            {one.version, one.version + 1, max(1, one.version - 1), *(s.version for s in self.seen)} - {0}
        )
        told = {"version": 0, "value": None}, {"version": dice.choice(versions), "value": text(dice.choice(VALUES))}
        others: list[dict[str, Any]] = [
            {} if one.writes else dice.choice(told),
            {"value": None} if not one.writes else {},
            {"value": text(dice.choice((1, 2, 3)))} if one.what == "increment" and one.writes and not one.test else {},
            {"by": dice.choice((1, 2))} if one.what == "increment" and not one.test else {},
            {"argument": dice.choice((None, text(dice.choice(VALUES))))} if one.what == "put" else {},
            {"operand": dice.choice(versions)} if one.test == c.Test.VERSION else {},
        ]
        new = msgspec.structs.replace(one, **dice.choice([other for other in others if other] or [{}]))
        return [*self.seen[:at], new, *self.seen[at + 1 :]]


def alarmed(history: list[Seen], *, unseen: bool) -> bool:
    """Take a history, and after each operation those before it once more: they come late, and are no news."""
    row, found = RowOrder(), False
    for number, one in enumerate(history):
        found |= row.step(one, unseen=unseen) is not None
        late = [old for old in history[:number] if old.commit < one.commit or old.logged]
        assert [row.step(old, unseen=unseen) for old in late] == [None] * len(late)
    return found


KNOWN = Seen("t", "k", "put", FIRST, 0, f"r/{FIRST}", version=FIRST, argument=b"1")


@pytest.mark.parametrize("unseen", [False, True])
@pytest.mark.parametrize("part", range(4))
def test_an_alarm_is_raised_exactly_if_nothing_that_others_may_have_done_explains_what_was_told(
    part: int, *, unseen: bool
) -> None:
    ends = Counter[bool]()
    for seed in range(part * 150, part * 150 + 150):
        row = Row(seed)
        for _ in range(row.dice.randint(2, 5)):
            row.step(unseen=unseen)
        if not row.seen:
            continue
        assert is_possible(row.seen, unseen=unseen)
        assert not alarmed(row.seen, unseen=unseen)
        for history in (altered := row.altered(), [KNOWN, *altered]):
            possible, alarm = is_possible(history, unseen=unseen), alarmed(history, unseen=unseen)
            ends[alarm] += 1
            if history[0] is KNOWN:
                assert alarm != possible, (seed, history)
            else:  # of a row of which nothing is known the first answer is believed
                assert not (alarm and possible), (seed, history)
    assert min(ends[False], ends[True]) > 20


@pytest.mark.parametrize("count", range(1, 8))
@pytest.mark.parametrize("size", [1, 2, 5])
def test_each_of_the_newest_requests_has_one_commit_number_and_older_ones_are_forgotten_with_theirs(
    size: int, count: int
) -> None:
    def write(request: int, commit: int) -> Seen:
        return msgspec.structs.replace(KNOWN, request=f"r/{request}", commit=commit)

    for old in range(1, count + 1):
        for probe, words in ((write(old, 99), "executed twice"), (write(99, old), "given to two requests")):
            requests = Requests(size)
            for number in range(1, count + 1):
                assert requests.add(write(number, number)) is None
                assert requests.add(write(number, number)) is None, "a replay is no second one"
            told = requests.add(probe)
            if old > count - size:
                assert told is not None
                assert words in told
            else:
                assert told is None
