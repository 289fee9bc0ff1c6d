"""A part of a true history never raises an alarm; a history that cannot be true does."""

from __future__ import annotations

import random
from collections.abc import Iterable

import msgspec
import pytest

from oncegate.gateway import wire
from oncegate.gateway.answers import answer
from oncegate.gateway.http import request_bodies
from oncegate.gateway.live_check.order import Requests, RowOrder, before_asked, in_order
from oncegate.gateway.live_check.recorder import RowSample, Seen, of_read, of_result
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine

KEYS = ("a", "b", "c")


def true_history(seed: int, length: int = 120) -> list[Seen]:
    """Operations and reads of a machine, one after the other, each asked for after the answer before."""
    rng = random.Random(seed)
    machine = Machine()
    session = c.OpenSession("n", 60_000, 512)
    apply(machine, 1, 1, c.encode_entry(0, [c.DeclareTable("t", "resident", 1 << 20), session]))
    seen: list[Seen] = []
    floor = 0
    for number in range(1, length):
        key = rng.choice(KEYS)
        row = machine.tables["t"].rows.get(key)
        if rng.random() < 0.3:
            version, value = (0, None) if row is None else (row.version, row.value)
            seen.append(of_read("t", key, machine.commit, floor, version, value))
            continue
        kind = rng.choice(("put", "put", "delete", "increment", "append", "get"))
        op = wire.Operation(number, kind, "t", key)
        if kind == "put":
            op.value = rng.choice((1, 2.5, "x", [1], [], None, True, {"k": [1]}, "y" * 6_000))
        elif kind == "append":
            op.item = rng.choice((1, "z"))
        if kind != "get" and rng.random() < 0.4:
            version = 0 if row is None else row.version
            value = None if row is None else msgspec.json.decode(row.value)
            op.if_ = rng.choice(({"absent": True}, {"version": version}, {"version": 3}, {"value": value}))
        command = request_bodies.operations(wire.OperationsRequest("0000000000000001", 1, 1, [op]))
        (result,) = apply(machine, number + 1, 1, c.encode_entry(0, [command]))
        (told,) = answer(command, result, machine).body.results
        one = of_result(command.ops[0], 1, floor, told)
        assert one is not None
        seen.append(one)
        floor = machine.commit
    return seen


def alarms(seen: Iterable[Seen], *, unseen: bool = True) -> list[str]:
    rows: dict[str, RowOrder] = {}
    requests = Requests(10_000)
    found = [
        requests.add(one) or before_asked(one) or rows.setdefault(one.row, RowOrder()).step(one, unseen=unseen)
        for one in in_order(seen)
    ]
    return [words for words in found if words is not None]


@pytest.mark.parametrize("seed", range(60))
def test_true_history_and_every_part_of_it_raise_no_alarm(seed: int) -> None:
    whole = true_history(seed)
    assert alarms(whole, unseen=False) == []
    rng = random.Random(seed)
    for share in (0.8, 0.5, 0.2):
        part = [one for one in whole if rng.random() < share]
        rng.shuffle(part)
        assert alarms(part) == []


def test_each_observation_that_is_older_than_what_was_seen_is_an_alarm() -> None:
    caught = 0
    for seed in range(60):
        whole = true_history(seed)
        for at, one in enumerate(whole):
            before = [old for old in whole[:at] if old.row == one.row and old.writes and old.what != "delete"]
            if one.what == "read" and len(before) > 1 and one.version == before[-1].version:
                stale = msgspec.structs.replace(one, version=before[-2].version, value=before[-2].argument)
                assert alarms([*whole[:at], stale])[0].startswith(f"row t/{one.key}: read")
                caught += 1
    assert caught > 100


def write(commit: int, what: str = "put", **fields: object) -> Seen:
    argument = b"1" if what == "put" else None
    named = {"floor": 0, "argument": argument, "version": commit, "request": f"r/{commit}", **fields}
    return Seen("t", "a", what, commit, **named)  # type: ignore[arg-type]


def read(commit: int, version: int, value: bytes | None = None, floor: int = 0) -> Seen:
    return of_read("t", "a", commit, floor, version, value)


@pytest.mark.parametrize(
    ("history", "alarm"),
    [
        ([write(1), write(2), read(2, 1, b"1")], "version 1, although version 2"),
        ([write(1), read(1, 0)], "does not follow"),
        ([write(1), read(1, 1, b"2")], "does not follow"),
        ([write(1), read(3, 4, b"1")], "did not exist yet"),
        ([write(1), write(2, "increment", by=1, value=b"7")], "does not follow"),
        ([write(1), write(5, test=c.Test.VERSION, operand=1), write(6, test=c.Test.VERSION, operand=1)], "version 1"),
        ([write(1), write(2, test=c.Test.ABSENT)], "does not follow"),
        ([write(1), read(4, 1, b"1"), write(5, test=c.Test.ABSENT)], "does not follow"),
        ([write(4), read(6, 5, b"2"), read(8, 4, b"1")], "version 4, although version 5"),
        ([write(4, "delete"), read(4, 3, b"2")], "version 3, although version 4"),
        ([write(1), write(4, "append", argument=b"1"), read(9, 1, b"1")], "version 1, although version 4"),
        ([write(1, argument=None), read(1, 0)], "does not follow"),
        ([write(2, refusal="CONDITION_FAILED", version=1, test=c.Test.VERSION, operand=1)], ""),
        ([read(5, 3), write(6, refusal="CONDITION_FAILED", version=3, test=c.Test.VERSION, operand=3)], ""),
        (
            [read(5, 3, b"1"), write(6, refusal="CONDITION_FAILED", version=3, test=c.Test.VERSION, operand=3)],
            "does not follow",
        ),
        ([write(3), read(2, 1, b"1", floor=3)], "older than what was known"),
        ([write(3), write(2, floor=3)], "older than what was known"),
        ([write(3), write(2, floor=3, replayed=True)], ""),
        ([write(3), write(4, request="r/3")], "executed twice, at commits 3 and 4"),
        ([write(3), write(3, request="r/4")], "given to two requests"),
    ],
)
def test_known_bad_histories_are_alarms_and_good_ones_are_not(history: list[Seen], alarm: str) -> None:
    found = alarms(history)
    assert len(found) == bool(alarm), found
    assert alarm in "".join(found)


@pytest.mark.parametrize(
    ("history", "alarm"),
    [
        ([write(1), read(4, 0)], "does not follow"),
        ([write(1), write(4, "increment", by=1, value=b"3")], "does not follow"),
        ([write(1), read(4, 3, b"1")], "does not follow"),
    ],
)
def test_what_others_may_have_done_is_an_alarm_only_where_there_are_no_others(history: list[Seen], alarm: str) -> None:
    assert alarms(history) == []
    (found,) = alarms(history, unseen=False)
    assert alarm in found


def test_choice_is_the_same_everywhere_and_of_the_wanted_share() -> None:
    keys = [f"k{number}" for number in range(20_000)]
    ops = [c.Op(1, 1, "t", key, 0) for key in keys]
    chosen = RowSample(0.05, 7).of(ops)
    assert 800 < len(chosen) < 1_200
    assert (
        chosen == RowSample(0.05, 7).of(ops) == [at for at, key in enumerate(keys) if RowSample(0.05, 7).has("t", key)]
    )
    assert chosen != RowSample(0.05, 8).of(ops)
    assert RowSample(0.0, 7).of(ops) == []
    assert len(RowSample(1.0, 7).of(ops)) == len(ops)
