"""Tables that are dropped: nothing of one incarnation is ever seen in another, whatever is saved, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import table_life
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.results import Dropped
from oncegate.gateway.machine.rows import each_change
from oncegate.gateway.machine.state import state_digest
from oncegate.gateway.machine.state.restore import all_cells
from oncegate.gateway.machine.tables import TABLES_EVER_MAX, TABLES_MAX
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import Fingerprint, SequenceNumber
from tests.gateway.machine_log import MachineLog, put
from tests.gateway.state_harness import Fed

QUOTA = 1 << 30


class Log(MachineLog):
    def __init__(self) -> None:
        super().__init__(c.OpenSession("n", 3_600_000, 512))

    def declare(self, name: str = "t", kind: str = "resident") -> None:
        self.done(c.DeclareTable(name, kind, QUOTA))  # type: ignore[arg-type]

    def drop(self, name: str = "t", incarnation: int = 1, *, force: bool = False) -> Any:
        return self.one(c.DropTable(name, incarnation, force))

    def sweep(self) -> int:
        steps = 0
        while self.machine.closing:
            self.do(c.SweepTables())
            steps += 1
        return steps


def refused(result: Any, code: Code, words: str = "") -> None:
    assert isinstance(result, OncegateError), result
    assert result.code is code
    assert words in result.detail


def test_table_is_dropped_by_the_number_of_its_incarnation_and_no_other() -> None:
    log = Log()
    log.declare("a")
    log.declare("t")
    refused(log.drop("t", 1), Code.CONFLICT, "table t is incarnation 2, not 1")
    refused(log.drop("nothing", 3), Code.NOT_FOUND, "no table nothing")
    refused(log.drop("nothing", 1), Code.NOT_FOUND, "no table nothing")
    for _ in range(2):
        assert log.drop("t", 2) == Dropped("t", 2)
    assert [*log.machine.tables] == ["a"]
    log.declare("t")
    assert log.machine.tables["t"].incarnation == 3
    refused(log.drop("t", 2), Code.CONFLICT, "incarnation 3, not 2")
    assert [*log.machine.tables] == ["a", "t"]


def test_rows_stand_in_the_way_unless_it_is_forced_and_go_a_few_in_each_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_life, "SWEEP_ROWS_MAX", 4)
    log = Log()
    log.declare()
    for n in range(10):
        log.write(f"k{n}")
    refused(log.drop(), Code.CONFLICT, "10 rows: delete them, or force it")
    assert log.drop(force=True) == Dropped("t", 1)
    assert log.write("k1").refusal.code is Code.NOT_FOUND
    (again,) = log.do(c.DeclareTable("t", "resident", QUOTA))
    refused(again, Code.OVERLOADED, "table t is being dropped: 10 rows are left")
    assert again.retryable
    commit = log.machine.commit
    assert log.sweep() == 3
    assert log.machine.commit == commit, "nobody is told of a row that goes with its table"
    assert log.machine.changes == []
    log.declare()
    assert len(log.machine.tables["t"].rows) == 0
    assert log.machine.tables["t"].since == commit


@pytest.mark.parametrize("at", [0, 1, 2])
def test_entry_that_removes_rows_of_a_dropped_table_tells_of_all_else_that_it_changes_and_of_none_of_these(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_life, "SWEEP_ROWS_MAX", 4)
    log = Log()
    log.declare()
    log.declare("other")
    for n in range(10):
        log.write(f"k{n}")
    log.drop(force=True)
    for swept in ("k3", "k7"):
        commands: list[c.Command] = []
        for key in ("a", "b"):
            log.numbers[1] += 1
            number = SequenceNumber(log.numbers[1])
            commands.append(c.Operate(1, 1, number, [put(number, key=key, table="other")]))
        commands.insert(at, c.SweepTables())
        assert log.do(*commands)[at] == 4
        assert [one[2:4] for one in each_change(log.machine.changes)] == [("other", "a"), ("other", "b")]
        assert log.machine.closing["t"].swept == swept, "what a restart goes on from, without a look at what is gone"


def test_large_rows_go_fewer_in_each_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_life, "SWEEP_BYTES_MAX", 15)
    log = Log()
    log.declare()
    for n in range(6):
        log.write(f"k{n}", value=b"1234567890")
    log.drop(force=True)
    assert log.sweep() == 3


def test_flows_on_a_table_and_to_it_stand_in_the_way_by_name_and_force_does_not_help() -> None:
    log = Log()
    log.declare("t")
    log.declare("target")
    log.do(c.DeclareFlow(b'{"name":"copies","source":"t","target":"target"}'))
    for force in (False, True):
        refused(log.drop("t", 1, force=force), Code.CONFLICT, "copies")
        refused(log.drop("target", 2, force=force), Code.CONFLICT, "copies")
    log.do(c.DeleteFlow("copies", 1, False))
    assert log.drop("t", 1) == Dropped("t", 1)
    assert log.drop("target", 2) == Dropped("target", 2)


def test_flow_of_another_table_stays_when_the_resident_table_that_has_its_name_is_dropped() -> None:
    log = Log()
    for name in ("t", "other"):
        log.declare(name)
    log.do(c.DeclareFlow(b'{"name":"t","source":"other"}'))
    log.write("k", table="other")
    assert log.drop("t") == Dropped("t", 1)
    flow = log.machine.flows.find("t")
    assert flow is not None
    assert flow.segment.items == 1
    log.write("l", table="other")
    assert flow.segment.items == 2


def test_stream_table_goes_with_its_own_flow_whose_numbers_are_not_given_out_again() -> None:
    log = Log()
    log.declare("s", "stream")
    log.write("k", table="s")
    refused(log.drop("s", 1), Code.CONFLICT, "rows that its flow retains")
    log.do(c.Seal("s", 1))
    log.do(c.Attach("s", "mail", "one"))
    refused(log.drop("s", 1), Code.CONFLICT, "has consumers: mail; remove them, or force it")
    log.do(c.RemoveConsumer("s", "mail", 1))
    refused(log.drop("s", 1), Code.CONFLICT, "rows that its flow retains")
    assert log.drop("s", 1, force=True) == Dropped("s", 1)
    assert log.machine.flows.find("s") is None
    assert log.machine.flows.take_dropped() == [("s", 1)]
    log.declare("s", "stream")
    assert log.machine.flows.get("s").batches.first == 2
    log.drop("s", 2)
    log.declare("s", "resident")


def test_result_that_was_recorded_is_replayed_after_its_table_is_gone() -> None:
    log = Log()
    log.declare()
    op = c.Op(SequenceNumber(1), c.OpKind.PUT, "t", "k", Fingerprint(1), b"1")
    first = log.do(c.Operate(1, 1, SequenceNumber(1), [op]))[0].verdicts[0]
    log.drop(force=True)
    log.sweep()
    log.declare()
    again = log.do(c.Operate(1, 1, SequenceNumber(1), [op]))[0].verdicts[0]
    assert again.record == first.record
    assert len(log.machine.tables["t"].rows) == 0, "and it is not executed on the new table"


def test_rows_that_end_go_with_their_table_and_are_not_looked_for_afterwards() -> None:
    log = Log()
    log.declare()
    for key, ttl_ms, bound in (("a", 1_000, False), ("b", 0, True), ("c", 1_000, True)):
        log.write(key, ttl_ms=ttl_ms, bound=bound)
    assert len(log.machine.ends) == 3
    log.drop(force=True)
    assert log.do(c.CloseSession(1, 1)) == [None] or not log.machine.sessions.get(1)
    log.sweep()
    assert len(log.machine.ends) == 0


def test_rows_of_a_dropped_table_whose_time_is_over_are_not_found_due_again_before_it_is_swept() -> None:
    log = Log()
    log.declare()
    log.write("a", ttl_ms=1_000)
    log.drop(force=True)
    machine, later = log.machine, 2_000
    due = machine.ends.due(later, c.END_MAX)
    assert due
    log.do(c.EndRows(due), at_ms=later)
    assert not machine.ends.due(later, c.END_MAX), "a leader would propose them for ever"


def test_tables_have_a_bound_also_over_the_life_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    log.declare("first")
    log.write("k", table="first")
    log.drop("first", force=True)
    for n in range(TABLES_MAX - 1):
        log.declare(f"t{n}")
    refused(log.do(c.DeclareTable("more", "resident", QUOTA))[0], Code.QUOTA, "1000 tables are declared")
    log.sweep()
    log.machine.tables_declared = TABLES_EVER_MAX
    refused(log.do(c.DeclareTable("more", "resident", QUOTA))[0], Code.QUOTA, "no number is left")


@pytest.mark.parametrize("saves", [(), (2,), (3,), (2, 3, 4)], ids=str)
def test_saved_state_keeps_numbers_and_what_is_left_to_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saves: tuple[int, ...]
) -> None:
    """A save before the drop, between the steps and after them: each reopens as what it was, and ends without a row."""
    monkeypatch.setattr(table_life, "SWEEP_ROWS_MAX", 3)
    fed = Fed(tmp_path)
    fed.do(c.OpenSession("n", 3_600_000, 512))
    for name in ("t", "kept"):
        fed.do(c.DeclareTable(name, "resident", QUOTA))
    number = SequenceNumber(1)
    ops = [
        c.Op(SequenceNumber(n + 1), c.OpKind.PUT, table, f"k{n:02}", Fingerprint(n), b"1")
        for n, table in enumerate(["t"] * 7 + ["kept"] * 2)
    ]
    fed.do(c.Operate(1, 1, number, ops))
    for at, key in ((10, "ends"), (11, "the last one ends")):
        ends = c.Options(ttl_ms=60_000)
        life = c.Op(SequenceNumber(at), c.OpKind.PUT, "t", key, Fingerprint(at), b"1", options=ends)
        fed.do(c.Operate(1, 1, number, [life]))
    if saves:
        fed.save()
    steps: list[list[c.Command]] = [
        [c.DropTable("t", 1, True)],
        [c.SweepTables()],
        [c.SweepTables()],
        [c.SweepTables(), c.DeclareTable("t", "resident", QUOTA)],
        [
            c.Operate(
                1,
                1,
                number,
                [c.Op(SequenceNumber(12), 1, "t", "k00", Fingerprint(12), b"2", options=c.Options(ttl_ms=5))],
            )
        ],
    ]
    for at, commands in enumerate(steps, 1):
        fed.do(*commands)
        if at in saves:
            fed.save()
            fed = fed.reopened()
    fed.save()
    fed = fed.reopened()
    tables = fed.machine.tables
    assert {name: table.incarnation for name, table in tables.items()} == {"kept": 2, "t": 3}
    assert [key for key, _ in tables["t"].rows.items()] == ["k00"]
    assert len(tables["kept"].rows) == 2
    cells = [key for key, _ in all_cells(fed.state._store)]
    assert sum(key[:1] == b"\x04" for key in cells) == 3, "no row of the dropped table is left on the disk"
    assert [key[1:3] for key in cells if key[:1] == b"\x08"] == [b"\0\2"]
    fed.close()


def test_state_in_memory_and_on_disk_are_the_same_through_drops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_life, "SWEEP_ROWS_MAX", 2)
    monkeypatch.setattr(table_life, "SWEEP_BYTES_MAX", 100)
    fed, plain = Fed(tmp_path), Machine()
    ops = [
        c.Op(SequenceNumber(n), c.OpKind.PUT, "t", f"k{n % 7}", Fingerprint(n), b'"%s"' % (b"x" * (n * 9)))
        for n in range(1, 21)
    ]
    entries: list[list[c.Command]] = [
        [c.OpenSession("n", 3_600_000, 512), c.DeclareTable("t", "resident", QUOTA)],
        [c.Operate(1, 1, SequenceNumber(1), ops)],
        [c.DropTable("t", 1, True)],
        *([c.SweepTables()] for _ in range(8)),
        [c.DeclareTable("t", "stream", QUOTA)],
    ]
    for at, commands in enumerate(entries, 1):
        fed.do(*commands)
        apply(plain, at, 1, c.encode_entry(0, commands))
        if at in (2, 4, 6):
            fed.save()
        assert state_digest(fed.machine) == state_digest(plain)
    assert not plain.closing
    fed.close()
