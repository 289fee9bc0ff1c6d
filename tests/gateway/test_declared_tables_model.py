"""Tables that are declared, dropped and swept, with flows on them, against a table of what stands in the way."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import table_life
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.results import Dropped
from oncegate.gateway.machine.tables import Table
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import Fingerprint, SequenceNumber

TABLES, EVER, SWEPT = 4, 20, 2
NAMES = ("a", "b", "c", "d", "e")
QUOTAS = (1 << 20, 1 << 21)


@dataclass
class Known:
    """A table: its rows are items of its own flow where it is a stream."""

    kind: str
    incarnation: int
    quota: int
    max_items: int
    since: int
    rows: list[str] = field(default_factory=list)
    consumers: set[str] = field(default_factory=set)


class Model:
    def __init__(self) -> None:
        self.tables: dict[str, Known] = {}
        self.closing: dict[str, int] = {}
        self.flows: dict[str, tuple[str, str]] = {}
        """Source and target of each that is no table's own."""
        self.declared = 0
        self.commit = 0

    def declare(self, name: str, kind: str, quota: int, max_items: int, *, sheds: bool) -> Code | None:
        if (known := self.tables.get(name)) is not None:
            if known.kind == kind == "stream" and sheds:
                return Code.BAD_REQUEST
            if known.kind != kind or (kind == "stream" and max_items and known.max_items != max_items):
                return Code.CONFLICT
            known.quota = quota
            return None
        if name in self.closing:
            return Code.OVERLOADED
        if len(self.tables) + len(self.closing) == TABLES or self.declared == EVER:
            return Code.QUOTA
        if kind == "stream" and sheds:
            return Code.BAD_REQUEST
        # Of an incarnation that may have had others before it, only what comes from now on is told.
        since = self.commit if self.declared > len(self.tables) + len(self.closing) else 0
        self.declared += 1
        self.tables[name] = Known(kind, self.declared, quota, max_items or 16_384, since)
        return None

    def drop(self, name: str, incarnation: int, *, force: bool) -> Code | None:
        known = self.tables.get(name)
        if known is None:
            used = {one.incarnation for one in self.tables.values()}
            return None if 1 <= incarnation <= self.declared and incarnation not in used else Code.NOT_FOUND
        if incarnation != known.incarnation or any(name in ends for ends in self.flows.values()):
            return Code.CONFLICT
        if (known.rows or known.consumers) and not force:
            return Code.CONFLICT
        del self.tables[name]
        if known.kind == "resident" and known.rows:
            self.closing[name] = len(known.rows)
        return None

    def sweep(self) -> int:
        if not self.closing:
            return 0
        name = next(iter(self.closing))
        gone = min(SWEPT, self.closing[name])
        self.closing[name] -= gone
        if not self.closing[name]:
            del self.closing[name]
        return gone


