"""A table's rows against a dictionary: pages and runs of puts; how many rows may end, and when changes are indexed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.gateway.machine.commands import LIST_BYTES_MAX, Op, OpKind, with_options
from oncegate.gateway.machine.commands import Test as Condition
from oncegate.gateway.machine.row_ends import BOUND_ROWS_MAX, ENDING_ROWS_MAX, ENDING_ROWS_TABLE_MAX, Life, RowEnds
from oncegate.gateway.machine.row_rule import INTEGER_BYTES_MAX, Remembered, holds, refused, row_after
from oncegate.gateway.machine.rows import ChangeRun, DictRows, StoredRow, each_change
from oncegate.gateway.machine.tables import Table
from oncegate.rifl.errors import Code, InvariantViolation
from oncegate.rifl.ids import CommitNumber, Fingerprint, SequenceNumber
from oncegate.rifl.key_table import KEYS_CLIENT

keys = st.sampled_from(["a", "ab", "b", "c", "\N{SNOWMAN}"])
texts = st.binary(min_size=1, max_size=4)
steps = st.one_of(
    st.tuples(st.just("put"), keys, texts),
    st.tuples(st.just("run"), st.lists(st.tuples(keys, texts), min_size=1, max_size=5), st.none()),
    st.tuples(st.just("delete"), keys, st.none()),
    st.tuples(st.just("order"), st.none(), st.none()),
)


def stored(commit: int, value: bytes = b"1", life: Life | None = None) -> StoredRow:
    return StoredRow(CommitNumber(commit), value, life)


def op(kind: OpKind, key: str = "k", value: bytes | None = b"1", **more: Any) -> Op:
    plain = Op(SequenceNumber(1), kind.value, "t", key, Fingerprint(0), value, 1)
    return with_options(plain, **more)


def filled(plan: list[tuple[Any, ...]]) -> tuple[DictRows, dict[str, StoredRow]]:
    """Do the same to rows and to a dictionary."""
    rows, model, commit = DictRows(), dict[str, StoredRow](), 0
    for what, first, second in plan:
        if what == "put":
            commit += 1
            rows.put(first, stored(commit, second), model.get(first))
            model[first] = stored(commit, second)
        elif what == "run":
            made = [stored(commit + at, value) for at, (_, value) in enumerate(first, 1)]
            before: list[StoredRow | None] = []
            for (key, _), row in zip(first, made, strict=True):
                before.append(model.get(key))
                model[key] = row
            assert rows.put_run([key for key, _ in first], made) == before
            commit += len(first)
        elif what == "delete" and first in model:
            rows.delete(first, model.pop(first))
        elif what == "order":
            rows.page("", None, 1)
    return rows, model


@settings(max_examples=80, deadline=None)
@given(
    plan=st.lists(steps, max_size=20),
    low=st.sampled_from(["", "a", "ab", "b", "x"]),
    high=st.none() | keys,
    limit=st.integers(0, 6),
    bytes_max=st.integers(0, 9),
    reverse=st.booleans(),
)
def test_page_is_a_slice_of_the_sorted_rows_up_to_the_row_that_takes_it_over_its_bytes(
    plan: list[tuple[Any, ...]], low: str, high: str | None, limit: int, bytes_max: int, reverse: bool
) -> None:
    rows, model = filled(plan)
    within = sorted((key for key in model if low <= key and (high is None or key < high)), reverse=reverse)
    expected: list[tuple[str, StoredRow]] = []
    for key in within[:limit]:
        if sum(len(row.value) for _, row in expected) > bytes_max:
            break
        expected.append((key, model[key]))
    assert rows.page(low, high, limit, bytes_max, reverse=reverse) == expected
    assert [*rows.items()] == sorted(model.items())
    assert (len(rows), [rows.get(key) for key in sorted(model)]) == (len(model), [row for _, row in rows.items()])


def test_page_without_a_bound_has_all_rows_whatever_their_size() -> None:
    rows, model = filled([("put", f"{at}", b"1" * 10_000) for at in range(9)])
    assert rows.page("", None, 99) == sorted(model.items())


def test_rows_are_sorted_once() -> None:
    rows, _ = filled([("put", "b", b"1"), ("order", None, None)])
    order = rows._order
    rows.put("a", stored(2), None)
    rows.put_run(["c", "a"], [stored(3), stored(4)])
    assert [key for key, _ in rows.page("", None, 9)] == ["a", "b", "c"]
    assert rows._order is order


@pytest.mark.parametrize("commit", [6, 7])
def test_run_of_puts_that_a_row_is_not_below_is_refused(commit: int) -> None:
    made = Table("t", "resident", 1 << 20)
    do(made, op(OpKind.PUT, "k", b"1"), 7)
    with pytest.raises(InvariantViolation, match=f"commit {commit} finds a row that 7 has written"):
        made.put_run(["k"], [b"2"], CommitNumber(commit))
    assert made.rows.get("k") == stored(7)


def test_columns_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        DictRows().put_run(["a", "b"], [stored(1)])
    with pytest.raises(ValueError, match="shorter"):
        ChangeRun(CommitNumber(1), "t", ["a"], [None], [], 0).each()
    indexed = Table("t", "resident", 1 << 20)
    indexed.indexed = True
    with pytest.raises(ValueError, match="longer"):
        indexed.put_run(["a"], [b"1", b"2"], CommitNumber(1))


def do(table: Table, one: Op, commit: int, life: Life | None = None) -> None:
    """Write what an operation makes of its row."""
    row = table.rows.get(one.key)
    after = row_after(one, row, CommitNumber(commit), life)
    assert not isinstance(after, Remembered)
    table.change(one.key, row, after, CommitNumber(commit))


class ToldRows(DictRows):
    """Rows that hold whoever writes them to what the store is told: what was there before."""

    def put(self, key: str, row: StoredRow, before: StoredRow | None) -> None:
        assert before == self.get(key)
        super().put(key, row, before)

    def delete(self, key: str, before: StoredRow) -> None:
        assert before == self.get(key)
        super().delete(key, before)


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from([OpKind.PUT, OpKind.INCREMENT, OpKind.DELETE, None]),
            keys,
            st.sampled_from([None, None, Life(5, 0)]),
        ),
        max_size=12,
    )
)
def test_store_is_told_what_was_there_before_each_write(
    steps: list[tuple[OpKind | None, str, Life | None]],
) -> None:
    """A store on disk does not look it up again. ``None`` stands for a run."""
    table = Table("t", "resident", 1 << 20, ToldRows())
    for commit, (kind, key, life) in enumerate(steps, 1):
        if kind is None:
            assert table.put_run([key], [b"1"], CommitNumber(commit))
        else:
            do(table, op(kind, key), commit, life if kind is not OpKind.DELETE else None)


@given(names=st.sets(st.text("ab\U0010ffff", max_size=3), max_size=12), prefix=st.text("ab\U0010ffff", max_size=2))
def test_first_rows_under_a_prefix_are_those_that_begin_with_it(names: set[str], prefix: str) -> None:
    table = Table("t", "resident", 1 << 20)
    for commit, key in enumerate(sorted(names), 1):
        do(table, op(OpKind.PUT, key, b"1"), commit)
    for _ in range(2):  # once read from the rows, once from what is remembered of them
        assert [key for key, _ in table.first_rows(prefix)] == sorted(key for key in names if key.startswith(prefix))


@given(runs=st.lists(st.lists(st.tuples(keys, texts), min_size=1, max_size=5), max_size=4), indexed=st.booleans())
def test_run_of_puts_does_what_its_puts_do(runs: list[list[tuple[str, bytes]]], indexed: bool) -> None:
    one, other, commit = Table("t", "resident", 1 << 20), Table("t", "resident", 1 << 20), 1
    for table in (one, other):
        do(table, op(OpKind.PUT, "a"), 1, Life(5, 0) if indexed else None)
    for run in runs:
        first = CommitNumber(commit + 1)
        one.changes.clear()
        assert one.put_run([key for key, _ in run], [value for _, value in run], first)
        other.changes.clear()
        for commit, (key, value) in enumerate(run, first):
            do(other, op(OpKind.PUT, key, value), commit)
        assert [*each_change(one.changes)] == other.changes
        assert [*one.rows.items()] == [*other.rows.items()]
        assert (one.bytes, one.ending, one.indexed) == (other.bytes, other.ending, other.indexed)
        assert one.bytes == sum(len(key) + len(row.value) + 120 for key, row in one.rows.items())
        if indexed:
            continue
        [column] = one.changes
        size = sum(len(c[3]) + len(c[5].value) + (len(c[4].value) if c[4] else 0) for c in other.changes)  # type: ignore[misc, union-attr]
        assert isinstance(column, ChangeRun)
        assert (column.first, column.table, column.size) == (first, "t", size)


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("spare", [-1, 0])
def test_run_of_puts_is_written_whole_or_not_at_all(spare: int, indexed: bool) -> None:
    table = Table("t", "resident", 1 << 20)
    do(table, op(OpKind.PUT, "a"), 1, Life(5, 0) if indexed else None)
    table.quota_bytes, before = table.bytes + 2 * (2 + 120) + spare, list(table.changes)
    assert table.put_run(["b", "c"], [b"1", b"2"], CommitNumber(2)) is (spare == 0)
    assert (len(table.rows), table.changes == before) == ((3, False) if spare == 0 else (1, True))


@pytest.mark.parametrize("spare", [-1, 0])
@pytest.mark.parametrize(
    ("kind", "size"), [(OpKind.PUT, 2), (OpKind.INCREMENT, 1 + INTEGER_BYTES_MAX), (OpKind.APPEND, 2)]
)
def test_row_fits_to_the_byte(kind: OpKind, size: int, spare: int) -> None:
    table = Table("t", "resident", 1 << 20)
    do(table, op(OpKind.PUT, "a", b"1"), 1)
    table.quota_bytes = table.bytes + size + spare
    code = None if spare == 0 else Code.QUOTA
    assert table.check(op(kind, "k", None if kind is OpKind.INCREMENT else b"1")) is code


def rows_that_end(filed: int, of_table: int, bound: int) -> Table:
    """A table, of which so many rows end and so many are bound to session 1, as do ``filed`` of all tables."""
    table = Table("t", "resident", 1 << 20, ends=RowEnds())
    for at in range(bound):
        table.ends.put_back(("t", f"{at}"), Life(0, 1))
    table.ends._count, table.ending = filed, of_table
    return table


@pytest.mark.parametrize("more", [0, 3])
@pytest.mark.parametrize("kind", [OpKind.PUT, OpKind.INCREMENT, OpKind.APPEND, OpKind.TAKE])
@pytest.mark.parametrize(
    ("filed", "of_table", "bound", "owner"),
    [
        (ENDING_ROWS_MAX, 9, 9, 0),
        (9, ENDING_ROWS_TABLE_MAX, 9, 0),
        (9, 9, BOUND_ROWS_MAX, 1),
        (9, 9, BOUND_ROWS_MAX, 2),
    ],
)
def test_row_may_end_if_it_is_the_last_for_which_there_is_room(
    filed: int, of_table: int, bound: int, owner: int, kind: OpKind, more: int
) -> None:
    """``more`` others are about to; what is bound to another session takes no room of one's own."""
    life = Life(0 if owner else 5, owner)
    for spare in (0, 1):
        room = more + spare
        table = rows_that_end(
            filed - room if filed > 9 else 9, of_table - room if of_table > 9 else 9, bound - room if bound > 9 else 9
        )
        allowed = spare == 1 or owner == 2
        assert table.check_life(op(kind), life, more) is (None if allowed else Code.QUOTA)
        if owner < 2:
            assert table.room_to_end(owner, more) == spare
            assert table.room_to_end(owner) == room


