"""What the end of a row does: where it is moved, what flows and watchers are told, and what one entry may end."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from oncegate.flows.flow import FlowDeclaration
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import ending, row_ends
from oncegate.gateway.machine.cascades import NO_SESSION
from oncegate.gateway.machine.results import Ended, Endings
from oncegate.gateway.machine.row_ends import BOUND_ROWS_MAX, Life
from oncegate.gateway.machine.rows import DictRows, StoredRow
from oncegate.rifl.errors import Code, InvariantViolation, OncegateError
from oncegate.rifl.ids import CommitNumber
from tests.gateway.test_transactions import Log, put

TAPPED = c.DeclareFlow(msgspec.json.encode(FlowDeclaration(name="f", source="t")))


def filed(log: Log, key: str, life: Life | None, table: str = "t") -> None:
    """Put a row there without a session's help."""
    log.machine.commit = commit = CommitNumber(log.machine.commit + 1)
    log.machine.tables[table].change(key, None, StoredRow(commit, b'"%s"' % key.encode(), life), commit)


def ended(log: Log, at_ms: int, *keys: str) -> list[Ended]:
    log.now_ms = at_ms
    [endings] = log.do(c.EndRows({"t": list(keys)}))
    rows: list[Ended] = endings.rows
    return rows


def told(log: Log) -> list[tuple[Any, ...]]:
    """Return the items of the flow: commit, key, value, time, whose they are, under which number and trace."""
    run = log.machine.flows.get("f").segment.run_view()
    traces = [*run.traceparents, *[None] * (run.items - len(run.traceparents))]
    columns = (run.commits, run.keys, run.values, run.times_ms, run.client_ids, run.sequences, traces)
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize(("life", "cause"), [(Life(500, 0, "m"), "ttl end"), (Life(0, 1, "m"), "session end")])
def test_move_is_a_delete_and_a_put_at_two_numbers_told_together(life: Life, cause: str) -> None:
    log = Log(TAPPED)
    filed(log, "k", life)
    row, first = log.row("k"), log.machine.commit + 1
    log.now_ms = 700
    [endings] = log.do(c.CloseSession(1, 1) if life.owner else c.EndRows({"t": ["k"]}))
    assert endings.rows == [Ended("t", "k", first, life.owner, "m")]
    moved = StoredRow(first + 1, b'"k"')
    assert (log.rows(), log.machine.commit) == ({("t", "m"): (first + 1, b'"k"')}, first + 1)
    assert log.row("m") == moved, "it stays"
    assert log.machine.changes == [
        (first, first + 1, "t", "k", row, None, cause),
        (first + 1, first + 1, "t", "m", None, moved, cause),
    ]
    assert told(log) == [
        (first, "k", None, 700, NO_SESSION, first, None),
        (first + 1, "m", b'"k"', 700, NO_SESSION, first, None),
    ]


def test_end_without_a_place_to_go_is_one_delete() -> None:
    log = Log(TAPPED)
    filed(log, "k", Life(1, 0))
    first = log.machine.commit + 1
    assert ended(log, 1, "k") == [Ended("t", "k", first, 0)]
    assert [change[:2] for change in log.machine.changes] == [(first, first)]
    assert told(log) == [(first, "k", None, 1, NO_SESSION, first, None)]
    assert log.rows() == {}


def test_no_batch_ends_between_the_delete_and_the_put_of_a_move() -> None:
    log = Log(c.DeclareFlow(msgspec.json.encode(FlowDeclaration(name="f", source="t", max_items=3))))
    filed(log, "a", Life(1, 0, "c"))
    filed(log, "b", Life(1, 0, "d"))
    ended(log, 1, "a", "b")
    [sealed] = log.machine.flows.take_sealed()
    assert [key for chunk in sealed.chunks for key in chunk.keys] == ["a", "c"]  # type: ignore[union-attr]
    assert [item[1] for item in told(log)] == ["b", "d"]


def test_row_is_moved_over_what_is_there_and_all_bytes_are_counted() -> None:
    log = Log()
    filed(log, "k", Life(5, 0, "m"))
    filed(log, "m", Life(9, 0))
    before = log.row("m")
    assert len(ended(log, 7, "k", "m")) == 1, "what has been moved there stays"
    table = log.machine.tables["t"]
    assert log.value("m") == "k"
    assert log.machine.changes[-1][4] == before
    assert (table.bytes, table.ending, len(log.machine.ends)) == (len("m") + len(b'"k"') + 120, 0, 0)


def test_row_that_is_moved_over_another_of_the_same_session_is_not_ended_with_it() -> None:
    log = Log()
    log.transact(1, put("t", "a", 1, bound=True, then="b"), put("t", "b", 2, bound=True), put("t", "c", 3, bound=True))
    [endings] = log.do(c.CloseSession(1, 1))
    assert [(one.key, one.then) for one in endings.rows] == [("a", "b"), ("c", "")]
    assert log.value("b") == 1
    assert len(log.rows()) == 1
    assert (len(log.machine.ends), log.machine.tables["t"].ending) == (0, 0)


