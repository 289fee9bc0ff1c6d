"""What orders of commit numbers prove: each wrong place is seen, of refusals, reads, doubts and at every node.

Beside the tables of :mod:`tests.check.test_workload_checks`; each history here breaks one rule in one place that the
check could pass over: at the second node, of the payee, in an operation that nobody heard the end of.
"""

from __future__ import annotations

from typing import Any

import pytest

from oncegate.proof.check.checks import LOST
from tests.check.histories import Book
from tests.check.test_workload_checks import (
    ALL,
    balances,
    called,
    ended,
    put_at_once,
    receipts,
    scanned,
    seen,
    told,
    verdicts,
    watched,
)

STOPPED: Any = {"refused": "CONDITION_FAILED", "commit": 6}
GREEDY = ["giro/ann", "savings/bob", 101]
BEHIND, HELD = "what begins behind", "every balance"


def paid(held: list[int]) -> Book:
    book = Book().did("transfer", "t1", ["giro/bob", "giro/ann", 60], {"commit": 5, "held": held})
    return book.read("all", [["t1", 5, ["giro/bob", "giro/ann", 60]]], "receipts")


def moved() -> Book:
    return Book().did("transfer", "t1", ["giro/ann", "savings/bob", 60], {"commit": 5, "held": [-60, 60]})


ONE = receipts(ALL[0])
FALSE = {
    "bank, the payee's balance in an answer": ("bank", paid([-60, 61]), HELD),
    "bank, the payer's balance in an answer": ("bank", paid([-61, 60]), HELD),
    "bank, the payee's row is older": ("bank", paid([-60, 60]).did("balance", "ann", None, {"version": 0}), BEHIND),
    "bank, the payer's row is older": ("bank", paid([-60, 60]).did("balance", "bob", None, {"version": 0}), BEHIND),
    "bank, two refusals at one number": (
        "bank",
        Book()
        .did("transfer", "t1", GREEDY, STOPPED)
        .did("transfer", "t2", GREEDY, STOPPED)
        .read("all", [], "receipts"),
        BEHIND,
    ),
    "bank, a read of less than an earlier one": (
        "bank",
        Book().did("balances", "all", None, balances(9)).did("balances", "all", None, balances(8)),
        BEHIND,
    ),
    "bank, a refusal before an earlier read": (
        "bank",
        Book().did("balances", "all", None, balances(9)).did("transfer", "t1", GREEDY, STOPPED),
        BEHIND,
    ),
    "bank, a read before an earlier refusal": (
        "bank",
        Book().did("transfer", "t1", GREEDY, STOPPED).did("balances", "all", None, balances(5)),
        BEHIND,
    ),
    "bank, the second node has no receipt": (
        "bank",
        moved().read("all", ONE, "receipts").read("all", [], "receipts"),
        LOST,
    ),
    "order, of calls that nobody heard the end of": (
        "order",
        seen([2, 3], [1, 4], book=Book().did("calls", "p0", [1, [1, 2]], end="info")),
        "the effects of a session",
    ),
    "order, by the second node": (
        "order",
        seen([1, 3], [2, 9], [3, 8], [4, 10], book=seen([1, 3], [3, 8], [4, 10])),
        "the effects of a session",
    ),
    "order, lost at the second node": ("order", seen([1, 3], [4, 9], book=seen([1, 3], [3, 7], [4, 9])), LOST),
    "order, refused in one call of many": ("order", seen([1, 3], [3, 7], [4, 9], book=called(c1="not_applied")), LOST),
    "runs, one row told one number twice": (
        "runs",
        scanned([2, 3], book=Book().did("puts", "p0", 1, {"0": 3}).did("puts", "p0", 2, {"0": 3})),
        "each row has the version",
    ),
    "runs, another version at the second node": (
        "runs",
        scanned([1, 3], [2, 8], [2, 6], book=scanned([1, 3], [2, 7], [2, 6])),
        "each row has the version",
    ),
    "runs, lost at the second node": ("runs", scanned([1, 3], [2, 7], book=scanned([1, 3], [2, 7], [2, 6])), LOST),
    "watch, what it was to begin behind": ("watch", watched().did(*told("", 4, 6, (4, "b1", None))), LOST),
    "watch, another one says up to where else": ("watch", ended().did(*told("a", 4, 9, (8, "a2", 7))), LOST),
    "watch, what was written to another row": ("watch", watched().did(*told("", 4, 5, (5, "a3", 3))), LOST),
    "watch, what was written at another number": (
        "watch",
        watched().did("put", "a1", 9, 5).did(*told("", 4, 5, (5, "a1", 3))),
        LOST,
    ),
    "watch, a row is deleted that was gone": (
        "watch",
        watched().did("delete", "b1", end="info").did(*told("", 4, 6, (6, "b1", None))),
        "each end is told once",
    ),
}
TRUE = {
    "bank, a refusal and a read at one number": (
        "bank",
        Book()
        .did("transfer", "t1", GREEDY, STOPPED)
        .did("balances", "all", None, balances(6))
        .did("balances", "all", None, balances(6))
        .read("all", [], "receipts"),
    ),
    "order, sessions of one worker side by side": ("order", seen([1, 3], [4, 4], [3, 7])),
    "runs, a doubt may be there or not": ("runs", scanned([2, 9], [2, 7], [3, 8], book=put_at_once())),
}  # fmt: skip


@pytest.mark.parametrize("what", FALSE)
def test_one_wrong_place_is_seen(what: str) -> None:
    workload, book, check = FALSE[what]
    (found,) = [one for name, one in verdicts(workload, book.events).items() if name.startswith(check)]
    assert found.verdict == "invalid"


@pytest.mark.parametrize("what", TRUE)
def test_places_that_may_be_are_no_violation(what: str) -> None:
    workload, book = TRUE[what]
    found = verdicts(workload, book.events)
    assert {name: one.verdict for name, one in found.items()} == dict.fromkeys(found, "valid")