def test_rows_that_end_with_no_session_are_as_many_as_a_table_may_have() -> None:
    table = Table("t", "resident", 1 << 20)
    assert (table.room_to_end(0), table.room_to_end(1)) == (ENDING_ROWS_TABLE_MAX, BOUND_ROWS_MAX)


@pytest.mark.parametrize("kind", [OpKind.PUT, OpKind.TAKE])
def test_row_may_end_as_the_last_of_all_if_no_other_is_about_to(kind: OpKind) -> None:
    for spare, code in ((0, Code.QUOTA), (1, None)):
        assert rows_that_end(ENDING_ROWS_MAX - spare, 9, 9).check_life(op(kind), Life(5, 0)) is code
        assert rows_that_end(9, 9, BOUND_ROWS_MAX - spare).check_life(op(kind), Life(0, 1)) is code


@pytest.mark.parametrize("kind", [OpKind.TAKE, OpKind.DELETE, OpKind.GET])
def test_full_table_lets_through_what_adds_nothing(kind: OpKind) -> None:
    table = Table("t", "resident", 0)
    assert table.check(op(kind)) is None
    assert table.check(op(OpKind.PUT)) is Code.QUOTA


def test_row_that_ends_already_takes_no_further_room_but_that_of_another_session() -> None:
    table = rows_that_end(9, 9, 0)
    table.rows.put("timed", stored(1, b"1", Life(5, 0)), None)
    table.rows.put("bound", stored(2, b"1", Life(0, 1)), None)
    table.rows.put("plain", stored(3), None)
    table.ends._count, table.ending = ENDING_ROWS_MAX, ENDING_ROWS_TABLE_MAX
    found = {key: table.check_life(op(OpKind.PUT, key), Life(9, 0)) for key in ("timed", "bound", "plain", "none")}
    assert found == {"timed": None, "bound": None, "plain": Code.QUOTA, "none": Code.QUOTA}
    for at in range(BOUND_ROWS_MAX):
        table.ends.put_back(("t", f"{at}"), Life(0, 1))
    assert table.check_life(op(OpKind.PUT, "bound"), Life(0, 1)) is None, "it is this session's"
    assert table.check_life(op(OpKind.PUT, "bound"), Life(0, 2)) is None
    assert table.check_life(op(OpKind.PUT, "timed"), Life(0, 1)) is Code.QUOTA
    assert table.check_life(op(OpKind.PUT, "timed"), Life(9, 0)) is None


