"""Session guarantees and the bound on stale reads."""

from __future__ import annotations

import pytest

from oncegate.proof.lincheck import Operation, sessions, stale_reads
from tests.lincheck.lines import op


def put(index: int, version: int, at: int, **more: object) -> Operation:
    return op(index, "put", {"value": version}, {"version": version}, at, at + 5, **more)


def get(index: int, version: int, at: int, **more: object) -> Operation:
    return op(index, "get", {}, {"version": version}, at, at + 5, **more)


@pytest.mark.parametrize(
    ("first", "then", "name"),
    [
        (put, get, "read your writes"),
        (get, get, "monotonic reads"),
        (put, put, "monotonic writes"),
        (get, put, "writes follow reads"),
    ],
)
def test_each_guarantee_holds_and_breaks(first, then, name: str) -> None:
    def verdict(versions: tuple[int, int], **second: object) -> str:
        return sessions([first(0, versions[0], 0, process=1), then(1, versions[1], 10, process=1, **second)]).verdict

    assert verdict((5, 6)) == "valid"
    assert verdict((6, 5)) == "invalid"
    assert verdict((6, 5), key="other") == "valid"
    found = sessions([first(0, 6, 0, process=1), then(1, 5, 10, process=1)])
    assert found.failures[0].words[0].startswith(name)
    assert found.failures[0].window == [0, 1]


def test_other_sessions_and_concurrent_operations_are_not_compared() -> None:
    assert sessions([put(0, 6, 0, process=1), get(1, 5, 10, process=2)]).verdict == "valid"
    assert sessions([put(0, 6, 0, process=1), get(1, 5, 3, process=1)]).verdict == "valid"


def test_a_session_is_the_client_of_its_requests_on_whatever_process() -> None:
    ops = [put(0, 6, 0, process=1, request="7/1"), get(1, 5, 10, process=2, request="7/2")]
    assert sessions(ops).verdict == "invalid"


def test_an_absent_row_is_older_than_any_version_unless_it_was_deleted() -> None:
    ops = [put(0, 6, 0, process=1), get(1, 0, 10, process=1)]
    assert sessions(ops).verdict == "invalid"
    assert sessions([*ops, op(2, "delete", {}, None, 6, None)]).verdict == "valid"


def test_without_versions_nothing_is_known() -> None:
    assert sessions([op(0, "write", 1, None, 0, 5)]).verdict == "unknown"
    assert stale_reads([op(0, "write", 1, None, 0, 5)]).verdict == "unknown"
    assert sessions([]).verdict == "valid"


def test_a_read_may_be_as_old_as_the_bound_and_no_older() -> None:
    ops = [put(0, 5, 0), put(1, 6, 10), get(2, 5, 30)]
    assert stale_reads(ops, 15).verdict == "valid"
    assert stale_reads(ops, 14).verdict == "invalid"
    assert stale_reads(ops, 0).failures[0].window == [1, 2]


def test_shorter_list_later_is_not_monotonic() -> None:
    reads = [op(0, "read", None, [1, 2], 0, 5, process=1), op(1, "read", None, [1], 10, 15, process=1)]
    assert sessions(reads).verdict == "invalid"
