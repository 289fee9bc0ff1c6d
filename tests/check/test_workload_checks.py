"""What each workload's own check finds: a good history passes, and each broken promise is named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.proof.check.checks import LOST
from oncegate.proof.check.workloads import workload_of
from oncegate.proof.lincheck import Event, Result
from tests.check.histories import Book

OTHER = {"etag": "e", "crc": 2, "bytes": 9}
BATCH: dict[str, Any] = {"etag": "e", "crc": 1, "bytes": 9, "items": [["k", 1, 4], ["k", 2, 5]]}
NOTHING = {f"{table}/{name}": 0 for table in ("giro", "savings") for name in ("ann", "bob", "cid")}


def verdicts(workload: str, history: list[Event]) -> dict[str, Result]:
    return {result.name: result for result in workload_of(workload).check(history)}


def answers(*told: tuple[str, int, bool]) -> list[Any]:
    return [[kind, {"commit": commit}, replayed, "", "n1"] for kind, commit, replayed in told]


def done(commit: int, *, replayed: bool = False, **more: int) -> dict[str, Any]:
    return {"commit": commit, "replayed": replayed, **more}


def hold(value: int, *, bound: bool = False) -> dict[str, Any]:
    return {"value": value, "ttl_ms": 0 if bound else 15, "bound": bound, "session": "a"}


def flow(*items: list[Any], others: Any = None, stored: Any = None) -> Book:
    batch = {**BATCH, "items": list(items) or BATCH["items"]}
    newest = stored if stored is not None else [max(batch["items"], key=lambda item: item[2])]
    book = Book().did("write", "changes", [["k", 1]], [4]).did("write", "changes", [["k", 2]], [5])
    book.did("batch", "changes/1", None, batch, node="n1")
    return book.did("batch", "changes/1", None, others or batch, node="n2").did("stored", "changes", None, newest)


def told(prefix: str, start: int, end: int, *changes: tuple[Any, ...]) -> tuple[Any, ...]:
    """A watch's event; a change is commit number, key, value, and, unless they are plain, ``until`` and the cause."""
    return "told", prefix, None, [start, end, [[*one[:3], *(one[3:] or (one[0], ""))] for one in changes]]


def watched() -> Book:
    book = Book().did("put", "a1", 1, 1).did("put", "b1", 2, 2).did("delete", "b1", None, 4)
    book.did("put", "a1", 3, end="info").did(*told("a", 0, 4, (1, "a1", 1)))
    return book.did(*told("", 0, 4, (1, "a1", 1), (2, "b1", 2), (4, "b1", None)))


def ended(until: int = 9) -> Book:
    """A transaction of three writes, one of which changes nothing, and a row that ends after it."""
    many = [["hold", "a2", 7], ["put", "b2", 8], ["delete", "b3", None]]
    book = watched().did("transaction", "many", many, 8).did("delete", "b2", None, 12)
    return book.did(*told("", 4, 9, (8, "a2", 7, 9, ""), (9, "b2", 8, until, "")))


END = 11, "a2", None, 11, "ttl end"


def locked() -> Book:
    book = Book().did("hold", "l0", None, 4).did("write", "l0/guarded", [4, 1], 6).did("write", "l0/fenced", [4, 5], 7)
    return book.did("hold", "l0", None, 8).did("write", "l0/guarded", [8, 2], 9)


def balances(commit: int, **held: int) -> dict[str, Any]:
    return {"commit": commit, "held": NOTHING | {name.replace("_", "/"): value for name, value in held.items()}}


def transferred(third: int = 12) -> Book:
    """Two transfers of the same payer, a refused one between them, and one whose outcome nobody has learnt."""
    moved = ["giro/ann", "savings/bob", 60]
    book = Book().did("transfer", "t1", moved, {"commit": 5, "held": [-60, 60]})
    book.did("transfer", "t2", moved, {"refused": "CONDITION_FAILED", "commit": 6})
    book.did("transfer", "t3", ["giro/ann", "savings/bob", third], end="info", process=1)
    return book.did("transfer", "t4", ["savings/bob", "giro/cid", 20], {"commit": 12, "held": [40 + third, 20]})