@pytest.mark.parametrize(
    ("kind", "of", "owner", "code"),
    [
        *((kind, "resident", 1, None) for kind in (OpKind.PUT, OpKind.INCREMENT, OpKind.APPEND, OpKind.TAKE)),
        *((kind, "resident", 1, Code.BAD_REQUEST) for kind in (OpKind.DELETE, OpKind.GET)),
        *((kind, "stream", 0, Code.BAD_REQUEST) for kind in (OpKind.PUT, OpKind.DELETE)),
        *((kind, "resident", KEYS_CLIENT, Code.BAD_REQUEST) for kind in (OpKind.PUT, OpKind.TAKE)),
    ],
)
def test_end_is_for_what_makes_a_row_of_a_resident_table_and_for_sessions(
    kind: OpKind, of: Any, owner: int, code: Code | None
) -> None:
    assert Table("t", of, 1 << 20).check_life(op(kind), Life(5, owner)) is code


def test_table_looks_rows_up_in_its_index_only_while_some_end_or_some_were_taken() -> None:
    """Each write of another one pays for one look at a truth value."""
    table = Table("t", "resident", 1 << 20)
    assert table.indexed is False
    do(table, op(OpKind.PUT, "a"), 1, Life(5, 0))
    do(table, op(OpKind.PUT, "b"), 2, Life(5, 0))
    assert (table.indexed, table.ending, len(table.ends)) == (True, 2, 2)
    do(table, op(OpKind.PUT, "a"), 3)
    assert (table.indexed, table.ending, table.ends.places()) == (True, 1, {("t", "b")})
    do(table, op(OpKind.DELETE, "b"), 4)
    assert (table.indexed, table.ending, len(table.ends)) == (False, 0, 0)
    assert [key for key, _ in table.first_rows("a")] == ["a"]
    assert table.indexed is True
    do(table, op(OpKind.PUT, "b"), 5, Life(5, 0))
    do(table, op(OpKind.DELETE, "b"), 6)
    assert table.indexed is True, "some were taken"
    do(table, op(OpKind.PUT, "ab", b"1"), 7)
    do(table, op(OpKind.PUT, "ac"), 8)
    assert table.put_run(["aa"], [b"1"], CommitNumber(9))
    assert [key for key, _ in table.first_rows("a")] == ["a", "aa", "ab", "ac"]