def test_rows_of_a_dropped_table_go_nowhere() -> None:
    log = Log()
    filed(log, "k", Life(0, 1, "m"))
    log.do(c.DropTable("t", 1, force=True))
    [endings] = log.do(c.CloseSession(1, 1))
    assert [(one.key, one.then) for one in endings.rows] == [("k", "")]
    assert len(log.machine.table_of("t").rows) == 0


def test_tables_that_are_gone_end_nothing_and_stop_nobody() -> None:
    log = Log()
    filed(log, "k", Life(5, 0))
    log.now_ms = 5
    [endings] = log.do(c.EndRows({"gone": ["k"], "t": ["k"]}))
    assert [one.key for one in endings.rows] == ["k"]


def test_rows_that_end_are_looked_for_together() -> None:
    """On disk that is three times cheaper than one by one."""

    class Rows(DictRows):
        def look_ahead(self, keys: list[str]) -> None:
            asked.append(list(keys))

    asked: list[list[str]] = []
    log = Log()
    table = log.machine.tables["t"]
    table.rows = Rows()
    for key in "ab":
        filed(log, key, Life(5, 0))
        filed(log, key.upper(), Life(0, 1))
    log.now_ms = 5
    log.do(c.EndRows({"t": ["a", "b"]}), c.CloseSession(1, 1))
    assert asked == [["a", "b"], ["A", "B"]]
    assert log.rows() == {}


def test_session_ends_whose_rows_an_entry_has_just_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_ends, "ENDED_AT_ONCE_MAX", 2)
    log = Log()
    for key, owner in (("a", 1), ("b", 1), ("c", 2)):
        filed(log, key, Life(0, owner))
    done, refused = log.do(c.CloseSession(1, 1), c.CloseSession(2, 1))
    assert [one.key for one in done.rows] == ["a", "b"]
    assert refused.code is Code.OVERLOADED


def test_four_sessions_with_all_their_rows_end_in_one_entry_and_no_row_more() -> None:
    log = Log(*(c.OpenSession(f"more{number}", 60_000, 16) for number in range(3)))
    mine = [1, 2, 4, 5, 6]
    for owner in mine:
        for number in range(BOUND_ROWS_MAX if owner != 6 else 1):
            filed(log, f"{owner}/{number}", Life(0, owner))
    *done, refused = log.do(*(c.CloseSession(owner, 1) for owner in mine))
    assert [len(one.rows) for one in done] == [BOUND_ROWS_MAX] * 4
    assert isinstance(refused, OncegateError)
    [last] = log.do(c.CloseSession(6, 1))
    assert last == Endings([Ended("t", "6/0", log.machine.commit, 6)], 1)


def test_row_of_a_restored_state_is_what_it_was_but_for_its_end() -> None:
    """The time of the new cluster has moved on by 5,000 ms; no session of the old one is there."""
    log = Log()
    for key, life in (
        ("both", Life(700, 1, "b")),
        ("bound", Life(0, 2, "o")),
        ("stays", None),
        ("timed", Life(700, 0, "m")),
    ):
        filed(log, key, life)
    filed(log, "timed", Life(900, 0), "u")
    before, log.machine.time_ms = log.rows(), 5_100  # type: ignore[assignment]
    log.machine.changes.clear()
    ending.begin_anew(log.machine, 5_000)
    after = {key: row.life for key, row in log.machine.tables["t"].rows.items()}
    assert after == {
        "both": Life(5_100, 0, "b"), "bound": Life(5_100, 0, "o"), "stays": None, "timed": Life(5_700, 0, "m"),
    }  # fmt: skip
    assert log.machine.tables["u"].rows.get("timed").ends_ms == 5_900  # type: ignore[union-attr]
    assert log.rows() == before, "versions and values"
    assert [change[:4] for change in log.machine.changes] == [
        (version, version, table, key) for (table, key), (version, _) in sorted(before.items()) if key != "stays"
    ]
    assert not list(log.machine.ends.owners())
    assert log.machine.ends.due(5_800, 9) == {"t": ["both", "bound", "timed"]}


@pytest.mark.parametrize("life", [Life(5, 0), Life(0, 1)])
@pytest.mark.parametrize("there", [True, False])
def test_index_that_names_a_row_which_does_not_end_is_not_restored(life: Life, there: bool) -> None:
    log = Log()
    if there:
        filed(log, "k", None)
    log.machine.ends.put_back(("t", "k"), life)
    with pytest.raises(InvariantViolation):
        ending.begin_anew(log.machine, 1)


def test_row_that_stays_goes_nowhere() -> None:
    assert (StoredRow(CommitNumber(1), b"1").then, StoredRow(CommitNumber(1), b"1", Life(1, 0, "m")).then) == ("", "m")
