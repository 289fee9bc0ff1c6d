"""What each workload's own check finds: a good history passes, and each broken promise is named."""

from __future__ import annotations

from typing import Any

import pytest

from oncegate.proof.check.checks import LOST
from oncegate.proof.check.workloads import workload_of
from oncegate.proof.lincheck import Event, Result
from tests.check.histories import Book

OTHER = {"etag": "e", "crc": 2, "bytes": 9}
BATCH = {"etag": "e", "crc": 1, "bytes": 9, "items": [["k", 1, 4], ["k", 2, 5]]}
BANK = dict.fromkeys(("ann", "bob", "cid", "dan", "eve"), 100)


def verdicts(workload: str, history: list[Event]) -> dict[str, Result]:
    return {result.name: result for result in workload_of(workload).check(history)}


def answers(*told: tuple[str, int, bool]) -> list[Any]:
    return [[kind, {"commit": commit}, replayed, "", "n1"] for kind, commit, replayed in told]


def done(commit: int, *, replayed: bool = False, **more: int) -> dict[str, Any]:
    return {"commit": commit, "replayed": replayed, **more}


def flow(*items: list[Any], others: Any = None, stored: Any = None) -> Book:
    batch = {**BATCH, "items": list(items) or BATCH["items"]}
    newest = stored if stored is not None else [max(batch["items"], key=lambda item: item[2])]
    book = Book().did("write", "changes", [["k", 1]], [4]).did("write", "changes", [["k", 2]], [5])
    book.did("batch", "changes/1", None, batch, node="n1")
    return book.did("batch", "changes/1", None, others or batch, node="n2").did("stored", "changes", None, newest)


