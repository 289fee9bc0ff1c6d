"""What a transaction leaves behind: items of flows, changes, records, refusals, and how many rows a take may have."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.flows.flow import FlowDeclaration
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import tables, transactions
from oncegate.gateway.machine.commands import RESULT_BYTES_MAX
from oncegate.gateway.machine.row_ends import Life
from oncegate.gateway.machine.row_rule import Remembered
from oncegate.gateway.machine.rows import StoredRow
from oncegate.gateway.machine.transactions import TableRefusal, Taken, Took, Transacted
from oncegate.rifl.errors import Code, InvariantViolation
from oncegate.rifl.ids import CommitNumber, SequenceNumber
from tests.gateway.test_row_moves import told
from tests.gateway.test_transactions import Log, add, done, put, row, transaction

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TAPPED = c.DeclareFlow(msgspec.json.encode(FlowDeclaration(name="f", source="t")))


ABSENT, ALIVE = row("t", "a", absent=True), {"session": f"{2:016x}"}


def take(count: int = 1, **more: Any) -> dict[str, Any]:
    return {"op": "take", "table": "t", "key": "r/", "to": "x/", "count": count, **more}


def get(key: str, table: str = "t") -> dict[str, Any]:
    return {"op": "get", "table": table, "key": key}


def delete(key: str, table: str = "t") -> dict[str, Any]:
    return {"op": "delete", "table": table, "key": key}


def text(size: int) -> str:
    """Return a value whose JSON text has so many bytes."""
    return "v" * (size - 2)


def taken(verdict: Any) -> list[Taken]:
    result = done(verdict)
    assert isinstance(result, Took)
    return result.taken


def change(log: Log) -> list[tuple[Any, ...]]:
    """Return the changes of the newest entry, without the rows before."""
    return [(*one[:4], one[5]) for one in log.machine.changes]  # type: ignore[misc]


def test_flows_get_each_write_with_its_number_and_whose_it_is() -> None:
    log = Log(TAPPED)
    log.now_ms = 400
    writes = [
        put("t", "a", 1),
        put("s", "e", [2]),
        add("t", "n", 5),
        get("n"),
        delete("e", "s"),
        delete("a"),
        put("u", "b", 1),
    ]
    log.do(c.Operate(1, 1, SequenceNumber(1), [transaction(7, *writes)], traceparent=TRACE))
    assert told(log) == [
        (1, "a", b"1", 400, 1, 7, TRACE),
        (3, "n", b"5", 400, 1, 7, TRACE),
        (6, "a", None, 400, 1, 7, TRACE),
    ]
    run = log.machine.flows.get("s").segment.run_view()
    assert list(zip(run.commits, run.keys, run.values, strict=True)) == [(2, "e", b"[2]"), (5, "e", None)]
    assert log.machine.trackers[1].find(SequenceNumber(7)).traceparent == TRACE  # type: ignore[union-attr]


def test_changes_of_a_transaction_are_told_together() -> None:
    log = Log()
    log.transact(1, put("t", "a", 1), put("s", "e", 1), put("u", "b", 2), add("t", "a", 1))
    assert change(log) == [
        (1, 4, "t", "a", StoredRow(CommitNumber(1), b"1")),
        (3, 4, "u", "b", StoredRow(CommitNumber(3), b"2")),
        (4, 4, "t", "a", StoredRow(CommitNumber(4), b"2")),
    ]
    assert log.machine.joined == [(1, 4)]


def test_stream_table_is_written_without_a_look_for_rows() -> None:
    """It has none, and on disk a look costs more than the write."""

    class Rows(tables.DictRows):
        def __init__(self) -> None:
            super().__init__()
            self.get = None  # type: ignore[assignment]

    log = Log()
    log.machine.tables["s"].rows = Rows()
    assert done(log.transact(1, put("s", "e", 1), put("s", "e", 2))).count == 2
    assert log.machine.flows.get("s").segment.items == 2


def test_numbered_put_has_its_number_behind_its_key_in_a_stream_table_too() -> None:
    log = Log()
    log.transact(1, put("t", "a", 1), put("s", "e/", 1, numbered=True), put("t", "e/", 1, numbered=True))
    assert log.machine.flows.get("s").segment.run_view().keys == [f"e/{2:019d}"]
    assert log.value(f"e/{3:019d}") == 1


def test_numbered_row_is_moved_to_a_key_with_its_number() -> None:
    log = Log()
    log.transact(1, put("t", "a", 1), put("t", "later/", 2, numbered=True, ttl_ms=5, then="now/"))
    log.now_ms = 200
    [endings] = log.do(c.EndRows(log.machine.ends.due(200, 9)))
    assert [(one.key, one.then) for one in endings.rows] == [(f"later/{2:019d}", f"now/{2:019d}")]
    assert log.value(f"now/{2:019d}") == 2


def test_numbered_row_that_names_no_place_to_go_ends_for_good() -> None:
    log = Log()
    log.transact(1, put("t", "l/", 1, numbered=True, ttl_ms=5))
    log.now_ms = 200
    [endings] = log.do(c.EndRows(log.machine.ends.due(200, 9)))
    assert [(one.key, one.then) for one in endings.rows] == [(f"l/{1:019d}", "")]
    assert log.rows() == {}


@pytest.mark.parametrize(
    ("sent", "when", "refusal"),
    [
        ([put("no", "a", 1)], [], TableRefusal(Code.NOT_FOUND, "no", "writes[1]")),
        ([add("s", "a", 1)], [], TableRefusal(Code.BAD_REQUEST, "s", "writes[1]")),
        ([put("s", "a", 1, ttl_ms=5)], [], TableRefusal(Code.BAD_REQUEST, "s", "writes[1]")),
        ([put("small", "a", "x" * 400)], [], TableRefusal(Code.QUOTA, "small", "writes[1]")),
        ([put("small", k, "x" * 200) for k in "ab"], [], TableRefusal(Code.QUOTA, "small", "writes[2]")),
        ([], [ABSENT, row("no", "a", absent=True)], TableRefusal(Code.NOT_FOUND, "no", "conditions[1]")),
        ([], [ALIVE, row("s", "a", absent=True)], TableRefusal(Code.BAD_REQUEST, "s", "conditions[1]")),
        ([put("small", k, "x" * 140) for k in "ab"], [ABSENT], None),
    ],
)  # fmt: skip
def test_refusal_of_a_table_names_the_table_and_the_part(
    sent: list[Any], when: list[Any], refusal: TableRefusal
) -> None:
    log = Log()
    one = transaction(1, put("t", "a", 1), *sent, when=when)
    assert transactions.table_that_refuses(log.machine, one) == refusal
    assert (log.send(one)[0].sequence, log.machine.commit > 0) == (1, refusal is None)


def test_refusal_of_a_full_stream_table_names_it() -> None:
    log = Log(c.DeclareTable("tiny", "stream", 1_024, msgspec.json.encode(FlowDeclaration(name="tiny", source="tiny"))))
    log.transact(1, put("tiny", "a", "x" * 2_000))
    log.do(c.Seal("tiny", 1), c.Attach("tiny", "x", "n"), c.MoveCursor("tiny", "x", 1, 1, replay=False))
    full = transactions.table_that_refuses(log.machine, transaction(2, put("t", "a", 1), put("tiny", "b", 1)))
    assert full == TableRefusal(Code.QUOTA, "tiny", "writes[1]")


@pytest.mark.parametrize("spare", [-1, 0])
def test_writes_fit_into_a_table_to_the_byte_and_what_adds_nothing_needs_no_room(spare: int) -> None:
    log = Log()
    log.transact(1, put("u", "k" * 99, 1), put("t", "r/" + "k" * 97, 1))
    for name in "tu":
        table = log.machine.tables[name]
        table.quota_bytes = table.bytes + len("a") + len(b'"xx"') + len("n") + tables.INTEGER_BYTES_MAX + spare
    for sequence, (name, nothing) in enumerate(
        (("u", [delete("k" * 99, "u"), get("k" * 99, "u")]), ("t", [take()])), 2
    ):
        verdict = log.transact(sequence, put(name, "a", "xx"), add(name, "n", 1), *nothing)
        if spare < 0:
            assert verdict.refusal.code is Code.QUOTA
        else:
            assert done(verdict).refusal is None


@pytest.mark.parametrize("over", [0, 1])
def test_what_gets_show_is_64_kib_at_most(over: int) -> None:
    """Each counts 64 bytes beside its value."""
    log = Log()
    log.transact(1, put("t", "a", text(RESULT_BYTES_MAX - 1_000 + over)), put("t", "b", text(1_000 - 3 * 64)))
    verdict = log.transact(2, get("a"), get("absent"), get("b"))
    if over:
        assert verdict.refusal.code is Code.PAYLOAD_TOO_LARGE
    else:
        absent = Remembered(None, 0, None)
        assert [one.version for _, one in done(verdict).results] == [1, 0, 2]
        assert done(verdict).results[1] == (1, absent)
        assert done(verdict) == Transacted(None, 0, None, 3, done(verdict).results)


def test_commit_number_that_a_row_has_already_stops_the_machine() -> None:
    for back in (1, 2):
        log = Log()
        log.transact(1, put("t", "a", 1), put("t", "b", 1), put("t", "a", 2))
        log.machine.commit = CommitNumber(log.machine.commit - back)
        with pytest.raises(InvariantViolation):
            log.transact(2, delete("a"))


def test_condition_of_a_write_refuses_as_one_of_the_transaction_does() -> None:
    log = Log()
    log.transact(1, put("t", "a", 1))
    for sequence, result in (
        (2, log.transact(2, put("u", "b", 1), put("t", "a", 2, **{"if": {"absent": True}}))),
        (
            3,
            log.transact(
                3, put("u", "b", 1), put("u", "c", 2), when=[row("t", "n", absent=True), row("t", "a", absent=True)]
            ),
        ),
    ):
        where = "writes[1]" if sequence == 2 else "conditions[1]"
        assert done(result) == Transacted("CONDITION_FAILED", 1, b"1", failed=where)


def test_take_is_told_to_flows_and_watchers_number_by_number() -> None:
    log = Log(TAPPED)
    log.transact(1, put("t", "r/a", [0]), put("t", "r/b", [3, "y"]))
    log.now_ms = 90
    sent = c.Operate(1, 1, SequenceNumber(1), [transaction(2, put("u", "z", 1), take(2, ttl_ms=10))], traceparent=TRACE)
    [result] = log.do(sent)
    assert taken(result.verdicts[0]) == [Taken("x/a", 6, b"[1]"), Taken("x/b", 8, b'[4,"y"]')]
    rows = [StoredRow(CommitNumber(n), v, Life(100, 0, k)) for n, v, k in ((6, b"[1]", "r/a"), (8, b'[4,"y"]', "r/b"))]
    assert change(log) == [
        (3, 8, "u", "z", StoredRow(CommitNumber(3), b"1")),
        (5, 8, "t", "r/a", None), (6, 8, "t", "x/a", rows[0]),
        (7, 8, "t", "r/b", None), (8, 8, "t", "x/b", rows[1]),
    ]  # fmt: skip
    assert told(log)[2:] == [
        (5, "r/a", None, 90, 1, 2, TRACE), (6, "x/a", b"[1]", 90, 1, 2, TRACE),
        (7, "r/b", None, 90, 1, 2, TRACE), (8, "x/b", b'[4,"y"]', 90, 1, 2, TRACE),
    ]  # fmt: skip


@pytest.mark.parametrize("made", [True, False])
def test_take_onto_a_row_replaces_it_as_it_is_then(made: bool) -> None:
    """A row of before, or as the same transaction has made it."""
    log = Log()
    log.transact(1, put("t", "r/a", [0]), put("t", "x/a", "there before"))
    log.transact(2, *([put("t", "x/a", "made, and longer than before")] if made else []), take())
    table = log.machine.tables["t"]
    assert log.rows() == {("t", "x/a"): (log.machine.commit, b"[1]")}
    assert table.bytes == len("x/a") + len(b"[1]") + 120
    before = log.machine.changes[-1][4]
    assert before.value == (b'"made, and longer than before"' if made else b'"there before"')  # type: ignore[union-attr]


@pytest.mark.parametrize("count", [1, 2, 9])
@pytest.mark.parametrize("written", [*product(("", "put", "delete"), repeat=3)])
def test_take_passes_over_the_rows_that_its_transaction_writes(written: tuple[str, ...], count: int) -> None:
    log, keys = Log(), ("r/a", "r/b", "r/c")
    log.transact(1, *(put("t", key, [0]) for key in keys))
    writes = [
        put("t", key, [9]) if how == "put" else delete(key) for key, how in zip(keys, written, strict=True) if how
    ]
    free = [f"x/{key[2:]}" for key, how in zip(keys, written, strict=True) if not how]
    assert [one.key for one in taken(log.transact(2, *writes, take(count)))] == free[:count]


@pytest.mark.parametrize("over", [0, 1])
@pytest.mark.parametrize("shown", [0, 500])
def test_values_that_a_take_tells_are_64_kib_at_most_with_what_gets_show(over: int, shown: int) -> None:
    log = Log()
    room = RESULT_BYTES_MAX - (64 + shown if shown else 0)
    values = {"r/a": text(room - 30_000 + over), "r/b": text(30_000), "r/c": 1}
    log.transact(1, *(put("t", key, value) for key, value in values.items()), put("t", "g", text(shown or 9)))
    rows = taken(log.transact(2, *([get("g")] if shown else []), take(9)))
    assert [one.key for one in rows] == (["x/a"] if over else ["x/a", "x/b"])
    assert None not in [one.value for one in rows]
    assert [one.key for one in taken(log.transact(3, take(9)))] == (["x/b", "x/c"] if over else ["x/c"])


@pytest.mark.parametrize("over", [0, 1])
def test_first_row_of_a_take_is_told_with_its_value_up_to_64_kib(over: int) -> None:
    log = Log()
    log.transact(1, put("t", "r/a", text(RESULT_BYTES_MAX + over)), put("t", "r/b", 1))
    [one] = taken(log.transact(2, take(9)))
    assert (one.key, one.value is None) == ("x/a", bool(over))


@settings(max_examples=30, deadline=None)
@given(
    most=st.integers(1, 4),
    before=st.integers(0, 4),
    beside=st.integers(0, 3),
    count=st.integers(1, 6),
    bound=st.booleans(),
)
def test_take_has_so_many_rows_as_its_session_may_still_have(
    most: int, before: int, beside: int, count: int, bound: bool
) -> None:
    """Beside those bound ``before``, and what the transaction writes itself; what is not bound is not counted."""
    log = Log()
    log.transact(1, *(put("t", f"r/{at}", [0]) for at in range(5)))
    for at in range(min(before, most)):
        log.transact(2 + at, put("t", f"b/{at}", 1, bound=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "BOUND_ROWS_MAX", most)
        writes = [put("t", f"c/{at}", 1) for at in range(beside)]
        verdict = log.transact(9, *writes, take(count, **({"bound": True} if bound else {})))
    left = most - min(before, most) - beside
    if bound and left <= 0:
        assert verdict.refusal.code is Code.QUOTA
        assert not any(key.startswith("x/") for _, key in log.rows())
    else:
        assert len(taken(verdict)) == min(count, 5, left if bound else 5)
        assert log.machine.ends.bound(1) == min(before, most) + (len(taken(verdict)) if bound else 0)


def test_results_are_shared_saved_as_lists_and_hidden_from_the_garbage_collector() -> None:
    """A node remembers them by the million, gives the same one to each retry, and reads what it saved before."""
    one = Taken("k", 7, b"1")
    refused = Transacted("CONDITION_FAILED", 3, b"1", failed="writes[0]")
    took = Took(None, 0, None, 2, [(0, Remembered(None, 5, b"1"))], taken=[one])
    for result, name in ((one, "key"), (refused, "count"), (took, "taken")):
        with pytest.raises(AttributeError):
            setattr(result, name, None)
        saved = msgspec.msgpack.encode(result)
        assert isinstance(msgspec.msgpack.decode(saved), list)
        assert msgspec.msgpack.decode(saved, type=type(result)) == result
        assert not type(result).__struct_config__.gc
    assert Took(None, 0, None, 2).taken == []
    assert (refused.commits, refused.last_of(CommitNumber(9))) == (1, 9)
    assert (took.commits, took.last_of(CommitNumber(9)), took.size) == (4, 12, 128 + 64 + 1 + 64 + 1 + 1)
    assert (Transacted(None, 0, None, 3).last_of(CommitNumber(9)), refused.size) == (11, 128 + 1)
