"""How many rows one transaction takes, and how many bytes of them it remembers: as many as there is room for.

Small bounds, rows of several sizes, and other writes in the same transaction: bound ones, which take room of their
session, reads, which take bytes of the result, and writes of rows that are to be taken. Nothing leaves a session with
more rows than may be bound to it, no result is over its bytes, and neither bound stops a taking before it is reached.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import tables
from oncegate.gateway.machine.row_rule import Remembered
from oncegate.gateway.machine.tables import ROW_OVERHEAD_BYTES
from oncegate.gateway.machine.transactions import Took, Transacted
from oncegate.rifl.errors import Code
from oncegate.rifl.rule import Applied
from tests.gateway.test_transactions import Log, put

BOUND, BYTES = 6, 900
OTHERS = ("r/0", "r/1", "b/0", "b/1", "x/0", "x/1", "x/2")
"""Rows that are written before the taking: some would be taken, and some are where a row goes."""


def reading(size: int) -> int:
    return Remembered(None, 1, b"x" * size).size


@pytest.mark.parametrize("seed", range(3))
def test_as_many_rows_are_taken_as_were_asked_for_and_have_room(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(tables, "BOUND_ROWS_MAX", BOUND)
    monkeypatch.setattr(c, "RESULT_BYTES_MAX", BYTES)
    ends = dict.fromkeys(("asked", "room", "bytes", "rows", "refused", "too large"), 0)
    for _ in range(80):
        log, sequence = Log(), 0
        there = {f"r/{at}": "x" * dice.choice((1, 1, 60, 300, 1_000)) for at in range(dice.randrange(9))}
        for key, value in there.items():
            sequence += 1
            log.transact(sequence, put("t", key, value))
        held = dice.choice((0, 0, 1, 3, BOUND - 1, BOUND))
        for at in range(held):
            sequence += 1
            log.transact(sequence, put("t", f"held/{at}", 1, bound=True))
        mine = [dice.choice(OTHERS) for _ in range(dice.choice((0, 0, 1, 2, 3)))]
        read = [dice.choice(sorted(there)) for _ in range(dice.choice((0, 0, 1, 2)))] if there else []
        count = dice.choice((1, 2, 9))
        writes: list[dict[str, Any]] = [put("t", key, 1, bound=True) for key in mine]
        writes += [{"op": "get", "table": "t", "key": key} for key in read if key not in mine]
        read = [key for key in read if key not in mine]
        take = {"op": "take", "table": "t", "key": "r/", "to": "x/", "count": count, "bound": True}
        before = log.machine.commit
        verdict = log.transact(sequence + 1, *writes, take)

        sizes = [len(msgspec.json.encode(there[key])) for key in read]
        left = BYTES - sum(map(reading, sizes))
        # Each write before it is counted as a row that ends before it is known what it does.
        if held + len(mine) > BOUND or held + len(writes) >= BOUND:
            assert verdict.refusal.code is Code.QUOTA
            ends["refused"] += 1
            assert log.machine.commit == before
            continue
        if any(size > BYTES for size in sizes) or left < 0:
            assert verdict.refusal.code is Code.PAYLOAD_TOO_LARGE
            ends["too large"] += 1
            assert log.machine.commit == before
            continue
        assert isinstance(verdict, Applied), verdict
        result = verdict.record.result
        assert isinstance(result, Transacted)
        taken = result.taken if isinstance(result, Took) else []
        may_be = [key for key in sorted(there) if key not in mine]
        assert [one.key for one in taken] == [f"x/{key[2:]}" for key in may_be[: len(taken)]], "the first ones"
        assert len(taken) <= count
        assert log.machine.ends.bound(1) <= BOUND
        table = log.machine.tables["t"]
        assert table.bytes == sum(ROW_OVERHEAD_BYTES + len(key) + len(row.value) for key, row in table.rows.items())
        assert log.machine.ends.places() == {("t", key) for key, row in table.rows.items() if row.life is not None}
        assert sum(len(one.value or b"") for one in taken) <= max(0, left)
        assert all(one.value is not None for one in taken[1:]), "the first one alone is told without its value"
        assert len(taken) == 1 or all(one.value is not None for one in taken), "and none is taken behind it"
        if len(taken) == len(may_be):
            ends["rows"] += 1
        elif len(taken) == count:
            ends["asked"] += 1
        elif len(taken) == BOUND - held - len(set(mine)):
            ends["room"] += 1
        else:
            told = sum(len(msgspec.json.encode(there[key])) for key in may_be[: len(taken) + 1])
            assert told > left, "neither rows nor room nor bytes were at an end"
            ends["bytes"] += 1
    assert sum(ends.values()) == 80
    assert sum(count > 0 for count in ends.values()) >= 5, ends