GOOD = {
    "register": Book().did("write", "r0", 1).did("write", "r0", 2).read("r0", 2),
    "compare-and-set": Book().did("cas", "c0", [None, 1]).did("cas", "c0", [9, 2], {"refused": "X"}).read("c0", 1),
    "rows": Book().did("put", "v0", {"value": 1}, {"version": 3}).read("v0", {"version": 3, "value": 1}, "get"),
    "rows, a delete in doubt": Book()
    .did("put", "v0", {"value": 1}, {"version": 3})
    .did("delete", "v0", {}, end="info")
    .read("v0", {"version": 0}, "get"),
    "counter": Book().did("increment", "n0", 1, 1).did("increment", "n0", 2, end="info").read("n0", 3),
    "append": Book().did("append", "l0", 1).did("append", "l0", 2, end="fail").read("l0", [1]),
    "bank": Book()
    .did("put", "b0", {"value": BANK, "if": {"absent": True}}, {"version": 1})
    .read("b0", {"version": 1, "value": BANK}, "get"),
    "hand-over": Book()
    .did("append", "l0", 1, done(1, epoch=1), request="a/1")
    .did("take-over", "a", None, {"epoch": 2})
    .did("append", "l0", 1, done(1, replayed=True, epoch=2), request="a/1")
    .did("append", "l0", 2, end="fail", error="FENCED", request="a/2")
    .read("l0", [1]),
    "dedup": Book()
    .did("append", "l0", 1, request="a/1")
    .read("l0", [1])
    .did("answers", "a/1", "first", answers(("applied", 3, False), ("applied", 3, True), ("unknown", 0, False))),
    "resolve": Book()
    .did("append", "l0", 1, request="a/1")
    .did("fates", "a/1", None, [["attempt", "applied", 3, "n1"], ["resolve", "applied", 3, "n2"]])
    .did("append", "l0", 2, end="fail", error="sealed", request="a/2")
    .did("fates", "a/2", None, [["attempt", "sealed", None, "n1"], ["resolve", "sealed", None, "n2"]])
    .read("l0", [1]),
    "lease": Book()
    .did("append", "l0", 1, done(1), request="a/1")
    .did("append", "l0", 2, end="fail", error="SESSION_EXPIRED", request="a/2")
    .did("append", "l0", 1, done(1, replayed=True), request="a/1")
    .read("l0", [1]),
    "flow": flow(),
    "stored": Book()
    .did("put", "past0.0", {"value": 1}, {"version": 4})
    .did("delete", "past0.0", {}, {"version": 5})
    .read("past0.0", {"version": 0}, "get")
    .did("job", "spark", None, {"kills": 2, "ended": []})
    .did("handed-over", "n1", None, {"first_batch": 2, "reads": 1.0}, node="n1"),
    "stream": Book().did("write", "own0", 1).did("read-own", "own0", None, 1).read("own0", 1),
}
BAD: list[tuple[str, Book, str]] = [
    ("register", Book().did("write", "r0", 1).did("write", "r0", 2).read("r0", 1), LOST),
    ("register", Book().did("write", "r0", 1).read("r0", None), LOST),
    ("register", Book().did("write", "r0", 1, end="fail").read("r0", 1), LOST),
    ("register", Book().did("write", "r0", 1).read("r0", 7), LOST),
    ("register", Book().did("write", "r0", 1).read("r0", None), "linearizable register"),
    ("compare-and-set", Book().did("cas", "c0", [None, 1], {"refused": "X"}).read("c0", 1), LOST),
    ("rows", Book().did("put", "v0", {"value": 1}, {"version": 3}).read("v0", {"version": 0}, "get"), LOST),
    (
        "rows",
        Book().did("put", "v0", {"value": 1}, {"version": 3}).did("put", "v1", {"value": 2}, {"version": 3}),
        LOST,
    ),
    ("counter", Book().did("increment", "n0", 1).read("n0", 2), LOST),
    ("counter", Book().did("increment", "n0", 1).did("increment", "n0", 1, end="fail").read("n0", 0), LOST),
    ("append", Book().did("append", "l0", 1).read("l0", []), LOST),
    ("append", Book().did("append", "l0", 1).read("l0", [1, 1]), "each acknowledged item once"),
    ("append", Book().did("append", "l0", 1, end="fail").read("l0", [1]), "each acknowledged item once"),
    ("append", Book().did("append", "l0", 1).read("l0", [1, 8]), "each acknowledged item once"),
    ("append", Book().did("append", "l0", 1).did("append", "l0", 2).read("l0", [2, 1]), "linearizable list"),
    ("bank", Book().read("b0", {"version": 1, "value": {**BANK, "ann": 101}}, "get"), "money"),
    (
        "bank",
        Book()
        .did("put", "b0", {"value": BANK, "if": {"version": 4}}, {"version": 5})
        .did("put", "b0", {"value": BANK, "if": {"version": 4}}, {"version": 6}),
        "money",
    ),
    (
        "hand-over",
        Book().did("take-over", "a", None, {"epoch": 2}).did("append", "l0", 1, done(1, epoch=1), request="a/1"),
        "an owner that was taken over from",
    ),
    (
        "hand-over",
        Book()
        .did("append", "l0", 1, done(9, epoch=1), request="a/1")
        .did("append", "l0", 2, done(8, epoch=2), request="a/2"),
        "an owner that was taken over from",
    ),
    (
        "dedup",
        Book().did("answers", "a/1", "first", answers(("applied", 3, False), ("applied", 3, False))),
        "all attem",
    ),
    ("dedup", Book().did("answers", "a/1", "first", answers(("applied", 3, False), ("applied", 4, True))), "all attem"),
    (
        "resolve",
        Book().did("fates", "a/1", None, [["attempt", "applied", 3, "n1"], ["resolve", "sealed", None, "n2"]]),
        "a request is applied with one result or sealed",
    ),
    (
        "resolve",
        Book().did("fates", "a/1", None, [["attempt", "applied", 3, "n1"], ["attempt", "applied", 4, "n2"]]),
        "a request is applied with one result or sealed",
    ),
    (
        "resolve",
        Book().did("append", "l0", 1, end="fail", error="sealed", request="a/1").read("l0", [1]),
        "each acknowledged item once",
    ),
    (
        "lease",
        Book()
        .did("append", "l0", 1, end="fail", error="SESSION_EXPIRED", request="a/1")
        .did("append", "l0", 1, done(1), request="a/1"),
        "a session that was told of its end",
    ),
    ("flow", flow(["k", 1, 4]), LOST),
    ("flow", flow(["k", 1, 4], ["k", 2, 5], ["k", 2, 6]), LOST),
    ("flow", flow(["k", 2, 5], ["k", 1, 4]), LOST),
    ("flow", flow(["k", 1, 4], ["k", 2, 5], ["k", 3, 6]), LOST),
    ("flow", flow(others=OTHER), "a batch is the same bytes"),
    ("flow", flow(stored=[["k", 1, 4]]), "the store holds every key once"),
    ("flow", flow(stored=[["k", 2, 5], ["k", 2, 5]]), "the store holds every key once"),
    (
        "stored",
        Book().did("put", "past0.0", {"value": 1}, {"version": 4}).read("past0.0", {"version": 0}, "get"),
        LOST,
    ),
    (
        "stored",
        Book()
        .did("put", "past0.0", {"value": 1}, {"version": 4})
        .did("delete", "past0.0", {}, {"version": 5})
        .read("past0.0", {"version": 4, "value": 1}, "get"),
        "linearizable row",
    ),
    ("stored", Book().did("write", "own0.0", 1).did("read-own", "own0.0", None, None), "a writer reads its own writes"),
    ("stored", Book().did("job", "spark", None, {"kills": 0, "ended": [4]}), "the job is ended by nobody"),
    ("stream", Book().did("write", "own0", 1).did("read-own", "own0", None, None), "a writer reads its own writes"),
]


@pytest.mark.parametrize("workload", GOOD)
def test_good_history_is_valid(workload: str) -> None:
    found = verdicts(workload.partition(",")[0], GOOD[workload].events)
    assert {name: result.verdict for name, result in found.items()} == dict.fromkeys(found, "valid")


@pytest.mark.parametrize(("workload", "book", "check"), BAD, ids=[f"{case[0]}-{i}" for i, case in enumerate(BAD)])
def test_broken_promise_is_named(workload: str, book: Book, check: str) -> None:
    found = [result for name, result in verdicts(workload, book.events).items() if name.startswith(check)]
    assert [result.verdict for result in found] == ["invalid"]
    assert all(failure.words for failure in found[0].failures)


def test_every_workload_has_a_good_and_a_bad_history_here_and_says_what_it_proves() -> None:
    from oncegate.proof.check.workloads import WORKLOADS

    assert {name.partition(",")[0] for name in GOOD} == set(WORKLOADS) == {case[0] for case in BAD}
    assert all(workload_of(name).proves for name in WORKLOADS)


def test_lists_without_final_reads_are_undecided_and_not_valid() -> None:
    found = verdicts("append", Book().did("append", "l0", 1).events)
    assert found[LOST].verdict == "unknown"
