"""What an operation does to a row, and what it refuses as a result."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.gateway.machine import operations
from oncegate.gateway.machine.commands import LIST_BYTES_MAX, RESULT_BYTES_MAX, Op, OpKind
from oncegate.gateway.machine.commands import Test as Condition
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.row_rule import INT64_MAX, INT64_MIN, Remembered
from oncegate.gateway.machine.rows import DictRows, StoredRow, prefix_end
from oncegate.gateway.machine.tables import ROW_OVERHEAD_BYTES, Table
from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.errors import Code, InvariantViolation
from oncegate.rifl.ids import CommitNumber
from oncegate.rifl.result_tracker import ResultTracker


def table(kind: str = "resident", **rows: bytes) -> Table:
    made = Table("t", kind, 1 << 20)  # type: ignore[arg-type]
    for commit, (key, value) in enumerate(rows.items(), 1):
        execute(made, put(key, value), commit)
    return made


def execute(made: Table, op: Op, commit: int) -> Remembered | None:
    """Execute an operation of a new session under this commit number, and return what is remembered of it."""
    machine = Machine()
    machine.tables["t"], machine.commit = made, CommitNumber(commit - 1)
    record = operations.execute(machine, 1, ResultTracker(window=8), op, "")
    assert isinstance(record, CompletionRecord)
    assert (machine.commit, record.commit) == (commit, commit)
    return record.result


Operand = int | bytes | None


def put(key: str, value: bytes, test: Condition = Condition.NONE, operand: Operand = None) -> Op:
    return Op(1, int(OpKind.PUT), "t", key, 0, value, 0, int(test), operand)


def append(key: str, item: bytes, test: Condition = Condition.NONE, operand: Operand = None) -> Op:
    return Op(1, int(OpKind.APPEND), "t", key, 0, item, 0, int(test), operand)


def delete(key: str, test: Condition = Condition.NONE, operand: Operand = None) -> Op:
    return Op(1, int(OpKind.DELETE), "t", key, 0, None, 0, int(test), operand)


def increment(key: str, by: int) -> Op:
    return Op(1, int(OpKind.INCREMENT), "t", key, 0, by=by)


def get(key: str) -> Op:
    return Op(1, int(OpKind.GET), "t", key, 0)


def size_of(made: Table) -> int:
    return sum(len(key) + len(row.value) + ROW_OVERHEAD_BYTES for key, row in made.rows.items())


@pytest.mark.parametrize(
    ("test", "operand", "on_row", "on_nothing"),
    [
        (Condition.ABSENT, None, False, True),
        (Condition.VERSION, 1, True, False),
        (Condition.VERSION, 2, False, False),
        (Condition.VERSION, 0, False, True),
        (Condition.VALUE, b"1", True, False),
        (Condition.VALUE, b"2", False, False),
        (Condition.VALUE, b"null", False, False),
    ],
)
def test_condition_decides_and_a_refusal_shows_the_row(
    test: Condition, operand: Operand, on_row: bool, on_nothing: bool
) -> None:
    for change in (put("k", b"9", test, operand), delete("k", test, operand)):
        on = table(k=b"1")
        refused = Remembered("CONDITION_FAILED", 1, b"1")
        assert execute(on, change, 7) == (None if on_row else refused)
        assert on_row or on.rows.get("k") == StoredRow(1, b"1")
        off = table()
        assert execute(off, change, 7) == (None if on_nothing else Remembered("CONDITION_FAILED", 0, None))
        assert (off.rows.get("k") is not None) == (on_nothing and change.kind == OpKind.PUT)


def test_version_is_the_commit_of_the_last_write() -> None:
    made = table(k=b"1")
    execute(made, put("k", b"2"), 40)
    assert made.rows.get("k") == StoredRow(40, b"2")
    execute(made, increment("k", 1), 41)
    assert made.rows.get("k") == StoredRow(41, b"3")


@pytest.mark.parametrize(
    ("before", "by", "result"),
    [
        (None, 5, b"5"),
        (None, INT64_MIN, b"-9223372036854775808"),
        (b"1", -3, b"-2"),
        (b"-5", 5, b"0"),
        (str(INT64_MAX - 1).encode(), 1, b"9223372036854775807"),
        (b"9223372036854775808", -1, b"9223372036854775807"),
        (str(INT64_MAX).encode(), 1, "OVERFLOW"),
        (str(INT64_MIN).encode(), -1, "OVERFLOW"),
        (b"18446744073709551615", 0, "OVERFLOW"),
        (b"1.0", 1, "NOT_AN_INTEGER"),
        (b"1e3", 1, "NOT_AN_INTEGER"),
        (b'"1"', 1, "NOT_AN_INTEGER"),
        (b"null", 1, "NOT_AN_INTEGER"),
        (b"true", 1, "NOT_AN_INTEGER"),
        (b"[]", 1, "NOT_AN_INTEGER"),
        (b"1" * 21, 1, "NOT_AN_INTEGER"),
    ],
)
def test_increment_adds_or_refuses_and_never_wraps(before: bytes | None, by: int, result: bytes | str) -> None:
    made = table(**({} if before is None else {"k": before}))
    rows = list(made.rows.items())
    got = execute(made, increment("k", by), 7)
    if isinstance(result, bytes):
        assert got == Remembered(None, 7, result)
        assert made.rows.get("k") == StoredRow(7, result)
    else:
        assert got == Remembered(result, 1 if before else 0, before)
        assert list(made.rows.items()) == rows
    assert made.bytes == size_of(made)


@pytest.mark.parametrize("op", [put("k", b"2"), delete("k"), increment("k", 1)])
@pytest.mark.parametrize("commit", [4, 5])
def test_commit_that_does_not_follow_the_rows_version_raises_and_changes_nothing(op: Op, commit: int) -> None:
    """Two values under one version would let If-Match write over what its caller has never seen."""
    made = table()
    execute(made, put("k", b"1"), 5)
    before = made.bytes
    with pytest.raises(InvariantViolation, match=f"commit {commit} "):
        execute(made, op, commit)
    assert (made.rows.get("k"), made.bytes) == (StoredRow(5, b"1"), before)


def test_row_with_bytes_that_nobody_counted_raises_and_is_not_deleted() -> None:
    made = table(k=b"1")
    made.bytes -= 1
    with pytest.raises(InvariantViolation):
        execute(made, delete("k"), 2)
    assert made.rows.get("k") == StoredRow(1, b"1")


@pytest.mark.parametrize("rows", [{}, {"k": b"1", "m": b"2"}])
def test_saved_bytes_that_no_such_rows_occupy_are_not_taken(rows: dict[str, bytes]) -> None:
    made = table(**rows)
    right = made.bytes
    made.put_back(right)
    for wrong in (-1, ROW_OVERHEAD_BYTES):
        with pytest.raises(InvariantViolation):
            made.put_back(wrong)
    assert made.bytes == right


def test_delete_of_nothing_is_applied() -> None:
    assert execute(table(), delete("k"), 1) is None


def test_check_refuses_before_execution_and_lets_deletes_through_a_full_table() -> None:
    made = table(k=b"1")
    made.quota_bytes = made.bytes
    assert made.check(put("k2", b"1")) is Code.QUOTA
    assert made.check(increment("n", 1)) is Code.QUOTA
    assert made.check(delete("k")) is None


@pytest.mark.parametrize(
    ("op", "code"),
    [
        (put("k", b"1"), None),
        (delete("k"), None),
        (increment("k", 1), Code.BAD_REQUEST),
        (put("k", b"1", Condition.ABSENT), Code.BAD_REQUEST),
        (delete("k", Condition.VERSION, 1), Code.BAD_REQUEST),
        (append("k", b"1"), Code.BAD_REQUEST),
        (get("k"), Code.BAD_REQUEST),
    ],
)
def test_stream_table_takes_plain_puts_and_deletes_only(op: Op, code: Code | None) -> None:
    assert table("stream").check(op) is code


keys = st.sampled_from(["a", "ab", "abc", "b", "\N{SNOWMAN}", "z"])
changes = st.one_of(
    st.tuples(st.just("put"), keys, st.integers(-5, 5)),
    st.tuples(st.just("delete"), keys, st.just(0)),
    st.tuples(st.just("increment"), keys, st.integers(-5, 5)),
    st.tuples(st.just("page"), st.sampled_from(["", "a", "ab", "q"]), st.integers(1, 4)),
)


@given(st.lists(changes, max_size=40))
def test_table_agrees_with_a_dictionary_in_key_order(steps: list[tuple[str, str, int]]) -> None:
    made, model = table(), dict[str, int]()
    for commit, (what, key, number) in enumerate(steps, 1):
        if what == "put":
            execute(made, put(key, b"%d" % number), commit)
            model[key] = number
        elif what == "delete":
            execute(made, delete(key), commit)
            model.pop(key, None)
        elif what == "increment":
            execute(made, increment(key, number), commit)
            model[key] = model.get(key, 0) + number
        else:
            found: list[str] = []
            while page := made.rows.page(found[-1] + "\0" if found else key, prefix_end(key), number):
                assert len(page) <= number
                found += [k for k, _ in page]
            assert found == sorted(k for k in model if k.startswith(key))
        assert {k: int(row.value) for k, row in made.rows.items()} == model
        assert len(made.rows) == len(model)
        assert made.bytes == size_of(made)


def test_page_starts_after_a_key_that_is_gone() -> None:
    rows = DictRows()
    for key in "abcd":
        rows.put(key, StoredRow(1, b"1"), None)
    assert [key for key, _ in rows.page("", None, 2)] == ["a", "b"]
    rows.delete("b", StoredRow(1, b"1"))
    rows.put("bb", StoredRow(2, b"2"), None)
    assert [key for key, _ in rows.page("b\0", None, 2)] == ["bb", "c"]
    assert [key for key, _ in rows.page("b", "d", 2, reverse=True)] == ["c", "bb"]


@pytest.mark.parametrize(
    ("prefix", "end"), [("", None), ("a", "b"), ("a\U0010ffff", "b"), ("\U0010ffff", None), ("\ud7ff", "\ue000")]
)
def test_the_end_of_a_prefix_is_above_every_key_that_begins_with_it(prefix: str, end: str | None) -> None:
    assert prefix_end(prefix) == end


scalars = st.integers(-9, 9) | st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.none()
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=2), max_leaves=4)


@given(st.lists(values, max_size=6), st.integers(0, 6))
def test_appends_make_the_canonical_list_of_their_items(items: list[object], stored: int) -> None:
    encode = msgspec.json.Encoder(order="deterministic").encode
    made = table() if stored == 0 else table(k=encode(items[:stored]))
    for commit, item in enumerate(items[stored:], 10):
        assert execute(made, append("k", encode(item)), commit) is None
    row = made.rows.get("k")
    assert (encode([]) if row is None else row.value) == encode(items)
    assert made.bytes == size_of(made)


def test_append_is_refused_where_there_is_no_list_or_no_room_and_changes_nothing() -> None:
    full = b"[" + b"1" * (LIST_BYTES_MAX - 4) + b"]"
    made = table(n=b"1", o=b'{"a":[]}', s=b'"[]"', full=full, empty=b"[]")
    for key in "nos":
        row = made.rows.get(key)
        assert row is not None
        assert execute(made, append(key, b"1"), 9) == Remembered("NOT_A_LIST", row.version, row.value)
    assert execute(made, append("full", b"12"), 9) == Remembered("LIST_FULL", 4, None)
    assert execute(made, append("full", b"1"), 9) is None
    assert execute(made, append("new", b"1" * LIST_BYTES_MAX), 9) == Remembered("LIST_FULL", 0, None)
    assert execute(made, append("empty", b"1", Condition.VALUE, b"[1]"), 9) == Remembered("CONDITION_FAILED", 5, b"[]")
    assert execute(made, append("empty", b"1", Condition.VERSION, 5), 10) is None
    assert made.rows.get("empty") == StoredRow(10, b"[1]")
    assert made.bytes == size_of(made)


def test_get_shows_the_row_and_a_result_over_the_limit_is_refused_before_execution() -> None:
    """Case 32."""
    made = table(k=b"1", fits=b"1" * RESULT_BYTES_MAX, large=b"1" * (RESULT_BYTES_MAX + 1))
    assert made.check(get("k")) is None
    assert execute(made, get("k"), 9) == Remembered(None, 1, b"1")
    assert execute(made, get("absent"), 9) == Remembered(None, 0, None)
    assert made.check(get("fits")) is None
    assert made.check(get("large")) is Code.PAYLOAD_TOO_LARGE
    full = Table("t", "resident", 0)
    assert full.check(get("k")) is None, "a read needs no room"