def test_saved_ends_are_counted_and_filed_again() -> None:
    table = Table("t", "resident", 1 << 20)
    for at, key in enumerate("ab", 1):
        table.put_back_end(key, Life(at, 7))
        assert (table.ending, table.indexed) == (at, True)
    assert table.ends.bound_places(7) == [("t", "a"), ("t", "b")]


def test_table_is_what_it_was_declared_with() -> None:
    rows, ends, changes = DictRows(), RowEnds(), list[Any]()
    rows.put("k", stored(1), None)
    table = Table("u", "resident", 77, rows, changes, ends, number=4, since=9)
    assert (table.name, table.kind, table.quota_bytes) == ("u", "resident", 77)
    assert (table.number, table.incarnation, table.since) == (4, 5, 9)
    assert table.rows is rows
    assert table.ends is ends
    assert table.changes is changes
    plain = Table("t", "stream", 1)
    assert (plain.number, plain.since, plain.bytes, plain.ending) == (0, 0, 0, 0)
    assert (len(plain.rows), len(plain.ends), plain.changes) == (0, 0, [])
    plain.changes.append((1, 1, "t", "k", None, None, ""))
    assert Table("t", "stream", 1).changes == []


@pytest.mark.parametrize("size", [2_047, 2_048, 2_049])
def test_refusal_shows_a_row_of_up_to_2_kib(size: int) -> None:
    row = stored(7, b"1" * size)
    assert refused("WHY", row) == Remembered("WHY", 7, row.value if size <= 2_048 else None)
    assert refused("WHY", None) == Remembered("WHY", 0, None)


