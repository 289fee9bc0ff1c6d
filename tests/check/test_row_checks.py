"""Each kind of operation on rows counts in its workload's checks, and a doubt counts for what it may have done.

Beside the tables of :mod:`tests.check.test_workload_checks`: there a history shows that a check complains, here that it
complains because of one kind of operation, and not because of another key, a refusal or a doubt.
"""

from __future__ import annotations

from typing import Any

import pytest

from oncegate.proof.check.checks import LOST
from oncegate.proof.check.workloads.rows import condition_failed, number, versioned
from tests.check.histories import Book
from tests.check.test_workload_checks import verdicts

ONE, TWO = {"value": 1}, {"value": 2}
CHAIN = "no two writes follow"


def follows(version: int, **more: Any) -> dict[str, Any]:
    return {"value": version + 10, "if": {"version": version}, **more}


def after_four(f: str, key: str = "v0", *, argument: Any = None, result: Any = None, end: str = "ok") -> Book:
    """A write that follows version 4, and another one."""
    book = Book().did("put", "v0", follows(4), {"version": 5})
    return book.did(f, key, argument or follows(4), result or ({"version": 6} if end == "ok" else None), end=end)


def counted(*ends: tuple[int, str], read: int) -> Book:
    """Increments and how they ended, and what is there in the end."""
    book = Book()
    for by, end in ends:
        book.did("increment", "n0", by, end=end)
    return book.read("n0", read)


TRUE = {
    "register": Book().did("write", "r0", 1, end="info").did("read", "r0", None, 1).read("r0", 1),
    "compare-and-set": Book()
    .did("write", "c0", 1, end="info")
    .did("cas", "c0", [1, 2], end="info")
    .did("cas", "c0", [2, 3])
    .read("c0", 3),
    "counter, all": counted((2, "info"), (-1, "info"), read=1),
    "counter, what adds": counted((2, "info"), (-1, "info"), read=2),
    "counter, what takes away": counted((2, "info"), (-1, "info"), read=-1),
    "counter, none": counted((2, "info"), (-1, "info"), (5, "fail"), read=0),
    "rows, other key": after_four("put", "v1"),
    "rows, refused": after_four("put", result={"refused": "CONDITION_FAILED", "version": 5, "value": 14}),
    "rows, failed": after_four("delete", end="fail"),
    "rows, in doubt": after_four("put", end="info"),
    "rows, another version": after_four("put", argument=follows(5)),
}
FALSE = [
    ("register", Book().did("write", "r0", 1).did("read", "r0", None, None).read("r0", 1), "linearizable"),
    ("compare-and-set", Book().did("write", "c0", 1).did("cas", "c0", [None, 2]).read("c0", 2), "linearizable"),
    ("compare-and-set", Book().did("cas", "c0", [None, 2]).did("read", "c0").read("c0", 2), "linearizable"),
    ("compare-and-set", Book().did("write", "c0", 1).did("cas", "c0", [2, 3]).read("c0", 1), "linearizable"),
    ("compare-and-set", Book().did("write", "c0", 1).read("c0", None), LOST),
    ("counter", Book().did("increment", "n0", 1, 1).did("read", "n0", None, 2).read("n0", 1), "linearizable"),
    ("counter", Book().did("increment", "n0", 1, 2).read("n0", 1), "linearizable"),
    ("counter", counted((5, "fail"), read=5), LOST),
    ("counter", counted((1, "ok"), (2, "info"), read=4), LOST),
    ("counter", counted((1, "ok"), (-2, "info"), read=-2), LOST),
    ("counter", counted((1, "ok"), (2, "info"), read=0), LOST),
    ("rows", Book().did("put", "v0", ONE, {"version": 3}).did("get", "v0", None, {"version": 0}), "linearizable"),
    ("rows", Book().did("put", "v0", ONE, {"version": 3}).did("put", "v0", TWO, {"version": 2}), "linearizable"),
    ("rows", Book().did("insert", "v0", ONE, {"version": 3}).did("insert", "v0", TWO, {"version": 4}), "linearizable"),
    ("rows", Book().did("delete", "v0", {}, {"version": 3}).did("put", "v0", ONE, {"version": 2}), "linearizable"),
    ("rows", after_four("put"), CHAIN),
    ("rows", after_four("delete", argument={"if": {"version": 4}}), CHAIN),
]


@pytest.mark.parametrize("what", TRUE)
def test_doubts_refusals_and_other_keys_are_no_violation(what: str) -> None:
    found = verdicts(what.partition(",")[0], TRUE[what].events)
    # What is in the history of "rows" begins in the middle of a row's life, and has no end: its chain is looked at.
    judged = [one for name, one in found.items() if not what.startswith("rows") or name.startswith(CHAIN)]
    assert [(one.name, one.verdict) for one in judged] == [(one.name, "valid") for one in judged]


@pytest.mark.parametrize(("workload", "book", "check"), FALSE)
def test_what_one_operation_shows_is_seen_by_the_check_that_is_about_it(workload: str, book: Book, check: str) -> None:
    (found,) = [one for name, one in verdicts(workload, book.events).items() if name.startswith(check)]
    assert found.verdict == "invalid"


def test_absent_row_is_version_nothing_and_counts_as_nothing() -> None:
    assert versioned(None) == versioned({"version": 0, "value": None}) == {"version": 0}
    assert versioned({"version": 3, "value": 7, "commit": 9}) == {"version": 3, "value": 7}
    assert (number(None), number({"value": 4})) == (0, 4)
    told = {"code": "CONDITION_FAILED", "version": 3, "value": 7, "commit": 9}
    assert condition_failed(told) == {"refused": "CONDITION_FAILED", "version": 3, "value": 7}
    assert condition_failed({"code": "X", "version": 0, "value": None}) == {"refused": "X", "version": 0}
