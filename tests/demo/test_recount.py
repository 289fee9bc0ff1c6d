"""The recount finds what is right, and names each fault that is planted."""

from __future__ import annotations

from typing import Any

import pytest

from examples.demo import dataset
from examples.demo.recount import Check, check_dataset, check_flow, check_timeline, expected_rows
from tests.demo.sample import Items, as_batches, commits, good_rows, messages


def _timeline(rows: list[dict[str, Any]]) -> list[Check]:
    return check_timeline(messages(), commits(), expected_rows(messages()), as_batches(rows))


def _flow(items: Items) -> list[Check]:
    return check_flow(messages(), commits(), items.table())


def _named(checks: list[Check]) -> str:
    return "\n".join(name for check in checks for name in check.named)


def _failed(checks: list[Check]) -> set[str]:
    return {check.name for check in checks if not check.passed}


def test_exact_rows_and_items_pass() -> None:
    checks = _timeline(good_rows()) + _flow(Items.good())
    assert not _failed(checks)
    assert _named(checks) == ""


def test_order_of_rows_does_not_matter() -> None:
    assert not _failed(_timeline(good_rows()[::-1]))


def test_missing_row_is_named() -> None:
    rows = good_rows()
    lost = rows.pop(3)
    checks = _timeline(rows)
    assert "Timeline rows" in _failed(checks)
    assert f"missing: user {lost['user']}, {lost['message']}, commit {lost['commit']}" in _named(checks)


def test_surplus_row_for_a_stranger_is_named() -> None:
    rows = good_rows()
    rows.append({**rows[0], "user": 99})
    checks = _timeline(rows)
    assert "Timeline rows" in _failed(checks)
    assert "surplus: user 99, m0000001, commit 11" in _named(checks)


def test_row_of_an_unknown_message_is_named() -> None:
    rows = good_rows()
    rows.append({**rows[0], "message": "m9999999"})
    checks = _timeline(rows)
    assert "Timeline rows" in _failed(checks)
    assert "surplus: message 'm9999999'" in _named(checks)


def test_missing_row_and_surplus_row_do_not_cancel_out() -> None:
    rows = good_rows()
    rows[0] = {**rows[0], "user": 99}
    named = _named(_timeline(rows))
    assert "missing: user 2, m0000001" in named
    assert "surplus: user 99, m0000001" in named


def test_message_delivered_under_two_commits_is_named() -> None:
    rows = good_rows()
    rows.append({**rows[0], "commit": 40, "write_ts": 40})
    checks = _timeline(rows)
    assert len(_failed(checks)) == 2
    assert "more than once: user 2, m0000001" in _named(checks)
    assert "commit is 40, not 11" in _named(checks)


@pytest.mark.parametrize(
    ("column", "value"),
    [("write_ts", 12), ("commit", 12), ("bucket", 1), ("ordinal", 1), ("sender", 2), ("sent_at", 101)],
)
def test_wrong_column_is_named(column: str, value: int) -> None:
    rows = good_rows()
    rows[0] = {**rows[0], column: value}
    checks = _timeline(rows)
    assert _failed(checks) == {"Rows with the right commit, write timestamp and content"}
    assert f"different: user 2, m0000001: {column} is {value}" in _named(checks)


def test_message_applied_twice_is_named() -> None:
    items = Items.good()
    items.rows.append({**items.rows[2], "commit": 50, "sequence": 9})
    checks = _flow(items)
    assert "Messages applied exactly once" in _failed(checks)
    assert "applied more than once: m0000003" in _named(checks)
    assert "m0000003: commit 50, acknowledged as 30" in _named(checks)


def test_lost_message_is_named() -> None:
    items = Items.good()
    del items.rows[1]
    checks = _flow(items)
    assert "Messages applied exactly once" in _failed(checks)
    assert "missing: m0000002" in _named(checks)


def test_item_that_nobody_sent_is_named() -> None:
    items = Items.good()
    items.rows.append({**items.rows[2], "key": "other", "commit": 50, "sequence": 9})
    assert "surplus: other" in _named(_flow(items))


def test_commit_number_used_twice_is_found() -> None:
    items = Items.good()
    items.rows[1] = {**items.rows[1], "commit": 11}
    assert "Commit numbers and request ids, all distinct" in _failed(_flow(items))


def test_request_id_used_twice_is_found() -> None:
    items = Items.good()
    items.rows[1] = {**items.rows[1], "sequence": 1}
    assert _failed(_flow(items)) == {"Commit numbers and request ids, all distinct"}


@pytest.mark.parametrize("value", ['{"receiver":9,"sender":1,"sent_at":110}', "not json", None])
def test_changed_content_is_named(value: str | None) -> None:
    items = Items.good()
    items.rows[1] = {**items.rows[1], "value": value}
    checks = _flow(items)
    assert _failed(checks) == {"Content is that of the line"}
    assert "m0000002" in _named(checks)


def test_file_has_the_published_counts() -> None:
    checks = check_dataset(dataset.load(), len(expected_rows(dataset.load())))
    assert [check.passed for check in checks] == [True]
    assert checks[0].expected == "59,835 / 20,296 / 3,576,505"


def test_shorter_run_sends_to_the_contacts_of_the_whole_file() -> None:
    few = dataset.load(limit=100)
    assert len(few) == 100
    assert len(few.edges) == dataset.EDGES_ALL
    assert check_dataset(few, 1) == []