def receipts(*told: tuple[str, int], third: int = 12) -> list[list[Any]]:
    moved = {"t3": ["giro/ann", "savings/bob", third], "t4": ["savings/bob", "giro/cid", 20]}
    return [[key, version, moved.get(key, ["giro/ann", "savings/bob", 60])] for key, version in told]


ALL = ("t1", 5), ("t3", 9), ("t4", 12)


def worked(*dead: list[int]) -> Book:
    book = Book().did("put", "q", 1, 7).did("append", "d1", "1.1")
    return book.did("dead", "q", None, [*dead]).did("dead", "qq", None, [])


def both_locked() -> Book:
    """Two readers, then a writer."""
    book = Book().did("hold", "w0", "read", 4).did("hold", "w0", "read", 5).did("write", "w0/guarded", [4, 1], 6)
    book.did("write", "w0/guarded", [5, 2], 7).did("write", "w0/guarded", [4, 3], 8).did("hold", "w0", "write", 12)
    return book.did("write", "w0/guarded", [12, 4], 14)


def permitted() -> Book:
    book = Book().did("hold", "s0", None, 4).did("hold", "s0", None, 5).did("write", "s0/guarded", [4, 1], 6)
    return book.did("write", "s0/guarded", [5, 2], 7).did("write", "s0/guarded", [4, 3], 8)


def elected() -> Book:
    book = Book().did("hold", "e0", "c1", 4).did("write", "e0/guarded", [4, 1], 6).did("hold", "e0", "c2", end="info")
    return book.did("observe", "e0", None, [[4, "c1"], None, [7, "c2"]]).did("hold", "e0", "c3", 8)


def named() -> Book:
    book = Book().did("hold", "n0", {"owner": "o1", "bound": False}, 4).did("write", "n0/guarded", [4, 1], 5)
    return book.did("find", "n0", None, [4, "o1"])


def owned(owner: str, *, bound: bool = False) -> dict[str, Any]:
    return {"owner": owner, "bound": bound}


def window(at_ms: int, commit: int, value: int, ends_ms: int) -> dict[str, Any]:
    return {"at_ms": at_ms, "commit": commit, "version": commit, "value": value, "ends_ms": ends_ms}


def passed(*processes: int, after: Book | None = None) -> Book:
    """All wait at once, and pass."""
    book = after or Book()
    for process in processes:
        book.began("wait", "b0", f"{process}", process=process)
    for process in processes:
        book.ended("wait", "b0", process=process)
    return book


def put_at_once() -> Book:
    """Two turns of one worker, whose second one has a put without an answer, and one that nobody heard the end of."""
    book = Book().did("puts", "p0", 1, {"0": 3, "1": 4, "2": 5}).did("puts", "p0", 2, {"2": 6, "1": 7, "0": None})
    return book.did("puts", "p0", 3, end="info")


def scanned(*rows: list[int], book: Book | None = None) -> Book:
    return (book or put_at_once()).read("n1", {f"p0.{number}": row for number, row in enumerate(rows)}, "scan")


def called(**ends: str) -> Book:
    """Two sessions of one worker: three calls, whose ends are told as ``c1`` to ``c3``, and one."""
    told = {"1": "applied", "2": "unknown", "3": "applied"} | {key[1:]: end for key, end in ends.items()}
    return Book().did("calls", "p0", [1, [1, 2, 3]], told).did("calls", "p0", [2, [4]], {"4": "applied"})


def seen(*rows: list[int], book: Book | None = None) -> Book:
    return (book or called()).read("n1", list(rows), "scan")