@pytest.mark.parametrize("indexed", [False, True])
def test_null_is_written_as_its_text(indexed: bool) -> None:
    table = Table("t", "resident", 1 << 20)
    table.indexed = indexed
    do(table, op(OpKind.PUT, "a", None), 1)
    do(table, op(OpKind.APPEND, "b", None), 2)
    assert [row.value for _, row in table.rows.items()] == [b"null", b"[null]"]
    for life in (None, Life(1, 0)):
        assert row_after(op(OpKind.PUT, "a", None), None, CommitNumber(3), life) == stored(3, b"null", life)


was = st.none() | st.builds(Life, st.integers(0, 2), st.integers(0, 2), st.sampled_from(["", "m"]))


@given(
    kind=st.sampled_from([OpKind.PUT, OpKind.INCREMENT, OpKind.APPEND, OpKind.DELETE]),
    before=st.none() | st.builds(lambda life: stored(1, b"1", life), was),
    life=was,
)
def test_row_behind_a_write_is_what_its_kind_and_its_life_say_and_is_counted(
    kind: OpKind, before: StoredRow | None, life: Life | None
) -> None:
    """A put says anew how its row ends; an increment or append changes of it what it says itself."""
    if kind is OpKind.APPEND and before is not None:
        before = stored(1, b"[1]", before.life)
    table, there = Table("t", "resident", 1 << 20), None if before is None else before.life
    if before is not None:
        table.change("k", None, before, CommitNumber(1))
    expected = life
    if kind is not OpKind.PUT and there is not None:
        own = life or Life(0, 0)
        expected = Life(own.ends_ms or there.ends_ms, own.owner or there.owner, own.then or there.then)
    value = {
        OpKind.PUT: b"5", OpKind.INCREMENT: b"1" if before is None else b"2",
        OpKind.APPEND: b"[5]" if before is None else b"[1,5]", OpKind.DELETE: b"",
    }[kind]  # fmt: skip
    after = None if kind is OpKind.DELETE else stored(9, value, expected)
    one = op(kind, "k", b"5")
    assert row_after(one, before, CommitNumber(9), life) == after
    do(table, one, 9, life)
    assert table.rows.get("k") == after
    assert table.bytes == (0 if after is None else 1 + len(value) + 120)
    assert table.ending == len(table.ends) == (after is not None and expected is not None)
    last = [(9, 9, "t", "k", before, after, "")] if before is not None or after is not None else []
    assert table.changes[before is not None :] == last


def number_in(row: StoredRow | None) -> int | None:
    """Return the number that an increment finds, None for what is none."""
    if row is None:
        return 0
    found = msgspec.json.decode(row.value)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


CONDITIONS: dict[Condition, Any] = {
    Condition.ABSENT: lambda operand, row: row is None,
    Condition.PRESENT: lambda operand, row: row is not None,
    Condition.VERSION: lambda operand, row: operand == (0 if row is None else row.version),
    Condition.VALUE: lambda operand, row: row is not None and operand == row.value,
    Condition.AT_LEAST: lambda operand, row: number_in(row) in range(operand, 99),
    Condition.AT_MOST: lambda operand, row: number_in(row) in range(-99, operand + 1),
}
"""What each condition says of a row, as SEMANTICS.md has it."""


