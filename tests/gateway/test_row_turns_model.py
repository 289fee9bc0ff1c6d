"""Turns at rows, whoever waits, leaves, comes and takes, against a model that looks at all who wait each time."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import pytest

from oncegate.gateway.machine import commands as c
from oncegate.gateway.node import row_turns
from tests.gateway.test_row_turns import Node, end, told
from tests.gateway.test_transactions import transaction

PREFIXES = ("", "a", "ab", "b")
KEYS = ("a", "ab", "aba", "abb", "b", "ba", "c")
TABLES = ("t", "u")


@dataclass
class Waits:
    """One who waits, in the order of coming."""

    table: str
    prefix: str
    count: int
    tenant: str
    task: asyncio.Task[int]


class Walk:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.node = Node()
        self.node.do(c.DeclareTable("u", "resident", 1 << 20))
        self.rows: dict[tuple[str, str], int] = {}
        """Each with the number of the write that brought it as it is."""
        self.writes = 0
        self.waits: list[Waits] = []
        self.lying: dict[tuple[str, str], set[tuple[str, int]]] = {}
        """What was there at the last look, by table and prefix, since somebody has waited for it."""
        self.expected: list[tuple[Waits, int]] = []
        self.given = 0

    def places(self) -> list[tuple[str, str]]:
        return list(dict.fromkeys((one.table, one.prefix) for one in self.waits))

    def under(self, table: str, prefix: str) -> list[tuple[str, int]]:
        return sorted((key, at) for (of, key), at in self.rows.items() if of == table and key.startswith(prefix))

    def give(self, table: str, prefix: str, turns: int) -> None:
        """Expect that so many turns go to those who wait for one prefix."""
        for one in [one for one in self.waits if (one.table, one.prefix) == (table, prefix)]:
            if turns:
                given = min(turns, one.count)
                turns -= given
                self.expected.append((one, given))
                self.waits.remove(one)
                self.given += 1

    async def ask(self) -> None:
        table, prefix = self.dice.choice(TABLES), self.dice.choice(PREFIXES)
        count, tenant = self.dice.choice((1, 1, 2, 5)), self.dice.choice(("", "ann", "bob"))
        there = len(self.under(table, prefix))
        task = asyncio.create_task(self.node.turns.wait(table, prefix, count, 3600.0, tenant))
        await asyncio.sleep(0)
        one = Waits(table, prefix, count, tenant, task)
        if there:
            self.expected.append((one, min(there, count)))
        else:
            self.waits.append(one)
            self.lying.setdefault((table, prefix), set())

    def write(self) -> None:
        """Put some keys of one table, the same one twice at times, or delete one."""
        self.writes += 1
        table, keys = self.dice.choice(TABLES), self.dice.sample(KEYS, self.dice.choice((1, 1, 2, 3)))
        node, at = self.node, self.node.at + 1
        if self.dice.random() < 0.6:
            ops = [{"op": "delete", "table": table, "key": key} for key in keys]
            for key in keys:
                self.rows.pop((table, key), None)
        else:
            ops = [{"op": "put", "table": table, "key": key, "value": at} for key in keys]
            came = [key for key in keys if (table, key) not in self.rows]
            for place in self.places():
                self.give(*place, sum(place[0] == table and key.startswith(place[1]) for key in came))
            self.rows.update({(table, key): self.writes for key in keys})
        node.do(c.Operate(1, 1, at, [transaction(at, *ops)]))  # type: ignore[arg-type]
        if self.expected and self.dice.random() < 0.4:
            # It leaves in the turn in which it is told: the next one has its turns.
            gone, turns = self.expected.pop(self.dice.randrange(len(self.expected)))
            gone.task.cancel()
            self.give(gone.table, gone.prefix, turns)

    def look(self) -> None:
        for table, prefix in self.places():
            there = set(self.under(table, prefix)[: row_turns._LOOKED_ROWS])
            self.give(table, prefix, len(there & self.lying[table, prefix]))
            self.lying[table, prefix] = there
        timer = self.node.turns._timer
        assert timer is not None
        timer.cancel()
        self.node.turns._look()

    async def step(self) -> None:
        what = self.dice.choice(("ask", "ask", "ask", "write", "write", "write", "look", "leave", "lead"))
        if what == "ask":
            await self.ask()
        elif what == "write":
            self.write()
        elif what == "look" and self.waits:
            self.look()
        elif what == "leave" and self.waits:
            gone = self.dice.choice(self.waits)
            self.waits.remove(gone)
            gone.task.cancel()
        elif what == "lead" and self.dice.random() < 0.1:
            self.expected += [(one, 0) for one in self.waits]
            self.waits.clear()
            self.node.turns.lead(leads=False)
            self.node.turns.lead(leads=True)
            if self.dice.random() < 0.7:
                self.write()  # in the turn in which they are sent away: they have had their answer
        await self.check()

    async def check(self) -> None:
        assert await told(*(one.task for one, _ in self.expected)) == [given for _, given in self.expected]
        self.expected.clear()
        assert not any(one.task.done() for one in self.waits)
        places = self.places()
        self.lying = {place: lying for place, lying in self.lying.items() if place in places}
        turns = self.node.turns
        assert set(turns._lines) == set(places)
        assert turns.waiting == len(self.waits)
        of_tenant = {tenant: sum(one.tenant == tenant for one in self.waits) for tenant in ("", "ann", "bob")}
        assert dict(turns._of_tenant) == {tenant: count for tenant, count in of_tenant.items() if count}
        lengths = {table: [len(prefix) for of, prefix in places if of == table] for table in TABLES}
        counted = {table: sorted(counts.elements()) for table, counts in turns._lengths.items()}
        assert counted == {table: sorted(found) for table, found in lengths.items() if found}


@pytest.mark.parametrize("seed", range(6))
async def test_rows_give_turns_to_those_first_who_came_first_and_to_nobody_else(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(400):
        await walk.step()
    assert walk.given
    await end(*(one.task for one in walk.waits))
    assert (walk.node.turns.waiting, walk.node.turns._lines, walk.node.turns._lengths) == (0, {}, {})
