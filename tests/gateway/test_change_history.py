"""The history of changes, pages at a commit number and watchers, against models that keep everything."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.effects import join
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.rows import RowChange, StoredRow, each_change, prefix_end
from oncegate.gateway.node import change_events, change_history, scans, watching
from oncegate.gateway.node.change_history import ChangeHistory, HistoryExceeded
from oncegate.gateway.node.scans import KeyRange, page
from oncegate.gateway.node.watching import WatchersMax, Watching
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import CommitNumber
from tests.gateway.watched_rows import ENTRIES, Rows, Told, simplified, told

Row = tuple[str, int | None]


def change(commit: int, key: str = "k", value: bytes = b"1", table: str = "t", until: int = 0) -> RowChange:
    return commit, until or commit, table, key, None, StoredRow(commit, value), ""


@given(ENTRIES, st.integers(64, 200), st.integers(1, 5))
def test_what_the_history_has_is_every_change_above_its_first_commit(
    entries: list[list[tuple[str, str, int | None]]], changes_max: int, most: int
) -> None:
    rows = Rows(changes_max)
    for entry in entries:
        rows.write(*entry)
    history = rows.watching.history
    assert history.changes <= max(changes_max, history._block_changes + 4)
    found, reached = [], history.first
    while reached < history.last:
        some, reached = history.since(reached, most)
        found += some
    assert simplified(found) == [one for one in rows.changes if one[0] > history.first]
    if history.first:
        with pytest.raises(HistoryExceeded) as gone:
            history.since(history.first - 1, most)
        assert (gone.value.code, gone.value.first) == (Code.RETENTION_EXCEEDED, history.first)


@given(ENTRIES)
def test_what_is_kept_of_a_run_counts_as_its_changes_do(entries: list[list[tuple[str, str, int | None]]]) -> None:
    rows, apart = Rows(), ChangeHistory(1000, 2**20)
    for entry in entries:
        rows.write(*entry)
        apart.record([*each_change(rows.machine.changes)], rows.machine.commit)
        history = rows.watching.history
        assert (history.changes, history.bytes, history.first) == (apart.changes, apart.bytes, apart.first)
    assert rows.watching.history.since(0, 10**6) == apart.since(0, 10**6)


@given(ENTRIES, st.data())
def test_pages_at_a_commit_number_are_the_state_at_it(
    entries: list[list[tuple[str, str, int | None]]], data: st.DataObject
) -> None:
    """However the rows change between two pages, all pages are of the one state."""
    rows = Rows()
    cut = data.draw(st.integers(0, len(entries)))
    for entry in entries[:cut]:
        rows.write(*entry)
    commit = data.draw(st.integers(0, rows.machine.commit))
    prefix = data.draw(st.sampled_from(["", "a", "ab", "b"]))
    reverse, limit = data.draw(st.booleans()), data.draw(st.integers(1, 3))
    rest: KeyRange | None = KeyRange(prefix, prefix_end(prefix), reverse)
    left, found = iter(entries[cut:]), []
    while rest is not None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(scans, "UNDONE_MAX", data.draw(st.sampled_from([2, 4_000])))
            bytes_max = data.draw(st.sampled_from([1, 3, 2**20]))
            got = asyncio.run(page(rows.machine, rows.watching.history, "t", rest, commit, limit, bytes_max))
        assert len(got.rows) <= limit
        found += [(key, row.value) for key, row in got.rows]
        rest = got.rest
        rows.write(*next(left, []))
    expected = {key[2:]: value for key, value in rows.states[commit].items() if key.startswith("t/" + prefix)}
    assert found == sorted(expected.items(), reverse=reverse)


async def paged(rows: Rows, commit: int, reverse: bool, limit: int, writes: Iterator[Row]) -> list[tuple[str, bytes]]:
    """All pages of a table at a commit number; each time that one lets others run, one of the writes is made."""
    rest: KeyRange | None = KeyRange("", None, reverse)
    found = []
    while rest is not None:
        one = asyncio.ensure_future(page(rows.machine, rows.watching.history, "t", rest, commit, limit, 2**20))
        await asyncio.sleep(0)
        while not one.done():
            rows.write(*([("t", *write)] if (write := next(writes, None)) else []))
            await asyncio.sleep(0)
        got = await one
        found += [(key, row.value) for key, row in got.rows]
        rest = got.rest
    return found


# What a page reaches grows smaller while it is made, and a row that it has taken back is then beyond its end.
BEYOND_THE_END = [("e", 1), ("e", None), ("a", 1), ("b", 1)]
BEYOND_THE_END_BACKWARDS = [("a", 1), ("a", None), ("e", 1), ("d", 1)]
ROW_WRITES = st.tuples(st.sampled_from("abcde"), st.sampled_from([1, 2, None]))


@settings(max_examples=300)
@example(at_first={"c", "e"}, writes=BEYOND_THE_END, reverse=False, limit=1)
@example(at_first={"a", "c"}, writes=BEYOND_THE_END_BACKWARDS, reverse=True, limit=1)
@given(
    st.sets(st.sampled_from("abcde")), st.lists(ROW_WRITES, min_size=2, max_size=6), st.booleans(), st.integers(1, 3)
)
def test_rows_that_come_and_go_while_a_page_is_made_are_neither_in_it_nor_hide_others(
    at_first: set[str], writes: list[Row], reverse: bool, limit: int
) -> None:
    rows = Rows()
    rows.write(*(("t", key, 0) for key in sorted(at_first)))
    commit = rows.machine.commit
    rows.write(*(("t", *write) for write in writes[:2]))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scans, "SLICE_CHANGES", 1)
        found = asyncio.run(paged(rows, commit, reverse, limit, iter(writes[2:])))
    assert found == sorted([(key, b"0") for key in at_first], reverse=reverse)


def taken(watcher: watching.Watcher) -> list[Told]:
    found = told(watcher.take())
    while watcher.has_more:
        found += told(watcher.take())
    return found


def test_a_page_that_takes_back_too_much_ends_where_it_has_taken_all_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "UNDONE_MAX", 2)
    rows = Rows()
    for value in (1, 2):
        rows.write(*(("t", key, value) for key in "abc"))
    for reverse in (False, True):
        rest: KeyRange | None = KeyRange("", None, reverse)
        found = []
        while rest is not None:
            got = asyncio.run(page(rows.machine, rows.watching.history, "t", rest, 3, 10, 2**20))
            found += [(key, row.value) for key, row in got.rows]
            rest = got.rest
        assert found == sorted([("a", b"1"), ("b", b"1"), ("c", b"1")], reverse=reverse)


async def test_a_page_is_not_of_the_table_that_has_taken_the_name_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "SLICE_CHANGES", 1)
    rows = Rows()
    for value in (1, 2, 3):
        rows.write(("t", "k", value))
    scan = asyncio.ensure_future(page(rows.machine, rows.watching.history, "t", KeyRange("", None), 1, 10, 2**20))
    await asyncio.sleep(0)
    rows.apply(c.DropTable("t", 1, True), c.SweepTables(), c.DeclareTable("t", "resident", 1 << 30))
    with pytest.raises(HistoryExceeded):
        await scan


@given(ENTRIES, st.data())
def test_a_watcher_gets_each_change_it_waits_for_once_and_in_order(
    entries: list[list[tuple[str, str, int | None]]], data: st.DataObject
) -> None:
    rows, heard = Rows(), dict[watching.Watcher, list[Told]]()
    began: dict[watching.Watcher, int] = {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(watching, "PENDING_MAX", data.draw(st.integers(1, 5)))
        patched.setattr(watching, "SLICE_CHANGES", data.draw(st.integers(1, 5)))
        patched.setattr(change_events, "PIECE_BYTES_MAX", data.draw(st.sampled_from([1, 200, 10**6])))
        for entry in entries:
            rows.write(*entry)
            if data.draw(st.booleans()):
                text, exact = data.draw(st.sampled_from([("", False), ("a", False), ("ab", True), ("ab", False)]))
                position = data.draw(st.integers(0, rows.machine.commit))
                watcher = rows.watching.open("t", text, position, "", exact=exact)
                heard[watcher], began[watcher] = [], position
            for watcher in heard:
                if data.draw(st.booleans()):
                    heard[watcher] += told(watcher.take())
        for watcher, found in heard.items():
            found += taken(watcher)
            assert watcher.take() == b""
            assert watcher.position == rows.machine.commit
            match = (
                (lambda key, w=watcher.audience: key == w.text)
                if watcher.audience.exact
                else (lambda key, w=watcher.audience: key.startswith(w.text))
            )
            expected = [one for one in rows.changes if one[0] > began[watcher] and one[1] == "t" and match(one[2])]
            assert found == [(commit, commit, key, value) for commit, _, key, value in expected]
    for watcher in heard:
        rows.watching.close(watcher)
    assert (rows.watching.watchers, rows.watching._tables, rows.watching._of_tenant) == (0, {}, {})


def test_what_took_effect_together_is_never_cut() -> None:
    machine, history = Machine(), ChangeHistory(64, 2**20)
    for commit in range(1, 10):
        machine.changes.append(change(commit))
    machine.commit = CommitNumber(9)
    join(machine, 3)
    history.record(machine.changes, 9, machine.joined)
    first, reached = history.since(0, 3)
    assert ([one[0] for one in first], reached) == ([*range(1, 10)], 9)
    assert [one[1] for one in first] == [1, 2, *[9] * 7]
    assert history.since(0, 2)[1] == 2
    machine.changes.clear()
    machine.commit = CommitNumber(12)
    join(machine, 10)  # a transaction that changes no resident row
    assert machine.joined == [(3, 9)]


def test_the_history_is_bounded_in_bytes_and_changes() -> None:
    history = ChangeHistory(10_000, 2**20)
    for commit in range(1, 200):
        history.record([change(commit, value=bytes(20_000))], commit)
        assert history.bytes <= 2**20 + 2 * 20_300
    assert 0 < history.first < history.last == 199
    assert history.bytes == history.changes * (change_history.CHANGE_BYTES + 1 + 20_000)
    replaced = ChangeHistory(10_000, 2**20)
    for commit in range(1, 200):
        before, after = StoredRow(commit - 1, bytes(20_000)), None
        replaced.record([(commit, commit, "t", "k", before, after, "")], commit)
        assert replaced.bytes <= 2**20 + 2 * 20_300
    assert replaced.first > 0, "the rows before are kept too"
    few = ChangeHistory(64, 2**30)
    for commit in range(1, 1000):
        few.record([change(commit)], commit)
        assert few.changes <= 64
    assert few.first == 1000 - 1 - few.changes


def test_another_state_ends_what_is_known_of_the_one_before() -> None:
    rows = Rows()
    rows.write(("t", "k", 1))
    idle, behind = (rows.watching.open("t", "", position, "", exact=False) for position in (1, 0))
    rows.watching.replaced(7)
    for watcher in (idle, behind):
        with pytest.raises(HistoryExceeded):
            watcher.take()
    assert rows.watching.history.since(7, 10) == ((), 7)


async def test_a_watcher_that_waits_is_woken_by_its_own_changes_alone() -> None:
    rows = Rows()
    watcher = rows.watching.open("t", "ab", 0, "", exact=True)
    assert taken(watcher) == []
    waiting = asyncio.ensure_future(watcher.wait())
    await asyncio.sleep(0)
    rows.write(("t", "abc", 1), ("u", "ab", 1))
    await asyncio.sleep(0)
    assert not waiting.done()
    rows.write(("t", "ab", 2))
    await waiting
    assert told(watcher.take()) == [(3, 3, "ab", b"2")]


async def test_a_watcher_that_waits_is_woken_when_another_state_takes_its_place() -> None:
    rows = Rows()
    waiting = asyncio.ensure_future(rows.watching.open("t", "k", 0, "", exact=True).wait())
    await asyncio.sleep(0)
    rows.watching.replaced(7)
    async with asyncio.timeout(60):
        await waiting


def test_a_change_is_given_once_to_each_prefix_that_its_key_has() -> None:
    rows = Rows()
    watchers = {text: rows.watching.open("t", text, 0, "", exact=False) for text in ("", "a", "ab", "abc", "b")}
    rows.write(("t", "ab", 1))
    rows.write(("t", "a", 2))
    given = {text: [one[0] for one in told(watcher.take())] for text, watcher in watchers.items()}
    assert given == {"": [1, 2], "a": [1, 2], "ab": [1], "abc": [], "b": []}


def test_large_changes_wait_in_the_history_for_a_watcher_that_does_not_take_them() -> None:
    rows = Rows()
    watcher = rows.watching.open("t", "k", 0, "", exact=True)
    for commit in (1, 2, 3):
        large = change(commit, value=b"1" * (watching.PENDING_BYTES_MAX // 2))
        rows.watching.history.record([large], commit)
        rows.watching.tell([large])
        assert watcher.is_behind is (commit == 3)
    assert [one[0] for one in taken(watcher)] == [1, 2, 3]


def test_watchers_are_bounded_and_leave_room_for_other_tenants() -> None:
    many = Watching(ChangeHistory(64, 2**20), WatchersMax(8, 8))

    def fill(tenant: str) -> Iterator[watching.Watcher]:
        with contextlib.suppress(OncegateError):
            while True:
                yield many.open("t", "", 0, tenant, exact=False)

    first, second = [*fill("a")], [*fill("b")]
    with pytest.raises(OncegateError) as refused:
        many.open("t", "", 0, "a", exact=False)
    assert refused.value.code is Code.OVERLOADED
    assert (len(first), len(second)) == (4, 2)
    for watcher in first:
        many.close(watcher)
    assert len([*fill("b")]) == 2
    assert len([*fill("a")]) == 2