GOOD = {
    "order": seen([1, 3], [3, 8], [3, 7], [4, 9]),
    "order, what nobody heard of came between": seen([1, 3], [2, 5], [3, 7], [4, 6]),
    "order, one was refused": seen([1, 3], [3, 7], [4, 9], book=called(c2="not_applied")),
    "runs": scanned([1, 3], [2, 7], [2, 6]),
    "runs, what nobody heard of was applied": scanned([2, 8], [3, 9], [2, 6]),
    "register": Book().did("write", "r0", 1).did("write", "r0", 2).read("r0", 2),
    "compare-and-set": Book().did("cas", "c0", [None, 1]).did("cas", "c0", [9, 2], {"refused": "X"}).read("c0", 1),
    "rows": Book().did("put", "v0", {"value": 1}, {"version": 3}).read("v0", {"version": 3, "value": 1}, "get"),
    "rows, a delete in doubt": Book()
    .did("put", "v0", {"value": 1}, {"version": 3})
    .did("delete", "v0", {}, end="info")
    .read("v0", {"version": 0}, "get"),
    "counter": Book().did("increment", "n0", 1, 1).did("increment", "n0", 2, end="info").read("n0", 3),
    "append": Book().did("append", "l0", 1).did("append", "l0", 2, end="fail").read("l0", [1]),
    "bank": transferred()
    .did("balances", "all", None, balances(12, giro_ann=-72, savings_bob=52, giro_cid=20))
    .did("balance", "ann", None, {"version": 7, "value": -72})
    .did("balances", "all", None, balances(5, giro_ann=-60, savings_bob=60) | {"asked": 4})
    .read("all", receipts(*ALL), "receipts"),
    "hand-over": Book()
    .did("append", "l0", 1, done(1, epoch=1), request="a/1")
    .did("take-over", "a", None, {"epoch": 2})
    .did("append", "l0", 1, done(1, replayed=True, epoch=2), request="a/1")
    .did("append", "l0", 2, end="fail", error="FENCED", request="a/2")
    .read("l0", [1]),
    "dedup": Book()
    .did("append", "l0", 1, request="a/1")
    .read("l0", [1])
    .did("answers", "a/1", "first", answers(("applied", 3, False), ("applied", 3, True), ("unknown", 0, False)))
    .did("increment", "d0", 1, 1)
    .read("d0", 1, "sum"),
    "resolve": Book()
    .did("append", "l0", 1, request="a/1")
    .did("fates", "a/1", None, [["attempt", "applied", 3, "n1"], ["resolve", "applied", 3, "n2"]])
    .did("append", "l0", 2, end="fail", error="sealed", request="a/2")
    .did("fates", "a/2", None, [["attempt", "sealed", None, "n1"], ["resolve", "sealed", None, "n2"]])
    .read("l0", [1]),
    "doubts": Book()
    .did("append", "l0", 1, end="info")
    .did("append", "l0", 2, end="info")
    .did("append", "l0", 3, end="info")
    .did("fate", "l0", 1, "applied", request="a/1")
    .did("fate", "l0", 2, "sealed", request="a/2")
    .did("fate", "l0", 3, "lost session", request="a/3")
    .read("l0", [1]),
    "lease": Book()
    .did("append", "l0", 1, done(1), request="a/1")
    .did("append", "l0", 2, end="fail", error="SESSION_EXPIRED", request="a/2")
    .did("append", "l0", 1, done(1, replayed=True), request="a/1")
    .read("l0", [1]),
    "leases": Book()
    .did("hold", "h0", hold(1), {"commit": 4}, request="a/1")
    .did("look", "h0", None, {"at_ms": 5, "commit": 9, "version": 4, "value": 1, "ends_ms": 20})
    .did("hold", "h1", hold(2, bound=True), {"commit": 5}, request="a/2")
    .did("look", "h1", None, {"at_ms": 6, "commit": 9, "version": 5, "value": 2, "owner": "a"})
    .did("close", "a")
    .did("look", "h1", None, {"at_ms": 7, "commit": 12})
    .did("hold", "h2", hold(3), end="fail", error="SESSION_EXPIRED", request="b/1"),
    "flow": flow(),
    "stored": Book()
    .did("put", "past0.0", {"value": 1}, {"version": 4})
    .did("delete", "past0.0", {}, {"version": 5})
    .read("past0.0", {"version": 0}, "get")
    .did("job", "spark", None, {"kills": 2, "ended": []})
    .did("handed-over", "n1", None, {"first_batch": 2, "reads": 1.0}, node="n1"),
    "watch": watched()
    .did("delete", "b1", None, 6)
    .did(*told("", 4, 6))
    .did("scan", "all", None, [3, [["a1", 1], ["b1", 2]]]),
    "watch, ends": ended()
    .did(*told("a", 4, 12, (8, "a2", 7, 9, ""), END))
    .did(*told("", 9, 12, END, (12, "b2", None)))
    .read("a1", 1)
    .read("a2", None),
    "lock": locked()
    .did("write", "l0/guarded", [4, 3], {"refused": "X"})
    .read("l0/guarded", [8, 2])
    .read("l0/fenced", [4, 5]),
    "queue": worked([5, 3])
    .did("append", "d1", "1.2", {"refused": "X"})
    .did("put", "q", 2, end="info")
    .did("put", "q", 5, 9)
    .did("put", "q", 5, 9)
    .did("claim", "q", None, [[7, 8, 1], [9, 10, 1]])
    .did("claim", "q", None, [[9, 12, 2]])
    .did("claim", "qq", None, [[7, 14, 1]])
    .read("d1", ["1.1"]),
    "read-write-lock": both_locked().read("w0/guarded", [12, 4]),
    "semaphore": permitted().did("hold", "s0", None, {"refused": "TAKEN"}).read("s0/guarded", [4, 3]),
    "election": elected().did("observe", "e0", None, [None]).did("observe", "e0", None, []).read("e0/guarded", [4, 1]),
    "registry": named()
    .did("give-up", "n0", 4, result=True)
    .did("hold", "n0", owned("o2", bound=True), 9)
    .did("find", "n0")
    .did("hold", "n0", owned("o3", bound=True), 11)
    .did("write", "n0/guarded", [9, 2], {"refused": "X"})
    .read("n0/guarded", [4, 1]),
    "barrier": passed(1, 2, 3).did("wait", "b0", "4").did("late", "b0", "5").did("wait", "b1", "4", end="info"),
    "rate-limiter": Book()
    .did("look", "r0", None, window(1, 4, 1, 300))
    .did("take", "r0", 2)
    .did("take", "r0", 2, {"refused": "TAKEN"})
    .did("look", "r0", None, window(9, 5, 3, 300))
    .did("look", "r0", None, {"at_ms": 301, "commit": 6})
    .did("look", "r0", None, window(302, 7, 5, 601)),
    "sequence": Book().did("next", "i0", 2, [1, 2]).did("next", "i0", 1, end="info").did("next", "i0", 1, [4, 4]),
    "recipes": locked().did("next", "i0", 2, [1, 2]).read("l0/guarded", [8, 2]).read("l0/fenced", [4, 5]),
    "stream": Book().did("write", "own0", 1).did("read-own", "own0", None, 1).read("own0", 1),
}
BAD: list[tuple[str, Book, str]] = [
    ("register", Book().did("write", "r0", 1).did("write", "r0", 2).read("r0", 1), LOST),
    ("register", Book().did("write", "r0", 1).read("r0", None), LOST),
    ("register", Book().did("write", "r0", 1, end="fail").read("r0", 1), LOST),
    ("register", Book().did("write", "r0", 1).read("r0", 7), LOST),
    ("register", Book().did("write", "r0", 1).read("r0", None), "linearizable register"),
    ("compare-and-set", Book().did("cas", "c0", [None, 1], {"refused": "X"}).read("c0", 1), LOST),
    ("order", seen([1, 3], [2, 8], [3, 7], [4, 9]), "the effects of a session"),
    ("order", seen([1, 9], [3, 8], [4, 10]), "the effects of a session"),
    ("order", seen([1, 3], [2, 5], [2, 8], [3, 7], [4, 9]), "the effects of a session"),
    ("order", seen([1, 3], [4, 9]), LOST),
    ("order", seen([1, 3], [2, 5], [3, 7], [4, 9], book=called(c2="not_applied")), LOST),
    ("runs", scanned([1, 3], [2, 8], [2, 6]), "each row has the version"),
    ("runs", scanned([1, 3], book=Book().did("puts", "p0", 1, {"0": 3, "1": 3})), "each row has the version"),
    ("runs", scanned([1, 3], [1, 4], [2, 6]), LOST),
    ("runs", scanned([1, 3], [2, 7]), LOST),
    ("runs", scanned([1, 3], [2, 7], [9, 6]), LOST),
    ("rows", Book().did("put", "v0", {"value": 1}, {"version": 3}).read("v0", {"version": 0}, "get"), LOST),
    (
        "rows",
        Book().did("put", "v0", {"value": 1}, {"version": 3}).did("put", "v1", {"value": 2}, {"version": 3}),
        LOST,
    ),
    (
        "rows",
        Book()
        .did("put", "v0", {"value": 1, "if": {"version": 4}}, {"version": 5})
        .did("put", "v0", {"value": 2, "if": {"version": 4}}, {"version": 6}),
        "no two writes follow",
    ),
    ("counter", Book().did("increment", "n0", 1).read("n0", 2), LOST),
    ("counter", Book().did("increment", "n0", 1).did("increment", "n0", 1, end="fail").read("n0", 0), LOST),
    ("append", Book().did("append", "l0", 1).read("l0", []), LOST),
    ("append", Book().did("append", "l0", 1).read("l0", [1, 1]), "each acknowledged item once"),
    ("append", Book().did("append", "l0", 1, end="fail").read("l0", [1]), "each acknowledged item once"),
    ("append", Book().did("append", "l0", 1).read("l0", [1, 8]), "each acknowledged item once"),
    ("append", Book().did("append", "l0", 1).did("append", "l0", 2).read("l0", [2, 1]), "linearizable list"),
    ("bank", transferred().did("balances", "all", None, balances(6, giro_ann=-60)), "money"),
    ("bank", transferred().did("balances", "all", None, balances(6, giro_ann=-101, giro_bob=101)), "money"),
    ("bank", transferred().read("all", receipts(*ALL[1:]), "receipts"), LOST),
    ("bank", transferred().read("all", receipts(*ALL, ("t2", 15)), "receipts"), LOST),
    ("bank", transferred().read("all", receipts(*ALL, ("t9", 15)), "receipts"), LOST),
    ("bank", transferred().read("all", receipts(*ALL, third=13), "receipts"), LOST),
    ("bank", transferred().read("all", receipts(("t1", 6), *ALL[1:]), "receipts"), LOST),
    ("bank", transferred(41).read("all", receipts(*ALL, third=41), "receipts"), "every balance"),
    ("bank", transferred().read("all", receipts(*ALL[:1], ALL[2]), "receipts"), "every balance"),
    (
        "bank",
        Book()
        .did("transfer", "t1", ["giro/ann", "savings/bob", 60], {"refused": "X", "commit": 1})
        .read("all", [], "receipts"),
        "every balance",
    ),
    (
        "bank",
        transferred()
        .did("balances", "all", None, balances(12, giro_ann=-60, savings_bob=40, giro_cid=20))
        .read("all", receipts(*ALL), "receipts"),
        "every balance",
    ),
    (
        "bank",
        transferred().did("balance", "ann", None, {"version": 7, "value": -60}).read("all", receipts(*ALL), "receipts"),
        "every balance",
    ),
    (
        "bank",
        transferred()
        .did("balances", "all", None, balances(9, giro_ann=-72, savings_bob=72))
        .read("all", receipts(*ALL), "receipts"),
        "what begins behind",
    ),
    (
        "bank",
        transferred()
        .did("balances", "all", None, balances(6, giro_ann=-60, savings_bob=60) | {"asked": 3})
        .read("all", receipts(*ALL), "receipts"),
        "what begins behind",
    ),
    (
        "bank",
        transferred().did("balance", "ann", None, {"version": 0}).read("all", receipts(*ALL), "receipts"),
        "what begins behind",
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
    ("dedup", Book().did("increment", "d0", 1, 1).read("d0", 2, "sum"), "linearizable counter"),
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
        "doubts",
        Book().did("append", "l0", 1, end="info").did("fate", "l0", 1, "applied").read("l0", []),
        "each doubt ends",
    ),
    (
        "doubts",
        Book()
        .did("append", "l0", 1, end="info")
        .did("read", "l0", None, [1])
        .did("fate", "l0", 1, "sealed")
        .read("l0", [1]),
        "each doubt ends",
    ),
    (
        "doubts",
        Book().did("append", "l0", 1, end="info").did("fate", "l0", 1, "never known: STALE").read("l0", [1]),
        "each doubt ends",
    ),
    (
        "lease",
        Book()
        .did("append", "l0", 1, end="fail", error="SESSION_EXPIRED", request="a/1")
        .did("append", "l0", 1, done(1), request="a/1"),
        "a session that was told of its end",
    ),
    (
        "lease",
        Book()
        .did("append", "l0", 1, done(1), request="a/1")
        .did("append", "l0", 1, done(2, replayed=True), request="a/1"),
        "a session that was told of its end",
    ),
    (
        "leases",
        Book().did("look", "h0", None, {"at_ms": 1_021, "commit": 9, "version": 4, "value": 1, "ends_ms": 20}),
        "no row is there more than a second after",
    ),
    (
        "leases",
        Book()
        .did("hold", "h0", hold(1), {"commit": 4})
        .did("look", "h0", None, {"at_ms": 1, "commit": 4, "version": 4, "value": 1, "ends_ms": 20})
        .did("look", "h0", None, {"at_ms": 19, "commit": 5}),
        "no row ends early",
    ),
    (
        "leases",
        Book()
        .did("look", "h0", None, {"at_ms": 1, "commit": 4, "version": 4, "value": 1, "ends_ms": 20})
        .did("look", "h0", None, {"at_ms": 19, "commit": 9, "version": 5, "value": 2, "ends_ms": 40}),
        "no row ends early",
    ),
    (
        "leases",
        Book()
        .did("close", "a")
        .did("look", "h1", None, {"at_ms": 6, "commit": 9, "version": 5, "value": 2, "owner": "a"}),
        "no row is seen bound to a session that is gone",
    ),
    (
        "leases",
        Book()
        .did("hold", "h2", hold(3), end="fail", error="SESSION_EXPIRED", request="a/1")
        .did("look", "h0", None, {"at_ms": 10, "commit": 9})
        .did("look", "h1", None, {"at_ms": 2_011, "commit": 9, "version": 5, "value": 2, "owner": "a"}),
        "no row is seen bound to a session that is gone",
    ),
    ("flow", flow(["k", 1, 4]), LOST),
    ("flow", flow(["k", 1, 4], ["k", 2, 5], ["k", 2, 6]), LOST),
    ("flow", flow(["k", 2, 5], ["k", 1, 4]), LOST),
    ("flow", flow(["k", 1, 4], ["k", 2, 5], ["k", 3, 6]), LOST),
    (
        "flow",
        flow(["k", 1, 4], ["k", 2, 5], ["k", 3, 6]).did("write", "changes", [["k", 3]], end="fail"),
        LOST,
    ),
    ("flow", flow(others=OTHER), "a batch is the same bytes"),
    ("flow", flow(stored=[["k", 1, 4]]), "the store holds every key once"),
    ("flow", flow(stored=[["k", 2, 5], ["k", 2, 5]]), "the store holds every key once"),
    ("flow", flow(stored=[["k", 2, 5], ["nobody's", 3, 6]]), "the store holds every key once"),
    ("flow", flow(stored=[]), "the store holds every key once"),
    ("watch", watched().did("put", "a2", 9, 5).did(*told("a", 4, 5)), LOST),
    ("watch", watched().did("put", "a2", 9, 5).did(*told("", 4, 5, (5, "a2", 8))), LOST),
    ("watch", watched().did(*told("", 4, 5, (5, "a2", 8))), LOST),
    ("watch", watched().did(*told("", 0, 4, (2, "b1", 2), (1, "a1", 1), (4, "b1", None))), LOST),
    ("watch", watched().did(*told("", 0, 4, (1, "a1", 1), (2, "b1", 2))), LOST),
    ("watch", watched().did(*told("", 0, 1, (1, "a1", 1), (1, "a1", 1))), LOST),
    ("watch", watched().did("put", "c", 7, end="fail").did(*told("", 4, 5, (5, "c", 7))), LOST),
    (
        "watch",
        watched().did("transaction", "many", [["put", "c", 7]], {"refused": "X"}).did(*told("", 4, 5, (5, "c", 7))),
        LOST,
    ),
    ("watch", ended().did(*told("", 4, 9, (8, "a2", 7, 9, ""))), LOST),
    ("watch", ended(until=10), "what a transaction has changed"),
    ("watch", ended().did(*told("a", 4, 9, (8, "a2", 7))), "what a transaction has changed"),
    ("watch", ended().did(*told("", 9, 11, (11, "a2", None, 12, "ttl end"))), "what a transaction has changed"),
    ("watch", ended().did(*told("", 9, 12, END, (12, *END[1:]))), "each end is told once"),
    ("watch", ended().did(*told("", 9, 11, END)).did(*told("", 11, 12, (12, *END[1:]))), "each end is told once"),
    ("watch", ended().did(*told("", 9, 11, (11, "b2", None, 11, "ttl end"))), "each end is told once"),
    ("watch", ended().did(*told("", 9, 11)).read("a2", None), "each end is told once"),
    ("watch", watched().did("scan", "all", None, [3, [["a1", 1]]]), "a scan is the state"),
    ("watch", watched().did("scan", "all", None, [4, [["a1", 1], ["b1", 2]]]), "a scan is the state"),
    ("watch", watched().did("scan", "all", None, [3, [["a1", 1], ["a1", 1], ["b1", 2]]]), "a scan is the state"),
    (
        "watch",  # judged from the scan before it, as nothing is known of what was at first
        Book()
        .did("put", "a1", 1, 5)
        .did("put", "b1", 2, 6)
        .did(*told("", 4, 6, (5, "a1", 1), (6, "b1", 2)))
        .did("scan", "all", None, [5, [["a1", 1]]])
        .did("scan", "all", None, [6, [["a1", 1]]]),
        "a scan is the state",
    ),
    ("lock", locked().did("hold", "l0", None, 7), "tokens rise"),
    ("lock", locked().did("hold", "l1", None, 8), "tokens rise"),
    ("lock", locked().did("write", "l0/guarded", [4, 3], 10), "no write of an earlier holder"),
    (
        "lock",
        locked().did("write", "l0/fenced", [8, 3], 10).did("write", "l0/fenced", [4, 4], 11),
        "no write of an ear",
    ),
    ("lock", locked().did("write", "l0/guarded", [4, 3], 10), "one holder at a time"),
    ("lock", locked().read("l0/guarded", [4, 1]), LOST),
    (
        "lock",
        Book()
        .did("hold", "l0", None, 4)
        .did("write", "l0/guarded", [4, 1], 6)
        .began("write", "l0/guarded", [4, 3], process=1)
        .did("hold", "l0", None, 8)
        .did("write", "l0/guarded", [8, 2], 9)
        .ended("write", "l0/guarded", 10, process=1),
        "one holder",
    ),
    ("queue", worked().did("append", "d1", "1.2").read("d1", ["1.1", "1.2"]), "each item is completed or set aside"),
    ("queue", worked([1, 3]).read("d1", ["1.1"]), "each item is completed or set aside"),
    ("queue", worked([2, 3], [2, 3]).read("d1", ["1.1"]), "each item is completed or set aside"),
    ("queue", worked([2, 2]).read("d1", ["1.1"]), "each item is completed or set aside"),
    ("queue", worked().did("put", "q", 2, 2).read("d1", ["1.1"]), "each item is completed or set aside"),
    ("queue", worked().did("put", "q", 5, 2).read("d1", ["1.1", "5.2"]), "each item is completed or set aside"),
    ("queue", worked().did("claim", "q", None, [[1, 9, 2]]).did("claim", "q", None, [[1, 8, 2]]), "attempts are"),
    ("queue", worked().did("claim", "q", None, [[1, 9, 4]]), "attempts are"),
    ("queue", worked().read("d1", []), LOST),
    ("queue", worked().did("append", "d1", "9.2", {"refused": "X"}).read("d1", ["1.1", "9.2"]), "each acknowledged"),
    ("read-write-lock", both_locked().did("write", "w0/guarded", [4, 5], 16), "a writer holds alone"),
    ("read-write-lock", both_locked().did("write", "w0/guarded", [4, 5], 13), "a writer holds alone"),
    (
        "read-write-lock",
        both_locked().did("hold", "w0", "read", 15).did("write", "w0/guarded", [12, 5], 16),
        "a writer",
    ),
    ("read-write-lock", both_locked().did("hold", "w1", "read", 12), "tokens rise"),
    ("read-write-lock", both_locked().read("w0/guarded", [4, 3]), LOST),
    (
        "semaphore",
        permitted()
        .did("hold", "s0", None, 9)
        .did("write", "s0/guarded", [5, 4], 10)
        .did("write", "s0/guarded", [4, 5], 11),
        "no more holders",
    ),
    ("election", elected().did("write", "e0/guarded", [4, 2], 10), "one leader"),
    ("election", elected().did("observe", "e0", None, [[7, "c2"]]), "observers"),
    ("election", elected().did("observe", "e0", None, [[8, "c3"], [8, "c3"]]), "observers"),
    ("election", elected().did("observe", "e0", None, [[8, "c1"]]), "observers"),
    ("election", elected().did("observe", "e0", None, [[9, "c9"]]), "observers"),
    ("registry", named().did("hold", "n0", owned("o2"), 9), "a name is its owner's"),
    ("registry", named().did("find", "n0"), "a name is its owner's"),
    ("registry", named().did("find", "n0", None, [4, "o2"]), "a name is its owner's"),
    ("registry", named().did("hold", "n0", owned("o2"), 9).did("write", "n0/guarded", [4, 2], 10), "one owner"),
    ("barrier", passed(1, 2), "nobody passes before"),
    ("barrier", passed(2, 3, after=Book().did("wait", "b0", "1", {"refused": "X"})), "nobody passes before"),
    (
        "barrier",
        passed(2, 3, after=Book().did("wait", "b0", "1", end="info", process=9).did("close", "b0", "1")),
        "nobody passes",
    ),
    ("barrier", passed(1, 2, 3).did("late", "b0", "4", end="info"), "what is open stays open"),
    ("rate-limiter", Book().did("look", "r0", None, window(1, 4, 6, 300)), "no window has more"),
    (
        "rate-limiter",
        Book()
        .did("look", "r0", None, window(1, 4, 3, 300))
        .did("take", "r0", 2)
        .did("look", "r0", None, window(9, 5, 4, 300)),
        "no window has more",
    ),
    (
        "rate-limiter",
        Book().did("look", "r0", None, window(1, 4, 1, 300)).did("look", "r0", None, window(302, 7, 5, 599)),
        "windows do not overlap",
    ),
    ("sequence", Book().did("next", "i0", 2, [1, 2]).did("next", "i0", 2, [2, 3]), "each number"),
    ("sequence", Book().did("next", "i0", 2, [1, 1]), "each number"),
    ("sequence", Book().did("next", "i0", 1, [2, 2]), "each number"),
    ("sequence", Book().did("next", "i0", 1, [2, 2]).did("next", "i0", 1, [1, 1]), "each number"),
    ("recipes", locked().did("write", "l0/guarded", [4, 3], 10), "one holder at a time: lock"),
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


@given(st.lists(st.integers(1, 3), min_size=3, max_size=3), st.permutations(range(3)), st.integers(0, 8))
def test_a_session_is_in_order_exactly_if_all_rows_of_each_call_come_before_those_of_the_next(
    sizes: list[int], places: list[int], moved: int
) -> None:
    """Calls of one to three rows; whole ones change places, and then one row does with another."""
    calls = [number for number, size in enumerate(sizes, 1) for _ in range(size)]
    calls.sort(key=lambda number: places[number - 1])
    one, other = moved % len(calls), moved * 5 % len(calls)
    calls[one], calls[other] = calls[other], calls[one]
    scan = [[number, 10 + at] for at, number in enumerate(calls)]
    found = verdicts("order", seen(*scan, [4, 99], book=called(c2="applied")).events)
    (result,) = [one for name, one in found.items() if name.startswith("the effects of a session")]
    assert (result.verdict == "valid") == (calls == sorted(calls)), scan