class Driven:
    def __init__(self) -> None:
        self.machine, self.model = Machine(), Model()
        self.index = self.sequence = self.flows = 0
        self.do(c.OpenSession("n", 3_600_000, 512))

    def do(self, command: c.Command) -> Any:
        self.index += 1
        return apply(self.machine, self.index, 1, c.encode_entry(0, [command]))[0]

    def declare(self, dice: random.Random, name: str) -> None:
        kind, quota = dice.choice(("resident", "resident", "stream")), dice.choice(QUOTAS)
        # A resident table has no flow of its own, whatever comes with its declaration.
        max_items, sheds = dice.choice((0, 0, 100, 200)), dice.random() < 0.1
        flow: dict[str, Any] = {"name": name, "source": name, "max_items": max_items}
        if sheds:
            max_items = flow["max_items"] = 100
            flow["shed_lag_bytes"] = 1
        if max_items == 200:
            flow["consumers"] = ["mail"]
        told = self.do(c.DeclareTable(name, kind, quota, msgspec.json.encode(flow) if max_items else b""))
        is_new = name not in self.model.tables
        agrees(told, self.model.declare(name, kind, quota, max_items, sheds=sheds))
        if is_new and max_items == 200 and kind == "stream" and name in self.model.tables:
            self.model.tables[name].consumers.add("mail")
        assert isinstance(told, (OncegateError, Table))

    def put(self, dice: random.Random, name: str) -> None:
        known = self.model.tables.get(name)
        if known is not None and known.kind == "stream" and dice.random() < 0.7:
            if known.rows:
                assert self.do(c.Seal(name, self.machine.flows.get(name).batches.last + 1)) is not None
            return
        self.sequence += 1
        number, key = SequenceNumber(self.sequence), f"k{dice.randrange(6)}"
        op = c.Op(number, c.OpKind.PUT, name, key, Fingerprint(self.sequence), b"1")
        (verdict,) = self.do(c.Operate(1, 1, number, [op])).verdicts
        assert hasattr(verdict, "record") == (known is not None)
        if known is not None:
            self.model.commit += 1
            if known.kind == "stream" or key not in known.rows:
                known.rows.append(key)

    def connect(self, dice: random.Random, name: str) -> None:
        if self.model.flows and dice.random() < 0.6:
            flow = dice.choice(sorted(self.model.flows))
            del self.model.flows[flow]
            self.do(c.DeleteFlow(flow, self.machine.flows.get(flow).version, True))
            return
        self.flows += 1
        # A flow of a resident table may have the table's name: it is no part of it, and stands in its way.
        known = self.model.tables.get(name)
        namesake = known is not None and known.kind == "resident" and dice.random() < 0.5
        flow = name if namesake and name not in self.model.flows else f"f{self.flows}"
        target = dice.choice(sorted({*NAMES} - {name}))
        text = msgspec.json.encode({"name": flow, "source": name, "target": target})
        if not isinstance(self.do(c.DeclareFlow(text)), OncegateError):
            self.model.flows[flow] = name, target

    def attach(self, dice: random.Random, name: str) -> None:
        known = self.model.tables.get(name)
        told = self.do(c.Attach(name, "reader", "one"))
        assert isinstance(told, OncegateError) == (
            name not in self.model.flows and (known is None or known.kind == "resident")
        )
        if known is not None and known.kind == "stream":
            known.consumers.add("reader")

    def drop(self, dice: random.Random, name: str) -> None:
        known, force = self.model.tables.get(name), dice.random() < 0.6
        right = known.incarnation if known is not None else dice.randrange(EVER + 2)
        incarnation = right if dice.random() < 0.8 else dice.randrange(EVER + 2)
        told = self.do(c.DropTable(name, incarnation, force))
        agrees(told, self.model.drop(name, incarnation, force=force))
        assert isinstance(told, OncegateError) or told == Dropped(name, incarnation)

    def sweep(self, dice: random.Random, name: str) -> None:
        assert self.do(c.SweepTables()) == self.model.sweep()

    def check(self) -> None:
        machine, model = self.machine, self.model
        assert machine.commit == model.commit
        assert [(n, t.kind, t.incarnation, t.quota_bytes, t.since) for n, t in machine.tables.items()] == [
            (n, t.kind, t.incarnation, t.quota, t.since) for n, t in model.tables.items()
        ]
        assert {name: len(closing.table.rows) for name, closing in machine.closing.items()} == model.closing
        for name, known in model.tables.items():
            own = machine.flows.find(name)
            assert (own is not None) == (known.kind == "stream" or name in model.flows)
            assert own is None or name in model.flows or own.declaration.max_items == known.max_items


def agrees(told: Any, code: Code | None) -> None:
    assert (told.code if isinstance(told, OncegateError) else None) is code, told


@pytest.mark.parametrize("seed", range(30))
def test_table_is_there_until_it_is_dropped_and_its_name_is_free_once_its_rows_are_gone(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_life, "TABLES_MAX", TABLES)
    monkeypatch.setattr(table_life, "TABLES_EVER_MAX", EVER)
    monkeypatch.setattr(table_life, "SWEEP_ROWS_MAX", SWEPT)
    dice, driven = random.Random(seed), Driven()
    steps = (
        driven.declare,
        driven.declare,
        driven.put,
        driven.put,
        driven.connect,
        driven.attach,
        driven.drop,
        driven.sweep,
    )
    for _ in range(300):
        dice.choice(steps)(dice, dice.choice(NAMES))
        driven.check()
