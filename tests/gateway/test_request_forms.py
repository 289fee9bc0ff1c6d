"""A request does the same in whatever form it travels, and what it is told is whole: numbers, memory, how it came."""

from __future__ import annotations

import pytest

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.results import Ranged, SessionAnswer
from oncegate.rifl.completion import RangeRecord
from oncegate.rifl.key_table import NO_TIME
from oncegate.rifl.range_rule import RefusedPart
from oncegate.rifl.rule import Refusal
from tests.gateway.logs import told
from tests.gateway.machine_log import QUOTA, MachineLog, increment, put
from tests.gateway.test_machine import session, started


@pytest.mark.parametrize("tenant", ["", "bob"])
def test_who_has_no_session_is_told_no_memory_and_each_of_its_numbers(tenant: str) -> None:
    """Of another tenant's session no less than of none."""
    log = started()
    client, refusal = (1, Refusal.FORBIDDEN) if tenant else (7, Refusal.SESSION_EXPIRED)
    operated, ranged = log.do(
        c.Operate(client, 1, 1, [put(3), increment(5)], tenant), c.Range(client, 1, 1, "s", 4, bytes(24), b"", tenant)
    )
    assert (operated.memory_ms, [told(one)[:2] for one in operated.verdicts]) == (
        0,
        [(3, refusal.code), (5, refusal.code)],
    )
    assert ranged == Ranged([RefusedPart(4, 6, refusal)], 0)
    assert (log.machine.commit, log.machine.touched) == (0, {1})


def test_answer_says_whether_a_request_came_under_keys() -> None:
    log = started()
    [plain, keyed] = log.do(c.Operate(1, 1, 1, [put(1)]), c.Keyed(9, [c.KeyedOp("k", NO_TIME, put(0))]))
    assert (plain.keyed, keyed.keyed) == (False, True)


def test_session_is_announced_once_and_nobody_else_is() -> None:
    log = started()
    machine, announced = log.machine, list[int]()
    machine.touched, machine.before_change = set(), announced.append
    machine.touch_first(7)
    assert (announced, machine.touched) == ([], set())
    for _ in range(2):
        machine.touch_first(1)
        log.do(c.Resolve(1, 9), c.RenewSession(1, 1), c.Operate(1, 1, 1, [put(1)]))
    assert (announced, machine.touched) == ([1], {1})


def test_answer_of_a_session_has_all_that_its_owner_goes_on_with() -> None:
    log = started(lease_ms=1_000, window=6)
    log.ops(put(1), put(2), put(3))
    log.ops(put(4), fi=3)
    [taken] = log.do(c.TakeOver(1, "z"), at_ms=0)
    assert taken == SessionAnswer(1, 2, 1_000, 6, 1_000, True, 3, 4)
    [again, new] = log.do(c.OpenSession("z", 1_000, 6), c.OpenSession("y", 500, 9), at_ms=400)
    assert again == SessionAnswer(1, 2, 1_000, 6, 1_000, True, 3, 4)
    assert new == SessionAnswer(2, 1, 500, 9, 500, False, 1, 0)
    epochs = log.machine.fenced_by(1, 1), log.machine.fenced_by(1, 2), log.machine.fenced_by(1, 3)
    assert epochs == (
        "epoch 1 was fenced by 2",
        "epoch 2 was never given out, the session's is 2",
        "epoch 3 was never given out, the session's is 2",
    )
    assert log.machine.fenced_by(7, 1) == ""


def test_range_is_recorded_and_kept_with_its_prints_and_its_trace() -> None:
    """Cut by what was there before: of each part its own prints, numbers and place in the body."""
    log = started()
    log.ops(put(3, table="s"))
    prints = b"".join(number.to_bytes(8, "big") for number in range(1, 6))
    [ranged] = log.do(c.Range(1, 1, 2, "s", 1, prints, b"body", "", "00-trace"), at_ms=5)
    assert ranged.memory_ms == 10_000
    tracker = log.machine.trackers[1]
    assert [*tracker.ranges] == [
        RangeRecord(2, 2, 2, prints[8:16], "00-trace"),
        RangeRecord(4, 5, 3, prints[24:], "00-trace"),
    ]
    assert tracker.first_incomplete == 2
    chunk = log.machine.flows.get("s").segment.snapshot().chunks[-1]
    assert (chunk.first_commit, chunk.count, chunk.first_sequence, chunk.offset) == (3, 2, 4, 3)
    assert (chunk.client_id, chunk.body, chunk.traceparent) == (1, b"body", "00-trace")


def test_sessions_that_end_in_one_entry_end_with_all_their_rows_as_one() -> None:
    log = MachineLog()
    log.do(c.DeclareTable("t", "resident", QUOTA), session("a"), session("b"))
    for client in (1, 2):
        writes = [
            c.Op(at, int(c.OpKind.PUT), "t", f"{client}{at}", 0, b"1", options=c.Options(bound=True)) for at in (1, 2)
        ]
        log.do(c.Operate(client, 1, 1, writes))
    [(rows, sessions)] = log.do(c.Reap([1, 2]), at_ms=10_001)
    assert ([one.commit for one in rows], sessions) == ([5, 6, 7, 8], 2)
    assert ([change[:2] for change in log.machine.changes], log.machine.joined) == (
        [(5, 8), (6, 8), (7, 8), (8, 8)],
        [(5, 8)],
    )
    assert log.machine.trackers == {}


def test_table_that_is_dropped_is_found_by_name_while_it_has_rows() -> None:
    log = started()
    log.answer(put(1))
    table = log.machine.tables["t"]
    log.do(c.DropTable("t", table.incarnation, True))
    assert log.machine.table_of("t") is table
    assert log.machine.every_table() == [log.machine.tables["s"], table]
    assert log.machine.table_of("s") is log.machine.tables["s"]
    assert log.do(c.SweepTables()) == [1]
    assert log.machine.every_table() == [log.machine.tables["s"]]


@pytest.mark.parametrize("in_order", [False, True])
def test_nothing_new_is_done_behind_a_refusal_of_a_request_in_order_and_of_no_other(in_order: bool) -> None:
    log = started()
    log.do(c.DeclareTable("small", "resident", 10))
    writes = [put(1, "x" * 20, table="small"), put(2)]
    log.do(c.Operate(1, 1, 1, writes, in_order=in_order))
    assert log.value("k") == (None if in_order else 1)
    assert log.machine.commit == (not in_order)
