"""Transactions inside the state machine: all conditions hold and all effects happen, or none; once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.flows.flow import FlowDeclaration
from oncegate.gateway import answers, wire
from oncegate.gateway.answer_values import JSON
from oncegate.gateway.explain.memory import DUPLICATE, EXECUTED
from oncegate.gateway.explain.search import Mention, OfKey, OfRequest, Search
from oncegate.gateway.http import request_bodies
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.state import state_digest
from oncegate.gateway.machine.transactions import Transacted
from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.errors import Code
from oncegate.rifl.ids import ClusterTimeMs, SequenceNumber
from oncegate.rifl.rule import Applied, Rejected, Replayed
from tests.gateway.machine_log import MachineLog, batches
from tests.gateway.state_harness import Fed, ship

START: list[c.Command] = [
    c.DeclareTable("t", "resident", 1 << 20),
    c.DeclareTable("u", "resident", 1 << 20),
    c.DeclareTable("small", "resident", 300),
    c.DeclareTable("s", "stream", 1 << 20),
    c.OpenSession("n", 5_000, 16),
    c.OpenSession("other", 1_000, 16),
    c.OpenSession("foreign", 60_000, 16, "them"),
]


def put(table: str, key: str, value: Any, **more: Any) -> dict[str, Any]:
    return {"op": "put", "table": table, "key": key, "value": value, **more}


def add(table: str, key: str, by: int, **more: Any) -> dict[str, Any]:
    return {"op": "increment", "table": table, "key": key, "by": by, **more}


def row(table: str, key: str, **test: Any) -> dict[str, Any]:
    return {"table": table, "key": key, "if": test}


def transaction(sequence: int, *writes: dict[str, Any], when: list[dict[str, Any]] | None = None) -> c.Transaction:
    """A transaction as it passes the edge."""
    sent = msgspec.json.encode({"writes": writes, "conditions": when or []})
    return msgspec.structs.replace(request_bodies.transaction(sent, wire.JSON), sequence=sequence)


class Log(MachineLog):
    """A machine with tables and sessions for transactions."""

    def __init__(self, *more: c.Command) -> None:
        super().__init__(*START, *more)

    def transact(self, sequence: int, *writes: dict[str, Any], when: list[dict[str, Any]] | None = None) -> Any:
        [verdict] = self.send(transaction(sequence, *writes, when=when))
        return verdict


def done(verdict: Any) -> Transacted:
    assert isinstance(verdict, Applied), verdict
    assert isinstance(verdict.record.result, Transacted)
    return verdict.record.result


def test_all_writes_have_adjacent_commit_numbers_and_one_record() -> None:
    log = Log()
    verdict = log.transact(
        1, put("t", "a", 1), add("u", "n", 5), put("s", "e", "x"),
        {"op": "append", "table": "t", "key": "l", "item": 7},
        {"op": "get", "table": "t", "key": "a"}, {"op": "delete", "table": "t", "key": "a"},
    )  # fmt: skip
    result = done(verdict)
    assert (verdict.record.commit, result.count, log.machine.commit) == (1, 6, 6)
    assert (log.value("a"), log.value("n", "u"), log.value("l")) == (None, 5, [7])
    assert log.row("n", "u").version == 2  # type: ignore[union-attr]
    assert {at: (one.version, one.value) for at, one in result.results} == {1: (2, b"5"), 4: (1, b"1")}
    assert list(log.machine.trackers[1].records) == [1]


def test_replay_is_the_same_bytes_and_runs_nothing_again() -> None:
    log = Log()
    for sequence, floor in ((1, -5), (2, 0)):
        sent = transaction(sequence, add("t", "a", -1, floor=floor), put("u", "b", [1]))
        command = c.Operate(1, 1, 1, [sent])  # type: ignore[arg-type]
        first, again = (log.do(command)[0] for _ in range(2))
        assert isinstance(first.verdicts[0], Applied)
        assert isinstance(again.verdicts[0], Replayed)
        bodies = [answers.answer(command, one, log.machine).body for one in (first, again)]
        shown = [JSON.encode(body) for body in bodies]
        assert shown[0].replace(b'"replayed":false', b'"replayed":true') == shown[1]
        assert log.value("a") == -1
    assert log.machine.replayed == 2
    mismatch = log.transact(1, add("t", "a", -2))
    assert mismatch.refusal.code is Code.PAYLOAD_MISMATCH


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        (row("t", "no", absent=True), True),
        (row("t", "n", absent=True), False),
        (row("t", "n", present=True), True),
        (row("t", "no", present=True), False),
        (row("t", "n", version=1), True),
        (row("t", "n", version=2), False),
        (row("t", "no", version=0), True),
        (row("t", "n", value=10), True),
        (row("t", "n", value="10"), False),
        (row("t", "n", at_least=10), True),
        (row("t", "n", at_least=11), False),
        (row("t", "n", at_most=10), True),
        (row("t", "n", at_most=9), False),
        (row("t", "no", at_least=0), True),
        (row("t", "no", at_least=1), False),
        (row("t", "text", at_least=0), False),
        (row("t", "text", at_most=0), False),
        ({"session": f"{2:016x}"}, True),
        ({"session": f"{9:016x}"}, False),
        ({"session": f"{3:016x}"}, False),
    ],
)
def test_condition_on_a_row_that_is_not_written_decides_the_whole(when: dict[str, Any], holds: bool) -> None:
    log = Log()
    log.send(*(c.Op(n, 1, "t", key, n, value) for n, key, value in ((1, "n", b"10"), (2, "text", b'"x"'))))
    before = log.rows()
    result = done(log.transact(3, put("u", "a", 1), when=[row("t", "n", present=True), when]))
    assert (result.refusal is None) is holds
    assert result.failed == ("" if holds else "conditions[1]")
    if not holds:
        assert (result.version, result.value) == before.get((when.get("table", ""), when.get("key", "")), (0, None))
    assert (log.rows() == before) is not holds


def test_session_that_has_ended_or_is_another_tenants_is_not_alive() -> None:
    log = Log()
    log.now_ms = 1_000
    assert done(log.transact(1, put("t", "a", 1), when=[{"session": f"{2:016x}"}])).failed == ""
    log.now_ms = 1_001
    assert done(log.transact(2, put("t", "a", 1), when=[{"session": f"{2:016x}"}])).failed == "conditions[0]"
    alive = transaction(1, put("t", "a", 1), when=[{"session": f"{3:016x}"}])
    for tenant, code in (("", "CONDITION_FAILED"), ("them", None)):
        [keyed] = log.do(c.Keyed(1_000, [c.KeyedOp(f"k{tenant}", ClusterTimeMs(-1), alive)], tenant))
        assert done(keyed.verdicts[0]).refusal == code


def test_conditions_see_the_state_before_and_a_floor_the_sum_after() -> None:
    """A condition that its own transaction makes true fails; an overdraft by two withdrawals together is refused."""
    log = Log()
    assert done(log.transact(1, put("t", "a", 1), put("u", "b", 1, **{"if": {"absent": True}}))).refusal is None
    late = log.transact(2, put("t", "new", 1), add("t", "n", 1), when=[row("t", "new", present=True)])
    assert done(late).failed == "conditions[0]"
    own = log.transact(3, {"op": "delete", "table": "t", "key": "a"}, put("t", "a", 2, **{"if": {"absent": True}}))
    assert (done(own).failed, done(own).version, done(own).value) == ("writes[1]", 1, b"1")
    assert done(log.transact(4, add("t", "cash", 10), add("u", "cash", 1))).refusal is None
    over = done(log.transact(5, add("t", "cash", -6, floor=0), add("u", "cash", 12), add("t", "cash", -6, floor=0)))
    assert (over.refusal, over.failed, over.value) == ("CONDITION_FAILED", "writes[2]", b"4")
    assert (log.value("cash"), log.value("cash", "u")) == (10, 1)
    assert done(log.transact(6, add("t", "cash", 1, ceiling=10))).failed == "writes[0]"
    assert done(log.transact(7, add("t", "cash", -10, floor=0), add("u", "cash", 10))).refusal is None
    assert (log.value("cash"), log.value("cash", "u")) == (0, 11)


def test_a_floor_holds_for_a_write_alone_too() -> None:
    log = Log()
    sent = wire.Operation(1, "increment", "t", "n", by=-1, floor=0)
    [refused] = log.send(request_bodies.operation(sent, 0))
    assert (refused.record.result.refusal, log.value("n")) == ("CONDITION_FAILED", None)
    [taken] = log.send(request_bodies.operation(wire.Operation(2, "increment", "t", "n", by=3, ceiling=3), 0))
    assert taken.record.result.value == b"3"
    guarded = wire.Operation(3, "put", "t", "n", 9, if_={"at_least": 4})
    [short] = log.send(request_bodies.operation(guarded, 0))
    assert short.record.result.refusal == "CONDITION_FAILED"


@pytest.mark.parametrize(
    "stops",
    [
        add("t", "text", 1),
        add("t", "most", 1),
        {"op": "append", "table": "t", "key": "text", "item": 1},
        put("t", "x", 1, **{"if": {"version": 7}}),
        add("t", "n", -1, floor=0),
    ],
)
@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_write_that_is_refused_leaves_nothing_of_the_others(stops: dict[str, Any], at: int) -> None:
    log = Log(c.DeclareFlow(msgspec.json.encode(FlowDeclaration(name="f", source="t"))))
    log.send(c.Op(1, 1, "t", "text", 1, b'"x"'), c.Op(2, 1, "t", "most", 2, b"9223372036854775807"))
    before, items = log.rows(), log.machine.flows.get("f").segment.items
    writes = [put("t", "a", 1), put("s", "e", 1), add("u", "n", 1)]
    writes.insert(at, stops)
    verdict = log.transact(3, *writes)
    result = done(verdict)
    assert (result.failed, result.count) == (f"writes[{at}]", 0)
    assert (log.rows(), log.machine.flows.get("f").segment.items) == (before, items)
    assert (verdict.record.commit, log.machine.commit) == (3, 3), "a refusal is recorded under one number"
    assert log.machine.flows.get("s").segment.items == 0


@pytest.mark.parametrize(
    ("stops", "when", "code"),
    [
        (put("nowhere", "a", 1), None, Code.NOT_FOUND),
        (add("s", "a", 1), None, Code.BAD_REQUEST),
        (put("s", "a", 1, **{"if": {"absent": True}}), None, Code.BAD_REQUEST),
        (put("small", "a", "x" * 400), None, Code.QUOTA),
        (put("t", "b", 1), [row("nowhere", "a", absent=True)], Code.NOT_FOUND),
        (put("t", "b", 1), [row("s", "a", absent=True)], Code.BAD_REQUEST),
    ],
)
def test_what_a_table_refuses_is_refused_without_a_record(stops: Any, when: Any, code: Code) -> None:
    log = Log()
    before = state_digest(log.machine)
    verdict = log.transact(1, put("t", "a", 1), stops, when=when)
    assert isinstance(verdict, Rejected)
    assert verdict.refusal.code is code
    assert (log.rows(), log.machine.commit, state_digest(log.machine)) == ({}, 0, before)
    command = c.Operate(1, 1, 1, [transaction(1, put("t", "a", 1), stops, when=when)])  # type: ignore[arg-type]
    [result] = log.do(command)
    [told] = answers.answer(command, result, log.machine).body.results
    assert ("writes[1]" if when is None else "conditions[0]") in told.detail
    assert done(log.transact(1, put("t", "a", 1))).refusal is None, "the number is still free"


def test_quota_is_judged_for_the_whole_and_results_are_bounded() -> None:
    log = Log()
    three = [put("small", key, "x" * 60) for key in "abc"]
    assert done(log.transact(1, *three)).count == 3
    log = Log()
    four = [put("small", key, "x" * 90) for key in "abcd"]
    assert log.transact(1, *four).refusal.code is Code.QUOTA
    assert log.rows() == {}
    log.send(c.Op(1, 1, "t", "large", 1, b'"%s"' % (b"x" * 30_000)))
    gets = [{"op": "get", "table": "t", "key": "large"}]
    assert done(log.transact(2, *gets * 2)).count == 2
    assert log.transact(3, *gets * 3).refusal.code is Code.PAYLOAD_TOO_LARGE
    assert log.transact(3, put("t", "huge", "x" * 70_000), {"op": "get", "table": "t", "key": "huge"}).refusal.code is (
        Code.PAYLOAD_TOO_LARGE
    )
    assert log.value("huge") is None


def test_full_stream_table_refuses_a_transaction_whole_and_saying_why_changes_nothing() -> None:
    own = FlowDeclaration(name="tiny", source="tiny", retention_ms=1_000)
    log = Log(c.DeclareTable("tiny", "stream", 1_024, msgspec.json.encode(own)))
    assert done(log.transact(1, put("tiny", "a", "x" * 2_000))).count == 1
    log.do(c.Seal("tiny", 1), c.Attach("tiny", "x", "n"), c.MoveCursor("tiny", "x", 1, 1, replay=False))
    command = c.Operate(1, 1, 1, [transaction(2, put("t", "a", 1), put("tiny", "b", 1))])  # type: ignore[arg-type]
    [full] = log.do(command)
    assert full.verdicts[0].refusal.code is Code.QUOTA
    assert (log.rows(), log.machine.commit) == ({}, 1)
    log.now_ms = 5_000
    log.do()
    before = state_digest(log.machine)
    [told] = answers.answer(command, full, log.machine).body.results
    assert "table tiny" in told.detail
    assert state_digest(log.machine) == before, "only the log drops batches, also those whose time is over by now"
    assert done(log.transact(2, put("t", "a", 1), put("tiny", "b", 1))).count == 2


@given(st.lists(st.integers(1, 7), min_size=1, max_size=12), st.integers(1, 5), st.sampled_from([0, 300]))
def test_no_batch_ends_between_two_items_of_a_transaction(sizes: list[int], max_items: int, max_bytes: int) -> None:
    flow = FlowDeclaration(name="f", source="t", max_items=max_items, max_bytes=max_bytes or 1 << 20)
    log = Log(c.DeclareFlow(msgspec.json.encode(flow)))
    for sequence, size in enumerate(sizes, 1):
        writes = [w for n in range(size) for w in (put("t", f"k{n}", 1), put("u", f"k{n}", 1))]
        log.do(c.Operate(1, 1, sequence, [transaction(sequence, *writes)]))  # type: ignore[arg-type]
    found = list(batches(log.machine, "f"))
    of = [number for number, batch in enumerate(found) for sequence in {item[-1] for item in batch}]
    assert len(of) == len(sizes), "each transaction is in one batch"
    assert [item[-1] for batch in found for item in batch] == [
        n for n, size in enumerate(sizes, 1) for _ in range(size)
    ]
    assert all(len(batch) <= max(max_items, *sizes) for batch in found)
    assert [item[0] for batch in found for item in batch] == list(range(1, 2 * sum(sizes), 2))


def test_flow_that_sheds_leaves_a_transaction_out_whole() -> None:
    flow = FlowDeclaration(name="f", source="t", max_items=1, shed_lag_bytes=1, consumers=("x",))
    log = Log(c.DeclareFlow(msgspec.json.encode(flow)))
    for sequence in range(1, 40):
        log.do(c.Operate(1, 1, sequence, [transaction(sequence, *(put("t", f"k{n}", 1) for n in range(5)))]))  # type: ignore[arg-type]
    found = [[item[-1] for item in batch] for batch in batches(log.machine, "f") if batch]
    assert 0 < len(found) < 39
    assert all(len(batch) == 5 and len(set(batch)) == 1 for batch in found)
    assert log.machine.flows.get("f").shed_items == 5 * (39 - len(found))


def test_record_of_a_transaction_is_saved_and_shipped(tmp_path: Path) -> None:
    fed = Fed(tmp_path / "a")
    fed.do(*START)
    sent = [transaction(1, put("t", "a", 1), add("u", "n", 5)), transaction(2, add("t", "n", -1, floor=0))]
    fed.do(c.Operate(1, 1, 1, sent))  # type: ignore[arg-type]
    fed.do(c.Operate(1, 1, 1, [c.Op(3, 3, "t", "n", 3, None, 1)]))  # type: ignore[arg-type]
    [keyed] = fed.do(c.Keyed(10_000, [c.KeyedOp("k", ClusterTimeMs(-1), transaction(1, put("t", "b", 1)))]))
    fed.save()
    again = fed.reopened()
    target = Fed(tmp_path / "b")
    ship(again.state, target.state).install()
    for one in (again, target):
        [result] = one.do(c.Operate(1, 1, 1, sent))  # type: ignore[arg-type]
        applied, refused = result.verdicts
        assert applied == Replayed(1, fed.machine.trackers[1].find(1))
        assert refused.record.result == Transacted("CONDITION_FAILED", 0, None, failed="writes[0]")
        assert one.machine.keys.look_up(1).record == keyed.verdicts[0].record
        one.close()


def test_resolve_and_explain_know_a_transaction() -> None:
    log = Log()
    sent = transaction(2, put("t", "a", 1), put("u", "b", 2), put("t", "c", 3))
    log.send(c.Op(1, 1, "t", "x", 1, b"1"), sent, c.Op(3, 1, "t", "y", 3, b"1"))
    log.send(sent)
    state = answers.request_state(log.machine, 1, 2)
    assert (state.state, [one.commit for one in state.result.writes]) == ("applied", [2, 3, 4])  # type: ignore[union-attr]
    [resolved] = log.do(c.Resolve(1, SequenceNumber(2)))
    record = resolved.resolution.record
    assert isinstance(record, CompletionRecord)
    assert record.commit == 2
    [mention] = Search(OfKey("u", "b"), log.verdicts).entry(log.entries[1], 2, 1)
    assert isinstance(mention, Mention)
    assert (mention.sequence, mention.did.what, mention.did.commit) == (2, EXECUTED, 3)
    [after] = Search(OfKey("t", "y"), log.verdicts).entry(log.entries[1], 2, 1)
    assert isinstance(after, Mention)
    assert after.did.commit == 5
    found = Search(OfRequest(1, 2), log.verdicts).entry(log.entries[2], 3, 1)
    told = [(one.key, one.did.what, one.did.commit) for one in found if isinstance(one, Mention)]
    assert told == [("a", DUPLICATE, 2), ("b", DUPLICATE, 3), ("c", DUPLICATE, 4)]


def test_several_transactions_and_writes_of_one_request_are_applied_in_order() -> None:
    log = Log()
    verdicts = log.send(
        c.Op(1, 3, "t", "n", 1, None, 1),
        transaction(2, add("t", "n", 1), put("u", "a", 1)),
        c.Op(3, 3, "t", "n", 3, None, 1),
        transaction(2, add("t", "n", 1), put("u", "a", 1)),
    )
    assert [type(one) for one in verdicts] == [Applied, Applied, Applied, Replayed]
    assert [one.record.commit for one in verdicts] == [1, 2, 4, 2]
    assert (log.value("n"), log.machine.replayed) == (3, 1)
