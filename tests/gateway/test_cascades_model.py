"""Parts of a batch against a plain dictionary: each is written whole, in its order, or refused with nothing changed.

Rows of the target may be numbers, other values or absent, and one part may write a row several times: what an operation
finds is what those before it have left. The flows of the target bring exactly the values that its rows then have.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from oncegate.flows.flow import FlowDeclaration
from oncegate.gateway import wire
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.row_rule import INTEGER_BYTES_MAX
from oncegate.gateway.machine.state import state_digest
from oncegate.gateway.machine.tables import ROW_OVERHEAD_BYTES
from oncegate.rifl.errors import Code, OncegateError
from tests.gateway.test_cascades import part, write
from tests.gateway.test_flow_changes import Cluster

QUOTA = 520
KEYS = ("a", "b", "cc", "ddd")
TOP = 2**63 - 1


class Sides:
    """A flow that writes to a resident and a stream table, and a dictionary of what they hold."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.cluster = Cluster(target=("rows", "items"))
        self.cluster.done(c.DeclareTable("rows", "resident", QUOTA))
        self.cluster.done(c.DeclareTable("items", "stream", 1 << 20))
        self.cluster.done(c.DeclareTable("other", "resident", 1 << 20))
        flow = FlowDeclaration(name="of_rows", source="rows", max_items=1_000)
        self.cluster.done(c.DeclareFlow(msgspec.json.encode(flow)))
        self.cluster.fill(40)
        self.fence, _ = self.cluster.done(c.Attach("f", "job", "n"))
        self.rows: dict[str, tuple[Any, int]] = {}
        """Value of each row, and the commit number that has written it."""
        self.of_rows: list[tuple[str, Any]] = []
        self.items: list[tuple[str, Any]] = []
        self.batch, self.number = 1, 1

    def operations(self) -> list[wire.CascadeWrite]:
        found = []
        for _ in range(self.dice.randint(0, 5)):
            key = self.dice.choice(KEYS)
            table = self.dice.choices(("rows", "items", "other"), (12, 4, 0.2))[0]
            op = self.dice.choices(("put", "increment", "delete"), (3, 5, 1))[0]
            if op == "increment":
                found.append(write(op, table, key, by=self.dice.choice((1, 2, -3, TOP))))
            elif op == "put":
                value = self.dice.choice((0, 5, -7, 9, "text", "x" * self.dice.randint(1, 90)))
                found.append(write(op, table, key, value=value))
            else:
                found.append(write(op, table, key))
        return found

    def held(self) -> int:
        """Bytes of the rows, as the table's quota counts them."""
        return sum(
            len(key) + len(msgspec.json.encode(value)) + ROW_OVERHEAD_BYTES for key, (value, _) in self.rows.items()
        )

    def after(self, ops: list[wire.CascadeWrite], commit: int) -> set[Code]:
        """Do all of a part to the dictionary, or nothing, and say for which reasons."""
        rows, of_rows, items = dict(self.rows), list(self.of_rows), list(self.items)
        held, new, reasons = self.held(), 0, set[Code]()
        for commit_of_op, op in enumerate(ops, commit + 1):
            size = len(op.key) + (len(msgspec.json.encode(op.value)) if op.op == "put" else 0)
            if op.table == "other":
                reasons.add(Code.BAD_REQUEST)
            elif op.table == "items":
                if op.op == "increment":
                    reasons.add(Code.BAD_REQUEST)
                items.append((op.key, op.value if op.op == "put" else None))
                continue
            elif op.op == "delete":
                rows.pop(op.key, None)
                of_rows.append((op.key, None))
            else:
                value, before = op.value, rows.get(op.key, (0, 0))[0]
                if op.op == "increment":
                    if held + size + INTEGER_BYTES_MAX > QUOTA:
                        reasons.add(Code.QUOTA)
                    by = op.by if isinstance(op.by, int) else 0
                    if not isinstance(before, int) or not -TOP <= before + by <= TOP:
                        reasons.add(Code.BAD_REQUEST)
                        before = 0
                    value = before + by
                rows[op.key] = (value, commit_of_op)
                of_rows.append((op.key, value))
            new += size if op.table == "rows" else 0
        if new and held + new > QUOTA:
            reasons.add(Code.QUOTA)
        if not reasons:
            self.rows, self.of_rows, self.items = rows, of_rows, items
        return reasons

    def check(self) -> None:
        machine = self.cluster.machine
        table = machine.tables["rows"]
        found = {key: (msgspec.json.decode(row.value), row.version) for key in KEYS if (row := table.rows.get(key))}
        assert found == self.rows
        assert table.bytes == self.held()
        for flow, wanted in (("of_rows", self.of_rows), ("items", self.items)):
            run = machine.flows.get(flow).segment.run_view()
            pairs = zip(run.keys, run.values, strict=True)
            assert [(key, None if value is None else msgspec.json.decode(value)) for key, value in pairs] == wanted

    def read_all(self) -> None:
        """Let a consumer read what the rows' flow has: a job waits for it."""
        flows, now_ms = self.cluster.machine.flows, self.cluster.machine.time_ms
        newest = flows.seal("of_rows", flows.get("of_rows").batches.last + 1, now_ms)
        flows.attach("of_rows", "reader", str(newest), now_ms, cursor=newest)
        self.of_rows = []

    def send(self) -> set[Code]:
        """Send the next part, and perhaps send it again."""
        self.read_all()
        ops = self.operations()
        last = not ops or self.dice.random() < 0.4
        command = part(self.batch, self.number, self.fence, *ops, last=last)
        commit, before = self.cluster.machine.commit, state_digest(self.cluster.machine)
        result, reasons = self.cluster.one(command), self.after(ops, commit)
        if isinstance(result, OncegateError):
            assert result.code in reasons, (ops, result)
            assert state_digest(self.cluster.machine) == before, "a part is refused whole"
        else:
            assert not reasons, ops
            assert not result.replayed
            assert self.cluster.machine.commit == commit + len(ops)
            self.cluster.one(command)
            assert self.cluster.machine.commit == commit + len(ops), "a part that is sent again writes nothing"
            self.batch, self.number = (self.batch + 1, 1) if last else (self.batch, self.number + 1)
        self.check()
        return reasons if isinstance(result, OncegateError) else set()


@pytest.mark.parametrize("seed", range(12))
def test_each_part_does_what_its_operations_do_one_after_the_other_or_nothing(seed: int) -> None:
    sides = Sides(seed)
    told = [sides.send() for _ in range(40)]
    assert set() in told
    assert any(Code.BAD_REQUEST in reasons for reasons in told)
