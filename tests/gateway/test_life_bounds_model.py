"""How many rows may end, of all tables, of one, and with one session: counted by hand, with bounds of a few rows.

Whether a write may give its row an end is what counting says of the state that it would leave, together with ``more``
others that are about to; so no order of writes takes the state over a bound, and none is refused within them.
"""

from __future__ import annotations

import random

import pytest

from oncegate.gateway.machine import tables
from oncegate.gateway.machine.commands import Op, OpKind
from oncegate.gateway.machine.row_ends import Life, RowEnds
from oncegate.gateway.machine.rows import StoredRow
from oncegate.gateway.machine.tables import Table
from oncegate.rifl.errors import Code
from oncegate.rifl.ids import CommitNumber, Fingerprint, SequenceNumber
from oncegate.rifl.key_table import KEYS_CLIENT

ALL, OF_TABLE, BOUND = 9, 6, 4
KEYS = "abcdefgh"
WRITES = (OpKind.PUT, OpKind.INCREMENT, OpKind.APPEND)


class Walk:
    """Two tables with one index, and the rows that end as the test counts them."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        ends = RowEnds()
        self.tables = [Table(name, "resident", 1 << 20, ends=ends) for name in ("t", "u")]
        self.lives: dict[tuple[str, str], Life] = {}
        self.commit = 0
        self.refused = self.taken = 0

    def of_table(self, name: str) -> int:
        return sum(table == name for table, _ in self.lives)

    def bound(self, owner: int) -> int:
        return sum(life.owner == owner for life in self.lives.values())

    def is_over(self, name: str, key: str, life: Life, more: int) -> bool:
        """Tell whether a bound would be broken by this row and ``more`` others that end with the same session."""
        known = self.lives.get((name, key))
        if known is None and (len(self.lives) + more >= ALL or self.of_table(name) + more >= OF_TABLE):
            return True
        new_to_it = life.owner and (known is None or known.owner != life.owner)
        return bool(new_to_it) and self.bound(life.owner) + more >= BOUND

    def step(self) -> None:
        dice, table = self.dice, self.dice.choice(self.tables)
        key, more = dice.choice(KEYS), dice.choice((0, 0, 0, 1, 3))
        life = Life(dice.choice((0, 500, 900)), dice.choice((0, 1, 2)), dice.choice(("", "z")))
        if not (life.ends_ms or life.owner):
            return
        kind = dice.choice((*WRITES, *WRITES, OpKind.TAKE, OpKind.DELETE, OpKind.GET))
        op = Op(SequenceNumber(1), kind.value, table.name, key, Fingerprint(0), value=b"1")
        code = table.check_life(op, life, more)
        room = min(ALL - len(self.lives), OF_TABLE - self.of_table(table.name))
        if life.owner:
            room = min(room, BOUND - self.bound(life.owner))
        assert table.room_to_end(life.owner, more) == room - more
        if kind in (OpKind.DELETE, OpKind.GET):
            assert code is Code.BAD_REQUEST
            return
        if kind is OpKind.TAKE:
            assert code is (Code.QUOTA if room - more <= 0 else None)
            return
        assert table.check_life(op, life._replace(owner=KEYS_CLIENT), more) is Code.BAD_REQUEST
        assert code is (Code.QUOTA if self.is_over(table.name, key, life, more) else None)
        if code is not None:
            self.refused += 1
        elif not more:
            self.put(table, key, life)

    def put(self, table: Table, key: str, life: Life | None) -> None:
        self.commit += 1
        row = None if life is None and self.dice.random() < 0.5 else StoredRow(CommitNumber(self.commit), b"1", life)
        table.change(key, table.rows.get(key), row, CommitNumber(self.commit))
        self.lives.pop((table.name, key), None)
        if life is not None:
            self.lives[table.name, key] = life
            self.taken += 1

    def check(self) -> None:
        ends = self.tables[0].ends
        assert len(ends) == len(self.lives) <= ALL
        for table in self.tables:
            assert table.ending == self.of_table(table.name) <= OF_TABLE
        for owner in (1, 2):
            assert ends.bound(owner) == self.bound(owner) <= BOUND
        assert ends.places() == set(self.lives)
        rows = {(table.name, key): row for table in self.tables for key, row in table.rows.items()}
        assert {place: row.life for place, row in rows.items() if row.life is not None} == self.lives


@pytest.mark.parametrize("seed", range(6))
def test_a_row_may_end_if_counting_says_that_there_is_room_for_one_more(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "ENDING_ROWS_MAX", ALL)
    monkeypatch.setattr(tables, "ENDING_ROWS_TABLE_MAX", OF_TABLE)
    monkeypatch.setattr(tables, "BOUND_ROWS_MAX", BOUND)
    walk = Walk(seed)
    for _ in range(800):
        if walk.dice.random() < 0.2:
            walk.put(walk.dice.choice(walk.tables), walk.dice.choice(KEYS), None)
        else:
            walk.step()
        walk.check()
    assert min(walk.refused, walk.taken) > 40