@pytest.mark.parametrize("test", CONDITIONS)
def test_condition_holds_on_the_rows_that_it_names_and_on_no_other(test: Condition) -> None:
    values = [b"0", b"1", b"5", b"-5", b'"1"', b"[1]", b"true", b"null"]
    operands = values if test is Condition.VALUE else range(-6, 7)
    for row in (None, *(stored(version, value) for version in (1, 5) for value in values)):
        for operand in operands:
            assert holds(test, operand, row) is CONDITIONS[test](operand, row), (operand, row)


@pytest.mark.parametrize("test", [Condition.AT_LEAST, Condition.AT_MOST])
def test_number_is_compared_with_numbers_alone(test: Condition) -> None:
    assert holds(test, 1, stored(1, b"1"))
    assert not holds(test, b"1", stored(1, b"1"))
    assert not holds(test, None, None)
    assert not holds(test, 1, stored(1, b'"1"'))


@pytest.mark.parametrize(("before", "shown"), [(b"5", 6), (b"-5", -4), (b"- 5", None), (b"--5", None), (b"", None)])
def test_increment_reads_whole_numbers_alone(before: bytes, shown: int | None) -> None:
    found = row_after(op(OpKind.INCREMENT), stored(1, before), CommitNumber(2))
    assert found == (Remembered("NOT_AN_INTEGER", 1, before) if shown is None else stored(2, b"%d" % shown))


@pytest.mark.parametrize(("bound", "least", "most"), [({"floor": 3}, 3, 9), ({"ceiling": 3}, -9, 3), ({}, -9, 9)])
def test_sum_of_an_increment_may_be_its_floor_or_ceiling_and_nothing_beyond(
    bound: dict[str, int], least: int, most: int
) -> None:
    for before, row in ((0, None), (0, stored(1, b"0")), (2, stored(1, b"2"))):
        taken = []
        for by in range(-9 - before, 10 - before):
            one = msgspec.structs.replace(with_options(op(OpKind.INCREMENT), **bound), by=by)
            after = row_after(one, row, CommitNumber(2))
            if isinstance(after, StoredRow):
                taken.append(before + by)
            else:
                assert after == refused("CONDITION_FAILED", row)
        assert taken == list(range(least, most + 1))


@pytest.mark.parametrize("over", [0, 1])
def test_list_has_its_bytes_at_most(over: int) -> None:
    for before, item in ((None, LIST_BYTES_MAX - 3), (stored(1, b"[1]"), LIST_BYTES_MAX - 4)):
        made = row_after(op(OpKind.APPEND, "k", b"1" * (item + over)), before, CommitNumber(2))
        assert isinstance(made, Remembered if over else StoredRow)


def test_rows_and_results_are_shared_saved_as_lists_and_hidden_from_the_garbage_collector() -> None:
    for one, name in ((stored(1, b"1", Life(2, 3)), "version"), (Remembered("WHY", 3, b"123"), "refusal")):
        with pytest.raises(AttributeError):
            setattr(one, name, None)
        saved = msgspec.msgpack.encode(one)
        assert isinstance(msgspec.msgpack.decode(saved), list)
        assert msgspec.msgpack.decode(saved, type=type(one)) == one
        assert not type(one).__struct_config__.gc
    assert (Remembered("WHY", 3, b"123").size, Remembered("WHY", 3, None).size) == (67, 64)
    assert (stored(1).ends_ms, stored(1).owner, stored(1, b"1", Life(2, 3)).ends_ms) == (0, 0, 2)
    assert stored(1, b"1", Life(2, 3)).owner == 3
    assert stored(1).life is None


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("bytes_max", range(8))
@pytest.mark.parametrize("limit", [1, 2, 9])
def test_page_of_any_bound_ends_with_the_row_that_takes_it_over(limit: int, bytes_max: int, reverse: bool) -> None:
    rows, found = DictRows(), list[str]()
    sizes = {"a": 1, "b": 2, "c": 3, "d": 1}
    for at, (key, size) in enumerate(sizes.items(), 1):
        rows.put(key, stored(at, b"1" * size), None)
    left = bytes_max
    for key in sorted(sizes, reverse=reverse):
        if len(found) < limit and left >= 0:
            found.append(key)
            left -= sizes[key]
    assert [key for key, _ in rows.page("", None, limit, bytes_max, reverse=reverse)] == found
